//! Streams and events.

#![expect(unsafe_code, reason = "handles owned by these guards cross the C interface")]

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use super::Context;
use crate::{
    result::{Error, Result, acl},
    sys::{AclError, AclrtEvent, AclrtEventRecordedStatus, AclrtStream, AclrtStreamStatus},
};

/// A stream: work enqueued on it runs in order. Destroyed when dropped.
#[derive(Debug)]
pub struct Stream {
    context: Context,
    /// Invariant: alive as long as this value.
    raw: AclrtStream,
    /// Events the stream may not have passed yet; each once.
    events: RefCell<Vec<Rc<RawEvent>>>,
    leaked: Cell<bool>,
}

impl Stream {
    /// Makes a stream.
    ///
    /// # Errors
    /// When the call fails or the library lacks it.
    pub fn new(context: &Context) -> Result<Self> {
        context.enter()?;
        let raw = acl::create_stream(context.libraries())?;
        Ok(Self { context: context.clone(), raw, events: RefCell::default(), leaked: Cell::new(false) })
    }

    /// The context it is in.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The handle, valid as long as this guard.
    #[must_use]
    pub fn raw(&self) -> AclrtStream {
        self.raw
    }

    /// Waits until everything enqueued has run.
    ///
    /// # Errors
    /// The first error of that work, or of waiting.
    pub fn synchronize(&self) -> Result<()> {
        self.context.enter()?;
        // SAFETY: the stream is alive.
        unsafe { acl::synchronize_stream(self.context.libraries(), self.raw) }?;
        self.events.borrow_mut().clear();
        Ok(())
    }

    /// Waits until everything enqueued has run, at most so long, rounded up to whole milliseconds; `false` when it has
    /// not.
    ///
    /// # Errors
    /// The first error of that work, or of waiting.
    pub fn synchronize_for(&self, timeout: Duration) -> Result<bool> {
        self.context.enter()?;
        // SAFETY: the stream is alive.
        let waited = unsafe { acl::synchronize_stream_for(self.context.libraries(), self.raw, millis(timeout)) };
        let done = in_time(waited, AclError::RT_STREAM_SYNC_TIMEOUT)?;
        if done {
            self.events.borrow_mut().clear();
        }
        Ok(done)
    }

    /// Whether everything enqueued has run.
    ///
    /// # Errors
    /// When the call fails or the library lacks it.
    pub fn is_idle(&self) -> Result<bool> {
        self.context.enter()?;
        // SAFETY: the stream is alive.
        let status = unsafe { acl::query_stream(self.context.libraries(), self.raw) }?;
        let idle = status == AclrtStreamStatus::COMPLETE;
        if idle {
            self.events.borrow_mut().clear();
        }
        Ok(idle)
    }

    /// Makes later work wait for an event.
    ///
    /// # Errors
    /// When the call fails or the library lacks it.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.context.require_same_library("aclrtStreamWaitEvent", &event.0.context)?;
        self.context.enter()?;
        self.keep(event);
        // SAFETY: stream and event are alive; `keep` holds the event until the stream has passed it.
        unsafe { acl::wait_event(self.context.libraries(), self.raw, event.raw()) }
    }

    /// Drops the work that has not run. The stream is then good for nothing but dropping.
    ///
    /// # Errors
    /// When the call fails or the library lacks it.
    pub fn abort(&self) -> Result<()> {
        self.context.enter()?;
        // SAFETY: the stream is alive.
        unsafe { acl::abort_stream(self.context.libraries(), self.raw) }
    }

    /// Gives up on a stream whose work never ended: nothing it uses is freed any more, and its device stays bound.
    pub(super) fn leak(&self) {
        if !self.leaked.replace(true) {
            std::mem::forget(self.context.clone());
            std::mem::forget(self.events.take());
        }
    }

    fn keep(&self, event: &Event) {
        let mut events = self.events.borrow_mut();
        if !events.iter().any(|kept| Rc::ptr_eq(kept, &event.0)) {
            events.push(Rc::clone(&event.0));
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.leaked.get() {
            return;
        }
        let libs = self.context.libraries();
        // SAFETY: created by `new`, destroyed here once.
        let destroyed = self.context.enter().and_then(|()| unsafe { acl::destroy_stream(libs, self.raw) });
        if let Err(error) = destroyed {
            libs.keep_drop_error(error);
        }
    }
}

/// An event: a point in a stream's work. Destroyed when dropped and no stream needs it any more.
#[derive(Debug)]
pub struct Event(Rc<RawEvent>);

#[derive(Debug)]
struct RawEvent {
    context: Context,
    /// Invariant: alive as long as this value.
    raw: AclrtEvent,
}

impl Event {
    /// Makes an event.
    ///
    /// # Errors
    /// When the call fails or the library lacks it.
    pub fn new(context: &Context) -> Result<Self> {
        context.enter()?;
        let raw = acl::create_event(context.libraries())?;
        Ok(Self(Rc::new(RawEvent { context: context.clone(), raw })))
    }

    /// The handle, valid as long as this guard.
    #[must_use]
    pub fn raw(&self) -> AclrtEvent {
        self.0.raw
    }

    /// Puts the event behind what is enqueued on a stream.
    ///
    /// # Errors
    /// When the call fails or the library lacks it.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        stream.context.require_same_library("aclrtRecordEvent", &self.0.context)?;
        stream.context.enter()?;
        stream.keep(self);
        // SAFETY: stream and event are alive; `keep` holds the event until the stream has passed it.
        unsafe { acl::record_event(stream.context.libraries(), self.raw(), stream.raw) }
    }

    /// Whether the stream has passed the event.
    ///
    /// # Errors
    /// When the call fails or the library lacks it.
    pub fn is_complete(&self) -> Result<bool> {
        self.0.context.enter()?;
        // SAFETY: the event is alive.
        let status = unsafe { acl::query_event(self.0.context.libraries(), self.raw()) }?;
        Ok(status == AclrtEventRecordedStatus::COMPLETE)
    }

    /// Waits until the stream has passed the event.
    ///
    /// # Errors
    /// When the call fails or the library lacks it.
    pub fn synchronize(&self) -> Result<()> {
        self.0.context.enter()?;
        // SAFETY: the event is alive.
        unsafe { acl::synchronize_event(self.0.context.libraries(), self.raw()) }
    }

    /// Waits until the stream has passed the event, at most so long, rounded up to whole milliseconds; `false` when it
    /// has not.
    ///
    /// # Errors
    /// When the call fails or the library lacks it.
    pub fn synchronize_for(&self, timeout: Duration) -> Result<bool> {
        self.0.context.enter()?;
        // SAFETY: the event is alive.
        let waited = unsafe { acl::synchronize_event_for(self.0.context.libraries(), self.raw(), millis(timeout)) };
        in_time(waited, AclError::RT_EVENT_SYNC_TIMEOUT)
    }

    /// Milliseconds from this event to a later one, both passed.
    ///
    /// # Errors
    /// When the call fails or the library lacks it.
    pub fn elapsed_ms(&self, later: &Self) -> Result<f32> {
        self.0.context.require_same_library("aclrtEventElapsedTime", &later.0.context)?;
        self.0.context.enter()?;
        // SAFETY: both events are alive.
        unsafe { acl::elapsed_ms(self.0.context.libraries(), self.raw(), later.raw()) }
    }
}

impl Drop for RawEvent {
    fn drop(&mut self) {
        let libs = self.context.libraries();
        // SAFETY: created by `Event::new`, destroyed here once.
        let destroyed = self.context.enter().and_then(|()| unsafe { acl::destroy_event(libs, self.raw) });
        if let Err(error) = destroyed {
            libs.keep_drop_error(error);
        }
    }
}

/// Whole milliseconds as the C interface takes them, rounded up so that a short wait is not a mere question, and never
/// -1, which would wait for ever.
fn millis(timeout: Duration) -> i32 {
    i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
}

/// Tells a wait that ended from one that ran out of time.
fn in_time(waited: Result<()>, timeout: AclError) -> Result<bool> {
    match waited {
        Ok(()) => Ok(true),
        Err(error) if is_timeout(&error, timeout) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_timeout(error: &Error, timeout: AclError) -> bool {
    // A timeout with a report is the work's own (EI0002), not this wait's.
    error.is_acl(timeout) && error.reports().iter().all(|report| report.code.starts_with("EE"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_never_becomes_a_question_or_for_ever() {
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_millis(7)), 7);
        assert_eq!(millis(Duration::ZERO), 0);
        assert_eq!(millis(Duration::MAX), i32::MAX);
    }
}
