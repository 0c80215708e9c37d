//! Rectification, alone and after an addition.

use super::data::{Real, checked_dtype, checked_same_dtype, dispatch, for_each_chunk, values, with_values};
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor, WithDType, bail};

/// Values that one task works on.
const CHUNK: usize = 4096;

/// `max(x, 0)` with gradient 0 at 0, as in PyTorch (candle's own has gradient 1 there). NaN stays NaN.
///
/// # Errors
/// A tensor that is not f32 or f64 on the CPU.
///
/// ```
/// use candle_core::{Device, Var};
///
/// let x = Var::new(&[-1f32, 0.0, 2.0], &Device::Cpu)?;
/// let y = hccl_candle::nn::relu(&x)?;
/// assert_eq!(y.to_vec1::<f32>()?, [0.0, 0.0, 2.0]);
/// assert_eq!(y.sum_all()?.backward()?.get(&x).unwrap().to_vec1::<f32>()?, [0.0, 0.0, 1.0]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn relu(x: &Tensor) -> Result<Tensor> {
    checked_dtype("relu", x)?;
    x.contiguous()?.apply_op1(Relu)
}

/// `relu(a + b)` in one pass, for the end of a residual block: one temporary less each way than two operations.
///
/// # Errors
/// Tensors of different shapes or dtypes (nothing is broadcast), or not f32 or f64 on the CPU.
///
/// ```
/// use candle_core::{Device, Tensor};
///
/// let (a, b) = (Tensor::new(&[1f64, -3.0], &Device::Cpu)?, Tensor::new(&[1f64, 2.0], &Device::Cpu)?);
/// assert_eq!(hccl_candle::nn::add_relu(&a, &b)?.to_vec1::<f64>()?, [2.0, 0.0]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn add_relu(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    checked_dtype("add_relu", a)?;
    checked_same_dtype("add_relu", a, b)?;
    if a.shape() != b.shape() {
        bail!("add_relu: the operands must have one shape, these have {:?} and {:?}", a.dims(), b.dims());
    }
    a.contiguous()?.apply_op2(&b.contiguous()?, AddRelu)
}

/// `max(x, 0)`, NaN staying NaN.
pub(super) fn rectify<T: Real>(x: T) -> T {
    if x <= T::zero() { T::zero() } else { x }
}

/// The gradient that passes a rectifier whose result was `y`.
pub(super) fn passed<T: Real>(y: T, dy: T) -> T {
    if y <= T::zero() { T::zero() } else { dy }
}

struct Relu;

impl CustomOp1 for Relu {
    fn name(&self) -> &'static str {
        "hccl-relu"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let storage = dispatch!(x.dtype(), T => {
            let x: &[T] = values(x, layout)?;
            T::to_cpu_storage_owned(zip_chunks(x, x, |x, _| rectify(x)))
        });
        Ok((storage, layout.shape().clone()))
    }

    fn bwd(&self, _x: &Tensor, y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        masked(y, dy).map(Some)
    }
}

struct AddRelu;

impl CustomOp2 for AddRelu {
    fn name(&self) -> &'static str {
        "hccl-add-relu"
    }

    fn cpu_fwd(&self, a: &CpuStorage, al: &Layout, b: &CpuStorage, bl: &Layout) -> Result<(CpuStorage, Shape)> {
        let storage = dispatch!(a.dtype(), T => {
            T::to_cpu_storage_owned(zip_chunks::<T>(values(a, al)?, values(b, bl)?, |a, b| rectify(a + b)))
        });
        Ok((storage, al.shape().clone()))
    }

    fn bwd(&self, _a: &Tensor, _b: &Tensor, y: &Tensor, dy: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let gradient = masked(y, dy)?;
        Ok((Some(gradient.clone()), Some(gradient)))
    }
}

/// `dy` where `y > 0`, else 0.
pub(super) fn masked(y: &Tensor, dy: &Tensor) -> Result<Tensor> {
    let dy = dy.contiguous()?;
    dispatch!(y.dtype(), T => {
        let gradient = with_values([y, &dy], |[y, dy]: [&[T]; 2]| Ok(zip_chunks(y, dy, passed)))?;
        Tensor::from_vec(gradient, y.shape(), y.device())
    })
}

fn zip_chunks<T: Real>(a: &[T], b: &[T], f: impl Fn(T, T) -> T + Send + Sync) -> Vec<T> {
    let mut out = vec![T::zero(); a.len()];
    for_each_chunk(&mut out, CHUNK, |i, out| {
        let (a, b) = (&a[i * CHUNK..][..out.len()], &b[i * CHUNK..][..out.len()]);
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = f(*a, *b);
        }
    });
    out
}
