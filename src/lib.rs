//! Typed collective communication for Rust machine learning.

pub mod element;
pub mod error;
#[cfg(target_os = "linux")]
pub mod launch;
pub mod reduce;
mod rendezvous;

pub use element::{DType, Element, Float, Numeric};
pub use error::{Error, ErrorKind, Loss, Result};
pub use reduce::{Avg, Max, Min, OpKind, Prod, ReduceOp, Sum};
