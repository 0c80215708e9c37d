//! AscendCL, call by call.

#![expect(unsafe_code, reason = "calls through the function table")]

use std::{ffi::c_void, ptr};

use super::{Result, calls, check_acl, copy_text};
use crate::{
    loader::Libraries,
    sys::{
        AclCannPackageName, AclCannPackageVersion, AclError, AclrtContext, AclrtDeviceStatus, AclrtEvent,
        AclrtEventRecordedStatus, AclrtMemAttr, AclrtMemMallocPolicy, AclrtMemcpyKind, AclrtRunMode, AclrtStream,
        AclrtStreamStatus, text_of,
    },
};

/// Initialises AscendCL without a configuration file. `false` when the process had it initialised already.
///
/// # Errors
/// When the call fails or the library lacks it.
pub fn init(libs: &Libraries) -> Result<bool> {
    let call = libs.acl.aclInit()?;
    // SAFETY: a null path means no configuration file.
    let code = unsafe { call(ptr::null()) };
    if code == AclError::REPEAT_INITIALIZE {
        return Ok(false);
    }
    check_acl(libs, "aclInit", code).map(|()| true)
}

/// Major, minor and patch number of the ACL interface, which are not CANN's.
///
/// # Errors
/// When the call fails or the library lacks it.
pub fn api_version(libs: &Libraries) -> Result<(i32, i32, i32)> {
    let call = libs.acl.aclrtGetVersion()?;
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: the call writes three numbers.
    let code = unsafe { call(&raw mut major, &raw mut minor, &raw mut patch) };
    check_acl(libs, "aclrtGetVersion", code)?;
    Ok((major, minor, patch))
}

/// The chip's name, such as `Ascend910B1`; `None` where the library knows none.
///
/// # Errors
/// When the library lacks the call.
pub fn soc_name(libs: &Libraries) -> Result<Option<String>> {
    let call = libs.acl.aclrtGetSocName()?;
    // SAFETY: the call takes nothing and returns null or a string.
    let name = unsafe { call() };
    Ok(copy_text(name))
}

/// Free and total bytes of a kind of memory on this thread's device.
///
/// # Errors
/// When the call fails or the library lacks it.
pub fn mem_info(libs: &Libraries, attr: AclrtMemAttr) -> Result<(usize, usize)> {
    let call = libs.acl.aclrtGetMemInfo()?;
    let (mut free, mut total) = (0, 0);
    // SAFETY: the call writes two numbers.
    let code = unsafe { call(attr, &raw mut free, &raw mut total) };
    check_acl(libs, "aclrtGetMemInfo", code)?;
    Ok((free, total))
}

/// The version text of a package, such as `8.1.RC1`.
///
/// # Errors
/// When the call fails or the library lacks it.
pub fn package_version(libs: &Libraries, package: AclCannPackageName) -> Result<String> {
    let call = libs.acl.aclsysGetCANNVersion()?;
    let mut version = AclCannPackageVersion::zeroed();
    // SAFETY: the call writes into 512 bytes.
    let code = unsafe { call(package, &raw mut version) };
    check_acl(libs, "aclsysGetCANNVersion", code)?;
    Ok(text_of(&version.version))
}

/// The physical number of a logical device.
///
/// # Errors
/// When the call fails or the library lacks it.
pub fn physical_device(libs: &Libraries, logical: i32) -> Result<i32> {
    let call = libs.acl.aclrtGetPhyDevIdByLogicDevId()?;
    let mut physical = -1;
    // SAFETY: the call takes a number and writes one.
    let code = unsafe { call(logical, &raw mut physical) };
    check_acl(libs, "aclrtGetPhyDevIdByLogicDevId", code)?;
    Ok(physical)
}

/// Whether a device works.
///
/// # Errors
/// When the call fails or the library lacks it.
pub fn device_status(libs: &Libraries, device: i32) -> Result<AclrtDeviceStatus> {
    let call = libs.acl.aclrtQueryDeviceStatus()?;
    let mut status = AclrtDeviceStatus::ABNORMAL;
    // SAFETY: the call takes a number and writes one.
    let code = unsafe { call(device, &raw mut status) };
    check_acl(libs, "aclrtQueryDeviceStatus", code)?;
    Ok(status)
}

/// Milliseconds between two events that the device has passed.
///
/// # Errors
/// When the call fails or the library lacks it.
///
/// # Safety
/// Both events are alive and of this library.
pub unsafe fn elapsed_ms(libs: &Libraries, start: AclrtEvent, end: AclrtEvent) -> Result<f32> {
    let call = libs.acl.aclrtEventElapsedTime()?;
    let mut ms = 0.0;
    // SAFETY: the caller answers for the events; the call writes one number.
    let code = unsafe { call(&raw mut ms, start, end) };
    check_acl(libs, "aclrtEventElapsedTime", code)?;
    Ok(ms)
}

calls! { acl, check_acl;
    /// Ends AscendCL for the process.
    ///
    /// Streams, events and memory of every device become invalid, also those of other users in the process.
    unsafe fn finalize = aclFinalize();
    /// Devices this process sees.
    fn device_count = aclrtGetDeviceCount(out u32 = 0);
    /// Binds this thread to a device.
    fn set_device = aclrtSetDevice(device: i32);
    /// Undoes one [`set_device`]; the last one frees the device's resources.
    unsafe fn reset_device = aclrtResetDevice(device: i32);
    /// Frees a device's resources, however often it was set.
    unsafe fn reset_device_force = aclrtResetDeviceForce(device: i32);
    /// The device this thread is bound to.
    fn current_device = aclrtGetDevice(out i32 = -1);
    /// Host or device.
    fn run_mode = aclrtGetRunMode(out AclrtRunMode = AclrtRunMode::HOST);
    /// Waits for everything on this thread's device.
    fn synchronize_device = aclrtSynchronizeDevice();
    /// Waits for everything on this thread's device, for so many milliseconds.
    fn synchronize_device_for = aclrtSynchronizeDeviceWithTimeout(timeout_ms: i32);
    /// Aborts a device's tasks.
    fn abort_device_tasks = aclrtDeviceTaskAbort(device: i32, timeout_ms: u32);

    /// Makes a context, current on this thread.
    fn create_context = aclrtCreateContext(out AclrtContext = AclrtContext::NULL, device: i32);
    /// Destroys a context.
    unsafe fn destroy_context = aclrtDestroyContext(context: AclrtContext);
    /// Makes a context current on this thread.
    unsafe fn set_current_context = aclrtSetCurrentContext(context: AclrtContext);
    /// This thread's context.
    fn current_context = aclrtGetCurrentContext(out AclrtContext = AclrtContext::NULL);

    /// Makes a stream.
    fn create_stream = aclrtCreateStream(out AclrtStream = AclrtStream::NULL);
    /// Makes a stream with priority and flags.
    fn create_stream_with = aclrtCreateStreamWithConfig(out AclrtStream = AclrtStream::NULL, priority: u32, flag: u32);
    /// Destroys a stream once its work has run.
    unsafe fn destroy_stream = aclrtDestroyStream(stream: AclrtStream);
    /// Destroys a stream and drops its work.
    unsafe fn destroy_stream_force = aclrtDestroyStreamForce(stream: AclrtStream);
    /// Waits for a stream.
    unsafe fn synchronize_stream = aclrtSynchronizeStream(stream: AclrtStream);
    /// Waits for a stream, for so many milliseconds.
    unsafe fn synchronize_stream_for = aclrtSynchronizeStreamWithTimeout(stream: AclrtStream, timeout_ms: i32);
    /// Asks whether a stream's work has run.
    unsafe fn query_stream = aclrtStreamQuery(stream: AclrtStream; out AclrtStreamStatus = AclrtStreamStatus::NOT_READY);
    /// Aborts a stream's work.
    unsafe fn abort_stream = aclrtStreamAbort(stream: AclrtStream);
    /// Makes a stream wait for an event.
    unsafe fn wait_event = aclrtStreamWaitEvent(stream: AclrtStream, event: AclrtEvent);
    /// Says whether a failed task stops the stream (1) or not (0).
    unsafe fn set_failure_mode = aclrtSetStreamFailureMode(stream: AclrtStream, mode: u64);

    /// Makes an event.
    fn create_event = aclrtCreateEvent(out AclrtEvent = AclrtEvent::NULL);
    /// Makes an event with flags.
    fn create_event_with = aclrtCreateEventWithFlag(out AclrtEvent = AclrtEvent::NULL, flag: u32);
    /// Destroys an event.
    unsafe fn destroy_event = aclrtDestroyEvent(event: AclrtEvent);
    /// Records an event.
    unsafe fn record_event = aclrtRecordEvent(event: AclrtEvent, stream: AclrtStream);
    /// Makes an event unrecorded again.
    unsafe fn reset_event = aclrtResetEvent(event: AclrtEvent, stream: AclrtStream);
    /// Asks whether the stream has passed an event.
    unsafe fn query_event = aclrtQueryEventStatus(event: AclrtEvent;
        out AclrtEventRecordedStatus = AclrtEventRecordedStatus::NOT_READY);
    /// Waits for an event.
    unsafe fn synchronize_event = aclrtSynchronizeEvent(event: AclrtEvent);
    /// Waits for an event, for so many milliseconds.
    unsafe fn synchronize_event_for = aclrtSynchronizeEventWithTimeout(event: AclrtEvent, timeout_ms: i32);

    /// Takes device memory.
    fn malloc = aclrtMalloc(out *mut c_void = ptr::null_mut(), size: usize, policy: AclrtMemMallocPolicy);
    /// Gives device memory back.
    unsafe fn free = aclrtFree(dev: *mut c_void);
    /// Takes host memory that the device reaches.
    fn malloc_host = aclrtMallocHost(out *mut c_void = ptr::null_mut(), size: usize);
    /// Gives such host memory back.
    unsafe fn free_host = aclrtFreeHost(host: *mut c_void);
    /// Copies, and returns once it is done.
    unsafe fn memcpy = aclrtMemcpy(dst: *mut c_void, dst_max: usize, src: *const c_void, count: usize,
        kind: AclrtMemcpyKind);
    /// Copies in the stream's order.
    unsafe fn memcpy_async = aclrtMemcpyAsync(dst: *mut c_void, dst_max: usize, src: *const c_void, count: usize,
        kind: AclrtMemcpyKind, stream: AclrtStream);
    /// Fills memory with a byte, and returns once it is done.
    unsafe fn memset = aclrtMemset(dev: *mut c_void, max_count: usize, value: i32, count: usize);
    /// Fills memory with a byte in the stream's order.
    unsafe fn memset_async = aclrtMemsetAsync(dev: *mut c_void, max_count: usize, value: i32, count: usize,
        stream: AclrtStream);
}
