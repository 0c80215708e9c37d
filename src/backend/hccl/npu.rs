//! Memory of NPUs: one thread a device that has the device bound, and does what is asked of it.
//!
//! AscendCL binds a device to a thread, while a buffer may be dropped anywhere. Bytes travel as owned vectors, so that a
//! device which never answers costs a thread and not the memory of the process.

use super::error::{convert, gone, load, silent};
use crate::backend::Home;
use crate::error::{Error, Result};
use crate::options::Options;
use ascend_sys::Libraries;
use ascend_sys::safe::{Context, Device, DeviceMemory};
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Zeroed memory of an NPU, freed when dropped.
pub(crate) struct NpuBlock {
    service: Arc<Service>,
    id: u64,
    address: usize,
}

impl NpuBlock {
    /// `bytes` zeros.
    pub(crate) fn zeroed(device: u32, bytes: usize) -> Result<NpuBlock> {
        let service = Service::of(device)?;
        let (id, address) = service.ask("aclrtMalloc", |reply| Ask::Take { bytes, reply })?;
        Ok(NpuBlock { service, id, address })
    }

    /// The address on the device.
    pub(crate) fn address(&self) -> *mut u8 {
        self.address as *mut u8
    }

    /// Where it lives.
    pub(crate) fn home(&self) -> Home {
        Home::Npu { device: self.service.device }
    }

    /// Copies `bytes.len()` bytes from `offset` on to the host.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let len = bytes.len();
        let read = self.service.ask("aclrtMemcpy", |reply| Ask::Read { id: self.id, offset, len, reply })?;
        bytes.copy_from_slice(&read);
        Ok(())
    }

    /// Copies bytes from the host to `offset`.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let bytes = bytes.to_vec();
        self.service.ask("aclrtMemcpy", |reply| Ask::Write { id: self.id, offset, bytes, reply })
    }
}

impl Drop for NpuBlock {
    fn drop(&mut self) {
        // The thread is only gone when it panicked, and its memory with it.
        let _ = self.service.asks.send(Ask::Free { id: self.id });
    }
}

type Reply<R> = Sender<ascend_sys::Result<R>>;

enum Ask {
    Take { bytes: usize, reply: Reply<(u64, usize)> },
    Read { id: u64, offset: usize, len: usize, reply: Reply<Vec<u8>> },
    Write { id: u64, offset: usize, bytes: Vec<u8>, reply: Reply<()> },
    Free { id: u64 },
}

/// The thread of one device; it ends with the last block and communicator there.
pub(super) struct Service {
    device: u32,
    asks: Sender<Ask>,
    patience: Duration,
}

impl Service {
    /// The service of a device, started when there is none.
    pub(super) fn of(device: u32) -> Result<Arc<Service>> {
        static SERVICES: Mutex<Option<HashMap<u32, Weak<Service>>>> = Mutex::new(None);
        let mut services = SERVICES.lock().unwrap_or_else(PoisonError::into_inner);
        let services = services.get_or_insert_default();
        if let Some(service) = services.get(&device).and_then(Weak::upgrade) {
            return Ok(service);
        }
        let service = Arc::new(Service::start(device)?);
        services.insert(device, Arc::downgrade(&service));
        Ok(service)
    }

    fn start(device: u32) -> Result<Service> {
        let libs = load(device)?;
        let patience = Options::resolve(None, None)?.exec_timeout;
        let (asks, asked) = channel();
        let (opened, opening) = channel();
        let thread = std::thread::Builder::new().name(format!("npu-{device}-memory"));
        let run = move || match open(libs, device) {
            Ok(context) => {
                let _ = opened.send(Ok(()));
                serve(&context, &asked);
            }
            Err(error) => {
                let _ = opened.send(Err(error));
            }
        };
        thread.spawn(run).map_err(|error| Error::resource(format!("a thread for NPU {device}"), error))?;
        answer(device, "aclrtSetDevice", &opening, patience)?;
        Ok(Service { device, asks, patience })
    }

    fn ask<R>(&self, what: &str, ask: impl FnOnce(Reply<R>) -> Ask) -> Result<R> {
        let (reply, answers) = channel();
        self.asks.send(ask(reply)).map_err(|_| gone(self.device))?;
        answer(self.device, what, &answers, self.patience)
    }
}

fn answer<R>(device: u32, what: &str, answers: &Receiver<ascend_sys::Result<R>>, patience: Duration) -> Result<R> {
    let start = Instant::now();
    match answers.recv_timeout(patience) {
        Ok(answer) => answer.map_err(|error| convert(error, device, start.elapsed())),
        Err(RecvTimeoutError::Timeout) => Err(silent(device, what, patience)),
        Err(RecvTimeoutError::Disconnected) => Err(gone(device)),
    }
}

/// Binds this thread to a device.
pub(super) fn open(libs: &'static Libraries, device: u32) -> ascend_sys::Result<Context> {
    // A number beyond i32 is one that no library knows, and it says so.
    Device::open(libs, i32::try_from(device).unwrap_or(i32::MAX)).map(|device| device.default_context())
}

fn serve(context: &Context, asked: &Receiver<Ask>) {
    let mut blocks: HashMap<u64, DeviceMemory> = HashMap::new();
    let mut next = 0;
    // A caller that stopped waiting takes no answer, so failures to send are none.
    while let Ok(ask) = asked.recv() {
        match ask {
            Ask::Take { bytes, reply } => {
                let taken = DeviceMemory::new(context, bytes).and_then(|mut memory| memory.fill(0).map(|()| memory));
                let _ = reply.send(taken.map(|memory| {
                    let address = memory.as_ptr() as usize;
                    next += 1;
                    blocks.insert(next, memory);
                    (next, address)
                }));
            }
            Ask::Read { id, offset, len, reply } => {
                let mut bytes = vec![0; len];
                let read = blocks.get(&id).map_or(Ok(()), |memory| memory.read(offset, &mut bytes));
                let _ = reply.send(read.map(|()| bytes));
            }
            Ask::Write { id, offset, bytes, reply } => {
                let _ = reply.send(blocks.get_mut(&id).map_or(Ok(()), |memory| memory.write(offset, &bytes)));
            }
            Ask::Free { id } => drop(blocks.remove(&id)),
        }
    }
}
