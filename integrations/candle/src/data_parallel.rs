//! Data parallelism: every rank holds the whole model, computes on its own samples, and steps with the mean gradient.
//!
//! ```text
//! rank 0  batch 0 -> forward -> backward -> Grads<Local> --+                    +--> step: the same bits
//!                                                          +-- weighted mean ---+
//! rank 1  batch 1 -> forward -> backward -> Grads<Local> --+   (in buckets)     +--> step: the same bits
//! ```
//!
//! - **Replicas start equal and stay equal.** Names, shapes, dtypes and options are compared when a [`DataParallel`] is
//!   made, and rank 0's values are copied to all. Gradients have the same bits on all ranks, whatever the bucket sizes
//!   and whoever comes first. [`check_replicas`](DataParallel::check_replicas) proves it, every k steps if asked.
//! - **Order** comes from names, never from a map's iteration.
//! - **Weights.** Ranks and batches count by their weight: `sum(w * g) / sum(w)`. With losses that are means over a batch
//!   and weights that are its samples, that is the gradient of the mean over all samples of all ranks, also when batches
//!   are uneven; a rank without samples gives weight 0. Without weights every batch counts the same.
//! - **Overlap.** candle's backward pass calls nobody. [`backward_segments`](DataParallel::backward_segments) takes it in
//!   pieces and reduces one piece's gradients while the next is computed; [`sync`](DataParallel::sync) is for models
//!   that are not cut.
//! - **Collectives.** Every rank calls the same methods in the same order. Calls that synchronise are marked below; they
//!   run on the calling thread, which must not be one of a thread pool that other ranks' computation needs.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::{Module, VarBuilder, VarMap, linear, loss::mse};
//! use hccl_candle::{DataParallel, Optimizer, Options, Sgd, SgdConfig};
//!
//! let checksums = hccl_candle::local(2, |comm| {
//!     let rank = comm.rank().index();
//!     let map = VarMap::new();
//!     let model = linear(3, 1, VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu))?;   // random on each rank
//!     let mut dp = DataParallel::new(comm, &map, Options::default())?;                      // now rank 0's on all
//!     let mut sgd = Sgd::new(dp.parameters(), SgdConfig { lr: 0.1, momentum: 0.9, ..SgdConfig::default() })?;
//!     for _ in 0..3 {
//!         let x = Tensor::full(rank as f32 + 1.0, (4, 3), &Device::Cpu)?;
//!         let loss = mse(&model.forward(&x)?, &Tensor::ones((4, 1), DType::F32, &Device::Cpu)?)?;
//!         let grads = dp.backward(&loss)?;
//!         sgd.step(&dp.sync(grads)?)?;
//!     }
//!     dp.check_replicas()
//! })?;
//! assert_eq!(checksums[0], checksums[1]);
//! # Ok::<(), hccl_candle::Error>(())
//! ```

mod agree;
mod buffers;
mod options;
mod parameters;
mod plan;
mod round;
mod segments;
mod wire;

pub use options::{Buffers, Options, Unused, Wire};
pub use parameters::Parameters;
pub use segments::Segmented;

pub(crate) use agree::{agree, check_replicas};
pub(crate) use parameters::{describe, of_map};
pub(crate) use wire::gradient_dtype;

use crate::error::{Error, Result};
use crate::grads::{Grads, Local, Synced, same_parameters, scale};
use crate::tensor::TensorCollectives;
use buffers::BufferSet;
use candle_core::backprop::GradStore;
use candle_core::{Tensor, Var};
use candle_nn::VarMap;
use hccl::{Axis, Communicator, DeviceBuffer, World};
use plan::Plan;
use round::Round;
use std::time::Duration;

/// What one synchronisation took.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct SyncStats {
    /// How long this rank stood still for it: not what ran beside its backward pass.
    pub wait: Duration,
    /// Bytes of gradients on the wire, a rank.
    pub bytes: usize,
    /// How many buckets carried them.
    pub buckets: usize,
}

/// One rank's replica of a model. The [module page](self) is the contract.
#[derive(Debug)]
pub struct DataParallel<A: Axis = World> {
    comm: Communicator<A>,
    parameters: Parameters,
    buffers: BufferSet,
    options: Options,
    plan: Plan,
    /// Gradients of batches that are not synchronised yet, and how many batches.
    held: Option<Grads<Local>>,
    batches: usize,
    /// Weight and presence flags of a synchronisation.
    control: Option<DeviceBuffer<f64>>,
    syncs: u64,
}

impl<A: Axis> DataParallel<A> {
    /// A replica of the variables of a map: those declared as buffers are buffers, the rest are parameters. Collective.
    ///
    /// Compares names, shapes, dtypes and options with the other ranks', then takes over rank 0's values.
    ///
    /// # Errors
    /// [`Error::Mismatch`] on every rank, naming the first difference and both sides; an integer variable that is not
    /// declared as a buffer; a lost peer.
    pub fn new(comm: Communicator<A>, map: &VarMap, options: Options) -> Result<Self> {
        Self::from_vars(comm, of_map(map), options)
    }

    /// [`new`](Self::new) from named variables.
    ///
    /// # Errors
    /// As there; also a name that comes twice.
    pub fn from_vars(
        comm: Communicator<A>,
        vars: impl IntoIterator<Item = (String, Var)>,
        options: Options,
    ) -> Result<Self> {
        options.check()?;
        let (buffers, parameters): (Vec<_>, Vec<_>) =
            vars.into_iter().partition(|(name, _)| options.policy(name).is_some());
        let parameters = Parameters::new(parameters)?;
        let buffers = BufferSet::new(buffers, &options)?;
        let mut lines = parameters.lines();
        lines.extend(buffers.lines());
        lines.extend(options.lines());
        agree(&comm, "parameters, buffers or options", &lines)?;
        for (_, var) in parameters.iter().chain(buffers.iter()) {
            comm.broadcast_tensor(var, comm.root(0)?)?;
        }
        let plan = Plan::whole(&parameters, &options);
        Ok(DataParallel { comm, parameters, buffers, options, plan, held: None, batches: 0, control: None, syncs: 0 })
    }

    /// The communicator, for further calls in the same order on all ranks.
    pub fn comm(&self) -> &Communicator<A> {
        &self.comm
    }

    /// Gives the communicator back.
    pub fn into_comm(self) -> Communicator<A> {
        self.comm
    }

    /// The parameters, for an optimizer.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The buffers and their policies, in order of names.
    pub fn buffers(&self) -> impl Iterator<Item = (&str, &Var, Buffers)> {
        self.buffers.iter().map(|(name, var)| (name, var, self.buffers.policy(name)))
    }

    /// The options that it was made with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Batches that wait for [`accumulate`](Self::accumulate) to reach its k.
    pub fn accumulated(&self) -> usize {
        self.batches
    }

    /// The gradient of this rank's loss, with weight 1. Not collective.
    ///
    /// # Errors
    /// Those of candle's backward pass.
    pub fn backward(&self, loss: &Tensor) -> Result<Grads<Local>> {
        self.backward_weighted(loss, 1.0)
    }

    /// The gradient of this rank's loss, counting `weight` times: usually the samples that the loss is the mean of. Not
    /// collective.
    ///
    /// # Errors
    /// A weight that is negative or not finite; those of candle's backward pass.
    pub fn backward_weighted(&self, loss: &Tensor, weight: f64) -> Result<Grads<Local>> {
        self.local(loss.backward()?, weight)
    }

    /// Takes the parameters' gradients out of a store, in place: clones of them made before see what becomes of them. Not
    /// collective.
    ///
    /// With weight 0, for a rank without samples, the values are dropped, so that a NaN among them does no harm.
    ///
    /// # Errors
    /// A weight that is negative or not finite.
    pub fn local(&self, mut store: GradStore, weight: f64) -> Result<Grads<Local>> {
        check_weight(weight)?;
        let tensors = (0..self.parameters.len()).map(|at| self.take(&mut store, at, weight));
        Ok(Grads::new(self.parameters.clone(), tensors.collect::<Result<_>>()?, weight))
    }

    /// What a rank that has run out of samples gives to [`sync`](Self::sync) while others still have some: weight 0. Not
    /// collective.
    pub fn no_samples(&self) -> Grads<Local> {
        Grads::new(self.parameters.clone(), vec![None; self.parameters.len()], 0.0)
    }

    /// The weighted mean of all ranks' gradients, and of the batches held by [`accumulate`](Self::accumulate). Collective.
    ///
    /// # Errors
    /// A parameter without gradient, if [`Unused::Error`] says so; weights that are 0 on all ranks; replicas that have
    /// drifted apart, when it was time to check; gradients of other parameters; a lost peer. All but the last two come
    /// on every rank.
    pub fn sync(&mut self, grads: Grads<Local>) -> Result<Grads<Synced>> {
        same_parameters(&self.parameters, &grads.parameters)?;
        let mut round = Round::new(self.parameters.len(), self.take_held()?, grads.weight);
        for (at, gradient) in grads.tensors.into_iter().enumerate() {
            round.put(at, gradient)?;
        }
        let started = std::time::Instant::now();
        self.launch(&mut round)?;
        round.stats.wait += started.elapsed();
        self.finish(round)
    }

    /// Holds a batch's gradients; each k-th call ([`Options::accumulate`]) synchronises all k, as [`sync`](Self::sync)
    /// does. Collective at each k-th call.
    ///
    /// # Errors
    /// Those of `sync`.
    pub fn accumulate(&mut self, grads: Grads<Local>) -> Result<Option<Grads<Synced>>> {
        same_parameters(&self.parameters, &grads.parameters)?;
        if self.batches + 1 >= self.options.accumulate {
            return self.sync(grads).map(Some);
        }
        self.hold(grads)?;
        Ok(None)
    }

    /// Synchronises what is held when an epoch ends between two k-th calls; `None` when nothing is. Collective.
    ///
    /// # Errors
    /// Those of [`sync`](Self::sync).
    pub fn flush(&mut self) -> Result<Option<Grads<Synced>>> {
        match self.held.take() {
            Some(held) => self.sync(held).map(Some),
            None => Ok(None),
        }
    }

    /// Compares checksums of all parameters and of the buffers that are not local: the checksum, equal on all ranks.
    /// Collective.
    ///
    /// # Errors
    /// [`Error::Drift`] on every rank, naming the ranks that differ from most others (with two ranks: rank 1) and the first
    /// variable that differs.
    pub fn check_replicas(&self) -> Result<u64> {
        let replicated = self.buffers.iter().filter(|(name, _)| self.buffers.policy(name) != Buffers::Local);
        check_replicas(&self.comm, self.parameters.iter().chain(replicated))
    }

    fn hold(&mut self, grads: Grads<Local>) -> Result<()> {
        match &mut self.held {
            Some(held) => held.add(grads)?,
            None => self.held = Some(grads),
        }
        self.batches += 1;
        Ok(())
    }

    fn take_held(&mut self) -> Result<Option<Grads<Local>>> {
        self.batches = 0;
        Ok(self.held.take())
    }

    /// A parameter's gradient times the weight: f32 for halves, contiguous, changed in place.
    fn take(&self, store: &mut GradStore, at: usize, weight: f64) -> Result<Option<Tensor>> {
        let var = self.parameters.var(at);
        let Some(gradient) = store.remove(var) else { return Ok(None) };
        if weight == 0.0 {
            return Ok(None);
        }
        let gradient = gradient.detach().to_dtype(gradient_dtype(var.dtype()))?.contiguous()?;
        if weight != 1.0 {
            scale(&gradient, weight)?;
        }
        Ok(Some(gradient))
    }
}

/// Refuses what is no weight of samples.
pub(crate) fn check_weight(weight: f64) -> Result<()> {
    match weight.is_finite() && weight >= 0.0 {
        true => Ok(()),
        false => Err(Error::invalid(format!("a weight of {weight}: must be 0 or more (usually the batch's samples)"))),
    }
}
