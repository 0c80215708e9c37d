//! What is written by hand for an instruction set: floating-point lines, half conversions, stores around the cache.
//!
//! Integer lines need nothing: the compiler turns the portable loops into the right instructions. Floating-point ones
//! it often takes apart into scalars.
//!
//! Invariant of every type here: a method is called only inside a function whose `target_feature` attribute enables the
//! instruction set, which [`super::table`] reaches only after that set was detected. **(detected)**

#![expect(unsafe_code, reason = "intrinsics of detected instruction sets and stores through raw pointers")]

use super::half;
use super::lane::LINE;

/// Half-precision numbers of one cache line.
pub(super) type Halves = [u16; LINE / 2];
/// Single-precision numbers of one cache line.
pub(super) type Singles = [f32; LINE / 4];
/// Double-precision numbers of one cache line.
pub(super) type Doubles = [f64; LINE / 8];
/// [`Halves`] in single precision, in whatever order suits the instruction set.
pub(super) type Wide = [Singles; 2];

/// An instruction set. The defaults are portable code.
pub(super) trait Arch {
    #[inline(always)]
    fn f16_to_f32(line: Halves) -> Wide {
        let mut wide = [[0.0; LINE / 4]; 2];
        half::widen_f16(&line, &mut wide);
        wide
    }
    #[inline(always)]
    fn f32_to_f16(wide: Wide) -> Halves {
        let mut line = [0; LINE / 2];
        half::narrow_f16(&wide, &mut line);
        line
    }
    #[inline(always)]
    fn bf16_to_f32(line: Halves) -> Wide {
        let mut wide = [[0.0; LINE / 4]; 2];
        half::widen_bf16(&line, &mut wide);
        wide
    }
    #[inline(always)]
    fn f32_to_bf16(wide: Wide) -> Halves {
        let mut line = [0; LINE / 2];
        half::narrow_bf16(&wide, &mut line);
        line
    }

    /// Copies one cache line around the cache, where the processor can.
    ///
    /// # Safety
    /// `src` is valid for reads and `dst` for writes of [`LINE`] bytes, without overlap, and `dst` is a multiple of
    /// [`LINE`].
    #[inline(always)]
    unsafe fn stream_line(src: *const u8, dst: *mut u8) {
        // SAFETY: the caller's.
        unsafe { std::ptr::copy_nonoverlapping(src, dst, LINE) };
    }
}

/// Arithmetic on one cache line of `T`s.
pub(super) trait FloatArch<Line>: Arch {
    fn add(a: Line, b: Line) -> Line;
    fn mul(a: Line, b: Line) -> Line;
    /// The lesser of each pair: `a` if it is a NaN, else `b` if it is one; −0 below +0; the bits of either, unchanged.
    fn min(a: Line, b: Line) -> Line;
    /// The greater, as [`min`](Self::min).
    fn max(a: Line, b: Line) -> Line;
    /// Every NaN replaced by the canonical one.
    fn quiet(a: Line) -> Line;
}

/// The instruction set the crate was compiled for.
pub(super) struct Portable;

#[cfg(not(target_arch = "x86_64"))]
impl Arch for Portable {}

macro_rules! portable_floats {
    ($($line:ident, $t:ident, $bits:ident, $canonical_nan:literal;)*) => { $(
        impl FloatArch<$line> for Portable {
            #[inline(always)]
            fn add(a: $line, b: $line) -> $line {
                super::lane::zip(a, b, |x, y| x + y)
            }
            #[inline(always)]
            fn mul(a: $line, b: $line) -> $line {
                super::lane::zip(a, b, |x, y| x * y)
            }
            #[inline(always)]
            fn min(a: $line, b: $line) -> $line {
                super::lane::zip(a, b, |x, y| {
                    let least = if y < x { y } else { x };
                    // Equal numbers differ at most in the sign of zero, and there −0 is the least.
                    let sign = if x == y { y.to_bits() } else { 0 };
                    let least = $t::from_bits(least.to_bits() | sign);
                    if y.is_nan() & !x.is_nan() { y } else { least }
                })
            }
            #[inline(always)]
            fn max(a: $line, b: $line) -> $line {
                super::lane::zip(a, b, |x, y| {
                    let greatest = if y > x { y } else { x };
                    let sign = if x == y { y.to_bits() } else { $bits::MAX };
                    let greatest = $t::from_bits(greatest.to_bits() & sign);
                    if y.is_nan() & !x.is_nan() { y } else { greatest }
                })
            }
            #[inline(always)]
            fn quiet(a: $line) -> $line {
                super::lane::zip(a, a, |x, _| if x.is_nan() { $t::from_bits($canonical_nan) } else { x })
            }
        }
    )* };
}

portable_floats! {
    Singles, f32, u32, 0x7fc0_0000;
    Doubles, f64, u64, 0x7ff8_0000_0000_0000;
}
