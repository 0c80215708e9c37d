//! HCCL's communicators and settings.
#![expect(unsafe_code, reason = "exported functions")]

use std::ffi::{CStr, c_char};
use std::ptr;
use std::sync::Mutex;

use crate::abi::{Array, Failure, Out, Result, Text, exports, hccl_code, para};
use crate::chip::Family;
use crate::comm::{COMMS, Config, destroy, join, join_all, next_use, own_device};
use crate::device;
use crate::fault::{self, Fault};
use crate::group;
use crate::handles::{Handle, lock};
use crate::operators::comm_of;
use crate::root::{self, ROOT_INFO};
use crate::settings::settings;

/// What stays out of a new sub-communicator.
const NOT_MEMBER: u64 = 0xFFFF_FFFF;
/// Bytes of a communicator's name.
const NAME: usize = 128;
const MAX_PATH: usize = 4096;

/// The one setting of the process.
static DETERMINISTIC: Mutex<i32> = Mutex::new(0);

fn by_root_info(size: u32, info: Array<[u8; ROOT_INFO]>, rank: u32, config: &Config) -> Result<Handle> {
    join(&root::job_of(&info.first()?)?, rank, size, config)
}

fn by_table(path: Text, rank: u32, config: &Config) -> Result<Handle> {
    let path = path.read()?;
    if path.len() > MAX_PATH {
        return Err(para(format!("the rank table's path has {} bytes", path.len())));
    }
    let entry = root::read_table(&path, rank)?;
    let device = own_device()?;
    if device != entry.device {
        let text = format!("EI0014: the rank table gives rank {rank} device {}, this is {device}", entry.device);
        return Err(Failure::new(hccl_code::PARA, text));
    }
    join(&format!("{}-{}", entry.job, next_use(&entry.job, rank)), rank, entry.size, config)
}

fn name_bytes(name: &str) -> [u8; NAME] {
    let mut bytes = [0; NAME];
    let len = name.len().min(NAME - 1);
    bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
    bytes
}

fn unsupported(name: &str) -> Result<()> {
    Err(Failure::new(hccl_code::NOT_SUPPORT, format!("EI0003: {name} is not supported by the stand-in")))
}

#[unsafe(no_mangle)]
extern "C" fn HcclGetCommConfigCapability() -> u32 {
    settings().config().2
}

#[unsafe(no_mangle)]
extern "C" fn HcclGetErrorString(code: i32) -> *const c_char {
    const NAMES: [&CStr; 25] = [
        c"no error",
        c"parameter error",
        c"empty pointer",
        c"memory error",
        c"internal error",
        c"not support feature",
        c"not found specific resource",
        c"resource unavailable",
        c"call system interface error",
        c"timeout",
        c"open file fail",
        c"tcp connect fail",
        c"roce connect fail",
        c"tcp transfer fail",
        c"roce transfer fail",
        c"call runtime api fail",
        c"call driver api fail",
        c"call profiling api fail",
        c"call cce api fail",
        c"call network api fail",
        c"try again",
        c"error cqe",
        c"suspending",
        c"retry fail",
        c"out of memory",
    ];
    let name = usize::try_from(code).ok().and_then(|code| NAMES.get(code));
    name.map_or(ptr::null(), |name| name.as_ptr())
}

exports! {
    fn HcclGetRootInfo(info: Array<[u8; ROOT_INFO]>) {
        own_device()?;
        match info.is_null() {
            true => Err(Failure::new(hccl_code::PTR, "EI0003: HcclGetRootInfo: rootInfo is null")),
            false => info.fill(&[root::new_info()]),
        }
    }
    fn HcclCommInitRootInfo(size: u32, info: Array<[u8; ROOT_INFO]>, rank: u32, comm: Out<Handle>) {
        comm.put(by_root_info(size, info, rank, &Config::new())?)
    }
    fn HcclCommInitRootInfoConfig(size: u32, info: Array<[u8; ROOT_INFO]>, rank: u32, config: Array<u8>,
        comm: Out<Handle>) {
        comm.put(by_root_info(size, info, rank, &Config::read(config)?)?)
    }
    fn HcclCommInitClusterInfo(path: Text, rank: u32, comm: Out<Handle>) {
        comm.put(by_table(path, rank, &Config::new())?)
    }
    fn HcclCommInitClusterInfoConfig(path: Text, rank: u32, config: Array<u8>, comm: Out<Handle>) {
        comm.put(by_table(path, rank, &Config::read(config)?)?)
    }
    fn HcclCommInitAll(n: u32, devices: Array<i32>, comms: Array<Handle>) {
        if n == 0 || comms.is_null() {
            return Err(para("HcclCommInitAll of no devices"));
        }
        let devices = devices.read(n as usize)?;
        for (i, id) in devices.iter().enumerate() {
            device::check(*id).map_err(|failure| para(failure.text))?;
            if devices[..i].contains(id) {
                return Err(para(format!("HcclCommInitAll: device {id} is listed twice")));
            }
        }
        comms.fill(&join_all(&devices)?)
    }
    fn HcclCreateSubCommConfig(comm: Array<Handle>, n: u32, ids: Array<u32>, id: u64, rank: u32, config: Array<u8>,
        sub: Out<Handle>) {
        settings().family.has("HcclCreateSubCommConfig")?;
        let comm = comm_of("HcclCreateSubCommConfig", comm.first()?)?;
        if ids.is_null() {
            return match id {
                NOT_MEMBER => sub.put(0),
                _ => Err(para("HcclCreateSubCommConfig: rankIds is null, and subCommId is not 0xFFFFFFFF")),
            };
        }
        let members = ids.read(n as usize)?;
        let fits = members.get(rank as usize) == Some(&comm.rank) && members.iter().all(|m| *m < comm.size);
        if !fits || id == NOT_MEMBER {
            return Err(para(format!("HcclCreateSubCommConfig: rank {rank} of {members:?} is not rank {}", comm.rank)));
        }
        sub.put(comm.sub(&members, &Config::read(config)?)?)
    }
    fn HcclCommDestroy(comm: Handle) { destroy(comm) }
    fn HcclGetRankSize(comm: Handle, size: Out<u32>) { size.put(comm_of("HcclGetRankSize", comm)?.size) }
    fn HcclGetRankId(comm: Handle, rank: Out<u32>) { rank.put(comm_of("HcclGetRankId", comm)?.rank) }
    fn HcclGetCommName(comm: Handle, name: Out<[u8; NAME]>) {
        name.put(name_bytes(&comm_of("HcclGetCommName", comm)?.name))
    }
    fn HcclGetCommAsyncError(comm: Handle, error: Out<i32>) {
        settings().family.has("HcclGetCommAsyncError")?;
        comm_of("HcclGetCommAsyncError", comm)?;
        error.put(match fault::of("CommAsyncError") {
            Some(Fault::Return(code)) => code,
            _ => 0,
        })
    }
    fn HcclSetConfig(config: i32, value: i32) {
        if config != 0 || !(0..=2).contains(&value) {
            return Err(para(format!("HcclSetConfig of {config} to {value}")));
        }
        *lock(&DETERMINISTIC) = value;
        Ok(())
    }
    fn HcclGetConfig(config: i32, value: Out<i32>) {
        match config {
            0 => value.put(*lock(&DETERMINISTIC)),
            _ => Err(para(format!("HcclGetConfig of {config}"))),
        }
    }
    fn HcclConfigGetInfo(comm: Handle, config: i32, len: u32, info: Out<i32>) {
        comm_of("HcclConfigGetInfo", comm)?;
        match (config, len) {
            // Where operations are unfolded: on the host, or on the device's own processor.
            (0, 4..) => info.put(if settings().family == Family::A2 { 2 } else { 0 }),
            _ => unsupported("HcclConfigGetInfo"),
        }
    }
    fn HcclGroupStart() {
        settings().family.has("HcclGroupStart")?;
        group::start();
        Ok(())
    }
    fn HcclGroupEnd() { group::end() }
    fn HcclGroupStatusGet(open: Out<u8>) { open.put(group::is_open().into()) }
    fn HcclCommGetHandleWithName(name: Text, comm: Out<Handle>) {
        let (name, device) = (name.read()?, own_device()?);
        let found = COMMS.all().into_iter().find(|(_, comm)| comm.name == name && comm.device == device);
        match found {
            Some((handle, _)) => comm.put(handle),
            None => Err(Failure::new(hccl_code::NOT_FOUND, format!("EI0003: no communicator is called {name}"))),
        }
    }
    fn HcclCommGetStatus(name: Text, status: Out<i32>) {
        let name = name.read()?;
        let alive = COMMS.all().iter().any(|(_, comm)| comm.name == name);
        status.put(if alive { 0 } else { 254 })
    }

    fn HcclCommSuspend(_comm: Handle) { unsupported("HcclCommSuspend") }
    fn HcclCommResume(_comm: Handle) { unsupported("HcclCommResume") }
    fn HcclCommSetMemoryRange(_comm: Handle, _base: usize, _size: usize, _alignment: usize, _flags: u64) {
        unsupported("HcclCommSetMemoryRange")
    }
    fn HcclCommUnsetMemoryRange(_comm: Handle, _base: usize) { unsupported("HcclCommUnsetMemoryRange") }
    fn HcclCommActivateCommMemory(_comm: Handle, _address: usize, _size: usize, _offset: usize, _handle: usize,
        _flags: u64) {
        unsupported("HcclCommActivateCommMemory")
    }
    fn HcclCommDeactivateCommMemory(_comm: Handle, _address: usize) { unsupported("HcclCommDeactivateCommMemory") }
    fn HcclCommWorkingDevNicSet(_comm: Handle, _ranks: usize, _backup: usize, _n: u32) {
        unsupported("HcclCommWorkingDevNicSet")
    }
    fn HcclCommRegCommStateCallback(_name: Text, _callback: usize, _args: usize) {
        unsupported("HcclCommRegCommStateCallback")
    }
    fn HcclCommSymWinRegister(_comm: Handle, _address: usize, _size: u64, _window: usize, _flag: u32) {
        unsupported("HcclCommSymWinRegister")
    }
    fn HcclCommSymWinDeregister(_window: Handle) { unsupported("HcclCommSymWinDeregister") }
    fn HcclCommSymWinGet(_comm: Handle, _address: usize, _size: usize, _window: usize, _offset: usize) {
        unsupported("HcclCommSymWinGet")
    }
}
