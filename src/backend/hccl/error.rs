//! The vendor's return codes and texts as errors of this library.

use crate::device::Device;
use crate::error::{Error, ErrorKind};
use ascend_sys::Libraries;
use ascend_sys::sys::{AclError, HcclResult};
use std::time::Duration;

/// The libraries, or an error that says what was tried.
pub(super) fn load(device: u32) -> Result<&'static Libraries, Error> {
    ascend_sys::libraries().map_err(|missing| {
        Error::new(ErrorKind::Unsupported { what: format!("NPU {device} without Ascend's libraries") })
            .source(missing.clone())
            .hint("install CANN and source its set_env.sh; `hccl doctor` says what it finds and what is missing")
    })
}

/// What a failed call of the libraries means. `waited` is how long this rank was in it.
pub(super) fn convert(error: ascend_sys::Error, device: u32, waited: Duration) -> Error {
    let waited = whole_millis(waited);
    use ascend_sys::ErrorKind as Theirs;
    let call = error.symbol();
    let kind = match error.kind() {
        Theirs::Missing(_) => ErrorKind::Unsupported { what: format!("{call} on NPU {device}") },
        Theirs::Hccl(code) if is_timeout(&error) => {
            let _ = code;
            ErrorKind::Timeout { late: Vec::new(), after: waited }
        }
        Theirs::Hccl(HcclResult::E_OOM | HcclResult::E_MEMORY) => memory(call, device),
        Theirs::Hccl(code) => ErrorKind::Vendor { call, code: code.0, device: Device::Npu(device) },
        Theirs::Acl(AclError::RT_MEMORY_ALLOCATION | AclError::RT_DEVICE_OOM | AclError::BAD_ALLOC) => {
            memory(call, device)
        }
        Theirs::Acl(_) if is_timeout(&error) => ErrorKind::Timeout { late: Vec::new(), after: waited },
        Theirs::Acl(code) => ErrorKind::Vendor { call, code: code.0, device: Device::Npu(device) },
        other => ErrorKind::InvalidArgument { problem: format!("{call} on NPU {device}: {other:?}") },
    };
    let hint = remedy(&error);
    let ours = Error::new(kind).source(error);
    match hint {
        Some(hint) => ours.hint(hint),
        None => ours,
    }
}

fn memory(call: &str, device: u32) -> ErrorKind {
    ErrorKind::Resource { what: format!("memory of NPU {device} ({call})") }
}

/// True when ranks did not meet in time, whichever library says so and however.
fn is_timeout(error: &ascend_sys::Error) -> bool {
    const CODES: [&str; 3] = ["EI0002", "EI0006", "EI0015"];
    const ACL: [AclError; 5] = [
        AclError::WAIT_TIMEOUT,
        AclError::TASK_TIMEOUT,
        AclError::RT_STREAM_SYNC_TIMEOUT,
        AclError::RT_EVENT_SYNC_TIMEOUT,
        AclError::RT_FFTS_PLUS_TIMEOUT,
    ];
    error.is_hccl(HcclResult::E_TIMEOUT)
        || ACL.iter().any(|code| error.is_acl(*code))
        || error.reports().iter().any(|report| CODES.contains(&report.code.as_str()))
}

/// The remedy of the first report that is explained, else of the code.
fn remedy(error: &ascend_sys::Error) -> Option<String> {
    use ascend_sys::ErrorKind as Theirs;
    let explained = error.reports().iter().find_map(|report| Some((&report.code, report.explanation?)));
    if let Some((code, known)) = explained {
        return Some(format!("{code}: {}", known.remedy));
    }
    match error.kind() {
        Theirs::Hccl(code) => code.remedy().map(str::to_owned),
        Theirs::Acl(code) => code.remedy().map(str::to_owned),
        Theirs::Missing(_) => Some("install a newer CANN; `hccl doctor` lists what the installed one has".to_owned()),
        _ => None,
    }
}

/// The libraries did not answer within the deadline.
pub(super) fn silent(device: u32, what: &str, after: Duration) -> Error {
    let after = whole_millis(after);
    let hint = "the device or its driver hangs: see npu-smi info and the plog files below ~/ascend/log";
    Error::new(ErrorKind::Timeout { late: Vec::new(), after })
        .hint(hint)
        .note(format!("NPU {device} did not answer: {what}"))
}

/// As the other ranks hear of it.
fn whole_millis(time: Duration) -> Duration {
    Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// The thread of the device is gone, which only a panic of its own explains.
pub(super) fn gone(device: u32) -> Error {
    Error::new(ErrorKind::Closed).hint(format!("the thread of NPU {device} ended; make a new communicator"))
}
