//! The protocol: fill, check, warm up, time calls one by one, time calls back to back, check again.

use std::time::Instant;

use hccl::{Communicator, Max, Sum};

use super::Problem;
use super::buffers::{Buffers, Work};
use super::cell::{Cell, with_dtype};
use super::operation::Operation;
use super::plan::{Iterations, Plan};

/// What was measured at one size of one operation; the same on all ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) operation: Operation,
    /// Of the larger buffer of a rank.
    pub(crate) bytes: usize,
    /// Elements of the larger buffer.
    pub(crate) elements: usize,
    pub(crate) times: Times,
    /// Wrong elements on all ranks; `None` when nobody looked.
    pub(crate) wrong: Option<u64>,
}

/// Microseconds of a call, the slowest rank's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    pub(crate) median: f64,
    pub(crate) p99: f64,
    pub(crate) p10: f64,
    /// Mean of calls without barriers between them.
    pub(crate) back_to_back: f64,
}

/// Measures every point of the plan, in order; all ranks call it.
///
/// # Errors
/// Those of the collectives and of `each`.
pub(crate) fn all(
    comm: &Communicator,
    plan: &Plan,
    each: &mut dyn FnMut(Point) -> Result<(), Problem>,
) -> Result<(), Problem> {
    with_dtype!(plan.dtype, T => all_of::<T>(comm, plan, each))
}

fn all_of<T: Cell>(
    comm: &Communicator,
    plan: &Plan,
    each: &mut dyn FnMut(Point) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let elements = |operation: Operation, bytes| operation.elements(bytes, size_of::<T>(), comm.size());
    let largest = plan.sizes.last().copied().unwrap_or(0);
    let most = plan.operations.iter().map(|operation| elements(*operation, largest)).max().unwrap_or(0);
    let mut buffers = Buffers::<T>::new(comm, most, plan.slices)?;
    for &operation in plan.operations.iter().filter(|op| **op != Operation::SendRecv || comm.size() > 1) {
        let mut counts: Vec<usize> = plan.sizes.iter().map(|bytes| elements(operation, *bytes)).collect();
        counts.dedup();
        for elements in counts {
            let work = Work { comm, plan, operation, elements };
            each(point(&mut buffers, &work)?)?;
        }
    }
    Ok(())
}

fn point<T: Cell>(buffers: &mut Buffers<T>, work: &Work<'_>) -> hccl::Result<Point> {
    let bytes = work.elements * size_of::<T>();
    buffers.fill(work);
    let mut wrong = checked(buffers, work)?;
    let times = buffers.lend(work, |call| times(work, bytes, call))?;
    buffers.fill(work);
    wrong = wrong.zip(checked(buffers, work)?).map(|(before, after)| before + after);
    Ok(Point { operation: work.operation, bytes, elements: work.elements, times, wrong })
}

/// One call, and how many elements it left wrong on all ranks.
fn checked<T: Cell>(buffers: &mut Buffers<T>, work: &Work<'_>) -> hccl::Result<Option<u64>> {
    if !work.plan.check {
        return Ok(None);
    }
    buffers.lend(work, |call| call())?;
    let mut wrong = [buffers.count_wrong(work)];
    work.comm.all_reduce(&mut wrong, Sum)?;
    Ok(Some(wrong[0]))
}

fn times(work: &Work<'_>, bytes: usize, call: &mut dyn FnMut() -> hccl::Result<()>) -> hccl::Result<Times> {
    let comm = work.comm;
    let per = 1e6 / work.operation.calls();
    let count = iterations(work, bytes, call)?;
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        comm.barrier()?;
        let start = Instant::now();
        call()?;
        times.push(start.elapsed().as_secs_f64() * per);
    }
    // The clock of a round trip is that of the rank where it starts.
    if work.operation == Operation::SendRecv && comm.rank().index() > 0 {
        times.fill(0.0);
    }
    comm.all_reduce(&mut times, Max)?;
    let repeats = if count < 5 { count } else { (count / 2).max(3) };
    comm.barrier()?;
    let start = Instant::now();
    for _ in 0..repeats {
        call()?;
    }
    let mut back_to_back = [start.elapsed().as_secs_f64() * per / repeats as f64];
    comm.all_reduce(&mut back_to_back, Max)?;
    times.sort_by(f64::total_cmp);
    let last = count - 1;
    let p99 = times[(last as f64 * 0.99) as usize];
    Ok(Times { median: times[count / 2], p99, p10: times[count / 10], back_to_back: back_to_back[0] })
}

/// Warms up, and takes rank 0's word for the number of timed calls.
fn iterations(work: &Work<'_>, bytes: usize, call: &mut dyn FnMut() -> hccl::Result<()>) -> hccl::Result<usize> {
    let warm = if bytes <= 64 << 10 { 20 } else { 2 };
    work.comm.barrier()?;
    let start = Instant::now();
    for _ in 0..warm {
        call()?;
    }
    work.comm.barrier()?;
    let one = (start.elapsed().as_secs_f64() / f64::from(warm)).max(1e-7);
    let mut count = match work.plan.iterations {
        Iterations::Exactly(count) => [count as u64],
        Iterations::Auto => [((work.plan.seconds / one) as u64).clamp(5, 4000)],
    };
    work.comm.broadcast(&mut count, work.comm.root(0)?)?;
    Ok(count[0] as usize)
}
