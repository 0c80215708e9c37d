//! The three forms of a call: what the owned and the borrowed one add to the blocking one.

use crate::lengths::is_short;
use crate::support::cells::cells;
use crate::support::wait_until;
use hccl::prelude::*;
use hccl::{Error, Result};

fn longest() -> usize {
    if is_short() { 3001 } else { 100_003 }
}

/// What a sum over all ranks of `cells` is.
fn sums(len: usize, n: usize) -> Vec<u64> {
    let add = |mut sum: Vec<u64>, rank: usize| {
        sum.iter_mut().zip(cells::<u64>(len, rank, n)).for_each(|(sum, x)| *sum = sum.wrapping_add(x));
        sum
    };
    (0..n).fold(vec![0; len], add)
}

/// The elements of `len` on every rank, one rank after the other.
fn all(len: usize, n: usize) -> Vec<u64> {
    (0..n).flat_map(|rank| cells::<u64>(len, rank, n)).collect()
}

pub(crate) fn owned(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    for len in [0, 1, 700, longest()] {
        let own = cells::<u64>(len, rank, n);
        let root = comm.root(len % n)?;
        let reduced = comm.all_reduce_async(own.clone(), Sum)?;
        let device = comm.all_reduce_async(comm.upload(&own)?, Sum)?;
        let rooted = comm.reduce_async(own.clone(), Sum, root)?;
        let sent = comm.broadcast_async(comm.upload(&own)?, root)?;
        let mut parts = vec![0; len * n];
        parts[rank * len..][..len].copy_from_slice(&own);
        let gathered = comm.all_gather_in_place_async(parts)?;
        let scattered = comm.reduce_scatter_in_place_async(all(len, n), Max)?;
        let met = comm.barrier_async()?;
        met.wait()?;
        assert!(reduced.is_ready() && scattered.wait_timeout(std::time::Duration::ZERO), "calls end in order");
        assert_eq!(reduced.wait()?, sums(len, n));
        assert_eq!(device.wait()?.to_vec()?, sums(len, n));
        assert_eq!(rooted.wait()?, if comm.is_root(root) { sums(len, n) } else { own });
        assert_eq!(sent.wait()?.to_vec()?, cells::<u64>(len, root.index(), n));
        assert_eq!(gathered.wait()?, all(len, n));
        assert_eq!(scattered.wait()?, all(len, n));
    }
    Ok(())
}

pub(crate) fn owned_pairs(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    for len in [0, 1, 700] {
        let own = cells::<u64>(len, rank, n);
        let root = comm.root(len % n)?;
        let here = comm.is_root(root);
        let zeros = |len: usize| vec![0_u64; len];
        let counts: Vec<usize> = (0..n).map(|r| if r == n - 1 { len } else { 0 }).collect();
        let mine = own[..counts[rank]].to_vec();
        let into = comm.all_reduce_into_async(own.clone(), comm.zeros(len)?, Sum)?;
        let rooted = comm.reduce_into_async(own.clone(), here.then(|| zeros(len)), Sum, root)?;
        let gathered = comm.all_gather_async(comm.upload(&own)?, zeros(len * n))?;
        let some = comm.all_gather_v_async(mine, zeros(len), &counts)?;
        let scattered = comm.reduce_scatter_async(all(len, n), zeros(len), Min)?;
        let scattered_v = comm.reduce_scatter_v_async(own.clone(), zeros(counts[rank]), &counts, Sum)?;
        let parts = comm.scatter_async(here.then(|| all(len, n)), zeros(len), root)?;
        let rows = comm.gather_async(own.clone(), here.then(|| zeros(len * n)), root)?;
        let crossed = comm.all_to_all_async(all(len, n), zeros(len * n))?;
        let equal = vec![len; n];
        let crossed_v = comm.all_to_all_v_async(all(len, n), &equal, zeros(len * n), &equal)?;
        let (send, recv) = into.wait()?;
        assert_eq!((send, recv.to_vec()?), (own.clone(), sums(len, n)));
        assert_eq!(rooted.wait()?, (own.clone(), here.then(|| sums(len, n))));
        assert_eq!(gathered.wait()?.1, all(len, n));
        assert_eq!(some.wait()?.1, cells::<u64>(len, n - 1, n));
        assert_eq!(scattered.wait()?.1, own);
        assert_eq!(scattered_v.wait()?.1, sums(len, n)[..counts[rank]]);
        assert_eq!(parts.wait()?.1, own);
        assert_eq!(rows.wait()?.1, here.then(|| all(len, n)));
        let mine: Vec<u64> = (0..n).flat_map(|_| own.clone()).collect();
        assert_eq!(crossed.wait()?.1, mine);
        assert_eq!(crossed_v.wait()?.1, mine);
    }
    Ok(())
}

pub(crate) fn owned_messages(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    if n == 1 {
        return Ok(());
    }
    for len in [0, 48, 49, longest()] {
        match rank {
            0 => assert_eq!(comm.send_async(cells::<u64>(len, 0, n), comm.peer(1)?)?.wait()?, cells::<u64>(len, 0, n)),
            1 => {
                let got = comm.recv_async(comm.zeros::<u64>(len)?, comm.peer(0)?)?.wait()?;
                assert_eq!(got.to_vec()?, cells::<u64>(len, 0, n));
            }
            _ => {}
        }
        let (next, last) = (comm.peer((rank + 1) % n)?, comm.peer((rank + n - 1) % n)?);
        let sends = vec![(cells::<u64>(len, rank, n), next), (vec![rank as u64], next)];
        let recvs = vec![(comm.zeros::<u64>(len)?, last), (comm.zeros(1)?, last)];
        let (_, got) = comm.batch_send_recv_async(sends, recvs)?.wait()?;
        assert_eq!(got[0].0.to_vec()?, cells::<u64>(len, last.index(), n));
        assert_eq!(got[1].0.to_vec()?, [last.index() as u64]);
    }
    Ok(())
}

pub(crate) fn scoped(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    for len in [0, 1, 700, longest()] {
        let own = cells::<u64>(len, rank, n);
        let root = comm.root(len % n)?;
        let here = comm.is_root(root);
        let (mut a, mut b, mut c) = (own.clone(), comm.upload(&own)?, own.clone());
        let (mut d, mut e, mut f) = (vec![0; len], vec![0; len * n], vec![0; len * n]);
        let (mut g, mut h, mut i) = (vec![0; len], vec![0; len], vec![0; len * n]);
        let everything = all(len, n);
        let lent = &everything[..];
        comm.scope(|s| {
            s.all_reduce(&mut a[..], Sum)?;
            s.broadcast(&mut b, root)?;
            let reduced = s.reduce(&mut c, Sum, root)?;
            s.all_reduce_into(&own, &mut d, Sum)?;
            s.all_gather(&own, &mut e)?;
            s.all_to_all(lent, &mut f)?;
            s.reduce_scatter(lent, &mut g, Max)?;
            s.scatter(Some(lent), &mut h, root)?;
            s.gather(&own, Some(&mut i), root)?;
            s.barrier()?;
            let reduced = reduced.wait()?;
            assert_eq!(*reduced, if here { sums(len, n) } else { own.clone() });
            Ok(())
        })?;
        assert_eq!((&a, b.to_vec()?), (&sums(len, n), cells(len, root.index(), n)));
        assert_eq!((&d, &e), (&sums(len, n), &everything));
        assert_eq!(f, (0..n).flat_map(|_| own.clone()).collect::<Vec<u64>>());
        assert_eq!((&g, &h), (&own, &own));
        assert_eq!(i, if here { everything.clone() } else { vec![0; len * n] });
    }
    Ok(())
}

pub(crate) fn scoped_messages(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    if n == 1 {
        return Ok(());
    }
    let (next, last) = (comm.peer((rank + 1) % n)?, comm.peer((rank + n - 1) % n)?);
    let sent = cells::<i32>(5000, rank, n);
    let (mut got, mut one) = (vec![0; 5000], [0_i8]);
    comm.scope(|s| {
        s.batch_send_recv(|batch| {
            batch.send(&sent, next)?;
            batch.recv(&mut got, last)
        })?;
        match rank {
            0 => {
                s.send(&[9_i8], comm.peer(1)?)?;
            }
            1 => assert_eq!(s.recv(&mut one, comm.peer(0)?)?.wait()?[0], 9),
            _ => {}
        }
        Ok(())
    })?;
    assert_eq!(got, cells::<i32>(5000, last.index(), n));
    Ok(())
}

/// Contract: "calls of one rank start in the order in which they were given": blocking ones wait for queued ones.
pub(crate) fn queue_order(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    let value = |i: u64, rank: usize| i * n as u64 + rank as u64;
    let sum = |i: u64| (0..n).map(|rank| value(i, rank)).sum::<u64>();
    let mut queued = Vec::new();
    for i in 0..60 {
        let len = [1, 600][(i % 2) as usize];
        if i % 7 == 6 {
            let mut x = [value(i, rank)];
            comm.all_reduce(&mut x, Sum)?;
            assert_eq!(x[0], sum(i), "blocking call {i}");
        } else {
            queued.push((i, comm.all_reduce_async(vec![value(i, rank); len], Sum)?));
        }
    }
    for (i, op) in queued.into_iter().rev() {
        assert!(op.wait()?.iter().all(|x| *x == sum(i)), "call {i}");
    }
    Ok(())
}

/// Contract: "a call that returns `Ok` leaves nobody reading or writing the memory it was given": it is used at once
/// for something else, which the others must not see.
pub(crate) fn memory_is_quiet(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    let len = if is_short() { 2000 } else { 50_000 };
    let mut device = comm.zeros::<u64>(len)?;
    let mut plain = vec![0_u64; len];
    let mut out = vec![0_u64; len];
    for round in 0..20 {
        let own = round * n as u64 + rank as u64;
        let sum = (0..n).map(|r| round * n as u64 + r as u64).sum::<u64>();
        device.fill(own)?;
        plain.fill(own);
        comm.all_reduce_into(&device, &mut out, Sum)?;
        device.fill(u64::MAX)?;
        assert!(out.iter().all(|x| *x == sum));
        comm.all_reduce(&mut plain, Sum)?;
        let root = comm.root(round as usize % n)?;
        device.copy_from_slice(&plain)?;
        plain.fill(77);
        comm.broadcast(&mut device, root)?;
        assert!(device.to_vec()?.iter().all(|x| *x == sum));
        device.fill(rank as u64)?;
        assert!(plain.iter().all(|x| *x == 77));
    }
    Ok(())
}

/// A dropped handle leaves the call running on its buffer.
pub(crate) fn detached(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    for _ in 0..20 {
        for len in [3, 3000] {
            drop(comm.all_reduce_async(comm.upload(&vec![rank as u32; len])?, Sum)?);
            drop(comm.all_gather_async(vec![rank as u16; len], vec![0; len * n])?);
        }
        // Memory that were freed too early would be handed out again here.
        let fresh = comm.zeros::<u32>(3000)?;
        let mut sum = vec![1_u32; 3000];
        comm.all_reduce(&mut sum, Sum)?;
        assert!(sum.iter().all(|x| *x == n as u32));
        assert!(fresh.to_vec()?.iter().all(|x| *x == 0));
    }
    // The communicator goes with calls in its queue: they still run.
    let other = comm.duplicate()?;
    let last = other.all_reduce_async(vec![rank as u64 + 1; 5000], Sum)?;
    drop(other);
    assert_eq!(last.wait()?[4999], (1..=n as u64).sum());
    Ok(())
}

pub(crate) fn forgotten(comm: &Communicator) -> Result<()> {
    let n = comm.size();
    for len in [1, 2000] {
        std::mem::forget(comm.all_reduce_async(vec![1_u8; len], Max)?);
        std::mem::forget(comm.barrier_async()?);
        let mut x = vec![1_u32; len];
        comm.all_reduce(&mut x, Sum)?;
        assert!(x.iter().all(|x| *x == n as u32));
    }
    Ok(())
}

pub(crate) fn scope_errors(comm: &Communicator) -> Result<()> {
    let n = comm.size();
    let mut x = vec![1_u64; 2000];
    let error = comm
        .scope(|s| -> Result<()> {
            s.all_reduce(&mut x, Sum)?;
            Err(Error::rank_failed(9, "the closure's own"))
        })
        .unwrap_err();
    assert!(error.to_string().contains("the closure's own"), "{error}");
    assert!(x.iter().all(|x| *x == n as u64), "the call was waited for");
    let (mut y, mut z) = ([1_u8], [2_u8; 3]);
    let error = comm.scope(|s| s.all_reduce_into(&y, &mut z, Sum).map(|_| ())).unwrap_err();
    assert!(error.is_recoverable(), "{error}");
    comm.all_reduce(&mut y, Sum)
}

pub(crate) fn scope_panics(comm: &Communicator) -> Result<()> {
    let n = comm.size();
    let mut x = comm.upload(&vec![1_u64; 2000])?;
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        comm.scope(|s| -> Result<()> {
            s.all_reduce(&mut x, Sum)?;
            std::panic::resume_unwind(Box::new("on purpose"));
        })
    }));
    assert!(caught.is_err());
    assert!(x.to_vec()?.iter().all(|x| *x == n as u64), "the call was waited for");
    let op = comm.barrier_async()?;
    wait_until("the barrier is passed", || op.is_ready());
    op.wait().map_err(Error::from)
}
