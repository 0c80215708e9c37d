//! The C interface as it is: types, constants and tables of optional functions.
//!
//! Names, order and sizes are those of the C interface, so that a call can be looked up in the vendor's documentation by
//! the same word. Sizes and offsets are asserted when this crate is compiled.

mod acl;
mod acl_calls;
mod acl_errors;
mod codes;
mod config;
mod hccl;
mod hccl_calls;
mod table;

pub use acl::*;
pub use acl_calls::AclTable;
pub use acl_errors::AclError;
pub use config::*;
pub use hccl::*;
pub use hccl_calls::HcclTable;
pub(crate) use table::Address;
pub use table::{MissingSymbol, Origin, Symbol};
