//! The differentiable operations behind `BatchNorm2d`: normalise, optionally add a residual, optionally rectify.

use super::sums::{Moments, gradient_sums};
use crate::nn::activation::{masked, passed, rectify};
use crate::nn::data::{Real, dispatch, for_each_chunk, values, with_values};
use crate::nn::stats::StatsReduce;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor, WithDType};
use std::sync::Arc;

/// The statistics that one application of the layer normalises by.
pub(super) struct Normalization {
    mean: Vec<f64>,
    inverse_std: Vec<f64>,
    /// Values per channel if the statistics depend on the input (training), else none.
    count: Option<f64>,
    sync: Option<Arc<dyn StatsReduce>>,
}

impl Normalization {
    /// Statistics that do not depend on the input: evaluation.
    pub(super) fn fixed(mean: Vec<f64>, var: &[f64], eps: f64) -> Self {
        let inverse_std = var.iter().map(|var| 1.0 / (var + eps).sqrt()).collect();
        Self { mean, inverse_std, count: None, sync: None }
    }

    /// Statistics of a batch: training.
    pub(super) fn of_batch(moments: Moments, eps: f64, sync: Option<Arc<dyn StatsReduce>>) -> Self {
        let var: Vec<f64> = moments.squares.iter().map(|squares| squares / moments.count).collect();
        Self { count: Some(moments.count), sync, ..Self::fixed(moments.mean, &var, eps) }
    }

    /// `finish((x - mean) * inverse_std * weight + bias, index)` for every value.
    fn apply<T: Real>(
        &self,
        x: &[T],
        plane: usize,
        weight: &[T],
        bias: &[T],
        finish: impl Fn(T, usize) -> T + Sync + Send,
    ) -> Vec<T> {
        let channels = weight.len();
        let mut y = vec![T::zero(); x.len()];
        for_each_chunk(&mut y, plane, |i, y| {
            let channel = i % channels;
            let mean = T::from_f64(self.mean[channel]);
            let scale = T::from_f64(self.inverse_std[channel] * weight[channel].to_f64());
            let (bias, start) = (bias[channel], i * plane);
            for (at, (y, x)) in y.iter_mut().zip(&x[start..start + plane]).enumerate() {
                *y = finish((*x - mean) * scale + bias, start + at);
            }
        });
        y
    }

    /// Gradients of input, weight and bias; `dy` has yet to pass the rectifier if `relu`.
    fn gradients<T: Real>(&self, x: &Tensor, weight: &[T], y: &Tensor, dy: &Tensor, relu: bool) -> Result<[Vec<T>; 3]> {
        let (images, channels, h, w) = x.dims4()?;
        let shape = (images, channels, h * w);
        let sums = with_values([x, y, dy], |slices: [&[T]; 3]| Ok(gradient_sums(shape, slices, relu, &self.mean)))?;
        let dweight = sums.iter().zip(&self.inverse_std).map(|(s, inverse)| T::from_f64(s[1] * inverse)).collect();
        let dbias = sums.iter().map(|s| T::from_f64(s[0])).collect();
        let lines = self.lines(weight, &self.over_ranks(sums)?);
        let dx = with_values([x, y, dy], |slices| Ok(input_gradient(shape.2, slices, relu, &lines)))?;
        Ok([dx, dweight, dbias])
    }

    /// The sums of all ranks if the layer is synchronised.
    fn over_ranks(&self, sums: Vec<[f64; 2]>) -> Result<Vec<[f64; 2]>> {
        let (Some(reduce), Some(_)) = (&self.sync, self.count) else { return Ok(sums) };
        let mut flat = sums.into_flattened();
        reduce.all_reduce_sum(&mut flat)?;
        Ok(flat.as_chunks().0.to_vec())
    }

    /// Per channel the `[mean, a, b, c]` of `dx = a g + b (x - mean) + c`.
    fn lines<T: Real>(&self, weight: &[T], sums: &[[f64; 2]]) -> Vec<[T; 4]> {
        let line = |channel: usize| {
            let inverse = self.inverse_std[channel];
            let a = weight[channel].to_f64() * inverse;
            let [g, gx] = sums[channel];
            let (b, c) = self.count.map_or((0.0, 0.0), |n| (-a * inverse * inverse * gx / n, -a * g / n));
            [self.mean[channel], a, b, c].map(T::from_f64)
        };
        (0..weight.len()).map(line).collect()
    }
}

fn input_gradient<T: Real>(plane: usize, [x, y, dy]: [&[T]; 3], relu: bool, lines: &[[T; 4]]) -> Vec<T> {
    let mut dx = vec![T::zero(); x.len()];
    for_each_chunk(&mut dx, plane, |i, dx| {
        let [mean, a, b, c] = lines[i % lines.len()];
        let at = i * plane..(i + 1) * plane;
        let (x, y, dy) = (&x[at.clone()], &y[at.clone()], &dy[at]);
        if relu {
            for (((dx, x), y), dy) in dx.iter_mut().zip(x).zip(y).zip(dy) {
                *dx = a * passed(*y, *dy) + b * (*x - mean) + c;
            }
        } else {
            for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
                *dx = a * *dy + b * (*x - mean) + c;
            }
        }
    });
    dx
}

/// Arguments: input, weight, bias.
pub(super) struct Normalize {
    pub(super) statistics: Normalization,
    pub(super) relu: bool,
}

impl CustomOp3 for Normalize {
    fn name(&self) -> &'static str {
        "hccl-batch-norm2d"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
        b: &CpuStorage,
        bl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let plane = xl.dims()[2..].iter().product();
        let storage = dispatch!(x.dtype(), T => {
            let (x, w, b): (&[T], _, _) = (values(x, xl)?, values(w, wl)?, values(b, bl)?);
            T::to_cpu_storage_owned(match self.relu {
                true => self.statistics.apply(x, plane, w, b, |y, _| rectify(y)),
                false => self.statistics.apply(x, plane, w, b, |y, _| y),
            })
        });
        Ok((storage, xl.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let dy = dy.contiguous()?;
        dispatch!(x.dtype(), T => {
            let scale = weight.to_vec1::<T>()?;
            let [dx, dw, db] = self.statistics.gradients(x, &scale, y, &dy, self.relu)?;
            Ok((given(x, dx)?, given(weight, dw)?, given(bias, db)?))
        })
    }
}

/// Arguments: input, weight and bias stacked, residual (an operation takes no more than three arguments).
pub(super) struct NormalizeAdd(pub(super) Normalization);

impl CustomOp3 for NormalizeAdd {
    fn name(&self) -> &'static str {
        "hccl-batch-norm2d-add-relu"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        affine: &CpuStorage,
        al: &Layout,
        residual: &CpuStorage,
        rl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let plane = xl.dims()[2..].iter().product();
        let storage = dispatch!(x.dtype(), T => {
            let (x, affine, residual): (&[T], &[T], &[T]) = (values(x, xl)?, values(affine, al)?, values(residual, rl)?);
            let (w, b) = affine.split_at(affine.len() / 2);
            T::to_cpu_storage_owned(self.0.apply(x, plane, w, b, |y, i| rectify(y + residual[i])))
        });
        Ok((storage, xl.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        affine: &Tensor,
        residual: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        // The residual's gradient is what passes the rectifier; the rest starts from it.
        let g = masked(y, dy)?;
        dispatch!(x.dtype(), T => {
            let scale = affine.get(0)?.to_vec1::<T>()?;
            let [dx, mut dw, db] = self.0.gradients(x, &scale, &g, &g, false)?;
            dw.extend(db);
            Ok((given(x, dx)?, given(affine, dw)?, residual.track_op().then_some(g)))
        })
    }
}

/// A gradient for an argument, if some variable stands behind it.
fn given<T: Real>(argument: &Tensor, gradient: Vec<T>) -> Result<Option<Tensor>> {
    let wanted = argument.track_op();
    wanted.then(|| Tensor::from_vec(gradient, argument.shape(), argument.device())).transpose()
}
