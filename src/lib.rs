//! Typed collective communication for Rust machine learning: what the compiler can check, it checks.
//!
//! ```text
//! rank 0  [a0 b0] --+       +-->  [a0+a1 b0+b1]
//!                   +- Sum -+
//! rank 1  [a1 b1] --+       +-->  [a0+a1 b0+b1]
//! ```
//!
//! Ranks are threads of one process ([`local()`]) or processes of one host ([`Communicator::from_env`]); the program is
//! the same.
//!
//! ```
//! use hccl::prelude::*;
//!
//! let comm = Communicator::from_env()?; // a world of one when nothing launched it
//! let grads = comm.upload(&[comm.rank().index() as f32; 1024])?; // DeviceBuffer<f32>
//! let op = comm.all_reduce_async(grads, Avg)?; // moved: reading `grads` now does not compile
//! let grads = op.wait()?; // the same memory, reduced
//! let mut bias = vec![0f32; 64];
//! comm.all_reduce(&mut bias, Sum)?; // blocking, in place: slice, array, Vec or DeviceBuffer
//! comm.broadcast(&mut bias, comm.root(0)?)?; // roots and peers are checked values of this group
//! # let _ = grads;
//! # Ok::<(), hccl::Error>(())
//! ```
//!
//! What does not compile: an average of integers, a buffer read while a call owns it, a communicator shared between
//! threads, a root of another axis, elements that no backend understands.
//!
//! | to | look at |
//! | --- | --- |
//! | exchange data | [`communicator`]: the collectives, their contract, their three forms |
//! | overlap with computing | [`pending`] for owned buffers, [`scope`] for borrowed ones |
//! | run ranks as threads | [`local`](mod@local) |
//! | talk within part of the ranks | [`Communicator::split`], [`Communicator::group`], [`mesh`] |
//! | know the element types and operations | [`element`], [`reduce`] |
//! | plan a pipeline of stages and microbatches | [`pipeline`] |
//! | hold memory that moves without a copy | [`buffer`] |
//! | understand an error | [`error`] |
//! | set deadlines | [`options`] |

mod backend;
pub mod buffer;
pub mod communicator;
pub mod device;
pub mod element;
pub mod error;
mod flight;
pub mod group;
#[cfg(target_os = "linux")]
pub mod launch;
pub mod local;
mod memory;
pub mod mesh;
pub mod options;
pub mod pending;
pub mod pipeline;
pub mod prelude;
pub mod reduce;
mod rendezvous;
pub mod scope;
mod sys;

pub use buffer::{DeviceBuffer, DeviceSlice, DeviceSliceMut};
pub use communicator::{AbortHandle, Batch, Builder, Communicator};
pub use device::Device;
pub use element::{DType, Element, Float, Numeric};
pub use error::{Error, ErrorKind, Loss, Result};
pub use flight::OwnedBuffer;
pub use group::{Axis, Dp, Peer, Pp, Rank, Root, Tp, World};
pub use local::{local, local_results, try_local};
pub use memory::{InPlace, Source};
pub use mesh::{HasAxis, Mesh, MeshAxes};
pub use pending::{Failed, Pending, Refused};
pub use reduce::{Avg, Max, Min, OpKind, Prod, ReduceOp, Sum};
pub use scope::{Borrowed, Scope};

/// The README's examples run with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
