//! Faults on demand, from `HCCL_STAND_IN_FAULTS` or by `hccl_stand_in_faults`.
//!
//! ```text
//! HcclAllReduce=return:9             every call returns 9, with the text that belongs to it
//! HcclAllReduce@3#1=die              the third call on device 1 ends the process
//! HcclCommInitRootInfoConfig=hang    never returns
//! HcclBroadcast=fail:507048          the call succeeds, its work fails on the stream
//! HcclSend=stall                     the call succeeds, its work never ends
//! CommAsyncError=return:21           what HcclGetCommAsyncError tells
//! ```
//!
//! Several are separated by `;`. Devices are those the calling thread is bound to.
#![expect(unsafe_code, reason = "an exported function")]

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::abi::Text;

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    Return(i32),
    Hang,
    Die,
    Later(Later),
}

/// What happens to a call's work on its stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Later {
    Fail(i32),
    Stall,
}

struct Entry {
    name: String,
    /// Only this call, counted from 1.
    call: Option<u64>,
    device: Option<i32>,
    fault: Fault,
    calls: u64,
}

fn table() -> MutexGuard<'static, Vec<Entry>> {
    static TABLE: OnceLock<Mutex<Vec<Entry>>> = OnceLock::new();
    let table = TABLE.get_or_init(|| Mutex::new(parse(&std::env::var("HCCL_STAND_IN_FAULTS").unwrap_or_default())));
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Replaces all faults.
#[unsafe(no_mangle)]
extern "C" fn hccl_stand_in_faults(text: Text) {
    *table() = parse(&text.read().unwrap_or_default());
}

fn parse(text: &str) -> Vec<Entry> {
    text.split(';').map(str::trim).filter(|part| !part.is_empty()).map(entry).collect()
}

/// A fault that is not understood would make a test pass for nothing: it ends the process.
#[expect(clippy::print_stderr, reason = "says why the process ends")]
fn entry(text: &str) -> Entry {
    parse_entry(text).unwrap_or_else(|| {
        eprintln!("hccl-stand-in: no fault: {text:?}");
        std::process::abort()
    })
}

fn parse_entry(text: &str) -> Option<Entry> {
    let (place, action) = text.split_once('=')?;
    let (place, device) = match place.split_once('#') {
        Some((place, device)) => (place, Some(device.parse().ok()?)),
        None => (place, None),
    };
    let (name, call) = match place.split_once('@') {
        Some((name, call)) => (name, Some(call.parse().ok()?)),
        None => (place, None),
    };
    let fault = match action.split_once(':') {
        Some(("return", code)) => Fault::Return(code.parse().ok()?),
        Some(("fail", code)) => Fault::Later(Later::Fail(code.parse().ok()?)),
        None if action == "hang" => Fault::Hang,
        None if action == "die" => Fault::Die,
        None if action == "stall" => Fault::Later(Later::Stall),
        _ => return None,
    };
    Some(Entry { name: name.to_owned(), call, device, fault, calls: 0 })
}

/// The fault of this call, which is counted.
pub(crate) fn of(name: &str) -> Option<Fault> {
    let device = crate::device::current_id();
    let mut found = None;
    for entry in table().iter_mut().filter(|entry| entry.name == name) {
        if entry.device.is_some() && entry.device != device {
            continue;
        }
        entry.calls += 1;
        if entry.call.is_none_or(|call| call == entry.calls) {
            found = found.or(Some(entry.fault));
        }
    }
    found
}

/// The text that comes with an injected code.
pub(crate) fn text(name: &str, code: i32) -> String {
    let coded = match code {
        1 => "EI0003: an argument is not valid",
        3 | 7 => "EI0007: a resource is exhausted",
        9 => "EI0006: getting a socket timed out. Reason: the peer did not connect",
        11 | 19 => "EI0015: ranks are missing at the root",
        14 | 21 => "EI0013: an error CQE was reported",
        24 => "EI0011: no device memory for queues",
        507_046 => "EE1002: synchronising a stream timed out",
        107_020 | 507_048 => "EI0002: the wait for notify timed out. Reason: a peer did not come",
        507_053 => "EI0012: a copy between devices failed",
        _ => "EI9999: an error inside",
    };
    format!("{coded} ({name}, injected)")
}

/// Never returns.
pub(crate) fn hang() -> ! {
    loop {
        std::thread::park();
    }
}

/// Ends the process at once, as a crash would.
pub(crate) fn die() -> ! {
    // SAFETY: takes a number; this thread's process ends here.
    unsafe { libc::raise(libc::SIGKILL) };
    hang()
}

thread_local! {
    static LATER: Cell<Option<Later>> = const { Cell::new(None) };
}

/// Runs a call whose work is to fail later.
pub(crate) fn with_later<R>(later: Later, call: impl FnOnce() -> R) -> R {
    LATER.set(Some(later));
    let result = call();
    LATER.set(None);
    result
}

/// The fault of the work that this thread is about to enqueue.
pub(crate) fn take_later() -> Option<Later> {
    LATER.take()
}
