//! Stochastic gradient descent with momentum, as `torch.optim.SGD`.

use super::update::{Real, Slot, Update, apply};
use super::{Common, Optimizer, OptimizerState, Turn, check};
use crate::data_parallel::Parameters;
use crate::error::{Error, Result};
use crate::grads::{Grads, Synced};
use std::collections::BTreeMap;

/// Hyperparameters of [`Sgd`].
///
/// ```
/// use hccl_candle::SgdConfig;
/// let config = SgdConfig { lr: 0.1, momentum: 0.9, nesterov: true, ..SgdConfig::default() };
/// assert_eq!((config.dampening, config.weight_decay), (0.0, 0.0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdConfig {
    /// Learning rate, 0 or more. Default 0.01.
    pub lr: f64,
    /// Momentum, 0 or more. Default 0.
    pub momentum: f64,
    /// What is taken off a gradient that enters the momentum. Default 0.
    pub dampening: f64,
    /// How much of the parameter is added to its gradient. Default 0.
    pub weight_decay: f64,
    /// Nesterov's momentum; asks for a momentum, and no dampening. Default off.
    pub nesterov: bool,
}

impl Default for SgdConfig {
    fn default() -> Self {
        SgdConfig { lr: 0.01, momentum: 0.0, dampening: 0.0, weight_decay: 0.0, nesterov: false }
    }
}

/// Stochastic gradient descent.
///
/// ```text
/// g = gradient + weight_decay * p
/// b = g at the first step of the parameter, then momentum * b + (1 - dampening) * g
/// p = p - lr * (nesterov ? g + momentum * b : b)
/// ```
///
/// ```
/// # use candle_core::{DType, Device};
/// # use candle_nn::{Init, VarMap};
/// use hccl_candle::{DataParallel, Optimizer, Options, Sgd, SgdConfig};
/// # hccl_candle::local(1, |comm| {
/// # let map = VarMap::new();
/// # let w = map.get((), "w", Init::Const(1.0), DType::F64, &Device::Cpu)?;
/// # let mut dp = DataParallel::new(comm, &map, Options::default())?;
/// let mut sgd = Sgd::new(dp.parameters(), SgdConfig { lr: 0.25, momentum: 0.5, ..SgdConfig::default() })?;
/// for _ in 0..2 {
///     let grads = dp.backward(&w.affine(1.0, 0.0)?)?;      // the gradient is 1
///     sgd.step(&dp.sync(grads)?)?;
/// }
/// assert_eq!(w.to_scalar::<f64>()?, 1.0 - 0.25 * 1.0 - 0.25 * 1.5);
/// # Ok(())
/// # })?;
/// # Ok::<(), hccl_candle::Error>(())
/// ```
#[derive(Debug)]
pub struct Sgd {
    common: Common,
    config: SgdConfig,
    momentum: Vec<Option<Slot>>,
}

impl Sgd {
    /// An optimizer of these parameters, which has not stepped yet.
    ///
    /// ```
    /// # use candle_core::{Device, Var};
    /// use hccl_candle::{Parameters, Sgd, SgdConfig};
    /// let parameters = Parameters::new([("w".to_owned(), Var::new(1f32, &Device::Cpu)?)])?;
    /// let refused = Sgd::new(&parameters, SgdConfig { nesterov: true, ..SgdConfig::default() }).unwrap_err();
    /// assert!(refused.to_string().contains("nesterov asks for a momentum"));
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// Hyperparameters out of range, Nesterov without momentum or with dampening.
    pub fn new(parameters: &Parameters, config: SgdConfig) -> Result<Self> {
        check("sgd", "lr", config.lr, |x| x >= 0.0, "0 or more")?;
        check("sgd", "momentum", config.momentum, |x| x >= 0.0, "0 or more")?;
        check("sgd", "dampening", config.dampening, |_| true, "finite")?;
        check("sgd", "weight_decay", config.weight_decay, |x| x >= 0.0, "0 or more")?;
        if config.nesterov && (config.momentum == 0.0 || config.dampening != 0.0) {
            return Err(Error::invalid("sgd: nesterov asks for a momentum above 0 and a dampening of 0"));
        }
        Ok(Sgd { common: Common::new(parameters), config, momentum: vec![None; parameters.len()] })
    }

    /// Exempts parameters from weight decay, as is usual for biases and normalisation.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{DataParallel, Optimizer, Options, Sgd, SgdConfig};
    /// let out = hccl_candle::local(2, |comm| {
    ///     let map = VarMap::new();
    ///     let weight = map.get(1, "fc.weight", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let bias = map.get(1, "fc.bias", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let mut dp = DataParallel::new(comm, &map, Options::default())?;
    ///     let mut sgd = Sgd::new(dp.parameters(), SgdConfig { lr: 0.5, weight_decay: 1.0, ..SgdConfig::default() })?;
    ///     sgd.no_weight_decay(|name| name.ends_with(".bias"));
    ///     let grads = dp.backward(&(&weight - &bias)?.sqr()?.sum_all()?)?; // gradients of 0
    ///     sgd.step(&dp.sync(grads)?)?;
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
    /// use hccl_candle::{Optimizer, Parameters, Sgd, SgdConfig};
    /// let parameters = Parameters::new([("w".to_owned(), Var::new(1f32, &Device::Cpu)?)])?;
    /// let mut sgd = Sgd::new(&parameters, SgdConfig { momentum: 0.9, ..SgdConfig::default() })?;
    /// sgd.set_learning_rate(0.25);
    /// assert_eq!((sgd.config().lr, sgd.config().momentum), (0.25, 0.9));
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn config(&self) -> SgdConfig {
        self.config
    }
}

impl Optimizer for Sgd {
    fn step_synced(&mut self, grads: &Grads<Synced>) -> Result<()> {
        let Sgd { common, config, momentum } = self;
        common.step(grads, |Turn { at, parameter, gradient, decays, .. }| {
            let config = SgdConfig { weight_decay: if decays { config.weight_decay } else { 0.0 }, ..*config };
            let first = momentum[at].is_none();
            if first && config.momentum != 0.0 {
                momentum[at] = Some(Slot::zeros(parameter));
            }
            apply("sgd", parameter, gradient, Step { config, first, momentum: momentum[at].as_mut() })
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
        for (at, slot) in self.momentum.iter().enumerate() {
            if let Some(slot) = slot {
                let name = format!("{}.momentum_buffer", self.common.parameters.name(at));
                tensors.insert(name, slot.to_tensor(self.common.parameters.var(at))?);
            }
        }
        let c = &self.config;
        let hyper = [
            ("lr", c.lr),
            ("momentum", c.momentum),
            ("dampening", c.dampening),
            ("weight_decay", c.weight_decay),
            ("nesterov", f64::from(u8::from(c.nesterov))),
        ];
        let hyper = hyper.map(|(name, value)| (name.to_string(), value)).into();
        Ok(OptimizerState { kind: "sgd".into(), hyper, steps: self.common.steps(), tensors })
    }

    fn load_state_dict(&mut self, state: &OptimizerState) -> Result<()> {
        let parts: &[&str] = if self.config.momentum == 0.0 { &[] } else { &["momentum_buffer"] };
        let (steps, slots) = self.common.read("sgd", parts, state)?;
        self.common.steps = steps;
        self.momentum = slots.into_iter().map(|mut slots| slots.pop()).collect();
        Ok(())
    }
}

struct Step<'a> {
    config: SgdConfig,
    first: bool,
    momentum: Option<&'a mut Slot>,
}

impl Update for Step<'_> {
    fn run<T: Real>(self, parameter: &mut [T], gradient: &[T]) {
        let lr = T::from_f64(self.config.lr);
        let decay = T::from_f64(self.config.weight_decay);
        let decays = self.config.weight_decay != 0.0;
        let with_decay = |g: T, p: T| if decays { g + decay * p } else { g };
        let Some(buffer) = self.momentum.and_then(T::of) else {
            for (p, &g) in parameter.iter_mut().zip(gradient) {
                *p -= lr * with_decay(g, *p);
            }
            return;
        };
        let (keep, take) = (T::from_f64(self.config.momentum), T::from_f64(1.0 - self.config.dampening));
        let (first, nesterov) = (self.first, self.config.nesterov);
        for ((p, &g), b) in parameter.iter_mut().zip(gradient).zip(buffer) {
            let g = with_decay(g, *p);
            *b = if first { g } else { keep * *b + take * g };
            let direction = if nesterov { g + keep * *b } else { *b };
            *p -= lr * direction;
        }
    }
}
