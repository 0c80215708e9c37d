//! Convolution whose forward and backward passes are matrix products.

mod op;

use super::data::{checked_input, checked_same_dtype};
use candle_core::{Module, Result, Tensor, bail};
use candle_nn::VarBuilder;
use candle_nn::init::{FanInOut, Init, NonLinearity, NormalOrUniform};

/// How a convolution walks over its input; pairs are (vertical, horizontal).
///
/// ```
/// use hccl_candle::nn::Conv2dConfig;
/// let config = Conv2dConfig { stride: (2, 2), padding: (3, 3), ..Conv2dConfig::default() };
/// assert_eq!((config.dilation, config.groups, config.bias), ((1, 1), 1, false));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dConfig {
    /// Step of the window, in pixels, at least 1.
    pub stride: (usize, usize),
    /// Zeros added on each side, in pixels.
    pub padding: (usize, usize),
    /// Distance between neighbouring kernel taps, in pixels, at least 1.
    pub dilation: (usize, usize),
    /// Only 1 is supported: every filter sees all input channels.
    pub groups: usize,
    /// Whether a bias per filter is added.
    pub bias: bool,
}

impl Default for Conv2dConfig {
    /// Stride 1, no padding, no dilation, one group, no bias.
    fn default() -> Self {
        Self { stride: (1, 1), padding: (0, 0), dilation: (1, 1), groups: 1, bias: false }
    }
}

/// A two-dimensional convolution (cross-correlation, as everywhere in machine learning) over `N x C x H x W`.
///
/// Output side: `(size + 2 padding - dilation (kernel - 1) - 1) / stride + 1`, rounded down, per axis.
///
/// Both passes are matrix products over the image's windows laid out as columns: `out = W cols`, `dW = dout colsᵀ`,
/// `dcols = Wᵀ dout`. The columns are laid out again in the backward pass rather than kept: a copy in cache is cheap
/// beside the products, and keeping them would hold nine times the activations of a 3x3 layer. Images with few pixels
/// share one product.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// use hccl_candle::nn::{Conv2d, Conv2dConfig};
/// let map = VarMap::new();
/// let vb = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
/// let config = Conv2dConfig { stride: (2, 2), padding: (3, 3), ..Conv2dConfig::default() };
/// let conv = Conv2d::new(3, 8, 7, config, vb.pp("conv1"))?;
/// assert_eq!(conv.forward(&Tensor::ones((2, 3, 32, 32), DType::F32, &Device::Cpu)?)?.dims(), [2, 8, 16, 16]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Conv2d {
    weight: Tensor,
    bias: Option<Tensor>,
    config: Conv2dConfig,
}

impl Conv2d {
    /// Takes `weight` (`filters x channels x kernel x kernel`) and, if configured, `bias` (`filters`) from `vb`.
    ///
    /// Fresh weights are drawn as in torchvision's ResNet: normal with mean 0 and standard deviation
    /// `sqrt(2 / (filters * kernel * kernel))` (Kaiming, fan out, ReLU); the bias starts at 0. candle's CPU generator
    /// cannot be seeded, so ranks must agree on weights by a broadcast.
    ///
    /// ```
    /// use candle_core::{DType, Device};
    /// use candle_nn::{VarBuilder, VarMap};
    /// use hccl_candle::nn::{Conv2d, Conv2dConfig};
    /// let map = VarMap::new();
    /// let vb = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
    /// let conv = Conv2d::new(3, 8, 5, Conv2dConfig { bias: true, ..Conv2dConfig::default() }, vb)?;
    /// assert_eq!((conv.weight().dims(), conv.bias().map(|bias| bias.dims())), (&[8, 3, 5, 5][..], Some(&[8][..])));
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// A configuration that [`from_tensors`](Self::from_tensors) refuses; a name that `vb` lacks or holds with another
    /// shape.
    pub fn new(
        channels: usize,
        filters: usize,
        kernel: usize,
        config: Conv2dConfig,
        vb: VarBuilder<'_>,
    ) -> Result<Self> {
        let init =
            Init::Kaiming { dist: NormalOrUniform::Normal, fan: FanInOut::FanOut, non_linearity: NonLinearity::ReLU };
        let weight = vb.get_with_hints((filters, channels, kernel, kernel), "weight", init)?;
        let bias = config.bias.then(|| vb.get_with_hints(filters, "bias", Init::Const(0.))).transpose()?;
        Self::from_tensors(weight, bias, config)
    }

    /// A convolution with these tensors as weights, which may be variables: `weight` is `O x C x KH x KW`, `bias` is
    /// `O`.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use hccl_candle::nn::{Conv2d, Conv2dConfig};
    /// let edges = Tensor::new(&[-1f32, 1.0], &Device::Cpu)?.reshape((1, 1, 1, 2))?;
    /// let x = Tensor::new(&[3f32, 3.0, 8.0], &Device::Cpu)?.reshape((1, 1, 1, 3))?;
    /// let y = Conv2d::from_tensors(edges, None, Conv2dConfig::default())?.forward(&x)?;
    /// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [0.0, 5.0]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// A weight that has not four dimensions, a bias of another length or dtype, an empty kernel, a stride or dilation
    /// of 0, groups other than 1, or `config.bias` not saying whether there is a bias.
    pub fn from_tensors(weight: Tensor, bias: Option<Tensor>, config: Conv2dConfig) -> Result<Self> {
        let (filters, channels, kh, kw) = weight.dims4()?;
        if config.groups != 1 {
            bail!(
                "Conv2d: groups = {} is not supported, only 1 is; use candle_nn::Conv2d for grouped layers",
                config.groups
            );
        }
        if config.stride.0 * config.stride.1 * config.dilation.0 * config.dilation.1 == 0 {
            bail!("Conv2d: stride {:?} and dilation {:?} must be at least 1", config.stride, config.dilation);
        }
        if filters * channels * kh * kw == 0 {
            bail!("Conv2d: the weight {:?} is empty", weight.dims());
        }
        if bias.is_some() != config.bias {
            bail!("Conv2d: config.bias is {} but {} bias was given", config.bias, if config.bias { "no" } else { "a" });
        }
        if let Some(bias) = &bias {
            checked_same_dtype("Conv2d", &weight, bias)?;
            if bias.dims() != [filters] {
                bail!("Conv2d: the bias has shape {:?}, it must be [{filters}], one value per filter", bias.dims());
            }
        }
        Ok(Self { weight, bias, config })
    }

    /// The weight, `O x C x KH x KW`.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use hccl_candle::nn::{Conv2d, Conv2dConfig};
    /// let weight = Tensor::ones((4, 2, 3, 3), DType::F32, &Device::Cpu)?;
    /// let conv = Conv2d::from_tensors(weight, None, Conv2dConfig::default())?;
    /// assert_eq!(conv.weight().dims4()?, (4, 2, 3, 3));
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The bias, `O`, if there is one.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use hccl_candle::nn::{Conv2d, Conv2dConfig};
    /// let weight = Tensor::ones((4, 2, 3, 3), DType::F32, &Device::Cpu)?;
    /// let conv = Conv2d::from_tensors(weight, None, Conv2dConfig::default())?;
    /// assert!(conv.bias().is_none());
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// The configuration it was made with.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use hccl_candle::nn::{Conv2d, Conv2dConfig};
    /// let config = Conv2dConfig { stride: (2, 1), ..Conv2dConfig::default() };
    /// let conv = Conv2d::from_tensors(Tensor::ones((4, 2, 3, 3), DType::F32, &Device::Cpu)?, None, config)?;
    /// assert_eq!(conv.config().stride, (2, 1));
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn config(&self) -> Conv2dConfig {
        self.config
    }

    /// Applies the convolution to `x` of `N x C x H x W`.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use hccl_candle::nn::{Conv2d, Conv2dConfig};
    /// let mean = Tensor::full(0.25f32, (1, 1, 2, 2), &Device::Cpu)?;
    /// let conv = Conv2d::from_tensors(mean, None, Conv2dConfig { stride: (2, 2), ..Conv2dConfig::default() })?;
    /// let x = Tensor::arange(0f32, 8.0, &Device::Cpu)?.reshape((1, 1, 2, 4))?;
    /// assert_eq!(conv.forward(&x)?.flatten_all()?.to_vec1::<f32>()?, [2.5, 4.5]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// Anything but a contiguous-able CPU tensor of f32 or f64 with four dimensions, the weight's dtype and channel
    /// count; an image smaller than the kernel's reach.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = checked_input("Conv2d", x)?;
        checked_same_dtype("Conv2d", &x, &self.weight)?;
        let y = x.apply_op2(&self.weight.contiguous()?, op::Convolution(self.config))?;
        match &self.bias {
            Some(bias) => y.broadcast_add(&bias.reshape((1, (), 1, 1))?),
            None => Ok(y),
        }
    }
}

impl Module for Conv2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Conv2d::forward(self, x)
    }
}
