//! Contract: "a lost peer, an abort or a passed deadline ends every call that needs it, with the first cause; from then
//! on every call returns that cause".
//!
//! Each case breaks a duplicate of the world; the world itself goes on.

use crate::support::wait_until;
use hccl::prelude::*;
use hccl::{Error, ErrorKind, Loss, Result};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Every call that a group of several has, each expected to fail.
fn every_call(comm: &Communicator) -> Vec<Error> {
    let n = comm.size();
    let other = comm.peer((comm.rank().index() + 1) % n).unwrap();
    let root = comm.root(0).unwrap();
    let (send, mut one, mut all) = ([1_u8], [0_u8], vec![0_u8; n]);
    let wide = vec![1_u8; n];
    let calls = [
        comm.barrier(),
        comm.all_reduce(&mut one, Sum),
        comm.all_reduce(&mut vec![1.0_f64; 9000], Avg),
        comm.reduce(&mut one, Sum, root),
        comm.broadcast(&mut one, root),
        comm.all_gather(&send, &mut all),
        comm.all_gather_v(&send, &mut all, &vec![1; n]),
        comm.reduce_scatter(&wide, &mut one, Sum),
        comm.scatter(Some(&wide), &mut one, root),
        comm.gather(&send, Some(&mut all), root),
        comm.all_to_all(&wide, &mut all),
        comm.send(&send, other),
        comm.recv(&mut one, other),
        comm.batch_send_recv(|batch| batch.send(&send, other)),
        comm.scope(|s| s.barrier().map(|_| ())),
        comm.barrier_async().map_err(Error::from).and_then(|op| op.wait().map_err(Error::from)),
        comm.all_reduce_async(vec![1_u8; 7], Sum).map(|_| ()).map_err(|refused| {
            assert_eq!(refused.buf, [1; 7], "the buffer comes back");
            refused.into_error()
        }),
        comm.split(Some(0), 0).map(|_| ()),
        comm.duplicate().map(|_| ()),
    ];
    calls.into_iter().map(|result| result.unwrap_err()).collect()
}

/// All later calls return `cause`.
fn is_for_good(comm: &Communicator, cause: &ErrorKind) {
    assert_eq!(comm.failure().as_ref().map(Error::kind), Some(cause));
    for error in every_call(comm) {
        assert_eq!(error.kind(), cause, "{error}");
        assert!(!error.is_recoverable() && error.rank().is_some(), "{error}");
    }
}

pub(crate) fn send_circle(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    for len in [1, 3000].into_iter().filter(|_| n > 1) {
        let group = comm.duplicate()?;
        let error = group.send(&vec![1_u32; len], group.peer((rank + 1) % n)?).unwrap_err();
        let ErrorKind::Deadlock { cycle } = error.kind() else { panic!("{error}") };
        let mut named = cycle.clone();
        named.sort_unstable();
        assert_eq!(named, (0..n).collect::<Vec<_>>(), "{error}");
        assert!(cycle.iter().zip(cycle.iter().cycle().skip(1)).all(|(a, b)| (a + 1) % n == *b), "{error}");
        assert!(error.to_string().contains("batch_send_recv"), "the remedy is told: {error}");
    }
    comm.barrier()
}

pub(crate) fn send_against_collective(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    if n == 2 {
        let group = comm.duplicate()?;
        let error = match rank {
            0 => group.all_reduce(&mut [1_u8], Sum),
            _ => group.recv(&mut [1_u8], group.peer(0)?),
        }
        .unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Deadlock { cycle } if cycle.len() == 2), "{error}");
    }
    comm.barrier()
}

pub(crate) fn abort(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    for by in [0, n - 1] {
        let group = comm.duplicate()?;
        if rank == by {
            group.abort_handle().abort();
        }
        let error = group.all_reduce(&mut vec![1_u32; 3000], Sum).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Aborted { by }, "{error}");
        group.abort_handle().abort(); // a second abort changes nothing
        if n > 1 {
            is_for_good(&group, &ErrorKind::Aborted { by });
        }
        assert_eq!(*group.close().unwrap_err().kind(), ErrorKind::Aborted { by });
    }
    comm.barrier()
}

/// While every rank but one waits inside a call.
pub(crate) fn abort_from_another_thread(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    if n > 1 {
        let group = comm.duplicate()?;
        let handle = group.abort_handle();
        let error = if rank == n - 1 {
            let aborting = std::thread::spawn(move || handle.abort());
            wait_until("the group has failed", || group.failure().is_some());
            aborting.join().unwrap();
            group.barrier().unwrap_err()
        } else {
            group.all_reduce(&mut [1_u8; 5000], Sum).unwrap_err()
        };
        assert_eq!(*error.kind(), ErrorKind::Aborted { by: n - 1 }, "{error}");
    }
    comm.barrier()
}

pub(crate) fn leaving(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    for leaver in [0, n - 1].into_iter().filter(|_| n > 1) {
        let group = comm.duplicate()?;
        if rank == leaver {
            group.close()?;
            continue;
        }
        let error = group.all_reduce(&mut [1_f32; 2], Sum).unwrap_err();
        let cause = ErrorKind::PeerLost { peer: leaver, how: Loss::Left };
        assert_eq!(*error.kind(), cause, "{error}");
        assert!(error.is_knock_on() && error.peer() == Some(leaver));
        is_for_good(&group, &cause);
    }
    comm.barrier()
}

/// A rank whose code unwinds through its communicator.
pub(crate) fn panicking(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    if n > 1 {
        let group = comm.duplicate()?;
        if rank == n - 1 {
            let held = AssertUnwindSafe(group);
            let caught = catch_unwind(|| {
                let _group = held;
                resume_unwind(Box::new("on purpose"));
            });
            assert!(caught.is_err());
        } else {
            let error = group.barrier().unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::PeerLost { peer: n - 1, how: Loss::Panicked }, "{error}");
        }
    }
    comm.barrier()
}

/// A second failure does not replace the first.
pub(crate) fn first_cause(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    if n > 1 {
        let group = comm.duplicate()?;
        if rank == 0 {
            group.abort_handle().abort();
        }
        wait_until("everyone knows", || group.failure().is_some());
        comm.barrier()?;
        if rank == n - 1 {
            drop(group);
        } else {
            is_for_good(&group, &ErrorKind::Aborted { by: 0 });
        }
    }
    comm.barrier()
}

pub(crate) fn again_after_failure(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    for round in 0..6 {
        let group = comm.duplicate()?;
        let mut sum = [rank as u64 + round];
        group.all_reduce(&mut sum, Sum)?;
        assert_eq!(sum[0], (0..n as u64).sum::<u64>() + round * n as u64);
        match round % 3 {
            0 => drop(group),
            1 => {
                group.abort_handle().abort();
                assert!(group.barrier().is_err());
            }
            _ if n > 1 => assert!(group.all_reduce(&mut vec![0_u8; rank], Sum).is_err()),
            _ => {}
        }
    }
    comm.barrier()
}

/// Contract: "a call that fails leaves nobody writing plain memory": it is filled after the error, and stays so.
pub(crate) fn memory_is_quiet(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    for round in 0..if n > 1 { 10 } else { 0 } {
        let group = comm.duplicate()?;
        let (mut plain, mut device) = (vec![1_u64; 20_000], comm.upload(&vec![1_u64; 20_000])?);
        let aborts = rank == round % n;
        let handle = group.abort_handle();
        let aborting = aborts.then(|| std::thread::spawn(move || handle.abort()));
        let failed = (0..100_000).find_map(|_| {
            let first = group.all_reduce(&mut plain, Max).err();
            first.or_else(|| group.all_reduce(&mut device, Max).err())
        });
        assert!(matches!(failed.unwrap().kind(), ErrorKind::Aborted { .. }));
        plain.fill(round as u64 + 5);
        device.fill(round as u64 + 6)?;
        comm.barrier()?;
        assert!(plain.iter().all(|x| *x == round as u64 + 5));
        assert!(device.to_vec()?.iter().all(|x| *x == round as u64 + 6));
        aborting.into_iter().for_each(|thread| thread.join().unwrap());
    }
    comm.barrier()
}

/// Contract: "a count of 0 is a call like any other: ranks meet": without one rank it does not end well.
pub(crate) fn nothing_still_meets(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    if n > 1 {
        let group = comm.duplicate()?;
        if rank != n - 1 {
            let none: [u8; 0] = [];
            let error = group.all_gather(&none, &mut [0_u8; 0]).unwrap_err();
            assert!(error.is_peer_lost(), "{error}");
        }
    }
    comm.barrier()
}

/// Calls that are queued behind one that fails return its cause, with their buffers.
pub(crate) fn queued_calls_fail(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    if n == 1 {
        return comm.barrier();
    }
    let group = comm.duplicate()?;
    if rank == n - 1 {
        comm.barrier()?;
        group.abort_handle().abort();
        return comm.barrier();
    }
    let ops: Vec<_> = (0..5).map(|i| group.all_reduce_async(vec![i as u16; 900], Sum).unwrap()).collect();
    let kept = group.all_gather_async(comm.upload(&[1_u8; 3])?, vec![0_u8; 3 * n]).unwrap();
    comm.barrier()?;
    for op in ops {
        let failed = op.wait().unwrap_err();
        assert_eq!((failed.error.kind(), failed.buf.len()), (&ErrorKind::Aborted { by: n - 1 }, 900));
    }
    let (send, recv) = kept.wait().unwrap_err().buf;
    assert_eq!((send.to_vec()?, recv.len()), (vec![1; 3], 3 * n));
    comm.barrier()
}
