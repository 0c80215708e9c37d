//! What can be wrong with the data: every message names the file or folder, what was expected and what was found.

use std::io;
use std::path::PathBuf;

use candle_core::DType;

/// Why images could not be loaded or a batch could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// None of the file names that could hold a part of the set exists.
    #[error("{}: no {what} file; tried {}", dir.display(), tried.join(", "))]
    Missing {
        /// The folder searched.
        dir: PathBuf,
        /// What was searched for, such as "training images".
        what: &'static str,
        /// The names tried, in order.
        tried: Vec<String>,
    },
    /// A file or folder could not be opened or read.
    #[error("{}: cannot read: {source}", file.display())]
    Io {
        /// The file or folder.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file ends too early.
    #[error("{}: truncated: {expected} bytes expected, {actual} found{}", file.display(), after(*gzip))]
    Truncated {
        /// The file.
        file: PathBuf,
        /// Bytes of a whole file, from its own header.
        expected: u64,
        /// Bytes there are.
        actual: u64,
        /// Whether the bytes are counted after decompression.
        gzip: bool,
    },
    /// The file goes on after its last item.
    #[error("{}: longer than its header says: {expected} bytes expected, more found{}", file.display(), after(*gzip))]
    TooLong {
        /// The file.
        file: PathBuf,
        /// Bytes of a whole file, from its own header.
        expected: u64,
        /// Whether the bytes are counted after decompression.
        gzip: bool,
    },
    /// The first four bytes are not those of the kind of file expected.
    #[error("{}: wrong magic number at offset 0: expected {expected:#010x} ({what}), found {actual:#010x}", file.display())]
    Magic {
        /// The file.
        file: PathBuf,
        /// What the file should be.
        what: &'static str,
        /// Its magic number.
        expected: u32,
        /// The number found.
        actual: u32,
    },
    /// The compressed stream is damaged.
    #[error("{}: bad gzip data after {offset} decompressed bytes: {source}", file.display())]
    Gzip {
        /// The file.
        file: PathBuf,
        /// Bytes that came out before the damage.
        offset: u64,
        /// The decoder's error.
        source: io::Error,
    },
    /// The header promises more than this program is willing to hold.
    #[error("{}: header promises {bytes} bytes, more than the limit of {limit}", file.display())]
    TooLarge {
        /// The file.
        file: PathBuf,
        /// Bytes promised.
        bytes: u128,
        /// Bytes allowed.
        limit: u64,
    },
    /// The header says that there is nothing in the file.
    #[error("{}: header says {items} items of {rows} x {columns} pixels: nothing to learn from", file.display())]
    Nothing {
        /// The file.
        file: PathBuf,
        /// Number of images or labels.
        items: u32,
        /// Pixel rows of an image.
        rows: u32,
        /// Pixel columns of an image.
        columns: u32,
    },
    /// Images and labels do not pair up.
    #[error("{} holds {images} images, but {} holds {labels} labels", image_file.display(), label_file.display())]
    Count {
        /// File of the images.
        image_file: PathBuf,
        /// Its number of images.
        images: usize,
        /// File of the labels.
        label_file: PathBuf,
        /// Its number of labels.
        labels: usize,
    },
    /// The test set has a label that the training set does not.
    #[error("{}: class count mismatch: label {label} at offset {offset}, but the training set has {classes} classes (0 to {})", file.display(), classes - 1)]
    Label {
        /// File of the labels.
        file: PathBuf,
        /// Byte offset of the label, after decompression.
        offset: usize,
        /// The label found.
        label: u32,
        /// Classes of the training set.
        classes: usize,
    },
    /// A folder that should hold one folder a class holds fewer than two.
    #[error("{}: expected one folder a class, at least 2, found {found}", dir.display())]
    NoClasses {
        /// The folder.
        dir: PathBuf,
        /// Folders found.
        found: usize,
    },
    /// A class folder holds no image.
    #[error("{}: class without images (PNG or JPEG, directly in the folder)", dir.display())]
    EmptyClass {
        /// The folder of the class.
        dir: PathBuf,
    },
    /// Training and test folder hold other classes.
    #[error("class count mismatch: {} has {train_classes} classes, {} has {test_classes}; only in one of them: {}",
        train.display(), test.display(), differing.join(", "))]
    Classes {
        /// The training folder.
        train: PathBuf,
        /// Classes in it.
        train_classes: usize,
        /// The test folder.
        test: PathBuf,
        /// Classes in it.
        test_classes: usize,
        /// Classes that only one of them has.
        differing: Vec<String>,
    },
    /// No class has two images, so no image can be kept back for the test.
    #[error("{}: too few images for a test set: put at least 2 into a class, or make train/ and test/", dir.display())]
    NoTest {
        /// The folder.
        dir: PathBuf,
    },
    /// An image could not be decoded.
    #[error("{}: cannot decode image: {source}", file.display())]
    Decode {
        /// The file.
        file: PathBuf,
        /// The decoder's error.
        source: image::ImageError,
    },
    /// `--image-size` is out of range.
    #[error("--image-size {size}: must be 1 to {max} pixels")]
    ImageSize {
        /// The size asked for.
        size: usize,
        /// The largest size allowed.
        max: usize,
    },
    /// There are more ranks than training samples.
    #[error("--ranks {ranks}: more ranks than samples, {place} has {samples} for training")]
    Ranks {
        /// Number of ranks.
        ranks: usize,
        /// Where the data comes from.
        place: String,
        /// Training samples.
        samples: usize,
    },
    /// A sample that does not exist was asked for.
    #[error("sample {index} does not exist: the set has {len}")]
    Index {
        /// The sample asked for.
        index: usize,
        /// Samples there are.
        len: usize,
    },
    /// A batch of another element type than f32 or f64 was asked for.
    #[error("--dtype {}: images come as f32 or f64", .0.as_str())]
    Dtype(DType),
    /// The tensors of a batch could not be made.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

fn after(gzip: bool) -> &'static str {
    if gzip { " after decompression" } else { "" }
}
