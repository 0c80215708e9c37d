//! candle on hccl: collectives on tensors, data-parallel training, layers, optimizers and checkpoints.
//!
//! | module | holds |
//! | --- | --- |
//! | [`tensor`] | collectives and messages of tensors: [`TensorCollectives`] |
//! | [`ops`] | collectives that candle can differentiate |
//! | [`data_parallel`] | [`DataParallel`]: replicas, buckets, overlap, accumulation, checks |
//! | [`grads`] | [`Grads<Local>`](Grads) and [`Grads<Synced>`](Grads), clipping |
//! | [`optim`], [`schedule`], [`init`] | optimizers with a state, learning rates, initial values |
//! | [`pipeline`] | stages of candle code on several ranks, their replicas, layers with a queued weight part |
//! | [`checkpoint`] | [`Checkpoints`]: written whole or not at all, resumed bit for bit |
//! | [`sampler`] | which samples each rank takes |
//! | [`nn`] | layers that candle lacks for training, models in segments |
//!
//! candle has no tensors on an Ascend NPU: everything here runs on CPU tensors, over whatever engine hccl runs on.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::{Module, VarBuilder, VarMap, linear, loss::mse};
//! use hccl_candle::{DataParallel, Optimizer, Options, Sgd, SgdConfig};
//!
//! let weights = hccl_candle::local(2, |comm| {
//!     let rank = comm.rank().index();
//!     let map = VarMap::new();
//!     let model = linear(2, 1, VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu))?;
//!     let mut dp = DataParallel::new(comm, &map, Options::default())?;
//!     let mut sgd = Sgd::new(dp.parameters(), SgdConfig { lr: 0.1, ..SgdConfig::default() })?;
//!     for _ in 0..2 {
//!         let x = Tensor::full(rank as f32, (3, 2), &Device::Cpu)?;        // each rank its own samples
//!         let loss = mse(&model.forward(&x)?, &Tensor::ones((3, 1), DType::F32, &Device::Cpu)?)?;
//!         let grads = dp.backward(&loss)?;                                  // Grads<Local>
//!         let grads = dp.sync(grads)?;                                      // Grads<Synced>: the mean over ranks
//!         sgd.step(&grads)?;                                                // takes nothing else
//!     }
//!     Ok(model.weight().flatten_all()?.to_vec1::<f32>()?)
//! })?;
//! assert_eq!(weights[0], weights[1]);
//! # Ok::<(), hccl_candle::Error>(())
//! ```

mod digest;
mod storage;

pub mod checkpoint;
pub mod data_parallel;
pub mod error;
pub mod grads;
pub mod init;
pub mod nn;
pub mod ops;
pub mod optim;
pub mod pipeline;
pub mod sampler;
pub mod schedule;
pub mod tensor;

pub use checkpoint::{Checkpoints, Loaded, Progress};
pub use data_parallel::{Buffers, DataParallel, Options, Parameters, Segmented, SyncStats, Unused, Wire};
pub use error::{Error, Result};
pub use grads::{Grads, Local, Synced, clip_grad_norm};
pub use ops::SharedComm;
pub use optim::{AdamW, AdamWConfig, Optimizer, OptimizerState, Sgd, SgdConfig};
pub use schedule::Schedule;
pub use tensor::TensorCollectives;

use hccl::Communicator;

/// Runs `f` on `n` ranks as threads of this process: [`hccl::try_local`] with this crate's [`Error`], so that `?` takes
/// candle's errors too.
///
/// # Errors
/// The error of the first rank whose failure is no mere consequence of another's.
///
/// ```
/// let ranks = hccl_candle::local(2, |comm| Ok(comm.rank().index()))?;
/// assert_eq!(ranks, [0, 1]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
pub fn local<R: Send>(n: usize, f: impl Fn(Communicator) -> Result<R> + Sync) -> Result<Vec<R>> {
    hccl::try_local(n, f)
}
