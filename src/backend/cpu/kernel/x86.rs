//! [`Arch`](super::arch::Arch) for AVX2 with F16C, and for AVX-512.

#![expect(unsafe_code, reason = "intrinsics of detected instruction sets and stores through raw pointers")]

use super::arch::{Arch, Doubles, FloatArch, Halves, Portable, Singles, Wide};
use std::arch::x86_64::*;
use std::mem::transmute;

/// AVX2 and F16C.
pub(super) struct Avx2;
/// AVX-512 F, BW, DQ and VL. Two loads and two stores a cycle feed 32-byte arithmetic, so only f16 conversions
/// and streamed stores are wider than AVX2's.
pub(super) struct Avx512;

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;

/// Wraps functions of vectors as functions of lines (arrays of one cache line), compiled for `features`.
macro_rules! lines {
    ($features:literal; $($name:ident($($arg:ident: $in:ty as $in_vectors:ty),*) -> $out:ty as $out_vectors:ty $body:block)*) => { $(
        #[inline]
        #[target_feature(enable = $features)]
        pub(super) fn $name($($arg: $in),*) -> $out {
            $(
                // SAFETY: arrays and vectors of the same size, all plain bits.
                let $arg: $in_vectors = unsafe { transmute::<$in, $in_vectors>($arg) };
            )*
            let out: $out_vectors = $body;
            // SAFETY: as above.
            unsafe { transmute::<$out_vectors, $out>(out) }
        }
    )* };
}

/// Forwards the methods of a trait to the functions above.
macro_rules! forward {
    ($($name:ident($($arg:ident: $in:ty),*) -> $out:ty = $function:path;)*) => { $(
        #[inline(always)]
        fn $name($($arg: $in),*) -> $out {
            // SAFETY: (detected), see `arch`.
            unsafe { $function($($arg),*) }
        }
    )* };
}

macro_rules! float_arch {
    ($arch:ident, $line:ty, $module:ident) => {
        impl FloatArch<$line> for $arch {
            forward! {
                add(a: $line, b: $line) -> $line = $module::add;
                mul(a: $line, b: $line) -> $line = $module::mul;
                min(a: $line, b: $line) -> $line = $module::min;
                max(a: $line, b: $line) -> $line = $module::max;
                quiet(a: $line) -> $line = $module::quiet;
            }
        }
    };
}

macro_rules! avx2_floats {
    ($module:ident, $line:ident, $v:ty, $nan:expr, $add:ident, $mul:ident, $min:ident, $max:ident, $cmp:ident, $blend:ident, $and:ident, $or:ident, $set:ident) => {
        mod $module {
            use super::*;

            /// `y` where it is a NaN and `x` none, else `chosen`: there x86 itself gives its second operand for a NaN.
            #[inline]
            #[target_feature(enable = "avx2")]
            fn first_nan(x: $v, y: $v, chosen: $v) -> $v {
                let take_y = $and($cmp::<_CMP_UNORD_Q>(y, y), $cmp::<_CMP_ORD_Q>(x, x));
                $blend(chosen, y, take_y)
            }
            #[inline]
            #[target_feature(enable = "avx2")]
            fn least(x: $v, y: $v) -> $v {
                // Equal numbers differ at most in the sign of zero, and there −0 is the least.
                let sign = $and($cmp::<_CMP_EQ_OQ>(x, y), y);
                first_nan(x, y, $or($min(y, x), sign))
            }
            #[inline]
            #[target_feature(enable = "avx2")]
            fn greatest(x: $v, y: $v) -> $v {
                let greatest = $max(y, x);
                // Where equal, the bits both have: greatest & y, as greatest is x there.
                first_nan(x, y, $blend(greatest, $and(greatest, y), $cmp::<_CMP_EQ_OQ>(x, y)))
            }
            #[inline]
            #[target_feature(enable = "avx2")]
            fn quieted(x: $v) -> $v {
                $blend(x, $set($nan), $cmp::<_CMP_UNORD_Q>(x, x))
            }

            lines! { "avx2";
                add(a: $line as [$v; 2], b: $line as [$v; 2]) -> $line as [$v; 2] { [$add(a[0], b[0]), $add(a[1], b[1])] }
                mul(a: $line as [$v; 2], b: $line as [$v; 2]) -> $line as [$v; 2] { [$mul(a[0], b[0]), $mul(a[1], b[1])] }
                min(a: $line as [$v; 2], b: $line as [$v; 2]) -> $line as [$v; 2] { [least(a[0], b[0]), least(a[1], b[1])] }
                max(a: $line as [$v; 2], b: $line as [$v; 2]) -> $line as [$v; 2] {
                    [greatest(a[0], b[0]), greatest(a[1], b[1])]
                }
                quiet(a: $line as [$v; 2]) -> $line as [$v; 2] { [quieted(a[0]), quieted(a[1])] }
            }
        }
        float_arch!(Avx2, $line, $module);
        float_arch!(Avx512, $line, $module);
    };
}

avx2_floats!(
    single,
    Singles,
    __m256,
    f32::from_bits(0x7fc0_0000),
    _mm256_add_ps,
    _mm256_mul_ps,
    _mm256_min_ps,
    _mm256_max_ps,
    _mm256_cmp_ps,
    _mm256_blendv_ps,
    _mm256_and_ps,
    _mm256_or_ps,
    _mm256_set1_ps
);
avx2_floats!(
    double,
    Doubles,
    __m256d,
    f64::from_bits(0x7ff8_0000_0000_0000),
    _mm256_add_pd,
    _mm256_mul_pd,
    _mm256_min_pd,
    _mm256_max_pd,
    _mm256_cmp_pd,
    _mm256_blendv_pd,
    _mm256_and_pd,
    _mm256_or_pd,
    _mm256_set1_pd
);

mod avx2 {
    use super::*;

    /// The upper halves of 2 x 8 numbers, rounded to nearest even, those of `even` in the even places; none is a NaN
    /// other than the canonical one.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn round_bf16(even: __m256i, odd: __m256i) -> __m256i {
        let round = |x: __m256i| {
            let last_bit = _mm256_and_si256(_mm256_srli_epi32::<16>(x), _mm256_set1_epi32(1));
            let bias = _mm256_add_epi32(last_bit, _mm256_set1_epi32(0x7fff));
            _mm256_add_epi32(x, bias)
        };
        _mm256_blend_epi16::<0b1010_1010>(_mm256_srli_epi32::<16>(round(even)), round(odd))
    }

    lines! { "avx2,f16c";
        widen_f16(a: Halves as [__m128i; 4]) -> Wide as [__m256; 4] {
            [_mm256_cvtph_ps(a[0]), _mm256_cvtph_ps(a[1]), _mm256_cvtph_ps(a[2]), _mm256_cvtph_ps(a[3])]
        }
        narrow_f16(a: Wide as [__m256; 4]) -> Halves as [__m128i; 4] {
            let narrow = |x: __m256| _mm256_cvtps_ph::<NEAREST>(x);
            [narrow(a[0]), narrow(a[1]), narrow(a[2]), narrow(a[3])]
        }
        // Numbers in even places first, then those in odd ones: no shuffles, and `narrow_bf16` undoes it.
        widen_bf16(a: Halves as [__m256i; 2]) -> Wide as [__m256i; 4] {
            let even = |x: __m256i| _mm256_slli_epi32::<16>(x);
            let odd = |x: __m256i| _mm256_andnot_si256(_mm256_set1_epi32(0xffff), x);
            [even(a[0]), odd(a[0]), even(a[1]), odd(a[1])]
        }
        narrow_bf16(a: Wide as [__m256i; 4]) -> Halves as [__m256i; 2] {
            [round_bf16(a[0], a[1]), round_bf16(a[2], a[3])]
        }
    }

    /// # Safety
    /// As `Arch::stream_line`.
    #[inline]
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn stream_line(src: *const u8, dst: *mut u8) {
        // SAFETY: the caller's: a line is valid.
        let line: [__m256i; 2] = unsafe { src.cast::<[__m256i; 2]>().read_unaligned() };
        for (i, part) in line.into_iter().enumerate() {
            // SAFETY: the caller's: `dst` is a multiple of 64 and a line is valid.
            unsafe { _mm256_stream_si256(dst.cast::<__m256i>().wrapping_add(i), part) };
        }
    }
}

mod avx512 {
    use super::*;

    lines! { "avx512f";
        widen_f16(a: Halves as [__m256i; 2]) -> Wide as [__m512; 2] { [_mm512_cvtph_ps(a[0]), _mm512_cvtph_ps(a[1])] }
        narrow_f16(a: Wide as [__m512; 2]) -> Halves as [__m256i; 2] {
            [_mm512_cvtps_ph::<NEAREST>(a[0]), _mm512_cvtps_ph::<NEAREST>(a[1])]
        }
    }

    /// # Safety
    /// As `Arch::stream_line`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn stream_line(src: *const u8, dst: *mut u8) {
        // SAFETY: the caller's: a line is valid.
        let line = unsafe { src.cast::<__m512i>().read_unaligned() };
        // SAFETY: the caller's: `dst` is a multiple of 64 and a line is valid.
        unsafe { _mm512_stream_si512(dst.cast::<__m512i>(), line) };
    }
}

impl Arch for Portable {
    #[inline(always)]
    unsafe fn stream_line(src: *const u8, dst: *mut u8) {
        // SAFETY: the caller's: a line is valid.
        let line: [__m128i; 4] = unsafe { src.cast::<[__m128i; 4]>().read_unaligned() };
        for (i, part) in line.into_iter().enumerate() {
            // SAFETY: the caller's: `dst` is a multiple of 64 and a line is valid. SSE2 is part of x86-64.
            unsafe { _mm_stream_si128(dst.cast::<__m128i>().wrapping_add(i), part) };
        }
    }
}

macro_rules! arch {
    ($arch:ident, $module:ident) => {
        impl Arch for $arch {
            forward! {
                f16_to_f32(line: Halves) -> Wide = $module::widen_f16;
                f32_to_f16(wide: Wide) -> Halves = $module::narrow_f16;
                bf16_to_f32(line: Halves) -> Wide = avx2::widen_bf16;
                f32_to_bf16(wide: Wide) -> Halves = avx2::narrow_bf16;
            }

            #[inline(always)]
            unsafe fn stream_line(src: *const u8, dst: *mut u8) {
                // SAFETY: (detected), see `arch`, and the caller's for the addresses.
                unsafe { $module::stream_line(src, dst) }
            }
        }
    };
}

arch!(Avx2, avx2);
arch!(Avx512, avx512);
