//! Bringing images of any shape to the one square size the network is fed with.

use image::imageops::{self, FilterType};
use image::{DynamicImage, GrayImage, Luma};

/// A grey image as a square of `size`.
///
/// It is first padded with black to a square about its centre (an odd pixel goes right or below). The square is then
/// padded further while `size` is less than twice its side, so that 28 becomes 32 untouched; otherwise it is resized
/// (triangle filter), up or down.
pub fn fit_grey(pixels: &[u8], (rows, columns): (usize, usize), size: usize) -> Vec<u8> {
    let side = rows.max(columns);
    if (side..2 * side).contains(&size) {
        return pad(pixels, (rows, columns), size);
    }
    let square = pad(pixels, (rows, columns), side);
    let square = GrayImage::from_fn(side as u32, side as u32, |x, y| Luma([square[y as usize * side + x as usize]]));
    imageops::resize(&square, size as u32, size as u32, FilterType::Triangle).into_raw()
}

/// A colour image as a square of `size`, channel after channel (red, green, blue).
///
/// Transparency is put on white. The image is resized (triangle filter) until it just covers the square; what stands
/// out beyond it, equally on both sides, is cut off.
pub fn fit_colour(image: DynamicImage, size: usize) -> Vec<u8> {
    let image = DynamicImage::ImageRgb8(on_white(image));
    let side = size as u32;
    let image = match (image.width(), image.height()) == (side, side) {
        true => image,
        false => image.resize_to_fill(side, side, FilterType::Triangle),
    };
    let interleaved = image.to_rgb8().into_raw();
    (0..3).flat_map(|channel| interleaved.iter().skip(channel).step_by(3).copied()).collect()
}

fn pad(pixels: &[u8], (rows, columns): (usize, usize), size: usize) -> Vec<u8> {
    let (top, left) = ((size - rows) / 2, (size - columns) / 2);
    let mut padded = vec![0; size * size];
    for (row, line) in pixels.chunks_exact(columns).enumerate() {
        let start = (top + row) * size + left;
        padded[start..start + columns].copy_from_slice(line);
    }
    padded
}

fn on_white(image: DynamicImage) -> image::RgbImage {
    if !image.color().has_alpha() {
        return image.into_rgb8();
    }
    let image = image.into_rgba8();
    image::RgbImage::from_fn(image.width(), image.height(), |x, y| {
        let [red, green, blue, alpha] = image.get_pixel(x, y).0;
        let over = |colour: u8| {
            let (colour, alpha) = (u32::from(colour), u32::from(alpha));
            // At most (255 * 255 + 127) / 255 = 255.
            ((colour * alpha + 255 * (255 - alpha) + 127) / 255) as u8
        };
        image::Rgb([over(red), over(green), over(blue)])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_images_are_padded_about_the_centre() {
        let pixels: Vec<u8> = (1..=6).collect();
        assert_eq!(fit_grey(&pixels, (2, 3), 3), [1, 2, 3, 4, 5, 6, 0, 0, 0]);
        let expected = [[0, 0, 0, 0, 0], [0, 1, 2, 3, 0], [0, 4, 5, 6, 0], [0; 5], [0; 5]].concat();
        assert_eq!(fit_grey(&pixels, (2, 3), 5), expected);
    }

    #[test]
    fn mnist_gets_a_border_of_two() {
        let pixels: Vec<u8> = (0..784).map(|i| (i % 255 + 1) as u8).collect();
        let fitted = fit_grey(&pixels, (28, 28), 32);
        for (at, pixel) in fitted.iter().enumerate() {
            let (y, x) = (at / 32, at % 32);
            let inside = (2..30).contains(&y) && (2..30).contains(&x);
            assert_eq!(*pixel, if inside { pixels[(y - 2) * 28 + x - 2] } else { 0 }, "row {y} column {x}");
        }
    }

    #[test]
    fn other_sizes_are_resized() {
        let pixels: Vec<u8> = (0..16).map(|at| if at % 4 < 2 { 10 } else { 200 }).collect();
        assert_eq!(fit_grey(&pixels, (4, 4), 1), [105]);
        let large = fit_grey(&pixels, (4, 4), 8);
        assert_eq!((large.len(), large[0], large[63]), (64, 10, 200));
        assert!(large.chunks(8).all(|row| row.is_sorted() && row == &large[..8]));
    }

    #[test]
    fn transparency_is_put_on_white() {
        let image = image::RgbaImage::from_fn(2, 1, |x, _| image::Rgba([10, 20, 30, [0, 128][x as usize]]));
        assert_eq!(on_white(DynamicImage::ImageRgba8(image)).into_raw(), [255, 255, 255, 132, 137, 142]);
    }

    #[test]
    fn colour_comes_channel_after_channel_and_cropped_to_the_middle() {
        let image = image::RgbImage::from_fn(4, 2, |x, y| image::Rgb([x as u8, 10 + y as u8, 20]));
        let fitted = fit_colour(DynamicImage::ImageRgb8(image), 2);
        assert_eq!(fitted, [1, 2, 1, 2, 10, 10, 11, 11, 20, 20, 20, 20]);
    }
}
