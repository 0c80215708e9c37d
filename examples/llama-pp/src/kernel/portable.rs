//! The sums in plain Rust.

use super::Weight;

const LANES: usize = 16;

pub(super) fn tile<W: Weight, const R: usize, const N: usize>(rows: [&[W]; R], vectors: [&[f32]; N]) -> [[f32; N]; R] {
    let rows = rows.map(|row| row.as_chunks::<LANES>());
    let vectors = vectors.map(|vector| vector.as_chunks::<LANES>());
    std::array::from_fn(|row| {
        let (row, row_rest) = rows[row];
        std::array::from_fn(|vector| {
            let (x, x_rest) = vectors[vector];
            let mut lanes = [0f32; LANES];
            for (w, x) in row.iter().zip(x) {
                for (lane, (w, x)) in lanes.iter_mut().zip(w.iter().zip(x)) {
                    *lane += w.wide() * x;
                }
            }
            let rest = row_rest.iter().zip(x_rest).map(|(w, x)| w.wide() * x);
            rest.fold(lanes.iter().sum(), |sum: f32, product| sum + product)
        })
    })
}

#[inline(always)]
pub(super) fn add_scaled(factor: f32, x: &[f32], sum: &mut [f32]) {
    for (sum, x) in sum.iter_mut().zip(x) {
        *sum += factor * x;
    }
}
