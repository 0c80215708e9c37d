//! AscendCL's functions.
#![expect(unsafe_code, reason = "exported functions")]

use std::ffi::{CString, c_char};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::abi::{Array, Failure, Out, Result, Text, acl_code, exports, invalid, said};
use crate::counts::{self, Kind};
use crate::device;
use crate::events::{EVENTS, Event};
use crate::handles::Handle;
use crate::memory::{self, Copy, Fill};
use crate::settings::{release, settings};
use crate::stream::{self, STREAMS, Stream};

/// How often AscendCL is initialised.
static INITIALISED: AtomicU64 = AtomicU64::new(0);

/// The stream of a call: alive, and of this thread's device.
pub(crate) fn stream_of(handle: Handle) -> Result<Arc<Stream>> {
    let (_, context) = device::current()?;
    let stream = STREAMS.get(handle).ok_or_else(|| invalid("there is no such stream"))?;
    if stream.device != context.device {
        let text = format!("EE1001: the stream is of device {}, this thread on {}", stream.device, context.device);
        return Err(Failure::new(acl_code::STREAM_CONTEXT, text));
    }
    Ok(stream)
}

fn event_of(handle: Handle) -> Result<Arc<Event>> {
    EVENTS.get(handle).ok_or_else(|| invalid("there is no such event"))
}

/// Milliseconds as a time: -1 is for ever.
fn wait_of(ms: i32) -> Result<Option<Duration>> {
    match u64::try_from(ms) {
        Ok(ms) => Ok(Some(Duration::from_millis(ms))),
        Err(_) if ms == -1 => Ok(None),
        Err(_) => Err(invalid(format!("a timeout of {ms} ms"))),
    }
}

fn late(code: i32, what: &str) -> Failure {
    Failure::new(code, format!("EE1002: waiting for {what} timed out"))
}

fn new_event(event: Out<Handle>) -> Result<()> {
    device::current()?;
    event.put_acl(EVENTS.add(Arc::default()))?;
    counts::more(Kind::Events);
    Ok(())
}

/// The version of a package, by its number in `aclsysGetCANNVersion` or its name in `aclsysGetVersionStr`.
fn version_of(package: &str) -> Result<&'static str> {
    let settings = settings();
    Ok(match package.to_ascii_lowercase().as_str() {
        "0" | "cann" | "1" | "runtime" | "2" | "compiler" | "4" | "toolkit" | "5" | "opp" | "6" | "opp_kernel" => {
            &settings.cann
        }
        "3" | "hccl" | "hcomm" => &settings.hccl,
        "7" | "driver" => &settings.driver,
        _ => return Err(invalid(format!("there is no package {package}"))),
    })
}

/// Writes a text and a zero byte.
fn put_text(into: Array<u8>, text: &str) -> Result<()> {
    if into.is_null() {
        return Err(invalid("a buffer for text is null"));
    }
    into.fill(&[text.as_bytes(), &[0]].concat())
}

#[unsafe(no_mangle)]
extern "C" fn aclGetRecentErrMsg() -> *const c_char {
    said()
}

#[unsafe(no_mangle)]
extern "C" fn aclrtGetSocName() -> *const c_char {
    static NAME: OnceLock<CString> = OnceLock::new();
    NAME.get_or_init(|| CString::new(settings().soc.as_str()).unwrap_or_default()).as_ptr()
}

exports! {
    fn aclInit(_config: Text) {
        match INITIALISED.swap(1, Ordering::SeqCst) {
            0 => Ok(()),
            _ => Err(Failure::new(acl_code::REPEAT_INITIALIZE, "EH0002: AscendCL is initialised already")),
        }
    }
    fn aclFinalize() {
        INITIALISED.store(0, Ordering::SeqCst);
        Ok(())
    }
    fn aclFinalizeReference(count: Out<u64>) {
        INITIALISED.store(0, Ordering::SeqCst);
        count.put_acl(0)
    }
    fn aclrtGetVersion(major: Out<i32>, minor: Out<i32>, patch: Out<i32>) {
        major.put_acl(1)?;
        minor.put_acl(17)?;
        patch.put_acl(0)
    }
    fn aclrtGetDeviceCount(count: Out<u32>) { count.put_acl(settings().devices) }
    fn aclrtSetDevice(id: i32) { device::set(id) }
    fn aclrtResetDevice(id: i32) { device::reset(id, false) }
    fn aclrtResetDeviceForce(id: i32) { device::reset(id, true) }
    fn aclrtGetDevice(id: Out<i32>) { id.put_acl(device::current()?.1.device) }
    fn aclrtGetRunMode(mode: Out<i32>) { mode.put_acl(1) }
    fn aclrtGetPhyDevIdByLogicDevId(logical: i32, physical: Out<i32>) {
        device::check(logical)?;
        physical.put_acl(logical)
    }
    fn aclrtQueryDeviceStatus(id: i32, status: Out<i32>) {
        device::check(id)?;
        status.put_acl(0)
    }
    fn aclrtSynchronizeDevice() { synchronize_device(None) }
    fn aclrtSynchronizeDeviceWithTimeout(ms: i32) { synchronize_device(wait_of(ms)?) }
    fn aclrtDeviceTaskAbort(id: i32, _ms: u32) {
        device::check(id)?;
        for (_, stream) in STREAMS.all().iter().filter(|(_, stream)| stream.device == id) {
            stream.abort(acl_code::DEVICE_TASK_ABORT);
        }
        Ok(())
    }

    fn aclrtCreateContext(context: Out<Handle>, id: i32) { context.put_acl(device::create_context(id)?) }
    fn aclrtDestroyContext(context: Handle) { device::destroy_context(context) }
    fn aclrtSetCurrentContext(context: Handle) { device::enter(context) }
    fn aclrtGetCurrentContext(context: Out<Handle>) { context.put_acl(device::current()?.0) }

    fn aclrtCreateStream(stream: Out<Handle>) { stream.put_acl(stream::create(device::current()?.1.device)?) }
    fn aclrtCreateStreamWithConfig(stream: Out<Handle>, _priority: u32, _flag: u32) {
        stream.put_acl(stream::create(device::current()?.1.device)?)
    }
    fn aclrtDestroyStream(stream: Handle) { destroy_stream(stream, false) }
    fn aclrtDestroyStreamForce(stream: Handle) { destroy_stream(stream, true) }
    fn aclrtSynchronizeStream(stream: Handle) { synchronize_stream(&*stream_of(stream)?, None) }
    fn aclrtSynchronizeStreamWithTimeout(stream: Handle, ms: i32) {
        synchronize_stream(&*stream_of(stream)?, wait_of(ms)?)
    }
    fn aclrtStreamQuery(stream: Handle, status: Out<i32>) {
        status.put_acl(i32::from(!stream_of(stream)?.is_idle()))
    }
    fn aclrtStreamAbort(stream: Handle) {
        stream_of(stream)?.abort(acl_code::STREAM_ABORT);
        Ok(())
    }
    fn aclrtStreamWaitEvent(stream: Handle, event: Handle) { event_of(event)?.hold(&*stream_of(stream)?) }
    fn aclrtSetStreamFailureMode(stream: Handle, mode: u64) {
        stream_of(stream)?.stop_on_failure(mode == 1);
        Ok(())
    }

    fn aclrtCreateEvent(event: Out<Handle>) { new_event(event) }
    fn aclrtCreateEventWithFlag(event: Out<Handle>, _flag: u32) { new_event(event) }
    fn aclrtCreateEventExWithFlag(event: Out<Handle>, _flag: u32) { new_event(event) }
    fn aclrtDestroyEvent(event: Handle) {
        EVENTS.remove(event).ok_or_else(|| invalid("there is no such event"))?;
        counts::less(Kind::Events);
        Ok(())
    }
    fn aclrtRecordEvent(event: Handle, stream: Handle) { event_of(event)?.enqueue(&*stream_of(stream)?, true) }
    fn aclrtResetEvent(event: Handle, stream: Handle) { event_of(event)?.enqueue(&*stream_of(stream)?, false) }
    fn aclrtQueryEventStatus(event: Handle, status: Out<i32>) {
        status.put_acl(i32::from(event_of(event)?.is_complete()))
    }
    fn aclrtSynchronizeEvent(event: Handle) {
        event_of(event)?.synchronize(None);
        Ok(())
    }
    fn aclrtSynchronizeEventWithTimeout(event: Handle, ms: i32) {
        match event_of(event)?.synchronize(wait_of(ms)?) {
            true => Ok(()),
            false => Err(late(acl_code::EVENT_SYNC_TIMEOUT, "an event")),
        }
    }
    fn aclrtEventElapsedTime(ms: Out<f32>, start: Handle, end: Handle) {
        ms.put_acl(event_of(start)?.elapsed_ms(&*event_of(end)?)?)
    }

    fn aclrtMalloc(address: Out<usize>, bytes: usize, policy: i32) {
        if !(0..=7).contains(&policy) {
            return Err(invalid(format!("{policy} is no policy of allocation")));
        }
        address.put_acl(memory::malloc(device::current()?.1.device, bytes)?)
    }
    fn aclrtFree(address: usize) { memory::free(address) }
    fn aclrtMallocHost(address: Out<usize>, bytes: usize) { address.put_acl(memory::malloc_host(bytes)?) }
    fn aclrtFreeHost(address: usize) { memory::free_host(address) }
    fn aclrtMemcpy(to: usize, room: usize, from: usize, bytes: usize, kind: i32) {
        device::current()?;
        Copy::new(to, room, from, bytes, kind)?.run()
    }
    fn aclrtMemcpyAsync(to: usize, room: usize, from: usize, bytes: usize, kind: i32, stream: Handle) {
        let stream = stream_of(stream)?;
        let copy = Copy::new(to, room, from, bytes, kind)?;
        stream.push(Box::new(move |_| copy.run()))
    }
    fn aclrtMemset(address: usize, room: usize, value: i32, bytes: usize) {
        device::current()?;
        Fill::new(address, room, value, bytes)?.run()
    }
    fn aclrtMemsetAsync(address: usize, room: usize, value: i32, bytes: usize, stream: Handle) {
        let stream = stream_of(stream)?;
        let fill = Fill::new(address, room, value, bytes)?;
        stream.push(Box::new(move |_| fill.run()))
    }
    fn aclrtGetMemInfo(_attr: i32, free: Out<usize>, total: Out<usize>) {
        let (left, all) = memory::info(device::current()?.1.device);
        free.put_acl(left)?;
        total.put_acl(all)
    }

    fn aclsysGetVersionStr(package: Text, version: Array<u8>) {
        put_text(version, version_of(&package.read()?)?)
    }
    fn aclsysGetVersionNum(package: Text, version: Out<i32>) {
        let (major, minor, _) = release(version_of(&package.read()?)?);
        version.put_acl((major * 10_000_000 + minor * 100_000) as i32)
    }
    fn aclsysGetCANNVersion(package: i32, version: Array<[u8; 512]>) {
        let text = version_of(&package.to_string())?;
        let mut bytes = [0; 512];
        let fields = [Some(text)].into_iter().chain(text.splitn(4, '.').map(Some));
        for (field, start) in fields.zip([0, 128, 192, 256, 320]) {
            let field = field.unwrap_or_default().as_bytes();
            let len = field.len().min(63);
            bytes[start..start + len].copy_from_slice(&field[..len]);
        }
        version.fill(&[bytes])
    }
}

fn synchronize_stream(stream: &Stream, wait: Option<Duration>) -> Result<()> {
    stream.synchronize(wait).unwrap_or_else(|| Err(late(acl_code::STREAM_SYNC_TIMEOUT, "a stream")))
}

fn synchronize_device(wait: Option<Duration>) -> Result<()> {
    let (_, context) = device::current()?;
    let streams = STREAMS.all();
    streams
        .iter()
        .filter(|(_, stream)| stream.device == context.device)
        .try_for_each(|(_, stream)| synchronize_stream(stream, wait))
}

fn destroy_stream(handle: Handle, force: bool) -> Result<()> {
    stream_of(handle)?;
    if let Some(stream) = STREAMS.remove(handle) {
        stream.destroy(force);
    }
    Ok(())
}
