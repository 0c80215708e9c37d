//! Weights of a linear layer, held as they are stored, and their product with a few vectors.

use std::ops::Range;
use std::sync::Mutex;

use half::{bf16, f16};

use crate::failure::Result;
use crate::kernel::{Isa, Weight};
use crate::pool::Pool;
use crate::weights::Source;

/// Rows of weights that are read, widened and narrowed at once while loading, in elements.
const CHUNK: usize = 1 << 18;
/// Bytes of weights that a thread takes at once.
const TASK: usize = 1 << 18;

/// Type in which weights are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dtype {
    /// 32 bits.
    F32,
    /// 16 bits with the range of f32.
    Bf16,
    /// 16 bits with 11 bits of precision.
    F16,
}

impl Dtype {
    /// As flags name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::Bf16 => "bf16",
            Dtype::F16 => "f16",
        }
    }
}

/// Rows and columns of a stored tensor.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Name of the tensor.
    pub(crate) name: String,
    /// Rows of it.
    pub(crate) rows: Range<usize>,
    /// Columns of it.
    pub(crate) cols: Range<usize>,
}

/// Row-major weights of `rows` outputs and `cols` inputs.
pub(crate) struct Matrix {
    rows: usize,
    cols: usize,
    data: Data,
}

enum Data {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
}

impl Matrix {
    /// Reads pieces of the same width, one below the other. No more than a chunk of them is ever held twice.
    ///
    /// # Errors
    /// Those of `source`.
    pub(crate) fn load(source: &dyn Source, dtype: Dtype, pieces: &[Piece]) -> Result<Matrix> {
        let rows = pieces.iter().map(|piece| piece.rows.len()).sum();
        let cols = pieces.first().map_or(0, |piece| piece.cols.len());
        let data = match dtype {
            Dtype::F32 => Data::F32(read(source, pieces, rows * cols)?),
            Dtype::Bf16 => Data::Bf16(read(source, pieces, rows * cols)?),
            Dtype::F16 => Data::F16(read(source, pieces, rows * cols)?),
        };
        Ok(Matrix { rows, cols, data })
    }

    /// A matrix of equal weights, to measure how fast it is read.
    pub(crate) fn filled(rows: usize, cols: usize, value: f32) -> Matrix {
        Matrix { rows, cols, data: Data::Bf16(vec![bf16::from_f32(value); rows * cols]) }
    }

    /// Outputs.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        match &self.data {
            Data::F32(data) => size_of_val(&data[..]),
            Data::Bf16(data) => size_of_val(&data[..]),
            Data::F16(data) => size_of_val(&data[..]),
        }
    }

    /// Adds row `row`, widened, to the end of `out`.
    pub(crate) fn widen_row(&self, row: usize, out: &mut Vec<f32>) {
        let at = row * self.cols..(row + 1) * self.cols;
        match &self.data {
            Data::F32(data) => out.extend_from_slice(&data[at]),
            Data::Bf16(data) => out.extend(data[at].iter().map(|w| w.wide())),
            Data::F16(data) => out.extend(data[at].iter().map(|w| w.wide())),
        }
    }

    /// For each of `batch` vectors in `x`, its products with the rows `rows`: `y[vector * rows.len() + row]`.
    pub(crate) fn product(&self, rows: Range<usize>, x: &[f32], batch: usize, y: &mut Vec<f32>, pool: &mut Pool) {
        debug_assert_eq!(x.len(), batch * self.cols);
        y.resize(rows.len() * batch, 0.0);
        if batch == 1 || rows.len() == 1 {
            return self.product_by_rows(rows, x, batch, y, pool);
        }
        let mut by_rows = std::mem::take(&mut pool.scratch);
        by_rows.resize(y.len(), 0.0);
        self.product_by_rows(rows.clone(), x, batch, &mut by_rows, pool);
        transpose(&by_rows, rows.len(), batch, y);
        pool.scratch = by_rows;
    }

    /// `y[row * batch + vector]`.
    fn product_by_rows(&self, rows: Range<usize>, x: &[f32], batch: usize, y: &mut [f32], pool: &mut Pool) {
        let at = rows.start * self.cols..rows.end * self.cols;
        match &self.data {
            Data::F32(data) => product(&data[at], self.cols, x, batch, y, pool),
            Data::Bf16(data) => product(&data[at], self.cols, x, batch, y, pool),
            Data::F16(data) => product(&data[at], self.cols, x, batch, y, pool),
        }
    }
}

fn read<W: Weight>(source: &dyn Source, pieces: &[Piece], count: usize) -> Result<Vec<W>> {
    let mut data = Vec::with_capacity(count);
    let mut chunk = Vec::new();
    for piece in pieces {
        let width = source.shape(&piece.name).and_then(|shape| shape.last().copied()).unwrap_or(1).max(1);
        let step = (CHUNK / width).max(1);
        let mut row = piece.rows.start;
        while row < piece.rows.end {
            let rows = row..piece.rows.end.min(row + step);
            row = rows.end;
            chunk.clear();
            source.read(&piece.name, rows, &mut chunk)?;
            for row in chunk.chunks_exact(width) {
                data.extend(row[piece.cols.clone()].iter().map(|w| W::narrow(*w)));
            }
        }
    }
    Ok(data)
}

/// `y[row * batch + vector]`, the rows shared between the threads of `pool`.
fn product<W: Weight>(weights: &[W], cols: usize, x: &[f32], batch: usize, y: &mut [f32], pool: &mut Pool) {
    let isa = Isa::best();
    let rows = weights.len() / cols;
    if pool.threads() == 1 {
        return isa.products(weights, cols, x, batch, y);
    }
    // As many as make the threads end together, not so few that handing them out counts.
    let task = (TASK / (cols * size_of::<W>())).clamp(4, rows.div_ceil(pool.threads()).max(4)).next_multiple_of(4);
    let parts: Vec<Mutex<&mut [f32]>> = y.chunks_mut(task * batch).map(Mutex::new).collect();
    pool.run(parts.len(), &|part| {
        // Each part is taken once: nobody else holds the lock, or has panicked with it.
        if let Ok(mut out) = parts[part].lock() {
            let rows = out.len() / batch;
            isa.products(&weights[part * task * cols..][..rows * cols], cols, x, batch, &mut out);
        }
    });
}

/// `rows` x `batch` to `batch` x `rows`.
fn transpose(by_rows: &[f32], rows: usize, batch: usize, y: &mut [f32]) {
    const BLOCK: usize = 16;
    for first in (0..rows).step_by(BLOCK) {
        let block = BLOCK.min(rows - first);
        for vector in 0..batch {
            for (row, out) in y[vector * rows + first..][..block].iter_mut().enumerate() {
                *out = by_rows[(first + row) * batch + vector];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(rows: usize, cols: usize) -> Matrix {
        let data = (0..rows * cols).map(|i| ((i * 31) % 17) as f32 - 8.0).collect();
        Matrix { rows, cols, data: Data::F32(data) }
    }

    #[test]
    fn vectors_come_out_one_after_the_other_on_any_number_of_threads() {
        let (rows, cols, batch) = (133, 48, 5);
        let w = matrix(rows, cols);
        let x: Vec<f32> = (0..batch * cols).map(|i| (i % 13) as f32).collect();
        for threads in [1, 3] {
            let mut pool = Pool::new(threads).unwrap();
            let mut y = Vec::new();
            w.product(2..rows, &x, batch, &mut y, &mut pool);
            for vector in 0..batch {
                for row in 2..rows {
                    let mut weights = Vec::new();
                    w.widen_row(row, &mut weights);
                    let sum: f32 = weights.iter().zip(&x[vector * cols..]).map(|(w, x)| w * x).sum();
                    assert_eq!(y[vector * (rows - 2) + row - 2], sum, "{threads} threads: {vector} {row}");
                }
            }
        }
    }
}
