//! Types of AscendCL's runtime.

use std::ffi::c_char;

use super::codes::{codes, handles};

handles! {
    /// An AscendCL context: the owner of streams, events and memory of one device.
    AclrtContext;
    /// An AscendCL stream: a queue whose entries run in order on the device.
    AclrtStream;
    /// An AscendCL event: a point in a stream that can be waited for and timed.
    AclrtEvent;
    /// A handle of physical device memory, as `HcclCommActivateCommMemory` takes it.
    AclrtDrvMemHandle;
}

codes! {
    /// `aclrtRunMode`: where the program runs.
    AclrtRunMode(i32) {
        DEVICE = 0, "ACL_DEVICE", "the program runs on the device's own processor";
        HOST = 1, "ACL_HOST", "the program runs on the host";
    }
}

codes! {
    /// `aclrtMemMallocPolicy`: which pages device memory comes from.
    AclrtMemMallocPolicy(i32) {
        HUGE_FIRST = 0, "ACL_MEM_MALLOC_HUGE_FIRST", "huge pages, or normal ones when there are none";
        HUGE_ONLY = 1, "ACL_MEM_MALLOC_HUGE_ONLY", "huge pages only";
        NORMAL_ONLY = 2, "ACL_MEM_MALLOC_NORMAL_ONLY", "normal pages only";
        HUGE_FIRST_P2P = 3, "ACL_MEM_MALLOC_HUGE_FIRST_P2P", "as HUGE_FIRST, reachable from other devices";
        HUGE_ONLY_P2P = 4, "ACL_MEM_MALLOC_HUGE_ONLY_P2P", "as HUGE_ONLY, reachable from other devices";
        NORMAL_ONLY_P2P = 5, "ACL_MEM_MALLOC_NORMAL_ONLY_P2P", "as NORMAL_ONLY, reachable from other devices";
        HUGE1G_ONLY = 6, "ACL_MEM_MALLOC_HUGE1G_ONLY", "pages of 1 GiB only";
        HUGE1G_ONLY_P2P = 7, "ACL_MEM_MALLOC_HUGE1G_ONLY_P2P", "as HUGE1G_ONLY, reachable from other devices";
    }
}

codes! {
    /// `aclrtMemcpyKind`: the direction of a copy.
    AclrtMemcpyKind(i32) {
        HOST_TO_HOST = 0, "ACL_MEMCPY_HOST_TO_HOST", "host memory to host memory";
        HOST_TO_DEVICE = 1, "ACL_MEMCPY_HOST_TO_DEVICE", "host memory to device memory";
        DEVICE_TO_HOST = 2, "ACL_MEMCPY_DEVICE_TO_HOST", "device memory to host memory";
        DEVICE_TO_DEVICE = 3, "ACL_MEMCPY_DEVICE_TO_DEVICE", "device memory to device memory";
        DEFAULT = 4, "ACL_MEMCPY_DEFAULT", "the library finds the direction from the addresses";
        HOST_TO_BUF_TO_DEVICE = 5, "ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE", "host to device through a library buffer";
        INNER_DEVICE_TO_DEVICE = 6, "ACL_MEMCPY_INNER_DEVICE_TO_DEVICE", "within one device";
        INTER_DEVICE_TO_DEVICE = 7, "ACL_MEMCPY_INTER_DEVICE_TO_DEVICE", "between two devices";
    }
}

codes! {
    /// `aclrtMemAttr`: which memory `aclrtGetMemInfo` measures.
    AclrtMemAttr(i32) {
        DDR = 0, "ACL_DDR_MEM", "all DDR";
        HBM = 1, "ACL_HBM_MEM", "all HBM";
        DDR_HUGE = 2, "ACL_DDR_MEM_HUGE", "huge pages of DDR";
        DDR_NORMAL = 3, "ACL_DDR_MEM_NORMAL", "normal pages of DDR";
        HBM_HUGE = 4, "ACL_HBM_MEM_HUGE", "huge pages of HBM";
        HBM_NORMAL = 5, "ACL_HBM_MEM_NORMAL", "normal pages of HBM";
    }
}

codes! {
    /// `aclrtStreamStatus`, of `aclrtStreamQuery`. Its two values are the reverse of [`AclrtEventRecordedStatus`].
    AclrtStreamStatus(i32) {
        COMPLETE = 0, "ACL_STREAM_STATUS_COMPLETE", "everything enqueued has run";
        NOT_READY = 1, "ACL_STREAM_STATUS_NOT_READY", "work is left in the stream";
    }
}

codes! {
    /// `aclrtEventRecordedStatus`, of `aclrtQueryEventStatus`. Its two values are the reverse of [`AclrtStreamStatus`].
    AclrtEventRecordedStatus(i32) {
        NOT_READY = 0, "ACL_EVENT_RECORDED_STATUS_NOT_READY", "the stream has not reached the event";
        COMPLETE = 1, "ACL_EVENT_RECORDED_STATUS_COMPLETE", "the stream has passed the event";
    }
}

codes! {
    /// `aclrtDeviceStatus`, of `aclrtQueryDeviceStatus`.
    AclrtDeviceStatus(i32) {
        NORMAL = 0, "ACL_RT_DEVICE_STATUS_NORMAL", "the device works";
        ABNORMAL = 1, "ACL_RT_DEVICE_STATUS_ABNORMAL", "the device does not work", "see npu-smi info and its health column";
    }
}

codes! {
    /// `aclCANNPackageName`: the part of CANN whose version `aclsysGetCANNVersion` tells.
    AclCannPackageName(i32) {
        CANN = 0, "ACL_PKG_NAME_CANN", "CANN as a whole";
        RUNTIME = 1, "ACL_PKG_NAME_RUNTIME", "the runtime";
        COMPILER = 2, "ACL_PKG_NAME_COMPILER", "the compiler";
        HCCL = 3, "ACL_PKG_NAME_HCCL", "HCCL";
        TOOLKIT = 4, "ACL_PKG_NAME_TOOLKIT", "the toolkit";
        OPP = 5, "ACL_PKG_NAME_OPP", "the operator package";
        OPP_KERNEL = 6, "ACL_PKG_NAME_OPP_KERNEL", "the operator kernels";
        DRIVER = 7, "ACL_PKG_NAME_DRIVER", "the driver";
    }
}

/// Flags of `aclrtCreateEventWithFlag`, to be combined with `|`.
pub mod event_flag {
    /// The event orders streams.
    pub const SYNC: u32 = 0x01;
    /// The event follows the progress of a captured stream.
    pub const CAPTURE_STREAM_PROGRESS: u32 = 0x02;
    /// The event carries a time stamp.
    pub const TIME_LINE: u32 = 0x08;
    /// The event is used on the device only.
    pub const DEVICE_USE_ONLY: u32 = 0x10;
    /// The event comes from outside a captured graph.
    pub const EXTERNAL: u32 = 0x20;
    /// The event is shared between processes.
    pub const IPC: u32 = 0x40;
}

/// Flags of `aclrtCreateStreamWithConfig`, to be combined with `|`.
pub mod stream_flag {
    /// Launching is fast, at the price of resources held by the stream.
    pub const FAST_LAUNCH: u32 = 0x01;
    /// Synchronising is fast: the waiting thread spins.
    pub const FAST_SYNC: u32 = 0x02;
    /// Entries stay in the stream after they ran.
    pub const PERSISTENT: u32 = 0x04;
    /// The stream may hold many entries.
    pub const HUGE: u32 = 0x08;
    /// The stream is scheduled by the device's processor.
    pub const CPU_SCHEDULE: u32 = 0x10;
}

/// `aclCANNPackageVersion`: the version of a package, as text and in parts, each ended by a zero byte.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclCannPackageVersion {
    /// The whole version, such as `8.1.RC1`.
    pub version: [c_char; 128],
    /// The first number.
    pub major: [c_char; 64],
    /// The second number.
    pub minor: [c_char; 64],
    /// The release.
    pub release: [c_char; 64],
    /// The patch.
    pub patch: [c_char; 64],
    /// Room for later fields.
    pub reserved: [c_char; 128],
}

impl AclCannPackageVersion {
    /// All bytes zero: what to hand to `aclsysGetCANNVersion`.
    #[must_use]
    pub const fn zeroed() -> Self {
        Self { version: [0; 128], major: [0; 64], minor: [0; 64], release: [0; 64], patch: [0; 64], reserved: [0; 128] }
    }
}

const _: () = assert!(size_of::<AclCannPackageVersion>() == 512 && align_of::<AclCannPackageVersion>() == 1);
