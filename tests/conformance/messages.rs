//! Messages between two ranks, alone and in batches.

use crate::lend;
use crate::lengths::{is_short, lengths, long};
use crate::support::cells::{cell, cells};
use crate::support::guarded::{Guarded, SCHEMES, Style};
use hccl::Result;
use hccl::prelude::*;

/// Every length and kind of memory on both sides, from every rank to its neighbour.
pub(crate) fn send_recv(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    let extra = long(4, 1).into_iter().map(|len| len + 1);
    let mut from = 0;
    for len in lengths(4, 1).into_iter().chain(extra).filter(|_| n > 1) {
        for scheme in 0..SCHEMES {
            from = (from + 1) % n;
            let to = (from + 1) % n;
            let style = Style::of(scheme, rank);
            let sent = cells::<u32>(len, from, n);
            if rank == from {
                let mut buf = Guarded::new(comm, style, &sent)?;
                lend!(buf => buf: comm.send(&*buf, comm.peer(to)?)?);
                buf.expect(&sent, &"sent");
            } else if rank == to {
                let mut buf = Guarded::<u32>::empty(comm, style, len)?;
                lend!(buf => buf: comm.recv(buf, comm.peer(from)?)?);
                buf.expect(&sent, &format_args!("{from} to {to}, {style:?}"));
            }
        }
    }
    Ok(())
}

/// Every rank exchanges with every other at once, each pair another length.
pub(crate) fn batch(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    let longest = if is_short() { 9000 } else { 200_003 };
    for base in [0, 1, 95, 1025, longest] {
        let len = |from: usize, to: usize| base * ((from + 3 * to) % 4) / 3;
        let of = |from: usize, to: usize| cells::<u16>(len(from, to), n * from + to, n * n);
        let others: Vec<usize> = (0..n).filter(|other| *other != rank).collect();
        let plain: Vec<Vec<u16>> = others.iter().map(|to| of(rank, *to)).collect();
        let mut device = Vec::new();
        for from in &others {
            device.push(comm.zeros::<u16>(len(*from, rank))?);
        }
        comm.batch_send_recv(|batch| {
            for ((other, send), recv) in others.iter().zip(&plain).zip(&mut device) {
                batch.recv(recv, comm.peer(*other)?)?;
                batch.send(send, comm.peer(*other)?)?;
            }
            Ok(())
        })?;
        for (from, buf) in others.iter().zip(&device) {
            assert_eq!(buf.to_vec()?, of(*from, rank), "{base} from {from}");
        }
    }
    comm.batch_send_recv(|_| Ok(()))
}

/// Contract: "calls of one rank start in the order in which they were given": also messages, also inside a batch.
pub(crate) fn order(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    let (next, last) = ((rank + 1) % n, (rank + n - 1) % n);
    if n == 1 {
        return Ok(());
    }
    let of = |i: usize, rank: usize| cells::<u64>([1, 48, 49, 513, 3000][i % 5], i * n + rank, 50 * n);
    for i in 0..20 {
        match rank {
            0 => comm.send(&of(i, 0), comm.peer(1)?)?,
            1 => {
                let mut buf = vec![0; of(i, 0).len()];
                comm.recv(&mut buf, comm.peer(0)?)?;
                assert_eq!(buf, of(i, 0), "message {i}");
            }
            _ => {}
        }
    }
    let sends: Vec<Vec<u64>> = (0..10).map(|i| of(i, rank)).collect();
    let mut recvs: Vec<Vec<u64>> = sends.iter().map(|send| vec![0; send.len()]).collect();
    comm.batch_send_recv(|batch| {
        for (send, recv) in sends.iter().zip(&mut recvs) {
            batch.send(send, comm.peer(next)?)?;
            batch.recv(recv, comm.peer(last)?)?;
        }
        Ok(())
    })?;
    for (i, recv) in recvs.iter().enumerate() {
        assert_eq!(*recv, of(i, last), "message {i} of the batch");
    }
    Ok(())
}

/// What goes round the ring once comes back as it was.
pub(crate) fn ring_of_batches(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    if n == 1 {
        return Ok(());
    }
    let (next, last) = (comm.peer((rank + 1) % n)?, comm.peer((rank + n - 1) % n)?);
    let mut held = cells::<f64>(1001, rank, n);
    for round in 1..=n {
        let mut coming = vec![0.0; held.len()];
        comm.batch_send_recv(|batch| {
            batch.send(&held, next)?;
            batch.recv(&mut coming, last)
        })?;
        held = coming;
        assert_eq!(held[1000].to_bits(), cell::<f64>(1000, (rank + n - round) % n, n).to_bits(), "round {round}");
    }
    Ok(())
}

/// One rank receives from all others, last rank first, while the others wait their turn.
pub(crate) fn many_to_one(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    for root in 0..n {
        if rank != root {
            comm.send(&cells::<i16>(700, rank, n), comm.peer(root)?)?;
            continue;
        }
        for from in (0..n).rev().filter(|from| *from != root) {
            let mut buf = [0; 700];
            comm.recv(&mut buf, comm.peer(from)?)?;
            assert_eq!(buf[..], cells::<i16>(700, from, n));
        }
    }
    Ok(())
}
