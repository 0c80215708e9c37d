//! Values that differ from cell to cell and from rank to rank, and what reducing them gives, bit for bit.

use half::{bf16, f16};
use hccl::{Avg, Max, Min, Numeric, OpKind, Prod, ReduceOp, Sum};

/// A call that is complete but for the type of its operation.
pub(crate) trait Reducing<T> {
    fn with<Op: ReduceOp<T>>(self, op: Op) -> hccl::Result<()>;
}

/// An element type with values to measure with.
pub(crate) trait Cell: Numeric {
    /// The value at cell `i` of rank `rank`'s input. Floats are at least 1 and less than 2.
    fn at(rank: usize, i: usize) -> Self;

    /// What an output holds before a call: no value of [`at`](Cell::at), for floats.
    fn poison() -> Self;

    /// The values of all ranks, in rank order, reduced as the library promises.
    fn fold(op: OpKind, values: impl Iterator<Item = Self>) -> Self;

    /// Runs `call` with the type of `op`.
    ///
    /// # Errors
    /// Those of the call; for an average of integers, which the flags refuse.
    fn reduce<C: Reducing<Self>>(op: OpKind, call: C) -> hccl::Result<()>;
}

/// 64 bits that differ for every cell; so do the upper ones of neighbours.
fn bits(rank: usize, i: usize) -> u64 {
    // Multiples of the golden ratio fill the range evenly without ever repeating.
    (i as u64).wrapping_add(1 + 1_000_003 * rank as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// `mul_add` is not meant: products and sums round one by one.
macro_rules! fold_floats {
    ($op:ident, $values:ident, $wide:ty) => {{
        let mut ranks = 0;
        let folded = $values.inspect(|_| ranks += 1).reduce(|a: $wide, b: $wide| match $op {
            OpKind::Prod => a * b,
            OpKind::Min => a.min(b),
            OpKind::Max => a.max(b),
            _ => a + b,
        });
        let folded = folded.unwrap_or(0.0);
        if $op == OpKind::Avg && ranks > 1 { folded * (1.0 / ranks as $wide) } else { folded }
    }};
}

macro_rules! floats {
    ($($t:ident, $bits:ident, one $one:expr, fraction $fraction:literal, wide $wide:ident, $to:expr, $from:expr;)*) => { $(
        impl Cell for $t {
            fn at(rank: usize, i: usize) -> Self {
                <$t>::from_bits($one | (bits(rank, i) >> (64 - $fraction)) as $bits)
            }
            fn poison() -> Self {
                <$t>::from_bits($one | 1 << ($bits::BITS - 1))
            }
            fn fold(op: OpKind, values: impl Iterator<Item = Self>) -> Self {
                let values = values.map($to);
                $from(fold_floats!(op, values, $wide))
            }
            fn reduce<C: Reducing<Self>>(op: OpKind, call: C) -> hccl::Result<()> {
                match op {
                    OpKind::Avg => call.with(Avg),
                    _ => with_any(op, call),
                }
            }
        }
    )* };
}

floats! {
    f16, u16, one 0x3c00, fraction 10, wide f32, f16::to_f32, f16::from_f32;
    bf16, u16, one 0x3f80, fraction 7, wide f32, bf16::to_f32, bf16::from_f32;
    f32, u32, one 0x3f80_0000, fraction 23, wide f32, |x: f32| x, |x: f32| x;
    f64, u64, one 0x3ff0_0000_0000_0000, fraction 52, wide f64, |x: f64| x, |x: f64| x;
}

macro_rules! ints {
    ($($t:ident)*) => { $(
        impl Cell for $t {
            fn at(rank: usize, i: usize) -> Self {
                (bits(rank, i) >> (64 - $t::BITS)) as $t
            }
            fn poison() -> Self {
                $t::MAX
            }
            fn fold(op: OpKind, values: impl Iterator<Item = Self>) -> Self {
                let folded = values.reduce(|a, b| match op {
                    OpKind::Prod => a.wrapping_mul(b),
                    OpKind::Min => a.min(b),
                    OpKind::Max => a.max(b),
                    _ => a.wrapping_add(b),
                });
                folded.unwrap_or(0)
            }
            fn reduce<C: Reducing<Self>>(op: OpKind, call: C) -> hccl::Result<()> {
                match op {
                    OpKind::Avg => Err(hccl::Error::rank_failed(0, "integers have no average")),
                    _ => with_any(op, call),
                }
            }
        }
    )* };
}

ints! { i8 u8 i16 u16 i32 u32 i64 u64 }

fn with_any<T: Numeric, C: Reducing<T>>(op: OpKind, call: C) -> hccl::Result<()> {
    match op {
        OpKind::Prod => call.with(Prod),
        OpKind::Min => call.with(Min),
        OpKind::Max => call.with(Max),
        _ => call.with(Sum),
    }
}

/// `$body` with `$type` standing for the Rust type of a `DType`.
macro_rules! with_dtype {
    ($dtype:expr, $type:ident => $body:expr) => {
        with_dtype!(@ $dtype, $type => $body; I8 i8, U8 u8, I16 i16, U16 u16, I32 i32, U32 u32, I64 i64, U64 u64,
            F16 half::f16, BF16 half::bf16, F32 f32, F64 f64)
    };
    (@ $dtype:expr, $type:ident => $body:expr; $($name:ident $t:ty),*) => {
        match $dtype {
            $(hccl::DType::$name => { type $type = $t; $body })*
            other => Err($crate::bench::Problem::flag(format!("--dtype {other}: not measured yet"))),
        }
    };
}
pub(crate) use with_dtype;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_cell_of_every_rank_differs() {
        let cells = || (0..4).flat_map(|rank| (0..200_000).map(move |i| (rank, i)));
        let distinct: HashSet<u32> = cells().map(|(rank, i)| f32::at(rank, i).to_bits()).collect();
        assert_eq!(distinct.len(), 800_000);
        let distinct: HashSet<u64> = cells().map(|(rank, i)| u64::at(rank, i)).collect();
        assert_eq!(distinct.len(), 800_000);
        // Types with few values: neighbours, in place and in rank, and cells a line or a chunk apart.
        for step in [1, 16, 32, 64, 128, 256, 1024, 131_072] {
            let same = (0..4096).filter(|i| bf16::at(0, *i) == bf16::at(0, i + step)).count();
            assert!(same < 4096 / 8, "{step}: {same}");
        }
        assert!((0..4096).all(|i| f16::at(0, i) != f16::at(0, i + 1) && f16::at(0, i) != f16::poison()));
    }

    #[test]
    fn folds_round_as_the_library_does() {
        let thirds = [f16::from_f32(1.0), f16::from_f32(1.0009766), f16::from_f32(1.5)];
        assert_eq!(f16::fold(OpKind::Sum, thirds.into_iter()), f16::from_f32(1.0 + 1.0009766 + 1.5));
        assert_eq!(f32::fold(OpKind::Avg, [1.0, 2.0, 4.0].into_iter()), 7.0 * (1.0 / 3.0));
        assert_eq!(u8::fold(OpKind::Sum, [200, 100].into_iter()), 44);
        assert_eq!(i8::fold(OpKind::Min, [3, -7, 5].into_iter()), -7);
        assert_eq!(f64::fold(OpKind::Max, [1.5, 1.25].into_iter()), 1.5);
    }
}
