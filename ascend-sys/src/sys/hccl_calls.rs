//! The functions of HCCL: operators, communicators, control.

#![expect(unsafe_code, reason = "addresses found in a library become typed functions here")]

use std::ffi::{c_char, c_void};

use super::{
    AclrtDrvMemHandle, AclrtStream, HcclComm, HcclCommConfig, HcclCommStateCallback, HcclCommStatus, HcclCommSymWindow,
    HcclConfig, HcclConfigType, HcclConfigValue, HcclDataType, HcclReduceOp, HcclResult, HcclRootInfo,
    HcclSendRecvItem, table::function_table,
};

function_table! {
    /// What `libhccl` and `libhcomm` export. Every function may be absent.
    ///
    /// Counts are elements, not bytes. Operators enqueue on the stream and return, but the first call of each kind on a
    /// communicator meets its peers inside the call.
    HcclTable;

    /// Combines `count` elements of every rank; every rank gets the result. The buffers may be the same.
    fn HcclAllReduce(send: *mut c_void, recv: *mut c_void, count: u64, data_type: HcclDataType, op: HcclReduceOp,
        comm: HcclComm, stream: AclrtStream) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Copies the root's `count` elements to every rank.
    fn HcclBroadcast(buf: *mut c_void, count: u64, data_type: HcclDataType, root: u32, comm: HcclComm,
        stream: AclrtStream) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Combines the ranks' `recv_count * ranks` elements; rank i gets block i.
    fn HcclReduceScatter(send: *mut c_void, recv: *mut c_void, recv_count: u64, data_type: HcclDataType,
        op: HcclReduceOp, comm: HcclComm, stream: AclrtStream) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// As `HcclReduceScatter` with blocks of unequal length: host arrays of one `u64` a rank. Buffers must differ.
    fn HcclReduceScatterV(send: *mut c_void, send_counts: *const c_void, send_displs: *const c_void, recv: *mut c_void,
        recv_count: u64, data_type: HcclDataType, op: HcclReduceOp, comm: HcclComm, stream: AclrtStream)
        -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Gives rank i block i of the root's `recv_count * ranks` elements. `send` may be null off the root.
    fn HcclScatter(send: *mut c_void, recv: *mut c_void, recv_count: u64, data_type: HcclDataType, root: u32,
        comm: HcclComm, stream: AclrtStream) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Gives every rank the `send_count` elements of all, in the order of ranks.
    fn HcclAllGather(send: *mut c_void, recv: *mut c_void, send_count: u64, data_type: HcclDataType, comm: HcclComm,
        stream: AclrtStream) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// As `HcclAllGather` with blocks of unequal length: host arrays of one `u64` a rank. Buffers must differ.
    fn HcclAllGatherV(send: *mut c_void, send_count: u64, recv: *mut c_void, recv_counts: *const c_void,
        recv_displs: *const c_void, data_type: HcclDataType, comm: HcclComm, stream: AclrtStream)
        -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Combines `count` elements of every rank; the root gets the result.
    fn HcclReduce(send: *mut c_void, recv: *mut c_void, count: u64, data_type: HcclDataType, op: HcclReduceOp,
        root: u32, comm: HcclComm, stream: AclrtStream) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Sends block j to rank j and receives block i from rank i. Counts and types of both sides must be equal.
    fn HcclAlltoAll(send: *const c_void, send_count: u64, send_type: HcclDataType, recv: *const c_void,
        recv_count: u64, recv_type: HcclDataType, comm: HcclComm, stream: AclrtStream) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// As `HcclAlltoAll` with blocks of unequal length: host arrays of one `u64` a rank. Buffers must differ.
    fn HcclAlltoAllV(send: *const c_void, send_counts: *const c_void, send_displs: *const c_void,
        send_type: HcclDataType, recv: *const c_void, recv_counts: *const c_void, recv_displs: *const c_void,
        recv_type: HcclDataType, comm: HcclComm, stream: AclrtStream) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// As `HcclAlltoAllV` with one host matrix of counts, the same on all ranks: row i is what rank i sends.
    fn HcclAlltoAllVC(send: *const c_void, send_count_matrix: *const c_void, send_type: HcclDataType,
        recv: *const c_void, recv_type: HcclDataType, comm: HcclComm, stream: AclrtStream)
        -> HcclResult, since "CANN 8.5.0 or before";
    /// Sends to a rank; completes when that rank receives.
    fn HcclSend(send: *mut c_void, count: u64, data_type: HcclDataType, dest: u32, comm: HcclComm, stream: AclrtStream)
        -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Receives from a rank.
    fn HcclRecv(recv: *mut c_void, count: u64, data_type: HcclDataType, src: u32, comm: HcclComm, stream: AclrtStream)
        -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Sends and receives that do not block one another.
    fn HcclBatchSendRecv(items: *mut HcclSendRecvItem, item_num: u32, comm: HcclComm, stream: AclrtStream)
        -> HcclResult, since "CANN 8.1.RC1 or before";

    /// Starts a root: listens, and tells how to be reached. One `HcclCommInitRootInfo` must follow.
    fn HcclGetRootInfo(info: *mut HcclRootInfo) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Builds a communicator; every rank calls, the root too.
    fn HcclCommInitRootInfo(ranks: u32, info: *const HcclRootInfo, rank: u32, comm: *mut HcclComm)
        -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Builds a communicator with a configuration.
    fn HcclCommInitRootInfoConfig(ranks: u32, info: *const HcclRootInfo, rank: u32, config: *const HcclCommConfig,
        comm: *mut HcclComm) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Starts one of several roots.
    fn HcclGetRootInfoScalable(info: *mut HcclRootInfo) -> HcclResult, since "a version after CANN 9.0";
    /// Builds a communicator by several roots; `ext_roots` must be zero.
    fn HcclCommInitRootInfoScalable(ranks: u32, roots: u32, infos: *const HcclRootInfo, rank: u32, ext_roots: u32,
        config: *const HcclCommConfig, comm: *mut HcclComm) -> HcclResult, since "a version after CANN 9.0";
    /// Builds a communicator by a rank table, whose path has at most 4096 bytes.
    fn HcclCommInitClusterInfo(path: *const c_char, rank: u32, comm: *mut HcclComm) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Builds a communicator by a rank table with a configuration.
    fn HcclCommInitClusterInfoConfig(path: *const c_char, rank: u32, config: *mut HcclCommConfig, comm: *mut HcclComm)
        -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Builds a communicator of some ranks of a global one. Others call with null ids and
    /// [`HCCL_SUB_COMM_NOT_MEMBER`](super::HCCL_SUB_COMM_NOT_MEMBER).
    fn HcclCreateSubCommConfig(comm: *mut HcclComm, rank_num: u32, rank_ids: *mut u32, sub_comm_id: u64,
        sub_comm_rank: u32, config: *mut HcclCommConfig, sub_comm: *mut HcclComm) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Builds communicators of all the devices of one process.
    fn HcclCommInitAll(devices_num: u32, devices: *mut i32, comms: *mut HcclComm) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Destroys a communicator. Its streams must be synchronised; `E_AGAIN` means it is at work.
    fn HcclCommDestroy(comm: HcclComm) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Tells how many ranks there are.
    fn HcclGetRankSize(comm: HcclComm, size: *mut u32) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Tells this rank.
    fn HcclGetRankId(comm: HcclComm, rank: *mut u32) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Writes the communicator's name into [`HCCL_COMM_NAME_LEN`](super::HCCL_COMM_NAME_LEN) bytes.
    fn HcclGetCommName(comm: HcclComm, name: *mut c_char) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Makes the stream wait until all ranks have called; the host goes on.
    fn HcclBarrier(comm: HcclComm, stream: AclrtStream) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Tells an RDMA error of the communicator, and no other kind of failure.
    fn HcclGetCommAsyncError(comm: HcclComm, error: *mut HcclResult) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// The library's name of a return code, or null.
    fn HcclGetErrorString(code: HcclResult) -> *const c_char, since "CANN 8.1.RC1 or before";
    /// Tells which settings [`HcclCommConfig`] may have: those numbered below the answer.
    fn HcclGetCommConfigCapability() -> u32, since "CANN 8.1.RC1 or before";
    /// Changes a setting of the process.
    fn HcclSetConfig(config: HcclConfig, value: HcclConfigValue) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Tells a setting of the process.
    fn HcclGetConfig(config: HcclConfig, value: *mut HcclConfigValue) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Tells a setting of a communicator.
    fn HcclConfigGetInfo(comm: HcclComm, kind: HcclConfigType, len: u32, info: *mut c_void)
        -> HcclResult, since "CANN 9.1 or 9.2";

    /// Suspends a communicator after a memory fault.
    fn HcclCommSuspend(comm: HcclComm) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Resumes a communicator after a memory fault.
    fn HcclCommResume(comm: HcclComm) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Reserves addresses for copies without a bounce buffer.
    fn HcclCommSetMemoryRange(comm: HcclComm, base: *mut c_void, size: usize, alignment: usize, flags: u64)
        -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Undoes `HcclCommSetMemoryRange`.
    fn HcclCommUnsetMemoryRange(comm: HcclComm, base: *mut c_void) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Makes physical memory of such a range known.
    fn HcclCommActivateCommMemory(comm: HcclComm, addr: *mut c_void, size: usize, offset: usize,
        handle: AclrtDrvMemHandle, flags: u64) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Undoes `HcclCommActivateCommMemory`.
    fn HcclCommDeactivateCommMemory(comm: HcclComm, addr: *mut c_void) -> HcclResult, since "CANN 8.1.RC1 or before";
    /// Chooses main or backup network cards of some ranks; the flags are bytes that are 0 or 1.
    fn HcclCommWorkingDevNicSet(comm: HcclComm, ranks: *mut u32, use_backup: *mut u8, rank_num: u32)
        -> HcclResult, since "CANN 8.5.0 or before";
    /// Registers memory for one-sided access.
    fn HcclCommRegister(comm: HcclComm, addr: *mut c_void, size: u64, handle: *mut *mut c_void, flag: u32)
        -> HcclResult, since "CANN 9.0.0 or before";
    /// Undoes `HcclCommRegister`.
    fn HcclCommDeregister(comm: HcclComm, handle: *mut c_void) -> HcclResult, since "CANN 9.0.0 or before";
    /// Tells peers about registered memory.
    fn HcclCommExchangeMem(comm: HcclComm, handle: *mut c_void, peers: *mut u32, peer_num: u32)
        -> HcclResult, since "CANN 9.0.0 or before";

    /// Begins a group: the calls up to `HcclGroupEnd` start together.
    fn HcclGroupStart() -> HcclResult, since "CANN 9.0.0";
    /// Ends a group and starts its calls.
    fn HcclGroupEnd() -> HcclResult, since "CANN 9.0.0";
    /// Tells whether a group is open, as a byte that is 0 or 1.
    fn HcclGroupStatusGet(enabled: *mut u8) -> HcclResult, since "CANN 9.1 or 9.2";
    /// Finds a communicator by its name.
    fn HcclCommGetHandleWithName(name: *const c_char, comm: *mut HcclComm) -> HcclResult, since "CANN 9.0.0";
    /// Tells the state of the communicator of this name.
    fn HcclCommGetStatus(name: *const c_char, status: *mut HcclCommStatus) -> HcclResult, since "CANN 9.1 or 9.2";
    /// Has a function called when communicators change their state.
    fn HcclCommRegCommStateCallback(name: *const c_char, callback: HcclCommStateCallback, args: *mut c_void)
        -> HcclResult, since "CANN 9.1 or 9.2";
    /// Registers a window of symmetric memory; the flag must be 1.
    fn HcclCommSymWinRegister(comm: HcclComm, addr: *mut c_void, size: u64, window: *mut HcclCommSymWindow, flag: u32)
        -> HcclResult, since "CANN 9.0.0";
    /// Undoes `HcclCommSymWinRegister`.
    fn HcclCommSymWinDeregister(window: HcclCommSymWindow) -> HcclResult, since "CANN 9.0.0";
    /// Finds the window an address lies in, and the offset inside it.
    fn HcclCommSymWinGet(comm: HcclComm, addr: *mut c_void, size: usize, window: *mut HcclCommSymWindow,
        offset: *mut usize) -> HcclResult, since "CANN 9.0.0";
    /// Tells a peer's address of a window; for code on the device only.
    fn HcclSymWinGetPeerPointer(window: HcclCommSymWindow, offset: usize, peer: u32, addr: *mut *mut c_void)
        -> HcclResult, since "CANN 9.2 or before";
}
