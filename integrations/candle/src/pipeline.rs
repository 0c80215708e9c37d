//! Training through a pipeline: any candle code as a stage, on as many ranks as the model needs, with replicas.
//!
//! ```text
//! pipe.step            activations ->, <- gradients; each stage adds up its weights' gradients
//! replicas.local       Grads<Local>: the sums of this rank's stages
//! replicas.sync        Grads<Synced>: the mean over the replicas, tied weights added up
//! optimizer.step       takes nothing else
//! ```
//!
//! Two ranks, each with half of a model, train it for two steps:
//!
//! ```
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::{VarBuilder, VarMap, linear, loss::mse};
//! use hccl::pipeline::{self, Costs, Fixed, Plan, Schedule};
//! use hccl_candle::pipeline::{Microbatches, Replicas, StageWeights, TensorAct, TensorStage, loss};
//! use hccl_candle::{Optimizer, Options, Sgd, SgdConfig};
//!
//! hccl::dim!(Batch);
//! type X = TensorAct<f32, (Batch, Fixed<4>)>;
//! type Y = TensorAct<f32, (Batch, Fixed<1>)>;
//!
//! let losses = hccl_candle::local(2, |comm| {
//!     let (weights, map) = (StageWeights::new(), VarMap::new()); // of this rank
//!     let vb = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
//!     let plan = Plan::new(Schedule::OneFOneB, comm.size(), 3, Costs::default())?;
//!     let mut pipe = pipeline::train(&comm, plan)
//!         .stage::<TensorStage<X, X>>(|at| {
//!             let body = linear(4, 4, vb.pp("body"))?;
//!             weights.stage(at, &map, move |x| body.forward(x)?.tanh())
//!         })
//!         .stage::<TensorStage<X, Y>>(|at| {
//!             let head = linear(4, 1, vb.pp("head"))?;
//!             weights.stage(at, &map, move |x| head.forward(x))
//!         })
//!         .build()?;
//!     let mut replicas = Replicas::alone(&weights, pipe.plan(), &comm, Options::default())?;
//!     let mut sgd = Sgd::new(replicas.parameters(), SgdConfig { lr: 0.1, ..SgdConfig::default() })?;
//!
//!     let (x, y) = (Tensor::ones((7, 4), DType::F32, &Device::Cpu)?, Tensor::ones((7, 1), DType::F32, &Device::Cpu)?);
//!     let parts = Microbatches::new(7, 3)?; // 3, 2 and 2 samples: the step is that of one batch of 7
//!     let mut losses = Vec::new();
//!     for _ in 0..2 {
//!         let step = pipe.step(
//!             |microbatch| Ok(X::new(parts.of(&x, microbatch)?)?),                    // on the first rank
//!             |microbatch, output| {                                                  // on the last
//!                 let target = parts.of(&y, microbatch)?;
//!                 loss(output, parts.share(microbatch), |output| mse(output, &target))
//!             },
//!         )?;
//!         let grads = replicas.local(1.0)?;
//!         sgd.step(&replicas.sync(grads)?)?;
//!         losses.push(step.sum());
//!     }
//!     Ok(losses)
//! })?;
//! assert!(losses[0][1] < losses[0][0]);
//! assert_eq!(losses[0], losses[1]); // every rank is told
//! # Ok::<(), hccl_candle::Error>(())
//! ```
//!
//! # What is promised
//!
//! - Weights after any number of steps are those of one process within rounding, whatever the schedule, the ranks and the
//!   replicas.
//! - A stage keeps one gradient a weight, in f32 (f64 for F64 weights), whatever the number of microbatches.
//! - Received activations and gradients become tensors in the memory that they were received into; contiguous ones are
//!   sent from where they are. Between two stages of one rank, and before the loss, an activation is copied once.
//! - Gradients on the edges are f32 ([`Start::grad_wire`](hccl::pipeline::Start::grad_wire) halves them on the way).
//! - An error of the model on one rank ends the step on every rank, with that error.
//!
//! # With replicas
//!
//! Lay the ranks out as `Mesh::new(&world, (Dp(d), Pp(p)))`, give `mesh.group::<Pp>()` to
//! [`train`](hccl::pipeline::train) and both groups to [`Replicas::new`]. [`Replicas::local`] then takes the replica's
//! samples as its weight.
//!
//! # Zero-bubble schedules
//!
//! `zb_h1` and `zb_v` gain where weight parts can wait. candle's backward pass computes both parts at once; the layers of
//! [`split`] do not. Add such stages with `split_stage` instead of `stage`.

mod microbatches;
mod payload;
mod replicas;
pub mod split;
mod stage;
mod weights;

pub use microbatches::{Microbatches, loss};
pub use payload::{Gradient, Scalar, TensorAct, TensorPayload};
pub use replicas::Replicas;
pub use stage::{Saved, TensorStage};
pub use weights::StageWeights;
