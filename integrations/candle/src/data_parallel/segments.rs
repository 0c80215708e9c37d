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
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use candle_nn::{Init, VarMap};
/// use candle_core::Result;
/// use hccl_candle::{DataParallel, Options, nn::SegmentedModel};
///
/// struct Scale(Tensor); // a model of one segment
/// impl SegmentedModel for Scale {
///     fn len(&self) -> usize { 1 }
///     fn forward(&self, _: usize, x: &Tensor, _: bool) -> Result<Tensor> { x * &self.0 }
///     fn parameters(&self, _: usize) -> Vec<String> { vec!["w".to_owned()] }
/// }
/// let out = hccl_candle::local(2, |comm| {
///     let x = Tensor::full(comm.rank().index() as f32 + 1.0, 2, &Device::Cpu)?;
/// #   let map = VarMap::new();
/// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
///     let mut dp = DataParallel::new(comm, &map, Options::default())?;
///     let done = dp.backward_segments(&Scale(w), &x, 1.0, |y| y.sum_all())?;
///     Ok((done.loss.to_scalar::<f32>()?, done.grads.map(|grads| grads.norm()).transpose()?))
/// })?;
/// let norm = Some(1.5f64.hypot(1.5)); // of the mean
/// assert_eq!(out, [(2.0, norm), (4.0, norm)]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
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
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use candle_core::{Module, Result};
    /// use candle_nn::{Linear, VarBuilder, linear};
    /// use hccl_candle::{DataParallel, Options, nn::SegmentedModel};
    ///
    /// struct Mlp(Vec<Linear>); // each layer is a segment
    /// impl SegmentedModel for Mlp {
    ///     fn len(&self) -> usize { self.0.len() }
    ///     fn forward(&self, segment: usize, x: &Tensor, _: bool) -> Result<Tensor> { self.0[segment].forward(x) }
    ///     fn parameters(&self, segment: usize) -> Vec<String> {
    ///         vec![format!("{segment}.weight"), format!("{segment}.bias")]
    ///     }
    /// }
    /// let same = hccl_candle::local(2, |comm| {
    ///     let x = Tensor::full(comm.rank().index() as f32 + 1.0, (3, 2), &Device::Cpu)?;
    ///     let map = VarMap::new();
    ///     let vb = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
    ///     let model = Mlp(vec![linear(2, 4, vb.pp("0"))?, linear(4, 1, vb.pp("1"))?]);
    ///     let mut dp = DataParallel::new(comm, &map, Options::default())?;
    ///     let pieces = dp.backward_segments(&model, &x, 1.0, |y| y.sqr()?.mean_all())?.grads;
    ///     let whole = dp.backward(&model.forward_all(&x, true)?.sqr()?.mean_all()?)?;
    ///     let whole = dp.sync(whole)?.norm()?;
    ///     Ok(pieces.map(|grads| grads.norm()).transpose()?.is_some_and(|norm| (norm - whole).abs() <= 1e-5 * whole))
    /// })?;
    /// assert_eq!(same, [true, true]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
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
