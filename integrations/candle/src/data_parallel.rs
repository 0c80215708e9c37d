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
mod state;
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
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use candle_nn::{Init, VarMap};
/// use hccl_candle::{DataParallel, Options};
/// let stats = hccl_candle::local(2, |comm| {
/// #   let map = VarMap::new();
/// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
///     let mut dp = DataParallel::new(comm, &map, Options::default())?;
///     let grads = dp.backward(&w.sum_all()?)?;
///     Ok(dp.sync(grads)?.stats().clone())
/// })?;
/// assert_eq!((stats[1].bytes, stats[1].buckets), (8, 1)); // two f32
/// # Ok::<(), hccl_candle::Error>(())
/// ```
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
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use candle_nn::{Init, VarMap};
/// use hccl_candle::{DataParallel, Optimizer, Options, Sgd, SgdConfig};
/// let out = hccl_candle::local(2, |comm| {
///     let rank = comm.rank().index() as f64;
/// #   let map = VarMap::new();
/// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
///     let mut dp = DataParallel::new(comm, &map, Options::default())?;
///     let mut sgd = Sgd::new(dp.parameters(), SgdConfig { lr: 0.5, ..SgdConfig::default() })?;
///     let grads = dp.backward(&w.affine(rank + 1.0, 0.0)?.sum_all()?)?; // the gradient is rank + 1
///     sgd.step(&dp.sync(grads)?)?;
///     Ok(w.to_vec1::<f32>()?)
/// })?;
/// assert_eq!(out, [[0.25; 2]; 2]); // 1 - 0.5 * 1.5
/// # Ok::<(), hccl_candle::Error>(())
/// ```
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
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{DataParallel, Options};
    /// let out = hccl_candle::local(2, |comm| {
    ///     let map = VarMap::new();
    ///     let start = Init::Const(comm.rank().index() as f64 + 5.0); // as if drawn at random
    ///     let w = map.get(2, "w", start, DType::F32, &Device::Cpu)?;
    ///     let _dp = DataParallel::new(comm, &map, Options::default())?;
    ///     Ok(w.to_vec1::<f32>()?)
    /// })?;
    /// assert_eq!(out, [[5.0; 2]; 2]); // rank 0's
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Mismatch`] on every rank, naming the first difference and both sides; an integer variable that is not
    /// declared as a buffer; a lost peer.
    pub fn new(comm: Communicator<A>, map: &VarMap, options: Options) -> Result<Self> {
        Self::from_vars(comm, of_map(map), options)
    }

    /// [`new`](Self::new) from named variables.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use hccl_candle::{DataParallel, Options};
    /// let out = hccl_candle::local(2, |comm| {
    ///     let w = Var::new(comm.rank().index() as f32 + 5.0, &Device::Cpu)?;
    ///     let dp = DataParallel::from_vars(comm, [("w".to_owned(), w.clone())], Options::default())?;
    ///     Ok((dp.parameters().len(), w.to_scalar::<f32>()?))
    /// })?;
    /// assert_eq!(out, [(1, 5.0); 2]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
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

    /// The gradient of this rank's loss, with weight 1. Not collective.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{DataParallel, Options};
    /// let own = hccl_candle::local(2, |comm| {
    ///     let rank = comm.rank().index() as f64;
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let dp = DataParallel::new(comm, &map, Options::default())?;
    ///     let grads = dp.backward(&w.affine(rank + 1.0, 0.0)?.sum_all()?)?;
    ///     let own = grads.iter().next().map(|(_, grad)| grad.to_vec1::<f32>()).transpose()?;
    ///     Ok(own)
    /// })?;
    /// assert_eq!(own, [Some(vec![1.0; 2]), Some(vec![2.0; 2])]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of candle's backward pass.
    pub fn backward(&self, loss: &Tensor) -> Result<Grads<Local>> {
        self.backward_weighted(loss, 1.0)
    }

    /// The gradient of this rank's loss, counting `weight` times: usually the samples that the loss is the mean of. Not
    /// collective.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{DataParallel, Options};
    /// let out = hccl_candle::local(2, |comm| {
    ///     let rank = comm.rank().index() as f64;
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let mut dp = DataParallel::new(comm, &map, Options::default())?;
    ///     let loss = w.affine(rank * 4.0 + 1.0, 0.0)?.sum_all()?; // the gradient is 1 or 5
    ///     let samples = 1.0 + 2.0 * rank; // 1 or 3
    ///     let grads = dp.backward_weighted(&loss, samples)?;
    ///     Ok(dp.sync(grads)?.get("w").map(|grad| grad.to_vec1::<f32>()).transpose()?)
    /// })?;
    /// assert_eq!(out, [Some(vec![4.0; 2]), Some(vec![4.0; 2])]); // (1 * 1 + 3 * 5) / 4
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
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
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{DataParallel, Options};
    /// let out = hccl_candle::local(2, |comm| {
    ///     let rank = comm.rank().index() as f64;
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let mut dp = DataParallel::new(comm, &map, Options::default())?;
    ///     let store = w.affine(rank + 1.0, 0.0)?.sum_all()?.backward()?; // candle's own backward pass
    ///     let grads = dp.local(store, 1.0)?;
    ///     Ok(dp.sync(grads)?.norm()?)
    /// })?;
    /// assert_eq!(out, [1.5f64.hypot(1.5); 2]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
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
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{DataParallel, Options};
    /// let out = hccl_candle::local(2, |comm| {
    ///     let has_samples = comm.rank().index() == 0; // rank 1 has run out of them
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let mut dp = DataParallel::new(comm, &map, Options::default())?;
    ///     let grads = if has_samples { dp.backward(&w.sqr()?.sum_all()?)? } else { dp.no_samples() };
    ///     Ok(dp.sync(grads)?.get("w").map(|grad| grad.to_vec1::<f32>()).transpose()?)
    /// })?;
    /// assert_eq!(out, [Some(vec![2.0; 2]), Some(vec![2.0; 2])]); // rank 0's, not half of them
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn no_samples(&self) -> Grads<Local> {
        Grads::new(self.parameters.clone(), vec![None; self.parameters.len()], 0.0)
    }

    /// The weighted mean of all ranks' gradients, and of the batches held by [`accumulate`](Self::accumulate). Collective.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{DataParallel, Options};
    /// let out = hccl_candle::local(2, |comm| {
    ///     let rank = comm.rank().index() as f64;
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let mut dp = DataParallel::new(comm, &map, Options::default())?;
    ///     let grads = dp.backward(&w.affine(rank + 1.0, 0.0)?.sum_all()?)?;
    ///     Ok(dp.sync(grads)?.get("w").map(|grad| grad.to_vec1::<f32>()).transpose()?)
    /// })?;
    /// assert_eq!(out, [Some(vec![1.5; 2]), Some(vec![1.5; 2])]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
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
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{DataParallel, Options};
    /// let out = hccl_candle::local(2, |comm| {
    ///     let rank = comm.rank().index() as f64;
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let mut dp = DataParallel::new(comm, &map, Options::default().accumulate(2))?;
    ///     let mut steps = Vec::new();
    ///     for batch in 0..4 {
    ///         let grads = dp.backward(&w.affine(rank + batch as f64, 0.0)?.sum_all()?)?;
    ///         if let Some(grads) = dp.accumulate(grads)? {
    ///             steps.extend(grads.get("w").map(|grad| grad.to_vec1::<f32>()).transpose()?);
    ///         }
    ///     }
    ///     Ok(steps)
    /// })?;
    /// assert_eq!(out, [[[1.0; 2], [3.0; 2]], [[1.0; 2], [3.0; 2]]]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
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
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{DataParallel, Options};
    /// let out = hccl_candle::local(2, |comm| {
    ///     let rank = comm.rank().index() as f64;
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let mut dp = DataParallel::new(comm, &map, Options::default().accumulate(8))?;
    ///     let grads = dp.backward(&w.affine(rank + 1.0, 0.0)?.sum_all()?)?;
    ///     assert!(dp.accumulate(grads)?.is_none());
    ///     let last = dp.flush()?; // the epoch is over
    ///     Ok((last.map(|grads| grads.norm()).transpose()?, dp.flush()?.is_none()))
    /// })?;
    /// assert_eq!(out, [(Some(1.5f64.hypot(1.5)), true); 2]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
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
    /// ```
    /// use candle_core::{Device, Tensor, Var};
    /// use hccl_candle::{DataParallel, Error, Options};
    /// let err = hccl_candle::local(3, |comm| {
    ///     let (rank, w) = (comm.rank().index(), Var::new(1f32, &Device::Cpu)?);
    ///     let dp = DataParallel::from_vars(comm, [("w".to_owned(), w.clone())], Options::default())?;
    ///     dp.check_replicas()?;
    ///     if rank == 1 {
    ///         w.set(&Tensor::new(2f32, &Device::Cpu)?)?; // changed behind the replicas' back
    ///     }
    ///     dp.check_replicas()
    /// })
    /// .unwrap_err();
    /// assert!(matches!(err, Error::Drift { .. }), "{err}");
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
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
