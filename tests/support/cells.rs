//! Elements as bits, values for tests, and the rules of the reductions a second time: one element at a time, with
//! nothing shared with the library.
#![allow(dead_code, reason = "each test binary uses its own part")]

use hccl::{Numeric, OpKind};

/// An element of any type, as its bits.
pub(crate) trait Cell: Numeric {
    /// Bits of fraction and exponent; integers have none.
    const FORMAT: Option<(u32, u32)>;
    /// True when the first bit is a sign.
    const SIGNED: bool;
    /// The element whose bits are the low ones of `bits`.
    fn of(bits: u64) -> Self;
    /// The bits.
    fn bits(self) -> u64;
}

macro_rules! cells {
    ($($t:ty: $format:expr, $signed:expr, $of:expr, $bits:expr;)*) => { $(
        impl Cell for $t {
            const FORMAT: Option<(u32, u32)> = $format;
            const SIGNED: bool = $signed;
            fn of(bits: u64) -> Self {
                let of: fn(u64) -> Self = $of;
                of(bits)
            }
            fn bits(self) -> u64 {
                let bits: fn(Self) -> u64 = $bits;
                bits(self)
            }
        }
    )* };
}

cells! {
    u8: None, false, |b| b as u8, |x| x.into();
    u16: None, false, |b| b as u16, |x| x.into();
    u32: None, false, |b| b as u32, |x| x.into();
    u64: None, false, |b| b, |x| x;
    i8: None, true, |b| b as i8, |x| x.cast_unsigned().into();
    i16: None, true, |b| b as i16, |x| x.cast_unsigned().into();
    i32: None, true, |b| b as i32, |x| x.cast_unsigned().into();
    i64: None, true, |b| b as i64, |x| x.cast_unsigned();
    half::f16: Some((10, 5)), true, |b| half::f16::from_bits(b as u16), |x| x.to_bits().into();
    half::bf16: Some((7, 8)), true, |b| half::bf16::from_bits(b as u16), |x| x.to_bits().into();
    f32: Some((23, 8)), true, |b| f32::from_bits(b as u32), |x| x.to_bits().into();
    f64: Some((52, 11)), true, f64::from_bits, f64::to_bits;
}

/// Bits that differ for every word, as good as at random.
pub(crate) fn mix(word: u64) -> u64 {
    let z = word.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (z ^ (z >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Element `i` of rank `rank` of `n`: any bits, different for every rank and index.
pub(crate) fn cell<T: Cell>(i: usize, rank: usize, n: usize) -> T {
    T::of(mix((i * n + rank) as u64) >> 3)
}

/// `len` elements of rank `rank`.
pub(crate) fn cells<T: Cell>(len: usize, rank: usize, n: usize) -> Vec<T> {
    (0..len).map(|i| cell(i, rank, n)).collect()
}

/// Fails when two runs of elements differ in any bit.
pub(crate) fn assert_bits<T: Cell>(actual: &[T], expected: &[T], what: &dyn std::fmt::Display) {
    assert_eq!(actual.len(), expected.len(), "{what}: length");
    let differs = actual.iter().zip(expected).position(|(a, e)| a.bits() != e.bits());
    if let Some(i) = differs {
        let (a, e) = (actual[i], expected[i]);
        panic!("{what}: {} x {} at {i}: {a:?} ({:x}), not {e:?} ({:x})", T::DTYPE, actual.len(), a.bits(), e.bits());
    }
}

/// Limits, zeros, subnormals, makers of ties, infinities, and NaNs of both signs and kinds with payloads.
fn specials<T: Cell>() -> Vec<u64> {
    let sign = 1_u64 << (8 * size_of::<T>() - 1);
    let Some((fraction, exponent)) = T::FORMAT else {
        return vec![0, 1, 2, 3, sign - 1, sign, sign + 1, u64::MAX, u64::MAX - 1];
    };
    let infinity = ((1 << exponent) - 1) << fraction;
    let one = ((1 << (exponent - 1)) - 1) << fraction;
    let tie = one - (u64::from(fraction + 1) << fraction);
    let magnitudes = [
        0,
        1,
        2,
        3,
        (1 << fraction) - 1,
        1 << fraction,
        one,
        one + 1,
        one - 1,
        tie,
        infinity - 1,
        infinity,
        infinity + 1,
        infinity + (1 << (fraction - 1)),
        infinity + (1 << (fraction - 1)) + 5,
    ];
    magnitudes.iter().flat_map(|m| [*m, m | sign]).collect()
}

/// Element `i` of rank `rank` for a reduction: plain numbers, with special values and any bits in between.
pub(crate) fn samples<T: Cell>(len: usize, rank: usize, n: usize) -> Vec<T> {
    let special = specials::<T>();
    let sample = |i: usize| {
        let mixed = mix((i * n + rank) as u64);
        match mixed >> 61 {
            0 => special[(mixed >> 20) as usize % special.len()],
            1 => mixed,
            _ => number::<T>(mixed),
        }
    };
    tiled(len, |i| T::of(sample(i)))
}

/// Samples repeat after so many elements: a prime, so that no piece of a power of two looks like its neighbour, and few
/// enough that the reference takes no longer than what it checks.
const PERIOD: usize = 4099;

fn tiled<T: Cell>(len: usize, element: impl FnMut(usize) -> T) -> Vec<T> {
    let period: Vec<T> = (0..len.min(PERIOD)).map(element).collect();
    period.iter().copied().cycle().take(len).collect()
}

fn number<T: Cell>(mixed: u64) -> u64 {
    let real = ((mixed >> 20) % 4001) as f64 * 0.37 - 740.0;
    match T::FORMAT {
        None => (mixed >> 20) & 0x1ff,
        Some((52, _)) => real.to_bits(),
        Some((23, _)) => u64::from((real as f32).to_bits()),
        Some((fraction, exponent)) => narrow(real as f32, fraction, exponent),
    }
}

/// The reduction of what all ranks gave as [`samples`], element by element in rank order.
pub(crate) fn reduced<T: Cell>(op: OpKind, inputs: &[Vec<T>]) -> Vec<T> {
    let element = |i: usize| {
        let values: Vec<u64> = inputs.iter().map(|input| input[i].bits()).collect();
        T::of(reduce::<T>(op, &values))
    };
    tiled(inputs[0].len(), element)
}

/// The reduction of one element of every rank. That of one rank is what it gave, bit for bit.
pub(crate) fn reduce<T: Cell>(op: OpKind, values: &[u64]) -> u64 {
    match (op, T::FORMAT) {
        _ if values.len() == 1 => values[0],
        (OpKind::Min | OpKind::Max, _) => extreme::<T>(op, values),
        (OpKind::Sum, None) => values.iter().fold(0, |a, b| a.wrapping_add(*b)),
        (_, None) => values.iter().fold(1, |a, b| a.wrapping_mul(*b)),
        (_, Some((52, _))) => {
            let folded = fold(op, values.iter().map(|v| f64::from_bits(*v)), |a, b| a + b, |a, b| a * b);
            let scale = 1.0 / values.len() as f64;
            let result = if op == OpKind::Avg { folded * scale } else { folded };
            if result.is_nan() { 0x7ff8 << 48 } else { result.to_bits() }
        }
        (_, Some((fraction, exponent))) => {
            let folded = fold(op, values.iter().map(|v| widen(*v, fraction, exponent)), |a, b| a + b, |a, b| a * b);
            let scale = 1.0 / values.len() as f32;
            narrow(if op == OpKind::Avg { folded * scale } else { folded }, fraction, exponent)
        }
    }
}

fn fold<F>(op: OpKind, values: impl Iterator<Item = F>, sum: fn(F, F) -> F, product: fn(F, F) -> F) -> F {
    values.reduce(if op == OpKind::Prod { product } else { sum }).expect("there is a rank")
}

/// The first NaN, else the least or the greatest, with −0 below +0.
fn extreme<T: Cell>(op: OpKind, values: &[u64]) -> u64 {
    let bits = 8 * size_of::<T>() as u32;
    let (sign, mask) = (1_u64 << (bits - 1), u64::MAX >> (64 - bits));
    if let Some((fraction, exponent)) = T::FORMAT {
        let infinity = ((1 << exponent) - 1) << fraction;
        if let Some(nan) = values.iter().find(|v| **v & !sign & mask > infinity) {
            return *nan;
        }
    }
    // A number that orders as the value does.
    let place = |v: &u64| match (T::FORMAT, T::SIGNED) {
        (None, false) => *v,
        (None, true) => (v ^ sign) & mask,
        (Some(_), _) if v & sign != 0 => !v & mask,
        (Some(_), _) => v | sign,
    };
    let found = values.iter().copied();
    let found = if op == OpKind::Min { found.min_by_key(place) } else { found.max_by_key(place) };
    found.expect("there is a rank")
}

/// A float of 16 or 32 bits as f32, which holds all of them exactly.
fn widen(bits: u64, fraction: u32, exponent: u32) -> f32 {
    if fraction == 23 {
        return f32::from_bits(bits as u32);
    }
    let field = (bits >> fraction) & ((1 << exponent) - 1);
    let digits = (bits & ((1 << fraction) - 1)) as f64;
    let unit = 2_f64.powi(field.max(1) as i32 - ((1 << (exponent - 1)) - 1) - fraction as i32);
    let whole = if field == 0 { 0.0 } else { (1_u64 << fraction) as f64 };
    let magnitude = match field == (1 << exponent) - 1 {
        true if digits == 0.0 => f64::INFINITY,
        true => f64::NAN,
        false => (whole + digits) * unit,
    };
    let negative = bits >> (fraction + exponent) & 1 == 1;
    (if negative { -magnitude } else { magnitude }) as f32
}

/// The nearest float of 16 or 32 bits, of two equally near ones the even; any NaN is the canonical one.
fn narrow(value: f32, fraction: u32, exponent: u32) -> u64 {
    let infinity = ((1_u64 << exponent) - 1) << fraction;
    if value.is_nan() {
        return infinity | (1 << (fraction - 1));
    }
    if fraction == 23 {
        return u64::from(value.to_bits());
    }
    let sign = u64::from(value.is_sign_negative()) << (fraction + exponent);
    let magnitude = f64::from(value.abs());
    if magnitude == 0.0 || magnitude.is_infinite() {
        return sign | if magnitude == 0.0 { 0 } else { infinity };
    }
    // Every f32, subnormal or not, is a normal f64, whose exponent can be read off.
    let least = 1 - ((1 << (exponent - 1)) - 1);
    let power = ((magnitude.to_bits() >> 52) as i32 - 1023).max(least);
    let unit = 2_f64.powi(power - fraction as i32);
    let steps = (magnitude / unit).round_ties_even() as u64;
    // A carry out of the digits runs into the exponent, as it should.
    sign | ((((power - least) as u64) << fraction) + steps).min(infinity)
}

#[test]
fn the_reference_rounds_as_the_standard_says() {
    assert_eq!(narrow(65519.996, 10, 5), 0x7bff);
    assert_eq!(narrow(65520.0, 10, 5), 0x7c00);
    assert_eq!(narrow(2_f32.powi(-25), 10, 5), 0);
    assert_eq!(narrow(2_f32.powi(-25) * 1.0001, 10, 5), 1);
    assert_eq!(narrow(-3.0 * 2_f32.powi(-25), 10, 5), 0x8002);
    assert_eq!(narrow(1.0 + 2_f32.powi(-8), 7, 8), 0x3f80);
    assert_eq!(narrow(1.0 + 3.0 * 2_f32.powi(-8), 7, 8), 0x3f82);
    assert_eq!(narrow(f32::MAX, 7, 8), 0x7f80);
    for (fraction, exponent) in [(10, 5), (7, 8)] {
        for bits in 0..=u16::MAX {
            let back = narrow(widen(bits.into(), fraction, exponent), fraction, exponent);
            let infinity = ((1_u64 << exponent) - 1) << fraction;
            assert!(back == u64::from(bits) || u64::from(bits) & 0x7fff > infinity, "{bits:x} became {back:x}");
        }
    }
}
