//! Files that appear whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

/// A result file that could not be written or continued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file cannot be created or written.
    #[error("{flag} {}: cannot write: {source}", path.display())]
    Write {
        /// The flag that named the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A CSV file to be continued has other columns.
    #[error("{flag} {}: cannot continue this file: its first line is `{found}`, expected `{expected}`", path.display())]
    Columns {
        /// The flag that named the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The first line expected.
        expected: String,
        /// The first line found.
        found: String,
    },
    /// A picture could not be drawn.
    #[error("--plot {}: cannot draw: {source}", path.display())]
    Draw {
        /// The file.
        path: PathBuf,
        /// The drawing library's error.
        source: plotters::drawing::DrawingAreaErrorKind<io::Error>,
    },
}

impl FileError {
    pub(crate) fn write(flag: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Write { flag, path: path.to_path_buf(), source }
    }
}

/// Checks, before hours of work, that [`replace`] will be able to write there; leaves nothing behind.
///
/// # Errors
/// [`FileError::Write`] when the folder is missing or not writable, or the path is a folder.
pub fn check(flag: &'static str, path: &Path) -> Result<(), FileError> {
    let directory = || io::Error::new(io::ErrorKind::IsADirectory, "is a directory");
    let outcome = if path.is_dir() { Err(directory()) } else { beside(path).and_then(NamedTempFile::close) };
    outcome.map_err(|source| FileError::write(flag, path, source))
}

/// Writes a file beside its place and moves it there, so that a reader sees the old or the new one, never half.
///
/// # Errors
/// [`FileError::Write`]; the old file is then still there.
pub fn replace(flag: &'static str, path: &Path, content: &[u8]) -> Result<(), FileError> {
    let write = || {
        let mut file = beside(path)?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)
    };
    write().map(drop).map_err(|source| FileError::write(flag, path, source))
}

/// Opens a file for writing and reading, keeping what it holds.
pub(crate) fn open(flag: &'static str, path: &Path, truncate: bool) -> Result<File, FileError> {
    fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(truncate)
        .open(path)
        .map_err(|source| FileError::write(flag, path, source))
}

fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let folder = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let mut builder = Builder::new();
    builder.prefix(".writing-");
    // Temporary files are private by default; this one becomes an ordinary file, as the umask says.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plot.svg");
        check("--plot", &path).unwrap();
        assert!(names(dir.path()).is_empty());
        replace("--plot", &path, b"one").unwrap();
        replace("--plot", &path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(names(dir.path()), ["plot.svg"]);
        let plain = dir.path().join("plain");
        fs::write(&plain, b"").unwrap();
        let permissions = |path: &Path| fs::metadata(path).unwrap().permissions();
        assert_eq!(permissions(&path), permissions(&plain));
    }

    #[test]
    fn an_unwritable_place_is_named_and_stays_clean() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("missing/plot.svg");
        for error in [check("--plot", &path).unwrap_err(), replace("--plot", &path, b"x").unwrap_err()] {
            let text = error.to_string();
            assert!(text.starts_with("--plot ") && text.contains("missing/plot.svg: cannot write: "), "{text}");
        }
        let folder = check("--plot", dir.path()).unwrap_err();
        assert!(folder.to_string().contains("is a directory"), "{folder}");
        assert!(replace("--plot", dir.path(), b"x").is_err());
        assert!(names(dir.path()).is_empty());
    }
}
