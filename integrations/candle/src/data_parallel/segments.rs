//! The backward pass in pieces, with each piece's gradients on their way while the next is computed.
//!
//! ```text
//! compute   loss, segment 2 | segment 1   | segment 0   |
//! network                   | buckets of 2| buckets of 1| buckets of 0
//! ```
//!
//! candle's `backward` starts from ones; the piece for output `y` and its gradient `g` is the backward pass of
//! `sum(y * g)`, with `g` outside the graph: the vector-Jacobian product.

use super::plan::{self, Plan};
use super::round::Round;
use super::{DataParallel, agree, check_weight};
use crate::error::{Error, Result};
use crate::grads::{Grads, Local, Synced};
use crate::nn::SegmentedModel;
use candle_core::backprop::GradStore;
use candle_core::{Tensor, Var};
use hccl::Axis;
use std::time::Instant;

/// What [`DataParallel::backward_segments`] gives.
#[derive(Debug)]
#[non_exhaustive]
pub struct Segmented {
    /// This rank's loss, outside the graph.
    pub loss: Tensor,
    /// The synchronised gradients; `None` while batches are accumulated.
    pub grads: Option<Grads<Synced>>,
}

impl<A: Axis> DataParallel<A> {
    /// Forward and backward pass of a model in segments, with synchronisation beside the backward pass: the same
    /// gradients as [`backward_weighted`](Self::backward_weighted) on the whole graph and
    /// [`accumulate`](Self::accumulate). Collective at each k-th call ([`Options::accumulate`](super::Options::accumulate)).
    ///
    /// `loss` makes this rank's loss of the model's output. `weight` is as in
    /// [`backward_weighted`](Self::backward_weighted).
    ///
    /// # Errors
    /// Segments whose parameters are not each of this replica's exactly once, or that differ between ranks; those of the
    /// model and of [`sync`](Self::sync).
    pub fn backward_segments<M: SegmentedModel + ?Sized>(
        &mut self,
        model: &M,
        input: &Tensor,
        weight: f64,
        loss: impl FnOnce(&Tensor) -> candle_core::Result<Tensor>,
    ) -> Result<Segmented> {
        check_weight(weight)?;
        self.plan_for(model)?;
        let mut pieces = Vec::with_capacity(model.len());
        let mut x = input.clone();
        for segment in 0..model.len() {
            let start = if segment == 0 { None } else { Some(Var::from_tensor(&x.detach())?) };
            let y = model.forward(segment, start.as_ref().map_or(&x, |var| var.as_tensor()), true)?;
            x = y.clone();
            pieces.push((start, y));
        }
        let loss = loss(&x)?;
        drop(x);
        let grads = match self.batches + 1 >= self.options.accumulate {
            true => Some(self.backward_synced(&loss, pieces, weight)?),
            false => {
                self.backward_held(&loss, pieces, weight)?;
                None
            }
        };
        Ok(Segmented { loss: loss.detach(), grads })
    }

    /// The backward pass of a batch that is synchronised.
    fn backward_synced(&mut self, loss: &Tensor, pieces: Pieces, weight: f64) -> Result<Grads<Synced>> {
        let mut round = Round::new(self.parameters.len(), self.take_held()?, weight);
        walk(loss, pieces, |segment, mut store| {
            for at in self.plan.segments[segment].clone() {
                let gradient = self.take(&mut store, at, weight)?;
                round.put(at, gradient)?;
            }
            let started = Instant::now();
            self.launch(&mut round)?;
            round.stats.wait += started.elapsed();
            Ok(())
        })?;
        self.finish(round)
    }

    /// The backward pass of a batch that is only added up.
    fn backward_held(&mut self, loss: &Tensor, pieces: Pieces, weight: f64) -> Result<()> {
        let mut tensors = vec![None; self.parameters.len()];
        walk(loss, pieces, |segment, mut store| {
            for &at in &self.plan.segments[segment] {
                tensors[at] = self.take(&mut store, at, weight)?;
            }
            Ok(())
        })?;
        self.hold(Grads::<Local>::new(self.parameters.clone(), tensors, weight))
    }

    /// Makes the plan fit the model's cut, agreed with the other ranks when it is new.
    fn plan_for<M: SegmentedModel + ?Sized>(&mut self, model: &M) -> Result<()> {
        let names: Vec<Vec<String>> = (0..model.len()).map(|segment| model.parameters(segment)).collect();
        if names.is_empty() {
            return Err(Error::invalid("the model has no segments"));
        }
        if self.plan.segments.len() == names.len() && self.plan.digest == plan::digest(&names) {
            return Ok(());
        }
        let line = |(segment, names): (usize, &Vec<String>)| format!("segment {segment}: {}", names.join(", "));
        let lines: Vec<String> = names.iter().enumerate().map(line).collect();
        agree(&self.comm, "segments", &lines)?;
        self.plan = Plan::segmented(&self.parameters, &self.options, &names)?;
        Ok(())
    }
}

/// Start (none for the first) and output of each segment.
type Pieces = Vec<(Option<Var>, Tensor)>;

/// Takes each segment's vector-Jacobian product, last segment first.
fn walk(loss: &Tensor, mut pieces: Pieces, mut done: impl FnMut(usize, GradStore) -> Result<()>) -> Result<()> {
    let mut store = loss.backward()?;
    while let Some((start, y)) = pieces.pop() {
        drop(y);
        let gradient = start.as_ref().and_then(|start| store.remove(start));
        done(pieces.len(), store)?;
        store = match (gradient, pieces.last()) {
            (Some(gradient), Some((_, y))) => (y * gradient.detach())?.sum_all()?.backward()?,
            // The loss does not reach further: no earlier segment has a gradient.
            _ => GradStore::default(),
        };
    }
    Ok(())
}
