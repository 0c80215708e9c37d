//! Ranks as threads of this process: [`local`].
//!
//! ```text
//! hccl::local(3, f)     thread "rank 0"  f(comm 0) --+
//!                       thread "rank 1"  f(comm 1) --+-->  Ok([r0, r1, r2]), or the first cause
//!                       thread "rank 2"  f(comm 2) --+
//! ```
//!
//! - Results come in rank order.
//! - When ranks fail, the error is that of the first rank whose failure is no mere consequence of another's.
//! - A panic of a rank is [`ErrorKind::Rank`](crate::ErrorKind::Rank); the other ranks get `PeerLost`, not a hang.
//! - Threads are named `rank N` and have stacks of 32 MiB.
//!
//! ```
//! let ranks = hccl::local(3, |comm| Ok(comm.rank().index() * 10))?;
//! assert_eq!(ranks, [0, 10, 20]);
//!
//! let err = hccl::local(2, |comm| {
//!     if comm.rank().index() == 1 {
//!         return Err(hccl::Error::rank_failed(1, "no data"));
//!     }
//!     comm.barrier()
//! })
//! .unwrap_err();
//! assert!(err.to_string().contains("rank 1 failed: no data"), "{err}");
//! # Ok::<(), hccl::Error>(())
//! ```

use crate::communicator::Communicator;
use crate::error::{Error, Result};
use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Candle's backward pass recurses deeply; the default of 2 MiB is too little for deep models.
const STACK_BYTES: usize = 32 << 20;

/// Runs `f` on `n` threads, each with one communicator of a world of `n` ranks; the module page says more.
///
/// ```
/// use hccl::Sum;
/// let shard = [vec![1u32, 2, 3], vec![10, 20]]; // what each rank works on, borrowed by its thread
/// let totals = hccl::local(2, |comm| {
///     let mut total = [shard[comm.rank().index()].iter().sum::<u32>()];
///     comm.all_reduce(&mut total, Sum)?;
///     Ok(total[0])
/// })?;
/// assert_eq!(totals, [36, 36]);
/// # Ok::<(), hccl::Error>(())
/// ```
///
/// # Errors
/// The first cause among the ranks' errors, [`ErrorKind::Rank`](crate::ErrorKind::Rank) when a rank panicked, `InvalidArgument` for `n == 0`,
/// `Resource` when the system has no memory or threads for them.
pub fn local<R: Send>(n: usize, f: impl Fn(Communicator) -> Result<R> + Sync) -> Result<Vec<R>> {
    Communicator::builder().local(n, f)
}

/// As [`local`], for functions with an error type of their own.
///
/// ```
/// #[derive(Debug, thiserror::Error)]
/// enum TrainError {
///     #[error(transparent)]
///     Comm(#[from] hccl::Error),
///     #[error("loss is {0}")]
///     Diverged(f32),
/// }
/// let err = hccl::try_local(2, |comm| {
///     comm.barrier()?;
///     if comm.rank().index() == 1 { Err(TrainError::Diverged(f32::NAN)) } else { Ok(()) }
/// })
/// .unwrap_err();
/// assert_eq!(err.to_string(), "loss is NaN");
/// ```
///
/// # Errors
/// Those of [`local`]. A rank's error counts as a consequence when it, or an error among its sources, is an [`Error`]
/// of that kind ([`Error::is_knock_on`]).
pub fn try_local<R, E>(n: usize, f: impl Fn(Communicator) -> Result<R, E> + Sync) -> Result<Vec<R>, E>
where
    R: Send,
    E: std::error::Error + From<Error> + Send + 'static,
{
    Communicator::builder().try_local(n, f)
}

/// As [`local`], with what each rank returned: for looking at the errors of all.
///
/// ```
/// let results = hccl::local_results(2, |comm| if comm.rank().index() == 0 { comm.barrier() } else { Ok(()) })?;
/// assert!(results[0].as_ref().is_err_and(|e: &hccl::Error| e.is_peer_lost()));
/// assert!(results[1].is_ok());
/// # Ok::<(), hccl::Error>(())
/// ```
///
/// # Errors
/// When the world cannot be made: `InvalidArgument` for `n == 0`, `Resource`.
pub fn local_results<R, E>(n: usize, f: impl Fn(Communicator) -> Result<R, E> + Sync) -> Result<Vec<Result<R, E>>>
where
    R: Send,
    E: From<Error> + Send,
{
    Communicator::builder().local_results(n, f)
}

/// How a rank ended.
pub(crate) struct Outcome<R, E> {
    pub(crate) result: Result<R, E>,
    /// Its place among the ranks by time of ending.
    order: usize,
    /// True when it never ran its function to the end: it panicked or had no thread.
    broken: bool,
}

/// Runs `f` on a thread a communicator and returns how each ended, in rank order.
pub(crate) fn spawn<R: Send, E: From<Error> + Send>(
    world: Vec<Communicator>,
    f: impl Fn(Communicator) -> Result<R, E> + Sync,
) -> Vec<Outcome<R, E>> {
    let ended = AtomicUsize::new(0);
    let run = |comm: Communicator| {
        let rank = comm.rank().index();
        // The closure is not used again after a panic, and what it shares is the caller's own business.
        let caught = catch_unwind(AssertUnwindSafe(|| f(comm)));
        let order = ended.fetch_add(1, Ordering::Relaxed);
        match caught {
            Ok(result) => Outcome { result, order, broken: false },
            Err(panic) => {
                let error = Error::rank_failed(rank, format!("panicked: {}", message(&*panic)));
                Outcome { result: Err(error.into()), order, broken: true }
            }
        }
    };
    let no_thread = |rank: usize, error: io::Error| {
        let error = Error::resource(format!("a thread for rank {rank}"), error);
        Outcome { result: Err(error.into()), order: 0, broken: true }
    };
    thread::scope(|scope| {
        let started: Vec<_> = world
            .into_iter()
            .enumerate()
            .map(|(rank, comm)| {
                let builder = thread::Builder::new().name(format!("rank {rank}")).stack_size(STACK_BYTES);
                // A communicator whose thread does not start is dropped here, which frees the others.
                builder.spawn_scoped(scope, || run(comm))
            })
            .collect();
        let join = |(rank, started): (usize, io::Result<thread::ScopedJoinHandle<'_, Outcome<R, E>>>)| match started {
            Ok(thread) => thread.join().unwrap_or_else(|panic| {
                let error = Error::rank_failed(rank, format!("panicked: {}", message(&*panic)));
                Outcome { result: Err(error.into()), order: 0, broken: true }
            }),
            Err(error) => no_thread(rank, error),
        };
        started.into_iter().enumerate().map(join).collect()
    })
}

/// All results, or the error that the others follow from.
pub(crate) fn first_cause<R, E: std::error::Error + 'static>(outcomes: Vec<Outcome<R, E>>) -> Result<Vec<R>, E> {
    let mut results = Vec::with_capacity(outcomes.len());
    let mut first: Option<((bool, usize), E)> = None;
    for Outcome { result, order, broken } in outcomes {
        match result {
            Ok(value) => results.push(value),
            Err(error) => {
                let key = (!broken && is_knock_on(&error), order);
                if first.as_ref().is_none_or(|(best, _)| key < *best) {
                    first = Some((key, error));
                }
            }
        }
    }
    first.map_or(Ok(results), |(_, error)| Err(error))
}

fn is_knock_on(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.downcast_ref::<Error>().is_some_and(Error::is_knock_on) {
            return true;
        }
        next = error.source();
    }
    false
}

pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "with a value that is no text".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{ErrorKind, Loss};

    fn outcome(order: usize, result: Result<usize>) -> Outcome<usize, Error> {
        Outcome { result, order, broken: false }
    }

    fn lost(peer: usize) -> Error {
        Error::new(ErrorKind::PeerLost { peer, how: Loss::Left })
    }

    #[test]
    fn results_come_in_rank_order() {
        let all = vec![outcome(1, Ok(10)), outcome(0, Ok(20))];
        assert_eq!(first_cause(all).unwrap(), [10, 20]);
    }

    #[test]
    fn a_cause_wins_over_consequences_that_came_before_it() {
        let all = vec![
            outcome(0, Err(lost(1))),
            outcome(2, Err(Error::invalid("second"))),
            outcome(1, Err(Error::invalid("first"))),
            outcome(3, Ok(1)),
        ];
        assert_eq!(first_cause(all).unwrap_err().to_string(), "first");
    }

    #[test]
    fn without_a_cause_the_first_consequence_is_returned() {
        let error = first_cause(vec![outcome(1, Err(lost(2))), outcome(0, Err(lost(7)))]).unwrap_err();
        assert_eq!(error.peer(), Some(7));
    }
}
