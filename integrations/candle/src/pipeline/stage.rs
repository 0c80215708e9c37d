//! A stage of candle code: [`TensorStage`].

use super::payload::{Gradient, Leaf, TensorPayload};
use super::split::Job;
use super::weights::StageWeights;
use crate::error::{Error, Result};
use candle_core::backprop::GradStore;
use candle_core::{Tensor, Var};
use hccl::pipeline::{Grad, Pass, SplitTrain, StageResult, Train};
use std::fmt;
use std::marker::PhantomData;

/// A piece of a stage's forward pass.
type Segment = Box<dyn Fn(&Tensor) -> candle_core::Result<Tensor>>;

/// Any candle code as a stage that is trained. Made by [`StageWeights::stage`].
///
/// Forward, the activation that came in is the start of a graph of its own, and the graph is kept. Backward, the
/// gradient that came in is taken through that graph: the weights' gradients are added to those of the microbatches
/// before, and the input's goes on. The first stage computes no gradient of its input.
pub struct TensorStage<In, Out> {
    weights: StageWeights,
    /// Nobody waits for the gradient of its input.
    first: bool,
    vars: Vec<Var>,
    segments: Vec<Segment>,
    ends: PhantomData<fn(In) -> Out>,
}

/// What the backward pass of a microbatch needs.
pub struct Saved {
    /// Start and result of each segment.
    pieces: Vec<(Option<Var>, Tensor)>,
    /// Dimensions of the input.
    dims: Vec<usize>,
}

impl<In: TensorPayload, Out: TensorPayload> TensorStage<In, Out> {
    pub(super) fn new(weights: StageWeights, first: bool, vars: Vec<Var>, forward: Segment) -> Self {
        TensorStage { weights, first, vars, segments: vec![forward], ends: PhantomData }
    }

    /// Goes on with another piece of the model, in a graph of its own: candle walks graphs recursively, and a chain of
    /// thousands of operations needs more stack than a thread has. Costs a copy of the tensor between the pieces.
    #[must_use]
    pub fn then(mut self, forward: impl Fn(&Tensor) -> candle_core::Result<Tensor> + 'static) -> Self {
        self.segments.push(Box::new(forward));
        self
    }

    /// Takes a gradient back through all segments, adding up those of the weights: the gradient of the input, if there is
    /// one.
    fn walk(&self, mut pieces: Vec<(Option<Var>, Tensor)>, gradient: Option<Tensor>) -> Result<Option<Tensor>> {
        let mut gradient = gradient;
        while let Some((start, y)) = pieces.pop() {
            let Some(outer) = gradient.take().filter(|_| y.track_op()) else { return Ok(None) };
            let mut store = product(&y, &outer)?;
            drop(y);
            gradient = start.and_then(|start| store.remove(&start));
            for var in &self.vars {
                if let Some(own) = store.remove(var) {
                    self.weights.sums().add(var, &own)?;
                }
            }
        }
        Ok(gradient)
    }
}

/// The vector-Jacobian product of `y` and a gradient: candle's own backward pass begins with ones.
fn product(y: &Tensor, gradient: &Tensor) -> Result<GradStore> {
    if y.dims() != gradient.dims() {
        let problem = format!("a gradient of {:?} for a result of {:?}", gradient.dims(), y.dims());
        return Err(Error::Shape { op: "backward", problem });
    }
    let gradient = gradient.detach().to_dtype(y.dtype())?;
    Ok((y * gradient)?.sum_all()?.backward()?)
}

impl<In: TensorPayload, Out: TensorPayload> Train for TensorStage<In, Out> {
    type In = In;
    type Out = Out;
    type Saved = Saved;

    fn forward(&mut self, _: Pass, input: In) -> StageResult<(Out, Saved)> {
        let dims = input.dims().as_slice().to_vec();
        let leaf = if self.first { Leaf::Plain(input.into_tensor()) } else { input.into_leaf()? };
        let (mut start, mut x) = match leaf {
            Leaf::Var(var) => (Some(var.clone()), var.as_tensor().clone()),
            Leaf::Plain(tensor) => (None, tensor),
        };
        let mut pieces = Vec::with_capacity(self.segments.len());
        for (at, segment) in self.segments.iter().enumerate() {
            if at > 0 {
                let var = Var::from_tensor(&x.detach())?;
                x = var.as_tensor().clone();
                start = Some(var);
            }
            x = segment(&x)?;
            pieces.push((start.take(), x.clone()));
        }
        Ok((Out::from_tensor(x.detach())?, Saved { pieces, dims }))
    }

    fn backward(&mut self, saved: Saved, grad: Grad<Out>) -> StageResult<Grad<In>> {
        let (grad, queued) = self.backward_input(saved, grad)?;
        self.backward_weight(queued)?;
        Ok(grad)
    }
}

/// The weight parts of layers of [`split`](super::split) wait for [`backward_weight`](SplitTrain::backward_weight); those
/// of candle's own layers come with the input part.
impl<In: TensorPayload, Out: TensorPayload> SplitTrain for TensorStage<In, Out> {
    type Queued = Vec<Job>;

    fn backward_input(&mut self, saved: Saved, grad: Grad<Out>) -> StageResult<(Grad<In>, Vec<Job>)> {
        let gradient = self.walk(saved.pieces, grad.into_gradient())?;
        Ok((Grad::<In>::from_gradient(gradient, &saved.dims)?, self.weights.queue().take()))
    }

    fn backward_weight(&mut self, queued: Vec<Job>) -> StageResult<()> {
        for job in queued {
            job.run(self.weights.sums())?;
        }
        Ok(())
    }
}

impl<In, Out> fmt::Debug for TensorStage<In, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorStage({} variables, {} segments)", self.vars.len(), self.segments.len())
    }
}

impl fmt::Debug for Saved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Saved({} segments)", self.pieces.len())
    }
}
