//! From bytes to numbers: what the network sees of a pixel of 0 to 255.

use super::{DataError, Dataset};

/// The flag `--normalize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Normalize {
    /// `(pixel / 255 - mean) / std`, mean and standard deviation of each channel over the training set.
    MeanStd,
    /// `pixel / 255`.
    None,
}

/// A table from pixel to number for each of the three channels.
#[derive(Clone, Debug, PartialEq)]
pub struct Normalizer {
    table: [[f64; 256]; 3],
}

impl Normalizer {
    /// The tables for a flag; `MeanStd` goes through all of the training set once.
    ///
    /// # Errors
    /// [`DataError`] when an image of the training set cannot be read.
    pub fn new(normalize: Normalize, train: &Dataset) -> Result<Self, DataError> {
        Ok(match normalize {
            Normalize::None => Self::from_moments([(0.0, 1.0); 3]),
            Normalize::MeanStd => Self::from_moments(Sums::of(train)?.moments()),
        })
    }

    /// The tables for a mean and a standard deviation a channel, both in units of 255.
    pub fn from_moments(moments: [(f64, f64); 3]) -> Self {
        let column = |(mean, std): (f64, f64)| std::array::from_fn(|pixel| (pixel as f64 / 255.0 - mean) / std);
        Self { table: moments.map(column) }
    }

    /// What becomes of a pixel of channel 0, 1 or 2.
    #[cfg(test)]
    pub fn apply(&self, channel: usize, pixel: u8) -> f64 {
        self.table[channel][usize::from(pixel)]
    }

    /// The table of each channel, rounded once to another type.
    pub fn tables<T>(&self, round: impl Fn(f64) -> T + Copy) -> [[T; 256]; 3] {
        self.table.each_ref().map(|column| std::array::from_fn(|pixel| round(column[pixel])))
    }
}

/// Sums over pixels, in whole numbers, so that they are exact whatever the order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Pixels of a channel.
    pub count: u64,
    /// Sum of the pixels of each channel.
    pub sum: [u64; 3],
    /// Sum of the squares.
    pub squares: [u64; 3],
}

impl Sums {
    /// Over all images of a set, as the network sees them: resized, with padding.
    ///
    /// # Errors
    /// [`DataError`] when an image cannot be read.
    pub fn of(set: &Dataset) -> Result<Self, DataError> {
        let mut sums = Self::default();
        let mut image = vec![0; set.pixels()];
        for index in 0..set.len() {
            set.read(index, &mut image)?;
            sums.add(&image);
        }
        Ok(sums)
    }

    /// Adds one image of three channels.
    pub fn add(&mut self, image: &[u8]) {
        let plane = image.len() / 3;
        self.count += plane as u64;
        for (channel, pixels) in image.chunks_exact(plane.max(1)).enumerate() {
            self.sum[channel] += pixels.iter().map(|p| u64::from(*p)).sum::<u64>();
            self.squares[channel] += pixels.iter().map(|p| u64::from(*p) * u64::from(*p)).sum::<u64>();
        }
    }

    /// Mean and standard deviation (of the population) of each channel, both divided by 255. A channel of one single
    /// colour gets the deviation 1, so that it becomes 0 and not a division by 0.
    pub fn moments(&self) -> [(f64, f64); 3] {
        std::array::from_fn(|channel| {
            let (count, sum, squares) = (u128::from(self.count), self.sum[channel], self.squares[channel]);
            // count * squares >= sum * sum (Cauchy-Schwarz), exactly, as these are whole numbers.
            let spread = count * u128::from(squares) - u128::from(sum) * u128::from(sum);
            let scale = count.max(1) as f64 * 255.0;
            let std = if spread == 0 { 1.0 } else { (spread as f64).sqrt() / scale };
            (sum as f64 / scale, std)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_pixels() {
        let mut sums = Sums::default();
        sums.add(&[0, 255, 10, 20, 7, 7]);
        sums.add(&[255, 0, 30, 40, 7, 7]);
        let [(mean_red, std_red), (mean_green, std_green), (mean_blue, std_blue)] = sums.moments();
        assert_eq!((mean_red, std_red), (0.5, 0.5));
        assert_eq!(mean_green, 25.0 / 255.0);
        assert!((std_green - 125f64.sqrt() / 255.0).abs() < 1e-15);
        assert_eq!((mean_blue, std_blue), (7.0 / 255.0, 1.0));
    }

    #[test]
    fn mean_std_centres_and_scales() {
        let normalizer = Normalizer::from_moments([(0.5, 0.5), (0.2, 0.1), (0.0, 1.0)]);
        assert_eq!([0, 255].map(|pixel| normalizer.apply(0, pixel)), [-1.0, 1.0]);
        assert!((normalizer.apply(1, 51) - 0.0).abs() < 1e-15);
        assert_eq!(normalizer.apply(2, 128), 128.0 / 255.0);
    }

    #[test]
    fn a_table_in_f32_is_the_division_in_f32() {
        let [table, ..] = Normalizer::from_moments([(0.0, 1.0); 3]).tables(|x| x as f32);
        for pixel in 0..=255u8 {
            assert_eq!(table[usize::from(pixel)], f32::from(pixel) / 255.0);
        }
    }
}
