//! One function per call of the C interface, returning a `Result`.
//!
//! The functions here add nothing but the error: which symbol failed, its code with meaning and remedy, and the
//! library's last text on this thread, read at once because the next call may replace it. Those that take handles or
//! addresses stay `unsafe`; the guards in [`safe`](crate::safe) keep handles alive.

#![expect(unsafe_code, reason = "the library's error text is a C string")]

pub mod acl;
pub mod hccl;

use std::{ffi::CStr, fmt};

use crate::{
    diagnostic::{self, Report},
    loader::Libraries,
    sys::{AclError, ConfigError, HcclResult, MissingSymbol},
};

/// What the functions of this crate return.
pub type Result<T> = std::result::Result<T, Error>;

/// A call that failed: which, with what code, and what the library said.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    symbol: &'static str,
    kind: ErrorKind,
    text: Option<String>,
    reports: Vec<Report>,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The loaded library does not have the function; nothing was called.
    Missing(MissingSymbol),
    /// AscendCL returned this code.
    Acl(AclError),
    /// HCCL returned this code.
    Hccl(HcclResult),
    /// A communicator setting was refused; nothing was called.
    Config(ConfigError),
    /// An argument was refused here; nothing was called.
    Argument(String),
}

impl Error {
    pub(crate) fn argument(symbol: &'static str, why: impl Into<String>) -> Self {
        Self::plain(symbol, ErrorKind::Argument(why.into()))
    }

    fn plain(symbol: &'static str, kind: ErrorKind) -> Self {
        Self(Box::new(Inner { symbol, kind, text: None, reports: Vec::new() }))
    }

    fn returned(libs: &Libraries, symbol: &'static str, kind: ErrorKind) -> Self {
        let text = recent_text(libs);
        let reports = text.as_deref().map(diagnostic::parse).unwrap_or_default();
        Self(Box::new(Inner { symbol, kind, text, reports }))
    }

    /// The C function that failed or is missing.
    #[must_use]
    pub fn symbol(&self) -> &'static str {
        self.0.symbol
    }

    /// Why it failed.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The library's own words, where it had any.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        self.0.text.as_deref()
    }

    /// The coded messages in [`text`](Self::text), such as EI0006, with cause and remedy where known.
    #[must_use]
    pub fn reports(&self) -> &[Report] {
        &self.0.reports
    }

    /// Whether HCCL returned this code.
    #[must_use]
    pub fn is_hccl(&self, code: HcclResult) -> bool {
        self.0.kind == ErrorKind::Hccl(code)
    }

    /// Whether AscendCL returned this code.
    #[must_use]
    pub fn is_acl(&self, code: AclError) -> bool {
        self.0.kind == ErrorKind::Acl(code)
    }

    /// Whether the function is not in the loaded library.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Missing(_))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { symbol, kind, text, reports } = &*self.0;
        match kind {
            ErrorKind::Missing(missing) => return missing.fmt(f),
            ErrorKind::Acl(code) => write!(f, "{symbol} failed: {code}")?,
            ErrorKind::Hccl(code) => write!(f, "{symbol} failed: {code}")?,
            ErrorKind::Config(error) => write!(f, "{symbol} was not called: {error}")?,
            ErrorKind::Argument(why) => write!(f, "{symbol} was not called: {why}")?,
        }
        match (reports.is_empty(), text) {
            (true, Some(text)) => write!(f, "; the library says: {}", text.trim()),
            _ => reports.iter().try_for_each(|report| write!(f, "; {report}")),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.kind {
            ErrorKind::Missing(missing) => Some(missing),
            ErrorKind::Config(error) => Some(error),
            _ => None,
        }
    }
}

impl From<MissingSymbol> for Error {
    fn from(missing: MissingSymbol) -> Self {
        Self::plain(missing.symbol.name, ErrorKind::Missing(missing))
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::plain("HcclCommConfig", ErrorKind::Config(error))
    }
}

/// Turns a code of AscendCL into a result, reading the library's text on failure.
///
/// # Errors
/// For every code but success.
pub fn check_acl(libs: &Libraries, symbol: &'static str, code: AclError) -> Result<()> {
    if code == AclError::SUCCESS {
        return Ok(());
    }
    Err(Error::returned(libs, symbol, ErrorKind::Acl(code)))
}

/// Turns a code of HCCL into a result, reading the library's text on failure.
///
/// # Errors
/// For every code but success.
pub fn check_hccl(libs: &Libraries, symbol: &'static str, code: HcclResult) -> Result<()> {
    if code == HcclResult::SUCCESS {
        return Ok(());
    }
    Err(Error::returned(libs, symbol, ErrorKind::Hccl(code)))
}

/// The library's text of this thread's last error. Reading may consume it.
#[must_use]
pub fn recent_text(libs: &Libraries) -> Option<String> {
    let read = libs.acl.aclGetRecentErrMsg().ok()?;
    // SAFETY: the function takes nothing and returns null or a string.
    let text = unsafe { read() };
    copy_text(text).filter(|text| !text.trim().is_empty())
}

/// Copies a string the library just returned; null gives `None`.
fn copy_text(text: *const std::ffi::c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not null, so a string of the library that ends in a zero byte and lives until this thread's next call.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}

/// Declares the functions of a layer. `unsafe fn` hands the caller's handles and addresses on; `fn` takes only numbers.
/// `out T` is the call's result by pointer, first or last among its arguments.
macro_rules! calls {
    ($table:ident, $check:ident; $($rest:tt)*) => { calls!(@each $table $check $($rest)*); };
    (@each $table:ident $check:ident) => {};
    (@each $table:ident $check:ident
        $(#[$doc:meta])* unsafe fn $name:ident = $c:ident($($arg:ident: $ty:ty),*); $($rest:tt)*) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// When the call fails or the library lacks it.
        ///
        /// # Safety
        /// Handles are alive and of this library; addresses are valid for what the call does with them, until it has
        /// done it: for calls that enqueue on a stream, until the stream has passed them.
        #[expect(clippy::allow_attributes, reason = "only some of these functions have many arguments")]
        #[allow(clippy::too_many_arguments, reason = "the C interface has as many")]
        pub unsafe fn $name(libs: &Libraries, $($arg: $ty),*) -> Result<()> {
            let call = libs.$table.$c()?;
            // SAFETY: the caller answers for handles and addresses.
            let code = unsafe { call($($arg),*) };
            $check(libs, stringify!($c), code)
        }
        calls!(@each $table $check $($rest)*);
    };
    (@each $table:ident $check:ident
        $(#[$doc:meta])* fn $name:ident = $c:ident($($arg:ident: $ty:ty),*); $($rest:tt)*) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// When the call fails or the library lacks it.
        pub fn $name(libs: &Libraries, $($arg: $ty),*) -> Result<()> {
            let call = libs.$table.$c()?;
            // SAFETY: the call takes numbers only.
            let code = unsafe { call($($arg),*) };
            $check(libs, stringify!($c), code)
        }
        calls!(@each $table $check $($rest)*);
    };
    (@each $table:ident $check:ident
        $(#[$doc:meta])* fn $name:ident = $c:ident(out $out:ty = $init:expr $(, $arg:ident: $ty:ty)*);
        $($rest:tt)*) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// When the call fails or the library lacks it.
        pub fn $name(libs: &Libraries $(, $arg: $ty)*) -> Result<$out> {
            let call = libs.$table.$c()?;
            let mut out: $out = $init;
            // SAFETY: the call takes numbers, and writes one value of the type of `out`.
            let code = unsafe { call(&raw mut out $(, $arg)*) };
            $check(libs, stringify!($c), code)?;
            Ok(out)
        }
        calls!(@each $table $check $($rest)*);
    };
    (@each $table:ident $check:ident
        $(#[$doc:meta])* unsafe fn $name:ident = $c:ident($($arg:ident: $ty:ty),*; out $out:ty = $init:expr);
        $($rest:tt)*) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// When the call fails or the library lacks it.
        ///
        /// # Safety
        /// Handles are alive and of this library; addresses are valid for what the call does with them.
        pub unsafe fn $name(libs: &Libraries, $($arg: $ty),*) -> Result<$out> {
            let call = libs.$table.$c()?;
            let mut out: $out = $init;
            // SAFETY: the caller answers for handles and addresses; the call writes one value of the type of `out`.
            let code = unsafe { call($($arg),*, &raw mut out) };
            $check(libs, stringify!($c), code)?;
            Ok(out)
        }
        calls!(@each $table $check $($rest)*);
    };
}

use calls;
