//! What most programs need: `use hccl::prelude::*;`.
//!
//! ```
//! use hccl::prelude::*;
//! let sums = hccl::local(2, |comm| {
//!     let mut x = vec![1.0f32; 3];
//!     comm.all_reduce(&mut x, Sum)?;
//!     Ok(x)
//! })?;
//! assert_eq!(sums, vec![vec![2.0; 3]; 2]);
//! # Ok::<(), hccl::Error>(())
//! ```

pub use crate::buffer::DeviceBuffer;
pub use crate::communicator::{AbortHandle, Communicator};
pub use crate::device::Device;
pub use crate::element::{Element, Float, Numeric};
pub use crate::flight::OwnedBuffer;
pub use crate::group::{Axis, Dp, Peer, Pp, Rank, Root, Tp, World};
pub use crate::memory::{InPlace, Source};
pub use crate::mesh::Mesh;
pub use crate::pending::Pending;
pub use crate::reduce::{Avg, Max, Min, Prod, ReduceOp, Sum};
