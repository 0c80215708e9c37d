//! The arithmetic of the CPU engine: reductions of a chunk over all ranks, and copies.
//!
//! Memory comes as raw pointers of any alignment, because other processes map it: no reference to it is ever made, and
//! what a misbehaving peer writes meanwhile can spoil values, never control flow.
//!
//! The bits of a result depend on the sources in rank order, the type, the operation and the number of ranks, on nothing
//! else: not on the instruction set, the alignment, the length of the chunk or where the chunk was cut.
//!
//! - Integers wrap.
//! - `Sum`, `Prod`, `Avg` fold `((s0 op s1) op s2) …` in the element type, halves in f32 with one rounding (nearest,
//!   ties to even) at the end; `Avg` multiplies by `1 / ranks`, rounded to the type of the fold. No fused
//!   multiply-add, no flush to zero. A NaN result is the canonical one of its type: quiet, sign clear, payload 0, because
//!   processors differ in whose payload they keep.
//! - `Min`, `Max` return one of the sources, bit for bit: the first NaN in rank order if there is one, else the least or
//!   greatest number, −0 below +0.
//! - One source is copied bit for bit (`Avg` over one rank too).

#![expect(unsafe_code, reason = "entry points over memory that other processes map")]

mod arch;
mod copy;
mod fold;
mod half;
mod lane;
mod run;
mod table;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use copy::Hint;
pub(crate) use table::Isa;

use crate::element::DType;
use crate::reduce::OpKind;
use run::Call;

/// Reduces `elements` elements of every source and writes the result to every output.
///
/// `ranks` is what `Avg` divides by; other operations ignore it. When it returns after [`Hint::Stream`], the streamed
/// stores come before whatever this thread stores next, so an ordinary release store publishes them.
///
/// # Panics
/// If the type does not have the operation (`Avg` of integers): the bounds of `ReduceOp` exclude it.
///
/// # Safety
/// 1. `sources` is not empty; every source is valid for reads and every output for writes of `elements` elements.
/// 2. An output equals a source or does not overlap it. Outputs do not overlap each other.
/// 3. No other thread of this process accesses the outputs meanwhile, nor writes the sources. (Another process that
///    does so spoils the values of this chunk.)
#[inline]
pub(crate) unsafe fn reduce_chunk(
    dtype: DType,
    op: OpKind,
    sources: &[*const u8],
    outputs: &[*mut u8],
    elements: usize,
    ranks: usize,
    hint: Hint,
) {
    let call = Call { sources, outputs, elements, ranks, hint };
    // SAFETY: the caller's; a detected set is available.
    unsafe { reduce_with_isa(Isa::detect(), dtype, op, &call) }
}

/// Copies `bytes` bytes; nothing if `src` and `dst` are the same address.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `bytes` bytes; they are equal or do not overlap; no other thread of
/// this process writes either or reads `dst` meanwhile.
#[inline]
pub(crate) unsafe fn copy(src: *const u8, dst: *mut u8, bytes: usize, hint: Hint) {
    // SAFETY: the caller's; a detected set is available.
    unsafe { copy_with_isa(Isa::detect(), src, dst, bytes, hint) }
}

/// [`reduce_chunk`] with a given instruction set, so that tests compare them.
///
/// # Safety
/// As [`reduce_chunk`], and `isa` is available.
unsafe fn reduce_with_isa(isa: Isa, dtype: DType, op: OpKind, call: &Call<'_>) {
    let table = isa.table();
    let bytes = call.elements * dtype.size();
    let copied = match *call.sources {
        [source] if op != OpKind::Avg || call.ranks == 1 => Some(source),
        _ => None,
    };
    if let Some(source) = copied {
        for &output in call.outputs {
            // SAFETY: the caller's: both hold `bytes` bytes and are equal or apart.
            unsafe { (table.copy)(source, output, bytes, call.hint) };
        }
    } else {
        let Some(reduce) = table.reduce(dtype, op) else {
            // Not reachable from the typed layer: `Avg: ReduceOp<T>` asks for `T: Float`.
            panic!("{op} of {dtype} reached the kernels (averages are for f16, bf16, f32 and f64)");
        };
        // SAFETY: the caller's invariants are those of `Call`; `isa` is available.
        unsafe { reduce(call) };
    }
    copy::fence(call.hint);
}

/// [`copy`] with a given instruction set.
///
/// # Safety
/// As [`copy`], and `isa` is available.
unsafe fn copy_with_isa(isa: Isa, src: *const u8, dst: *mut u8, bytes: usize, hint: Hint) {
    // SAFETY: the caller's.
    unsafe { (isa.table().copy)(src, dst, bytes, hint) };
    copy::fence(hint);
}
