//! IDX files (MNIST's format), plain or gzipped: a big-endian header, then one byte a pixel or label.
//!
//! ```text
//! images  00000803 | count | rows | columns | count * rows * columns bytes
//! labels  00000801 | count | count bytes
//! ```
//!
//! A header is never believed: what it promises is checked against a limit, and memory grows only as bytes arrive.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use super::DataError;

/// Most bytes of one file after decompression: 80 times MNIST's training images.
const LIMIT: u64 = 4 << 30;
const IMAGES: Kind = Kind { magic: 0x0000_0803, dimensions: 3, what: "IDX images" };
const LABELS: Kind = Kind { magic: 0x0000_0801, dimensions: 1, what: "IDX labels" };
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// One half of an IDX data set: grey images and their labels, as stored.
#[derive(Debug)]
pub struct IdxSet {
    pixels: Vec<u8>,
    labels: Vec<u8>,
    rows: usize,
    columns: usize,
    label_file: PathBuf,
}

impl IdxSet {
    /// Reads one half, `train` or `t10k`, out of a folder.
    ///
    /// # Errors
    /// [`DataError`] when a file is missing, damaged, of another kind, or does not belong to the other.
    pub fn open(dir: &Path, half: Half) -> Result<Self, DataError> {
        let images = find(dir, half.images, half.prefix, "images", 3)?;
        let labels = find(dir, half.labels, half.prefix, "labels", 1)?;
        Self::read((&images, open(&images)?), (&labels, open(&labels)?))
    }

    /// Reads one half out of two streams; the paths are for messages.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn read<R: Read>(images: (&Path, R), labels: (&Path, R)) -> Result<Self, DataError> {
        let (sizes, pixels) = IMAGES.read(images.0, images.1)?;
        let (_, labels_read) = LABELS.read(labels.0, labels.1)?;
        let (count, rows, columns) = (sizes[0] as usize, sizes[1] as usize, sizes[2] as usize);
        if count != labels_read.len() {
            return Err(DataError::Count {
                image_file: images.0.to_path_buf(),
                images: count,
                label_file: labels.0.to_path_buf(),
                labels: labels_read.len(),
            });
        }
        Ok(Self { pixels, labels: labels_read, rows, columns, label_file: labels.0.to_path_buf() })
    }

    /// The labels, one a sample.
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }

    /// Rows and columns of every image.
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.columns)
    }

    /// The grey pixels of a sample, row by row; `index` is below the number of labels.
    pub fn image(&self, index: usize) -> &[u8] {
        let size = self.rows * self.columns;
        &self.pixels[index * size..(index + 1) * size]
    }

    /// One more than the largest label.
    pub fn classes(&self) -> usize {
        self.labels.iter().max().map_or(0, |largest| usize::from(*largest) + 1)
    }

    /// Checks that every label is below the training set's number of classes.
    ///
    /// # Errors
    /// [`DataError::Label`] with the first that is not.
    pub fn check_labels(&self, classes: usize) -> Result<(), DataError> {
        match self.labels.iter().position(|label| usize::from(*label) >= classes) {
            None => Ok(()),
            Some(at) => Err(DataError::Label {
                file: self.label_file.clone(),
                offset: LABELS.header() + at,
                label: self.labels[at].into(),
                classes,
            }),
        }
    }
}

/// Which half of an IDX data set, by its file names.
#[derive(Clone, Copy, Debug)]
pub struct Half {
    prefix: &'static str,
    images: &'static str,
    labels: &'static str,
}

/// `train-images-idx3-ubyte` and `train-labels-idx1-ubyte`.
pub const TRAIN: Half = Half { prefix: "train", images: "training images", labels: "training labels" };
/// `t10k-images-idx3-ubyte` and `t10k-labels-idx1-ubyte`.
pub const TEST: Half = Half { prefix: "t10k", images: "test images", labels: "test labels" };

/// The file of one part: plain or gzipped, with the hyphen or the dot that are both about.
fn find(dir: &Path, what: &'static str, prefix: &str, part: &str, dims: usize) -> Result<PathBuf, DataError> {
    let tried: Vec<String> = ["-", "."]
        .iter()
        .flat_map(|dot| ["", ".gz"].map(|gz| format!("{prefix}-{part}{dot}idx{dims}-ubyte{gz}")))
        .collect();
    match tried.iter().map(|name| dir.join(name)).find(|path| path.is_file()) {
        Some(path) => Ok(path),
        None => Err(DataError::Missing { dir: dir.to_path_buf(), what, tried }),
    }
}

fn open(file: &Path) -> Result<BufReader<File>, DataError> {
    File::open(file).map(BufReader::new).map_err(|source| DataError::Io { file: file.to_path_buf(), source })
}

/// One of the two kinds of IDX file.
struct Kind {
    magic: u32,
    dimensions: usize,
    what: &'static str,
}

impl Kind {
    /// Bytes of the header.
    fn header(&self) -> usize {
        4 + 4 * self.dimensions
    }

    /// The sizes in the header, and the body.
    fn read<R: Read>(&self, file: &Path, reader: R) -> Result<(Vec<u32>, Vec<u8>), DataError> {
        let mut source = Source::new(file, reader)?;
        let header = source.take(self.header() as u64, self.header() as u64)?;
        let words: Vec<u32> = header.chunks_exact(4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]])).collect();
        let (magic, sizes) = (words[0], words[1..].to_vec());
        if magic != self.magic {
            let file = file.to_path_buf();
            return Err(DataError::Magic { file, what: self.what, expected: self.magic, actual: magic });
        }
        let body = check_sizes(file, &sizes)?;
        let total = self.header() as u64 + body;
        let body = source.take(body, total)?;
        source.end(total)?;
        Ok((sizes, body))
    }
}

/// Bytes of the body, unless the header is absurd.
fn check_sizes(file: &Path, sizes: &[u32]) -> Result<u64, DataError> {
    let bytes: u128 = sizes.iter().map(|size| u128::from(*size)).product();
    if bytes == 0 {
        let side = |at: usize| sizes.get(at).copied().unwrap_or(1);
        return Err(DataError::Nothing { file: file.to_path_buf(), items: side(0), rows: side(1), columns: side(2) });
    }
    match u64::try_from(bytes) {
        Ok(bytes) if bytes <= LIMIT => Ok(bytes),
        _ => Err(DataError::TooLarge { file: file.to_path_buf(), bytes, limit: LIMIT }),
    }
}

/// A stream that is unpacked when it starts like gzip or is named so, and that knows how far it has got.
struct Source<'a> {
    file: &'a Path,
    reader: Box<dyn Read + 'a>,
    gzip: bool,
    offset: u64,
}

impl<'a> Source<'a> {
    fn new<R: Read + 'a>(file: &'a Path, mut reader: R) -> Result<Self, DataError> {
        let mut start = Vec::new();
        (&mut reader)
            .take(GZIP_MAGIC.len() as u64)
            .read_to_end(&mut start)
            .map_err(|source| DataError::Io { file: file.to_path_buf(), source })?;
        let named = file.extension().is_some_and(|extension| extension == "gz");
        let gzip = named || start == GZIP_MAGIC;
        let whole = io::Cursor::new(start).chain(reader);
        let reader: Box<dyn Read + 'a> = if gzip { Box::new(MultiGzDecoder::new(whole)) } else { Box::new(whole) };
        Ok(Self { file, reader, gzip, offset: 0 })
    }

    /// The next `len` bytes of a file of `total`.
    fn take(&mut self, len: u64, total: u64) -> Result<Vec<u8>, DataError> {
        let mut bytes = Vec::new();
        let outcome = (&mut self.reader).take(len).read_to_end(&mut bytes);
        self.offset += bytes.len() as u64;
        match outcome {
            Err(source) if source.kind() != io::ErrorKind::UnexpectedEof => Err(self.failed(source)),
            _ if bytes.len() as u64 == len => Ok(bytes),
            _ => {
                let (file, gzip) = (self.file.to_path_buf(), self.gzip);
                Err(DataError::Truncated { file, expected: total, actual: self.offset, gzip })
            }
        }
    }

    /// Checks that nothing follows; for gzip this also verifies the checksum of all that was read.
    fn end(&mut self, expected: u64) -> Result<(), DataError> {
        let mut more = [0];
        match self.reader.read(&mut more) {
            Ok(0) => Ok(()),
            Ok(_) => Err(DataError::TooLong { file: self.file.to_path_buf(), expected, gzip: self.gzip }),
            Err(source) => Err(self.failed(source)),
        }
    }

    fn failed(&self, source: io::Error) -> DataError {
        let file = self.file.to_path_buf();
        // The decoder reports damage under these kinds; whatever else it passes on comes from the file system.
        let damage = [io::ErrorKind::InvalidInput, io::ErrorKind::InvalidData, io::ErrorKind::UnexpectedEof];
        if self.gzip && damage.contains(&source.kind()) {
            return DataError::Gzip { file, offset: self.offset, source };
        }
        DataError::Io { file, source }
    }
}

#[cfg(test)]
#[path = "idx_tests.rs"]
mod tests;
