//! Sizes of a convolution, and the rearrangement between images and the columns that its matrix products work on.

use super::conv::Conv2dConfig;
use super::data::{Real, for_each_chunk};
use candle_core::{Result, bail};
use std::ops::Range;

/// All sizes of one convolution; pairs are (vertical, horizontal).
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    pub(super) images: usize,
    pub(super) channels: usize,
    pub(super) filters: usize,
    pub(super) input: (usize, usize),
    pub(super) output: (usize, usize),
    kernel: (usize, usize),
    config: Conv2dConfig,
}

impl Geometry {
    /// Checks an input of `N x C x H x W` and weights of `O x C x KH x KW` against each other.
    pub(super) fn new(x: &[usize], weight: &[usize], config: Conv2dConfig) -> Result<Self> {
        let (&[images, channels, h, w], &[filters, weight_channels, kh, kw]) = (x, weight) else {
            bail!("Conv2d: input {x:?} and weight {weight:?} must both have four dimensions");
        };
        if channels != weight_channels {
            bail!("Conv2d: the input has {channels} channels but the weight {weight:?} takes {weight_channels}");
        }
        let fit = |side: &str, size: usize, kernel: usize, stride: usize, padding: usize, dilation: usize| {
            let reach = dilation * (kernel - 1) + 1;
            match (size + 2 * padding).checked_sub(reach) {
                Some(room) => Ok(room / stride + 1),
                None => bail!(
                    "Conv2d: {side} {size} with padding {padding} is smaller than the kernel's reach {reach} \
                     (kernel {kernel}, dilation {dilation})"
                ),
            }
        };
        let (s, p, d) = (config.stride, config.padding, config.dilation);
        let output = (fit("height", h, kh, s.0, p.0, d.0)?, fit("width", w, kw, s.1, p.1, d.1)?);
        Ok(Self { images, channels, filters, input: (h, w), output, kernel: (kh, kw), config })
    }

    /// Rows of the column matrix: the values that one output value is made of.
    pub(super) fn depth(&self) -> usize {
        self.channels * self.taps()
    }

    pub(super) fn in_plane(&self) -> usize {
        self.input.0 * self.input.1
    }

    pub(super) fn in_image(&self) -> usize {
        self.channels * self.in_plane()
    }

    pub(super) fn out_plane(&self) -> usize {
        self.output.0 * self.output.1
    }

    pub(super) fn out_image(&self) -> usize {
        self.filters * self.out_plane()
    }

    /// Whether an image already is its own column matrix.
    pub(super) fn is_pointwise(&self) -> bool {
        self.kernel == (1, 1) && self.config.stride == (1, 1) && self.config.padding == (0, 0)
    }

    fn taps(&self) -> usize {
        self.kernel.0 * self.kernel.1
    }

    /// Offset of kernel tap `tap` from the output position times the stride, in rows and columns.
    fn shift(&self, tap: usize) -> (isize, isize) {
        let (ky, kx) = (tap / self.kernel.1, tap % self.kernel.1);
        let Conv2dConfig { padding, dilation, .. } = self.config;
        ((ky * dilation.0) as isize - padding.0 as isize, (kx * dilation.1) as isize - padding.1 as isize)
    }

    /// Output columns whose input column `ox * stride + shift` lies inside the image.
    fn inside(&self, shift: isize) -> Range<usize> {
        let (stride, width) = (self.config.stride.1 as isize, self.input.1 as isize);
        let first = (-shift).max(0).div_euclid(stride) + isize::from((-shift).max(0) % stride != 0);
        let last = (width - shift).max(0).div_euclid(stride) + isize::from((width - shift).max(0) % stride != 0);
        let first = (first as usize).min(self.output.1);
        first..(last as usize).clamp(first, self.output.1)
    }

    /// The input row for output row `oy`, if it lies inside the image.
    fn in_row(&self, oy: usize, shift: isize) -> Option<usize> {
        let y = (oy * self.config.stride.0) as isize + shift;
        (y >= 0 && y < self.input.0 as isize).then_some(y as usize)
    }
}

/// Fills `columns` (`depth` rows) for the output rows `rows` of every image in `x`, image after image along a row.
pub(super) fn im2col<T: Real>(g: &Geometry, x: &[T], rows: Range<usize>, columns: &mut [T]) {
    let tile = rows.len() * g.output.1;
    let line = x.len() / g.in_image() * tile;
    for_each_chunk(columns, g.taps() * line, |channel, chunk| {
        for (tap, columns) in chunk.chunks_exact_mut(line).enumerate() {
            for (image, columns) in x.chunks_exact(g.in_image()).zip(columns.chunks_exact_mut(tile)) {
                let plane = &image[channel * g.in_plane()..][..g.in_plane()];
                gather_tap(g, plane, tap, rows.clone(), columns);
            }
        }
    });
}

/// Adds columns, laid out as by [`im2col`], back onto the images of `dx` that they were taken from.
pub(super) fn col2im<T: Real>(g: &Geometry, columns: &[T], rows: Range<usize>, dx: &mut [T]) {
    let tile = rows.len() * g.output.1;
    let line = dx.len() / g.in_image() * tile;
    for_each_chunk(dx, g.in_plane(), |plane_index, plane| {
        let (image, channel) = (plane_index / g.channels, plane_index % g.channels);
        for tap in 0..g.taps() {
            let columns = &columns[(channel * g.taps() + tap) * line + image * tile..][..tile];
            scatter_tap(g, columns, tap, rows.clone(), plane);
        }
    });
}

fn gather_tap<T: Real>(g: &Geometry, plane: &[T], tap: usize, rows: Range<usize>, columns: &mut [T]) {
    if g.is_pointwise() {
        let start = rows.start * g.output.1;
        columns.copy_from_slice(&plane[start..start + columns.len()]);
        return;
    }
    let (dy, dx) = g.shift(tap);
    let (inside, step) = (g.inside(dx), g.config.stride.1);
    let left = (inside.start * step) as isize + dx;
    for (oy, line) in rows.zip(columns.chunks_exact_mut(g.output.1)) {
        let Some(y) = g.in_row(oy, dy).filter(|_| !inside.is_empty()) else {
            line.fill(T::zero());
            continue;
        };
        line[..inside.start].fill(T::zero());
        line[inside.end..].fill(T::zero());
        let source = &plane[y * g.input.1 + left as usize..(y + 1) * g.input.1];
        let line = &mut line[inside.clone()];
        if step == 1 {
            line.copy_from_slice(&source[..line.len()]);
        } else {
            line.iter_mut().zip(source.iter().step_by(step)).for_each(|(to, from)| *to = *from);
        }
    }
}

fn scatter_tap<T: Real>(g: &Geometry, columns: &[T], tap: usize, rows: Range<usize>, plane: &mut [T]) {
    let (dy, dx) = g.shift(tap);
    let (inside, step) = (g.inside(dx), g.config.stride.1);
    if inside.is_empty() {
        return;
    }
    let left = ((inside.start * step) as isize + dx) as usize;
    for (oy, line) in rows.zip(columns.chunks_exact(g.output.1)) {
        let Some(y) = g.in_row(oy, dy) else { continue };
        let target = &mut plane[y * g.input.1 + left..(y + 1) * g.input.1];
        let line = &line[inside.clone()];
        if step == 1 {
            target.iter_mut().zip(line).for_each(|(to, from)| *to += *from);
        } else {
            target.iter_mut().step_by(step).zip(line).for_each(|(to, from)| *to += *from);
        }
    }
}
