//! Pipelines: stages on different ranks, joined by types, run by plans that are proved before they run.
//!
//! ```text
//! one_f_one_b: 2 ranks, 3 microbatches, 12 ticks; idle 25.0 % of the time (33.3 % of the work)
//! rank 0 |F0 F1 .  .  B0 B0 F2 B1 B1 .  B2 B2
//! rank 1 |.  F0 B0 B0 F1 B1 B1 F2 B2 B2
//! a column is 1 tick; F forward, B backward; . waits, = transfers
//! no time lost to blocking messages
//! ```
//!
//! A stage is ordinary Rust with types in its signature; [`stage`](macro@crate::stage) reads them. One
//! [declaration](macro@crate::pipeline) joins stages and says the order of work. Nobody but the pipeline sends or receives:
//!
//! ```
//! use hccl::pipeline::{Act, Grad, StageResult};
//!
//! hccl::dim!(Batch); // one length a microbatch
//! type X = Act<f32, (Batch,)>;
//!
//! struct Scale { weight: f32, grad: f32 }
//! struct Shift { bias: f32, grad: f32 }
//!
//! #[hccl::stage]
//! impl Scale {
//!     fn forward(&self, x: X) -> StageResult<(X, X)> {
//!         Ok((x.clone().map(|x| x * self.weight), x)) // the output, and what the backward pass needs
//!     }
//!
//!     fn backward(&mut self, x: X, grad: Grad<X>) -> StageResult<Grad<X>> {
//!         self.grad += x.data().iter().zip(grad.data()).map(|(x, g)| x * g).sum::<f32>();
//!         Ok(grad.map(|g| g * self.weight))
//!     }
//! }
//!
//! #[hccl::stage]
//! impl Shift {
//!     fn forward(&self, x: X) -> StageResult<(X, ())> {
//!         Ok((x.map(|x| x + self.bias), ()))
//!     }
//!
//!     fn backward(&mut self, (): (), grad: Grad<X>) -> StageResult<Grad<X>> {
//!         self.grad += grad.data().iter().sum::<f32>();
//!         Ok(grad)
//!     }
//! }
//!
//! hccl::pipeline! {
//!     struct Line = Scale => Shift;
//!     schedule = one_f_one_b(microbatches = 4); // checked while this compiles
//! }
//!
//! let losses = hccl::local(Line::RANKS, |comm| {
//!     let mut line = Line::train(&comm, |role| {
//!         Ok(match role { // for this rank's stages; all roles are handled
//!             LineRole::Scale(at) => at.hold(Scale { weight: 2.0, grad: 0.0 }),
//!             LineRole::Shift(at) => at.hold(Shift { bias: 1.0, grad: 0.0 }),
//!         })
//!     })?;
//!     let losses = line.step(
//!         |microbatch| Ok(Act::new([2], vec![microbatch as f32, 1.0])?), // called on rank 0
//!         |_, y| Ok((f64::from(y.data().iter().sum::<f32>()), y.map(|_| 1.0))), // on rank 1: loss and its gradient
//!     )?;
//!     line.stages_mut::<Scale>().for_each(|(_, scale)| assert_eq!(scale.grad, 10.0)); // the sum of all inputs
//!     line.stages_mut::<Shift>().for_each(|(_, shift)| assert_eq!(shift.grad, 8.0));
//!     Ok(losses)
//! })?;
//! assert_eq!(losses[0].as_slice(), [4.0, 6.0, 8.0, 10.0]);
//! assert_eq!(losses[0], losses[1]); // the same on every rank
//! # Ok::<(), hccl::Error>(())
//! ```
//!
//! Inference, where the number of stages is that of the ranks there are. The same without macros is [`infer`] and its
//! [`Builder`]; [the guide](guide) goes from one process to a pipeline, and to a ring that generates token by token:
//!
//! ```
//! use hccl::pipeline::{self, Act, Costs, Dyn, Flow, Plan, Schedule, StageResult};
//!
//! struct Add(f32);
//!
//! #[hccl::stage]
//! impl Add {
//!     fn forward(&self, x: Act<f32, (Dyn,)>) -> StageResult<Act<f32, (Dyn,)>> {
//!         Ok(x.map(|x| x + self.0))
//!     }
//! }
//!
//! hccl::pipeline! {
//!     struct Chain = Add * _; // as many as there are ranks
//!     schedule = fill_drain(microbatches = _); // an argument of `infer`
//! }
//!
//! hccl::local(3, |comm| {
//!     let mut chain = Chain::infer(&comm, 5, |ChainRole::Add(at)| Ok(at.hold(Add(at.index() as f32))))?;
//!     chain.run(
//!         |microbatch| Ok(Act::new([1], vec![microbatch as f32])?),
//!         |microbatch, y| Ok(assert_eq!(y.data(), [microbatch as f32 + 3.0])),
//!     )?;
//!
//!     let plan = Plan::new(Schedule::ForwardOnly(Flow::FillDrain), comm.size(), 5, Costs::default())?;
//!     let mut same = pipeline::infer(&comm, plan).stages(3, |at| Ok(Add(at.index() as f32))).build()?;
//!     same.run(|_| Ok(Act::new([1], vec![0.0])?), |_, y| Ok(assert_eq!(y.data(), [3.0])))
//! })?;
//! # Ok::<(), hccl::Error>(())
//! ```
//!
//! # What is promised
//!
//! - A stage's input is the output of the stage before, by type: element, number and names of dimensions. Stages that do
//!   not fit do not compile.
//! - A stage is made on the rank that holds it, and nowhere else: its constructor gets an [`At`], which exists there only.
//! - Messages go in the order of a [`Plan`], which cannot deadlock on a transport that buffers nothing. Each carries plan,
//!   step, edge, direction, microbatch, dtype and lengths, and is compared before its payload is touched.
//! - The ranks compare plan and stages once, when the pipeline is built.
//! - Named dimensions have one length a microbatch. A stage that makes another one is an error on its own rank, before
//!   anything is sent. Microbatches may differ from each other, and steps too.
//! - What a forward pass saves is moved into the backward pass of the same microbatch: it is used once.
//! - A stage that returns an error or panics ends the step on every rank, with that error, at once; a rank that computes
//!   sees it when it next sends or receives. So does a rank that is killed, as `PeerLost`.
//! - Gradients are f32 (f64 for f64 payloads) where stages see them; [`Start::grad_wire`] halves them on the way.
//! - The memory of payloads that were sent takes the next ones that arrive, where payloads give it back ([`Act`] does).
//!
//! # Which schedule
//!
//! [`Schedule`] lists them; [`hccl_plan`] compares their time and memory. Start with `one_f_one_b`. `zb_h1` and `zb_v`
//! gain where stages are [`SplitTrain`]; with whole backward passes they run, and gain nothing.

mod build;
mod bytes;
mod chunk;
mod fault;
mod grads;
mod group;
mod header;
mod infer;
mod lane;
mod payload;
mod rehearse;
mod run;
mod shape;
mod stage;
#[cfg(test)]
mod tests;
mod trace;
mod train;

#[doc = include_str!("../docs/pipeline.md")]
pub mod guide {}

pub use build::{Builder, Inferring, Mode, Start, Training, infer, train};
pub use grads::{Grads, Local, State, Synced, Synchronised};
pub use group::{Group, PerRank};
#[doc(inline)]
pub use hccl_plan::{
    Action, Blocked, Bubble, Channel, Costs, Direction, Flow, Loss, Message, Phase, Plan, PlanError, Schedule, Span,
    Timeline, Work,
};
pub use infer::{Inference, Reply, Ring, Said, Turn};
pub use payload::{Act, NoGrad, Payload, Returns, Wire};
pub use rehearse::{Rehearsal, rehearse};
pub use shape::{Dim, DimSpec, Dims, Dyn, Fixed, MOST_DIMS, Shape};
#[doc(hidden)]
pub use stage::IntoChunk;
pub use stage::{At, BoxError, Grad, Held, Pass, SplitTrain, Stage, StageResult, Train};
pub use train::{Losses, Trainer};
