//! The functions of AscendCL that collectives need.

#![expect(unsafe_code, reason = "addresses found in a library become typed functions here")]

use std::ffi::{c_char, c_void};

use super::{
    AclCannPackageName, AclCannPackageVersion, AclError, AclrtContext, AclrtDeviceStatus, AclrtEvent,
    AclrtEventRecordedStatus, AclrtMemAttr, AclrtMemMallocPolicy, AclrtMemcpyKind, AclrtRunMode, AclrtStream,
    AclrtStreamStatus, table::function_table,
};

function_table! {
    /// What `libascendcl` or `libacl_rt` exports, as far as this crate uses it. Every function may be absent.
    AclTable;

    /// Initialises AscendCL for the process; a second call returns `REPEAT_INITIALIZE`. The path may be null.
    fn aclInit(config_path: *const c_char) -> AclError, since "ACL 1.17 or before";
    /// Ends AscendCL for the process, whoever still uses it.
    fn aclFinalize() -> AclError, since "ACL 1.17 or before";
    /// Gives up one use of AscendCL and tells how many are left.
    fn aclFinalizeReference(ref_count: *mut u64) -> AclError, since "ACL 1.17 or before";
    /// Tells the version of the ACL interface, which is not CANN's.
    fn aclrtGetVersion(major: *mut i32, minor: *mut i32, patch: *mut i32) -> AclError, since "ACL 1.17 or before";
    /// The text of this thread's last error, or null. It belongs to the library; reading may consume it.
    fn aclGetRecentErrMsg() -> *const c_char, since "ACL 1.17 or before";
    /// The chip's name, or null. It belongs to the library.
    fn aclrtGetSocName() -> *const c_char, since "ACL 1.17 or before";

    /// Tells how many devices this process sees.
    fn aclrtGetDeviceCount(count: *mut u32) -> AclError, since "ACL 1.17 or before";
    /// Binds this thread to a device and to its default context.
    fn aclrtSetDevice(device: i32) -> AclError, since "ACL 1.17 or before";
    /// Undoes one `aclrtSetDevice`; the last one frees the device's resources.
    fn aclrtResetDevice(device: i32) -> AclError, since "ACL 1.17 or before";
    /// Frees a device's resources whatever the number of `aclrtSetDevice` was.
    fn aclrtResetDeviceForce(device: i32) -> AclError, since "ACL 1.17 or before";
    /// Tells which device this thread is bound to.
    fn aclrtGetDevice(device: *mut i32) -> AclError, since "ACL 1.17 or before";
    /// Tells whether the program runs on the host or on the device.
    fn aclrtGetRunMode(mode: *mut AclrtRunMode) -> AclError, since "ACL 1.17 or before";
    /// Tells the physical number of a logical device.
    fn aclrtGetPhyDevIdByLogicDevId(logic: i32, phy: *mut i32) -> AclError, since "ACL 1.17 or before";
    /// Tells whether a device works.
    fn aclrtQueryDeviceStatus(device: i32, status: *mut AclrtDeviceStatus) -> AclError, since "ACL 1.17 or before";
    /// Waits until everything on this thread's device has run.
    fn aclrtSynchronizeDevice() -> AclError, since "ACL 1.17 or before";
    /// Waits until everything on this thread's device has run, for so many milliseconds.
    fn aclrtSynchronizeDeviceWithTimeout(timeout_ms: i32) -> AclError, since "ACL 1.17 or before";
    /// Aborts the tasks of a device, waiting so many milliseconds.
    fn aclrtDeviceTaskAbort(device: i32, timeout_ms: u32) -> AclError, since "ACL 1.17 or before";

    /// Makes a context and makes it this thread's.
    fn aclrtCreateContext(context: *mut AclrtContext, device: i32) -> AclError, since "ACL 1.17 or before";
    /// Destroys a context made by `aclrtCreateContext`.
    fn aclrtDestroyContext(context: AclrtContext) -> AclError, since "ACL 1.17 or before";
    /// Makes a context this thread's.
    fn aclrtSetCurrentContext(context: AclrtContext) -> AclError, since "ACL 1.17 or before";
    /// Tells this thread's context.
    fn aclrtGetCurrentContext(context: *mut AclrtContext) -> AclError, since "ACL 1.17 or before";

    /// Makes a stream in this thread's context.
    fn aclrtCreateStream(stream: *mut AclrtStream) -> AclError, since "ACL 1.17 or before";
    /// Makes a stream with a priority and [flags](super::stream_flag).
    fn aclrtCreateStreamWithConfig(stream: *mut AclrtStream, priority: u32, flag: u32) -> AclError, since "ACL 1.17 or before";
    /// Destroys a stream once its work has run.
    fn aclrtDestroyStream(stream: AclrtStream) -> AclError, since "ACL 1.17 or before";
    /// Destroys a stream and drops its work.
    fn aclrtDestroyStreamForce(stream: AclrtStream) -> AclError, since "ACL 1.17 or before";
    /// Waits until the stream's work has run; tells the first error of that work.
    fn aclrtSynchronizeStream(stream: AclrtStream) -> AclError, since "ACL 1.17 or before";
    /// Waits until the stream's work has run, for so many milliseconds; -1 waits for ever, 0 only asks.
    fn aclrtSynchronizeStreamWithTimeout(stream: AclrtStream, timeout_ms: i32) -> AclError, since "ACL 1.17 or before";
    /// Tells whether the stream's work has run.
    fn aclrtStreamQuery(stream: AclrtStream, status: *mut AclrtStreamStatus) -> AclError, since "ACL 1.17 or before";
    /// Aborts the stream's work.
    fn aclrtStreamAbort(stream: AclrtStream) -> AclError, since "ACL 1.17 or before";
    /// Makes the stream wait for an event.
    fn aclrtStreamWaitEvent(stream: AclrtStream, event: AclrtEvent) -> AclError, since "ACL 1.17 or before";
    /// Says whether a failed task stops the stream (1) or not (0).
    fn aclrtSetStreamFailureMode(stream: AclrtStream, mode: u64) -> AclError, since "ACL 1.17 or before";

    /// Makes an event.
    fn aclrtCreateEvent(event: *mut AclrtEvent) -> AclError, since "ACL 1.17 or before";
    /// Makes an event with [flags](super::event_flag).
    fn aclrtCreateEventWithFlag(event: *mut AclrtEvent, flag: u32) -> AclError, since "ACL 1.17 or before";
    /// Makes an event with [flags](super::event_flag), without a limit on how many there may be.
    fn aclrtCreateEventExWithFlag(event: *mut AclrtEvent, flag: u32) -> AclError, since "ACL 1.17 or before";
    /// Destroys an event.
    fn aclrtDestroyEvent(event: AclrtEvent) -> AclError, since "ACL 1.17 or before";
    /// Records an event in a stream.
    fn aclrtRecordEvent(event: AclrtEvent, stream: AclrtStream) -> AclError, since "ACL 1.17 or before";
    /// Makes an event unrecorded again, in the stream's order.
    fn aclrtResetEvent(event: AclrtEvent, stream: AclrtStream) -> AclError, since "ACL 1.17 or before";
    /// Tells whether the stream has passed the event.
    fn aclrtQueryEventStatus(event: AclrtEvent, status: *mut AclrtEventRecordedStatus) -> AclError, since "ACL 1.17 or before";
    /// Waits until the stream has passed the event.
    fn aclrtSynchronizeEvent(event: AclrtEvent) -> AclError, since "ACL 1.17 or before";
    /// Waits until the stream has passed the event, for so many milliseconds.
    fn aclrtSynchronizeEventWithTimeout(event: AclrtEvent, timeout_ms: i32) -> AclError, since "ACL 1.17 or before";
    /// Tells the milliseconds between two events.
    fn aclrtEventElapsedTime(ms: *mut f32, start: AclrtEvent, end: AclrtEvent) -> AclError, since "ACL 1.17 or before";

    /// Takes device memory.
    fn aclrtMalloc(dev: *mut *mut c_void, size: usize, policy: AclrtMemMallocPolicy) -> AclError, since "ACL 1.17 or before";
    /// Gives device memory back.
    fn aclrtFree(dev: *mut c_void) -> AclError, since "ACL 1.17 or before";
    /// Takes host memory that the device reaches.
    fn aclrtMallocHost(host: *mut *mut c_void, size: usize) -> AclError, since "ACL 1.17 or before";
    /// Gives such host memory back.
    fn aclrtFreeHost(host: *mut c_void) -> AclError, since "ACL 1.17 or before";
    /// Copies, and returns once it is done.
    fn aclrtMemcpy(dst: *mut c_void, dst_max: usize, src: *const c_void, count: usize, kind: AclrtMemcpyKind)
        -> AclError, since "ACL 1.17 or before";
    /// Copies in the stream's order.
    fn aclrtMemcpyAsync(dst: *mut c_void, dst_max: usize, src: *const c_void, count: usize, kind: AclrtMemcpyKind,
        stream: AclrtStream) -> AclError, since "ACL 1.17 or before";
    /// Fills memory with a byte, and returns once it is done.
    fn aclrtMemset(dev: *mut c_void, max_count: usize, value: i32, count: usize) -> AclError, since "ACL 1.17 or before";
    /// Fills memory with a byte in the stream's order.
    fn aclrtMemsetAsync(dev: *mut c_void, max_count: usize, value: i32, count: usize, stream: AclrtStream)
        -> AclError, since "ACL 1.17 or before";
    /// Tells free and total bytes of a kind of memory.
    fn aclrtGetMemInfo(attr: AclrtMemAttr, free: *mut usize, total: *mut usize) -> AclError, since "ACL 1.17 or before";

    /// Tells a package's version as text. The size of the caller's buffer is the vendor's to document.
    fn aclsysGetVersionStr(package: *mut c_char, version: *mut c_char) -> AclError, since "ACL 1.17 or before";
    /// Tells a package's version as a number.
    fn aclsysGetVersionNum(package: *mut c_char, version: *mut i32) -> AclError, since "ACL 1.17 or before";
    /// Tells a package's version in parts; deprecated in the newest CANN.
    fn aclsysGetCANNVersion(package: AclCannPackageName, version: *mut AclCannPackageVersion)
        -> AclError, since "CANN 8.1.RC1";
}
