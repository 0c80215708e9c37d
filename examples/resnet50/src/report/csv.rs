//! The file of `--csv`: a line a step, complete on disk before the next step starts.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use csv::{Writer, WriterBuilder};

use super::Row;
use super::file::{self, FileError};

const FLAG: &str = "--csv";
const COLUMNS: [&str; 6] = ["step", "loss", "grad_norm", "images_per_s", "step_ms", "sync_ms"];

/// An open CSV file with the columns `step,loss,grad_norm,images_per_s,step_ms,sync_ms`.
///
/// Loss and gradient norm are written with as many digits as it takes to read the very same number back.
#[derive(Debug)]
pub struct CsvLog {
    path: PathBuf,
    writer: Writer<File>,
}

impl CsvLog {
    /// Creates or empties the file and writes the line of column names.
    ///
    /// # Errors
    /// [`FileError::Write`] naming the file.
    pub fn create(path: &Path) -> Result<Self, FileError> {
        let writer = writer(file::open(FLAG, path, true)?);
        let mut log = Self { path: path.to_path_buf(), writer };
        log.write(COLUMNS.map(String::from))?;
        Ok(log)
    }

    /// Goes on with the file of an earlier run: rows before `next_step` stay, later ones and a line cut short are
    /// removed, so that the file of a resumed run holds every step once. A file that does not exist is created.
    ///
    /// # Errors
    /// [`FileError::Write`], or [`FileError::Columns`] when it is some other file, which then is left untouched.
    pub fn resume(path: &Path, next_step: u64) -> Result<Self, FileError> {
        let mut file = file::open(FLAG, path, false)?;
        let failed = |source| FileError::write(FLAG, path, source);
        let keep = kept_bytes(path, &mut file, next_step)?;
        if keep == 0 {
            return Self::create(path);
        }
        file.set_len(keep).and_then(|()| file.seek(SeekFrom::End(0))).map_err(failed)?;
        Ok(Self { path: path.to_path_buf(), writer: writer(file) })
    }

    /// Adds a row; it is with the operating system when this returns.
    ///
    /// # Errors
    /// [`FileError::Write`], such as for a full disk.
    pub fn append(&mut self, row: &Row) -> Result<(), FileError> {
        self.write([
            row.step.to_string(),
            format!("{:?}", row.loss),
            format!("{:?}", row.grad_norm),
            format!("{:.3}", row.images_per_s),
            format!("{:.3}", row.step_ms),
            format!("{:.3}", row.sync_ms),
        ])
    }

    fn write(&mut self, fields: [String; COLUMNS.len()]) -> Result<(), FileError> {
        let written = self.writer.write_record(fields).map_err(std::io::Error::from);
        written.and_then(|()| self.writer.flush()).map_err(|source| FileError::write(FLAG, &self.path, source))
    }
}

/// Checks, before training, that the file can be written, and continued if the run is resumed; leaves it as it is.
///
/// # Errors
/// [`FileError::Write`], or [`FileError::Columns`] for some other file.
pub fn check(path: &Path, resume: bool) -> Result<(), FileError> {
    file::check(FLAG, path)?;
    if path.exists() {
        let mut file = file::open(FLAG, path, false)?;
        if resume {
            kept_bytes(path, &mut file, 0)?;
        }
    }
    Ok(())
}

/// The rows of a file.
///
/// # Errors
/// [`FileError::Write`] when it cannot be read or a row is no row.
pub fn read(path: &Path) -> Result<Vec<Row>, FileError> {
    let failed = |source| FileError::write(FLAG, path, source);
    let mut reader = csv::Reader::from_path(path).map_err(|error| failed(error.into()))?;
    reader.records().map(|record| row_of(&record.map_err(|error| failed(error.into()))?).map_err(failed)).collect()
}

fn row_of(record: &csv::StringRecord) -> std::io::Result<Row> {
    let wrong = || std::io::Error::new(std::io::ErrorKind::InvalidData, format!("not a row: {record:?}"));
    let number = |column: usize| record.get(column).and_then(|text| text.parse::<f64>().ok()).ok_or_else(wrong);
    let step = record.get(0).and_then(|text| text.parse().ok()).ok_or_else(wrong)?;
    let (loss, grad_norm, images_per_s) = (number(1)?, number(2)?, number(3)?);
    Ok(Row { step, loss, grad_norm, images_per_s, step_ms: number(4)?, sync_ms: number(5)? })
}

fn writer(file: File) -> Writer<File> {
    WriterBuilder::new().has_headers(false).from_writer(file)
}

/// Length of the part made of whole lines before `next_step`; 0 for an empty file or one cut within its first line.
fn kept_bytes(path: &Path, file: &mut File, next_step: u64) -> Result<u64, FileError> {
    let failed = |source| FileError::write(FLAG, path, source);
    let mut reader = BufReader::new(file);
    let expected = COLUMNS.join(",");
    let mut line = Vec::new();
    let mut kept = reader.read_until(b'\n', &mut line).map_err(failed)? as u64;
    let found = String::from_utf8_lossy(&line).into_owned();
    if !found.ends_with('\n') && expected.starts_with(&found) {
        return Ok(0);
    }
    if found.trim_end() != expected {
        let found = found.trim_end().chars().take(100).collect();
        return Err(FileError::Columns { flag: FLAG, path: path.to_path_buf(), expected, found });
    }
    loop {
        line.clear();
        let len = reader.read_until(b'\n', &mut line).map_err(failed)? as u64;
        if !line.ends_with(b"\n") || step_of(&line).is_none_or(|step| step >= next_step) {
            return Ok(kept);
        }
        kept += len;
    }
}

fn step_of(line: &[u8]) -> Option<u64> {
    std::str::from_utf8(line.split(|byte| *byte == b',').next()?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn row(step: u64) -> Row {
        let at = step as f64;
        Row {
            step,
            loss: 1.0 / (at + 3.0),
            grad_norm: 1e-9 * at,
            images_per_s: 100.0 + at,
            step_ms: 7.25,
            sync_ms: 0.5,
        }
    }

    const HEADER: &str = "step,loss,grad_norm,images_per_s,step_ms,sync_ms\n";

    #[test]
    fn every_row_is_in_the_file_at_once_and_keeps_its_digits() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.csv");
        let mut log = CsvLog::create(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), HEADER);
        for step in 0..50 {
            log.append(&row(step)).unwrap();
            let text = fs::read_to_string(&path).unwrap();
            let last: Vec<f64> = text.lines().last().unwrap().split(',').map(|field| field.parse().unwrap()).collect();
            let Row { loss, grad_norm, images_per_s, step_ms, sync_ms, .. } = row(step);
            assert_eq!(last, [step as f64, loss, grad_norm, images_per_s, step_ms, sync_ms]);
        }
        assert!(fs::read_to_string(&path).unwrap().contains("\n0,0.3333333333333333,0.0,100.000,7.250,0.500\n"));
    }

    #[test]
    fn rows_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.csv");
        let mut log = CsvLog::create(&path).unwrap();
        (1..9).for_each(|step| log.append(&row(step)).unwrap());
        assert_eq!(read(&path).unwrap(), (1..9).map(row).collect::<Vec<_>>());
        fs::write(&path, format!("{HEADER}1,x,1,1,1,1\n")).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("run.csv"));
    }

    #[test]
    fn checking_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.csv");
        check(&path, true).unwrap();
        assert!(!path.exists());
        fs::write(&path, "dear diary").unwrap();
        check(&path, false).unwrap();
        assert!(matches!(check(&path, true), Err(FileError::Columns { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "dear diary");
        assert!(check(&dir.path().join("missing/run.csv"), false).is_err());
    }

    #[test]
    fn numbers_that_are_none_are_still_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.csv");
        CsvLog::create(&path).unwrap().append(&Row { loss: f64::NAN, grad_norm: f64::INFINITY, ..row(1) }).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().lines().last().unwrap(), "1,NaN,inf,101.000,7.250,0.500");
    }

    #[test]
    fn resuming_keeps_each_step_once() {
        let dir = tempfile::tempdir().unwrap();
        let (whole, cut) = (dir.path().join("whole.csv"), dir.path().join("cut.csv"));
        let mut log = CsvLog::create(&whole).unwrap();
        (0..20).for_each(|step| log.append(&row(step)).unwrap());
        let text = fs::read(&whole).unwrap();
        for (len, next) in
            [(text.len(), 7), (text.len() - 5, 15), (text.len() - 5, 0), (HEADER.len(), 0), (10, 0), (0, 0)]
        {
            fs::write(&cut, &text[..len]).unwrap();
            let mut log = CsvLog::resume(&cut, next).unwrap();
            (next..20).for_each(|step| log.append(&row(step)).unwrap());
            assert_eq!(fs::read(&cut).unwrap(), text, "cut at {len}, resumed at {next}");
        }
        fs::remove_file(&cut).unwrap();
        drop(CsvLog::resume(&cut, 3).unwrap());
        assert_eq!(fs::read_to_string(&cut).unwrap(), HEADER);
    }

    #[test]
    fn another_file_is_not_continued_and_an_unwritable_one_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes.txt");
        for content in ["dear diary,\nno", "ste\n", "step,lots"] {
            fs::write(&path, content).unwrap();
            let error = CsvLog::resume(&path, 1).unwrap_err();
            assert!(matches!(error, FileError::Columns { .. }), "{error}");
            assert!(error.to_string().contains("notes.txt"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        let missing = dir.path().join("missing/run.csv");
        for error in [CsvLog::create(&missing).unwrap_err(), CsvLog::resume(&missing, 1).unwrap_err()] {
            assert!(error.to_string().contains("--csv ") && error.to_string().contains("missing/run.csv"), "{error}");
        }
        assert!(CsvLog::create(dir.path()).is_err());
    }
}
