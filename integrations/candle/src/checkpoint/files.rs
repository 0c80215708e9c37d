//! Folders that are written whole or not at all.

use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// File names and their bytes.
pub(super) type Contents = BTreeMap<String, Vec<u8>>;

const CHECKSUMS: &str = "checksums";
const PREFIX: &str = "step-";
/// Folders that are not finished, or not removed yet.
const HIDDEN: &str = ".hccl-";

/// The folder of a step.
pub(super) fn folder(step: u64) -> String {
    format!("{PREFIX}{step:012}")
}

/// Makes the folder and writes, syncs and removes a file in it.
pub(super) fn probe(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).map_err(Error::io(dir, "make the checkpoint folder"))?;
    let probe = hidden(dir, "probe");
    let written = write_file(&probe, b"probe");
    let removed = fs::remove_file(&probe);
    written.map_err(|_| Error::Io { path: dir.into(), action: "write checkpoints", source: last(&probe) })?;
    removed.map_err(Error::io(&probe, "remove the probe"))
}

/// The system's reason why a file cannot be written, asked for once more.
fn last(path: &Path) -> std::io::Error {
    let again = File::create(path).and_then(|mut file| file.write_all(b"probe"));
    let reason = again.err().unwrap_or_else(|| std::io::Error::other("a file could not be written"));
    fs::remove_file(path).ok();
    reason
}

/// A name in `dir` that nobody else uses.
fn hidden(dir: &Path, what: &str) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    dir.join(format!("{HIDDEN}{what}-{}-{count}", std::process::id()))
}

/// Writes a checkpoint beside and moves it into place.
pub(super) fn write(dir: &Path, step: u64, contents: &Contents) -> Result<()> {
    sweep(dir);
    let beside = hidden(dir, "new");
    fs::create_dir(&beside).map_err(Error::io(&beside, "make the folder"))?;
    let written = fill(&beside, contents).and_then(|()| put_in_place(dir, &beside, &dir.join(folder(step))));
    if written.is_err() {
        // The first error is the one to tell; what is left over goes at the next save.
        fs::remove_dir_all(&beside).ok();
    }
    written
}

fn fill(beside: &Path, contents: &Contents) -> Result<()> {
    let mut sums = String::new();
    for (name, bytes) in contents {
        write_file(&beside.join(name), bytes)?;
        // Writing to a string does not fail.
        let _ = writeln!(sums, "{:08x} {} {name}", crc32fast::hash(bytes), bytes.len());
    }
    let _ = writeln!(sums, "end {}", contents.len());
    write_file(&beside.join(CHECKSUMS), sums.as_bytes())?;
    sync_folder(beside)
}

fn put_in_place(dir: &Path, beside: &Path, place: &Path) -> Result<()> {
    if place.exists() && exchange(beside, place) {
        sync_folder(dir)?;
        return fs::remove_dir_all(beside).map_err(Error::io(beside, "remove the old checkpoint of this step"));
    }
    let old = hidden(dir, "old");
    if place.exists() {
        // Killed between here and the next line, this step has no folder: there was no way to exchange the two.
        fs::rename(place, &old).map_err(Error::io(place, "move the old checkpoint of this step away"))?;
    }
    fs::rename(beside, place).map_err(Error::io(place, "move the checkpoint into place"))?;
    sync_folder(dir)?;
    if old.exists() {
        fs::remove_dir_all(&old).map_err(Error::io(&old, "remove the old checkpoint of this step"))?;
    }
    Ok(())
}

/// Swaps two folders, so that there is no instant without one at either name. False when this system or file system
/// cannot; nothing has changed then.
#[cfg(target_os = "linux")]
fn exchange(a: &Path, b: &Path) -> bool {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn exchange(_: &Path, _: &Path) -> bool {
    false
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path).map_err(Error::io(path, "make the file"))?;
    file.write_all(bytes).map_err(Error::io(path, "write"))?;
    file.sync_all().map_err(Error::io(path, "sync to disk"))
}

fn sync_folder(dir: &Path) -> Result<()> {
    // Elsewhere folders cannot be opened as files.
    if cfg!(unix) {
        let folder = File::open(dir).map_err(Error::io(dir, "open the folder"))?;
        folder.sync_all().map_err(Error::io(dir, "sync the folder to disk"))?;
    }
    Ok(())
}

/// Removes what a killed run left unfinished.
pub(super) fn sweep(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(&format!("{HIDDEN}new-")) || name.starts_with(&format!("{HIDDEN}old-")) {
            // Left over or not, the checkpoints themselves are untouched.
            fs::remove_dir_all(entry.path()).ok();
        }
    }
}

/// Steps that have a folder, newest first.
pub(super) fn steps(dir: &Path) -> Vec<u64> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let step = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix(PREFIX)?.parse::<u64>().ok();
    let mut steps: Vec<u64> = entries.flatten().filter_map(step).collect();
    steps.sort_unstable_by(|a, b| b.cmp(a));
    steps
}

/// Removes all but the last `keep` checkpoints up to `step`. Later ones are of another run and not ours to remove.
pub(super) fn prune(dir: &Path, step: u64, keep: usize) -> Result<()> {
    for old in steps(dir).into_iter().filter(|old| *old <= step).skip(keep) {
        let path = dir.join(folder(old));
        fs::remove_dir_all(&path).map_err(Error::io(&path, "remove the old checkpoint"))?;
    }
    Ok(())
}

/// The files of a checkpoint, when each is as it was written.
pub(super) fn read(path: &Path) -> Result<Contents> {
    let torn = |problem: String| Error::TornCheckpoint { path: path.into(), problem };
    let sums = fs::read_to_string(path.join(CHECKSUMS)).map_err(|error| torn(format!("{CHECKSUMS}: {error}")))?;
    let mut lines: Vec<&str> = sums.lines().collect();
    let end = format!("end {}", lines.len().saturating_sub(1));
    if lines.pop() != Some(end.as_str()) || !sums.ends_with('\n') {
        return Err(torn(format!("{CHECKSUMS} is cut short")));
    }
    let mut contents = Contents::new();
    for line in lines {
        let mut words = line.splitn(3, ' ');
        let crc = words.next().and_then(|word| u32::from_str_radix(word, 16).ok());
        let len = words.next().and_then(|word| word.parse::<usize>().ok());
        let (Some(crc), Some(len), Some(name)) = (crc, len, words.next()) else {
            return Err(torn(format!("{CHECKSUMS} has the line `{line}`")));
        };
        let bytes = fs::read(path.join(name)).map_err(|error| torn(format!("{name}: {error}")))?;
        if bytes.len() != len {
            return Err(torn(format!("{name} has {} bytes, was written with {len}", bytes.len())));
        }
        if crc32fast::hash(&bytes) != crc {
            return Err(torn(format!("{name} has changed (CRC-32)")));
        }
        contents.insert(name.into(), bytes);
    }
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn contents(value: u8) -> Contents {
        Contents::from([("weights".to_owned(), vec![value; 10])])
    }

    #[test]
    fn a_step_that_is_written_again_is_never_without_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::create_dir(&a).and_then(|()| fs::create_dir(&b)).unwrap();
        let may_miss = !exchange(&a, &b);
        fs::remove_dir(&a).and_then(|()| fs::remove_dir(&b)).unwrap();

        write(dir.path(), 7, &contents(0)).unwrap();
        let (place, done) = (dir.path().join(folder(7)), AtomicBool::new(false));
        let misses = std::thread::scope(|scope| {
            let looks = scope.spawn(|| {
                let mut misses = 0;
                while !done.load(Ordering::Relaxed) {
                    misses += usize::from(!place.is_dir());
                }
                misses
            });
            for value in 1..=40 {
                write(dir.path(), 7, &contents(value)).unwrap();
            }
            done.store(true, Ordering::Relaxed);
            looks.join().unwrap()
        });
        assert!(misses == 0 || may_miss, "{misses} looks found no folder");
        assert_eq!(read(&place).unwrap(), contents(40));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "something is left over");
    }

    #[test]
    fn a_failed_exchange_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (a, missing) = (dir.path().join("a"), dir.path().join("b"));
        fs::create_dir(&a).unwrap();
        assert!(!exchange(&a, &missing));
        assert!(a.is_dir() && !missing.exists());
    }
}
