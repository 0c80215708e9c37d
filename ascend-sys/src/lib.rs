//! AscendCL and HCCL, declared by hand and loaded at run time.
//!
//! Nothing of the vendor's toolkit is needed to build: the libraries are looked for when the program runs, every symbol
//! in them is optional, and what is missing is an error that names the paths tried and the symbol wanted.
//!
//! **Proved against stand-in libraries only.** The declarations follow the documented C interface; none of this has run
//! on an Ascend device yet. The text, the names of types and the error explanations are this project's own.
//!
//! Three layers, from the bottom:
//!
//! | layer | what it gives |
//! | --- | --- |
//! | [`sys`] | C types with asserted layouts, and one table of optional functions per library |
//! | [`result`] | one thin function per call, returning [`Error`] with the code, the symbol and the library's own text |
//! | [`safe`] | guards: [`Device`](safe::Device), [`Context`](safe::Context), [`Stream`](safe::Stream), [`Event`](safe::Event), [`DeviceMemory`](safe::DeviceMemory), [`Comm`](safe::Comm) |
//!
//! - Libraries are opened by absolute path, never through the working directory, and never closed again.
//! - Integers of the interface are newtypes, not enums: a newer library may return a value this crate has no name for.
//! - Nothing here panics because of what a library does or lacks; an error met in `drop` is kept, see
//!   [`Libraries::take_drop_errors`].
//!
//! A program that wants Ascend when it is there asks once and keeps the answer:
//!
//! ```
//! match ascend_sys::libraries() {
//!     Ok(libs) => println!("HCCL from {}", libs.hccl.origin()),
//!     Err(missing) => println!("no Ascend here: {missing}"),
//! }
//! ```
//!
//! The codes explain themselves, with or without a library:
//!
//! ```
//! use ascend_sys::sys::HcclResult;
//! let text = HcclResult(9).to_string();
//! assert!(text.starts_with("HCCL_E_TIMEOUT (9)"), "{text}");
//! assert_eq!(HcclResult(77).to_string(), "HcclResult 77 (unknown to this version of ascend-sys)");
//! ```

pub mod diagnostic;
pub mod install;
pub mod loader;
pub mod result;
pub mod safe;
pub mod sys;

pub use diagnostic::Report;
pub use loader::{Libraries, LoadError, Search, libraries};
pub use result::{Error, ErrorKind, Result};
