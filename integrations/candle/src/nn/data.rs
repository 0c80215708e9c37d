//! From candle's storage to slices and back, and how work is spread over threads.

use candle_core::{CpuStorage, DType, Device, Error, Layout, Result, Storage, Tensor, WithDType};
use rayon::prelude::*;
use std::ops::Neg;

/// The dtypes that the layers of this module compute in: f32 and f64.
pub(super) trait Real: WithDType + Default + Neg<Output = Self> {}

impl Real for f32 {}
impl Real for f64 {}

/// The values of a contiguous CPU tensor.
pub(super) fn values<'a, T: Real>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [T]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&T::cpu_storage_as_slice(storage)?[start..end]),
        None => Err(Error::RequiresContiguous { op: "hccl-nn" }.bt()),
    }
}

/// Runs `work` on the values of contiguous tensors of dtype `T`.
///
/// The locks on the tensors' storage are held meanwhile, so `work` must not call into candle with these tensors.
pub(super) fn with_values<T: Real, R, const N: usize>(
    tensors: [&Tensor; N],
    work: impl FnOnce([&[T]; N]) -> Result<R>,
) -> Result<R> {
    let guards = tensors.map(Tensor::storage_and_layout);
    let mut slices: [&[T]; N] = [&[]; N];
    for (slice, (storage, layout)) in slices.iter_mut().zip(&guards) {
        *slice = match &**storage {
            Storage::Cpu(storage) => values(storage, layout)?,
            _ => return Err(Error::Msg("hccl-nn layers compute on the CPU only; move the tensor there".into()).bt()),
        };
    }
    work(slices)
}

/// Checks that a layer can work on `x`: four dimensions, on the CPU, f32 or f64; returns it contiguous.
pub(super) fn checked_input(op: &'static str, x: &Tensor) -> Result<Tensor> {
    if x.rank() != 4 {
        candle_core::bail!("{op}: the input must be N x C x H x W, this one has shape {:?}", x.shape());
    }
    checked_dtype(op, x)?;
    x.contiguous()
}

/// Checks device and dtype of a tensor of any shape.
pub(super) fn checked_dtype(op: &'static str, x: &Tensor) -> Result<()> {
    if !matches!(x.device(), Device::Cpu) {
        candle_core::bail!("{op}: computes on the CPU only; this tensor is on {:?}", x.device());
    }
    match x.dtype() {
        DType::F32 | DType::F64 => Ok(()),
        other => candle_core::bail!(
            "{op}: dtype {other:?} is not supported, only F32 and F64 are; keep weights and activations in f32 \
             and use half precision on the wire"
        ),
    }
}

/// Checks that a parameter or second operand has the dtype of the input.
pub(super) fn checked_same_dtype(op: &'static str, x: &Tensor, other: &Tensor) -> Result<()> {
    if x.dtype() != other.dtype() {
        candle_core::bail!("{op}: the input is {:?} but the other operand is {:?}", x.dtype(), other.dtype());
    }
    Ok(())
}

/// Runs the body with `$t` naming the tensor's dtype; the dtype was checked before.
macro_rules! dispatch {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            candle_core::DType::F64 => {
                type $t = f64;
                $body
            }
            _ => {
                type $t = f32;
                $body
            }
        }
    };
}
pub(super) use dispatch;

/// How many threads the layers may use.
pub(super) fn threads() -> usize {
    candle_core::utils::get_num_threads()
}

/// Calls `work(i, chunk)` for every chunk of `size` values, over threads when the work is worth it.
pub(super) fn for_each_chunk<T: Real>(data: &mut [T], size: usize, work: impl Fn(usize, &mut [T]) + Send + Sync) {
    if data.is_empty() {
        return;
    }
    if threads() > 1 && data.len() >= PARALLEL_FROM {
        let batch = (PARALLEL_FROM / 4).div_ceil(size);
        data.par_chunks_mut(size).with_min_len(batch).enumerate().for_each(|(i, chunk)| work(i, chunk));
    } else {
        data.chunks_mut(size).enumerate().for_each(|(i, chunk)| work(i, chunk));
    }
}

/// `(0..n).map(work)` over threads when the total `cost` (values touched) is worth it; the order is kept.
pub(super) fn map_range<R: Send>(n: usize, cost: usize, work: impl Fn(usize) -> R + Send + Sync) -> Vec<R> {
    if threads() > 1 && cost >= PARALLEL_FROM {
        (0..n).into_par_iter().with_min_len((n / 64).max(1)).map(work).collect()
    } else {
        (0..n).map(work).collect()
    }
}

/// Fewer values than this are not worth waking another thread for.
const PARALLEL_FROM: usize = 32 * 1024;
