//! Types of HCCL.

use std::ffi::{c_char, c_void};

use super::codes::{codes, handles};

handles! {
    /// An HCCL communicator.
    HcclComm;
    /// A window of symmetric memory.
    HcclCommSymWindow;
}

codes! {
    /// `HcclResult`: what an HCCL call returns. 22 and later are absent before CANN 8.0.0, 1041 before 8.5.
    HcclResult(i32) {
        SUCCESS = 0, "HCCL_SUCCESS", "the call succeeded";
        E_PARA = 1, "HCCL_E_PARA", "an argument is not valid",
            "all ranks must pass the same count, type, operation and root; buffers of all-to-all must differ";
        E_PTR = 2, "HCCL_E_PTR", "a pointer is null";
        E_MEMORY = 3, "HCCL_E_MEMORY", "memory could not be had or used",
            "free memory or lower HCCL_BUFFSIZE: each communicator holds twice that many MB";
        E_INTERNAL = 4, "HCCL_E_INTERNAL", "HCCL failed inside", "see the text and the plog files";
        E_NOT_SUPPORT = 5, "HCCL_E_NOT_SUPPORT", "this chip or this version cannot do that",
            "compare the element type and the operation with the table of the chip";
        E_NOT_FOUND = 6, "HCCL_E_NOT_FOUND", "something asked for does not exist";
        E_UNAVAIL = 7, "HCCL_E_UNAVAIL", "a resource is taken", "see EI0007, EI0019 and EI0020 in the text";
        E_SYSCALL = 8, "HCCL_E_SYSCALL", "a system call failed";
        E_TIMEOUT = 9, "HCCL_E_TIMEOUT", "ranks did not meet in time",
            "find the rank that did not call; HCCL_CONNECT_TIMEOUT (120 s) bounds set-up and the first call of a kind";
        E_OPEN_FILE_FAILURE = 10, "HCCL_E_OPEN_FILE_FAILURE", "a file could not be opened", "check the rank table's path";
        E_TCP_CONNECT = 11, "HCCL_E_TCP_CONNECT", "a TCP connection could not be made",
            "name the right interface with HCCL_SOCKET_IFNAME or HCCL_IF_IP and open its ports";
        E_ROCE_CONNECT = 12, "HCCL_E_ROCE_CONNECT", "an RDMA connection could not be made",
            "check that the devices' network cards reach one another";
        E_TCP_TRANSFER = 13, "HCCL_E_TCP_TRANSFER", "a TCP transfer failed", "a peer may have died: see its log";
        E_ROCE_TRANSFER = 14, "HCCL_E_ROCE_TRANSFER", "an RDMA transfer failed", "a peer may have died: see its log";
        E_RUNTIME = 15, "HCCL_E_RUNTIME", "the runtime below HCCL failed", "see the text for the runtime's own code";
        E_DRV = 16, "HCCL_E_DRV", "the driver failed", "see npu-smi info and the driver's log";
        E_PROFILING = 17, "HCCL_E_PROFILING", "profiling failed";
        E_CCE = 18, "HCCL_E_CCE", "a kernel could not be prepared or launched";
        E_NETWORK = 19, "HCCL_E_NETWORK", "the network failed",
            "name the right interface with HCCL_SOCKET_IFNAME or HCCL_IF_IP";
        E_AGAIN = 20, "HCCL_E_AGAIN", "the communicator is busy", "try again once its operation is over";
        E_REMOTE = 21, "HCCL_E_REMOTE", "a device of a peer reported an RDMA error",
            "the communicator is lost: destroy it and build a new one";
        E_SUSPENDING = 22, "HCCL_E_SUSPENDING", "the communicator is suspended", "resume it first";
        E_OPRETRY_FAIL = 23, "HCCL_E_OPRETRY_FAIL", "running the operation again did not help",
            "the communicator is lost: destroy it and build a new one";
        E_OOM = 24, "HCCL_E_OOM", "device memory is exhausted",
            "free memory or lower HCCL_BUFFSIZE: each communicator holds twice that many MB";
        E_IN_STATUS = 1041, "HCCL_E_IN_STATUS", "the communicator is in a state that forbids the call";
    }
}

codes! {
    /// `HcclDataType`: the type of an element. The order is the interface's own; 13 is not used.
    HcclDataType(i32) {
        INT8 = 0, "HCCL_DATA_TYPE_INT8", "signed, 1 byte";
        INT16 = 1, "HCCL_DATA_TYPE_INT16", "signed, 2 bytes";
        INT32 = 2, "HCCL_DATA_TYPE_INT32", "signed, 4 bytes";
        FP16 = 3, "HCCL_DATA_TYPE_FP16", "IEEE half, 2 bytes";
        FP32 = 4, "HCCL_DATA_TYPE_FP32", "IEEE single, 4 bytes";
        INT64 = 5, "HCCL_DATA_TYPE_INT64", "signed, 8 bytes";
        UINT64 = 6, "HCCL_DATA_TYPE_UINT64", "unsigned, 8 bytes";
        UINT8 = 7, "HCCL_DATA_TYPE_UINT8", "unsigned, 1 byte";
        UINT16 = 8, "HCCL_DATA_TYPE_UINT16", "unsigned, 2 bytes";
        UINT32 = 9, "HCCL_DATA_TYPE_UINT32", "unsigned, 4 bytes";
        FP64 = 10, "HCCL_DATA_TYPE_FP64", "IEEE double, 8 bytes";
        BFP16 = 11, "HCCL_DATA_TYPE_BFP16", "bfloat16, 2 bytes";
        INT128 = 12, "HCCL_DATA_TYPE_INT128", "signed, 16 bytes";
        HIF8 = 14, "HCCL_DATA_TYPE_HIF8", "the vendor's 8-bit float, 1 byte";
        FP8E4M3 = 15, "HCCL_DATA_TYPE_FP8E4M3", "8-bit float, 4 exponent and 3 fraction bits, 1 byte";
        FP8E5M2 = 16, "HCCL_DATA_TYPE_FP8E5M2", "8-bit float, 5 exponent and 2 fraction bits, 1 byte";
        FP8E8M0 = 17, "HCCL_DATA_TYPE_FP8E8M0", "8-bit scale, exponent only, 1 byte";
        RESERVED = 255, "HCCL_DATA_TYPE_RESERVED", "no type";
    }
}

impl HcclDataType {
    /// Bytes of one element, or `None` for a type unknown here.
    #[must_use]
    pub const fn size(self) -> Option<usize> {
        match self {
            Self::INT8 | Self::UINT8 | Self::HIF8 | Self::FP8E4M3 | Self::FP8E5M2 | Self::FP8E8M0 => Some(1),
            Self::INT16 | Self::UINT16 | Self::FP16 | Self::BFP16 => Some(2),
            Self::INT32 | Self::UINT32 | Self::FP32 => Some(4),
            Self::INT64 | Self::UINT64 | Self::FP64 => Some(8),
            Self::INT128 => Some(16),
            _ => None,
        }
    }
}

codes! {
    /// `HcclReduceOp`: how elements are combined. There is no average.
    HcclReduceOp(i32) {
        SUM = 0, "HCCL_REDUCE_SUM", "the sum";
        PROD = 1, "HCCL_REDUCE_PROD", "the product";
        MAX = 2, "HCCL_REDUCE_MAX", "the greatest";
        MIN = 3, "HCCL_REDUCE_MIN", "the least";
        RESERVED = 255, "HCCL_REDUCE_RESERVED", "no operation (4 in old versions)";
    }
}

codes! {
    /// `HcclSendRecvType`: the direction of one entry of `HcclBatchSendRecv`.
    HcclSendRecvType(i32) {
        SEND = 0, "HCCL_SEND", "this rank sends";
        RECV = 1, "HCCL_RECV", "this rank receives";
    }
}

codes! {
    /// `HcclConfig`: a setting of the whole process.
    HcclConfig(i32) {
        DETERMINISTIC = 0, "HCCL_DETERMINISTIC", "0 off, 1 the same bits run by run, 2 also a fixed order";
    }
}

codes! {
    /// `HcclConfigType`: what `HcclConfigGetInfo` is asked for.
    HcclConfigType(i32) {
        INVALID = -1, "HCCL_CONFIG_TYPE_INVALID", "nothing";
        OP_EXPANSION_MODE = 0, "HCCL_CONFIG_TYPE_OP_EXPANSION_MODE", "an HcclOpExpansionMode (4 bytes)";
        HCCL_ALGO = 1, "HCCL_CONFIG_TYPE_HCCL_ALGO", "the algorithm text (1600 bytes)";
        UB_MULTI_CHANNEL_NUM = 2, "HCCL_CONFIG_TYPE_UB_MULTI_CHANNEL_NUM", "the channels a link has (4 bytes)";
    }
}

codes! {
    /// `HcclOpExpansionMode`: the answer of `HcclConfigGetInfo`. These are not the numbers of the field
    /// `op_expansion_mode` in [`HcclCommConfig`](super::HcclCommConfig).
    HcclOpExpansionMode(i32) {
        INVALID = -1, "HCCL_OP_EXPANSION_MODE_INVALID", "none";
        AI_CPU = 0, "HCCL_OP_EXPANSION_MODE_AI_CPU", "the device's processor unfolds operations";
        AIV = 1, "HCCL_OP_EXPANSION_MODE_AIV", "vector cores run operations";
        HOST = 2, "HCCL_OP_EXPANSION_MODE_HOST", "the host unfolds operations";
        HOST_TS = 3, "HCCL_OP_EXPANSION_MODE_HOST_TS", "the host unfolds operations for the task scheduler";
        CCU_MS = 4, "HCCL_OP_EXPANSION_MODE_CCU_MS", "the collective unit, through its own memory";
        CCU_SCHED = 5, "HCCL_OP_EXPANSION_MODE_CCU_SCHED", "the collective unit, as a scheduler";
        AIV_ONLY = 6, "HCCL_OP_EXPANSION_AIV_ONLY", "vector cores only, or an error";
    }
}

codes! {
    /// `HcclCommStatus`: the state of a communicator.
    HcclCommStatus(i32) {
        READY = 0, "HCCL_COMM_STATUS_READY", "the communicator can be used";
        SUSPENDING = 1, "HCCL_COMM_STATUS_SUSPENDING", "the communicator is suspended";
        INVALID = 254, "HCCL_COMM_STATUS_INVALID", "the communicator cannot be used";
        RESERVED = 255, "HCCL_COMM_STATUS_RESERVED", "no state";
    }
}

codes! {
    /// `HcclCommStatePhase`: the moment at which an [`HcclCommStateCallback`] is called.
    HcclCommStatePhase(i32) {
        INVALID = -1, "HCCL_COMM_STATE_PHASE_INVALID", "none";
        DESTROY_PRE = 0, "HCCL_COMM_STATE_PHASE_DESTROY_PRE", "a communicator is about to be destroyed";
        DESTROY_POST = 1, "HCCL_COMM_STATE_PHASE_DESTROY_POST", "a communicator has been destroyed";
        RESUME_PRE = 2, "HCCL_COMM_STATE_PHASE_RESUME_PRE", "a communicator is about to be resumed";
        RESUME_POST = 3, "HCCL_COMM_STATE_PHASE_RESUME_POST", "a communicator has been resumed";
    }
}

codes! {
    /// The kinds of operations as numbers in logs and in the text of EI0005 (`HcclCMDType`).
    HcclCmdType(i32) {
        BROADCAST = 1, "BROADCAST", "HcclBroadcast";
        ALLREDUCE = 2, "ALLREDUCE", "HcclAllReduce";
        REDUCE = 3, "REDUCE", "HcclReduce";
        SEND = 4, "SEND", "HcclSend";
        RECEIVE = 5, "RECEIVE", "HcclRecv";
        ALLGATHER = 6, "ALLGATHER", "HcclAllGather";
        REDUCE_SCATTER = 7, "REDUCE_SCATTER", "HcclReduceScatter";
        ALLTOALLV = 8, "ALLTOALLV", "HcclAlltoAllV";
        ALLTOALLVC = 9, "ALLTOALLVC", "HcclAlltoAllVC";
        ALLTOALL = 10, "ALLTOALL", "HcclAlltoAll";
        GATHER = 11, "GATHER", "a gather inside HCCL";
        SCATTER = 12, "SCATTER", "HcclScatter";
        BATCH_SEND_RECV = 13, "BATCH_SEND_RECV", "HcclBatchSendRecv";
        BATCH_PUT = 14, "BATCH_PUT", "one-sided puts";
        BATCH_GET = 15, "BATCH_GET", "one-sided gets";
        ALLGATHER_V = 16, "ALLGATHER_V", "HcclAllGatherV";
        REDUCE_SCATTER_V = 17, "REDUCE_SCATTER_V", "HcclReduceScatterV";
        BATCH_WRITE = 18, "BATCH_WRITE", "one-sided writes";
        HALF_ALLTOALLV = 20, "HALF_ALLTOALLV", "half of an all-to-all";
        FINALIZE = 100, "FINALIZE", "the end of a communicator";
    }
}

/// The greatest number of elements one HCCL call takes: 2^35 - 1.
pub const HCCL_MAX_COUNT: u64 = 0x7_FFFF_FFFF;

/// Bytes `HcclGetCommName` may write, with the zero byte.
pub const HCCL_COMM_NAME_LEN: usize = 128;

/// The `subCommId` by which a rank says that it stays out of a new sub-communicator.
pub const HCCL_SUB_COMM_NOT_MEMBER: u64 = 0xFFFF_FFFF;

/// `HcclRootInfo`: 4108 plain bytes by which the ranks of a new communicator find its root, to be carried from the root
/// to the others over any channel.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HcclRootInfo {
    /// The bytes; only HCCL knows their meaning.
    pub internal: [u8; Self::LEN],
}

impl HcclRootInfo {
    /// Bytes of a root info in every version.
    pub const LEN: usize = 4108;

    /// All bytes zero: what to hand to `HcclGetRootInfo`.
    #[must_use]
    pub const fn zeroed() -> Self {
        Self { internal: [0; Self::LEN] }
    }

    /// The bytes, to be sent to the other ranks.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.internal
    }
}

impl From<[u8; HcclRootInfo::LEN]> for HcclRootInfo {
    fn from(internal: [u8; HcclRootInfo::LEN]) -> Self {
        Self { internal }
    }
}

impl std::fmt::Debug for HcclRootInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HcclRootInfo({} bytes)", Self::LEN)
    }
}

const _: () = assert!(size_of::<HcclRootInfo>() == 4108 && align_of::<HcclRootInfo>() == 1);

/// `HcclSendRecvItem`: one entry of `HcclBatchSendRecv`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HcclSendRecvItem {
    /// Send or receive.
    pub kind: HcclSendRecvType,
    /// Device memory to send from or to receive into.
    pub buf: *mut c_void,
    /// Elements, at most [`HCCL_MAX_COUNT`].
    pub count: u64,
    /// The type of an element.
    pub data_type: HcclDataType,
    /// The peer's rank in the communicator.
    pub remote_rank: u32,
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<HcclSendRecvItem>() == 32 && align_of::<HcclSendRecvItem>() == 8);
    assert!(offset_of!(HcclSendRecvItem, kind) == 0 && offset_of!(HcclSendRecvItem, buf) == 8);
    assert!(offset_of!(HcclSendRecvItem, count) == 16 && offset_of!(HcclSendRecvItem, data_type) == 24);
    assert!(offset_of!(HcclSendRecvItem, remote_rank) == 28);
};

/// `HcclConfigValue`: the value of an [`HcclConfig`], a union of 4 bytes that crosses the interface by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub union HcclConfigValue {
    /// The only member there is.
    pub value: i32,
}

const _: () = assert!(size_of::<HcclConfigValue>() == 4 && align_of::<HcclConfigValue>() == 4);

/// A function HCCL calls when a communicator changes its state.
pub type HcclCommStateCallback =
    Option<unsafe extern "C" fn(comm: HcclComm, phase: HcclCommStatePhase, args: *mut c_void) -> HcclResult>;

/// Copies the text of a C character array up to its first zero byte, or all of it when there is none.
#[must_use]
pub fn text_of(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().take_while(|c| **c != 0).map(|c| c.to_ne_bytes()[0]).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
