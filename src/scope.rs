//! Calls that borrow memory while they run: [`Scope`].
//!
//! ```text
//! comm.scope(|s| {
//!     s.all_reduce(&mut weights, Sum)?;      weights is lent until the scope ends
//!     compute();                             the call runs meanwhile
//!     s.broadcast(&mut bias, root)?;         queued after it
//!     Ok(())
//! })?;                                       waits for both
//! ```
//!
//! - What is lent to a call cannot be touched by the closure any more; a handle's [`wait`](Borrowed::wait) gives it back
//!   early.
//! - The scope returns only when all its calls are finished, also after an error or a panic of the closure. When a call
//!   does not end by its deadline, the scope aborts the group.
//! - The scope's error is the closure's, else that of the first failed call that was not waited for.
//! - Handles may be dropped or forgotten: the scope does not need them.
//! - A handle ends with its scope. Where a closure returns one, as `comm.scope(|s| s.all_reduce(&mut x, Sum))` does, the
//!   compiler says `lifetime may not live long enough` and marks the call: wait inside the scope, end the closure with
//!   `Ok(())`, or use the calls that own their buffers ([`all_reduce_async`](Communicator::all_reduce_async)).
//!
//! ```
//! use hccl::{Max, Sum};
//! let out = hccl::local(2, |comm| {
//!     let (mut weights, mut bias) = (vec![1f32; 3], [comm.rank().index() as i32]);
//!     comm.scope(|s| {
//!         s.all_reduce(&mut weights, Sum)?;
//!         let bias = s.all_reduce(&mut bias, Max)?.wait()?;
//!         bias[0] += 10;
//!         Ok(())
//!     })?;
//!     Ok((weights, bias))
//! })?;
//! assert_eq!(out, vec![(vec![2.0; 3], [11]); 2]);
//! # Ok::<(), hccl::Error>(())
//! ```
#![expect(unsafe_code, reason = "holds lent memory as raw pointers while calls run")]

use crate::backend::{Kind, Ticket};
use crate::communicator::Communicator;
use crate::communicator::check::{Checked, Place};
use crate::communicator::queue::Queue;
use crate::error::Result;
use crate::group::{Axis, World};
use crate::memory::{InPlace, Write};
use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::take;
use std::ptr::NonNull;
use std::time::Duration;

mod calls;

/// How much longer than its own deadline a call may take before the scope aborts the group.
const GRACE: Duration = Duration::from_secs(30);

/// Memory of a failed call that can be retired, with its type erased.
pub(crate) trait Retire {
    fn retire(&mut self);
}

/// What a call writes, for the case that it must be retired.
pub(crate) type Targets<'env> = Vec<Box<dyn Retire + 'env>>;

/// A buffer lent for `'env`, held so that moving this touches nothing.
pub(crate) struct Held<'env, B: ?Sized> {
    /// Invariants: (1) a live `B`, mutably borrowed for `'env`. (2) While a call on its memory runs, nobody uses it.
    buf: NonNull<B>,
    lent: PhantomData<&'env mut B>,
}

/// Takes a mutable borrow apart into what holds it and the memory for a call.
pub(crate) fn hold<'env, B: InPlace + ?Sized>(buf: &'env mut B) -> (Held<'env, B>, Write<'env>) {
    let mut held = Held { buf: NonNull::from(buf), lent: PhantomData };
    // SAFETY: (1); the borrow ends here, what is left of it is raw memory.
    let write = unsafe { held.buf.as_mut() }.write();
    (held, write)
}

impl<B: InPlace + ?Sized> Retire for Held<'_, B> {
    fn retire(&mut self) {
        // SAFETY: (1), and by (2) callers retire only after the call.
        unsafe { self.buf.as_mut() }.retire();
    }
}

/// Calls of a scope, in order.
struct State<'env> {
    queue: &'env Queue,
    patience: Duration,
    entries: RefCell<Vec<Entry<'env>>>,
}

/// A call that the end of the scope must wait for.
struct Entry<'env> {
    kind: Kind,
    ticket: Ticket,
    /// False once a handle waited for it.
    open: bool,
    targets: Targets<'env>,
}

impl State<'_> {
    fn finish(&self, mut entry: Entry<'_>) -> Result<()> {
        self.queue.finish_or_abort(entry.ticket, self.patience).map_err(|failure| {
            self.queue.failed(entry.kind, failure, || entry.targets.iter_mut().for_each(|target| target.retire()))
        })
    }

    /// Waits for all calls; the first error.
    fn settle(&self) -> Result<()> {
        let entries = take(&mut *self.entries.borrow_mut());
        let mut first = Ok(());
        for entry in entries.into_iter().filter(|entry| entry.open) {
            first = first.and(self.finish(entry));
        }
        first
    }
}

/// Waits for the calls of a scope whose closure panicked.
struct SettleOnDrop<'a, 'env>(&'a State<'env>);

impl Drop for SettleOnDrop<'_, '_> {
    fn drop(&mut self) {
        // After a normal end there is nothing left to wait for.
        let _ = self.0.settle();
    }
}

impl<A: Axis> Communicator<A> {
    /// Runs `f` with a [`Scope`], in which calls borrow memory while they run, and waits for them. The page of
    /// [`scope`](crate::scope) says more.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let (mut grads, mut count) = ([comm.rank().index() as f32; 2], [1u32]);
    ///     let local = comm.scope(|s| {
    ///         s.all_reduce(&mut grads, hccl::Avg)?;
    ///         s.all_reduce(&mut count, hccl::Sum)?;
    ///         Ok(comm.rank().index() * 3) // computed meanwhile
    ///     })?;
    ///     Ok((grads, count[0], local))
    /// })?;
    /// assert_eq!(out, [([0.5; 2], 2, 0), ([0.5; 2], 2, 3)]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// That of `f`, else the first of the calls.
    pub fn scope<'env, R>(&'env self, f: impl for<'s> FnOnce(&'s Scope<'s, 'env, A>) -> Result<R>) -> Result<R> {
        let patience = self.exec_timeout().saturating_add(GRACE);
        let state = State { queue: &self.queue, patience, entries: RefCell::default() };
        let guard = SettleOnDrop(&state);
        let scope = Scope { state: &state, axis: PhantomData, scope: PhantomData, env: PhantomData };
        let result = f(&scope);
        let settled = state.settle();
        drop(guard);
        let value = result?;
        settled.map(|()| value)
    }
}

/// In which calls borrow memory while they run. Made by [`Communicator::scope`]; the module page says more.
///
/// ```
/// use hccl::{Scope, Sum};
/// /// Starts a call for each layer.
/// fn reduce_all<'env>(s: &Scope<'_, 'env>, layers: &'env mut [Vec<f32>]) -> hccl::Result<()> {
///     layers.iter_mut().try_for_each(|layer| s.all_reduce(layer, Sum).map(drop))
/// }
/// let out = hccl::local(2, |comm| {
///     let mut layers = [vec![1.0; 2], vec![comm.rank().index() as f32]];
///     comm.scope(|s| reduce_all(s, &mut layers))?;
///     Ok(layers)
/// })?;
/// assert_eq!(out, [[vec![2.0; 2], vec![1.0]], [vec![2.0; 2], vec![1.0]]]);
/// # Ok::<(), hccl::Error>(())
/// ```
pub struct Scope<'s, 'env: 's, A: Axis = World> {
    state: &'s State<'env>,
    axis: PhantomData<A>,
    // Both invariant, as in `std::thread::scope`: a shorter `'env` would let calls outlive what they borrow.
    scope: PhantomData<&'s mut &'s ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// A running call of a [`Scope`] on `B`. It may be dropped: the scope waits for the call.
///
/// ```
/// let out = hccl::local(2, |comm| {
///     let (mut first, mut second) = ([comm.rank().index() as i32 + 1], [10]);
///     comm.scope(|s| {
///         let running = s.all_reduce(&mut first, hccl::Prod)?;
///         s.all_reduce(&mut second, hccl::Sum)?; // its handle is dropped: the scope waits
///         running.wait()?[0] += 100; // finished, while the second may still run
///         Ok(())
///     })?;
///     Ok((first[0], second[0]))
/// })?;
/// assert_eq!(out, [(102, 20); 2]);
/// # Ok::<(), hccl::Error>(())
/// ```
pub struct Borrowed<'s, 'env, B: ?Sized> {
    state: &'s State<'env>,
    index: usize,
    held: Held<'env, B>,
}

impl<'env, B: ?Sized> Borrowed<'_, 'env, B> {
    /// Waits until the call is finished and gives the buffer back that it wrote, `()` when it wrote none.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let mut grads = [comm.rank().index() as f32, 4.0];
    ///     comm.scope(|s| {
    ///         let grads = s.all_reduce(&mut grads, hccl::Avg)?.wait()?;
    ///         grads[1] /= 2.0; // lent back
    ///         s.broadcast(grads, comm.root(0)?).map(drop)
    ///     })?;
    ///     Ok(grads)
    /// })?;
    /// assert_eq!(out, [[0.5, 2.0]; 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// The first cause; the scope does not report it again.
    pub fn wait(mut self) -> Result<&'env mut B> {
        let entry = {
            let mut entries = self.state.entries.borrow_mut();
            let entry = &mut entries[self.index];
            entry.open = false;
            Entry { kind: entry.kind, ticket: entry.ticket, open: false, targets: take(&mut entry.targets) }
        };
        self.state.finish(entry)?;
        // SAFETY: (1); the call is finished (2), and the scope has given up its own hold of the buffer.
        Ok(unsafe { self.held.buf.as_mut() })
    }

    /// True when the call is finished, well or badly.
    ///
    /// ```
    /// let steps = hccl::local(2, |comm| {
    ///     let mut x = [comm.rank().index() as u8];
    ///     comm.scope(|s| {
    ///         let running = s.all_reduce(&mut x, hccl::Max)?;
    ///         while !running.is_ready() {
    ///             std::thread::yield_now(); // or some work
    ///         }
    ///         Ok(running.wait()?[0])
    ///     })
    /// })?;
    /// assert_eq!(steps, [1, 1]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn is_ready(&self) -> bool {
        let ticket = self.state.entries.borrow()[self.index].ticket;
        self.state.queue.backend().is_ready(ticket)
    }
}

impl<B: ?Sized> fmt::Debug for Borrowed<'_, '_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.state.entries.borrow();
        let entry = &entries[self.index];
        write!(f, "Borrowed({} #{})", entry.kind.name(), entry.ticket.0)
    }
}

impl<'s, 'env, A: Axis> Scope<'s, 'env, A> {
    fn place(&self) -> &'s Place {
        &self.state.queue.place
    }

    fn start<B: ?Sized>(
        &self,
        kind: Kind,
        call: Checked<'env>,
        targets: Targets<'env>,
        held: Held<'env, B>,
    ) -> Result<Borrowed<'s, 'env, B>> {
        let mut entries = self.state.entries.borrow_mut();
        // Room first: once the call is queued, nothing may stop it from being waited for.
        entries.reserve(1);
        // SAFETY: the memory is lent for `'env`, which outlasts `Communicator::scope`; that does not return before
        // every entry is finished, also when the closure panics.
        let ticket = unsafe { self.state.queue.submit(call) }.map_err(|error| self.place().at(kind, error))?;
        entries.push(Entry { kind, ticket, open: true, targets });
        Ok(Borrowed { state: self.state, index: entries.len() - 1, held })
    }

    /// Queues a call that writes `buf`.
    fn writes<B: InPlace + ?Sized>(
        &self,
        kind: Kind,
        buf: &'env mut B,
        check: impl FnOnce(&Place, Write<'env>) -> Result<Checked<'env>>,
    ) -> Result<Borrowed<'s, 'env, B>> {
        let (held, write) = hold(buf);
        let call = check(self.place(), write)?;
        let target: Box<dyn Retire + 'env> = Box::new(Held { buf: held.buf, lent: PhantomData });
        self.start(kind, call, vec![target], held)
    }

    /// Queues a call that writes `buf` where it is given.
    fn writes_some<B: InPlace + ?Sized>(
        &self,
        kind: Kind,
        buf: Option<&'env mut B>,
        check: impl FnOnce(&Place, Option<Write<'env>>) -> Result<Checked<'env>>,
    ) -> Result<Borrowed<'s, 'env, ()>> {
        let (held, write) = buf.map(hold).unzip();
        let call = check(self.place(), write)?;
        let targets = held.into_iter().map(|held| Box::new(held) as Box<dyn Retire + 'env>).collect();
        self.start(kind, call, targets, nothing())
    }
}

/// For calls that write nothing to be given back: a `()` has no memory, so that it is always there (1).
fn nothing<'env>() -> Held<'env, ()> {
    Held { buf: NonNull::dangling(), lent: PhantomData }
}

impl<A: Axis> fmt::Debug for Scope<'_, '_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({} calls)", self.state.entries.borrow().len())
    }
}
