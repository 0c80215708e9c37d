//! Gradients as a typestate: [`Grads<Local>`] are one rank's own, [`Grads<Synced>`] are the mean over all ranks.
//!
//! Only [`DataParallel::sync`](crate::DataParallel::sync) (and what is built on it) makes one of the other, and it
//! consumes its argument; optimizers and clipping take synchronised ones only. So a step with gradients that were never
//! synchronised does not compile, nor does synchronising twice.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::{Init, VarMap};
//! use hccl_candle::{DataParallel, Optimizer, Options, Sgd, SgdConfig};
//!
//! let weights = hccl_candle::local(2, |comm| {
//!     let map = VarMap::new();
//!     let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
//!     let x = Tensor::new(&[1f32, comm.rank().index() as f32], &Device::Cpu)?;
//!     let mut dp = DataParallel::new(comm, &map, Options::default())?;
//!     let mut sgd = Sgd::new(dp.parameters(), SgdConfig { lr: 0.5, ..SgdConfig::default() })?;
//!
//!     let local = dp.backward(&(w.clone() * x)?.sum_all()?)?;     // Grads<Local>: [1, rank]
//!     let synced = dp.sync(local)?;                               // Grads<Synced>: [1, 0.5] on both
//!     sgd.step(&synced)?;
//!     Ok(w.to_vec1::<f32>()?)
//! })?;
//! assert_eq!(weights, [[0.5, 0.75], [0.5, 0.75]]);
//! # Ok::<(), hccl_candle::Error>(())
//! ```

use crate::data_parallel::{Parameters, SyncStats};
use crate::error::{Error, Result};
use crate::storage::{self, Elem, Visit, VisitMut};
use candle_core::Tensor;
use std::marker::PhantomData;

mod sealed {
    pub trait Sealed {}
}

/// Whose gradients these are.
///
/// ```
/// use hccl_candle::{Grads, grads::State};
/// /// What works for gradients in whatever state.
/// fn report<S: State>(grads: &Grads<S>) -> String {
///     format!("{grads:?}")
/// }
/// # use candle_core::{Device, Var};
/// # use hccl_candle::{DataParallel, Options};
/// let out = hccl_candle::local(2, |comm| {
/// #   let w = Var::new(comm.rank().index() as f32, &Device::Cpu)?;
/// #   let mut dp = DataParallel::from_vars(comm, [("w".to_owned(), w.clone())], Options::default())?;
///     let grads = dp.backward(&w.sqr()?)?;
///     Ok([report(&grads), report(&dp.sync(grads)?)])
/// })?;
/// assert_eq!(out[1], ["Grads<Local> of 1 of 1 parameters", "Grads<Synced> of 1 of 1 parameters"]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
pub trait State: sealed::Sealed + 'static {}

/// Gradients of this rank only.
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use candle_nn::{Init, VarMap};
/// use hccl_candle::{DataParallel, Grads, Local, Options};
/// let weights = hccl_candle::local(2, |comm| {
///     let samples = comm.rank().index() as f64 + 3.0;
/// #   let map = VarMap::new();
/// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
///     let dp = DataParallel::new(comm, &map, Options::default())?;
///     let grads: Grads<Local> = dp.backward_weighted(&w.sum_all()?, samples)?;
///     Ok(grads.weight())
/// })?;
/// assert_eq!(weights, [3.0, 4.0]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
#[derive(Debug)]
pub enum Local {}

/// Gradients over all ranks, with the same bits on each.
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use candle_nn::{Init, VarMap};
/// use hccl_candle::{DataParallel, Grads, Options, Synced};
/// let norms = hccl_candle::local(2, |comm| {
///     let rank = comm.rank().index() as f64;
/// #   let map = VarMap::new();
/// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
///     let mut dp = DataParallel::new(comm, &map, Options::default())?;
///     let own = dp.backward(&w.affine(rank * 2.0 + 1.0, 0.0)?.sum_all()?)?;
///     let grads: Grads<Synced> = dp.sync(own)?;
///     Ok(grads.norm()?)
/// })?;
/// assert_eq!(norms, [2f64.hypot(2.0); 2]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
#[derive(Debug)]
pub enum Synced {}

impl sealed::Sealed for Local {}
impl sealed::Sealed for Synced {}
impl State for Local {}
impl State for Synced {}

/// A state in which gradients are the same on all ranks: [`Synced`] alone.
///
/// ```
/// use hccl_candle::{Grads, grads::Synchronised};
/// /// Gradients that an optimizer should not step with. Those of one rank only are not taken.
/// fn explodes<S: Synchronised>(grads: &Grads<S>) -> hccl_candle::Result<bool> {
///     Ok(grads.norm()? > 100.0)
/// }
/// # use candle_core::{DType, Device, Tensor};
/// # use candle_nn::{Init, VarMap};
/// # use hccl_candle::{DataParallel, Options};
/// let out = hccl_candle::local(2, |comm| {
///     let scale = comm.rank().index() as f64 * 1000.0 + 1.0;
/// #   let map = VarMap::new();
/// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
///     let mut dp = DataParallel::new(comm, &map, Options::default())?;
///     let grads = dp.backward(&w.affine(scale, 0.0)?.sum_all()?)?;
///     explodes(&dp.sync(grads)?)
/// })?;
/// assert_eq!(out, [true, true]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "these gradients are of this rank only",
    label = "not synchronised: `Grads<{Self}>`",
    note = "`DataParallel::sync(grads)` makes `Grads<Synced>` of them; an optimizer steps with nothing else"
)]
pub trait Synchronised: State {
    #[doc(hidden)]
    fn reveal(grads: &Grads<Self>) -> &Grads<Synced>
    where
        Self: Sized;
}

impl Synchronised for Synced {
    fn reveal(grads: &Grads<Synced>) -> &Grads<Synced> {
        grads
    }
}

/// The gradients of a set of parameters. The [module page](self) says what the state is for.
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
///     let own = dp.backward(&w.affine(rank + 1.0, 0.0)?.sum_all()?)?; // Grads<Local>
///     let mean = dp.sync(own)?; // Grads<Synced>
///     Ok(mean.get("w").map(|grad| grad.to_vec1::<f32>()).transpose()?)
/// })?;
/// assert_eq!(out, [Some(vec![1.5; 2]), Some(vec![1.5; 2])]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
#[must_use = "gradients do nothing until they are synchronised and an optimizer steps with them"]
pub struct Grads<S: State> {
    pub(crate) parameters: Parameters,
    /// One a parameter, in order of names; contiguous, and in the memory of nobody else.
    pub(crate) tensors: Vec<Option<Tensor>>,
    /// The weight of this rank's samples; `tensors` are already multiplied by it. 1 once synchronised.
    pub(crate) weight: f64,
    pub(crate) stats: SyncStats,
    pub(crate) state: PhantomData<fn() -> S>,
}

impl<S: State> std::fmt::Debug for Grads<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = std::any::type_name::<S>().rsplit("::").next().unwrap_or_default();
        let there = self.tensors.iter().flatten().count();
        write!(f, "Grads<{state}> of {there} of {} parameters", self.parameters.len())
    }
}

impl<S: State> Grads<S> {
    pub(crate) fn new(parameters: Parameters, tensors: Vec<Option<Tensor>>, weight: f64) -> Self {
        Grads { parameters, tensors, weight, stats: SyncStats::default(), state: PhantomData }
    }

    /// The parameters that these are the gradients of.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{DataParallel, Options};
    /// let out = hccl_candle::local(2, |comm| {
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let dp = DataParallel::new(comm, &map, Options::default())?;
    ///     Ok(dp.backward(&w.sum_all()?)?.parameters().names().map(str::to_owned).collect::<Vec<_>>())
    /// })?;
    /// assert_eq!(out, [["w"]; 2]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Names and gradients in order of names, without parameters that have none.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{DataParallel, Options};
    /// let out = hccl_candle::local(2, |comm| {
    ///     let rank = comm.rank().index() as f64;
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let dp = DataParallel::new(comm, &map, Options::default())?;
    ///     let mut largest = 0f32;
    ///     for (_name, grad) in dp.backward(&w.affine(rank + 1.0, 0.0)?.sum_all()?)?.iter() {
    ///         largest = largest.max(grad.abs()?.max_all()?.to_scalar()?);
    ///     }
    ///     Ok(largest)
    /// })?;
    /// assert_eq!(out, [1.0, 2.0]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.parameters.names().zip(&self.tensors).filter_map(|(name, tensor)| Some((name, tensor.as_ref()?)))
    }
}

impl Grads<Local> {
    /// The weight with which these count.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{DataParallel, Options};
    /// let out = hccl_candle::local(2, |comm| {
    ///     let samples = comm.rank().index() as f64 + 3.0;
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let dp = DataParallel::new(comm, &map, Options::default())?;
    ///     Ok((dp.backward_weighted(&w.sum_all()?, samples)?.weight(), dp.no_samples().weight()))
    /// })?;
    /// assert_eq!(out, [(3.0, 0.0), (4.0, 0.0)]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn weight(&self) -> f64 {
        self.weight
    }

    /// Adds another batch: `self` becomes the gradient of both, each with its weight.
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
    ///     let mut grads = dp.backward(&w.affine(rank, 0.0)?.sum_all()?)?;
    ///     grads.add(dp.backward(&w.affine(rank + 4.0, 0.0)?.sum_all()?)?)?; // a second batch
    ///     let weight = grads.weight();
    ///     Ok((weight, dp.sync(grads)?.get("w").map(|grad| grad.to_vec1::<f32>()).transpose()?))
    /// })?;
    /// assert_eq!(out[1], (2.0, Some(vec![2.5; 2]))); // the mean of 0, 4, 1 and 5
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// Gradients of another set of parameters.
    pub fn add(&mut self, other: Grads<Local>) -> Result<()> {
        same_parameters(&self.parameters, &other.parameters)?;
        self.weight += other.weight;
        for (sum, more) in self.tensors.iter_mut().zip(other.tensors) {
            match (sum.as_ref(), more) {
                (_, None) => {}
                (None, more) => *sum = more,
                (Some(sum), Some(more)) => add_into(sum, &more)?,
            }
        }
        Ok(())
    }
}

impl<S: Synchronised> Grads<S> {
    /// The gradient of a parameter, the mean over all ranks; `None` for an unknown name and for a parameter that no rank
    /// used ([`Unused::Skip`](crate::data_parallel::Unused::Skip)). F32 where the parameter is F16 or BF16, else of the
    /// parameter's dtype.
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
    ///     let grads = dp.sync(grads)?;
    ///     assert!(grads.get("no such name").is_none());
    ///     Ok(grads.get("w").map(|grad| grad.to_vec1::<f32>()).transpose()?)
    /// })?;
    /// assert_eq!(out, [Some(vec![1.5; 2]), Some(vec![1.5; 2])]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors[self.parameters.position(name)?].as_ref()
    }

    /// The same, for code that is not generic.
    pub(crate) fn as_synced(&self) -> &Grads<Synced> {
        S::reveal(self)
    }

    /// What synchronising took.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{DataParallel, Options};
    /// let bytes = hccl_candle::local(2, |comm| {
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let mut dp = DataParallel::new(comm, &map, Options::default())?;
    ///     let grads = dp.backward(&w.sum_all()?)?;
    ///     Ok(dp.sync(grads)?.stats().bytes)
    /// })?;
    /// assert_eq!(bytes, [8, 8]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn stats(&self) -> &SyncStats {
        &self.stats
    }

    /// The L2 norm of all gradients together, summed in f64 in a fixed order: the same bits on every rank.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{DataParallel, Options};
    /// let norms = hccl_candle::local(2, |comm| {
    ///     let factors = Tensor::new([[2f32, 8.0], [4.0, 0.0]][comm.rank().index()].as_slice(), &Device::Cpu)?;
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let mut dp = DataParallel::new(comm, &map, Options::default())?;
    ///     let grads = dp.backward(&(w * factors)?.sum_all()?)?;
    ///     dp.sync(grads)?.norm() // of the mean, 3 and 4
    /// })?;
    /// assert_eq!(norms, [5.0, 5.0]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of candle.
    pub fn norm(&self) -> Result<f64> {
        let mut sum = 0.0;
        for tensor in self.tensors.iter().flatten() {
            sum += sum_of_squares(tensor)?;
        }
        Ok(sum.sqrt())
    }
}

/// Scales all gradients so that their common L2 norm is at most `max_norm`, and gives the norm that they had.
///
/// As in PyTorch the factor is `max_norm / (norm + 1e-6)`, and nothing happens when that is 1 or more. The sum runs in f64
/// in a fixed order, so the norm and the clipped gradients have the same bits on every rank. A norm that is not finite is
/// returned and leaves the gradients as they are: every rank sees it and can skip the step.
///
/// # Errors
/// A `max_norm` that is not positive.
///
/// ```
/// # use candle_core::{DType, Device};
/// # use candle_nn::{Init, VarMap};
/// # use hccl_candle::{DataParallel, Options, clip_grad_norm};
/// # hccl_candle::local(1, |comm| {
/// # let map = VarMap::new();
/// # let w = map.get(2, "w", Init::Const(1.0), DType::F64, &Device::Cpu)?;
/// # let mut dp = DataParallel::new(comm, &map, Options::default())?;
/// # let loss = w.sqr()?.sum_all()?.affine(2.0, 0.0)?;
/// let grads = dp.backward(&loss)?;                  // [4, 4]
/// let mut grads = dp.sync(grads)?;
/// let before = clip_grad_norm(&mut grads, 1.0)?;
/// assert!((before - 32f64.sqrt()).abs() < 1e-12 && grads.norm()? <= 1.0);
/// # Ok(())
/// # })?;
/// # Ok::<(), hccl_candle::Error>(())
/// ```
pub fn clip_grad_norm<S: Synchronised>(grads: &mut Grads<S>, max_norm: f64) -> Result<f64> {
    if max_norm.is_nan() || max_norm <= 0.0 {
        return Err(Error::invalid(format!("clip_grad_norm: max_norm is {max_norm}, must be positive")));
    }
    let norm = grads.norm()?;
    let factor = max_norm / (norm + 1e-6);
    if norm.is_finite() && factor < 1.0 {
        for tensor in grads.tensors.iter().flatten() {
            scale(tensor, factor)?;
        }
    }
    Ok(norm)
}

/// Refuses gradients of other parameters.
pub(crate) fn same_parameters(ours: &Parameters, theirs: &Parameters) -> Result<()> {
    if ours.same_as(theirs) {
        return Ok(());
    }
    let difference = ours.first_difference(theirs).unwrap_or_else(|| "other variables of the same names".into());
    Err(Error::invalid(format!("gradients of another set of parameters: {difference}")))
}

/// In f64, in a fixed order.
pub(crate) fn sum_of_squares(tensor: &Tensor) -> Result<f64> {
    storage::read("norm", tensor, SumOfSquares)
}

struct SumOfSquares;

impl Visit for SumOfSquares {
    type Out = f64;

    fn visit<T: Elem>(self, values: &[T]) -> Result<f64> {
        // Eight lanes in a fixed order: one would wait for its own addition at every element.
        let mut lanes = [0f64; 8];
        let chunks = values.chunks_exact(8);
        let tail: f64 = chunks.remainder().iter().map(|x| x.to_f64() * x.to_f64()).sum();
        for chunk in chunks {
            for (lane, x) in lanes.iter_mut().zip(chunk) {
                *lane += x.to_f64() * x.to_f64();
            }
        }
        Ok(lanes.iter().sum::<f64>() + tail)
    }
}

struct Scale(f64);

impl VisitMut for Scale {
    type Out = ();

    fn visit<T: Elem>(self, values: &mut [T]) -> Result<()> {
        let factor = T::from_f64(self.0);
        values.iter_mut().for_each(|x| *x *= factor);
        Ok(())
    }
}

/// Multiplies a tensor's own memory.
pub(crate) fn scale(tensor: &Tensor, factor: f64) -> Result<()> {
    storage::write("scale", tensor, Scale(factor))
}

/// Adds to a tensor's own memory; both of the same shape and dtype.
pub(crate) fn add_into(sum: &Tensor, more: &Tensor) -> Result<()> {
    struct Add;
    impl crate::optim::update::Update for Add {
        fn run<T: crate::optim::update::Real>(self, sum: &mut [T], more: &[T]) {
            sum.iter_mut().zip(more).for_each(|(sum, &more)| *sum += more);
        }
    }
    crate::optim::update::apply("accumulate", sum, more, Add)
}
