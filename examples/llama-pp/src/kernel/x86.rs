//! The sums with the vector instructions of x86.
#![expect(unsafe_code, reason = "vector loads take pointers, and instructions must be there")]

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::Weight;

/// Loads of weights, widened.
///
/// # Safety
/// of both: the processor has the instructions, AVX-512F for `load512` and AVX2 with F16C for `load256`.
pub(crate) trait Lanes: Sized {
    unsafe fn load512(from: &[Self; 16]) -> __m512;
    unsafe fn load256(from: &[Self; 8]) -> __m256;
}

impl Lanes for f32 {
    #[inline(always)]
    unsafe fn load512(from: &[f32; 16]) -> __m512 {
        // SAFETY: 64 bytes are there, and the caller has the instructions.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }

    #[inline(always)]
    unsafe fn load256(from: &[f32; 8]) -> __m256 {
        // SAFETY: 32 bytes are there, and the caller has the instructions.
        unsafe { _mm256_loadu_ps(from.as_ptr()) }
    }
}

impl Lanes for bf16 {
    #[inline(always)]
    unsafe fn load512(from: &[bf16; 16]) -> __m512 {
        // SAFETY: 32 bytes are there, and the caller has the instructions.
        let bits = unsafe { _mm256_loadu_si256(from.as_ptr().cast()) };
        // SAFETY: the caller has the instructions.
        let wide = unsafe { _mm512_cvtepu16_epi32(bits) };
        // SAFETY: the caller has the instructions.
        let shifted = unsafe { _mm512_slli_epi32::<16>(wide) };
        // SAFETY: the caller has the instructions.
        unsafe { _mm512_castsi512_ps(shifted) }
    }

    #[inline(always)]
    unsafe fn load256(from: &[bf16; 8]) -> __m256 {
        // SAFETY: 16 bytes are there, and the caller has the instructions.
        let bits = unsafe { _mm_loadu_si128(from.as_ptr().cast()) };
        // SAFETY: the caller has the instructions.
        let wide = unsafe { _mm256_cvtepu16_epi32(bits) };
        // SAFETY: the caller has the instructions.
        let shifted = unsafe { _mm256_slli_epi32::<16>(wide) };
        // SAFETY: the caller has the instructions.
        unsafe { _mm256_castsi256_ps(shifted) }
    }
}

impl Lanes for f16 {
    #[inline(always)]
    unsafe fn load512(from: &[f16; 16]) -> __m512 {
        // SAFETY: 32 bytes are there, and the caller has the instructions.
        let bits = unsafe { _mm256_loadu_si256(from.as_ptr().cast()) };
        // SAFETY: the caller has the instructions.
        unsafe { _mm512_cvtph_ps(bits) }
    }

    #[inline(always)]
    unsafe fn load256(from: &[f16; 8]) -> __m256 {
        // SAFETY: 16 bytes are there, and the caller has the instructions.
        let bits = unsafe { _mm_loadu_si128(from.as_ptr().cast()) };
        // SAFETY: the caller has the instructions.
        unsafe { _mm256_cvtph_ps(bits) }
    }
}

/// What fills no lane, added to `sum`.
#[inline(always)]
fn with_rest<W: Weight>(sum: f32, row: &[W], vector: &[f32]) -> f32 {
    row.iter().zip(vector).fold(sum, |sum, (w, x)| w.wide().mul_add(*x, sum))
}

/// [`Isa::tile`](super::Isa::tile) with AVX-512F, which the caller has found.
pub(super) fn tile512<W: Weight, const R: usize, const N: usize>(
    rows: [&[W]; R],
    vectors: [&[f32]; N],
) -> [[f32; N]; R] {
    debug_assert!(is_x86_feature_detected!("avx512f"));
    // SAFETY: `Isa::Avx512` is only made where the instructions are.
    unsafe { tile512_inner(rows, vectors) }
}

#[target_feature(enable = "avx512f")]
fn tile512_inner<W: Weight, const R: usize, const N: usize>(rows: [&[W]; R], vectors: [&[f32]; N]) -> [[f32; N]; R] {
    let chunks = rows[0].len() / 16;
    let w = rows.map(|row| &row.as_chunks::<16>().0[..chunks]);
    let x = vectors.map(|vector| &vector.as_chunks::<16>().0[..chunks]);
    let mut sums = [[_mm512_setzero_ps(); N]; R];
    for at in 0..chunks {
        // SAFETY: this function has AVX-512F.
        let x: [__m512; N] = std::array::from_fn(|vector| unsafe { f32::load512(&x[vector][at]) });
        for row in 0..R {
            // SAFETY: this function has AVX-512F.
            let w = unsafe { W::load512(&w[row][at]) };
            for vector in 0..N {
                sums[row][vector] = _mm512_fmadd_ps(w, x[vector], sums[row][vector]);
            }
        }
    }
    let mut out = [[0f32; N]; R];
    for row in 0..R {
        for vector in 0..N {
            let sum = _mm512_reduce_add_ps(sums[row][vector]);
            out[row][vector] = with_rest(sum, &rows[row][chunks * 16..], &vectors[vector][chunks * 16..]);
        }
    }
    out
}

/// [`Isa::tile`](super::Isa::tile) with AVX2, FMA and F16C, which the caller has found.
pub(super) fn tile256<W: Weight, const R: usize, const N: usize>(
    rows: [&[W]; R],
    vectors: [&[f32]; N],
) -> [[f32; N]; R] {
    debug_assert!(is_x86_feature_detected!("avx2"));
    // Sixteen registers hold two rows of four sums, not four.
    if R * N <= 8 || !R.is_multiple_of(2) {
        // SAFETY: `Isa::Avx2` is only made where the instructions are.
        return unsafe { tile256_inner(rows, vectors) };
    }
    let mut out = [[0f32; N]; R];
    for (pair, out) in out.chunks_exact_mut(2).enumerate() {
        // SAFETY: as above.
        let sums = unsafe { tile256_inner([rows[pair * 2], rows[pair * 2 + 1]], vectors) };
        out.copy_from_slice(&sums);
    }
    out
}

#[target_feature(enable = "avx2,fma,f16c")]
fn tile256_inner<W: Weight, const R: usize, const N: usize>(rows: [&[W]; R], vectors: [&[f32]; N]) -> [[f32; N]; R] {
    let chunks = rows[0].len() / 8;
    let w = rows.map(|row| &row.as_chunks::<8>().0[..chunks]);
    let x = vectors.map(|vector| &vector.as_chunks::<8>().0[..chunks]);
    let mut sums = [[_mm256_setzero_ps(); N]; R];
    for at in 0..chunks {
        // SAFETY: this function has AVX2.
        let x: [__m256; N] = std::array::from_fn(|vector| unsafe { f32::load256(&x[vector][at]) });
        for row in 0..R {
            // SAFETY: this function has AVX2 and F16C.
            let w = unsafe { W::load256(&w[row][at]) };
            for vector in 0..N {
                sums[row][vector] = _mm256_fmadd_ps(w, x[vector], sums[row][vector]);
            }
        }
    }
    let mut out = [[0f32; N]; R];
    for row in 0..R {
        for vector in 0..N {
            let sum = sum_of_lanes(sums[row][vector]);
            out[row][vector] = with_rest(sum, &rows[row][chunks * 8..], &vectors[vector][chunks * 8..]);
        }
    }
    out
}

#[target_feature(enable = "avx2")]
fn sum_of_lanes(lanes: __m256) -> f32 {
    let mut all = [0f32; 8];
    // SAFETY: 32 bytes are there.
    unsafe { _mm256_storeu_ps(all.as_mut_ptr(), lanes) };
    let [a, b, c, d, e, f, g, h] = all;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// [`Isa::add_scaled`](super::Isa::add_scaled) with AVX2, which the caller has found.
pub(super) fn add_scaled(factor: f32, x: &[f32], sum: &mut [f32]) {
    debug_assert!(is_x86_feature_detected!("avx2"));
    // SAFETY: both `Isa::Avx512` and `Isa::Avx2` are only made where AVX2 is: processors with AVX-512F have it.
    unsafe { add_scaled_inner(factor, x, sum) }
}

#[target_feature(enable = "avx2")]
fn add_scaled_inner(factor: f32, x: &[f32], sum: &mut [f32]) {
    super::portable::add_scaled(factor, x, sum);
}
