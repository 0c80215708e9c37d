//! One ordered queue a rank: calls run inline while the queue is idle, else on the progress thread.
//!
//! What a call does is the [`Lane`]'s; who the ranks are, whether they live and why they failed is the [`Group`]'s.
//!
//! A lane that panics, on whichever thread, has failed its group: that call and all later ones return an error, and the
//! lane does no more calls.

use crate::backend::cpu::group::Group;
use crate::backend::{Backend, Call, Failure, Kind, Support, Ticket};
use crate::device::Device;
use crate::element::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::reduce::OpKind;
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Does the calls of one queue, one at a time.
pub(crate) trait Lane: Send + 'static {
    /// What any thread may ask while a call runs.
    type Side: Side;

    /// Does one call to its end. After an error the group has failed. `eager` when the caller's own thread runs it.
    ///
    /// The memory that the call names must be as [`Backend::run`] demands.
    fn execute(&mut self, call: &Call, eager: bool) -> Result<(), Failure>;

    /// Ends a call in which [`execute`](Lane::execute) panicked: fails the group with `error`, and waits until nobody
    /// touches the caller's memory, or says that somebody may.
    fn give_up(&mut self, error: Error, call: &Call) -> Failure;

    /// Gives back what the calls needed, once, after the last one.
    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The facts of a backend, and the making of groups.
pub(crate) trait Side: Send + Sync + 'static {
    /// See [`Backend::name`].
    fn name(&self) -> &'static str;
    /// See [`Backend::device`].
    fn device(&self) -> Device;
    /// See [`Backend::support`].
    fn support(&self, dtype: DType, op: Option<OpKind>) -> Support;
    /// Refuses a call that can never be done, before anyone sees it.
    fn check(&self, call: &Call) -> Result<()>;
    /// See [`Backend::group`].
    fn group(&self, parent: &Arc<Group>, members: &[usize], tag: u64) -> Result<Arc<dyn Backend>>;
}

/// The backend of one rank.
pub(crate) struct Ordered<L: Lane> {
    shared: Arc<Shared<L>>,
    group: Arc<Group>,
    side: L::Side,
}

struct Shared<L> {
    group: Arc<Group>,
    lane: Mutex<L>,
    /// Set once the lane has panicked: nobody knows what state it is in.
    broken: OnceLock<Error>,
    queue: Mutex<Queue>,
    /// Something was queued, or the queue closes.
    queued: Condvar,
    /// A ticket was finished.
    finished: Condvar,
    /// Tickets given out and finished; equal when the queue is idle.
    given: AtomicU64,
    done: AtomicU64,
    closed: AtomicBool,
}

#[derive(Default)]
struct Queue {
    calls: VecDeque<Call>,
    runs: bool,
    closing: bool,
    /// The first ticket that failed, and how.
    failed: Option<(u64, Error, bool)>,
}

/// Nothing that may panic runs under a lock, but for a lane, whose panics are caught there.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<L: Lane> Ordered<L> {
    pub(crate) fn new(group: Arc<Group>, lane: L, side: L::Side) -> Self {
        let shared = Shared {
            group: group.clone(),
            lane: Mutex::new(lane),
            broken: OnceLock::new(),
            queue: Mutex::new(Queue { calls: VecDeque::with_capacity(64), ..Queue::default() }),
            queued: Condvar::new(),
            finished: Condvar::new(),
            given: AtomicU64::new(0),
            done: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        };
        Ordered { shared: Arc::new(shared), group, side }
    }

    fn is_idle(&self) -> bool {
        self.shared.done.load(Ordering::Acquire) == self.shared.given.load(Ordering::Relaxed)
    }

    fn at(&self, error: Error, kind: Kind) -> Error {
        error.at(kind.name(), self.group.rank, self.group.size)
    }

    fn check_open(&self, kind: Kind) -> Result<()> {
        if self.shared.closed.load(Ordering::Relaxed) {
            return Err(self.at(Error::new(ErrorKind::Closed), kind));
        }
        if crate::sys::forked() {
            return Err(self.at(Error::new(ErrorKind::Forked), kind));
        }
        Ok(())
    }
}

impl<L: Lane> Shared<L> {
    /// The progress thread: runs queued calls in order, until the queue closes and is empty.
    fn progress(&self) {
        loop {
            let mut queue = lock(&self.queue);
            let call = loop {
                match queue.calls.pop_front() {
                    Some(call) => break call,
                    None if queue.closing => {
                        queue.runs = false;
                        self.finished.notify_all();
                        return;
                    }
                    None => queue = self.queued.wait(queue).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(queue);
            self.finish(self.execute(&call, false));
        }
    }

    /// Has the lane do a call.
    fn execute(&self, call: &Call, eager: bool) -> Result<(), Failure> {
        let mut lane = lock(&self.lane);
        if let Some(error) = self.broken.get() {
            return Err(error.clone().into());
        }
        // A lane that panicked is never asked for a call again.
        let done = catch_unwind(AssertUnwindSafe(|| lane.execute(call, eager)));
        done.unwrap_or_else(|panic| Err(self.give_up(&mut lane, call, &*panic)))
    }

    #[cold]
    fn give_up(&self, lane: &mut L, call: &Call, panic: &(dyn Any + Send)) -> Failure {
        let Group { rank, size, .. } = *self.group;
        let error = Error::panicked(rank, panic).at(call.kind.name(), rank, size);
        let _ = self.broken.set(error.clone());
        let given_up = catch_unwind(AssertUnwindSafe(|| lane.give_up(error.clone(), call)));
        // Its way out is broken, too: the others must hear of it all the same, and the memory is not to be trusted.
        given_up.unwrap_or_else(|_| Failure { error: self.group.fail(error), reachable: true })
    }

    /// Has the lane give back what it needed.
    fn end(&self) -> Result<()> {
        let mut lane = lock(&self.lane);
        let ended = catch_unwind(AssertUnwindSafe(|| lane.end()));
        ended.unwrap_or_else(|panic| Err(Error::panicked(self.group.rank, &*panic)))
    }

    fn finish(&self, ended: Result<(), Failure>) {
        let mut queue = lock(&self.queue);
        let ticket = self.done.load(Ordering::Relaxed) + 1;
        if let (Err(failure), None) = (ended, &queue.failed) {
            queue.failed = Some((ticket, failure.error, failure.reachable));
        }
        self.done.store(ticket, Ordering::Release);
        self.finished.notify_all();
    }

    /// The result of a finished ticket.
    fn result(queue: &Queue, ticket: Ticket) -> Result<(), Failure> {
        match &queue.failed {
            Some((first, error, reachable)) if ticket.0 >= *first => {
                Err(Failure { error: error.clone(), reachable: *reachable && ticket.0 == *first })
            }
            _ => Ok(()),
        }
    }

    /// Waits until `done` reaches `ticket`, or until `until`.
    fn wait_done(&self, ticket: u64, until: Option<Instant>) -> Option<MutexGuard<'_, Queue>> {
        let mut queue = lock(&self.queue);
        while self.done.load(Ordering::Acquire) < ticket {
            // Every call has its own deadline, so this ends; the bound only guards against a lost wake-up.
            let mut nap = Duration::from_millis(500);
            if let Some(until) = until {
                nap = nap.min(until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?);
            }
            queue = self.finished.wait_timeout(queue, nap).unwrap_or_else(PoisonError::into_inner).0;
        }
        Some(queue)
    }
}

#[expect(unsafe_code, reason = "implements the seam, whose callers vouch for memory")]
impl<L: Lane> Backend for Ordered<L> {
    fn rank(&self) -> usize {
        self.group.rank
    }

    fn size(&self) -> usize {
        self.group.size
    }

    fn name(&self) -> &'static str {
        self.side.name()
    }

    fn device(&self) -> Device {
        self.side.device()
    }

    fn support(&self, dtype: DType, op: Option<OpKind>) -> Support {
        self.side.support(dtype, op)
    }

    unsafe fn run(&self, call: Call) -> Result<(), Failure> {
        self.check_open(call.kind)?;
        if self.is_idle() {
            self.side.check(&call)?;
            return self.shared.execute(&call, true);
        }
        // SAFETY: this waits for the ticket, so the memory is lent long enough.
        let ticket = unsafe { self.submit(call) }?;
        self.wait(ticket, None).unwrap_or(Ok(()))
    }

    unsafe fn submit(&self, call: Call) -> Result<Ticket> {
        self.check_open(call.kind)?;
        self.side.check(&call)?;
        if let Some(cause) = self.failure() {
            return Err(self.at(cause, call.kind));
        }
        let mut queue = lock(&self.shared.queue);
        if !queue.runs {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("hccl-progress".into());
            let started = thread.spawn(move || shared.progress());
            started.map_err(|e| self.at(Error::resource("a progress thread", e), call.kind))?;
            queue.runs = true;
        }
        queue.calls.push_back(call);
        let ticket = self.shared.given.fetch_add(1, Ordering::Relaxed) + 1;
        self.shared.queued.notify_one();
        Ok(Ticket(ticket))
    }

    fn wait(&self, ticket: Ticket, timeout: Option<Duration>) -> Option<Result<(), Failure>> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let queue = self.shared.wait_done(ticket.0, until)?;
        Some(Shared::<L>::result(&queue, ticket))
    }

    fn is_ready(&self, ticket: Ticket) -> bool {
        self.shared.done.load(Ordering::Acquire) >= ticket.0
    }

    fn abort(&self) {
        // A forked child must not end its parent's group.
        if !crate::sys::forked() {
            self.group.abort();
        }
    }

    fn group(&self, members: &[usize], tag: u64) -> Result<Arc<dyn Backend>> {
        if crate::sys::forked() {
            return Err(Error::new(ErrorKind::Forked));
        }
        self.side.group(&self.group, members, tag)
    }

    fn close(&self) -> Result<()> {
        if self.shared.closed.swap(true, Ordering::AcqRel) || crate::sys::forked() {
            return Ok(());
        }
        let given = self.shared.given.load(Ordering::Relaxed);
        let mut queue = match self.shared.wait_done(given, None) {
            Some(queue) => queue,
            None => lock(&self.shared.queue),
        };
        queue.closing = true;
        let failed = queue.failed.as_ref().map(|(_, error, _)| error.clone());
        drop(queue);
        self.shared.queued.notify_all();
        let failed = failed.or_else(|| self.failure());
        let ended = self.shared.end();
        self.group.leave();
        failed.map_or(ended, Err)
    }

    fn failure(&self) -> Option<Error> {
        self.shared.broken.get().cloned().or_else(|| self.group.cause())
    }
}

impl<L: Lane> Drop for Ordered<L> {
    fn drop(&mut self) {
        // Errors of queued calls were for their tickets; nobody is left to tell.
        let _ = self.close();
    }
}

#[cfg(test)]
mod tests;
