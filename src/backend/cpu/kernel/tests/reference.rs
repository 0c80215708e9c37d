//! The rules of the reductions a second time, one element at a time, with nothing shared with the kernels: halves are
//! rounded by comparing exact f64 distances.

use crate::element::DType;
use crate::reduce::OpKind;

/// Bytes of a vector of one rank: values that differ by rank and index, with special values in between.
pub(super) fn sample(dtype: DType, rank: usize, ranks: usize, elements: usize) -> Vec<u8> {
    let special = specials(dtype);
    (0..elements)
        .flat_map(|i| {
            let value = i * ranks + rank;
            let mixed = (value as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            match mixed >> 61 {
                0 => special[(mixed >> 20) as usize % special.len()].clone(),
                1 | 2 => mixed.to_le_bytes()[..dtype.size()].to_vec(),
                _ => number(dtype, value),
            }
        })
        .collect()
}

fn number(dtype: DType, value: usize) -> Vec<u8> {
    let real = (value as f64 - 50.0) * 0.37;
    match dtype {
        DType::F16 => (narrow(real, 10, 5) as u16).to_le_bytes().to_vec(),
        DType::BF16 => (narrow(real, 7, 8) as u16).to_le_bytes().to_vec(),
        DType::F32 => (real as f32).to_le_bytes().to_vec(),
        DType::F64 => real.to_le_bytes().to_vec(),
        _ => (value as u64).to_le_bytes()[..dtype.size()].to_vec(),
    }
}

/// Limits, zeros, subnormals, ties, infinities, NaNs of both signs and kinds with payloads.
pub(super) fn specials(dtype: DType) -> Vec<Vec<u8>> {
    let size = dtype.size();
    let bits = 8 * size as u32;
    let (fraction, _) = format(dtype);
    let sign = 1u64 << (bits - 1);
    let patterns: Vec<u64> = if dtype.is_float() {
        let infinity = (sign - 1) >> fraction << fraction;
        let one = (infinity >> 1) >> fraction << fraction;
        let magnitudes = [
            0,
            1,
            2,
            3,
            (1 << fraction) - 1,
            1 << fraction,
            (1 << fraction) + 1,
            one,
            one + 1,
            one - 1,
            infinity - 1,
            infinity - 2,
            infinity,
            infinity + 1,
            infinity + 5,
            infinity + (1 << (fraction - 1)),
            sign - 1,
            sign - 7,
        ];
        magnitudes.iter().flat_map(|&m| [m, m | sign]).collect()
    } else {
        vec![0, 1, 2, 3, sign - 1, sign, sign + 1, u64::MAX, u64::MAX - 1, 0x55, 0x1234_5678_9abc_def1]
    };
    patterns.iter().map(|p| p.to_le_bytes()[..size].to_vec()).collect()
}

/// Bits of the fraction and of the exponent; integers have neither.
fn format(dtype: DType) -> (u32, u32) {
    match dtype {
        DType::F16 => (10, 5),
        DType::BF16 => (7, 8),
        DType::F32 => (23, 8),
        DType::F64 => (52, 11),
        _ => (0, 0),
    }
}

/// The expected bytes of the reduction of `inputs` in rank order, averaged over their number.
pub(super) fn expected(dtype: DType, op: OpKind, inputs: &[Vec<u8>]) -> Vec<u8> {
    let size = dtype.size();
    (0..inputs[0].len() / size)
        .flat_map(|i| {
            let values: Vec<u64> = inputs.iter().map(|x| load(&x[i * size..][..size])).collect();
            element(dtype, op, &values).to_le_bytes()[..size].to_vec()
        })
        .collect()
}

fn load(bytes: &[u8]) -> u64 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(wide)
}

fn element(dtype: DType, op: OpKind, values: &[u64]) -> u64 {
    match (op, values) {
        (_, &[only]) => only,
        (OpKind::Min | OpKind::Max, _) => extreme(dtype, op, values),
        _ if dtype.is_float() => float(dtype, op, values),
        (OpKind::Sum, _) => values.iter().fold(0, |a, &b| a.wrapping_add(b)),
        _ => values.iter().fold(1, |a, &b| a.wrapping_mul(b)),
    }
}

fn is_signed(dtype: DType) -> bool {
    matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64)
}

fn is_nan(dtype: DType, bits: u64) -> bool {
    let (fraction, exponent) = format(dtype);
    let infinity = ((1u64 << exponent) - 1) << fraction;
    dtype.is_float() && bits & ((1 << (fraction + exponent)) - 1) > infinity
}

/// Where a value stands among all values of its type.
fn place(dtype: DType, bits: u64) -> i128 {
    let width = 8 * dtype.size() as u32;
    let negative = bits >> (width - 1) == 1;
    if dtype.is_float() && negative {
        return -1 - (bits - (1 << (width - 1))) as i128;
    }
    if is_signed(dtype) && negative { bits as i128 - (1i128 << width) } else { bits as i128 }
}

fn extreme(dtype: DType, op: OpKind, values: &[u64]) -> u64 {
    if let Some(&nan) = values.iter().find(|&&v| is_nan(dtype, v)) {
        return nan;
    }
    let sorted = values.iter().copied();
    let found = match op {
        OpKind::Min => sorted.min_by_key(|&v| place(dtype, v)),
        _ => sorted.max_by_key(|&v| place(dtype, v)),
    };
    found.expect("there is a source")
}

fn float(dtype: DType, op: OpKind, values: &[u64]) -> u64 {
    let (fraction, exponent) = format(dtype);
    let canonical_nan = ((1u64 << (exponent + 1)) - 1) << (fraction - 1);
    if dtype == DType::F64 {
        let folded = fold(op, values.iter().map(|&v| f64::from_bits(v)), |a, b| a + b, |a, b| a * b);
        let result = if op == OpKind::Avg { folded * (1.0 / values.len() as f64) } else { folded };
        return if result.is_nan() { canonical_nan } else { result.to_bits() };
    }
    let widened = values
        .iter()
        .map(|&v| if dtype == DType::F32 { f32::from_bits(v as u32) } else { widen(v, fraction, exponent) as f32 });
    let folded = fold(op, widened, |a, b| a + b, |a, b| a * b);
    let result = if op == OpKind::Avg { folded * (1.0 / values.len() as f32) } else { folded };
    match dtype {
        _ if result.is_nan() => canonical_nan,
        DType::F32 => result.to_bits() as u64,
        _ => narrow(result as f64, fraction, exponent),
    }
}

fn fold<T>(op: OpKind, values: impl Iterator<Item = T>, sum: fn(T, T) -> T, product: fn(T, T) -> T) -> T {
    values.reduce(if op == OpKind::Prod { product } else { sum }).expect("there is a source")
}

/// The value of a half: sign, (1 + fraction) and a power of two, in f64, where all of it is exact.
fn widen(bits: u64, fraction: u32, exponent: u32) -> f64 {
    let sign = if bits >> (fraction + exponent) == 1 { -1.0 } else { 1.0 };
    let biased = (bits >> fraction & ((1 << exponent) - 1)) as i32;
    let digits = (bits & ((1 << fraction) - 1)) as f64;
    let bias = (1 << (exponent - 1)) - 1;
    let scale = 2f64.powi(-(fraction as i32));
    match biased {
        _ if is_all_ones(biased, exponent) && digits == 0.0 => sign * f64::INFINITY,
        _ if is_all_ones(biased, exponent) => f64::NAN,
        0 => sign * digits * scale * 2f64.powi(1 - bias),
        _ => sign * (1.0 + digits * scale) * 2f64.powi(biased - bias),
    }
}

fn is_all_ones(biased: i32, exponent: u32) -> bool {
    biased == (1 << exponent) - 1
}

/// The half nearest to `value`: of the two neighbours the closer, of equally close ones the even.
fn narrow(value: f64, fraction: u32, exponent: u32) -> u64 {
    let sign = (value.is_sign_negative() as u64) << (fraction + exponent);
    let magnitude = value.abs();
    let infinity = ((1u64 << exponent) - 1) << fraction;
    // Halves of one sign are ordered as their bits: the greatest not above `magnitude`.
    let (mut below, mut above) = (0, infinity);
    while above - below > 1 {
        let middle = below + (above - below) / 2;
        if widen(middle, fraction, exponent) <= magnitude { below = middle } else { above = middle }
    }
    if magnitude == f64::INFINITY {
        return sign | infinity;
    }
    // For rounding, infinity stands where the next power of two would be.
    let upper = if above == infinity { 2f64.powi(1 << (exponent - 1)) } else { widen(above, fraction, exponent) };
    let (down, up) = (magnitude - widen(below, fraction, exponent), upper - magnitude);
    sign | if down < up || (down == up && below % 2 == 0) { below } else { above }
}

#[test]
fn the_reference_rounds_as_written_in_the_standard() {
    assert_eq!(narrow(65519.996, 10, 5), 0x7bff);
    assert_eq!(narrow(65520.0, 10, 5), 0x7c00);
    assert_eq!(narrow(2f64.powi(-25), 10, 5), 0);
    assert_eq!(narrow(2f64.powi(-25) * 1.0001, 10, 5), 1);
    assert_eq!(narrow(-3.0 * 2f64.powi(-25), 10, 5), 0x8002);
    assert_eq!(narrow(1.0 + 2f64.powi(-8), 7, 8), 0x3f80);
    assert_eq!(narrow(1.0 + 3.0 * 2f64.powi(-8), 7, 8), 0x3f82);
    assert_eq!(widen(0x3555, 10, 5), 0.333_251_953_125);
}
