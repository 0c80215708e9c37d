//! Making communicators: a group of the CPU engine first, and over it whatever HCCL needs to be carried.
//!
//! ```text
//! control group ── hello: chip, library, HCCL_CHECK ── compare
//!        root info:   rank 0 starts a root ── 4108 bytes to all ── every rank joins
//!        rank table:  every rank reads the file
//!        all devices: rank 0 makes all communicators, the others take theirs
//!        part:        of a whole communicator, else by root info
//! ── all there? ── go
//! ```
#![expect(unsafe_code, reason = "makes communicators through the vendor's library, and lends vectors to the engine")]

use super::chip::Chip;
use super::error::{convert, load};
use super::lane::{Facts, Npu};
use super::watch::Watch;
use super::worker::{Ended, RawComm, Station, Worker};
use crate::backend::cpu;
use crate::backend::cpu::engine::Engine;
use crate::backend::cpu::group::Group;
use crate::backend::queue::Ordered;
use crate::backend::{Backend, Call, Home, Kind, Memory};
use crate::element::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use ascend_sys::Libraries;
use ascend_sys::result::{acl, hccl};
use ascend_sys::sys::{HcclComm, HcclCommConfig, HcclResult, HcclRootInfo, HcclTable};
use std::collections::{HashSet, hash_map::DefaultHasher};
use std::ffi::CString;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

/// What the vendor's own deadlines get on top before ours says that the library hangs.
const MARGIN: Duration = Duration::from_secs(30);

/// Where a communicator comes from.
#[derive(Clone)]
pub(super) enum Source {
    /// Root info over the control channel.
    Root,
    /// A rank table.
    Table(CString),
    /// All devices of this process: rank 0 leaves the handles here.
    All(Arc<Mutex<Vec<usize>>>),
    /// Part of a communicator, where it is a whole one; the ranks in it.
    Part { of: Option<Arc<RawComm>>, ids: Vec<u32> },
}

/// A world of one on an NPU.
pub(crate) fn single(device: u32, options: &Options) -> Result<Arc<dyn Backend>> {
    let mut groups = cpu::thread_groups(1, options)?;
    match groups.pop() {
        Some(group) => join(group, device, Source::Root),
        None => Err(Error::invalid("a world of no ranks")),
    }
}

/// One rank of a world of processes that meet under `name`; by a rank table when there is one.
pub(crate) fn process(
    name: &str,
    (rank, size): (usize, usize),
    device: u32,
    table: Option<CString>,
    options: &Options,
) -> Result<Arc<dyn Backend>> {
    // Without the libraries nobody needs to be met.
    load(device)?;
    let group = cpu::process_group(name, rank, size, options)?;
    join(group, device, table.map_or(Source::Root, Source::Table))
}

/// Ranks that are threads of this process, on NPUs `first..first + n`.
pub(crate) fn threads(n: usize, first: u32, options: &Options) -> Result<Vec<Arc<dyn Backend>>> {
    let libs = load(first)?;
    let groups = cpu::thread_groups(n, options)?;
    let source = match libs.hccl.HcclCommInitAll() {
        Ok(_) => Source::All(Arc::default()),
        Err(_) => Source::Root,
    };
    let made: Vec<Result<Arc<dyn Backend>>> = std::thread::scope(|scope| {
        let start = |(rank, group): (usize, Group)| {
            let (device, source) = (first + rank as u32, source.clone());
            scope.spawn(move || join(group, device, source))
        };
        let running: Vec<_> = groups.into_iter().enumerate().map(start).collect();
        let ended = running.into_iter().map(|thread| thread.join());
        ended.map(|end| end.unwrap_or_else(|_| Err(Error::new(ErrorKind::Closed)))).collect()
    });
    // A rank that failed itself tells more than those that heard of it.
    let mut errors: Vec<Error> = made.iter().filter_map(|made| made.as_ref().err().cloned()).collect();
    errors.sort_by_key(|error| (error.is_knock_on(), std::error::Error::source(error).is_none()));
    match errors.into_iter().next() {
        Some(error) => Err(error),
        None => made.into_iter().collect(),
    }
}

/// Makes this rank's backend. When it cannot, the other ranks of the group hear of it.
pub(super) fn join(group: Group, device: u32, source: Source) -> Result<Arc<dyn Backend>> {
    let group = Arc::new(group);
    group.joining.store(true, Ordering::Relaxed);
    let made = catch_unwind(AssertUnwindSafe(|| make(&group, device, source)));
    made.unwrap_or_else(|panic| Err(Error::panicked(group.rank, &*panic))).map_err(|error| {
        let error = group.fail(error).at("connect", group.rank, group.size);
        group.leave();
        error
    })
}

fn make(group: &Arc<Group>, device: u32, source: Source) -> Result<Arc<dyn Backend>> {
    let libs = load(device)?;
    let Options { connect_timeout, exec_timeout, origin } = group.options;
    let margin = |given: bool| if given { Duration::ZERO } else { MARGIN };
    let patience = connect_timeout + margin(origin.connect_given);
    let worker = Worker::start(libs, device, patience)?;
    let mut joining = Joining { group, libs, worker: &worker, device, patience, control: Engine::new(group.clone()) };
    let (rank, size) = (group.rank as u32, group.size as u32);
    let (chip, physical) = joining.ask(move |station| {
        (station.rank, station.size) = (rank, size);
        Ok((station.chip, acl::physical_device(station.libs, device as i32).unwrap_or(device as i32)))
    })?;
    let own = Hello { chip: chip as u8, symbols: symbols(&libs.hccl), physical, check: asked_to_check()? };
    let every = joining.greet(own, matches!(source, Source::Part { .. }))?;
    let comm = if size > 1 { Some(joining.build(source)?) } else { None };
    joining.meet()?;
    let Joining { control, .. } = joining;
    group.joining.store(false, Ordering::Relaxed);
    let deadline = exec_timeout + margin(origin.exec_given);
    let facts = Facts { device, chip, comm };
    let (group_, known, buffer) = (group.clone(), HashSet::new(), Vec::new());
    let lane = Npu { group: group_, control, worker, device, deadline, every, place: 0, known, buffer };
    Ok(Arc::new(Ordered::new(group.clone(), lane, facts)))
}

/// What ranks must agree on, as they tell each other.
struct Hello {
    chip: u8,
    symbols: u64,
    physical: i32,
    check: bool,
}

const HELLO: usize = 16;

impl Hello {
    fn bytes(&self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[0] = self.chip;
        bytes[1] = u8::from(self.check);
        bytes[4..8].copy_from_slice(&self.physical.to_le_bytes());
        bytes[8..].copy_from_slice(&self.symbols.to_le_bytes());
        bytes
    }

    fn physical(bytes: &[u8]) -> i32 {
        bytes[4..8].iter().rev().fold(0, |value, byte| (value << 8) | i32::from(*byte))
    }
}

/// A number for the set of functions that a library has.
fn symbols(table: &HcclTable) -> u64 {
    let mut hasher = DefaultHasher::new();
    table.missing().for_each(|symbol| symbol.name.hash(&mut hasher));
    hasher.finish()
}

fn asked_to_check() -> Result<bool> {
    match std::env::var("HCCL_CHECK").as_deref() {
        Err(_) | Ok("" | "0") => Ok(false),
        Ok("1") => Ok(true),
        Ok(text) => {
            let problem = format!("is {text:?}; it must be 0 or 1");
            Err(Error::new(ErrorKind::Environment { variable: "HCCL_CHECK".into(), problem }))
        }
    }
}

/// One rank while its communicator is made.
struct Joining<'a> {
    group: &'a Arc<Group>,
    libs: &'static Libraries,
    worker: &'a Worker,
    device: u32,
    patience: Duration,
    control: Engine,
}

impl Joining<'_> {
    /// Has the worker do something, watching the peers.
    fn ask<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Station) -> ascend_sys::Result<R> + Send + 'static,
    ) -> Result<R> {
        let mut watch = Watch::new(self.group, self.patience);
        match self.worker.ask(&mut watch, job) {
            Ended::Done(done) => done.map_err(|error| convert(error, self.device, watch.waited())),
            Ended::Given { error, .. } => Err(error),
        }
    }

    /// Every rank's bytes, in rank order.
    fn gather<const N: usize>(&mut self, own: [u8; N]) -> Result<Vec<u8>> {
        let mut all = vec![0; N * self.group.size];
        let mut own = own;
        let mut call = Call::new(Kind::AllGather, DType::U8);
        call.count = N as u64;
        (call.send, call.recv) = (lend(&mut own), lend(&mut all));
        self.control.execute(&call, true).map_err(|failure| failure.error)?;
        Ok(all)
    }

    fn meet(&mut self) -> Result<()> {
        self.control.rehearse(&Call::new(Kind::Barrier, DType::U8), 0, true).map_err(|failure| failure.error)
    }

    /// Compares what must be the same on all ranks; true when one of them wants every call compared.
    fn greet(&mut self, own: Hello, is_part: bool) -> Result<bool> {
        let mine = own.bytes();
        let all = self.gather(mine)?;
        let ranks: Vec<&[u8]> = all.chunks_exact(HELLO).collect();
        let odd =
            |range: std::ops::Range<usize>| ranks.iter().position(|other| other[range.clone()] != mine[range.clone()]);
        if let Some(rank) = odd(0..1) {
            return Err(differ(rank, "another chip"));
        }
        if let Some(rank) = odd(8..HELLO) {
            return Err(differ(rank, "another version of HCCL's library"));
        }
        let shares = |rank: &usize| *rank != self.group.rank && Hello::physical(ranks[*rank]) == own.physical;
        if let Some(rank) = (0..ranks.len()).find(shares).filter(|_| !is_part && !cards_are_shared()) {
            let problem = format!("rank {rank} is on physical NPU {} too", own.physical);
            return Err(Error::new(ErrorKind::Rendezvous { problem })
                .hint("give every rank an NPU of its own, as Device::Npu(local rank)"));
        }
        Ok(ranks.iter().any(|other| other[1] != 0))
    }

    fn build(&mut self, source: Source) -> Result<Weak<RawComm>> {
        match source {
            Source::Root => self.by_root(),
            Source::Table(path) => {
                let (rank, config) = (self.group.rank as u32, self.config());
                self.ask(move |station| {
                    let _claim = Claim::take(station.context().device().id());
                    // SAFETY: the claim keeps other threads of ours from building on this device.
                    let raw = unsafe { hccl::comm_init_cluster_info(station.libs, &path, rank, config.as_ref()) }?;
                    Ok(station.keep(raw, None))
                })
            }
            Source::All(handles) => self.by_first(handles),
            Source::Part { of, ids } => self.by_part(of, ids),
        }
    }

    fn by_root(&mut self) -> Result<Weak<RawComm>> {
        let mut info = [0; HcclRootInfo::LEN];
        if self.group.rank == 0 {
            info = self.ask(|station| Ok(hccl::get_root_info(station.libs)?.internal))?;
        }
        let mut call = Call::new(Kind::Broadcast, DType::U8);
        call.count = info.len() as u64;
        *(if self.group.rank == 0 { &mut call.send } else { &mut call.recv }) = lend(&mut info);
        self.control.execute(&call, true).map_err(|failure| failure.error)?;
        let (rank, size, config) = (self.group.rank as u32, self.group.size as u32, self.config());
        self.ask(move |station| {
            let info = HcclRootInfo { internal: info };
            let _claim = Claim::take(station.context().device().id());
            // SAFETY: as for a table.
            let raw = unsafe { hccl::comm_init_root_info(station.libs, size, &info, rank, config.as_ref()) }?;
            Ok(station.keep(raw, None))
        })
    }

    fn by_first(&mut self, handles: Arc<Mutex<Vec<usize>>>) -> Result<Weak<RawComm>> {
        let (rank, size) = (self.group.rank, self.group.size);
        if rank == 0 {
            let (first, handles) = (self.device as i32, handles.clone());
            self.ask(move |station| {
                let devices: Vec<i32> = (0..size as i32).map(|rank| first + rank).collect();
                // SAFETY: the other ranks wait for this one, and their devices serve nobody else yet.
                let comms = unsafe { hccl::comm_init_all(station.libs, &devices) }?;
                let comms = comms.into_iter().map(|comm| comm.0 as usize).collect();
                *handles.lock().unwrap_or_else(PoisonError::into_inner) = comms;
                station.context().enter()
            })?;
        }
        self.meet()?;
        self.ask(move |station| {
            let handle = handles.lock().unwrap_or_else(PoisonError::into_inner)[rank];
            Ok(station.keep(HcclComm(handle as *mut _), None))
        })
    }

    /// By part of the whole communicator on all ranks, or by root info on all.
    fn by_part(&mut self, of: Option<Arc<RawComm>>, ids: Vec<u32>) -> Result<Weak<RawComm>> {
        let whole = of.filter(|whole| whole.is_whole() && self.libs.hccl.HcclCreateSubCommConfig().is_ok());
        let (rank, id) = (self.group.rank as u32, self.group.id() & 0x7fff_ffff);
        let config = HcclCommConfig::new(hccl::config_version(self.libs));
        let config = self.config().unwrap_or(config);
        let made = match whole {
            None => None,
            Some(whole) => self.ask(move |station| {
                let part = hccl::SubComm { id, rank_ids: &ids, rank };
                let _claim = Claim::take(station.context().device().id());
                // SAFETY: alive, as this closure holds it, and a whole one.
                let made = unsafe { hccl::create_sub_comm(station.libs, whole.raw(), Some(part), &config) };
                match made {
                    Ok(Some(raw)) => Ok(Some(station.keep(raw, Some(whole)))),
                    Ok(None) => Ok(None),
                    Err(error) if error.is_hccl(HcclResult::E_NOT_SUPPORT) => Ok(None),
                    Err(error) => Err(error),
                }
            })?,
        };
        let everywhere = self.gather([u8::from(made.is_some())])?.iter().all(|made| *made == 1);
        match made {
            Some(comm) if everywhere => Ok(comm),
            _ => {
                self.ask(|station| {
                    station.comm = None;
                    Ok(())
                })?;
                self.by_root()
            }
        }
    }

    /// The settings of a communicator, where the library takes any: how long its operations may wait.
    fn config(&self) -> Option<HcclCommConfig> {
        self.libs.hccl.HcclCommInitRootInfoConfig().ok()?;
        let mut config = HcclCommConfig::new(hccl::config_version(self.libs));
        if !self.group.options.origin.exec_from_env {
            let seconds = self.group.options.exec_timeout.as_secs_f64().ceil().max(1.0) as i32;
            if let Err(error) = config.set_exec_timeout(seconds) {
                tracing::debug!(%error, "HCCL keeps its own deadline; ours ends calls");
            }
        }
        Some(config)
    }
}

/// Several ranks a card need ports of their own, and whoever sets those knows what he does.
fn cards_are_shared() -> bool {
    std::env::var_os("HCCL_NPU_SOCKET_PORT_RANGE").is_some_and(|range| !range.is_empty())
}

fn differ(rank: usize, what: &str) -> Error {
    let problem = format!("rank {rank} has {what} than this rank");
    Error::new(ErrorKind::Rendezvous { problem }).hint("`hccl doctor` on both shows chip and versions")
}

fn lend(bytes: &mut [u8]) -> Memory {
    Memory { ptr: bytes.as_mut_ptr(), bytes: bytes.len(), home: Home::Private }
}

/// The right to build a communicator on a device, which HCCL gives to one thread at a time.
struct Claim(i32);

static CLAIMED: Mutex<Vec<i32>> = Mutex::new(Vec::new());
static GIVEN_BACK: Condvar = Condvar::new();

impl Claim {
    /// Waits until no other thread builds on the device.
    fn take(device: i32) -> Claim {
        let mut claimed = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
        while claimed.contains(&device) {
            claimed = GIVEN_BACK.wait(claimed).unwrap_or_else(PoisonError::into_inner);
        }
        claimed.push(device);
        Claim(device)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        CLAIMED.lock().unwrap_or_else(PoisonError::into_inner).retain(|device| *device != self.0);
        GIVEN_BACK.notify_all();
    }
}

const _: () = assert!(Chip::Unknown as u8 == 5, "a chip fits a byte of a hello");
