//! Guards: each owns one object of the library, keeps alive what it depends on, and gives it back when dropped.
//!
//! ```text
//! Device <- Context <- Stream  <- Comm
//!                   <- Event
//!                   <- DeviceMemory
//! ```
//!
//! - A guard keeps the guards left of it alive, so they may be dropped in any order.
//! - AscendCL binds a device to a thread, so guards stay on the thread that made them: they are neither `Send` nor
//!   `Sync`. One worker thread a device is the shape to use.
//! - A drop never panics. What fails there is kept: [`Libraries::take_drop_errors`](crate::Libraries::take_drop_errors).
//! - AscendCL is initialised with the first [`Device`] and never finalised: a process can initialise it only once.
//! - Enqueueing work that uses buffers is `unsafe` and done through [`result`](crate::result): who enqueues must keep the
//!   buffers until the stream has passed.

mod comm;
mod device;
mod memory;
mod stream;

pub use comm::{Comm, RankTableComm, RootInfoComm};
pub use device::{Context, Device};
pub use memory::DeviceMemory;
pub use stream::{Event, Stream};
