//! Typed collective communication for Rust machine learning.

#![allow(dead_code, reason = "parts are still joined")]
mod backend;
mod options;
mod sys;
pub mod element;
pub mod error;
pub mod reduce;

pub use element::{DType, Element, Float, Numeric};
pub use error::{Error, ErrorKind, Loss, Result};
pub use reduce::{Avg, Max, Min, OpKind, Prod, ReduceOp, Sum};
