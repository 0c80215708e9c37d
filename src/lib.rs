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
//! | declare a pipeline, train it, run it, generate with it | [`pipeline`](mod@pipeline), [its guide](pipeline::guide) |
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

/// Makes an `impl` block, or a function, a stage of a pipeline.
///
/// The block stays as it is: ordinary Rust. The macro reads the types in its signatures and implements the trait that
/// they fit:
///
/// | functions | makes it |
/// | --- | --- |
/// | `forward(&self, input: In) -> Result<Out>` | [`Stage`](crate::pipeline::Stage): inference |
/// | that with `-> Result<(Out, Saved)>`, and `backward(&mut self, saved: Saved, grad: Grad<Out>) -> Result<Grad<In>>` | [`Train`](crate::pipeline::Train) |
/// | `backward_input(…) -> Result<(Grad<In>, Queued)>` and `backward_weight(&mut self, queued: Queued) -> Result<()>` instead of `backward`, or beside it | [`SplitTrain`](crate::pipeline::SplitTrain) too |
/// | `release(&mut self, slot: usize)`, if it likes | told when a slot of a ring is free |
///
/// Each takes `&self` or `&mut self`; `forward` may take a [`Pass`](crate::pipeline::Pass) before its input. `Result` may be of
/// any error, and any alias whose name ends in `Result`. On a function, `#[stage]` makes a type of the function's name, or of
/// `name = Name`. `crate = "path"` says where `hccl` is when it was renamed.
///
/// ```
/// use hccl::pipeline::{Act, Dyn, StageResult};
///
/// struct Scale(f32);
///
/// #[hccl::stage]
/// impl Scale {
///     fn forward(&self, x: Act<f32, (Dyn,)>) -> StageResult<Act<f32, (Dyn,)>> {
///         Ok(x.map(|x| x * self.0))
///     }
/// }
///
/// #[hccl::stage]
/// fn round(x: Act<f32, (Dyn,)>) -> StageResult<Act<f32, (Dyn,)>> {
///     Ok(x.map(f32::round)) // the stage `Round`
/// }
///
/// hccl::pipeline! {
///     struct Net = Scale => Round;
///     schedule = fill_drain(microbatches = 1);
/// }
/// assert_eq!(Net::RANKS, 2);
/// ```
#[doc(inline)]
pub use hccl_macros::stage;

/// Declares a pipeline: its stages, its schedule, what returns. The plan is checked while this compiles.
///
/// ```text
/// pub struct Name = First => Middle * 2 => Last;      stages; `* 2` neighbours of one type, `* _` as many as ranks are left,
///                                                     `Role: path::Type` to name a role
/// schedule = one_f_one_b(microbatches = 8);           gpipe, one_f_one_b, interleaved(2, …), zb_h1, zb_v: `Name::train`
///                                                     fill_drain(…), ring(slots = 4, rounds = 64): `Name::infer`
/// feedback = Last => First: Act<u32, (Fixed<1>,)>;    in a ring: what returns to the first stage
/// grad = bf16;                                        gradients on their way: f32 (else), bf16, f16
/// costs = (1, 1, 1);                                  ticks of forward, backward, weight part: see `Costs`
/// order { rank 0 { F0, send F0, recv B0, B0 } … }     an order of your own, proved free of deadlock
/// crate = "path";                                     where `hccl` is, when it was renamed
/// ```
///
/// Each number is a literal, a constant, an expression in parentheses, or `_`: then it is an argument of the generated
/// functions. Where all are literals, the plan is made and checked here, and a schedule that cannot run does not compile;
/// else when the pipeline is built.
///
/// It makes the type `Name` with `plan`, `RANKS` and `DIGEST` (for literals), and `train` or `infer`; and the enum
/// `NameRole`, one variant a stage. `train` and `infer` take the communicator, the numbers that are `_`, and a function from
/// a role to the stage that it holds: it is called for this rank's stages, and must handle all.
///
/// [`pipeline`](mod@crate::pipeline) and [its guide](crate::pipeline::guide) have examples.
#[doc(inline)]
pub use hccl_macros::pipeline;

/// The README's examples run with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
