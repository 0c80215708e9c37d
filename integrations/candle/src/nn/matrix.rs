#![expect(unsafe_code, reason = "the gemm crate takes raw pointers")]
//! Matrix products on checked, strided views.

use super::data::Real;
use gemm::Parallelism;

/// A read-only view of a matrix: element `(r, c)` is `data[r * row_stride + c * col_stride]`.
#[derive(Clone, Copy)]
pub(super) struct Mat<'a, T> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a, T> Mat<'a, T> {
    /// Rows of `cols` values, each row starting `row_stride` after the one before.
    pub(super) fn rows(data: &'a [T], rows: usize, cols: usize, row_stride: usize) -> Self {
        Self { data, rows, cols, row_stride, col_stride: 1 }
    }

    /// The transposed view.
    pub(super) fn t(self) -> Self {
        Self { rows: self.cols, cols: self.rows, row_stride: self.col_stride, col_stride: self.row_stride, ..self }
    }
}

/// A matrix to write: rows of `cols` values, each row starting `row_stride` after the one before.
pub(super) struct MatMut<'a, T> {
    data: &'a mut [T],
    rows: usize,
    cols: usize,
    row_stride: usize,
}

impl<'a, T> MatMut<'a, T> {
    /// A row-major matrix inside `data`.
    pub(super) fn rows(data: &'a mut [T], rows: usize, cols: usize, row_stride: usize) -> Self {
        Self { data, rows, cols, row_stride }
    }
}

/// `dst = a * b`, or `dst += a * b` with `accumulate`, on up to `threads` threads of the current rayon pool.
///
/// # Panics
/// If the shapes do not fit each other or a view does not fit its slice: both are mistakes of this module, never of its
/// user.
pub(super) fn matmul<T: Real>(dst: MatMut<'_, T>, a: Mat<'_, T>, b: Mat<'_, T>, accumulate: bool, threads: usize) {
    assert!(dst.rows == a.rows && dst.cols == b.cols && a.cols == b.rows, "matrix shapes do not fit");
    assert!(fits(dst.data.len(), dst.rows, dst.cols, dst.row_stride, 1), "destination view outside its memory");
    assert!(dst.row_stride >= dst.cols || dst.rows <= 1, "destination rows overlap");
    assert!(fits(a.data.len(), a.rows, a.cols, a.row_stride, a.col_stride), "left view outside its memory");
    assert!(fits(b.data.len(), b.rows, b.cols, b.row_stride, b.col_stride), "right view outside its memory");
    let parallelism = if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None };
    let (alpha, beta) = (if accumulate { T::one() } else { T::zero() }, T::one());
    // SAFETY: (1) `fits` holds for all three views, so every address that gemm forms is inside its slice. (2) `dst` is
    // borrowed mutably, so it overlaps neither input, and its rows are disjoint. (3) `T` is f32 or f64, which gemm
    // knows.
    unsafe {
        gemm::gemm(
            dst.rows,
            dst.cols,
            a.cols,
            dst.data.as_mut_ptr(),
            1,
            dst.row_stride as isize,
            accumulate,
            a.data.as_ptr(),
            a.col_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.col_stride as isize,
            b.row_stride as isize,
            alpha,
            beta,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// Whether the last element of a view lies inside `len` elements.
fn fits(len: usize, rows: usize, cols: usize, row_stride: usize, col_stride: usize) -> bool {
    rows == 0 || cols == 0 || (rows - 1) * row_stride + (cols - 1) * col_stride < len
}
