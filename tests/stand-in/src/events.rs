//! Events: points in streams, with the time at which they were passed.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::abi::{Result, invalid};
use crate::handles::{Handles, lock};
use crate::stream::Stream;

pub(crate) static EVENTS: Handles<Event> = Handles::new();

#[derive(Default)]
pub(crate) struct Event {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// How often it was recorded or reset, and the greatest of these that streams have passed.
    asked: u64,
    passed: u64,
    /// When the last record was passed; none after a reset.
    at: Option<Instant>,
}

impl Event {
    /// Puts the event behind the stream's work: recorded, or unrecorded again.
    pub(crate) fn enqueue(self: &Arc<Self>, stream: &Stream, record: bool) -> Result<()> {
        let mut state = lock(&self.state);
        state.asked += 1;
        let (own, number) = (Arc::clone(self), state.asked);
        drop(state);
        stream.push(Box::new(move |_| {
            let mut state = lock(&own.state);
            if number > state.passed {
                state.passed = number;
                state.at = record.then(Instant::now);
            }
            drop(state);
            own.changed.notify_all();
            Ok(())
        }))
    }

    /// Makes the stream wait for what was asked of the event so far.
    pub(crate) fn hold(self: &Arc<Self>, stream: &Stream) -> Result<()> {
        let (own, number) = (Arc::clone(self), lock(&self.state).asked);
        stream.push(Box::new(move |stream| {
            // Short naps: the stream that waits may be aborted meanwhile.
            while !own.wait_for(number, Some(Duration::from_millis(5))) {
                if stream.is_aborted() {
                    break;
                }
            }
            Ok(())
        }))
    }

    pub(crate) fn is_complete(&self) -> bool {
        let state = lock(&self.state);
        state.passed == state.asked && state.at.is_some()
    }

    /// Waits for the last record; false when `timeout` passed first.
    pub(crate) fn synchronize(&self, timeout: Option<Duration>) -> bool {
        let asked = lock(&self.state).asked;
        self.wait_for(asked, timeout)
    }

    fn wait_for(&self, number: u64, timeout: Option<Duration>) -> bool {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = lock(&self.state);
        while state.passed < number {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            state = match left {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => return false,
                Some(left) => self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
        true
    }

    /// Milliseconds from this event to a later one.
    pub(crate) fn elapsed_ms(&self, later: &Event) -> Result<f32> {
        let (from, to) = (lock(&self.state).at, lock(&later.state).at);
        let (Some(from), Some(to)) = (from, to) else { return Err(invalid("an event was not recorded or not passed")) };
        let span = |from: Instant, to: Instant| to.duration_since(from).as_secs_f64() * 1000.0;
        let ms = if to >= from { span(from, to) } else { -span(to, from) };
        Ok(ms as f32)
    }
}
