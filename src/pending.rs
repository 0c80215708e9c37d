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

use crate::backend::{Kind, Ticket};
use crate::communicator::check::{Checked, Place};
use crate::communicator::queue::Queue;
use crate::error::{Error, Result};
use crate::flight::InFlight;
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Duration;

/// A running call that owns its buffers; [`wait`](Pending::wait) gives them back. The module page says more.
///
/// ```
/// let out = hccl::local(2, |comm| {
///     let layers = [vec![1.0f32], vec![comm.rank().index() as f32, 3.0]];
///     let running: Vec<hccl::Pending<Vec<f32>>> =
///         layers.into_iter().map(|grads| comm.all_reduce_async(grads, hccl::Avg)).collect::<Result<_, _>>()?;
///     let done: Vec<Vec<f32>> = running.into_iter().map(|op| op.wait()).collect::<Result<_, _>>()?;
///     Ok(done)
/// })?;
/// assert_eq!(out, [[vec![1.0], vec![0.5, 3.0]], [vec![1.0], vec![0.5, 3.0]]]);
/// # Ok::<(), hccl::Error>(())
/// ```
#[must_use = "a running call owns its buffer: `wait()` gives it back and tells of errors"]
pub struct Pending<B> {
    queue: Arc<Queue>,
    kind: Kind,
    ticket: Ticket,
    /// Invariants: (1) initialised while `landed` is false. (2) Until the ticket is finished, nobody makes a reference
    /// to it: the queue uses the elements behind it. `MaybeUninit`, so that moving it claims nothing about them.
    buf: MaybeUninit<B>,
    landed: bool,
    afloat: Afloat<B>,
}

/// What to do with buffers of a type when their call has ended otherwise than well.
struct Afloat<B> {
    retire: fn(&mut B),
    set_adrift: fn(&Queue, Ticket, MaybeUninit<B>),
}

impl<B: InFlight> Pending<B> {
    /// Checks a call on `buffers` and queues it.
    pub(crate) fn launch(
        queue: &Arc<Queue>,
        kind: Kind,
        buffers: B,
        check: impl for<'a> FnOnce(&Place, &'a mut B) -> Result<Checked<'a>>,
    ) -> Result<Self, Refused<B>> {
        let mut buf = MaybeUninit::new(buffers);
        // SAFETY: made in the line above.
        let checked = check(&queue.place, unsafe { buf.assume_init_mut() });
        let submitted = checked.and_then(|checked| {
            // SAFETY: the elements lie behind `buf`, not in it, and go where it goes: into a `Pending`, which gives
            // them back only after the ticket is finished (`wait`, `Queue::set_adrift`) or else leaks them.
            unsafe { queue.submit(checked) }
        });
        match submitted {
            Ok(ticket) => {
                let afloat = Afloat { retire: B::retire_all, set_adrift: Queue::set_adrift::<B> };
                Ok(Pending { queue: Arc::clone(queue), kind, ticket, buf, landed: false, afloat })
            }
            Err(error) => {
                // SAFETY: made above, and nothing was submitted.
                let buf = unsafe { buf.assume_init() };
                Err(Refused { error: queue.place.at(kind, error), buf })
            }
        }
    }
}

impl<B> Pending<B> {
    /// Waits until the call is finished and gives its buffers back, whatever that means for the call: reduced,
    /// received, or unchanged for what was only read.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let grads = vec![comm.rank().index() as f64, 1.0];
    ///     let memory = grads.as_ptr();
    ///     let grads = comm.all_reduce_async(grads, hccl::Sum)?.wait()?;
    ///     assert_eq!(grads.as_ptr(), memory); // no copy
    ///     Ok(grads)
    /// })?;
    /// assert_eq!(out, [[1.0, 2.0]; 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Failed`] with the buffers, whose contents are unspecified then, and the first cause.
    pub fn wait(mut self) -> Result<B, Failed<B>> {
        let result = self.queue.finish(self.ticket);
        self.landed = true;
        // SAFETY: (1), as `landed` was false: only this consuming method sets it. (2), as the ticket is finished.
        let mut buf = unsafe { self.buf.assume_init_read() };
        match result {
            Ok(()) => Ok(buf),
            Err(failure) => {
                let error = self.queue.failed(self.kind, failure, || (self.afloat.retire)(&mut buf));
                Err(Failed { error, buf })
            }
        }
    }

    /// Waits for at most `timeout`; true when the call is finished, well or badly, so that [`wait`](Pending::wait) will
    /// not block.
    ///
    /// ```
    /// use std::time::Duration;
    /// let out = hccl::local(2, |comm| {
    ///     let op = comm.all_gather_async(vec![comm.rank().index() as u8 + 4], vec![0; 2])?;
    ///     let mut steps = 1;
    ///     while !op.wait_timeout(Duration::from_millis(10)) {
    ///         steps += 1; // tell the user that it takes time
    ///     }
    ///     Ok((op.wait()?.1, steps > 0))
    /// })?;
    /// assert_eq!(out, [(vec![4, 5], true), (vec![4, 5], true)]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.queue.backend().wait(self.ticket, Some(timeout)).is_some()
    }

    /// True when the call is finished, well or badly.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let op = comm.all_reduce_async(vec![comm.rank().index() as i32 + 1], hccl::Prod)?;
    ///     while !op.is_ready() {
    ///         std::thread::yield_now(); // or some work
    ///     }
    ///     Ok(op.wait()?[0])
    /// })?;
    /// assert_eq!(out, [2, 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn is_ready(&self) -> bool {
        self.queue.backend().is_ready(self.ticket)
    }
}

impl<B> Drop for Pending<B> {
    fn drop(&mut self) {
        if !self.landed {
            let buf = std::mem::replace(&mut self.buf, MaybeUninit::uninit());
            (self.afloat.set_adrift)(&self.queue, self.ticket, buf);
        }
    }
}

impl<B> fmt::Debug for Pending<B> {
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
            ///
            /// ```
            /// let out = hccl::local(2, |comm| {
            ///     let too_short = vec![0u8; comm.rank().index()];
            ///     let refused = comm.all_gather_async(vec![7u8], too_short).unwrap_err();
            ///     Ok(refused.into_error().to_string().contains("must have 2"))
            /// })?;
            /// assert_eq!(out, [true, true]);
            /// # Ok::<(), hccl::Error>(())
            /// ```
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
    ///
    /// ```
    /// use hccl::Refused;
    /// let out = hccl::local(2, |comm| {
    ///     let own = vec![comm.rank().index() as u8 + 4];
    ///     let (_own, all) = match comm.all_gather_async(own, vec![0; 3]) {
    ///         Ok(running) => running.wait()?,
    ///         Err(Refused { error, buf: (own, mut all) }) => {
    ///             assert!(error.to_string().contains("has 3 elements, must have 2"));
    ///             all.truncate(2);
    ///             comm.all_gather_async(own, all)?.wait()? // once more, with the same memory
    ///         }
    ///     };
    ///     Ok(all)
    /// })?;
    /// assert_eq!(out, [[4, 5]; 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    Refused;
    /// A call that failed: the buffers are quiet again, and what the call was to write is unspecified.
    ///
    /// ```
    /// use hccl::Failed;
    /// let out = hccl::local(2, |comm| {
    ///     let own = vec![1f32; 3 + comm.rank().index()]; // ranks must agree on the length
    ///     let Failed { error, buf } = comm.all_reduce_async(own, hccl::Sum)?.wait().unwrap_err();
    ///     Ok((error.peer(), buf.len()))
    /// })?;
    /// assert_eq!(out, [(Some(1), 3), (Some(0), 4)]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    Failed;
}
