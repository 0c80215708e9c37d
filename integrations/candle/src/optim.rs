//! Optimizers with a state that can be saved: [`Sgd`] and [`AdamW`], with PyTorch's arithmetic.
//!
//! They step with [`Grads<Synced>`](Grads) and with nothing else. Updates run in the parameters' own memory, in the
//! parameter's precision (f32 for F16 and BF16), in order of names: equal parameters, gradients and state give equal bits
//! on every rank. A parameter without gradient is left alone, its state too.
//!
//! ```
//! # use candle_core::{DType, Device};
//! # use candle_nn::{Init, VarMap};
//! use hccl_candle::{AdamW, AdamWConfig, DataParallel, Optimizer, Options};
//! # hccl_candle::local(1, |comm| {
//! # let map = VarMap::new();
//! # let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
//! # map.get(2, "norm.bias", Init::Const(1.0), DType::F32, &Device::Cpu)?;
//! # let mut dp = DataParallel::new(comm, &map, Options::default().unused(hccl_candle::Unused::Skip))?;
//! let config = AdamWConfig { lr: 1e-3, weight_decay: 0.1, ..AdamWConfig::default() };
//! let mut adamw = AdamW::new(dp.parameters(), config)?;
//! adamw.no_weight_decay(|name| name.ends_with(".bias"));
//!
//! let grads = dp.backward(&w.sqr()?.sum_all()?)?;
//! adamw.step(&dp.sync(grads)?)?;
//! assert_eq!(adamw.state_dict()?.steps["w"], 1);
//! # Ok(())
//! # })?;
//! # Ok::<(), hccl_candle::Error>(())
//! ```

mod adamw;
mod sgd;
pub(crate) mod update;

pub use adamw::{AdamW, AdamWConfig};
pub use sgd::{Sgd, SgdConfig};

use crate::data_parallel::Parameters;
use crate::error::{Error, Result};
use crate::grads::{Grads, Synced, Synchronised, same_parameters};
use candle_core::{Tensor, Var};
use std::collections::BTreeMap;

/// Changes parameters by their synchronised gradients.
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use candle_nn::{Init, VarMap};
/// use hccl_candle::{AdamW, AdamWConfig, DataParallel, Optimizer, Options, Schedule};
/// /// One step of any optimizer, at the rate of a schedule.
/// fn step(dp: &mut DataParallel, with: &mut dyn Optimizer, at: u64, loss: &Tensor) -> hccl_candle::Result<()> {
///     with.set_learning_rate(Schedule::step(0.1, 1, 0.5)?.at(at));
///     let grads = dp.backward(loss)?;
///     with.step_synced(&dp.sync(grads)?)
/// }
/// let rates = hccl_candle::local(2, |comm| {
/// #   let map = VarMap::new();
/// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
///     let mut dp = DataParallel::new(comm, &map, Options::default())?;
///     let mut adamw = AdamW::new(dp.parameters(), AdamWConfig::default())?;
///     step(&mut dp, &mut adamw, 1, &w.sum_all()?)?;
///     Ok(adamw.learning_rate())
/// })?;
/// assert_eq!(rates, [0.05; 2]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
pub trait Optimizer {
    /// One step. The gradients must be of the parameters that the optimizer was made with.
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
    ///     let mut sgd = Sgd::new(dp.parameters(), SgdConfig { lr: 1.0, ..SgdConfig::default() })?;
    ///     let grads = dp.backward(&w.affine(rank + 1.0, 0.0)?.sum_all()?)?;
    ///     sgd.step(&dp.sync(grads)?)?;
    ///     Ok(w.to_vec1::<f32>()?)
    /// })?;
    /// assert_eq!(out, [[-0.5; 2]; 2]); // 1 - 1.5
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// Gradients of another set of parameters.
    fn step<S: Synchronised>(&mut self, grads: &Grads<S>) -> Result<()>
    where
        Self: Sized,
    {
        self.step_synced(grads.as_synced())
    }

    /// [`step`](Self::step) for trait objects.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{AdamW, AdamWConfig, DataParallel, Optimizer, Options, Sgd, SgdConfig};
    /// let out = hccl_candle::local(2, |comm| {
    ///     let adam = comm.size() > 8; // what a flag says, the same on all ranks
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let mut dp = DataParallel::new(comm, &map, Options::default())?;
    ///     let mut optimizer: Box<dyn Optimizer> = match adam {
    ///         true => Box::new(AdamW::new(dp.parameters(), AdamWConfig::default())?),
    ///         false => Box::new(Sgd::new(dp.parameters(), SgdConfig { lr: 0.25, ..SgdConfig::default() })?),
    ///     };
    ///     let grads = dp.backward(&w.sum_all()?)?;
    ///     optimizer.step_synced(&dp.sync(grads)?)?;
    ///     Ok(w.to_vec1::<f32>()?)
    /// })?;
    /// assert_eq!(out, [[0.75; 2]; 2]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// As there.
    fn step_synced(&mut self, grads: &Grads<Synced>) -> Result<()>;

    /// The learning rate of the next step.
    ///
    /// ```
    /// # use candle_core::{Device, Var};
    /// use hccl_candle::{AdamW, AdamWConfig, Optimizer, Parameters};
    /// let parameters = Parameters::new([("w".to_owned(), Var::new(1f32, &Device::Cpu)?)])?;
    /// assert_eq!(AdamW::new(&parameters, AdamWConfig::default())?.learning_rate(), 1e-3);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    fn learning_rate(&self) -> f64;

    /// Sets the learning rate of the next step, as a [`Schedule`](crate::schedule::Schedule) says.
    ///
    /// ```
    /// # use candle_core::{Device, Var};
    /// use hccl_candle::{Optimizer, Parameters, Schedule, Sgd, SgdConfig};
    /// let parameters = Parameters::new([("w".to_owned(), Var::new(1f32, &Device::Cpu)?)])?;
    /// let mut sgd = Sgd::new(&parameters, SgdConfig::default())?;
    /// sgd.set_learning_rate(Schedule::warmup_cosine(0.4, 4, 100, 0.0)?.at(1)); // the second of 4 steps of warm-up
    /// assert_eq!(sgd.config().lr, 0.2);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    fn set_learning_rate(&mut self, lr: f64);

    /// A copy of everything that the next steps depend on, besides parameters and gradients.
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
    ///     let mut sgd = Sgd::new(dp.parameters(), SgdConfig { momentum: 0.9, ..SgdConfig::default() })?;
    ///     let grads = dp.backward(&w.affine(rank + 1.0, 0.0)?.sum_all()?)?;
    ///     sgd.step(&dp.sync(grads)?)?;
    ///     Ok(sgd.state_dict()?.tensors["w.momentum_buffer"].to_vec1::<f32>()?)
    /// })?;
    /// assert_eq!(out, [[1.5; 2]; 2]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of candle.
    fn state_dict(&self) -> Result<OptimizerState>;

    /// Takes over a state. Nothing changes on an error. Hyperparameters stay as they are: compare
    /// [`OptimizerState::hyper`].
    ///
    /// ```
    /// # use candle_core::{Device, Var};
    /// use hccl_candle::{AdamW, AdamWConfig, Optimizer, Parameters, Sgd, SgdConfig};
    /// let parameters = Parameters::new([("w".to_owned(), Var::new(1f32, &Device::Cpu)?)])?;
    /// let state = AdamW::new(&parameters, AdamWConfig::default())?.state_dict()?;
    /// AdamW::new(&parameters, AdamWConfig::default())?.load_state_dict(&state)?;
    /// let refused = Sgd::new(&parameters, SgdConfig::default())?.load_state_dict(&state).unwrap_err();
    /// assert!(refused.to_string().contains("`adamw`"));
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// A state of another kind of optimizer, of unknown parameters, of other shapes or dtypes, or one that lacks parts.
    fn load_state_dict(&mut self, state: &OptimizerState) -> Result<()>;
}

/// The state of an optimizer, by names.
///
/// ```
/// # use candle_core::{Device, Var};
/// use hccl_candle::{Optimizer, OptimizerState, Parameters, Sgd, SgdConfig};
/// let parameters = Parameters::new([("w".to_owned(), Var::new(1f32, &Device::Cpu)?)])?;
/// let state: OptimizerState = Sgd::new(&parameters, SgdConfig { lr: 0.5, ..SgdConfig::default() })?.state_dict()?;
/// assert_eq!((state.kind.as_str(), state.hyper["lr"], state.steps.len()), ("sgd", 0.5, 0));
/// # Ok::<(), hccl_candle::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct OptimizerState {
    /// `sgd` or `adamw`.
    pub kind: String,
    /// Hyperparameters, by PyTorch's names. For the record: loading leaves them alone.
    pub hyper: BTreeMap<String, f64>,
    /// How often each parameter was changed; parameters that never were are not listed.
    pub steps: BTreeMap<String, u64>,
    /// `<parameter>.momentum_buffer`, or `<parameter>.exp_avg` and `<parameter>.exp_avg_sq`.
    pub tensors: BTreeMap<String, Tensor>,
}

/// What all optimizers keep: the parameters, which of them decay, and how often each was changed.
#[derive(Debug)]
struct Common {
    parameters: Parameters,
    decays: Vec<bool>,
    steps: Vec<u64>,
}

/// One parameter's part of a step.
struct Turn<'a> {
    at: usize,
    parameter: &'a Var,
    gradient: &'a Tensor,
    /// Weight decay is for this parameter, too.
    decays: bool,
    /// Steps of this parameter, this one included.
    t: u64,
}

impl Common {
    fn new(parameters: &Parameters) -> Common {
        let n = parameters.len();
        Common { parameters: parameters.clone(), decays: vec![true; n], steps: vec![0; n] }
    }

    fn no_weight_decay(&mut self, exempt: impl Fn(&str) -> bool) {
        for (name, decays) in self.parameters.names().zip(&mut self.decays) {
            *decays &= !exempt(name);
        }
    }

    /// Steps each parameter that has a gradient, and counts it.
    fn step(&mut self, grads: &Grads<Synced>, mut update: impl FnMut(Turn<'_>) -> Result<()>) -> Result<()> {
        same_parameters(&self.parameters, &grads.parameters)?;
        for (at, gradient) in grads.tensors.iter().enumerate() {
            let Some(gradient) = gradient else { continue };
            let t = self.steps[at] + 1;
            update(Turn { at, parameter: self.parameters.var(at), gradient, decays: self.decays[at], t })?;
            self.steps[at] = t;
        }
        Ok(())
    }

    fn steps(&self) -> BTreeMap<String, u64> {
        let taken = self.parameters.names().zip(&self.steps).filter(|(_, steps)| **steps > 0);
        taken.map(|(name, steps)| (name.to_string(), *steps)).collect()
    }

    /// Reads a state of this kind into step counts and tensors a parameter; `parts` are the endings of tensor names.
    fn read(&self, kind: &str, parts: &[&str], state: &OptimizerState) -> Result<(Vec<u64>, Vec<Vec<update::Slot>>)> {
        if state.kind != kind {
            return Err(Error::invalid(format!(
                "the state is of the optimizer `{}`, this one is `{kind}`",
                state.kind
            )));
        }
        let mut steps = vec![0; self.parameters.len()];
        let mut slots = vec![Vec::new(); self.parameters.len()];
        for (name, &taken) in &state.steps {
            let unknown = || Error::invalid(format!("the state has the parameter `{name}`, this optimizer has not"));
            let at = self.parameters.position(name).ok_or_else(unknown)?;
            steps[at] = taken;
            for part in parts {
                let part = format!("{name}.{part}");
                let missing = || Error::invalid(format!("the state lacks `{part}`"));
                let tensor = state.tensors.get(&part).ok_or_else(missing)?;
                slots[at].push(update::Slot::from_tensor(&part, tensor, self.parameters.var(at))?);
            }
        }
        Ok((steps, slots))
    }
}

/// Refuses hyperparameters outside their range.
fn check(optimizer: &str, name: &str, value: f64, allowed: impl Fn(f64) -> bool, range: &str) -> Result<()> {
    match value.is_finite() && allowed(value) {
        true => Ok(()),
        false => Err(Error::invalid(format!("{optimizer}: {name} is {value}, must be {range}"))),
    }
}
