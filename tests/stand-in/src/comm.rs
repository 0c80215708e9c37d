//! Communicators: two worlds of the engine a communicator, one for the data, one for what host threads tell each other.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hccl::{AbortHandle, Communicator, ErrorKind};

use crate::abi::{Array, Failure, Result, acl_code, hccl_code, para};
use crate::counts::{self, Kind};
use crate::device;
use crate::handles::{Handle, Handles, lock};
use crate::memory;
use crate::settings::{config_size, settings, wait};
use crate::stream::{Stream, aborted};

pub(crate) static COMMS: Handles<Comm> = Handles::new();

/// The engine's longest deadline, for operations that may wait for ever.
const FOR_EVER: Duration = Duration::from_secs(604_800);
const SHORTEST: Duration = Duration::from_millis(1);

pub(crate) struct Comm {
    pub(crate) name: String,
    pub(crate) device: i32,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    exec: Option<Duration>,
    /// Set up to run on vector cores or not at all, which one rank cannot.
    pub(crate) vector_only: bool,
    /// Bytes of the two buffers.
    buffers: u64,
    /// Sub-communicators are made of this one by host threads; they have none of their own.
    base: Mutex<Option<Communicator>>,
    /// Used by streams.
    data: Mutex<Option<Communicator>>,
    /// Used by host threads, at the first call of a kind.
    control: Mutex<Option<Communicator>>,
    stop_data: AbortHandle,
    stop_control: AbortHandle,
    linked: Mutex<HashSet<Link>>,
    in_flight: AtomicU64,
    destroyed: AtomicBool,
}

/// What is set up at its first use.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Link {
    Kind(&'static str),
    Pair(Pair),
}

/// A direction between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Pair {
    pub(crate) from: u32,
    pub(crate) to: u32,
}

/// The settings of a communicator.
#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) name: String,
    exec: Option<Duration>,
    buffer_mb: u64,
    /// Operations run on vector cores or not at all.
    vector_only: bool,
}

impl Config {
    pub(crate) fn new() -> Config {
        let settings = settings();
        let (exec, buffer_mb) = (settings.exec_timeout, settings.buffer_mb);
        Config { name: String::new(), exec, buffer_mb, vector_only: false }
    }

    /// Reads an `HcclCommConfig`: the fields that both its version and this library's have.
    pub(crate) fn read(at: Array<u8>) -> Result<Config> {
        let head = at.read(16)?;
        let word = |bytes: &[u8], at: usize| {
            bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_ne_bytes)
        };
        let (size, magic, version) = (word(&head, 0) as usize, word(&head, 8), word(&head, 12));
        if magic != 0xf0f0_f0f0 {
            return Err(para("the configuration was not initialised: its magic number is wrong"));
        }
        if config_size(version) != Some(size) {
            return Err(para(format!("a configuration of version {version} does not have {size} bytes")));
        }
        let (newest, room, _) = settings().config();
        let (bytes, version) = (at.read(size.min(room))?, version.min(newest));
        let mut config = Config::new();
        match word(&bytes, 24) {
            0 => return Err(para("hcclBufferSize is 0")),
            u32::MAX => {}
            mb => config.buffer_mb = mb.into(),
        }
        if !matches!(word(&bytes, 28), 0..=2 | u32::MAX) {
            return Err(para("hcclDeterministic is none of 0, 1 and 2"));
        }
        if version >= 2 {
            let name = bytes[32..160].split(|byte| *byte == 0).next().unwrap_or_default();
            config.name = String::from_utf8_lossy(name).into_owned();
        }
        if version >= 5 {
            match word(&bytes, 288) {
                mode @ 0..=6 => config.vector_only = mode == 4,
                _ => return Err(para("hcclOpExpansionMode is none of 0 to 6")),
            }
        }
        if version >= 8 {
            match word(&bytes, 316).cast_signed() {
                -1 => {}
                seconds @ 0.. => config.exec = wait(Duration::from_secs(seconds.unsigned_abs().into())),
                _ => return Err(para("hcclExecTimeOut is negative")),
            }
        }
        Ok(config)
    }
}

/// Devices on which a thread builds a communicator.
static BUILDING: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

struct Building(i32);

impl Building {
    fn on(device: i32) -> Result<Building> {
        match lock(&BUILDING).insert(device) {
            true => Ok(Building(device)),
            false => {
                let text = format!("EI9999: two threads build communicators on device {device} at once");
                Err(Failure::new(hccl_code::INTERNAL, text))
            }
        }
    }
}

impl Drop for Building {
    fn drop(&mut self) {
        lock(&BUILDING).remove(&self.0);
    }
}

/// The three engine communicators of a rank.
struct Worlds {
    base: Option<Communicator>,
    data: Communicator,
    control: Communicator,
}

/// Variables that are not understood show when a communicator is built.
fn check_environment() -> Result<()> {
    match &settings().refused {
        Some(why) => Err(Failure::new(hccl_code::PARA, format!("EI0001: {why}"))),
        None => Ok(()),
    }
}

/// The device of the calling thread.
pub(crate) fn own_device() -> Result<i32> {
    device::current().map(|(_, context)| context.device).map_err(|failure| para(failure.text))
}

/// Builds this rank's communicator of a world whose ranks all know `job`.
pub(crate) fn join(job: &str, rank: u32, size: u32, config: &Config) -> Result<Handle> {
    check_environment()?;
    let device = own_device()?;
    if size == 0 || rank >= size {
        return Err(para(format!("rank {rank} of {size} ranks")));
    }
    let _building = Building::on(device)?;
    let connect = settings().connect_timeout.clamp(SHORTEST, FOR_EVER);
    let part = |part: &str, exec: Duration| {
        let builder = Communicator::builder().connect_timeout(connect).exec_timeout(exec);
        builder.join(&format!("hccl-stand-in/{job}/{part}"), rank as usize, size as usize)
    };
    let worlds = part("control", connect).and_then(|control| {
        let base = part("data", engine_deadline(config.exec))?;
        let data = base.duplicate()?;
        Ok(Worlds { base: Some(base), data, control })
    });
    register(device, worlds.map_err(|error| unmet_at_start(&error))?, config, format!("stand-in_{job}"))
}

/// All ranks in this process, one a device.
pub(crate) fn join_all(devices: &[i32]) -> Result<Vec<Handle>> {
    check_environment()?;
    let config = Config::new();
    let connect = settings().connect_timeout.clamp(SHORTEST, FOR_EVER);
    let world =
        |exec: Duration| Communicator::builder().connect_timeout(connect).exec_timeout(exec).init_all(devices.len());
    let worlds = || {
        let (control, base) = (world(connect)?, world(engine_deadline(config.exec))?);
        let data = world(engine_deadline(config.exec))?;
        let all = control.into_iter().zip(base).zip(data);
        Ok(all.map(|((control, base), data)| Worlds { base: Some(base), data, control }).collect::<Vec<_>>())
    };
    let worlds = worlds().map_err(|error: hccl::Error| unmet_at_start(&error))?;
    let named = |(device, worlds)| register(device, worlds, &config, format!("stand-in_all_{}", std::process::id()));
    devices.iter().copied().zip(worlds).map(named).collect()
}

fn register(device: i32, worlds: Worlds, config: &Config, default_name: String) -> Result<Handle> {
    let buffers = (2 * config.buffer_mb) << 20;
    memory::reserve(device, buffers).map_err(|failure| {
        Failure::new(hccl_code::OOM, format!("EI0007: no memory for the communicator's buffers: {}", failure.text))
    })?;
    let Worlds { base, data, control } = worlds;
    let (stop_data, stop_control) = (data.abort_handle(), control.abort_handle());
    let comm = Comm {
        name: if config.name.is_empty() { default_name } else { config.name.clone() },
        device,
        rank: data.rank().index() as u32,
        size: data.size() as u32,
        exec: config.exec,
        vector_only: config.vector_only,
        buffers,
        base: Mutex::new(base),
        data: Mutex::new(Some(data)),
        control: Mutex::new(Some(control)),
        stop_data,
        stop_control,
        linked: Mutex::default(),
        in_flight: AtomicU64::new(0),
        destroyed: AtomicBool::new(false),
    };
    counts::more(Kind::Comms);
    Ok(COMMS.add(Arc::new(comm)))
}

fn engine_deadline(exec: Option<Duration>) -> Duration {
    exec.unwrap_or(FOR_EVER).clamp(SHORTEST, FOR_EVER)
}

fn unmet_at_start(error: &hccl::Error) -> Failure {
    match error.kind() {
        ErrorKind::Timeout { late, after } => {
            let code = if late == &[0] { "EI0006" } else { "EI0015" };
            let text = format!("{code}: ranks {late:?} did not come within {:.1} s", after.as_secs_f64());
            Failure::new(hccl_code::TIMEOUT, text)
        }
        ErrorKind::PeerLost { peer, .. } => {
            Failure::new(hccl_code::INTERNAL, format!("EI0015: rank {peer} was lost while the ranks met"))
        }
        ErrorKind::Resource { .. } => Failure::new(hccl_code::OOM, format!("EI0007: {error}")),
        _ => para(error),
    }
}

/// How often this process joined a world by a rank table, as a rank.
pub(crate) fn next_use(job: &str, rank: u32) -> u64 {
    static USES: Mutex<BTreeMap<(String, u32), u64>> = Mutex::new(BTreeMap::new());
    let mut uses = lock(&USES);
    let uses = uses.entry((job.to_owned(), rank)).or_default();
    *uses += 1;
    *uses
}

/// Work of a communicator that its stream has not finished.
pub(crate) struct InFlight(Arc<Comm>);

impl InFlight {
    pub(crate) fn new(comm: &Arc<Comm>) -> InFlight {
        comm.in_flight.fetch_add(1, Ordering::SeqCst);
        InFlight(Arc::clone(comm))
    }

    pub(crate) fn comm(&self) -> &Comm {
        &self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Comm {
    /// At the first call of a kind: waits on the host until all ranks make it, and compares.
    pub(crate) fn meet(&self, kind: &'static str, call: &str) -> Result<()> {
        let link = Link::Kind(kind);
        if self.size == 1 || lock(&self.linked).contains(&link) {
            return Ok(());
        }
        let started = Instant::now();
        let all = {
            let control = lock(&self.control);
            let control = control.as_ref().ok_or_else(terminated)?;
            control.all_gather_bytes(header(kind, call).as_bytes())
        };
        let all = all.map_err(|error| self.unmet(&error, started))?;
        let texts: Vec<_> = all.iter().map(|bytes| String::from_utf8_lossy(bytes)).collect();
        let own = &texts[self.rank as usize];
        if let Some(peer) = (0..texts.len()).find(|peer| texts[*peer] != *own) {
            return Err(differs(own, peer as u32, &texts[peer]));
        }
        lock(&self.linked).insert(link);
        Ok(())
    }

    /// As [`meet`](Comm::meet), with the peers of messages, each at the first message in a direction.
    pub(crate) fn meet_pairs(&self, messages: &[(Pair, String)]) -> Result<()> {
        let mut fresh: BTreeMap<Pair, &str> = BTreeMap::new();
        for (pair, call) in messages.iter().filter(|(pair, _)| !lock(&self.linked).contains(&Link::Pair(*pair))) {
            fresh.entry(*pair).or_insert(call);
        }
        if fresh.is_empty() {
            return Ok(());
        }
        let started = Instant::now();
        let own: Vec<_> = fresh.iter().map(|(pair, call)| padded(*pair, call)).collect();
        let mut theirs = vec![[0u8; HEADER]; own.len()];
        let exchanged = {
            let control = lock(&self.control);
            let control = control.as_ref().ok_or_else(terminated)?;
            control.batch_send_recv(|batch| {
                for ((pair, own), theirs) in fresh.keys().zip(&own).zip(&mut theirs) {
                    let peer = if pair.from == self.rank { pair.to } else { pair.from };
                    batch.send(own, control.peer(peer as usize)?)?;
                    batch.recv(theirs, control.peer(peer as usize)?)?;
                }
                Ok(())
            })
        };
        exchanged.map_err(|error| self.unmet(&error, started))?;
        for ((pair, own), theirs) in fresh.keys().zip(&own).zip(&theirs) {
            self.compare_pair(*pair, own, theirs, started)?;
            lock(&self.linked).insert(Link::Pair(*pair));
        }
        Ok(())
    }

    fn compare_pair(&self, pair: Pair, own: &[u8], theirs: &[u8], started: Instant) -> Result<()> {
        let peer = if pair.from == self.rank { pair.to } else { pair.from };
        let texts = [own, theirs].map(|bytes| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned());
        if own[..PAIR] != theirs[..PAIR] {
            // Both send, or both receive: nobody ever answers.
            self.wait_out(started);
            return Err(self.timed_out(&format!("{peer}"), started));
        }
        if own != theirs {
            return Err(differs(&texts[0], peer, &texts[1]));
        }
        Ok(())
    }

    /// A first call that did not find its peers: it ends when the deadline for setting up links does.
    fn unmet(&self, error: &hccl::Error, started: Instant) -> Failure {
        if !error.is_timeout() {
            self.wait_out(started);
        }
        let late = match error.kind() {
            ErrorKind::Timeout { late, .. } => format!("{late:?}"),
            ErrorKind::PeerLost { peer, .. } => format!("{peer}"),
            _ => "unknown".to_owned(),
        };
        self.timed_out(&late, started)
    }

    fn timed_out(&self, late: &str, started: Instant) -> Failure {
        if self.destroyed.load(Ordering::SeqCst) {
            return terminated();
        }
        let waited = started.elapsed().as_secs_f64();
        let text = format!("EI0006: getting a socket of rank {late} timed out after {waited:.1} s. Reason: no answer");
        Failure::new(hccl_code::TIMEOUT, text)
    }

    fn wait_out(&self, started: Instant) {
        while started.elapsed() < settings().connect_timeout && !self.destroyed.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Runs a collective in a stream's thread. A failure of the group shows only when the deadline has passed, as on a
    /// device: nobody tells a rank of another's end.
    pub(crate) fn run(
        &self,
        stream: &Stream,
        name: &str,
        work: impl FnOnce(&Communicator) -> hccl::Result<()>,
    ) -> Result<()> {
        let started = Instant::now();
        let data = lock(&self.data);
        let freed = || Failure::new(acl_code::DEVICE_MEMORY, "EI0012: the communicator was destroyed under its work");
        let data = data.as_ref().ok_or_else(freed)?;
        stream.starts(self.stop_data.clone())?;
        let done = work(data);
        stream.ends();
        let Err(error) = done else { return Ok(()) };
        if error.is_recoverable() {
            return Err(Failure::new(acl_code::INTERNAL, format!("EI9999: {error}")));
        }
        if !error.is_timeout() {
            stream.park(self.exec.and_then(|exec| started.checked_add(exec)));
        }
        if stream.is_aborted() {
            return Err(aborted(acl_code::STREAM_ABORT));
        }
        let waited = started.elapsed().as_secs_f64();
        let text = format!("EI0002: the wait for notify of {name} timed out after {waited:.1} s. Reason: {error}");
        Err(Failure::new(acl_code::TASKS_TIMEOUT, text))
    }

    /// Makes a communicator of some ranks; `members[rank]` is this one.
    pub(crate) fn sub(&self, members: &[u32], config: &Config) -> Result<Handle> {
        let _building = Building::on(self.device)?;
        let members: Vec<_> = members.iter().map(|member| *member as usize).collect();
        let started = Instant::now();
        let group = |world: &Mutex<Option<Communicator>>| {
            let world = lock(world);
            let world = world.as_ref().ok_or_else(|| para("a sub-communicator cannot be split again"))?;
            world.group(&members).map_err(|error| self.unmet(&error, started))
        };
        let data = group(&self.base)?;
        let control = group(&self.control)?;
        let name = format!("{}/{members:?}", self.name);
        register(self.device, Worlds { base: None, data, control }, config, name)
    }
}

/// Destroys a communicator that is idle, or stuck in its first call of a kind.
pub(crate) fn destroy(handle: Handle) -> Result<()> {
    let comm = COMMS.get(handle).ok_or_else(|| para("there is no such communicator"))?;
    let stuck = comm.control.try_lock().is_err();
    if !stuck && comm.in_flight.load(Ordering::SeqCst) > 0 {
        return Err(Failure::new(hccl_code::AGAIN, "EI9999: the communicator has work on its stream"));
    }
    if COMMS.remove(handle).is_none() {
        return Err(para("the communicator is being destroyed by another thread"));
    }
    comm.destroyed.store(true, Ordering::SeqCst);
    if stuck {
        comm.stop_control.abort();
    }
    drop(lock(&comm.control).take());
    drop(lock(&comm.data).take());
    drop(lock(&comm.base).take());
    memory::release(comm.device, comm.buffers);
    counts::less(Kind::Comms);
    Ok(())
}

fn terminated() -> Failure {
    Failure::new(hccl_code::INTERNAL, "EI9999: Terminating operation due to external request")
}

/// Bytes of what two ranks tell each other about a message.
const HEADER: usize = 256;
/// Bytes of the pair at its beginning.
const PAIR: usize = 8;

fn header(kind: &str, call: &str) -> String {
    format!("{kind}({call}) of HCCL {}", settings().hccl)
}

fn padded(pair: Pair, call: &str) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..4].copy_from_slice(&pair.from.to_ne_bytes());
    bytes[4..PAIR].copy_from_slice(&pair.to.to_ne_bytes());
    let text = header("message", call);
    let len = text.len().min(HEADER - PAIR);
    bytes[PAIR..PAIR + len].copy_from_slice(&text.as_bytes()[..len]);
    bytes
}

fn differs(own: &str, peer: u32, theirs: &str) -> Failure {
    let version = |text: &str| text.rsplit(" of HCCL ").next().map(str::to_owned);
    if version(own) != version(theirs) {
        return Failure::new(hccl_code::INTERNAL, format!("EI0008: versions differ: own {own}, rank {peer} {theirs}"));
    }
    let text = format!("EI0005: arguments of the ranks differ: own {own}, rank {peer} {theirs}");
    Failure::new(hccl_code::PARA, text)
}
