//! Convolution whose forward and backward passes are matrix products.

mod op;

use super::data::{checked_input, checked_same_dtype};
use candle_core::{Module, Result, Tensor, bail};
use candle_nn::VarBuilder;
use candle_nn::init::{FanInOut, Init, NonLinearity, NormalOrUniform};

/// How a convolution walks over its input; pairs are (vertical, horizontal).
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
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The bias, `O`, if there is one.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// The configuration it was made with.
    pub fn config(&self) -> Conv2dConfig {
        self.config
    }

    /// Applies the convolution to `x` of `N x C x H x W`.
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
