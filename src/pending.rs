//! A call that runs while this rank does something else: [`Pending`].
//!
//! ```text
//! let op = comm.all_reduce_async(grads, Sum)?;     grads is moved into the call
//! next_layer();                                    the call runs meanwhile
//! let grads = op.wait()?;                          the same memory, reduced
//! ```
//!
//! - The buffer belongs to the call until [`wait`](Pending::wait) gives it back, so reading it early does not compile.
//! - A call that is refused before it starts gives the buffer back unchanged: [`Refused`].
//! - A call that fails gives the buffer back too, once no rank can touch it any more: [`Failed`].
//! - Dropping a `Pending` detaches the call: it still runs, and its buffer is freed when it is finished. Dropping never
//!   waits. Forgetting one leaks the buffer.
//!
//! Both error types turn into [`Error`] by `?`.
//!
//! ```
//! use hccl::Sum;
//! let out = hccl::local(2, |comm| {
//!     let op = comm.all_reduce_async(vec![comm.rank().index() as u64 + 1; 3], Sum)?;
//!     let other_work = 10;
//!     Ok((op.wait()?, other_work))
//! })?;
//! assert_eq!(out, vec![(vec![3, 3, 3], 10); 2]);
//! # Ok::<(), hccl::Error>(())
//! ```
#![expect(unsafe_code, reason = "gives memory to a queue that uses it after the call returns")]

use crate::backend::{Failure, Kind, Ticket};
use crate::communicator::check::{Checked, Place};
use crate::communicator::queue::Queue;
use crate::error::{Error, Result};
use crate::flight::InFlight;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A running call that owns its buffers; [`wait`](Pending::wait) gives them back. The module page says more.
#[must_use = "a running call owns its buffer: `wait()` gives it back and tells of errors"]
pub struct Pending<B: InFlight> {
    queue: Arc<Queue>,
    kind: Kind,
    ticket: Ticket,
    /// `None` only after `wait` took it. Nobody touches the memory until the ticket is finished.
    raw: Option<B::Raw>,
}

impl<B: InFlight> Pending<B> {
    /// Checks a call on `buffers` and queues it.
    pub(crate) fn launch(
        queue: &Arc<Queue>,
        kind: Kind,
        buffers: B,
        check: impl for<'a> FnOnce(&Place, &'a mut B::Raw) -> Result<Checked<'a>>,
    ) -> Result<Self, Refused<B>> {
        let mut raw = buffers.into_raw();
        let submitted = check(&queue.place, &mut raw).and_then(|checked| {
            // SAFETY: the memory belongs to `raw`, which from here on is landed only after the ticket is finished
            // (`wait`, `Queue::set_adrift`) or else leaks.
            unsafe { queue.submit(checked) }
        });
        match submitted {
            Ok(ticket) => Ok(Pending { queue: Arc::clone(queue), kind, ticket, raw: Some(raw) }),
            Err(error) => Err(Refused { error: queue.place.at(kind, error), buf: B::from_raw(raw) }),
        }
    }

    /// Waits until the call is finished and gives its buffers back, whatever that means for the call: reduced,
    /// received, or unchanged for what was only read.
    ///
    /// # Errors
    /// [`Failed`] with the buffers, whose contents are unspecified then, and the first cause.
    pub fn wait(mut self) -> Result<B, Failed<B>> {
        let result = self.queue.finish(self.ticket);
        let Some(raw) = self.raw.take() else {
            unreachable!("only `wait` takes the buffers, and it consumes the handle")
        };
        self.land(raw, result)
    }

    /// Waits for at most `timeout`; true when the call is finished, well or badly, so that [`wait`](Pending::wait) will
    /// not block.
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.queue.backend().wait(self.ticket, Some(timeout)).is_some()
    }

    /// True when the call is finished, well or badly.
    pub fn is_ready(&self) -> bool {
        self.queue.backend().is_ready(self.ticket)
    }

    fn land(&self, mut raw: B::Raw, result: Result<(), Failure>) -> Result<B, Failed<B>> {
        match result {
            Ok(()) => Ok(B::from_raw(raw)),
            Err(failure) => {
                let error = self.queue.failed(self.kind, failure, || B::retire_raw(&mut raw));
                Err(Failed { error, buf: B::from_raw(raw) })
            }
        }
    }
}

impl<B: InFlight> Drop for Pending<B> {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take() {
            self.queue.set_adrift::<B>(self.ticket, raw);
        }
    }
}

impl<B: InFlight> fmt::Debug for Pending<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending({} #{})", self.kind.name(), self.ticket.0)
    }
}

macro_rules! gives_back {
    ($($(#[$doc:meta])* $name:ident;)*) => { $(
        $(#[$doc])*
        pub struct $name<B> {
            /// What went wrong.
            pub error: Error,
            /// The buffers given to the call.
            pub buf: B,
        }

        impl<B> $name<B> {
            /// The error, without the buffers.
            pub fn into_error(self) -> Error {
                self.error
            }
        }

        impl<B> From<$name<B>> for Error {
            fn from(from: $name<B>) -> Error {
                from.error
            }
        }

        impl<B> fmt::Debug for $name<B> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:?})"), self.error)
            }
        }

        impl<B> fmt::Display for $name<B> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.error.fmt(f)
            }
        }

        impl<B> std::error::Error for $name<B> {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                Some(&self.error)
            }
        }
    )* };
}

gives_back! {
    /// A call that was refused before it started: nothing was sent, and the buffers are as they were.
    Refused;
    /// A call that failed: the buffers are quiet again, and what the call was to write is unspecified.
    Failed;
}
