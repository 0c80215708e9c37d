//! Mistakes of one rank alone: refused there before anything is sent; the communicator stays good.

use hccl::prelude::*;
use hccl::{Error, ErrorKind, Result};

/// Checks an error of this rank's own, and that everyone can go on.
fn refused<T>(comm: &Communicator, result: Result<T>, parts: &[&str]) -> Result<()> {
    let Err(error) = result else { panic!("not refused: {parts:?}") };
    let text = error.to_string();
    assert!(error.is_recoverable(), "{text}");
    assert!(parts.iter().all(|part| text.contains(part)), "{text} lacks one of {parts:?}");
    let mut one = [1_u32];
    comm.all_reduce(&mut one, Sum)?;
    assert_eq!((one[0] as usize, comm.failure().is_none()), (comm.size(), true));
    Ok(())
}

pub(crate) fn lengths(comm: &Communicator) -> Result<()> {
    let n = comm.size();
    let root = comm.root(comm.rank().index())?;
    let send = vec![1_i32; 3];
    let mut recv = vec![0_i32; 3 * n + 1];
    refused(comm, comm.all_reduce_into(&send, &mut recv, Sum), &["all_reduce", "recv", "elements"])?;
    refused(comm, comm.reduce_into(&send, Some(&mut recv), Sum, root), &["reduce", "recv"])?;
    refused(comm, comm.all_gather(&send, &mut recv), &["all_gather", &format!("{}", 3 * n)])?;
    refused(comm, comm.reduce_scatter(&recv.clone(), &mut send.clone(), Sum), &["reduce_scatter", "send"])?;
    refused(comm, comm.scatter(Some(&recv.clone()), &mut send.clone(), root), &["scatter", "send"])?;
    refused(comm, comm.gather(&send, Some(&mut recv), root), &["gather", "recv"])?;
    if n > 1 {
        refused(comm, comm.all_gather_in_place(&mut recv), &["all_gather", "do not divide"])?;
        refused(comm, comm.reduce_scatter_in_place(&mut recv, Sum), &["reduce_scatter", "do not divide"])?;
        refused(comm, comm.all_to_all(&vec![0_u8; n + 1], &mut vec![0_u8; n + 1]), &["all_to_all", "do not divide"])?;
    }
    refused(comm, comm.all_to_all(&vec![0_u8; n], &mut vec![0_u8; n + 1]), &["all_to_all", "recv"])?;
    refused(comm, comm.scatter(None::<&[u8]>, &mut [0_u8; 2], root), &["scatter", "send buffer"])?;
    refused(comm, comm.gather(&[0_u8; 2], None::<&mut [u8]>, root), &["gather", "receive buffer"])?;
    assert!(recv.iter().all(|x| *x == 0), "a refused call writes nothing");
    Ok(())
}

pub(crate) fn ranks(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    refused(comm, comm.root(n), &[&format!("no rank {n}"), &format!("group of {n}")])?;
    refused(comm, comm.peer(usize::MAX), &["no rank"])?;
    let own = comm.peer(rank)?;
    refused(comm, comm.send(&[1_u8], own), &["send", "with itself"])?;
    refused(comm, comm.recv(&mut [1_u8], own), &["recv", "with itself"])?;
    let (one, mut two) = ([1_u8], [2_u8]);
    refused(comm, comm.batch_send_recv(|batch| batch.send(&one, own)), &["batch_send_recv", "with itself"])?;
    refused(comm, comm.batch_send_recv(|batch| batch.recv(&mut two, own)), &["batch_send_recv", "with itself"])?;
    let left: Vec<usize> = comm.peers().map(|peer| peer.index()).collect();
    assert_eq!(left, (0..n).filter(|r| *r != rank).collect::<Vec<_>>());
    Ok(())
}

pub(crate) fn counts(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    let own = [7_u16; 2];
    let mut all = vec![0_u16; 2 * n];
    let good = vec![2; n];
    refused(comm, comm.all_gather_v(&own, &mut all, &vec![2; n + 1]), &["all_gather_v", "counts"])?;
    refused(comm, comm.all_gather_v(&own[..1], &mut all, &good), &["all_gather_v", "send"])?;
    refused(comm, comm.all_gather_v(&own, &mut all[1..], &good), &["all_gather_v", "recv"])?;
    refused(comm, comm.reduce_scatter_v(&all[1..], &mut [0_u16; 2], &good, Sum), &["reduce_scatter_v", "send"])?;
    refused(comm, comm.reduce_scatter_v(&all.clone(), &mut [0_u16; 3], &good, Sum), &["reduce_scatter_v", "recv"])?;
    if n > 1 {
        let huge = vec![usize::MAX / 2 + 1; n];
        refused(comm, comm.all_gather_v(&own, &mut all, &huge), &["all_gather_v", "more than memory"])?;
    }
    let mut other = good.clone();
    other[rank] = 1;
    let mut less = vec![0_u16; 2 * n - 1];
    refused(comm, comm.all_to_all_v(&all.clone(), &good, &mut less, &other), &["all_to_all_v", "itself"])?;
    refused(comm, comm.all_to_all_v(&less.clone(), &good, &mut all, &good), &["all_to_all_v", "send"])?;
    assert!(all.iter().all(|x| *x == 0), "a refused call writes nothing");
    Ok(())
}

pub(crate) fn members(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    refused(comm, comm.group(&[rank, n]), &["group", &format!("no rank {n}")])?;
    refused(comm, comm.group(&[rank, rank]), &["group", "twice"])?;
    refused(comm, comm.group(&[]), &["group", "not"])?;
    if n > 1 {
        refused(comm, comm.group(&[(rank + 1) % n]), &["group", "not"])?;
    }
    Ok(())
}

/// A refused asynchronous call gives its buffers back, as they were.
pub(crate) fn refused_buffers_come_back(comm: &Communicator) -> Result<()> {
    let n = comm.size();
    let send = comm.upload(&[1_i64, 2, 3])?;
    let back = comm.all_gather_async(send, vec![5_i64; 3 * n + 1]).unwrap_err();
    assert!(matches!(back.error.kind(), ErrorKind::Length { .. }), "{back}");
    let (send, recv) = back.buf;
    assert_eq!((send.to_vec()?, recv), (vec![1, 2, 3], vec![5; 3 * n + 1]));
    let back = comm.send_async(vec![4_u8; 9], comm.peer(comm.rank().index())?).unwrap_err();
    assert_eq!(back.buf, [4; 9]);
    refused::<()>(comm, Err(Error::from(back)), &["send", "with itself"])
}
