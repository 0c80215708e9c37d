//! Labelled images, from the repository, from IDX files or from folders, as batches of tensors.
//!
//! - Every set is brought to one square size with three channels; [`pixels`] and [`folder`] say how.
//! - Nothing is augmented and nothing is random: a sample is the same bytes on every rank and in every run.
//! - A set is checked while loading: what is missing, truncated or inconsistent is a [`DataError`] naming the file.
//!   Only of image folders too large for memory are the images decoded, and a bad one found, later.

pub mod error;
pub mod folder;
pub mod idx;
pub mod normalize;
pub mod pixels;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

pub use error::DataError;
use folder::Folder;
use idx::IdxSet;
pub use normalize::{Normalize, Normalizer};

/// Largest `--image-size`.
pub const MAX_IMAGE_SIZE: usize = 2048;
/// Size of the images of a folder when none is given.
const FOLDER_SIZE: usize = 64;
/// Smallest size an IDX set gets when none is given: MNIST's 28 become 32, which halves five times.
const IDX_SIZE: usize = 32;
/// Every how many-th sample of a class of the built-in set is kept back for the test.
const HELD_OUT: usize = 10;

const CLOTHES: [&str; 10] =
    ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"];
const BUILTIN_IMAGES: &[u8] = include_bytes!("../data/t10k-images-idx3-ubyte.gz");
const BUILTIN_LABELS: &[u8] = include_bytes!("../data/t10k-labels-idx1-ubyte.gz");

/// Where the images come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The Fashion-MNIST test set inside this program: 10,000 images, of which every tenth of each class, counted in
    /// stored order, is kept back: 9,000 for training, 1,000 for the test, both with equally many of each class.
    BuiltIn,
    /// `--data DIR`: IDX files, `train-*` and `t10k-*`, plain or gzipped.
    Idx(PathBuf),
    /// `--images DIR`: one folder a class.
    Images(PathBuf),
}

/// A training and a test set with the same classes.
#[derive(Debug)]
pub struct Data {
    /// The images to learn from.
    pub train: Dataset,
    /// The images to measure accuracy on.
    pub test: Dataset,
    /// Names of the classes, by label; numbers where none are known.
    pub classes: Vec<String>,
    place: String,
}

impl Data {
    /// Loads both sets. Without `--image-size` IDX images keep their size, but at least 32, and those of a folder get 64.
    ///
    /// # Errors
    /// [`DataError`], naming the file or flag that is wrong.
    pub fn load(place: &Place, image_size: Option<usize>) -> Result<Self, DataError> {
        if let Some(size) = image_size.filter(|size| !(1..=MAX_IMAGE_SIZE).contains(size)) {
            return Err(DataError::ImageSize { size, max: MAX_IMAGE_SIZE });
        }
        match place {
            Place::BuiltIn => Self::built_in(image_size),
            Place::Idx(dir) => Self::idx(dir, image_size),
            Place::Images(dir) => Self::folder(dir, image_size.unwrap_or(FOLDER_SIZE)),
        }
    }

    /// Checks that every rank can have training samples of its own.
    ///
    /// # Errors
    /// [`DataError::Ranks`] when there are fewer samples than ranks.
    pub fn check_ranks(&self, ranks: usize) -> Result<(), DataError> {
        let samples = self.train.len();
        if ranks > samples {
            return Err(DataError::Ranks { ranks, place: self.place.clone(), samples });
        }
        Ok(())
    }

    fn built_in(image_size: Option<usize>) -> Result<Self, DataError> {
        let images = Path::new("built-in t10k-images-idx3-ubyte.gz");
        let labels = Path::new("built-in t10k-labels-idx1-ubyte.gz");
        let set = Arc::new(IdxSet::read((images, BUILTIN_IMAGES), (labels, BUILTIN_LABELS))?);
        let (train, test) = hold_out(set.labels());
        let size = image_size.unwrap_or(IDX_SIZE);
        Ok(Self {
            train: Dataset::of_idx(Arc::clone(&set), train, size),
            test: Dataset::of_idx(set, test, size),
            classes: CLOTHES.map(String::from).to_vec(),
            place: "the built-in set".to_owned(),
        })
    }

    fn idx(dir: &Path, image_size: Option<usize>) -> Result<Self, DataError> {
        let train = IdxSet::open(dir, idx::TRAIN)?;
        let test = IdxSet::open(dir, idx::TEST)?;
        let classes = train.classes();
        test.check_labels(classes)?;
        let (rows, columns) = train.shape();
        let size = image_size.unwrap_or(rows.max(columns).clamp(IDX_SIZE, MAX_IMAGE_SIZE));
        let whole = |set: IdxSet| {
            let picked = (0..set.labels().len()).collect();
            Dataset::of_idx(Arc::new(set), picked, size)
        };
        let classes = (0..classes).map(|class| class.to_string()).collect();
        Ok(Self { train: whole(train), test: whole(test), classes, place: dir.display().to_string() })
    }

    fn folder(dir: &Path, size: usize) -> Result<Self, DataError> {
        let (train, test, classes) = Folder::open(dir, size)?;
        let set = |folder| Dataset { source: Source::Folder(folder), size };
        Ok(Self { train: set(train), test: set(test), classes, place: dir.display().to_string() })
    }
}

/// Labelled square images of three channels.
#[derive(Debug)]
pub struct Dataset {
    source: Source,
    size: usize,
}

#[derive(Debug)]
enum Source {
    /// A part of an IDX set.
    Idx {
        set: Arc<IdxSet>,
        picked: Vec<usize>,
    },
    Folder(Folder),
}

impl Dataset {
    /// Number of samples, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "an empty set is refused when loading")]
    pub fn len(&self) -> usize {
        match &self.source {
            Source::Idx { picked, .. } => picked.len(),
            Source::Folder(folder) => folder.len(),
        }
    }

    /// Side of every image, in pixels.
    pub fn image_size(&self) -> usize {
        self.size
    }

    /// Bytes of one image: `3 * size * size`.
    pub fn pixels(&self) -> usize {
        3 * self.size * self.size
    }

    /// One sample: its pixels, channel after channel and row after row, and its label.
    ///
    /// # Errors
    /// [`DataError`] when there is no such sample or its file cannot be decoded.
    #[cfg(test)]
    pub fn get(&self, index: usize) -> Result<(Vec<u8>, u32), DataError> {
        let mut image = vec![0; self.pixels()];
        let label = self.read(index, &mut image)?;
        Ok((image, label))
    }

    /// Images as `[n, 3, size, size]` of f32 or f64, and labels as `[n]` of u32; `n` may be 0.
    ///
    /// # Errors
    /// [`DataError`] when a sample does not exist or cannot be decoded, or the type is not f32 or f64.
    pub fn batch(
        &self,
        indices: &[usize],
        normalizer: &Normalizer,
        dtype: DType,
    ) -> Result<(Tensor, Tensor), DataError> {
        match dtype {
            DType::F32 => self.batch_of(indices, &normalizer.tables(|x| x as f32)),
            DType::F64 => self.batch_of(indices, &normalizer.tables(|x| x)),
            other => Err(DataError::Dtype(other)),
        }
    }

    /// Writes one sample's [`pixels`](Self::pixels) bytes and gives its label.
    fn read(&self, index: usize, out: &mut [u8]) -> Result<u32, DataError> {
        let len = self.len();
        if index >= len {
            return Err(DataError::Index { index, len });
        }
        match &self.source {
            Source::Folder(folder) => folder.read(index, out),
            Source::Idx { set, picked } => {
                let plane = pixels::fit_grey(set.image(picked[index]), set.shape(), self.size);
                out.chunks_exact_mut(plane.len()).for_each(|channel| channel.copy_from_slice(&plane));
                Ok(set.labels()[picked[index]].into())
            }
        }
    }

    fn batch_of<T: candle_core::WithDType>(
        &self,
        indices: &[usize],
        tables: &[[T; 256]; 3],
    ) -> Result<(Tensor, Tensor), DataError> {
        let mut image = vec![0; self.pixels()];
        let mut values = Vec::with_capacity(indices.len() * image.len());
        let mut labels = Vec::with_capacity(indices.len());
        for index in indices {
            labels.push(self.read(*index, &mut image)?);
            for (table, channel) in tables.iter().zip(image.chunks_exact(self.size * self.size)) {
                values.extend(channel.iter().map(|pixel| table[usize::from(*pixel)]));
            }
        }
        let images = Tensor::from_vec(values, (indices.len(), 3, self.size, self.size), &Device::Cpu)?;
        Ok((images, Tensor::from_vec(labels, indices.len(), &Device::Cpu)?))
    }

    fn of_idx(set: Arc<IdxSet>, picked: Vec<usize>, size: usize) -> Self {
        Self { source: Source::Idx { set, picked }, size }
    }
}

/// Training and test samples: of each class every tenth, counted from its tenth, is kept back.
fn hold_out(labels: &[u8]) -> (Vec<usize>, Vec<usize>) {
    let mut seen = [0usize; 256];
    (0..labels.len()).partition(|index| {
        let seen = &mut seen[usize::from(labels[*index])];
        *seen += 1;
        *seen % HELD_OUT != 0
    })
}

#[cfg(test)]
#[path = "data/tests.rs"]
mod tests;
