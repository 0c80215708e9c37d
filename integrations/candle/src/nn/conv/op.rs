//! The differentiable operation behind `Conv2d`.
//!
//! Work is cut into groups of images. Large images go one by one, in tiles of output rows whose columns stay in cache;
//! small ones share a matrix product, since reading the weights once per image would cost more than the arithmetic.

use super::Conv2dConfig;
use crate::nn::data::{Real, dispatch, for_each_chunk, threads, values, with_values};
use crate::nn::im2col::{Geometry, col2im, im2col};
use crate::nn::matrix::{Mat, MatMut, matmul};
use crate::nn::scratch::with_scratch;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, WithDType};
use rayon::prelude::*;
use std::ops::Range;

/// Images with fewer output pixels than this share a matrix product.
const ALONE_FROM: usize = 128;
/// Columns that a shared product aims at.
const GROUP_COLUMNS: usize = 512;
/// Values of a tile of columns: 1 MiB of f32, so that it is still in the second-level cache when the product reads it.
const TILE_VALUES: usize = 256 * 1024;

pub(super) struct Convolution(pub(super) Conv2dConfig);

impl CustomOp2 for Convolution {
    fn name(&self) -> &'static str {
        "hccl-conv2d"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout, w: &CpuStorage, wl: &Layout) -> Result<(CpuStorage, Shape)> {
        let g = Geometry::new(xl.dims(), wl.dims(), self.0)?;
        let shape = Shape::from((g.images, g.filters, g.output.0, g.output.1));
        let storage =
            dispatch!(x.dtype(), T => T::to_cpu_storage_owned(forward::<T>(&g, values(x, xl)?, values(w, wl)?)));
        Ok((storage, shape))
    }

    fn bwd(&self, x: &Tensor, w: &Tensor, _y: &Tensor, dy: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let g = Geometry::new(x.dims(), w.dims(), self.0)?;
        let dy = dy.contiguous()?;
        dispatch!(x.dtype(), T => backward::<T>(&g, x, w, &dy))
    }
}

/// Gradients of input and weight; none for an argument that no variable stands behind.
fn backward<T: Real>(g: &Geometry, x: &Tensor, w: &Tensor, dy: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
    with_values([x, w, dy], |[xs, ws, dys]| {
        let dx = x.track_op().then(|| Tensor::from_vec(input_gradient::<T>(g, ws, dys), x.shape(), x.device()));
        let dw = w.track_op().then(|| Tensor::from_vec(weight_gradient::<T>(g, xs, dys), w.shape(), w.device()));
        Ok((dx.transpose()?, dw.transpose()?))
    })
}

fn forward<T: Real>(g: &Geometry, x: &[T], w: &[T]) -> Vec<T> {
    let weight = Mat::rows(w, g.filters, g.depth(), g.depth());
    let mut y = vec![T::zero(); g.images * g.out_image()];
    for_each_group(g, &mut y, g.out_image(), |images, y, threads| {
        let x = &x[images.start * g.in_image()..images.end * g.in_image()];
        if images.len() == 1 {
            forward_alone(g, x, weight, y, threads);
        } else {
            forward_shared(g, x, weight, y, threads);
        }
    });
    y
}

fn forward_alone<T: Real>(g: &Geometry, x: &[T], weight: Mat<'_, T>, y: &mut [T], threads: usize) {
    for rows in tiles(g) {
        let (start, len) = (rows.start * g.output.1, rows.len() * g.output.1);
        with_columns(g, x, rows, |columns| {
            matmul(MatMut::rows(&mut y[start..], g.filters, len, g.out_plane()), weight, columns, false, threads);
        });
    }
}

fn forward_shared<T: Real>(g: &Geometry, x: &[T], weight: Mat<'_, T>, y: &mut [T], threads: usize) {
    let columns = x.len() / g.in_image() * g.out_plane();
    with_scratch(g.filters * columns, |product: &mut [T]| {
        with_columns(g, x, 0..g.output.0, |cols| {
            matmul(MatMut::rows(product, g.filters, columns, columns), weight, cols, false, threads);
        });
        for_each_chunk(y, g.out_plane(), |plane, y| {
            let (image, filter) = (plane / g.filters, plane % g.filters);
            y.copy_from_slice(&product[filter * columns + image * g.out_plane()..][..g.out_plane()]);
        });
    });
}

fn input_gradient<T: Real>(g: &Geometry, w: &[T], dy: &[T]) -> Vec<T> {
    let transposed = Mat::rows(w, g.filters, g.depth(), g.depth()).t();
    let mut dx = vec![T::zero(); g.images * g.in_image()];
    for_each_group(g, &mut dx, g.in_image(), |images, dx, threads| {
        let dy = &dy[images.start * g.out_image()..images.end * g.out_image()];
        if images.len() > 1 {
            with_shared_output(g, dy, |dy, columns| {
                let dy = Mat::rows(dy, g.filters, columns, columns);
                scatter_product(g, transposed, dy, 0..g.output.0, dx, threads);
            });
            return;
        }
        for rows in tiles(g) {
            let (start, len) = (rows.start * g.output.1, rows.len() * g.output.1);
            let dy = Mat::rows(&dy[start..], g.filters, len, g.out_plane());
            scatter_product(g, transposed, dy, rows, dx, threads);
        }
    });
    dx
}

/// `dx += col2im(transposed * dy)` for some output rows of the images in `dx`, which is zero before the first call.
fn scatter_product<T: Real>(
    g: &Geometry,
    transposed: Mat<'_, T>,
    dy: Mat<'_, T>,
    rows: Range<usize>,
    dx: &mut [T],
    threads: usize,
) {
    let columns = dx.len() / g.in_image() * rows.len() * g.output.1;
    if g.is_pointwise() && dx.len() == g.in_image() {
        matmul(MatMut::rows(dx, g.channels, columns, columns), transposed, dy, false, threads);
        return;
    }
    with_scratch(g.depth() * columns, |cols: &mut [T]| {
        matmul(MatMut::rows(cols, g.depth(), columns, columns), transposed, dy, false, threads);
        col2im(g, cols, rows, dx);
    });
}

/// Summed over images in order, so that the result does not depend on the number of threads.
fn weight_gradient<T: Real>(g: &Geometry, x: &[T], dy: &[T]) -> Vec<T> {
    let mut dw = vec![T::zero(); g.filters * g.depth()];
    let mut accumulate = false;
    let group = group_size(g);
    let pairs = x.chunks(group * g.in_image()).zip(dy.chunks(group * g.out_image()));
    for (x, dy) in pairs {
        let mut add = |dy: Mat<'_, T>, cols: Mat<'_, T>| {
            matmul(MatMut::rows(&mut dw, g.filters, g.depth(), g.depth()), dy, cols.t(), accumulate, threads());
            accumulate = true;
        };
        if x.len() > g.in_image() {
            with_shared_output(g, dy, |dy, columns| {
                let dy = Mat::rows(dy, g.filters, columns, columns);
                with_columns(g, x, 0..g.output.0, |cols| add(dy, cols));
            });
            continue;
        }
        for rows in tiles(g) {
            let (start, len) = (rows.start * g.output.1, rows.len() * g.output.1);
            let dy = Mat::rows(&dy[start..], g.filters, len, g.out_plane());
            with_columns(g, x, rows, |cols| add(dy, cols));
        }
    }
    dw
}

/// Calls `work(images, their part of data, threads)` for all groups: over threads when images go alone and there are
/// enough of them, else one group after the other with the threads inside.
fn for_each_group<T: Real>(
    g: &Geometry,
    data: &mut [T],
    per_image: usize,
    work: impl Fn(Range<usize>, &mut [T], usize) + Send + Sync,
) {
    let (group, threads) = (group_size(g), threads());
    let range = |i: usize, part: &[T]| i * group..i * group + part.len() / per_image;
    if threads > 1 && group == 1 && g.images >= threads {
        data.par_chunks_mut(per_image).enumerate().for_each(|(i, part)| work(range(i, part), part, 1));
    } else {
        data.chunks_mut(group * per_image).enumerate().for_each(|(i, part)| work(range(i, part), part, threads));
    }
}

/// How many images share a matrix product.
fn group_size(g: &Geometry) -> usize {
    if g.out_plane() >= ALONE_FROM { 1 } else { GROUP_COLUMNS.div_ceil(g.out_plane()).min(g.images).max(1) }
}

/// Cuts the output rows so that the columns of a part stay in cache; a layer without columns is not cut.
fn tiles(g: &Geometry) -> impl Iterator<Item = Range<usize>> {
    let (height, line) = (g.output.0, g.depth() * g.output.1);
    let rows = if g.is_pointwise() { height } else { (TILE_VALUES / line).clamp(1, height) };
    (0..height).step_by(rows).map(move |start| start..(start + rows).min(height))
}

/// The column matrix of some output rows of the images in `x`: the image itself where it already is one.
fn with_columns<T: Real>(g: &Geometry, x: &[T], rows: Range<usize>, work: impl FnOnce(Mat<'_, T>)) {
    let columns = x.len() / g.in_image() * rows.len() * g.output.1;
    if g.is_pointwise() && x.len() == g.in_image() {
        return work(Mat::rows(x, g.channels, columns, columns));
    }
    with_scratch(g.depth() * columns, |cols: &mut [T]| {
        im2col(g, x, rows, cols);
        work(Mat::rows(cols, g.depth(), columns, columns));
    });
}

/// The output gradients of several images side by side: `filters` rows of `images * pixels` columns.
fn with_shared_output<T: Real>(g: &Geometry, dy: &[T], work: impl FnOnce(&[T], usize)) {
    let (images, plane) = (dy.len() / g.out_image(), g.out_plane());
    let columns = images * plane;
    with_scratch(g.filters * columns, |shared: &mut [T]| {
        for_each_chunk(shared, columns, |filter, line| {
            for (image, line) in line.chunks_exact_mut(plane).enumerate() {
                line.copy_from_slice(&dy[(image * g.filters + filter) * plane..][..plane]);
            }
        });
        work(shared, columns);
    });
}
