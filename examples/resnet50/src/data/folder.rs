//! A folder of images: one folder a class, PNG and JPEG files directly in it.
//!
//! ```text
//! DIR/cat/1.png  DIR/dog/a.jpg  ...          a tenth of each class is kept back for the test
//! DIR/train/cat/1.png  DIR/test/cat/9.png    or the folder says itself which are which (`val` is read as `test`)
//! ```
//!
//! Classes are numbered in the order of their names. Files of other kinds, hidden ones and deeper folders are passed
//! over. Which images are kept back depends on the names alone: each class is sorted by a hash of `class/file`, and
//! its first tenth, rounded and at least one where there are two, is the test set.

use std::fs;
use std::path::{Path, PathBuf};

use image::{ImageReader, Limits};

use super::{DataError, pixels};

/// Sets of at most this many bytes, decoded, are kept in memory; larger ones are decoded when asked for.
const CACHE: usize = 256 << 20;
/// Largest side of a stored image; with the decoder's own limit of 512 MiB this stops decompression bombs.
const MAX_SIDE: u32 = 1 << 15;

/// Labelled image files, brought to one size.
#[derive(Debug)]
pub struct Folder {
    files: Vec<(PathBuf, u32)>,
    size: usize,
    cache: Option<Vec<u8>>,
}

impl Folder {
    /// Training images, test images and the names of the classes.
    ///
    /// Sets that fit into 256 MiB are decoded here, so that a bad file is met before training starts.
    ///
    /// # Errors
    /// [`DataError`] when the folder cannot be read, has fewer than two classes, a class is empty, training and test
    /// folders differ in their classes, or an image cannot be decoded.
    pub fn open(dir: &Path, size: usize) -> Result<(Self, Self, Vec<String>), DataError> {
        let train_dir = dir.join("train");
        let test_dir = ["test", "val"].map(|name| dir.join(name)).into_iter().find(|path| path.is_dir());
        let (train, test, names) = match test_dir {
            Some(test_dir) if train_dir.is_dir() => pair(&train_dir, &test_dir)?,
            _ => split(dir)?,
        };
        Ok((Self::new(train, size, CACHE)?, Self::new(test, size, CACHE)?, names))
    }

    /// Number of images, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "an empty set is refused when opening")]
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Writes the pixels of an image, channel after channel, and gives its class; `index` is below [`len`](Self::len).
    ///
    /// # Errors
    /// [`DataError::Io`] or [`DataError::Decode`], naming the file.
    pub fn read(&self, index: usize, out: &mut [u8]) -> Result<u32, DataError> {
        let (file, label) = &self.files[index];
        match &self.cache {
            Some(cache) => out.copy_from_slice(&cache[index * out.len()..(index + 1) * out.len()]),
            None => out.copy_from_slice(&decode(file, self.size)?),
        }
        Ok(*label)
    }

    fn new(files: Vec<(PathBuf, u32)>, size: usize, cache: usize) -> Result<Self, DataError> {
        let mut folder = Self { files, size, cache: None };
        let fits = (3 * size * size).checked_mul(folder.files.len()).is_some_and(|bytes| bytes <= cache);
        if fits {
            let decoded: Result<Vec<_>, _> = folder.files.iter().map(|(file, _)| decode(file, size)).collect();
            folder.cache = Some(decoded?.concat());
        }
        Ok(folder)
    }
}

/// A class: its name, and its image files in order of their names.
struct Class {
    name: String,
    files: Vec<PathBuf>,
}

type Files = Vec<(PathBuf, u32)>;

fn pair(train_dir: &Path, test_dir: &Path) -> Result<(Files, Files, Vec<String>), DataError> {
    let (train, test) = (scan(train_dir)?, scan(test_dir)?);
    let names = |classes: &[Class]| classes.iter().map(|class| class.name.clone()).collect::<Vec<_>>();
    let (train_names, test_names) = (names(&train), names(&test));
    let only =
        |one: &[String], other: &[String]| one.iter().filter(|name| !other.contains(name)).cloned().collect::<Vec<_>>();
    let differing = [only(&train_names, &test_names), only(&test_names, &train_names)].concat();
    if !differing.is_empty() {
        return Err(DataError::Classes {
            train: train_dir.to_path_buf(),
            train_classes: train.len(),
            test: test_dir.to_path_buf(),
            test_classes: test.len(),
            differing,
        });
    }
    let flat = |classes: Vec<Class>| label(classes.into_iter().map(|class| class.files));
    Ok((flat(train), flat(test), train_names))
}

fn split(dir: &Path) -> Result<(Files, Files, Vec<String>), DataError> {
    let classes = scan(dir)?;
    let names = classes.iter().map(|class| class.name.clone()).collect();
    let (test, train): (Vec<_>, Vec<_>) = classes.into_iter().map(keep_back).unzip();
    let (train, test) = (label(train.into_iter()), label(test.into_iter()));
    if test.is_empty() {
        return Err(DataError::NoTest { dir: dir.to_path_buf() });
    }
    Ok((train, test, names))
}

/// A class's test images, then its training images; each in order of their names.
fn keep_back(class: Class) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let mut hashed: Vec<(u64, PathBuf)> =
        class.files.into_iter().map(|file| (hash(&class.name, &file), file)).collect();
    hashed.sort();
    let count = match hashed.len() {
        0 | 1 => 0,
        len => ((len + 5) / 10).max(1),
    };
    let train = hashed.split_off(count);
    let names = |part: Vec<(u64, PathBuf)>| {
        let mut files: Vec<PathBuf> = part.into_iter().map(|(_, file)| file).collect();
        files.sort();
        files
    };
    (names(hashed), names(train))
}

/// FNV-1a of `class/file`: the same on every machine and in every version.
fn hash(class: &str, file: &Path) -> u64 {
    let name = file.file_name().unwrap_or_default().as_encoded_bytes();
    let bytes = class.bytes().chain([b'/']).chain(name.iter().copied());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn label(classes: impl Iterator<Item = Vec<PathBuf>>) -> Files {
    (0u32..).zip(classes).flat_map(|(label, files)| files.into_iter().map(move |file| (file, label))).collect()
}

/// The classes of a folder, in order of their names.
fn scan(dir: &Path) -> Result<Vec<Class>, DataError> {
    let folders: Vec<PathBuf> = list(dir)?.into_iter().filter(|path| path.is_dir()).collect();
    if folders.len() < 2 {
        return Err(DataError::NoClasses { dir: dir.to_path_buf(), found: folders.len() });
    }
    folders.into_iter().map(scan_class).collect()
}

fn scan_class(dir: PathBuf) -> Result<Class, DataError> {
    let files: Vec<PathBuf> = list(&dir)?.into_iter().filter(|path| is_image(path)).collect();
    if files.is_empty() {
        return Err(DataError::EmptyClass { dir });
    }
    let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Class { name, files })
}

/// What is in a folder, sorted, without hidden entries.
fn list(dir: &Path) -> Result<Vec<PathBuf>, DataError> {
    let failed = |source| DataError::Io { file: dir.to_path_buf(), source };
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

fn is_image(path: &Path) -> bool {
    let known = |extension: &std::ffi::OsStr| ["png", "jpg", "jpeg"].iter().any(|k| extension.eq_ignore_ascii_case(k));
    path.extension().is_some_and(known) && path.is_file()
}

fn decode(file: &Path, size: usize) -> Result<Vec<u8>, DataError> {
    let io = |source| DataError::Io { file: file.to_path_buf(), source };
    let mut reader = ImageReader::open(file).and_then(ImageReader::with_guessed_format).map_err(io)?;
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    reader.limits(limits);
    let image = reader.decode().map_err(|source| DataError::Decode { file: file.to_path_buf(), source })?;
    Ok(pixels::fit_colour(image, size))
}

#[cfg(test)]
#[path = "folder_tests.rs"]
mod tests;
