//! Collectives that reduce: the bits of a second, plain implementation, on every rank, by every way through the engine.
//!
//! All buffers hold special values between plain ones: limits, subnormals, makers of ties, infinities, NaNs.

use crate::lend;
use crate::lengths::{is_long, lengths, long};
use crate::support::cells::{Cell, reduced, samples};
use crate::support::guarded::{Guarded, SCHEMES, Style, untouched};
use half::{bf16, f16};
use hccl::prelude::*;
use hccl::{OpKind, Result};

/// What every rank gives to a reduction of `len` elements.
fn inputs<T: Cell>(len: usize, n: usize) -> Vec<Vec<T>> {
    (0..n).map(|rank| samples(len, rank, n)).collect()
}

fn kind<T, Op: ReduceOp<T>>(_: Op) -> OpKind {
    Op::KIND
}

/// The elements of part `part` of `n` equal ones.
fn part<T: Cell>(all: &[T], part: usize, n: usize) -> &[T] {
    let len = all.len() / n;
    &all[part * len..][..len]
}

/// Runs `call(length, send, recv, number)` for every length and scheme.
fn every_case(
    comm: &Communicator,
    width: usize,
    pieces: usize,
    mut call: impl FnMut(usize, Style, Style, usize) -> Result<()>,
) -> Result<()> {
    let rank = comm.rank().index();
    let mut number = 0;
    for len in lengths(width, pieces) {
        for scheme in 0..SCHEMES {
            if is_long(len, width, pieces) && ![0, 3].contains(&scheme) {
                continue;
            }
            number += 1;
            call(len, Style::of(scheme, rank), Style::of(scheme, rank + 1), number)?;
        }
    }
    Ok(())
}

/// A law for a wrapping sum of i32 and an average of bf16.
macro_rules! law {
    ($name:ident, $of:ident) => {
        pub(crate) fn $name(comm: &Communicator) -> Result<()> {
            $of::<i32, Sum>(comm, Sum)?;
            $of::<bf16, Avg>(comm, Avg)
        }
    };
}

law!(all_reduce, all_reduce_of);
law!(all_reduce_into, all_reduce_into_of);
law!(reduce, reduce_of);
law!(reduce_into, reduce_into_of);
law!(reduce_scatter, reduce_scatter_of);
law!(reduce_scatter_in_place, reduce_scatter_in_place_of);
law!(reduce_scatter_v, reduce_scatter_v_of);

fn all_reduce_of<T: Cell, Op: ReduceOp<T>>(comm: &Communicator, op: Op) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    let check = |len: usize, style: Style| {
        let inputs = inputs::<T>(len, n);
        let mut buf = Guarded::new(comm, style, &inputs[rank])?;
        lend!(buf => buf: comm.all_reduce(buf, op)?);
        buf.expect(&reduced(kind::<T, Op>(op), &inputs), &format_args!("{style:?}"));
        Ok(())
    };
    every_case(comm, size_of::<T>(), 1, |len, style, _, _| check(len, style))?;
    if let Some(len) = long(size_of::<T>(), n).filter(|_| n <= 4) {
        check(len, Style::Whole)?;
        check(len, Style::Plain)?;
    }
    Ok(())
}

fn all_reduce_into_of<T: Cell, Op: ReduceOp<T>>(comm: &Communicator, op: Op) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    every_case(comm, size_of::<T>(), 1, |len, from, into, _| {
        let inputs = inputs::<T>(len, n);
        let mut send = Guarded::new(comm, from, &inputs[rank])?;
        let mut recv = Guarded::<T>::empty(comm, into, len)?;
        lend!(send => send: lend!(recv => recv: comm.all_reduce_into(&*send, recv, op)?));
        recv.expect(&reduced(kind::<T, Op>(op), &inputs), &"recv");
        send.expect(&inputs[rank], &"send");
        Ok(())
    })
}

fn reduce_of<T: Cell, Op: ReduceOp<T>>(comm: &Communicator, op: Op) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    every_case(comm, size_of::<T>(), 1, |len, style, _, number| {
        let root = comm.root(number % n)?;
        let inputs = inputs::<T>(len, n);
        let mut buf = Guarded::new(comm, style, &inputs[rank])?;
        lend!(buf => buf: comm.reduce(buf, op, root)?);
        let result = reduced(kind::<T, Op>(op), &inputs);
        buf.expect(if comm.is_root(root) { &result } else { &inputs[rank] }, &"buf");
        Ok(())
    })
}

fn reduce_into_of<T: Cell, Op: ReduceOp<T>>(comm: &Communicator, op: Op) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    every_case(comm, size_of::<T>(), 1, |len, from, into, number| {
        let root = comm.root(number % n)?;
        let here = comm.is_root(root);
        let inputs = inputs::<T>(len, n);
        let mut send = Guarded::new(comm, from, &inputs[rank])?;
        let mut recv = Guarded::<T>::empty(comm, into, len)?;
        lend!(send => send: lend!(recv => recv: comm.reduce_into(&*send, here.then_some(recv), op, root)?));
        let result = if here { reduced(kind::<T, Op>(op), &inputs) } else { untouched(len) };
        recv.expect(&result, &"recv");
        send.expect(&inputs[rank], &"send");
        Ok(())
    })
}

fn reduce_scatter_of<T: Cell, Op: ReduceOp<T>>(comm: &Communicator, op: Op) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    let check = |len: usize, from: Style, into: Style| {
        let inputs = inputs::<T>(len * n, n);
        let mut send = Guarded::new(comm, from, &inputs[rank])?;
        let mut recv = Guarded::<T>::empty(comm, into, len)?;
        lend!(send => send: lend!(recv => recv: comm.reduce_scatter(&*send, recv, op)?));
        recv.expect(part(&reduced(kind::<T, Op>(op), &inputs), rank, n), &"recv");
        send.expect(&inputs[rank], &"send");
        Ok(())
    };
    every_case(comm, size_of::<T>(), n, |len, from, into, _| check(len, from, into))?;
    if let Some(len) = long(size_of::<T>(), 1).filter(|_| n <= 3) {
        check(len, Style::Whole, Style::Plain)?;
        check(len, Style::Plain, Style::Part)?;
    }
    Ok(())
}

fn reduce_scatter_in_place_of<T: Cell, Op: ReduceOp<T>>(comm: &Communicator, op: Op) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    every_case(comm, size_of::<T>(), n, |len, style, _, _| {
        let inputs = inputs::<T>(len * n, n);
        let mut buf = Guarded::new(comm, style, &inputs[rank])?;
        lend!(buf => buf: comm.reduce_scatter_in_place(buf, op)?);
        let mut expected = inputs[rank].clone();
        let result = reduced(kind::<T, Op>(op), &inputs);
        expected[rank * len..][..len].copy_from_slice(part(&result, rank, n));
        buf.expect(&expected, &"buf");
        Ok(())
    })
}

fn reduce_scatter_v_of<T: Cell, Op: ReduceOp<T>>(comm: &Communicator, op: Op) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    every_case(comm, size_of::<T>(), n, |len, from, into, number| {
        let counts: Vec<usize> = (0..n).map(|r| if (r + number) % 3 == 2 { 0 } else { len + 2 * r }).collect();
        let start: usize = counts[..rank].iter().sum();
        let inputs = inputs::<T>(counts.iter().sum(), n);
        let mut send = Guarded::new(comm, from, &inputs[rank])?;
        let mut recv = Guarded::<T>::empty(comm, into, counts[rank])?;
        lend!(send => send: lend!(recv => recv: comm.reduce_scatter_v(&*send, recv, &counts, op)?));
        recv.expect(&reduced(kind::<T, Op>(op), &inputs)[start..][..counts[rank]], &"recv");
        send.expect(&inputs[rank], &"send");
        Ok(())
    })
}

/// One pair of dtype and operation: beside the stamp, in the slot, in rounds; staged and direct; every tail.
fn pair<T: Cell, Op: ReduceOp<T>>(comm: &Communicator, op: Op) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    let width = size_of::<T>();
    let tiny = 4096 / width;
    for (number, len) in [1, 32 / width + 1, 45, tiny - 1, tiny + 1, tiny + 47].into_iter().enumerate() {
        let inputs = inputs::<T>(len, n);
        let result = reduced(kind::<T, Op>(op), &inputs);
        for style in [Style::Plain, Style::Part] {
            let mut buf = Guarded::new(comm, style, &inputs[rank])?;
            lend!(buf => buf: comm.all_reduce(buf, op)?);
            buf.expect(&result, &format_args!("all_reduce {} {style:?}", kind::<T, Op>(op)));
        }
        let root = comm.root((number + n / 2) % n)?;
        let mut buf = Guarded::new(comm, Style::of(3, rank), &inputs[rank])?;
        lend!(buf => buf: comm.reduce(buf, op, root)?);
        buf.expect(if comm.is_root(root) { &result } else { &inputs[rank] }, &"reduce");
    }
    let inputs = inputs::<T>(tiny * n + n, n);
    let mut recv = Guarded::<T>::empty(comm, Style::Plain, tiny + 1)?;
    lend!(recv => recv: comm.reduce_scatter(&inputs[rank], recv, op)?);
    recv.expect(part(&reduced(kind::<T, Op>(op), &inputs), rank, n), &"reduce_scatter");
    Ok(())
}

pub(crate) fn every_dtype_and_operation(comm: &Communicator) -> Result<()> {
    fn numeric<T: Cell>(comm: &Communicator) -> Result<()> {
        pair::<T, Sum>(comm, Sum)?;
        pair::<T, Prod>(comm, Prod)?;
        pair::<T, Min>(comm, Min)?;
        pair::<T, Max>(comm, Max)
    }
    fn float<T: Cell + Float>(comm: &Communicator) -> Result<()> {
        numeric::<T>(comm)?;
        pair::<T, Avg>(comm, Avg)
    }
    numeric::<i8>(comm)?;
    numeric::<u8>(comm)?;
    numeric::<i16>(comm)?;
    numeric::<u16>(comm)?;
    numeric::<i32>(comm)?;
    numeric::<u32>(comm)?;
    numeric::<i64>(comm)?;
    numeric::<u64>(comm)?;
    float::<f16>(comm)?;
    float::<bf16>(comm)?;
    float::<f32>(comm)?;
    float::<f64>(comm)
}

/// Sums of halves by hand: accumulated in f32, rounded once, to even.
pub(crate) fn halves_round_once(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    if n < 3 {
        return Ok(());
    }
    let tie = 2_f32.powi(-11);
    // (what ranks 0, 1 and 2 give; the others give +0; the sum's bits)
    let cases: [([f32; 3], u16); 8] = [
        ([1.0, tie, 0.0], 0x3c00),
        ([1.0, tie, tie], 0x3c01), // rounding at each step would lose both
        ([1.0 + 2.0 * tie, tie, 0.0], 0x3c02),
        ([65504.0, 15.0, 0.0], 0x7bff),
        ([65504.0, 16.0, 0.0], 0x7c00),
        ([65504.0, 65504.0, -65504.0], 0x7bff), // no overflow on the way
        ([2_f32.powi(-24), 2_f32.powi(-24), 2_f32.powi(-24)], 0x0003),
        ([f32::INFINITY, f32::NEG_INFINITY, 0.0], 0x7e00),
    ];
    for repeats in [1, 1000] {
        let of = |(inputs, _): &([f32; 3], u16)| f16::from_f32(inputs.get(rank).copied().unwrap_or(0.0));
        let mut buf: Vec<f16> = cases.iter().map(of).cycle().take(cases.len() * repeats).collect();
        comm.all_reduce(&mut buf, Sum)?;
        for (i, (sum, case)) in buf.iter().zip(cases.iter().cycle()).enumerate() {
            assert_eq!(sum.to_bits(), case.1, "{case:?} at {i}");
        }
    }
    Ok(())
}

/// `((r0 + r1) + r2) + …`, and an input for which the order shows.
pub(crate) fn order_is_by_rank(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    if n < 3 {
        return Ok(());
    }
    for len in [1, 20_000] {
        let shows = [1e30_f32, -1e30, 1.0];
        let mut buf = vec![shows.get(rank).copied().unwrap_or(0.0); len];
        comm.all_reduce(&mut buf, Sum)?;
        assert!(buf.iter().all(|x| *x == 1.0), "(1e30 - 1e30) + 1 is 1");
        let hides = [1.0_f32, 1e30, -1e30];
        let mut buf = vec![hides.get(rank).copied().unwrap_or(0.0); len];
        comm.all_reduce(&mut buf, Sum)?;
        assert!(buf.iter().all(|x| *x == 0.0), "(1 + 1e30) - 1e30 is 0");
    }
    Ok(())
}

/// all_reduce = reduce + broadcast = reduce_scatter + all_gather = reductions of single elements, in every bit.
pub(crate) fn all_ways_give_the_same_bits(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    for each in [1, 13, 700, 5001] {
        let own = samples::<f16>(each * n, rank, n);
        let mut whole = own.clone();
        comm.all_reduce(&mut whole, Avg)?;
        let root = comm.root(each % n)?;
        let mut rooted = comm.upload(&own)?;
        comm.reduce(&mut rooted, Avg, root)?;
        comm.broadcast(&mut rooted, root)?;
        let mut shared = own.clone();
        comm.reduce_scatter_in_place(&mut shared, Avg)?;
        comm.all_gather_in_place(&mut shared)?;
        let bits = |values: &[f16]| values.iter().map(|x| x.to_bits()).collect::<Vec<u16>>();
        assert_eq!(bits(&whole), bits(&rooted.to_vec()?));
        assert_eq!(bits(&whole), bits(&shared));
        for i in (0..own.len()).step_by(own.len() / 7 + 1) {
            let mut one = [own[i]];
            comm.all_reduce(&mut one, Avg)?;
            assert_eq!(one[0].to_bits(), whole[i].to_bits(), "element {i} alone");
        }
    }
    Ok(())
}
