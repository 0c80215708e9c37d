//! Root-mean-square normalisation.

use super::{Layer, Queue, Sums, apply, check_weight};
use crate::error::Result as OurResult;
use candle_core::{D, DType, Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};
use std::fmt;
use std::sync::Arc;

/// `y = x / sqrt(mean(x²) + eps) * weight` over the last dimension. Halves are computed in f32.
#[derive(Clone)]
pub struct RmsNorm {
    weight: Tensor,
    layer: Arc<dyn Layer>,
    queue: Queue,
}

impl RmsNorm {
    /// Takes `weight` (`size`) from `vb`; a fresh one is 1.
    ///
    /// # Errors
    /// A name that `vb` lacks or holds with another shape.
    pub fn new(size: usize, eps: f64, queue: &Queue, vb: VarBuilder<'_>) -> Result<Self> {
        Self::from_tensor(vb.get_with_hints(size, "weight", Init::Const(1.0))?, eps, queue)
    }

    /// A layer of this weight, which is a variable, or stays as it is.
    ///
    /// # Errors
    /// A weight that has not one dimension, or that is computed from variables.
    pub fn from_tensor(weight: Tensor, eps: f64, queue: &Queue) -> Result<Self> {
        weight.dims1()?;
        check_weight("rms_norm", &weight)?;
        Ok(RmsNorm { weight, layer: Arc::new(Norm { eps }), queue: queue.clone() })
    }

    /// Applies the layer to `x` of `… x size`.
    ///
    /// # Errors
    /// A last dimension that is not the weight's, another dtype.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        apply(&self.layer, &self.queue, x, &self.weight)
    }
}

impl Module for RmsNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        RmsNorm::forward(self, x)
    }
}

impl fmt::Debug for RmsNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RmsNorm({:?})", self.weight.dims())
    }
}

struct Norm {
    eps: f64,
}

/// In what it is computed.
fn wide(x: &Tensor) -> Result<Tensor> {
    match x.dtype() {
        DType::F64 => Ok(x.clone()),
        _ => x.to_dtype(DType::F32),
    }
}

impl Norm {
    /// `x` normalised, and the factor of each row.
    fn unit(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let x = wide(x)?;
        let factor = (x.sqr()?.mean_keepdim(D::Minus1)? + self.eps)?.sqrt()?.recip()?;
        Ok((x.broadcast_mul(&factor)?, factor))
    }
}

impl Layer for Norm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn forward(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let (unit, _) = self.unit(x)?;
        unit.broadcast_mul(&wide(weight)?)?.to_dtype(x.dtype())
    }

    fn input(&self, x: &Tensor, weight: &Tensor, gradient: &Tensor) -> Result<Tensor> {
        let (unit, factor) = self.unit(x)?;
        let inner = wide(gradient)?.broadcast_mul(&wide(weight)?)?;
        let along = (&inner * &unit)?.mean_keepdim(D::Minus1)?;
        (inner - unit.broadcast_mul(&along)?)?.broadcast_mul(&factor)?.to_dtype(x.dtype())
    }

    fn weight(&self, x: &Tensor, weight: &Tensor, gradient: &Tensor, sums: &Sums) -> OurResult<()> {
        let (unit, _) = self.unit(x)?;
        let own = (wide(gradient)? * unit)?.reshape(((), weight.dims1()?))?.sum(0)?;
        sums.add(weight, &own)
    }
}
