//! Dot products of rows of weights with vectors: the one thing a decoder's time goes into.
//!
//! ```text
//! weights, 4 rows  [w0 .......... ]     x0  x1  x2  x3          out  4 x 4 sums
//!                  [w1 .......... ]  .  [ ]  [ ]  [ ]  [ ]   ->   each: lane l adds the products of
//!                  [w2 .......... ]     [ ]  [ ]  [ ]  [ ]        columns l, l + 16, ..., then the lanes,
//!                  [w3 .......... ]                               then the columns that fill no lane
//! ```
//!
//! - bf16 and f16 weights are widened in registers, as they are read.
//! - A sum is added up in the same order whatever the number of rows, vectors and threads, so that a token does not
//!   depend on what else is computed with it. Processors with other instructions may add in another order.

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::OnceLock;

use half::{bf16, f16};

/// Vectors that one pass over rows takes.
const VECTORS: usize = 4;
/// Rows that one pass takes.
const ROWS: usize = 4;

/// An element of weights.
pub(crate) trait Weight: Copy + Send + Sync + Default + lanes::Lanes + 'static {
    /// As f32, exactly.
    fn wide(self) -> f32;
    /// The nearest.
    fn narrow(wide: f32) -> Self;
}

impl Weight for f32 {
    fn wide(self) -> f32 {
        self
    }

    fn narrow(wide: f32) -> f32 {
        wide
    }
}

impl Weight for bf16 {
    fn wide(self) -> f32 {
        self.to_f32()
    }

    fn narrow(wide: f32) -> bf16 {
        bf16::from_f32(wide)
    }
}

impl Weight for f16 {
    fn wide(self) -> f32 {
        self.to_f32()
    }

    fn narrow(wide: f32) -> f16 {
        f16::from_f32(wide)
    }
}

#[cfg(target_arch = "x86_64")]
use x86 as lanes;

#[cfg(not(target_arch = "x86_64"))]
mod lanes {
    /// Nothing is needed of weights here.
    pub(crate) trait Lanes {}
    impl<T> Lanes for T {}
}

/// The instructions of this processor that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isa {
    /// 16 lanes, as AVX-512F has them.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 8 lanes, as AVX2 with FMA and F16C has them.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// What the compiler makes of plain Rust.
    Portable,
}

impl Isa {
    /// The best there is.
    pub(crate) fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Isa::all()[0])
    }

    /// All there are, the best first.
    pub(crate) fn all() -> Vec<Isa> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx2") {
                all.push(Isa::Avx512);
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
                all.push(Isa::Avx2);
            }
        }
        all.push(Isa::Portable);
        all
    }

    /// Sums of `R` rows with `N` vectors, all of one length.
    ///
    /// # Panics
    /// When the lengths differ.
    pub(crate) fn tile<W: Weight, const R: usize, const N: usize>(
        self,
        rows: [&[W]; R],
        vectors: [&[f32]; N],
    ) -> [[f32; N]; R] {
        let len = rows[0].len();
        assert!(rows.iter().all(|row| row.len() == len) && vectors.iter().all(|vector| vector.len() == len));
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => x86::tile512(rows, vectors),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86::tile256(rows, vectors),
            Isa::Portable => portable::tile(rows, vectors),
        }
    }

    /// Adds `factor * x` to `sum`.
    pub(crate) fn add_scaled(self, factor: f32, x: &[f32], sum: &mut [f32]) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx2 => x86::add_scaled(factor, x, sum),
            Isa::Portable => portable::add_scaled(factor, x, sum),
        }
    }

    /// For each of the rows of `weights`, one after the other of `cols` elements each, its sums with the `batch`
    /// vectors of `x`: `out[row * batch + vector]`.
    pub(crate) fn products<W: Weight>(self, weights: &[W], cols: usize, x: &[f32], batch: usize, out: &mut [f32]) {
        let mut weights = weights.chunks_exact(ROWS * cols);
        let mut out = out.chunks_exact_mut(ROWS * batch);
        for (weights, out) in weights.by_ref().zip(out.by_ref()) {
            let rows: [&[W]; ROWS] = std::array::from_fn(|row| &weights[row * cols..][..cols]);
            self.sums(rows, x, batch, out);
        }
        for (row, out) in weights.remainder().chunks_exact(cols).zip(out.into_remainder().chunks_exact_mut(batch)) {
            self.sums([row], x, batch, out);
        }
    }

    fn sums<W: Weight, const R: usize>(self, rows: [&[W]; R], x: &[f32], batch: usize, out: &mut [f32]) {
        let mut at = 0;
        while at + VECTORS <= batch {
            self.sums_of::<W, R, VECTORS>(rows, x, batch, at, out);
            at += VECTORS;
        }
        match batch - at {
            1 => self.sums_of::<W, R, 1>(rows, x, batch, at, out),
            2 => self.sums_of::<W, R, 2>(rows, x, batch, at, out),
            3 => self.sums_of::<W, R, 3>(rows, x, batch, at, out),
            _ => (),
        }
    }

    fn sums_of<W: Weight, const R: usize, const N: usize>(
        self,
        rows: [&[W]; R],
        x: &[f32],
        batch: usize,
        at: usize,
        out: &mut [f32],
    ) {
        let cols = rows[0].len();
        let vectors: [&[f32]; N] = std::array::from_fn(|vector| &x[(at + vector) * cols..][..cols]);
        let sums = self.tile(rows, vectors);
        for (row, sums) in sums.iter().enumerate() {
            out[row * batch + at..][..N].copy_from_slice(sums);
        }
    }
}

#[cfg(test)]
mod tests;
