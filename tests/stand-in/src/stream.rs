//! Streams: queues that a thread each runs in order, whatever the callers do meanwhile.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hccl::AbortHandle;

use crate::abi::{Failure, Result, acl_code};
use crate::counts::{self, Kind};
use crate::handles::{Handle, Handles, lock};

pub(crate) static STREAMS: Handles<Stream> = Handles::new();

/// Work of a stream.
pub(crate) type Task = Box<dyn FnOnce(&Stream) -> Result<()> + Send>;

pub(crate) struct Stream {
    pub(crate) device: i32,
    state: Mutex<State>,
    changed: Condvar,
    worker: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct State {
    tasks: VecDeque<Task>,
    running: bool,
    /// The first failure that nobody was told of.
    failure: Option<Failure>,
    /// A failed task stops the stream.
    stop_on_failure: bool,
    /// The stream was aborted, with this code.
    aborted: Option<i32>,
    /// Ends the running collective.
    abort: Option<AbortHandle>,
    ended: bool,
}

impl State {
    fn is_idle(&self) -> bool {
        self.tasks.is_empty() && !self.running
    }
}

/// A new stream of a device.
pub(crate) fn create(device: i32) -> Result<Handle> {
    let stream =
        Arc::new(Stream { device, state: Mutex::default(), changed: Condvar::new(), worker: Mutex::new(None) });
    let own = Arc::clone(&stream);
    let thread = std::thread::Builder::new().name(format!("npu {device}")).spawn(move || own.work());
    let thread =
        thread.map_err(|e| Failure::new(acl_code::INTERNAL, format!("EE9999: no thread for a stream: {e}")))?;
    *lock(&stream.worker) = Some(thread);
    counts::more(Kind::Streams);
    Ok(STREAMS.add(stream))
}

impl Stream {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Enqueues work; an aborted stream drops it.
    pub(crate) fn push(&self, task: Task) -> Result<()> {
        let mut state = self.state();
        if let Some(code) = state.aborted {
            return Err(aborted(code));
        }
        state.tasks.push_back(task);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// The thread's life.
    fn work(&self) {
        loop {
            let mut state = self.state();
            while state.tasks.is_empty() && !state.ended {
                state = self.wait(state);
            }
            let Some(task) = state.tasks.pop_front() else { return };
            state.running = true;
            drop(state);
            // The task may hold the last reference to memory: it is gone before the stream counts as idle.
            let done = catch_unwind(AssertUnwindSafe(|| task(self)));
            let done = done.unwrap_or_else(|_| Err(Failure::new(acl_code::INTERNAL, "EE9999: a task panicked")));
            self.finish(done);
        }
    }

    fn finish(&self, done: Result<()>) {
        let mut dropped = VecDeque::new();
        let mut state = self.state();
        if let Err(failure) = done
            && state.aborted.is_none()
        {
            state.failure.get_or_insert(failure);
            if state.stop_on_failure {
                dropped = std::mem::take(&mut state.tasks);
            }
        }
        drop(state);
        drop(dropped);
        let mut state = self.state();
        state.running = false;
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until everything has run; `None` when `timeout` passed first.
    pub(crate) fn synchronize(&self, timeout: Option<Duration>) -> Option<Result<()>> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.state();
        while !state.is_idle() && state.aborted.is_none() {
            state = match deadline {
                None => self.wait(state),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    self.changed.wait_timeout(state, left).unwrap_or_else(std::sync::PoisonError::into_inner).0
                }
            };
        }
        Some(match state.aborted {
            Some(code) => Err(aborted(code)),
            None if state.stop_on_failure => state.failure.clone().map_or(Ok(()), Err),
            None => state.failure.take().map_or(Ok(()), Err),
        })
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.state().is_idle()
    }

    pub(crate) fn stop_on_failure(&self, stop: bool) {
        self.state().stop_on_failure = stop;
    }

    /// Drops the work that has not run and ends what runs; when it returns, nothing of the stream runs any more.
    pub(crate) fn abort(&self, code: i32) {
        let mut state = self.state();
        state.aborted.get_or_insert(code);
        let dropped = std::mem::take(&mut state.tasks);
        let running = state.abort.take();
        drop(state);
        if let Some(running) = running {
            running.abort();
        }
        drop(dropped);
        self.changed.notify_all();
        // Every task looks for an abort, so this is short; a copy of much memory runs to its end.
        let mut state = self.state();
        while state.running {
            state = self.wait(state);
        }
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.state().aborted.is_some()
    }

    /// Names what ends the collective that the running task is about to start.
    pub(crate) fn starts(&self, abort: AbortHandle) -> Result<()> {
        let mut state = self.state();
        if let Some(code) = state.aborted {
            return Err(aborted(code));
        }
        state.abort = Some(abort);
        Ok(())
    }

    pub(crate) fn ends(&self) {
        self.state().abort = None;
    }

    /// Keeps the running task waiting: until `deadline` (for ever without), or an abort.
    pub(crate) fn park(&self, deadline: Option<Instant>) {
        let mut state = self.state();
        while state.aborted.is_none() {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            state = match left {
                None => self.wait(state),
                Some(left) if left.is_zero() => return,
                Some(left) => {
                    self.changed.wait_timeout(state, left).unwrap_or_else(std::sync::PoisonError::into_inner).0
                }
            };
        }
    }

    /// Runs what is left, then ends the thread. `force` drops it, and does not wait for what runs.
    pub(crate) fn destroy(&self, force: bool) {
        if force {
            self.abort(acl_code::STREAM_ABORT);
        } else {
            // Its failures were told, or are nobody's any more.
            let _ = self.synchronize(None);
        }
        self.state().ended = true;
        self.changed.notify_all();
        let worker = lock(&self.worker).take();
        if let Some(worker) = worker.filter(|_| !force) {
            // A panic of the thread was caught inside it.
            let _ = worker.join();
        }
        counts::less(Kind::Streams);
    }
}

pub(crate) fn aborted(code: i32) -> Failure {
    Failure::new(code, "EE9999: the work of the stream was aborted")
}
