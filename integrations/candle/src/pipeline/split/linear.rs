//! A linear layer.

use super::{Layer, Queue, Sums, apply, check_weight};
use crate::error::Result as OurResult;
use candle_core::{Module, Result, Tensor, bail};
use candle_nn::{Init, VarBuilder};
use std::fmt;
use std::sync::Arc;

/// `y = x weightᵀ + bias` over the last dimension. Drop-in for candle's: the same names, the same initial values.
#[derive(Clone)]
pub struct Linear {
    weight: Tensor,
    layer: Arc<dyn Layer>,
    queue: Queue,
}

impl Linear {
    /// Takes `weight` (`outputs x inputs`) and `bias` (`outputs`) from `vb`.
    ///
    /// # Errors
    /// A name that `vb` lacks or holds with another shape.
    pub fn new(inputs: usize, outputs: usize, queue: &Queue, vb: VarBuilder<'_>) -> Result<Self> {
        let bound = 1.0 / (inputs as f64).sqrt();
        let bias = vb.get_with_hints(outputs, "bias", Init::Uniform { lo: -bound, up: bound })?;
        Self::from_tensors(Self::weight(inputs, outputs, &vb)?, Some(bias), queue)
    }

    /// The same without a bias.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn new_no_bias(inputs: usize, outputs: usize, queue: &Queue, vb: VarBuilder<'_>) -> Result<Self> {
        Self::from_tensors(Self::weight(inputs, outputs, &vb)?, None, queue)
    }

    /// A layer of these tensors, which are variables, or stay as they are.
    ///
    /// # Errors
    /// A weight that has not two dimensions, a bias of another length or dtype, a weight or bias that is computed from
    /// variables, a bias that is a variable beside a weight that is not.
    pub fn from_tensors(weight: Tensor, bias: Option<Tensor>, queue: &Queue) -> Result<Self> {
        let (outputs, _) = weight.dims2()?;
        check_weight("linear", &weight)?;
        if let Some(bias) = &bias {
            check_weight("linear", bias)?;
            if bias.dims() != [outputs] || bias.dtype() != weight.dtype() {
                let (dtype, must) = (bias.dtype(), weight.dtype());
                bail!("linear: the bias is {dtype:?}{:?}, must be {must:?}[{outputs}]", bias.dims());
            }
            if bias.is_variable() && !weight.is_variable() {
                bail!("linear: the bias is a variable and the weight is not; use candle's layer for that");
            }
        }
        Ok(Linear { weight, layer: Arc::new(Affine { bias }), queue: queue.clone() })
    }

    /// Applies the layer to `x` of `… x inputs`.
    ///
    /// # Errors
    /// A last dimension that is not the weight's, another dtype.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        apply(&self.layer, &self.queue, x, &self.weight)
    }

    fn weight(inputs: usize, outputs: usize, vb: &VarBuilder<'_>) -> Result<Tensor> {
        vb.get_with_hints((outputs, inputs), "weight", candle_nn::init::DEFAULT_KAIMING_NORMAL)
    }
}

impl Module for Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Linear::forward(self, x)
    }
}

impl fmt::Debug for Linear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Linear({:?})", self.weight.dims())
    }
}

struct Affine {
    bias: Option<Tensor>,
}

/// All rows of a tensor, as a matrix.
fn rows(x: &Tensor) -> Result<Tensor> {
    let Some(&last) = x.dims().last() else { bail!("linear: a scalar has no last dimension") };
    x.reshape(((), last))
}

impl Layer for Affine {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn forward(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let (outputs, _) = weight.dims2()?;
        let y = rows(x)?.matmul(&weight.t()?)?;
        let y = match &self.bias {
            Some(bias) => y.broadcast_add(&bias.detach())?,
            None => y,
        };
        let mut dims = x.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = outputs;
        }
        y.reshape(dims)
    }

    fn input(&self, x: &Tensor, weight: &Tensor, gradient: &Tensor) -> Result<Tensor> {
        rows(gradient)?.matmul(weight)?.reshape(x.shape())
    }

    fn weight(&self, x: &Tensor, weight: &Tensor, gradient: &Tensor, sums: &Sums) -> OurResult<()> {
        let gradient = rows(gradient)?;
        sums.add(weight, &gradient.t()?.matmul(&rows(x)?)?)?;
        match self.bias.as_ref().filter(|bias| bias.is_variable()) {
            Some(bias) => sums.add(bias, &gradient.sum(0)?),
            None => Ok(()),
        }
    }
}
