//! Weights in the form of Hugging Face: model.safetensors, or several files with an index.
//!
//! Files are read, not mapped, so that what a rank does not need never counts as its memory.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::Dtype as Stored;
use safetensors::tensor::Metadata;
use serde::Deserialize;

use super::{EMBEDDING, Source};
use crate::failure::{Failure, Result};
use crate::matrix::Dtype;

/// No header of a model is as long.
const MAX_HEADER: u64 = 100_000_000;

/// Files of safetensors, their headers read.
pub(crate) struct Safetensors {
    dir: PathBuf,
    files: Vec<(PathBuf, File)>,
    tensors: HashMap<String, Place>,
}

struct Place {
    file: usize,
    shape: Vec<usize>,
    stored: Stored,
    /// Of its first byte in the file.
    offset: u64,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Safetensors {
    /// Opens the files of a folder and reads their headers.
    ///
    /// # Errors
    /// [`Failure::Model`] naming the file that is missing, cut short or no safetensors file.
    pub(crate) fn open(dir: &Path) -> Result<Safetensors> {
        let mut all = Safetensors { dir: dir.to_owned(), files: Vec::new(), tensors: HashMap::new() };
        for name in file_names(dir)? {
            let path = dir.join(&name);
            all.add(path.clone()).map_err(|problem| Failure::model(path, problem))?;
        }
        Ok(all)
    }

    fn add(&mut self, path: PathBuf) -> Result<(), String> {
        let file = File::open(&path).map_err(|error| error.to_string())?;
        let len = file.metadata().map_err(|error| error.to_string())?.len();
        let mut count = [0u8; 8];
        file.read_exact_at(&mut count, 0).map_err(|_| format!("truncated: {len} bytes are no safetensors file"))?;
        let header_len = u64::from_le_bytes(count);
        if header_len > MAX_HEADER {
            return Err(format!("not a safetensors file: its header would have {header_len} bytes"));
        }
        if header_len + 8 > len {
            return Err(format!("truncated: the header has {header_len} bytes, the file {len}"));
        }
        let mut header = vec![0u8; header_len as usize];
        file.read_exact_at(&mut header, 8).map_err(|error| error.to_string())?;
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|error| format!("not a safetensors file: {error}"))?;
        let number = self.files.len();
        for (name, info) in metadata.tensors() {
            let offset = 8 + header_len + info.data_offsets.0 as u64;
            let end = 8 + header_len + info.data_offsets.1 as u64;
            if end > len {
                return Err(format!("truncated: tensor {name} ends at byte {end}, the file at {len}"));
            }
            let place = Place { file: number, shape: info.shape.clone(), stored: info.dtype, offset };
            self.tensors.insert(name, place);
        }
        self.files.push((path, file));
        Ok(())
    }
}

/// The names of the files with weights in a folder.
fn file_names(dir: &Path) -> Result<Vec<String>> {
    let index = dir.join("model.safetensors.index.json");
    if !index.exists() {
        return Ok(vec!["model.safetensors".into()]);
    }
    let text = std::fs::read_to_string(&index).map_err(|error| Failure::model(&index, error))?;
    let read: Index = serde_json::from_str(&text).map_err(|error| Failure::model(&index, error))?;
    let mut names: Vec<String> = read.weight_map.into_values().collect();
    names.sort();
    names.dedup();
    if names.iter().any(|name| name.contains('/')) {
        return Err(Failure::model(index, "names a file outside its folder"));
    }
    Ok(names)
}

impl Source for Safetensors {
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.tensors.get(name).map(|place| place.shape.clone())
    }

    fn dtype(&self) -> Dtype {
        match self.tensors.get(EMBEDDING).map(|place| place.stored) {
            Some(Stored::BF16) => Dtype::Bf16,
            Some(Stored::F16) => Dtype::F16,
            _ => Dtype::F32,
        }
    }

    fn read(&self, name: &str, rows: Range<usize>, out: &mut Vec<f32>) -> Result<()> {
        let Some(place) = self.tensors.get(name) else {
            return Err(Failure::model(&self.dir, format!("tensor {name} is missing")));
        };
        let (path, file) = &self.files[place.file];
        let fail = |problem: String| Failure::model(path, format!("tensor {name}: {problem}"));
        let width: usize = place.shape.iter().skip(1).product();
        let size = match place.stored {
            Stored::F32 => 4,
            Stored::F16 | Stored::BF16 => 2,
            other => return Err(fail(format!("its type is {other:?}; f32, bf16 and f16 can be read"))),
        };
        let mut bytes = vec![0u8; rows.len() * width * size];
        let offset = place.offset + (rows.start * width * size) as u64;
        file.read_exact_at(&mut bytes, offset).map_err(|error| fail(error.to_string()))?;
        match place.stored {
            Stored::F32 => out.extend(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b))),
            Stored::F16 => out.extend(bytes.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32())),
            _ => out.extend(bytes.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32())),
        }
        Ok(())
    }

    fn path(&self) -> PathBuf {
        self.dir.clone()
    }
}
