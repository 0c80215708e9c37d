//! Adam with decoupled weight decay, as `torch.optim.AdamW`.

use super::update::{Real, Slot, Update, apply};
use super::{Common, Optimizer, OptimizerState, Turn, check};
use crate::data_parallel::Parameters;
use crate::error::Result;
use crate::grads::{Grads, Synced};
use std::collections::BTreeMap;

/// Hyperparameters of [`AdamW`].
///
/// ```
/// use hccl_candle::AdamWConfig;
/// let config = AdamWConfig { lr: 3e-4, weight_decay: 0.1, ..AdamWConfig::default() };
/// assert_eq!((config.beta1, config.beta2), (0.9, 0.999));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWConfig {
    /// Learning rate, 0 or more. Default 0.001.
    pub lr: f64,
    /// Decay of the mean gradient, in 0..1. Default 0.9.
    pub beta1: f64,
    /// Decay of the mean squared gradient, in 0..1. Default 0.999.
    pub beta2: f64,
    /// Added to the root of the mean squared gradient, 0 or more. Default 1e-8.
    pub eps: f64,
    /// Share of the parameter taken off at each step, times the learning rate. Default 0.01.
    pub weight_decay: f64,
}

impl Default for AdamWConfig {
    fn default() -> Self {
        AdamWConfig { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }
    }
}

/// Adam with decoupled weight decay. With t counting the steps of the parameter from 1:
///
/// ```text
/// p = p * (1 - lr * weight_decay)
/// m = beta1 * m + (1 - beta1) * g
/// v = beta2 * v + (1 - beta2) * g * g
/// p = p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
/// ```
///
/// The [module page](super) has an example.
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use candle_nn::{Init, VarMap};
/// use hccl_candle::{AdamW, AdamWConfig, DataParallel, Optimizer, Options};
/// let out = hccl_candle::local(2, |comm| {
///     let rank = comm.rank().index() as f64;
/// #   let map = VarMap::new();
/// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
///     let mut dp = DataParallel::new(comm, &map, Options::default())?;
///     let config = AdamWConfig { lr: 0.25, weight_decay: 0.0, ..AdamWConfig::default() };
///     let mut adamw = AdamW::new(dp.parameters(), config)?;
///     let grads = dp.backward(&w.affine(rank + 1.0, 0.0)?.sum_all()?)?;
///     adamw.step(&dp.sync(grads)?)?; // the first step has the size of the rate
///     Ok((w.to_vec1::<f32>()?[0] - 0.75).abs() < 1e-6)
/// })?;
/// assert_eq!(out, [true, true]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
#[derive(Debug)]
pub struct AdamW {
    common: Common,
    config: AdamWConfig,
    moments: Vec<Option<[Slot; 2]>>,
}

impl AdamW {
    /// An optimizer of these parameters, which has not stepped yet.
    ///
    /// ```
    /// # use candle_core::{Device, Var};
    /// use hccl_candle::{AdamW, AdamWConfig, Parameters};
    /// let parameters = Parameters::new([("w".to_owned(), Var::new(1f32, &Device::Cpu)?)])?;
    /// let refused = AdamW::new(&parameters, AdamWConfig { beta1: 1.0, ..AdamWConfig::default() }).unwrap_err();
    /// assert!(refused.to_string().contains("beta1 is 1"));
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// Hyperparameters out of range.
    pub fn new(parameters: &Parameters, config: AdamWConfig) -> Result<Self> {
        check("adamw", "lr", config.lr, |x| x >= 0.0, "0 or more")?;
        check("adamw", "beta1", config.beta1, |x| (0.0..1.0).contains(&x), "at least 0 and below 1")?;
        check("adamw", "beta2", config.beta2, |x| (0.0..1.0).contains(&x), "at least 0 and below 1")?;
        check("adamw", "eps", config.eps, |x| x >= 0.0, "0 or more")?;
        check("adamw", "weight_decay", config.weight_decay, |x| x >= 0.0, "0 or more")?;
        Ok(AdamW { common: Common::new(parameters), config, moments: vec![None; parameters.len()] })
    }

    /// Exempts parameters from weight decay, as is usual for biases and normalisation.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{AdamW, AdamWConfig, DataParallel, Optimizer, Options};
    /// let out = hccl_candle::local(2, |comm| {
    ///     let map = VarMap::new();
    ///     let weight = map.get(1, "fc.weight", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let bias = map.get(1, "fc.bias", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let mut dp = DataParallel::new(comm, &map, Options::default())?;
    ///     let config = AdamWConfig { lr: 0.5, weight_decay: 1.0, ..AdamWConfig::default() };
    ///     let mut adamw = AdamW::new(dp.parameters(), config)?;
    ///     adamw.no_weight_decay(|name| name.ends_with(".bias"));
    ///     let grads = dp.backward(&(&weight - &bias)?.sqr()?.sum_all()?)?; // gradients of 0
    ///     adamw.step(&dp.sync(grads)?)?;
    ///     Ok((weight.to_vec1::<f32>()?[0], bias.to_vec1::<f32>()?[0]))
    /// })?;
    /// assert_eq!(out, [(0.5, 1.0); 2]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn no_weight_decay(&mut self, exempt: impl Fn(&str) -> bool) {
        self.common.no_weight_decay(exempt);
    }

    /// The hyperparameters, with the current learning rate.
    ///
    /// ```
    /// # use candle_core::{Device, Var};
    /// use hccl_candle::{AdamW, AdamWConfig, Optimizer, Parameters};
    /// let parameters = Parameters::new([("w".to_owned(), Var::new(1f32, &Device::Cpu)?)])?;
    /// let mut adamw = AdamW::new(&parameters, AdamWConfig::default())?;
    /// adamw.set_learning_rate(0.25);
    /// assert_eq!(adamw.config(), AdamWConfig { lr: 0.25, ..AdamWConfig::default() });
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn config(&self) -> AdamWConfig {
        self.config
    }
}

impl Optimizer for AdamW {
    fn step_synced(&mut self, grads: &Grads<Synced>) -> Result<()> {
        let AdamW { common, config, moments } = self;
        common.step(grads, |Turn { at, parameter, gradient, decays, t }| {
            let config = AdamWConfig { weight_decay: if decays { config.weight_decay } else { 0.0 }, ..*config };
            let moments = moments[at].get_or_insert_with(|| [Slot::zeros(parameter), Slot::zeros(parameter)]);
            apply("adamw", parameter, gradient, Step { config, t, moments })
        })
    }

    fn learning_rate(&self) -> f64 {
        self.config.lr
    }

    fn set_learning_rate(&mut self, lr: f64) {
        self.config.lr = lr;
    }

    fn state_dict(&self) -> Result<OptimizerState> {
        let mut tensors = BTreeMap::new();
        for (at, moments) in self.moments.iter().enumerate() {
            let Some([m, v]) = moments else { continue };
            let (name, var) = (self.common.parameters.name(at), self.common.parameters.var(at));
            tensors.insert(format!("{name}.exp_avg"), m.to_tensor(var)?);
            tensors.insert(format!("{name}.exp_avg_sq"), v.to_tensor(var)?);
        }
        let c = &self.config;
        let hyper =
            [("lr", c.lr), ("beta1", c.beta1), ("beta2", c.beta2), ("eps", c.eps), ("weight_decay", c.weight_decay)];
        let hyper = hyper.map(|(name, value)| (name.to_string(), value)).into();
        Ok(OptimizerState { kind: "adamw".into(), hyper, steps: self.common.steps(), tensors })
    }

    fn load_state_dict(&mut self, state: &OptimizerState) -> Result<()> {
        let (steps, slots) = self.common.read("adamw", &["exp_avg", "exp_avg_sq"], state)?;
        self.common.steps = steps;
        self.moments = slots.into_iter().map(|slots| slots.try_into().ok()).collect();
        Ok(())
    }
}

struct Step<'a> {
    config: AdamWConfig,
    t: u64,
    moments: &'a mut [Slot; 2],
}

impl Update for Step<'_> {
    fn run<T: Real>(self, parameter: &mut [T], gradient: &[T]) {
        let [m, v] = self.moments;
        // Slots are made for the parameter's own precision, so both are of type `T`.
        let (Some(m), Some(v)) = (T::of(m), T::of(v)) else { return };
        let c = self.config;
        let t = self.t as f64;
        let shrink = T::from_f64(1.0 - c.lr * c.weight_decay);
        let rate = T::from_f64(c.lr / (1.0 - c.beta1.powf(t)));
        let root = T::from_f64((1.0 - c.beta2.powf(t)).sqrt());
        let (keep1, take1) = (T::from_f64(c.beta1), T::from_f64(1.0 - c.beta1));
        let (keep2, take2) = (T::from_f64(c.beta2), T::from_f64(1.0 - c.beta2));
        let eps = T::from_f64(c.eps);
        for (((p, &g), m), v) in parameter.iter_mut().zip(gradient).zip(m).zip(v) {
            *m = keep1 * *m + take1 * g;
            *v = keep2 * *v + take2 * g * g;
            let direction = *m / (v.sqrt() / root + eps);
            *p = *p * shrink - rate * direction;
        }
    }
}
