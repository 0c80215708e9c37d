//! f16 and bf16 to and from f32 by integer operations, without branches, so that any instruction set vectorises them.
//!
//! To f32 is exact. From f32 rounds to nearest, ties to even; what is too large becomes an infinity. Neither depends on
//! the processor's flush-to-zero modes: no subnormal number ever enters a floating-point instruction.

use super::arch::{Halves, Wide};

/// Lines of halves to f32 and back. Not inlined, and by reference: as loops over memory that cannot overlap they
/// vectorise for any instruction set, which they do not once they are unrolled in a caller.
macro_rules! lines {
    ($($widen:ident = $to_f32:ident, $narrow:ident = $from_f32:ident;)*) => { $(
        #[inline(never)]
        pub(super) fn $widen(line: &Halves, wide: &mut Wide) {
            for (to, &from) in wide.as_flattened_mut().iter_mut().zip(line) {
                *to = $to_f32(from);
            }
        }

        #[inline(never)]
        pub(super) fn $narrow(wide: &Wide, line: &mut Halves) {
            for (to, &from) in line.iter_mut().zip(wide.as_flattened()) {
                *to = $from_f32(from);
            }
        }
    )* };
}

lines! {
    widen_f16 = f16_to_f32, narrow_f16 = f32_to_f16;
    widen_bf16 = bf16_to_f32, narrow_bf16 = f32_to_bf16;
}

/// The f32 with the value of a binary16.
#[inline(always)]
pub(super) fn f16_to_f32(half: u16) -> f32 {
    /// 2^-14, the least normal binary16, as the bits of an f32.
    const LEAST_NORMAL: u32 = 113 << 23;
    let magnitude = ((half & 0x7fff) as u32) << 13;
    let sign = ((half & 0x8000) as u32) << 16;
    let normal = magnitude + ((127 - 15) << 23);
    let special = magnitude | 0x7f80_0000;
    // A subnormal is fraction * 2^-24 = (1 + fraction/1024) * 2^-14 - 2^-14: exact.
    let subnormal = (f32::from_bits(magnitude + LEAST_NORMAL) - f32::from_bits(LEAST_NORMAL)).to_bits();
    let finite = if magnitude < (1 << 23) { subnormal } else { normal };
    let bits = if magnitude >= (31 << 23) { special } else { finite };
    f32::from_bits(bits | sign)
}

/// The binary16 nearest to `value`. A NaN becomes the canonical one, with the sign of `value`.
#[inline(always)]
pub(super) fn f32_to_f16(value: f32) -> u16 {
    /// 0.5, whose last fraction bit is worth 2^-24, the least subnormal binary16.
    const HALF: f32 = 0.5;
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let sign = (bits >> 16) & 0x8000;
    // Rounds the low 13 bits away; a carry reaches the exponent, and infinity from the greatest one.
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + odd) >> 13;
    // Adding 0.5 lets the adder round at 2^-24. An f32 subnormal is far below half of that, so 0 stands for it.
    let small = if magnitude < (1 << 23) { 0 } else { magnitude };
    let subnormal = (f32::from_bits(small) + HALF).to_bits().wrapping_sub(HALF.to_bits());
    let finite = if magnitude < (113 << 23) { subnormal } else { normal };
    let special = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let half = if magnitude >= (143 << 23) { special } else { finite };
    (half | sign) as u16
}

/// The f32 with the value of a bfloat16.
#[inline(always)]
pub(super) fn bf16_to_f32(half: u16) -> f32 {
    f32::from_bits((half as u32) << 16)
}

/// The bfloat16 nearest to `value`, which is no NaN other than the canonical one.
#[inline(always)]
pub(super) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let odd = (bits >> 16) & 1;
    // Cannot wrap: the greatest input is -infinity, 0xff80_0000.
    (bits.wrapping_add(0x7fff + odd) >> 16) as u16
}
