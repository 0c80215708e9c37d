//! What crosses the C interface: arguments by pointer, return codes, the text of the last error.
#![expect(unsafe_code, reason = "reads and writes where C callers point")]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use crate::fault::{self, Fault};

/// A failed call: its code, and the text that `aclGetRecentErrMsg` will tell.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) code: i32,
    pub(crate) text: String,
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub(crate) fn new(code: i32, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into() }
    }
}

/// Codes of HCCL.
pub(crate) mod hccl_code {
    pub(crate) const PARA: i32 = 1;
    pub(crate) const PTR: i32 = 2;
    pub(crate) const INTERNAL: i32 = 4;
    pub(crate) const NOT_SUPPORT: i32 = 5;
    pub(crate) const NOT_FOUND: i32 = 6;
    pub(crate) const TIMEOUT: i32 = 9;
    pub(crate) const OPEN_FILE: i32 = 10;
    pub(crate) const AGAIN: i32 = 20;
    pub(crate) const OOM: i32 = 24;
}

/// Codes of AscendCL.
pub(crate) mod acl_code {
    pub(crate) const INVALID_PARAM: i32 = 100_000;
    pub(crate) const REPEAT_INITIALIZE: i32 = 100_002;
    pub(crate) const INVALID_DEVICE: i32 = 107_001;
    pub(crate) const CONTEXT_NULL: i32 = 107_002;
    pub(crate) const STREAM_CONTEXT: i32 = 107_003;
    pub(crate) const DEVICE_TASK_ABORT: i32 = 107_022;
    pub(crate) const STREAM_ABORT: i32 = 107_023;
    pub(crate) const MEMORY_ALLOCATION: i32 = 207_001;
    pub(crate) const INTERNAL: i32 = 500_000;
    pub(crate) const STREAM_SYNC_TIMEOUT: i32 = 507_046;
    pub(crate) const EVENT_SYNC_TIMEOUT: i32 = 507_047;
    pub(crate) const TASKS_TIMEOUT: i32 = 507_048;
    pub(crate) const DEVICE_MEMORY: i32 = 507_053;
}

/// An argument that AscendCL refuses.
pub(crate) fn invalid(text: impl std::fmt::Display) -> Failure {
    Failure::new(acl_code::INVALID_PARAM, format!("EH0001: {text}"))
}

/// An argument that HCCL refuses.
pub(crate) fn para(text: impl std::fmt::Display) -> Failure {
    Failure::new(hccl_code::PARA, format!("EI0003: {text}"))
}

/// A pointer that must not be null.
fn null() -> Failure {
    Failure::new(hccl_code::PTR, "EI0003: a pointer is null")
}

/// A place for one result. Invariant, kept by C callers, who alone make it: null, or valid for one write of `T`.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    pub(crate) fn put(self, value: T) -> Result<()> {
        if self.0.is_null() {
            return Err(null());
        }
        // SAFETY: not null, so valid by the invariant.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// As [`put`](Out::put), for AscendCL's code.
    pub(crate) fn put_acl(self, value: T) -> Result<()> {
        self.put(value).map_err(|_| invalid("a pointer for a result is null"))
    }
}

/// An array to read. Invariant, kept by C callers, who alone make it: null, or valid for as many reads as the call's
/// documentation says.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Array<T>(*const T);

impl<T: Copy> Array<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn read(self, n: usize) -> Result<Vec<T>> {
        if self.0.is_null() {
            return Err(null());
        }
        // SAFETY: by the invariant there are `n` elements.
        Ok((0..n).map(|i| unsafe { self.0.wrapping_add(i).read_unaligned() }).collect())
    }

    pub(crate) fn first(self) -> Result<T> {
        Ok(self.read(1)?[0])
    }

    /// The same place, for results.
    pub(crate) fn fill(self, values: &[T]) -> Result<()> {
        values.iter().enumerate().try_for_each(|(i, value)| Out(self.0.wrapping_add(i).cast_mut()).put(*value))
    }
}

/// A string. Invariant, kept by C callers, who alone make it: null, or ended by a zero byte.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn read(self) -> Result<String> {
        if self.0.is_null() {
            return Err(null());
        }
        // SAFETY: not null, so a string by the invariant.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

thread_local! {
    /// What this thread's last failed call said, and what was handed out last.
    static LAST: RefCell<(Option<CString>, Option<CString>)> = const { RefCell::new((None, None)) };
}

/// Keeps the text of a failed call for this thread.
pub(crate) fn say(text: &str) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    LAST.with_borrow_mut(|last| last.0 = Some(text));
}

/// This thread's text, once.
pub(crate) fn said() -> *const c_char {
    LAST.with_borrow_mut(|last| {
        last.1 = last.0.take();
        last.1.as_ref().map_or(ptr::null(), |text| text.as_ptr())
    })
}

/// Runs a call: faults first, then its body; keeps the text of a failure.
pub(crate) fn enter(name: &'static str, body: impl FnOnce() -> Result<()>) -> i32 {
    crate::counts::at_exit();
    let outcome = match fault::of(name) {
        Some(Fault::Return(code)) => Err(Failure::new(code, fault::text(name, code))),
        Some(Fault::Hang) => fault::hang(),
        Some(Fault::Die) => fault::die(),
        Some(Fault::Later(later)) => fault::with_later(later, || caught(body)),
        None => caught(body),
    };
    match outcome {
        Ok(()) => 0,
        Err(failure) => {
            say(&failure.text);
            failure.code
        }
    }
}

fn caught(body: impl FnOnce() -> Result<()>) -> Result<()> {
    // Whatever a panic left half done, the test that caused it has failed.
    let outcome = catch_unwind(AssertUnwindSafe(body));
    outcome.unwrap_or_else(|_| Err(Failure::new(hccl_code::INTERNAL, "EI9999: the stand-in panicked, see stderr")))
}

/// Declares exported functions that return a code.
macro_rules! exports {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        #[expect(clippy::allow_attributes, reason = "only some of these functions have many arguments")]
        #[allow(clippy::too_many_arguments, reason = "the C interface has as many")]
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $ty),*) -> i32 {
            $crate::abi::enter(stringify!($name), move || $body)
        }
    )*};
}

pub(crate) use exports;
