//! A batch in parts, and the loss of one: [`Microbatches`], [`loss`].

use super::payload::{Gradient, Leaf, TensorPayload};
use crate::error::{Error, Result};
use crate::grads::scale;
use candle_core::{DType, Tensor};
use hccl::pipeline::{Grad, StageResult};
use std::ops::Range;

/// How the samples of a step are dealt to microbatches: as evenly as they can be, the first ones one more. Nothing is left
/// over.
///
/// ```
/// use hccl_candle::pipeline::Microbatches;
/// let parts = Microbatches::new(7, 3)?;
/// assert_eq!([parts.range(0), parts.range(1), parts.range(2)], [0..3, 3..5, 5..7]);
/// assert_eq!(parts.share(0), 3.0 / 7.0);
/// assert!(Microbatches::new(2, 3).is_err());
/// # Ok::<(), hccl_candle::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Microbatches {
    samples: usize,
    count: usize,
}

impl Microbatches {
    /// This many samples in `count` microbatches, that of the plan.
    ///
    /// # Errors
    /// Fewer samples than microbatches: each has one or more.
    pub fn new(samples: usize, count: usize) -> Result<Self> {
        if count == 0 || samples < count {
            return Err(Error::invalid(format!(
                "{samples} samples do not make {count} microbatches of one or more (hint: plan for fewer)"
            )));
        }
        Ok(Microbatches { samples, count })
    }

    /// The samples of a microbatch below `count`.
    pub fn range(&self, microbatch: usize) -> Range<usize> {
        let (each, more) = (self.samples / self.count, self.samples % self.count);
        let start = microbatch * each + microbatch.min(more);
        start..start + each + usize::from(microbatch < more)
    }

    /// The microbatch's share of the samples: what a mean over its samples counts in the mean over all.
    pub fn share(&self, microbatch: usize) -> f64 {
        self.range(microbatch).len() as f64 / self.samples as f64
    }

    /// The part of a tensor that has the samples along its first dimension: a view.
    ///
    /// # Errors
    /// A first dimension of another length than the samples.
    pub fn of(&self, samples: &Tensor, microbatch: usize) -> Result<Tensor> {
        match samples.dims().first() {
            Some(&first) if first == self.samples => {
                let range = self.range(microbatch);
                Ok(samples.narrow(0, range.start, range.len())?)
            }
            _ => {
                let problem = format!("the first dimension of {:?} is not {} samples", samples.dims(), self.samples);
                Err(Error::Shape { op: "Microbatches::of", problem })
            }
        }
    }
}

/// What [`Trainer::step`](hccl::pipeline::Trainer::step) wants of the last stage's output: the loss and its gradient, both
/// times `share`.
///
/// With losses that are means over a microbatch and [shares](Microbatches::share) that add up to 1, gradients are those of
/// the mean over the whole batch, however uneven the microbatches are, and
/// [`Losses::sum`](hccl::pipeline::Losses::sum) is its loss.
///
/// # Errors
/// Those of `of`; a loss that is not a scalar.
pub fn loss<Out: TensorPayload>(
    output: Out,
    share: f64,
    of: impl FnOnce(&Tensor) -> candle_core::Result<Tensor>,
) -> StageResult<(f64, Grad<Out>)> {
    let dims = output.dims().as_slice().to_vec();
    let Leaf::Var(output) = output.into_leaf()? else {
        return Err(Error::invalid("integers have no gradient: the last stage's output must be of floats").into());
    };
    let loss = of(&output)?;
    let value = loss.to_dtype(DType::F64)?.to_scalar::<f64>()?;
    let gradient = match loss.track_op() {
        true => loss.backward()?.remove(&output),
        false => None,
    };
    if let Some(gradient) = gradient.as_ref().filter(|_| share != 1.0) {
        scale(gradient, share)?;
    }
    Ok((share * value, Grad::<Out>::from_gradient(gradient, &dims)?))
}
