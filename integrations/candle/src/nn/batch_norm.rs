//! Batch normalisation, over the batch of one rank or of all ranks.

mod op;
mod sums;

use super::data::{checked_input, checked_same_dtype, dispatch};
use super::stats::StatsReduce;
use candle_core::{DType, ModuleT, Result, Tensor, Var, bail};
use candle_nn::VarBuilder;
use candle_nn::init::Init;
use op::{Normalization, Normalize, NormalizeAdd};
use std::fmt;
use std::sync::Arc;
use sums::Moments;

/// Constants of a [`BatchNorm2d`].
///
/// ```
/// use hccl_candle::nn::BatchNormConfig;
/// let last_of_block = BatchNormConfig { initial_weight: 0.0, ..BatchNormConfig::default() };
/// assert_eq!((last_of_block.eps, last_of_block.momentum), (1e-5, 0.1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormConfig {
    /// Added to the variance before its square root is taken.
    pub eps: f64,
    /// Weight of the newest batch in the running statistics, 0 to 1.
    pub momentum: f64,
    /// What fresh weights start at; 0 makes a residual block start as the identity.
    pub initial_weight: f64,
}

impl Default for BatchNormConfig {
    /// `eps` 1e-5, `momentum` 0.1 and weights of 1, as in PyTorch.
    fn default() -> Self {
        Self { eps: 1e-5, momentum: 0.1, initial_weight: 1.0 }
    }
}

/// Batch normalisation over the channels of `N x C x H x W`: `(x - mean) / sqrt(var + eps) * weight + bias`.
///
/// In training, mean and (biased) variance are those of the batch, and the running statistics move towards mean and
/// **unbiased** variance, as in PyTorch. In evaluation the running statistics are used. The running statistics are
/// variables that never get a gradient: they are read and written outside the graph.
///
/// [`synchronized`](Self::synchronized) takes the statistics over the batches of all ranks together, which may have
/// different sizes. Outputs, input gradients and running statistics are then those of one process on the concatenated
/// batch; the gradients of `weight` and `bias` are this rank's share, which add up to that process's. For the gradients
/// to be those of a weighted mean of losses, weigh each rank's loss **before** its backward pass: the layer mixes the
/// ranks' gradients there.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// use hccl_candle::nn::BatchNorm2d;
///
/// let vars = VarMap::new();
/// let norm = BatchNorm2d::new(1, VarBuilder::from_varmap(&vars, DType::F64, &Device::Cpu))?;
/// let x = Tensor::new(&[1f64, 3.0], &Device::Cpu)?.reshape((2, 1, 1, 1))?;
/// let y = norm.forward(&x, true)?.flatten_all()?.to_vec1::<f64>()?;
/// assert!((y[0] + 1.0).abs() < 1e-5 && (y[1] - 1.0).abs() < 1e-5);
/// assert_eq!(norm.running_var().to_vec1::<f64>()?, [0.9 * 1.0 + 0.1 * 2.0]); // unbiased: ((-1)² + 1²) / (2 - 1)
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone)]
pub struct BatchNorm2d {
    weight: Tensor,
    bias: Tensor,
    running_mean: Var,
    running_var: Var,
    config: BatchNormConfig,
    sync: Option<Arc<dyn StatsReduce>>,
}

impl BatchNorm2d {
    /// Takes `weight`, `bias`, `running_mean` and `running_var` from `vb`, each of length `channels`.
    ///
    /// Fresh ones are 1 (or [`initial_weight`](BatchNormConfig::initial_weight)), 0, 0 and 1. `num_batches_tracked`,
    /// which PyTorch stores beside them, is never asked for.
    ///
    /// ```
    /// use candle_core::{DType, Device};
    /// use candle_nn::{VarBuilder, VarMap};
    /// use hccl_candle::nn::BatchNorm2d;
    /// let map = VarMap::new();
    /// let norm = BatchNorm2d::new(3, VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu).pp("bn1"))?;
    /// assert_eq!(norm.weight().to_vec1::<f32>()?, [1.0; 3]);
    /// assert!(map.data().lock().is_ok_and(|vars| vars.contains_key("bn1.running_var")));
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// A name that `vb` lacks or holds with another shape.
    pub fn new(channels: usize, vb: VarBuilder<'_>) -> Result<Self> {
        Self::with_config(channels, BatchNormConfig::default(), vb)
    }

    /// As [`new`](Self::new), with other constants.
    ///
    /// ```
    /// use candle_core::{DType, Device};
    /// use candle_nn::{VarBuilder, VarMap};
    /// use hccl_candle::nn::{BatchNorm2d, BatchNormConfig};
    /// let (map, config) = (VarMap::new(), BatchNormConfig { initial_weight: 0.0, ..BatchNormConfig::default() });
    /// let norm = BatchNorm2d::with_config(2, config, VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu))?;
    /// assert_eq!(norm.weight().to_vec1::<f32>()?, [0.0; 2]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`new`](Self::new); a negative `eps`, a momentum outside 0 to 1.
    pub fn with_config(channels: usize, config: BatchNormConfig, vb: VarBuilder<'_>) -> Result<Self> {
        if config.eps.is_nan() || config.eps < 0.0 || !(0.0..=1.0).contains(&config.momentum) {
            bail!("BatchNorm2d: eps must be at least 0 and momentum within 0 to 1, got {config:?}");
        }
        let get = |name: &str, value: f64| vb.get_with_hints(channels, name, Init::Const(value));
        Ok(Self {
            weight: get("weight", config.initial_weight)?,
            bias: get("bias", 0.0)?,
            running_mean: Var::from_tensor(&get("running_mean", 0.0)?)?,
            running_var: Var::from_tensor(&get("running_var", 1.0)?)?,
            config,
            sync: None,
        })
    }

    /// The same layer with statistics over the batches of all ranks of `reduce`'s group, in training.
    ///
    /// See [`StatsReduce`] for the calls it makes and why their order agrees between ranks.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_nn::{VarBuilder, VarMap};
    /// use hccl_candle::nn::{BatchNorm2d, StatsReduce};
    /// use std::sync::{Arc, Mutex};
    ///
    /// struct Ranks(Mutex<hccl::Communicator>);
    /// impl StatsReduce for Ranks {
    ///     fn all_reduce_sum(&self, values: &mut [f64]) -> candle_core::Result<()> {
    ///         let comm = self.0.lock().map_err(|_| candle_core::Error::msg("a rank panicked"))?;
    ///         comm.all_reduce(values, hccl::Sum).map_err(candle_core::Error::wrap)
    ///     }
    /// }
    /// let means = hccl_candle::local(2, |comm| {
    ///     let x = Tensor::full(comm.rank().index() as f64 * 10.0, (1, 1, 2, 2), &Device::Cpu)?;
    ///     let map = VarMap::new();
    ///     let norm = BatchNorm2d::new(1, VarBuilder::from_varmap(&map, DType::F64, &Device::Cpu))?;
    ///     let norm = norm.synchronized(Arc::new(Ranks(Mutex::new(comm))));
    ///     norm.forward(&x, true)?;
    ///     Ok(norm.running_mean().to_vec1::<f64>()?)
    /// })?;
    /// assert_eq!(means, [[0.5]; 2]); // a tenth of the mean over both batches
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    #[must_use]
    pub fn synchronized(mut self, reduce: Arc<dyn StatsReduce>) -> Self {
        self.sync = Some(reduce);
        self
    }

    /// The factor per channel, γ.
    ///
    /// ```
    /// use candle_core::{DType, Device};
    /// use candle_nn::{VarBuilder, VarMap};
    /// let map = VarMap::new();
    /// let norm = hccl_candle::nn::BatchNorm2d::new(4, VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu))?;
    /// assert_eq!(norm.weight().dims(), [4]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The offset per channel, β.
    ///
    /// ```
    /// use candle_core::{DType, Device};
    /// use candle_nn::{VarBuilder, VarMap};
    /// let map = VarMap::new();
    /// let norm = hccl_candle::nn::BatchNorm2d::new(2, VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu))?;
    /// assert_eq!(norm.bias().to_vec1::<f32>()?, [0.0; 2]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn bias(&self) -> &Tensor {
        &self.bias
    }

    /// The running mean per channel.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_nn::{VarBuilder, VarMap};
    /// let map = VarMap::new();
    /// let norm = hccl_candle::nn::BatchNorm2d::new(1, VarBuilder::from_varmap(&map, DType::F64, &Device::Cpu))?;
    /// norm.forward(&Tensor::full(10f64, (2, 1, 1, 1), &Device::Cpu)?, true)?;
    /// assert_eq!(norm.running_mean().to_vec1::<f64>()?, [1.0]); // a tenth of the way to the batch's
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn running_mean(&self) -> &Var {
        &self.running_mean
    }

    /// The running unbiased variance per channel.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_nn::{VarBuilder, VarMap};
    /// let map = VarMap::new();
    /// let norm = hccl_candle::nn::BatchNorm2d::new(1, VarBuilder::from_varmap(&map, DType::F64, &Device::Cpu))?;
    /// norm.forward(&Tensor::full(10f64, (2, 1, 1, 1), &Device::Cpu)?, true)?;
    /// assert_eq!(norm.running_var().to_vec1::<f64>()?, [0.9]); // a tenth of the way to the batch's, which is 0
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn running_var(&self) -> &Var {
        &self.running_var
    }

    /// Normalises `x`; with `train` by the batch's statistics, updating the running ones.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_nn::{VarBuilder, VarMap};
    /// let map = VarMap::new();
    /// let norm = hccl_candle::nn::BatchNorm2d::new(1, VarBuilder::from_varmap(&map, DType::F64, &Device::Cpu))?;
    /// let x = Tensor::new(&[5f64, 7.0], &Device::Cpu)?.reshape((2, 1, 1, 1))?;
    /// let y = norm.forward(&x, true)?.flatten_all()?.to_vec1::<f64>()?; // by the batch's statistics
    /// assert!((y[0] + 1.0).abs() < 1e-4 && (y[1] - 1.0).abs() < 1e-4);
    /// let z = norm.forward(&x, false)?.flatten_all()?.to_vec1::<f64>()?; // by the running ones
    /// assert!(z[0] > 4.0 && z[1] > z[0]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// Anything but a CPU tensor of f32 or f64 with four dimensions, the layer's channels and dtype; in training fewer
    /// than two values per channel (over all ranks if synchronised), which have no variance; a failed reduction.
    pub fn forward(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.normalize(x, train, false)
    }

    /// `relu(forward(x))` in one operation: one pass over memory less each way, one temporary less in the graph.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_nn::{VarBuilder, VarMap};
    /// let map = VarMap::new();
    /// let norm = hccl_candle::nn::BatchNorm2d::new(1, VarBuilder::from_varmap(&map, DType::F64, &Device::Cpu))?;
    /// let x = Tensor::new(&[-3f64, 2.0], &Device::Cpu)?.reshape((2, 1, 1, 1))?;
    /// let y = norm.forward_relu(&x, false)?.flatten_all()?.to_vec1::<f64>()?;
    /// assert!(y[0] == 0.0 && (y[1] - 2.0).abs() < 1e-4);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_relu(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.normalize(x, train, true)
    }

    /// `relu(forward(x) + residual)` in one operation: the end of a residual block.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_nn::{VarBuilder, VarMap};
    /// let map = VarMap::new();
    /// let norm = hccl_candle::nn::BatchNorm2d::new(1, VarBuilder::from_varmap(&map, DType::F64, &Device::Cpu))?;
    /// let x = Tensor::new(&[-3f64, 2.0], &Device::Cpu)?.reshape((2, 1, 1, 1))?;
    /// let y = norm.forward_add_relu(&x, &x.affine(0.0, 1.0)?, false)?.flatten_all()?.to_vec1::<f64>()?;
    /// assert!(y[0] == 0.0 && (y[1] - 3.0).abs() < 1e-4); // 1 was added to each
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`forward`](Self::forward), and a `residual` of another shape or dtype than `x`.
    pub fn forward_add_relu(&self, x: &Tensor, residual: &Tensor, train: bool) -> Result<Tensor> {
        let x = self.checked(x)?;
        checked_same_dtype("BatchNorm2d", &x, residual)?;
        if x.shape() != residual.shape() {
            bail!("BatchNorm2d: the residual has shape {:?}, the input {:?}", residual.dims(), x.dims());
        }
        let affine = Tensor::stack(&[&self.weight, &self.bias], 0)?;
        x.apply_op3(&affine, &residual.contiguous()?, NormalizeAdd(self.statistics(&x, train)?))
    }

    fn normalize(&self, x: &Tensor, train: bool, relu: bool) -> Result<Tensor> {
        let x = self.checked(x)?;
        let statistics = self.statistics(&x, train)?;
        x.apply_op3(&self.weight.contiguous()?, &self.bias.contiguous()?, Normalize { statistics, relu })
    }

    fn checked(&self, x: &Tensor) -> Result<Tensor> {
        let x = checked_input("BatchNorm2d", x)?;
        checked_same_dtype("BatchNorm2d", &x, &self.weight)?;
        let channels = self.weight.elem_count();
        if x.dim(1)? != channels {
            bail!("BatchNorm2d: the input has {} channels, the layer {channels}", x.dim(1)?);
        }
        Ok(x)
    }

    fn statistics(&self, x: &Tensor, train: bool) -> Result<Normalization> {
        if !train {
            let (mean, var) = (to_f64(&self.running_mean)?, to_f64(&self.running_var)?);
            return Ok(Normalization::fixed(mean, &var, self.config.eps));
        }
        let local = dispatch!(x.dtype(), T => Moments::of_tensor::<T>(x))?;
        let moments = match &self.sync {
            Some(reduce) => local.over_ranks(reduce.as_ref())?,
            None => local,
        };
        if moments.count < 2.0 {
            bail!(
                "BatchNorm2d: training needs at least 2 values per channel, input {:?} gives {}{}; use a larger batch \
                 or larger images, or evaluate",
                x.dims(),
                moments.count,
                if self.sync.is_some() { " over all ranks" } else { "" }
            );
        }
        self.update_running(&moments)?;
        Ok(Normalization::of_batch(moments, self.config.eps, self.sync.clone()))
    }

    fn update_running(&self, moments: &Moments) -> Result<()> {
        let momentum = self.config.momentum;
        let unbiased = moments.squares.iter().map(|squares| squares / (moments.count - 1.0));
        for (running, batch) in
            [(&self.running_mean, moments.mean.clone()), (&self.running_var, unbiased.collect::<Vec<_>>())]
        {
            let old = to_f64(running)?;
            let new: Vec<f64> = old.iter().zip(&batch).map(|(o, b)| (1.0 - momentum) * o + momentum * b).collect();
            running.set(&Tensor::from_vec(new, running.shape(), running.device())?.to_dtype(running.dtype())?)?;
        }
        Ok(())
    }
}

impl ModuleT for BatchNorm2d {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.forward(x, train)
    }
}

impl fmt::Debug for BatchNorm2d {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchNorm2d")
            .field("channels", &self.weight.elem_count())
            .field("config", &self.config)
            .field("synchronized", &self.sync.is_some())
            .finish()
    }
}

fn to_f64(values: &Tensor) -> Result<Vec<f64>> {
    values.detach().to_dtype(DType::F64)?.to_vec1()
}
