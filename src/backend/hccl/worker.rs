//! The thread that makes the vendor's calls for one communicator, and how it is given up.
//!
//! ```text
//! lane                       worker (device bound, owns stream and communicator)
//!   ask(job) ─────────────────> job(&mut Station)
//!   look at peers, deadline      may block in the vendor's code
//!   <───────────────────────── answer
//!   or give up: abort the stream, wait GRACE; then the thread may live on, with all it holds
//! ```
#![expect(unsafe_code, reason = "handles cross the C interface")]

use super::chip::Chip;
use super::error::{convert, gone, silent};
use super::npu::{self, Service};
use super::watch::Watch;
use crate::error::{Error, Result};
use ascend_sys::Libraries;
use ascend_sys::result::{acl, hccl};
use ascend_sys::safe::{Context, DeviceMemory, Stream};
use ascend_sys::sys::{AclrtStream, HcclComm, HcclResult};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long a failed call waits for its aborted stream to become quiet before its memory is given up.
pub(super) const GRACE: Duration = Duration::from_millis(700);
/// Between two looks at the peers.
const NAP: Duration = Duration::from_millis(5);
/// Between two looks of the worker at whether it was given up.
const SLICE: Duration = Duration::from_millis(100);

/// A communicator of HCCL, destroyed when the last that needs it is gone.
#[derive(Debug)]
pub(super) struct RawComm {
    libs: &'static Libraries,
    raw: HcclComm,
    ended: AtomicBool,
    /// The communicator this one is a part of.
    parent: Option<Arc<RawComm>>,
}

// SAFETY: the handle is a token that HCCL takes on any thread with the device bound; one at a time, which the queue of
// the communicator sees to, but for the destruction that HCCL allows from another thread.
unsafe impl Send for RawComm {}
// SAFETY: as above.
unsafe impl Sync for RawComm {}

impl RawComm {
    /// Takes over a communicator that nobody else destroys.
    pub(super) fn own(libs: &'static Libraries, raw: HcclComm, parent: Option<Arc<RawComm>>) -> Arc<RawComm> {
        Arc::new(RawComm { libs, raw, ended: AtomicBool::new(false), parent })
    }

    /// The handle, alive as long as this is.
    pub(super) fn raw(&self) -> HcclComm {
        self.raw
    }

    /// True when HCCL may make communicators of part of its ranks.
    pub(super) fn is_whole(&self) -> bool {
        self.parent.is_none()
    }

    fn end(&self) -> ascend_sys::Result<()> {
        if self.ended.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // SAFETY: destroyed once; its stream is synchronised, or HCCL says that it is at work.
        let ended = unsafe { hccl::comm_destroy(self.libs, self.raw) };
        if ended.as_ref().is_err_and(|error| error.is_hccl(HcclResult::E_AGAIN)) {
            // It is at work, and alive.
            self.ended.store(false, Ordering::Release);
        }
        ended
    }
}

impl Drop for RawComm {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(%error, "a communicator was not destroyed");
        }
    }
}

/// What the worker's thread owns.
pub(super) struct Station {
    pub(super) libs: &'static Libraries,
    pub(super) chip: Chip,
    pub(super) rank: u32,
    pub(super) size: u32,
    /// None until it is made, and in a group of one.
    pub(super) comm: Option<Arc<RawComm>>,
    /// Host memory of calls on its way, and memory of detours: kept from call to call.
    blocks: [Option<DeviceMemory>; 2],
    stream: Stream,
    context: Context,
    status: Arc<Status>,
}

/// What may be asked of, and done to, a worker that does not answer.
#[derive(Default)]
struct Status {
    given_up: AtomicBool,
    /// A job runs.
    busy: AtomicBool,
    /// The stream while it is alive.
    stream: Mutex<Option<Handle>>,
    comm: Mutex<Option<Weak<RawComm>>>,
}

#[derive(Clone, Copy)]
struct Handle(AclrtStream);

// SAFETY: a token; who uses it holds the lock under which it is destroyed.
unsafe impl Send for Handle {}

/// Which of the kept blocks.
#[derive(Clone, Copy)]
pub(super) enum Keep {
    Stage = 0,
    Scratch = 1,
}

/// Why a job ended badly.
pub(super) enum Trouble {
    /// The library said so; nothing runs any more.
    Said(ascend_sys::Error),
    /// The lane gave up, and the stream does not end.
    Stuck,
}

impl From<ascend_sys::Error> for Trouble {
    fn from(error: ascend_sys::Error) -> Self {
        Trouble::Said(error)
    }
}

impl Station {
    fn open(libs: &'static Libraries, device: u32, status: Arc<Status>) -> ascend_sys::Result<Station> {
        let context = npu::open(libs, device)?;
        let stream = Stream::new(&context)?;
        *lock(&status.stream) = Some(Handle(stream.raw()));
        let chip = acl::soc_name(libs).ok().flatten().map_or(Chip::Unknown, |name| Chip::of(&name));
        Ok(Station { libs, chip, rank: 0, size: 1, comm: None, blocks: [None, None], stream, context, status })
    }

    /// Takes over a new communicator.
    pub(super) fn keep(&mut self, raw: HcclComm, parent: Option<Arc<RawComm>>) -> Weak<RawComm> {
        let comm = RawComm::own(self.libs, raw, parent);
        let weak = Arc::downgrade(&comm);
        *lock(&self.status.comm) = Some(weak.clone());
        self.comm = Some(comm);
        weak
    }

    /// The stream, for work on memory that outlives it: see [`finish`](Station::finish).
    pub(super) fn stream(&self) -> AclrtStream {
        self.stream.raw()
    }

    /// The device.
    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// The address of a kept block of at least `bytes` bytes. What it held is lost when it has to grow.
    pub(super) fn block(&mut self, keep: Keep, bytes: usize) -> ascend_sys::Result<*mut c_void> {
        let block = &mut self.blocks[keep as usize];
        if block.as_ref().is_none_or(|block| block.len() < bytes) {
            // The old block goes first: the device may not have room for both.
            *block = None;
            let fresh = DeviceMemory::new(&self.context, bytes.next_power_of_two().max(4096))?;
            *block = Some(fresh);
        }
        Ok(block.as_ref().map_or(std::ptr::null_mut(), DeviceMemory::as_ptr))
    }

    /// Waits until the stream has run everything.
    pub(super) fn finish(&self) -> Result<(), Trouble> {
        let mut given_up_for = Duration::ZERO;
        loop {
            match self.stream.synchronize_for(SLICE) {
                Ok(true) => return Ok(()),
                Ok(false) if given_up_for > GRACE => return Err(Trouble::Stuck),
                Ok(false) if self.status.given_up.load(Ordering::Acquire) => given_up_for += SLICE,
                Ok(false) => {}
                Err(error) if error.is_missing() => return Ok(self.stream.synchronize()?),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// As [`finish`](Station::finish), and after a failure waits until what ran on the stream has ended: waiting for an
    /// aborted stream returns at once.
    pub(super) fn settle(&self) -> Result<(), Trouble> {
        let finished = self.finish();
        let Err(Trouble::Said(_)) = &finished else { return finished };
        let start = Instant::now();
        // A stream that cannot be asked any more runs nothing.
        while let Ok(false) = self.stream.is_idle() {
            if start.elapsed() > GRACE / 2 {
                return Err(Trouble::Stuck);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        finished
    }

    /// Destroys the communicator; for a while again and again when it is still at work.
    fn end_comm(&self) -> ascend_sys::Result<()> {
        // Communicators that are part of this one keep it alive.
        let Some(comm) = self.comm.as_ref().filter(|comm| Arc::strong_count(comm) == 1) else { return Ok(()) };
        let start = Instant::now();
        loop {
            match comm.end() {
                Err(error) if error.is_hccl(HcclResult::E_AGAIN) && start.elapsed() < GRACE / 2 => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                ended => return ended,
            }
        }
    }

    /// Gives everything back, in an order that HCCL takes; leaks what may still be at work.
    fn close(self) -> Result<(), Trouble> {
        let quiet = self.settle();
        if matches!(quiet, Err(Trouble::Stuck)) {
            std::mem::forget(self);
            return quiet;
        }
        let ended = self.end_comm();
        // From here on nobody aborts the stream.
        *lock(&self.status.stream) = None;
        drop(self);
        quiet.and(ended.map_err(Trouble::Said))
    }
}

type Job = Box<dyn FnOnce(&mut Station) + Send>;

enum Message {
    Do(Job),
    End(Sender<Result<(), Trouble>>),
}

/// The thread. Dropping this ends it once its job is done.
pub(super) struct Worker {
    device: u32,
    libs: &'static Libraries,
    messages: Sender<Message>,
    status: Arc<Status>,
    /// Keeps the device's memory thread, so that buffers come and go without starting one.
    _memory: Arc<Service>,
}

/// How a job went.
pub(super) enum Ended<R> {
    /// It ran to its end.
    Done(R),
    /// It was given up for this reason, and its memory is quiet or not.
    Given { error: Error, quiet: bool },
}

impl Worker {
    /// Starts the thread, which opens the device and a stream there.
    pub(super) fn start(libs: &'static Libraries, device: u32, patience: Duration) -> Result<Worker> {
        let memory = Service::of(device)?;
        let status = Arc::new(Status::default());
        let (messages, received) = channel();
        let (opened, opening) = channel();
        let thread = std::thread::Builder::new().name(format!("npu-{device}-hccl"));
        let shared = status.clone();
        let run = move || match Station::open(libs, device, shared) {
            Ok(station) => {
                let _ = opened.send(Ok(()));
                work(station, &received);
            }
            Err(error) => {
                let _ = opened.send(Err(error));
            }
        };
        thread.spawn(run).map_err(|error| Error::resource(format!("a thread for NPU {device}"), error))?;
        match opening.recv_timeout(patience) {
            Ok(Ok(())) => Ok(Worker { device, libs, messages, status, _memory: memory }),
            Ok(Err(error)) => Err(convert(error, device, Duration::ZERO)),
            Err(RecvTimeoutError::Timeout) => Err(silent(device, "aclrtSetDevice", patience)),
            Err(RecvTimeoutError::Disconnected) => Err(gone(device)),
        }
    }

    /// Has the thread do a job, and waits for it as long as `watch` lets it.
    pub(super) fn ask<R: Send + 'static>(
        &self,
        watch: &mut Watch<'_>,
        job: impl FnOnce(&mut Station) -> R + Send + 'static,
    ) -> Ended<R> {
        let (reply, answers) = channel();
        let job: Job = Box::new(move |station| {
            // A lane that gave up takes no answer.
            let _ = reply.send(job(station));
        });
        if self.messages.send(Message::Do(job)).is_err() {
            return Ended::Given { error: gone(self.device), quiet: true };
        }
        loop {
            match answers.recv_timeout(NAP) {
                Ok(answer) => return Ended::Done(answer),
                Err(RecvTimeoutError::Disconnected) => {
                    return Ended::Given { error: gone(self.device), quiet: false };
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some(error) = watch.look(self.device) {
                return self.give_up(error, &answers);
            }
        }
    }

    fn give_up<R>(&self, error: Error, answers: &Receiver<R>) -> Ended<R> {
        self.status.given_up.store(true, Ordering::Release);
        self.interrupt();
        // An answer, whatever it is, means that the job's stream has ended or failed.
        let quiet = answers.recv_timeout(GRACE).is_ok();
        Ended::Given { error, quiet }
    }

    /// Aborts the stream, and destroys the communicator of a call that still does not return: HCCL ends one that waits
    /// for links that way. On a thread that nobody waits for: these calls may block, too.
    fn interrupt(&self) {
        let (libs, device, status) = (self.libs, self.device, self.status.clone());
        let interrupt = move || {
            let Ok(context) = npu::open(libs, device) else { return };
            if let Some(Handle(raw)) = *lock(&status.stream) {
                let entered = context.enter();
                // SAFETY: alive while the lock is held.
                let aborted = entered.and_then(|()| unsafe { acl::abort_stream(libs, raw) });
                if let Err(error) = aborted {
                    tracing::debug!(%error, "a stream was not aborted");
                }
            }
            std::thread::sleep(GRACE / 4);
            let comm = lock(&status.comm).as_ref().and_then(Weak::upgrade);
            // Communicators that are part of this one would lose what they stand on.
            if let Some(comm) = comm.filter(|comm| Arc::strong_count(comm) == 2)
                && status.busy.load(Ordering::Acquire)
                && let Err(error) = comm.end()
            {
                tracing::debug!(%error, "a communicator at work was not destroyed");
            }
        };
        if let Err(error) = std::thread::Builder::new().name(format!("npu-{device}-abort")).spawn(interrupt) {
            tracing::warn!(%error, "no thread to abort a stream");
        }
    }

    /// Ends the thread: waits for the stream, destroys the communicator and the stream.
    pub(super) fn end(&self, patience: Duration) -> Result<()> {
        let (reply, answers) = channel();
        if self.messages.send(Message::End(reply)).is_err() {
            return Ok(());
        }
        let given_up = self.status.given_up.load(Ordering::Acquire);
        let patience = if given_up { GRACE } else { patience };
        match answers.recv_timeout(patience) {
            Ok(Err(Trouble::Said(error))) if !given_up => Err(convert(error, self.device, patience)),
            Err(RecvTimeoutError::Timeout) if !given_up => {
                self.status.given_up.store(true, Ordering::Release);
                self.interrupt();
                Err(silent(self.device, "HcclCommDestroy", patience))
            }
            _ => Ok(()),
        }
    }
}

fn work(mut station: Station, received: &Receiver<Message>) {
    while let Ok(message) = received.recv() {
        match message {
            Message::Do(job) => {
                station.status.busy.store(true, Ordering::Release);
                let done = catch_unwind(AssertUnwindSafe(|| job(&mut station)));
                station.status.busy.store(false, Ordering::Release);
                if done.is_err() {
                    // Who asked hears it from the lost reply. The stream may be at work, so it ends in order.
                    break;
                }
            }
            Message::End(reply) => {
                let _ = reply.send(station.close());
                return;
            }
        }
    }
    let _ = station.close();
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing panics while it holds one of these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
