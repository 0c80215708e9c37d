//! HCCL, call by call.

#![expect(unsafe_code, reason = "calls through the function table")]

use std::{
    ffi::{CStr, c_char, c_void},
    ptr,
};

use super::{Error, Result, calls, check_hccl, copy_text};
use crate::{
    loader::Libraries,
    sys::{
        AclrtStream, ConfigVersion, HCCL_COMM_NAME_LEN, HcclComm, HcclCommConfig, HcclConfig, HcclConfigValue,
        HcclDataType, HcclReduceOp, HcclResult, HcclRootInfo, HcclSendRecvItem, text_of,
    },
};

/// Starts a root on this thread's device; one [`comm_init_root_info`] must follow on it.
///
/// # Errors
/// When the call fails or the library lacks it.
pub fn get_root_info(libs: &Libraries) -> Result<HcclRootInfo> {
    let call = libs.hccl.HcclGetRootInfo()?;
    let mut info = HcclRootInfo::zeroed();
    // SAFETY: the call writes into 4108 bytes.
    let code = unsafe { call(&raw mut info) };
    check_hccl(libs, "HcclGetRootInfo", code)?;
    Ok(info)
}

/// Builds a communicator; every rank calls with the same `ranks`, info and configuration, the root too. It blocks until
/// all have come or `HCCL_CONNECT_TIMEOUT` is over.
///
/// # Errors
/// When the rank is not below `ranks`, the call fails, or the library lacks it.
///
/// # Safety
/// No other thread builds a communicator on this thread's device at the same time.
pub unsafe fn comm_init_root_info(
    libs: &Libraries,
    ranks: u32,
    info: &HcclRootInfo,
    rank: u32,
    config: Option<&HcclCommConfig>,
) -> Result<HcclComm> {
    let mut comm = HcclComm::NULL;
    let Some(config) = config else {
        check_rank("HcclCommInitRootInfo", rank, ranks)?;
        let call = libs.hccl.HcclCommInitRootInfo()?;
        // SAFETY: the info is 4108 readable bytes; the call writes one handle.
        let code = unsafe { call(ranks, info, rank, &raw mut comm) };
        return check_hccl(libs, "HcclCommInitRootInfo", code).map(|()| comm);
    };
    check_rank("HcclCommInitRootInfoConfig", rank, ranks)?;
    let call = libs.hccl.HcclCommInitRootInfoConfig()?;
    // SAFETY: as above; the configuration is 2248 readable bytes, at least what its size field says.
    let code = unsafe { call(ranks, info, rank, config, &raw mut comm) };
    check_hccl(libs, "HcclCommInitRootInfoConfig", code).map(|()| comm)
}

/// Builds a communicator by a rank table, blocking as [`comm_init_root_info`] does.
///
/// # Errors
/// When the path is too long, the call fails, or the library lacks it.
///
/// # Safety
/// No other thread builds a communicator on this thread's device at the same time.
pub unsafe fn comm_init_cluster_info(
    libs: &Libraries,
    path: &CStr,
    rank: u32,
    config: Option<&HcclCommConfig>,
) -> Result<HcclComm> {
    const MAX_PATH: usize = 4096;
    if path.count_bytes() > MAX_PATH {
        let why = format!("the rank table's path has {} bytes, HCCL takes {MAX_PATH}", path.count_bytes());
        return Err(Error::argument("HcclCommInitClusterInfo", why));
    }
    let mut comm = HcclComm::NULL;
    let Some(config) = config else {
        let call = libs.hccl.HcclCommInitClusterInfo()?;
        // SAFETY: the path ends in a zero byte; the call writes one handle.
        let code = unsafe { call(path.as_ptr(), rank, &raw mut comm) };
        return check_hccl(libs, "HcclCommInitClusterInfo", code).map(|()| comm);
    };
    let mut config = *config;
    let call = libs.hccl.HcclCommInitClusterInfoConfig()?;
    // SAFETY: as above; the configuration is this frame's own copy of 2248 bytes.
    let code = unsafe { call(path.as_ptr(), rank, &raw mut config, &raw mut comm) };
    check_hccl(libs, "HcclCommInitClusterInfoConfig", code).map(|()| comm)
}

/// Builds one communicator a device, all in this process; `devices[0]` is the root.
///
/// # Errors
/// When no or too many devices are given or one comes twice, the call fails, or the library lacks it.
///
/// # Safety
/// No other thread builds a communicator on one of these devices at the same time.
pub unsafe fn comm_init_all(libs: &Libraries, devices: &[i32]) -> Result<Vec<HcclComm>> {
    const NAME: &str = "HcclCommInitAll";
    let count = u32::try_from(devices.len()).map_err(|_| Error::argument(NAME, "more devices than a u32 counts"))?;
    if count == 0 {
        return Err(Error::argument(NAME, "the list of devices is empty"));
    }
    if let Some(twice) = devices.iter().enumerate().find(|(i, device)| devices[..*i].contains(device)) {
        return Err(Error::argument(NAME, format!("device {} is listed twice", twice.1)));
    }
    let call = libs.hccl.HcclCommInitAll()?;
    let (mut devices, mut comms) = (devices.to_vec(), vec![HcclComm::NULL; devices.len()]);
    // SAFETY: both arrays have `count` entries.
    let code = unsafe { call(count, devices.as_mut_ptr(), comms.as_mut_ptr()) };
    check_hccl(libs, NAME, code).map(|()| comms)
}

/// Builds a communicator of some ranks of a global one; `rank_ids[i]` becomes rank i. All ranks of the global one call,
/// those outside with `member` `None`; they get `None`.
///
/// # Errors
/// When the new rank is not among the ids, the call fails, or the library lacks it.
///
/// # Safety
/// `comm` is alive, of this library, and no sub-communicator itself.
pub unsafe fn create_sub_comm(
    libs: &Libraries,
    comm: HcclComm,
    member: Option<SubComm<'_>>,
    config: &HcclCommConfig,
) -> Result<Option<HcclComm>> {
    const NAME: &str = "HcclCreateSubCommConfig";
    let call = libs.hccl.HcclCreateSubCommConfig()?;
    let (mut comm, mut config, mut sub) = (comm, *config, HcclComm::NULL);
    let Some(SubComm { id, rank_ids, rank }) = member else {
        let not_member = crate::sys::HCCL_SUB_COMM_NOT_MEMBER;
        // SAFETY: a rank that stays out passes null ids; the rest are values of this frame.
        let code = unsafe { call(&raw mut comm, 0, ptr::null_mut(), not_member, 0, &raw mut config, &raw mut sub) };
        return check_hccl(libs, NAME, code).map(|()| None);
    };
    let count = u32::try_from(rank_ids.len()).map_err(|_| Error::argument(NAME, "more ranks than a u32 counts"))?;
    check_rank(NAME, rank, count)?;
    let mut ids = rank_ids.to_vec();
    // SAFETY: the ids are `count` entries; the rest are values of this frame.
    let code = unsafe { call(&raw mut comm, count, ids.as_mut_ptr(), id, rank, &raw mut config, &raw mut sub) };
    check_hccl(libs, NAME, code).map(|()| Some(sub))
}

/// This rank's part in a new sub-communicator.
#[derive(Clone, Copy, Debug)]
pub struct SubComm<'a> {
    /// The sub-communicator's number, the same on its ranks.
    pub id: u64,
    /// The global ranks of its members, in the order of their new ranks.
    pub rank_ids: &'a [u32],
    /// This rank's new rank.
    pub rank: u32,
}

/// The communicator's name.
///
/// # Errors
/// When the call fails or the library lacks it.
///
/// # Safety
/// `comm` is alive and of this library.
pub unsafe fn comm_name(libs: &Libraries, comm: HcclComm) -> Result<String> {
    let call = libs.hccl.HcclGetCommName()?;
    let mut name: [c_char; HCCL_COMM_NAME_LEN] = [0; HCCL_COMM_NAME_LEN];
    // SAFETY: the caller answers for the handle; the call writes at most 128 bytes.
    let code = unsafe { call(comm, name.as_mut_ptr()) };
    check_hccl(libs, "HcclGetCommName", code)?;
    Ok(text_of(&name))
}

/// The library's own name of a code; `None` where it has none or lacks the call.
#[must_use]
pub fn error_string(libs: &Libraries, code: HcclResult) -> Option<String> {
    let call = libs.hccl.HcclGetErrorString().ok()?;
    // SAFETY: the call takes a number and returns null or a string.
    let text = unsafe { call(code) };
    copy_text(text)
}

/// The newest configuration this library surely reads: version 1 where it cannot be asked.
#[must_use]
pub fn config_version(libs: &Libraries) -> ConfigVersion {
    let Ok(call) = libs.hccl.HcclGetCommConfigCapability() else { return ConfigVersion::V1 };
    // SAFETY: the call takes nothing and returns a number.
    let capability = unsafe { call() };
    ConfigVersion::for_capability(capability)
}

/// Changes a setting of the whole process.
///
/// # Errors
/// When the call fails or the library lacks it.
pub fn set_config(libs: &Libraries, config: HcclConfig, value: i32) -> Result<()> {
    let call = libs.hccl.HcclSetConfig()?;
    // SAFETY: the call takes two numbers, the second wrapped in a union of one member.
    let code = unsafe { call(config, HcclConfigValue { value }) };
    check_hccl(libs, "HcclSetConfig", code)
}

/// A setting of the whole process.
///
/// # Errors
/// When the call fails or the library lacks it.
pub fn get_config(libs: &Libraries, config: HcclConfig) -> Result<i32> {
    let call = libs.hccl.HcclGetConfig()?;
    let mut value = HcclConfigValue { value: 0 };
    // SAFETY: the call writes four bytes.
    let code = unsafe { call(config, &raw mut value) };
    check_hccl(libs, "HcclGetConfig", code)?;
    // SAFETY: the union has one member, and every bit pattern is an integer.
    Ok(unsafe { value.value })
}

/// Whether a group is open.
///
/// # Errors
/// When the call fails or the library lacks it.
pub fn group_is_open(libs: &Libraries) -> Result<bool> {
    let call = libs.hccl.HcclGroupStatusGet()?;
    let mut open = 0;
    // SAFETY: the call writes one byte.
    let code = unsafe { call(&raw mut open) };
    check_hccl(libs, "HcclGroupStatusGet", code)?;
    Ok(open != 0)
}

fn check_rank(symbol: &'static str, rank: u32, ranks: u32) -> Result<()> {
    if rank < ranks {
        return Ok(());
    }
    Err(Error::argument(symbol, format!("rank {rank} of {ranks} ranks: ranks count from 0")))
}

calls! { hccl, check_hccl;
    /// Destroys a communicator whose streams are synchronised. `E_AGAIN` means that it is at work and still alive.
    unsafe fn comm_destroy = HcclCommDestroy(comm: HcclComm);
    /// The number of ranks.
    unsafe fn rank_size = HcclGetRankSize(comm: HcclComm; out u32 = 0);
    /// This rank.
    unsafe fn rank_id = HcclGetRankId(comm: HcclComm; out u32 = 0);
    /// An RDMA error of the communicator (`E_REMOTE`), or success. A dead peer or a timeout does not show here.
    unsafe fn comm_async_error = HcclGetCommAsyncError(comm: HcclComm; out HcclResult = HcclResult::SUCCESS);
    /// Suspends a communicator after a memory fault.
    unsafe fn comm_suspend = HcclCommSuspend(comm: HcclComm);
    /// Resumes a communicator after a memory fault.
    unsafe fn comm_resume = HcclCommResume(comm: HcclComm);
    /// Begins a group.
    fn group_start = HcclGroupStart();
    /// Ends a group and starts its calls.
    unsafe fn group_end = HcclGroupEnd();
    /// Makes the stream wait for all ranks.
    unsafe fn barrier = HcclBarrier(comm: HcclComm, stream: AclrtStream);

    /// Combines `count` elements of every rank, for every rank.
    unsafe fn all_reduce = HcclAllReduce(send: *mut c_void, recv: *mut c_void, count: u64, data_type: HcclDataType,
        op: HcclReduceOp, comm: HcclComm, stream: AclrtStream);
    /// Copies the root's `count` elements to every rank.
    unsafe fn broadcast = HcclBroadcast(buf: *mut c_void, count: u64, data_type: HcclDataType, root: u32,
        comm: HcclComm, stream: AclrtStream);
    /// Combines, and gives rank i block i of `recv_count` elements.
    unsafe fn reduce_scatter = HcclReduceScatter(send: *mut c_void, recv: *mut c_void, recv_count: u64,
        data_type: HcclDataType, op: HcclReduceOp, comm: HcclComm, stream: AclrtStream);
    /// As [`reduce_scatter`] with blocks of unequal length.
    unsafe fn reduce_scatter_v = HcclReduceScatterV(send: *mut c_void, send_counts: *const c_void,
        send_displs: *const c_void, recv: *mut c_void, recv_count: u64, data_type: HcclDataType, op: HcclReduceOp,
        comm: HcclComm, stream: AclrtStream);
    /// Gives rank i block i of the root's elements.
    unsafe fn scatter = HcclScatter(send: *mut c_void, recv: *mut c_void, recv_count: u64, data_type: HcclDataType,
        root: u32, comm: HcclComm, stream: AclrtStream);
    /// Gives every rank the `send_count` elements of all.
    unsafe fn all_gather = HcclAllGather(send: *mut c_void, recv: *mut c_void, send_count: u64,
        data_type: HcclDataType, comm: HcclComm, stream: AclrtStream);
    /// As [`all_gather`] with blocks of unequal length.
    unsafe fn all_gather_v = HcclAllGatherV(send: *mut c_void, send_count: u64, recv: *mut c_void,
        recv_counts: *const c_void, recv_displs: *const c_void, data_type: HcclDataType, comm: HcclComm,
        stream: AclrtStream);
    /// Combines `count` elements of every rank, for the root.
    unsafe fn reduce = HcclReduce(send: *mut c_void, recv: *mut c_void, count: u64, data_type: HcclDataType,
        op: HcclReduceOp, root: u32, comm: HcclComm, stream: AclrtStream);
    /// Sends block j to rank j, receives block i from rank i. The buffers must differ.
    unsafe fn all_to_all = HcclAlltoAll(send: *const c_void, send_count: u64, send_type: HcclDataType,
        recv: *const c_void, recv_count: u64, recv_type: HcclDataType, comm: HcclComm, stream: AclrtStream);
    /// As [`all_to_all`] with blocks of unequal length.
    unsafe fn all_to_all_v = HcclAlltoAllV(send: *const c_void, send_counts: *const c_void, send_displs: *const c_void,
        send_type: HcclDataType, recv: *const c_void, recv_counts: *const c_void, recv_displs: *const c_void,
        recv_type: HcclDataType, comm: HcclComm, stream: AclrtStream);
    /// As [`all_to_all_v`] with one matrix of counts.
    unsafe fn all_to_all_vc = HcclAlltoAllVC(send: *const c_void, send_count_matrix: *const c_void,
        send_type: HcclDataType, recv: *const c_void, recv_type: HcclDataType, comm: HcclComm, stream: AclrtStream);
    /// Sends to a rank.
    unsafe fn send = HcclSend(send: *mut c_void, count: u64, data_type: HcclDataType, dest: u32, comm: HcclComm,
        stream: AclrtStream);
    /// Receives from a rank.
    unsafe fn recv = HcclRecv(recv: *mut c_void, count: u64, data_type: HcclDataType, src: u32, comm: HcclComm,
        stream: AclrtStream);
    /// Sends and receives that do not block one another.
    unsafe fn batch_send_recv = HcclBatchSendRecv(items: *mut HcclSendRecvItem, item_num: u32, comm: HcclComm,
        stream: AclrtStream);
}
