//! Layers whose weight part can wait: the backward pass gives the gradient of the input at once and queues the rest, which
//! `zb_h1` and `zb_v` compute while they would otherwise stand still.
//!
//! Mix them freely with candle's own operations: whatever the graph, their weight parts are queued and those of candle's
//! layers are not. They belong to the pipeline's stages: outside them nobody empties the queue.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::{VarBuilder, VarMap};
//! use hccl_candle::pipeline::StageWeights;
//! use hccl_candle::pipeline::split::{Embedding, Linear, RmsNorm};
//!
//! let (weights, map) = (StageWeights::new(), VarMap::new());
//! let vb = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
//! let embed = Embedding::new(10, 4, weights.queue(), vb.pp("embed"))?;
//! let norm = RmsNorm::new(4, 1e-5, weights.queue(), vb.pp("norm"))?;
//! let head = Linear::new(4, 10, weights.queue(), vb.pp("head"))?;
//! let ids = Tensor::new(&[[1u32, 2, 3]], &Device::Cpu)?;
//! assert_eq!(head.forward(&norm.forward(&embed.forward(&ids)?)?)?.dims(), [1, 3, 10]);
//! # Ok::<(), hccl_candle::Error>(())
//! ```

mod embedding;
mod linear;
mod norm;

pub use embedding::Embedding;
pub use linear::Linear;
pub use norm::RmsNorm;

use super::weights::Sums;
use crate::error::{Error, Result};
use crate::storage;
use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Weight parts of backward passes that wait. Clones are the same queue.
#[derive(Clone, Default)]
pub struct Queue(Arc<Mutex<Vec<Job>>>);

/// The weight part of a layer's backward pass on one microbatch.
pub struct Job {
    layer: Arc<dyn Layer>,
    x: Tensor,
    weight: Tensor,
    gradient: Tensor,
}

impl Queue {
    /// What was queued since the last call.
    pub(super) fn take(&self) -> Vec<Job> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Job>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Job {
    pub(super) fn run(self, sums: &Sums) -> Result<()> {
        self.layer.weight(&self.x, &self.weight, &self.gradient, sums)
    }
}

/// The arithmetic of a layer, outside any graph.
trait Layer: Send + Sync + 'static {
    fn name(&self) -> &'static str;

    /// The result.
    fn forward(&self, x: &Tensor, weight: &Tensor) -> candle_core::Result<Tensor>;

    /// The gradient of the input.
    fn input(&self, x: &Tensor, weight: &Tensor, gradient: &Tensor) -> candle_core::Result<Tensor>;

    /// Adds the gradients of the weights.
    fn weight(&self, x: &Tensor, weight: &Tensor, gradient: &Tensor, sums: &Sums) -> Result<()>;
}

/// A weight that a layer takes: one that is computed has no place to leave its gradient.
fn check_weight(layer: &'static str, weight: &Tensor) -> candle_core::Result<()> {
    match weight.track_op() && !weight.is_variable() {
        true => candle_core::bail!("{layer}: the weight is computed from variables, must be a variable or fixed"),
        false => Ok(()),
    }
}

/// Runs a layer forward; its backward pass queues the weight part.
fn apply(layer: &Arc<dyn Layer>, queue: &Queue, x: &Tensor, weight: &Tensor) -> candle_core::Result<Tensor> {
    let y = layer.forward(&x.detach(), &weight.detach())?;
    let (shape, name) = (y.shape().clone(), layer.name());
    let y = storage::take(name, &y)?;
    let op = Deferred { layer: layer.clone(), queue: queue.clone(), result: Mutex::new(Some((y, shape))) };
    x.apply_op2(weight, op)
}

/// Hands out a result that was computed before, as an operation's must be memory of its own.
struct Deferred {
    layer: Arc<dyn Layer>,
    queue: Queue,
    result: Mutex<Option<(CpuStorage, Shape)>>,
}

impl CustomOp2 for Deferred {
    fn name(&self) -> &'static str {
        self.layer.name()
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner).take();
        let twice = || Error::Shape { op: self.layer.name(), problem: "candle ran the operation twice".into() };
        result.ok_or_else(|| twice().into())
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let (x_detached, gradient) = (x.detach(), gradient.detach().contiguous()?);
        let input = match x.track_op() {
            true => Some(self.layer.input(&x_detached, &weight.detach(), &gradient)?),
            false => None,
        };
        if weight.is_variable() {
            let job = Job { layer: self.layer.clone(), x: x_detached, weight: weight.clone(), gradient };
            self.queue.lock().push(job);
        }
        Ok((input, None))
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({})", self.lock().len())
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Job({})", self.layer.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Var};

    /// Gradients of candle's own layers and of ours: the input's at once, the weights' from the queue only.
    #[test]
    fn weight_parts_wait_and_are_those_of_candle() {
        let (queue, sums) = (Queue::default(), Sums::default());
        let var = |from: f32, shape: &[usize]| {
            let len = shape.iter().product::<usize>();
            let values = (0..len).map(|i| from + ((i * 7) % 5) as f32 / 4.0).collect();
            Var::from_vec(values, shape, &Device::Cpu).unwrap()
        };
        let (x, weight, bias, scale) = (var(-0.5, &[3, 4]), var(-0.3, &[2, 4]), var(0.1, &[2]), var(0.7, &[4]));
        let linear = Linear::from_tensors(weight.as_tensor().clone(), Some(bias.as_tensor().clone()), &queue).unwrap();
        let norm = RmsNorm::from_tensor(scale.as_tensor().clone(), 1e-5, &queue).unwrap();
        let root = ((x.sqr().unwrap().mean_keepdim(1).unwrap() + 1e-5).unwrap()).sqrt().unwrap();
        let unit = x.broadcast_div(&root).unwrap().broadcast_mul(&scale).unwrap();
        let theirs = unit.matmul(&weight.t().unwrap()).unwrap().broadcast_add(&bias).unwrap();
        let theirs = theirs.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let ours = linear.forward(&norm.forward(&x).unwrap()).unwrap();
        let ours = ours.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let close = |a: &Tensor, b: &Tensor| {
            let off = (a - b).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap();
            assert!(off.to_scalar::<f32>().unwrap() < 1e-5, "{a} {b}");
        };
        close(ours.get(&x).unwrap(), theirs.get(&x).unwrap());
        for later in [&weight, &bias, &scale] {
            assert!(ours.get(later).is_none() && sums.take(later).is_none());
        }
        let jobs = queue.take();
        assert_eq!((jobs.len(), queue.take().len()), (2, 0));
        jobs.into_iter().for_each(|job| job.run(&sums).unwrap());
        for now in [&weight, &bias, &scale] {
            close(&sums.take(now).unwrap(), theirs.get(now).unwrap());
        }
    }

    #[test]
    fn computed_weights_are_refused() {
        let var = Var::new(&[[1f32, 2.0]], &Device::Cpu).unwrap();
        let refused = Linear::from_tensors(var.affine(2.0, 0.0).unwrap(), None, &Queue::default()).unwrap_err();
        assert!(refused.to_string().contains("computed from variables"), "{refused}");
    }
}
