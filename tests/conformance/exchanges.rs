//! Collectives that move elements without reducing them: every length, kind of memory, root and dtype, with guards
//! around every buffer.

use crate::lend;
use crate::lengths::{is_long, is_short, lengths, long};
use crate::support::cells::{Cell, cell, cells};
use crate::support::guarded::{Guarded, SCHEMES, Style, untouched};
use hccl::Result;
use hccl::prelude::*;

/// One way of making a call: a length, the memory this rank lends, and a root that all ranks agree on.
#[derive(Clone, Copy, Debug)]
struct Case {
    len: usize,
    send: Style,
    recv: Style,
    root: usize,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Runs `call` in every case.
fn every_case<T: Cell>(comm: &Communicator, pieces: usize, mut call: impl FnMut(Case) -> Result<()>) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    let width = size_of::<T>();
    let mut root = 0;
    for len in lengths(width, pieces) {
        for scheme in 0..SCHEMES {
            if is_long(len, width, pieces) && ![0, 3].contains(&scheme) {
                continue;
            }
            root = (root + 1) % n;
            call(Case { len, send: Style::of(scheme, rank), recv: Style::of(scheme, rank + 1), root })?;
        }
    }
    if let Some(len) = long(width, 1).filter(|_| n <= 3 && width > 1) {
        call(Case { len, send: Style::Plain, recv: Style::Plain, root: n - 1 })?;
        call(Case { len, send: Style::Whole, recv: Style::Part, root: 0 })?;
    }
    Ok(())
}

/// A law for elements of one and of four bytes.
macro_rules! law {
    ($name:ident, $of:ident) => {
        pub(crate) fn $name(comm: &Communicator) -> Result<()> {
            $of::<u8>(comm)?;
            $of::<u32>(comm)
        }
    };
}

law!(broadcast, broadcast_of);
law!(all_gather, all_gather_of);
law!(all_gather_in_place, all_gather_in_place_of);
law!(all_gather_v, all_gather_v_of);
law!(scatter, scatter_of);
law!(gather, gather_of);
law!(all_to_all, all_to_all_of);
law!(all_to_all_v, all_to_all_v_of);

fn broadcast_of<T: Cell>(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    every_case::<T>(comm, 1, |case| {
        let mut buf = Guarded::new(comm, case.send, &cells::<T>(case.len, rank, n))?;
        lend!(buf => buf: comm.broadcast(buf, comm.root(case.root)?)?);
        buf.expect(&cells(case.len, case.root, n), &case);
        Ok(())
    })
}

/// What all ranks gave, one after the other.
fn gathered<T: Cell>(len: usize, n: usize) -> Vec<T> {
    (0..n).flat_map(|rank| cells(len, rank, n)).collect()
}

fn all_gather_of<T: Cell>(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    every_case::<T>(comm, 1, |case| {
        let own = cells::<T>(case.len, rank, n);
        let mut send = Guarded::new(comm, case.send, &own)?;
        let mut recv = Guarded::<T>::empty(comm, case.recv, case.len * n)?;
        lend!(send => send: lend!(recv => recv: comm.all_gather(&*send, recv)?));
        recv.expect(&gathered(case.len, n), &case);
        send.expect(&own, &case);
        Ok(())
    })
}

fn all_gather_in_place_of<T: Cell>(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    every_case::<T>(comm, 1, |case| {
        let mut start = untouched::<T>(case.len * n);
        start[rank * case.len..][..case.len].copy_from_slice(&cells(case.len, rank, n));
        let mut buf = Guarded::new(comm, case.send, &start)?;
        lend!(buf => buf: comm.all_gather_in_place(buf)?);
        buf.expect(&gathered(case.len, n), &case);
        Ok(())
    })
}

/// Unequal counts, some of them 0: about `len` elements of the rank that has most.
fn counts(len: usize, n: usize) -> Vec<usize> {
    (0..n).map(|rank| if (rank + len) % 3 == 1 { 0 } else { len.saturating_sub(2 * rank) }).collect()
}

fn all_gather_v_of<T: Cell>(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    every_case::<T>(comm, 1, |case| {
        let counts = counts(case.len, n);
        let own = cells::<T>(counts[rank], rank, n);
        let expected: Vec<T> = (0..n).flat_map(|from| cells(counts[from], from, n)).collect();
        let mut send = Guarded::new(comm, case.send, &own)?;
        let mut recv = Guarded::<T>::empty(comm, case.recv, expected.len())?;
        lend!(send => send: lend!(recv => recv: comm.all_gather_v(&*send, recv, &counts)?));
        recv.expect(&expected, &case);
        send.expect(&own, &case);
        Ok(())
    })
}

fn scatter_of<T: Cell>(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    every_case::<T>(comm, n, |case| {
        let root = comm.root(case.root)?;
        let all = cells::<T>(case.len * n, case.root, n);
        let mut send = Guarded::new(comm, case.send, &all)?;
        let mut recv = Guarded::<T>::empty(comm, case.recv, case.len)?;
        lend!(send => send: lend!(recv => recv: comm.scatter(comm.is_root(root).then_some(&*send), recv, root)?));
        recv.expect(&all[rank * case.len..][..case.len], &case);
        send.expect(&all, &case);
        Ok(())
    })
}

fn gather_of<T: Cell>(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    every_case::<T>(comm, 1, |case| {
        let root = comm.root(case.root)?;
        let own = cells::<T>(case.len, rank, n);
        let mut send = Guarded::new(comm, case.send, &own)?;
        let mut recv = Guarded::<T>::empty(comm, case.recv, case.len * n)?;
        lend!(send => send: lend!(recv => recv: comm.gather(&*send, comm.is_root(root).then_some(recv), root)?));
        let expected = if comm.is_root(root) { gathered(case.len, n) } else { untouched(case.len * n) };
        recv.expect(&expected, &case);
        send.expect(&own, &case);
        Ok(())
    })
}

fn all_to_all_of<T: Cell>(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    every_case::<T>(comm, n, |case| {
        let own = cells::<T>(case.len * n, rank, n);
        let piece = |from: usize| (0..case.len).map(move |i| cell::<T>(rank * case.len + i, from, n));
        let mut send = Guarded::new(comm, case.send, &own)?;
        let mut recv = Guarded::<T>::empty(comm, case.recv, case.len * n)?;
        lend!(send => send: lend!(recv => recv: comm.all_to_all(&*send, recv)?));
        recv.expect(&(0..n).flat_map(piece).collect::<Vec<T>>(), &case);
        send.expect(&own, &case);
        Ok(())
    })
}

/// How many elements `from` gives `to`: different for every pair, often none.
fn given(len: usize, from: usize, to: usize) -> usize {
    if (from + 2 * to + len) % 4 == 3 { 0 } else { len.saturating_sub(from + 3 * to) }
}

fn all_to_all_v_of<T: Cell>(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    every_case::<T>(comm, n, |case| {
        let sends: Vec<usize> = (0..n).map(|to| given(case.len, rank, to)).collect();
        let recvs: Vec<usize> = (0..n).map(|from| given(case.len, from, rank)).collect();
        let own = cells::<T>(sends.iter().sum(), rank, n);
        let piece = |from: usize| {
            let start: usize = (0..rank).map(|to| given(case.len, from, to)).sum();
            (0..recvs[from]).map(move |i| cell::<T>(start + i, from, n))
        };
        let mut send = Guarded::new(comm, case.send, &own)?;
        let mut recv = Guarded::<T>::empty(comm, case.recv, recvs.iter().sum())?;
        lend!(send => send: lend!(recv => recv: comm.all_to_all_v(&*send, &sends, recv, &recvs)?));
        recv.expect(&(0..n).flat_map(piece).collect::<Vec<T>>(), &case);
        send.expect(&own, &case);
        Ok(())
    })
}

/// All elements travel as they are, NaNs with their payloads too.
pub(crate) fn every_dtype_moves(comm: &Communicator) -> Result<()> {
    fn moves<T: Cell>(comm: &Communicator) -> Result<()> {
        let (rank, n) = (comm.rank().index(), comm.size());
        for len in [5, 1025] {
            let own = cells::<T>(len, rank, n);
            let mut all = Guarded::<T>::empty(comm, Style::Plain, len * n)?;
            lend!(all => all: comm.all_gather(&own, all)?);
            all.expect(&gathered(len, n), &"gathered");
            for root in 0..n {
                let mut buf = Guarded::new(comm, Style::Part, &own)?;
                lend!(buf => buf: comm.broadcast(buf, comm.root(root)?)?);
                buf.expect(&cells(len, root, n), &"broadcast");
            }
        }
        Ok(())
    }
    moves::<i8>(comm)?;
    moves::<u8>(comm)?;
    moves::<i16>(comm)?;
    moves::<u16>(comm)?;
    moves::<i32>(comm)?;
    moves::<u32>(comm)?;
    moves::<i64>(comm)?;
    moves::<u64>(comm)?;
    moves::<half::f16>(comm)?;
    moves::<half::bf16>(comm)?;
    moves::<f32>(comm)?;
    moves::<f64>(comm)
}

/// Bytes whose number only their owner knows.
pub(crate) fn bytes(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    let longest = if is_short() { 5000 } else { 300_000 };
    for root in 0..n {
        for len in [0, 1, 33, longest + root] {
            let own = if rank == root { cells::<u8>(len, root, n) } else { vec![7; rank] };
            assert_eq!(comm.broadcast_bytes(own, comm.root(root)?)?, cells::<u8>(len, root, n), "{len} from {root}");
        }
    }
    for base in [0, 1, 1000, longest / n] {
        let of = |rank: usize| cells::<u8>(base * ((rank + 1) % 3), rank, n);
        let all = comm.all_gather_bytes(&of(rank))?;
        assert_eq!(all, (0..n).map(of).collect::<Vec<_>>(), "{base}");
    }
    Ok(())
}
