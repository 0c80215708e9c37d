//! One rank's queue of calls, and the buffers of calls whose handles were dropped.
#![expect(unsafe_code, reason = "vouches to the backend for the memory of checked calls")]

use crate::backend::{Backend, Call, Failure, Home, Kind, Memory, Support, Ticket};
use crate::communicator::check::{Checked, Place};
use crate::device::Device;
use crate::element::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::flight::InFlight;
use crate::memory::RETIRED;
use crate::reduce::OpKind;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The queue of one rank in one group. Shared by the communicator and the handles of its calls.
pub(crate) struct Queue {
    backend: Arc<dyn Backend>,
    pub(crate) place: Place,
    /// True when the backend refuses some pair of dtype and operation, so that calls are worth asking about.
    refuses: bool,
    /// Where this rank's device buffers live.
    device: Device,
    /// True when `adrift` may hold something: blocking calls then look, and otherwise take no lock.
    any_adrift: AtomicBool,
    adrift: Mutex<Vec<Box<dyn Adrift>>>,
}

/// Makes what holds it `Send` and not `Sync`: calls of one rank have an order, so that two threads cannot share one
/// queue.
pub(crate) struct OneQueue {
    /// Always null. The type's name is what rustc shows, so it names the remedy.
    _marker: *const DuplicateItForEachThread,
}

struct DuplicateItForEachThread;

impl OneQueue {
    pub(crate) const fn new() -> Self {
        OneQueue { _marker: std::ptr::null() }
    }
}

// SAFETY: the pointer is never used.
unsafe impl Send for OneQueue {}

/// Buffers of a call whose handle was dropped before it finished. Dropping this leaks them.
trait Adrift: Send {
    /// Frees the buffers when the call is finished; false when it is not.
    fn try_land(&mut self, backend: &dyn Backend) -> bool;
}

struct Raft<B> {
    ticket: Ticket,
    /// Invariants: (1) initialised until it landed, after which the raft is not asked again. (2) Until the ticket is
    /// finished, nobody makes a reference to it.
    buf: MaybeUninit<B>,
}

impl<B: InFlight> Adrift for Raft<B> {
    fn try_land(&mut self, backend: &dyn Backend) -> bool {
        match backend.wait(self.ticket, Some(Duration::ZERO)) {
            None => return false,
            // Left alone, it leaks, which is what memory that a peer may still write needs.
            Some(Err(Failure { reachable: true, .. })) => {}
            // SAFETY: (1), (2): the ticket is finished and nobody reaches the memory.
            Some(_) => unsafe { self.buf.assume_init_drop() },
        }
        true
    }
}

impl Queue {
    pub(crate) fn new(backend: Arc<dyn Backend>, place: Place) -> Self {
        let ops = || OpKind::ALL.iter().copied().map(Some).chain([None]);
        let refuses =
            DType::ALL.iter().any(|&dtype| ops().any(|op| matches!(backend.support(dtype, op), Support::Refused(_))));
        let device = backend.device();
        Queue { backend, place, refuses, device, any_adrift: AtomicBool::new(false), adrift: Mutex::default() }
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Does a call and returns when it is finished.
    pub(crate) fn run(&self, checked: Checked<'_>) -> Result<(), Failure> {
        self.before(&checked.call)?;
        // SAFETY: a checked call names memory that is lent for its lifetime, as the table of `Call` says, and the
        // loan outlasts this call.
        unsafe { self.backend.run(checked.call) }
    }

    /// Queues a call.
    ///
    /// # Safety
    /// The memory of the call stays lent, whatever its lifetime says, until the ticket is finished.
    pub(crate) unsafe fn submit(&self, checked: Checked<'_>) -> Result<Ticket> {
        self.before(&checked.call)?;
        // SAFETY: the call is checked, and the caller keeps the memory lent.
        unsafe { self.backend.submit(checked.call) }
    }

    /// Waits until the call is finished, for as long as that takes: every call ends by its own deadline.
    pub(crate) fn finish(&self, ticket: Ticket) -> Result<(), Failure> {
        loop {
            if let Some(result) = self.backend.wait(ticket, None) {
                return result;
            }
        }
    }

    /// As [`finish`](Queue::finish), but fails the group when the call is not finished in time.
    pub(crate) fn finish_or_abort(&self, ticket: Ticket, patience: Duration) -> Result<(), Failure> {
        self.backend.wait(ticket, Some(patience)).unwrap_or_else(|| {
            self.backend.abort();
            self.finish(ticket)
        })
    }

    /// Says where a call failed and what became of its memory; `retire` is asked to replace memory that peers reach.
    #[cold]
    pub(crate) fn failed(&self, kind: Kind, failure: Failure, retire: impl FnOnce()) -> Error {
        let error = self.place.at(kind, failure.error);
        if !failure.reachable {
            return error;
        }
        retire();
        error.note(RETIRED)
    }

    /// Keeps the buffers of a call, which must be initialised, until it is finished, without waiting for it.
    pub(crate) fn set_adrift<B: InFlight>(&self, ticket: Ticket, buf: MaybeUninit<B>) {
        let mut raft = Raft { ticket, buf };
        if raft.try_land(&*self.backend) {
            return;
        }
        self.adrift.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(raft));
        self.any_adrift.store(true, Ordering::Release);
    }

    /// Frees what is finished of the buffers adrift.
    pub(crate) fn sweep(&self) {
        let mut adrift = self.adrift.lock().unwrap_or_else(PoisonError::into_inner);
        adrift.retain_mut(|raft| !raft.try_land(&*self.backend));
        self.any_adrift.store(!adrift.is_empty(), Ordering::Release);
    }

    /// Calls whose buffers are adrift.
    #[cfg(test)]
    pub(crate) fn adrift_len(&self) -> usize {
        self.adrift.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn before(&self, call: &Call) -> Result<()> {
        if self.any_adrift.load(Ordering::Acquire) {
            self.sweep();
        }
        let batched = call.messages.iter().map(|message| &message.memory);
        if let Some(foreign) = batched.chain([&call.send, &call.recv]).find_map(|memory| foreign(memory, self.device)) {
            return Err(self.foreign(call.kind, foreign));
        }
        if self.refuses { self.ask(call) } else { Ok(()) }
    }

    #[cold]
    fn foreign(&self, kind: Kind, foreign: Device) -> Error {
        let problem = format!("the buffer is on {foreign}, this communicator on {}", self.device);
        let hint = "make buffers with the communicator's own upload or zeros, or lend it a slice";
        self.place.at(kind, Error::invalid(problem).hint(hint))
    }

    #[cold]
    fn ask(&self, call: &Call) -> Result<()> {
        let batched = call.messages.iter().map(|message| (message.dtype, None));
        let refused =
            batched.chain([(call.dtype, call.op)]).find_map(|(dtype, op)| match self.backend.support(dtype, op) {
                Support::Refused(why) => Some((dtype, op, why)),
                Support::Native | Support::Emulated => None,
            });
        let Some((dtype, op, why)) = refused else { return Ok(()) };
        let what = match op {
            Some(op) => format!("{op} of {dtype} on the {} backend", self.backend.name()),
            None => format!("moving {dtype} on the {} backend", self.backend.name()),
        };
        Err(self.place.at(call.kind, Error::new(ErrorKind::Unsupported { what }).hint(why)))
    }
}

/// The device of `memory`, when that is not one whose memory a communicator on `device` takes. Slices go anywhere.
fn foreign(memory: &Memory, device: Device) -> Option<Device> {
    let home = match memory.home {
        Home::Private => return None,
        Home::Heap { .. } => Device::Cpu,
        Home::Npu { device } => Device::Npu(device),
    };
    (home != device).then_some(home)
}

impl Drop for Queue {
    fn drop(&mut self) {
        // What is not finished now leaks: nobody will wait for it any more.
        self.sweep();
    }
}
