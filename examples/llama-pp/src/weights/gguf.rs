//! Weights of a GGUF file, dequantized as they are read.

use std::borrow::Cow;
use std::fs::File;
use std::io::BufReader;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use candle_core::Device;
use candle_core::quantized::gguf_file::{Content, TensorInfo};
use candle_core::quantized::{QStorage, QTensor};

use super::{EMBEDDING, HEAD, NORM, Source};
use crate::config::{Config, RopeScaling};
use crate::failure::{Failure, Result};
use crate::matrix::Dtype;

/// A GGUF file, its header read.
pub(crate) struct Gguf {
    path: PathBuf,
    file: File,
    content: Content,
    /// Rows of a head: in queries and keys they are stored in another order.
    head_dim: usize,
}

impl Gguf {
    /// Opens a file, reads its header and what it says of the model's shape.
    ///
    /// # Errors
    /// [`Failure::Model`] when it is no GGUF file, cut short, or not of the LLaMA family.
    pub(crate) fn open(path: &Path) -> Result<(Gguf, Config)> {
        Gguf::parse(path).map_err(|problem| Failure::model(path, problem))
    }

    fn parse(path: &Path) -> Result<(Gguf, Config), String> {
        let file = File::open(path).map_err(|error| error.to_string())?;
        let len = file.metadata().map_err(|error| error.to_string())?.len();
        let mut magic = [0u8; 4];
        file.read_exact_at(&mut magic, 0).map_err(|_| format!("truncated: {len} bytes are no GGUF file"))?;
        if &magic != b"GGUF" {
            return Err(format!("not a GGUF file: it begins with {:?}", String::from_utf8_lossy(&magic)));
        }
        let content = Content::read(&mut BufReader::new(&file))
            .map_err(|error| format!("truncated or damaged GGUF header: {}", first_line(&error)))?;
        for (name, info) in &content.tensor_infos {
            let end = content.tensor_data_offset.saturating_add(info.offset).saturating_add(bytes(info));
            if end > len {
                return Err(format!("truncated: tensor {name} ends at byte {end}, the file at {len}"));
            }
        }
        let mut config = Config::from_gguf(&content)?;
        let gguf = Gguf { path: path.to_owned(), file, content, head_dim: config.head_dim };
        if gguf.content.tensor_infos.contains_key("rope_freqs.weight") {
            let mut factors = Vec::new();
            gguf.rows("rope_freqs.weight", 0..config.head_dim / 2, &mut factors)?;
            config.rope_scaling = RopeScaling::Factors(factors);
        }
        Ok((gguf, config))
    }

    /// Metadata of the file.
    pub(crate) fn content(&self) -> &Content {
        &self.content
    }

    /// Rows of the tensor that the file calls `name`.
    fn rows(&self, name: &str, rows: Range<usize>, out: &mut Vec<f32>) -> Result<(), String> {
        let info = self.content.tensor_infos.get(name).ok_or_else(|| format!("tensor {name} is missing"))?;
        let width: usize = info.shape.dims().iter().skip(1).product();
        let (block, size) = (info.ggml_dtype.block_size(), info.ggml_dtype.type_size());
        let (first, count) = (rows.start * width, rows.len() * width);
        if !first.is_multiple_of(block) || !count.is_multiple_of(block) || rows.end > info.shape.dims()[0] {
            return Err(format!("tensor {name}: rows of {width} elements do not fill blocks of {block}"));
        }
        let mut raw = vec![0u8; count / block * size];
        let offset = self.content.tensor_data_offset + info.offset + (first / block * size) as u64;
        self.file.read_exact_at(&mut raw, offset).map_err(|error| format!("tensor {name}: {error}"))?;
        let dequantize = || {
            let storage = QStorage::from_data(Cow::Owned(raw), &Device::Cpu, info.ggml_dtype)?;
            QTensor::new(storage, count)?.dequantize(&Device::Cpu)?.to_vec1::<f32>()
        };
        out.extend(dequantize().map_err(|error| format!("tensor {name}: {}", first_line(&error)))?);
        Ok(())
    }

    /// Rows of queries or keys in the order of Hugging Face. A GGUF file has the two halves of a head interleaved.
    fn unpermuted(&self, name: &str, rows: Range<usize>, out: &mut Vec<f32>) -> Result<(), String> {
        let (dim, half) = (self.head_dim, self.head_dim / 2);
        let heads = rows.start / dim..rows.end.div_ceil(dim);
        let mut stored = Vec::new();
        self.rows(name, heads.start * dim..heads.end * dim, &mut stored)?;
        let width = stored.len() / (heads.len() * dim);
        for row in rows {
            let (head, place) = (row / dim, row % dim);
            let at = (head - heads.start) * dim + place % half * 2 + place / half;
            out.extend_from_slice(&stored[at * width..][..width]);
        }
        Ok(())
    }
}

fn bytes(info: &TensorInfo) -> u64 {
    (info.shape.elem_count() / info.ggml_dtype.block_size() * info.ggml_dtype.type_size()) as u64
}

/// An error of candle without its backtrace.
fn first_line(error: &candle_core::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// What a GGUF file calls a tensor.
fn stored_name(name: &str) -> Option<String> {
    match name {
        EMBEDDING => return Some("token_embd.weight".into()),
        NORM => return Some("output_norm.weight".into()),
        HEAD => return Some("output.weight".into()),
        _ => (),
    }
    let (layer, tensor) = name.strip_prefix("model.layers.")?.strip_suffix(".weight")?.split_once('.')?;
    let stored = match tensor {
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        "input_layernorm" => "attn_norm",
        "post_attention_layernorm" => "ffn_norm",
        _ => return None,
    };
    Some(format!("blk.{layer}.{stored}.weight"))
}

impl Source for Gguf {
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        Some(self.content.tensor_infos.get(&stored_name(name)?)?.shape.dims().to_vec())
    }

    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn read(&self, name: &str, rows: Range<usize>, out: &mut Vec<f32>) -> Result<()> {
        let stored = stored_name(name).unwrap_or_default();
        let read = match name.rsplit('.').nth(1) {
            Some("q_proj" | "k_proj") => self.unpermuted(&stored, rows, out),
            _ => self.rows(&stored, rows, out),
        };
        read.map_err(|problem| Failure::model(&self.path, problem))
    }

    fn path(&self) -> PathBuf {
        self.path.clone()
    }
}
