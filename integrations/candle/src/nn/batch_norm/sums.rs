//! Means, centred squares and the sums of the backward pass, per channel.
//!
//! A plane (one channel of one image) is summed in the tensor's dtype in sixteen interleaved accumulators; planes are
//! combined in f64, in image order. So neither the number of threads nor a large mean costs accuracy.

use crate::nn::activation::passed;
use crate::nn::data::{Real, map_range, with_values};
use crate::nn::stats::StatsReduce;
use candle_core::{Result, Tensor};

/// Interleaved accumulators: enough to keep the adders of a 512-bit machine busy.
const LANES: usize = 16;

/// Count, mean and sum of squared distances from the mean, per channel.
pub(super) struct Moments {
    /// Values per channel.
    pub(super) count: f64,
    pub(super) mean: Vec<f64>,
    pub(super) squares: Vec<f64>,
}

impl Moments {
    /// Moments of an `N x C x H x W` tensor.
    pub(super) fn of_tensor<T: Real>(x: &Tensor) -> Result<Self> {
        let (images, channels, h, w) = x.dims4()?;
        let plane = h * w;
        let per_channel = with_values([x], |[x]: [&[T]; 1]| {
            Ok(map_range(channels, x.len(), |channel| {
                let planes = (0..images).map(|image| &x[(image * channels + channel) * plane..][..plane]);
                planes.fold((0.0, 0.0, 0.0), |so_far, values| combine(so_far, plane_moments(values)))
            }))
        })?;
        Ok(Self {
            count: (images * plane) as f64,
            mean: per_channel.iter().map(|moments| moments.1).collect(),
            squares: per_channel.iter().map(|moments| moments.2).collect(),
        })
    }

    /// Moments of the batches of all ranks together: first the common mean, then the squares around it, so that nothing
    /// cancels, whatever the means and sizes of the ranks.
    pub(super) fn over_ranks(self, reduce: &dyn StatsReduce) -> Result<Self> {
        let mut sums: Vec<f64> = self.mean.iter().map(|mean| mean * self.count).collect();
        sums.push(self.count);
        reduce.all_reduce_sum(&mut sums)?;
        let count = sums.pop().unwrap_or_default();
        let mean: Vec<f64> = sums.iter().map(|sum| sum / count).collect();
        let shifted = |((own, common), squares): ((&f64, &f64), &f64)| squares + self.count * (own - common).powi(2);
        let mut squares: Vec<f64> = self.mean.iter().zip(&mean).zip(&self.squares).map(shifted).collect();
        reduce.all_reduce_sum(&mut squares)?;
        Ok(Self { count, mean, squares })
    }
}

/// `(count, mean, squares)` of two sets from those of each (Chan, Golub and LeVeque).
fn combine(a: (f64, f64, f64), b: (f64, f64, f64)) -> (f64, f64, f64) {
    let count = a.0 + b.0;
    if count == 0.0 {
        return a;
    }
    let apart = b.1 - a.1;
    (count, a.1 + apart * b.0 / count, a.2 + b.2 + apart * apart * a.0 * b.0 / count)
}

/// `(count, mean, squares)` of one plane, in two passes over memory that is in cache by then.
fn plane_moments<T: Real>(values: &[T]) -> (f64, f64, f64) {
    let count = values.len() as f64;
    if values.is_empty() {
        return (0.0, 0.0, 0.0);
    }
    let [sum, _] = lane_sums(values, values, |x, _| [x, T::zero()]);
    let near = T::from_f64(sum / count);
    // `near` is the mean up to rounding; `rest` says how far off it is.
    let [rest, squares] = lane_sums(values, values, |x, _| [x - near, (x - near) * (x - near)]);
    (count, near.to_f64() + rest / count, (squares - rest * rest / count).max(0.0))
}

/// Per channel `[sum of g, sum of g (x - mean)]`, `g` being the gradient that passed the rectifier, if there is one.
pub(super) fn gradient_sums<T: Real>(
    (images, channels, plane): (usize, usize, usize),
    [x, y, dy]: [&[T]; 3],
    relu: bool,
    mean: &[f64],
) -> Vec<[f64; 2]> {
    map_range(channels, x.len(), |channel| {
        let mean = T::from_f64(mean[channel]);
        (0..images).fold([0.0; 2], |total, image| {
            let at = (image * channels + channel) * plane;
            let (x, y, dy) = (&x[at..at + plane], &y[at..at + plane], &dy[at..at + plane]);
            let sums = if relu {
                lane_sums3(x, y, dy, |x, y, dy| {
                    let g = passed(y, dy);
                    [g, g * (x - mean)]
                })
            } else {
                lane_sums(x, dy, |x, dy| [dy, dy * (x - mean)])
            };
            [total[0] + sums[0], total[1] + sums[1]]
        })
    })
}

fn lane_sums<T: Real>(a: &[T], b: &[T], f: impl Fn(T, T) -> [T; 2]) -> [f64; 2] {
    lane_sums3(a, a, b, |a, _, b| f(a, b))
}

#[inline(always)]
fn lane_sums3<T: Real>(a: &[T], b: &[T], c: &[T], f: impl Fn(T, T, T) -> [T; 2]) -> [f64; 2] {
    let (mut first, mut second) = ([T::zero(); LANES], [T::zero(); LANES]);
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    let (c_chunks, c_rest) = c.as_chunks::<LANES>();
    for ((a, b), c) in a_chunks.iter().zip(b_chunks).zip(c_chunks) {
        for lane in 0..LANES {
            let [p, q] = f(a[lane], b[lane], c[lane]);
            first[lane] += p;
            second[lane] += q;
        }
    }
    for (lane, ((a, b), c)) in a_rest.iter().zip(b_rest).zip(c_rest).enumerate() {
        let [p, q] = f(*a, *b, *c);
        first[lane] += p;
        second[lane] += q;
    }
    [first, second].map(|lanes| lanes.iter().map(|v| v.to_f64()).sum())
}
