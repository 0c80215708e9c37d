//! Element types as the kernels see them: chunks of one cache line, the type they are folded in, and the scalar rules.
//!
//! Every function works on whole arrays of a fixed length and is inlined into a wrapper that enables the instruction
//! set, where the compiler turns the arrays into vectors. No memory is touched here.

use super::arch::{Doubles, FloatArch, Halves, Singles, Wide};

/// Bytes of a chunk of every lane type: one cache line.
pub(super) const LINE: usize = 64;

/// An element type on the instruction set `A`. `Chunk` holds [`LINE`] bytes of elements, `Acc` the same elements in the type they are folded in.
pub(super) trait Lane<A> {
    type Chunk: Copy;
    type Acc: Copy;
    /// A chunk of zeros, to pad the last elements of a buffer.
    const ZERO: Self::Chunk;
    /// Bytes of one element.
    const BYTES: usize;

    fn widen(chunk: Self::Chunk) -> Self::Acc;
    /// The rounded result. A NaN becomes the canonical one: quiet, positive, payload 0.
    fn narrow(acc: Self::Acc) -> Self::Chunk;
    fn add(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn mul(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn min(a: Self::Chunk, b: Self::Chunk) -> Self::Chunk;
    fn max(a: Self::Chunk, b: Self::Chunk) -> Self::Chunk;
}

/// A lane type that can be averaged.
pub(super) trait FloatLane<A>: Lane<A> {
    /// `acc` times `1 / ranks`, both the quotient and the product rounded to the type of `Acc`.
    fn scale(acc: Self::Acc, ranks: usize) -> Self::Acc;
}

/// Applies `f` to the pairs of two arrays. The explicit loop is what the compiler vectorises best.
#[inline(always)]
pub(super) fn zip<T: Copy, const N: usize>(a: [T; N], b: [T; N], f: impl Fn(T, T) -> T) -> [T; N] {
    let mut out = a;
    let mut i = 0;
    while i < N {
        out[i] = f(a[i], b[i]);
        i += 1;
    }
    out
}

macro_rules! int_lanes {
    ($($t:ty)*) => { $(
        impl<A> Lane<A> for $t {
            type Chunk = [$t; LINE / size_of::<$t>()];
            type Acc = [$t; LINE / size_of::<$t>()];
            const ZERO: Self::Chunk = [0; LINE / size_of::<$t>()];
            const BYTES: usize = size_of::<$t>();

            #[inline(always)]
            fn widen(chunk: Self::Chunk) -> Self::Acc {
                chunk
            }
            #[inline(always)]
            fn narrow(acc: Self::Acc) -> Self::Chunk {
                acc
            }
            #[inline(always)]
            fn add(a: Self::Acc, b: Self::Acc) -> Self::Acc {
                zip(a, b, <$t>::wrapping_add)
            }
            #[inline(always)]
            fn mul(a: Self::Acc, b: Self::Acc) -> Self::Acc {
                zip(a, b, <$t>::wrapping_mul)
            }
            #[inline(always)]
            fn min(a: Self::Chunk, b: Self::Chunk) -> Self::Chunk {
                zip(a, b, Ord::min)
            }
            #[inline(always)]
            fn max(a: Self::Chunk, b: Self::Chunk) -> Self::Chunk {
                zip(a, b, Ord::max)
            }
        }
    )* };
}

int_lanes! { i8 u8 i16 u16 i32 u32 i64 u64 }

macro_rules! float_lanes {
    ($($t:ident, $line:ident;)*) => { $(
        impl<A: FloatArch<$line>> Lane<A> for $t {
            type Chunk = $line;
            type Acc = $line;
            const ZERO: $line = [0.0; LINE / size_of::<$t>()];
            const BYTES: usize = size_of::<$t>();

            #[inline(always)]
            fn widen(chunk: $line) -> $line {
                chunk
            }
            #[inline(always)]
            fn narrow(acc: $line) -> $line {
                A::quiet(acc)
            }
            #[inline(always)]
            fn add(a: $line, b: $line) -> $line {
                A::add(a, b)
            }
            #[inline(always)]
            fn mul(a: $line, b: $line) -> $line {
                A::mul(a, b)
            }
            #[inline(always)]
            fn min(a: $line, b: $line) -> $line {
                A::min(a, b)
            }
            #[inline(always)]
            fn max(a: $line, b: $line) -> $line {
                A::max(a, b)
            }
        }

        impl<A: FloatArch<$line>> FloatLane<A> for $t {
            #[inline(always)]
            fn scale(acc: $line, ranks: usize) -> $line {
                A::mul(acc, [1.0 / ranks as $t; LINE / size_of::<$t>()])
            }
        }
    )* };
}

float_lanes! {
    f32, Singles;
    f64, Doubles;
}

/// The bits of a half type, folded in f32; `Min` and `Max` compare the bits and convert nothing.
macro_rules! half_lanes {
    ($($name:ident, $doc:literal, $infinity:literal, $widen:ident, $narrow:ident;)*) => { $(
        #[doc = $doc]
        pub(super) struct $name;

        impl $name {
            /// The bits as an integer that orders as the number does, −0 below +0.
            #[inline(always)]
            fn key(bits: u16) -> i16 {
                let signed = bits as i16;
                signed ^ ((signed >> 15) & 0x7fff)
            }
            #[inline(always)]
            fn is_nan(bits: u16) -> bool {
                (bits & 0x7fff) as i16 > $infinity
            }
        }

        impl<A: FloatArch<Singles>> Lane<A> for $name {
            type Chunk = Halves;
            type Acc = Wide;
            const ZERO: Halves = [0; LINE / 2];
            const BYTES: usize = 2;

            #[inline(always)]
            fn widen(chunk: Halves) -> Wide {
                A::$widen(chunk)
            }
            #[inline(always)]
            fn narrow([low, high]: Wide) -> Halves {
                A::$narrow([A::quiet(low), A::quiet(high)])
            }
            #[inline(always)]
            fn add(a: Wide, b: Wide) -> Wide {
                [A::add(a[0], b[0]), A::add(a[1], b[1])]
            }
            #[inline(always)]
            fn mul(a: Wide, b: Wide) -> Wide {
                [A::mul(a[0], b[0]), A::mul(a[1], b[1])]
            }
            #[inline(always)]
            fn min(a: Halves, b: Halves) -> Halves {
                zip(a, b, |x, y| {
                    let least = if Self::key(y) < Self::key(x) { y } else { x };
                    let first_nan = if Self::is_nan(y) { y } else { least };
                    if Self::is_nan(x) { x } else { first_nan }
                })
            }
            #[inline(always)]
            fn max(a: Halves, b: Halves) -> Halves {
                zip(a, b, |x, y| {
                    let greatest = if Self::key(y) > Self::key(x) { y } else { x };
                    let first_nan = if Self::is_nan(y) { y } else { greatest };
                    if Self::is_nan(x) { x } else { first_nan }
                })
            }
        }

        impl<A: FloatArch<Singles>> FloatLane<A> for $name {
            #[inline(always)]
            fn scale([low, high]: Wide, ranks: usize) -> Wide {
                let reciprocal = [1.0 / ranks as f32; LINE / 4];
                [A::mul(low, reciprocal), A::mul(high, reciprocal)]
            }
        }
    )* };
}

half_lanes! {
    F16, "IEEE binary16: 5 bits of exponent, 10 of fraction.", 0x7c00, f16_to_f32, f32_to_f16;
    Bf16, "The upper half of a binary32.", 0x7f80, bf16_to_f32, f32_to_bf16;
}
