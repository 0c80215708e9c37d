//! Pooling: maximum over overlapping windows, and the mean of whole planes.

use super::data::{Real, checked_input, dispatch, for_each_chunk, values, with_values};
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, Layout, Module, Result, Shape, Tensor, WithDType, bail};
use std::ops::Range;

/// Maximum over square windows of `N x C x H x W`; windows may overlap.
///
/// Padding counts as minus infinity, so it never wins. Of equal values in a window the first in row order gets the
/// gradient, and NaN wins over every number, both as in PyTorch.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use hccl_candle::nn::MaxPool2d;
///
/// let x = Tensor::arange(0f32, 9.0, &Device::Cpu)?.reshape((1, 1, 3, 3))?;
/// let y = MaxPool2d::new(2, 1, 0)?.forward(&x)?;
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [4.0, 5.0, 7.0, 8.0]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MaxPool2d {
    kernel: usize,
    stride: usize,
    padding: usize,
}

impl MaxPool2d {
    /// Windows of `kernel x kernel` pixels every `stride` pixels, with `padding` pixels on each side.
    ///
    /// ```
    /// use hccl_candle::nn::MaxPool2d;
    /// assert!(MaxPool2d::new(3, 2, 1).is_ok());
    /// assert!(MaxPool2d::new(3, 2, 2).is_err_and(|err| err.to_string().contains("half the kernel")));
    /// ```
    ///
    /// # Errors
    /// A kernel or stride of 0, or padding above half the kernel (some window would hold padding only).
    pub fn new(kernel: usize, stride: usize, padding: usize) -> Result<Self> {
        if kernel == 0 || stride == 0 {
            bail!("MaxPool2d: kernel {kernel} and stride {stride} must be at least 1");
        }
        if padding > kernel / 2 {
            bail!("MaxPool2d: padding {padding} must be at most half the kernel {kernel}");
        }
        Ok(Self { kernel, stride, padding })
    }

    /// Applies the pooling to `x` of `N x C x H x W`; a side becomes `(size + 2 padding - kernel) / stride + 1`,
    /// rounded down.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use hccl_candle::nn::MaxPool2d;
    /// let x = Tensor::new(&[1f32, 5.0, 2.0, 4.0], &Device::Cpu)?.reshape((1, 1, 1, 4))?;
    /// let y = MaxPool2d::new(1, 2, 0)?.forward(&x)?; // every second pixel
    /// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// Anything but a CPU tensor of f32 or f64 with four dimensions; an image smaller than the kernel.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        checked_input("MaxPool2d", x)?.apply_op1(*self)
    }

    fn output_side(&self, size: usize) -> Result<usize> {
        match (size + 2 * self.padding).checked_sub(self.kernel) {
            Some(room) => Ok(room / self.stride + 1),
            None => {
                bail!("MaxPool2d: side {size} with padding {} is smaller than kernel {}", self.padding, self.kernel)
            }
        }
    }

    /// The part of a window that lies inside the image, along one axis.
    fn window(&self, at: usize, size: usize) -> Range<usize> {
        let start = at * self.stride;
        start.saturating_sub(self.padding)..(start + self.kernel - self.padding).min(size)
    }

    /// Calls `visit(output index, index of the maximum in the plane)` for every window of a plane.
    fn for_each_maximum<T: Real>(
        &self,
        plane: &[T],
        (h, w): (usize, usize),
        out: (usize, usize),
        mut visit: impl FnMut(usize, usize),
    ) {
        for oy in 0..out.0 {
            let rows = self.window(oy, h);
            for ox in 0..out.1 {
                let columns = self.window(ox, w);
                let mut best = rows.start * w + columns.start;
                for y in rows.clone() {
                    for at in y * w + columns.start..y * w + columns.end {
                        // The second test is true for NaN only.
                        #[expect(clippy::eq_op, reason = "NaN is the value that differs from itself")]
                        if plane[at] > plane[best] || plane[at] != plane[at] {
                            best = at;
                        }
                    }
                }
                visit(oy * out.1 + ox, best);
            }
        }
    }

    fn gradient<T: Real>(&self, x: &Tensor, y: &Tensor, dy: &Tensor) -> Result<Tensor> {
        let ((_, _, h, w), (_, _, oh, ow)) = (x.dims4()?, y.dims4()?);
        let dx = with_values([x, dy], |[x, dy]: [&[T]; 2]| {
            let mut dx = vec![T::zero(); x.len()];
            for_each_chunk(&mut dx, h * w, |i, dx| {
                let (x, dy) = (&x[i * h * w..][..h * w], &dy[i * oh * ow..][..oh * ow]);
                self.for_each_maximum(x, (h, w), (oh, ow), |out, best| dx[best] += dy[out]);
            });
            Ok(dx)
        })?;
        Tensor::from_vec(dx, x.shape(), x.device())
    }
}

impl Module for MaxPool2d {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        MaxPool2d::forward(self, x)
    }
}

impl CustomOp1 for MaxPool2d {
    fn name(&self) -> &'static str {
        "hccl-max-pool2d"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (n, c, h, w) = layout.shape().dims4()?;
        let (oh, ow) = (self.output_side(h)?, self.output_side(w)?);
        let storage = dispatch!(x.dtype(), T => {
            let x: &[T] = values(x, layout)?;
            let mut y = vec![T::default(); n * c * oh * ow];
            for_each_chunk(&mut y, oh * ow, |i, y| {
                let plane = &x[i * h * w..][..h * w];
                self.for_each_maximum(plane, (h, w), (oh, ow), |out, best| y[out] = plane[best]);
            });
            T::to_cpu_storage_owned(y)
        });
        Ok((storage, Shape::from((n, c, oh, ow))))
    }

    /// Finds the maxima again: cheaper than keeping an index per output value.
    fn bwd(&self, x: &Tensor, y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        let dy = dy.contiguous()?;
        dispatch!(x.dtype(), T => self.gradient::<T>(x, y, &dy)).map(Some)
    }
}

/// The mean of every `H x W` plane: `N x C x H x W` becomes `N x C`.
///
/// # Errors
/// Anything but a CPU tensor of f32 or f64 with four dimensions; planes without pixels.
///
/// ```
/// use candle_core::{Device, Tensor};
///
/// let x = Tensor::arange(0f64, 8.0, &Device::Cpu)?.reshape((1, 2, 2, 2))?;
/// assert_eq!(hccl_candle::nn::global_avg_pool(&x)?.to_vec2::<f64>()?, [[1.5, 5.5]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn global_avg_pool(x: &Tensor) -> Result<Tensor> {
    let x = checked_input("global_avg_pool", x)?;
    if x.dims()[2..].contains(&0) {
        bail!("global_avg_pool: planes of shape {:?} have no pixels", &x.dims()[2..]);
    }
    x.apply_op1(GlobalAvgPool)
}

struct GlobalAvgPool;

impl CustomOp1 for GlobalAvgPool {
    fn name(&self) -> &'static str {
        "hccl-global-avg-pool"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (n, c, h, w) = layout.shape().dims4()?;
        let storage = dispatch!(x.dtype(), T => {
            let x: &[T] = values(x, layout)?;
            let mean = |plane: &[T]| plane.iter().map(|v| v.to_f64()).sum::<f64>() / (h * w) as f64;
            T::to_cpu_storage_owned(x.chunks_exact(h * w).map(|plane| T::from_f64(mean(plane))).collect())
        });
        Ok((storage, Shape::from((n, c))))
    }

    fn bwd(&self, x: &Tensor, _y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        let (_, _, h, w) = x.dims4()?;
        let dy = dy.contiguous()?;
        dispatch!(x.dtype(), T => {
            let dx = with_values([&dy], |[dy]: [&[T]; 1]| {
                let scale = T::from_f64(1.0 / (h * w) as f64);
                Ok(dy.iter().flat_map(|dy| std::iter::repeat_n(*dy * scale, h * w)).collect::<Vec<T>>())
            })?;
            Tensor::from_vec(dx, x.shape(), x.device()).map(Some)
        })
    }
}
