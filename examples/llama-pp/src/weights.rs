//! Where weights come from. A rank reads the rows it needs, as f32, a chunk at a time; nothing else of a file is read.

mod gguf;
mod hf;
mod random;

use std::ops::Range;
use std::path::PathBuf;

use crate::config::Config;
use crate::failure::{Failure, Result};
use crate::matrix::Dtype;

pub(crate) use gguf::Gguf;
pub(crate) use hf::Safetensors;
pub(crate) use random::{Random, splitmix};

/// Tensors by the names of Hugging Face, such as `model.layers.0.mlp.up_proj.weight`.
pub(crate) trait Source {
    /// The shape of a tensor, if there is one of this name.
    fn shape(&self, name: &str) -> Option<Vec<usize>>;

    /// The type in which weights are held unless told otherwise.
    fn dtype(&self) -> Dtype;

    /// Adds rows of a tensor to the end of `out`; a vector has rows of one element.
    ///
    /// # Errors
    /// [`Failure::Model`] naming file and tensor.
    fn read(&self, name: &str, rows: Range<usize>, out: &mut Vec<f32>) -> Result<()>;

    /// What to name when something is wrong.
    fn path(&self) -> PathBuf;
}

/// Name of a tensor of a layer.
pub(crate) fn layer(layer: usize, tensor: &str) -> String {
    format!("model.layers.{layer}.{tensor}.weight")
}

/// Name of the embedding.
pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";
/// Name of the norm before the head.
pub(crate) const NORM: &str = "model.norm.weight";
/// Name of the head.
pub(crate) const HEAD: &str = "lm_head.weight";

/// Every tensor of a model and its shape.
pub(crate) fn tensors(config: &Config) -> Vec<(String, Vec<usize>)> {
    let Config { hidden, intermediate, vocab, .. } = *config;
    let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    let mut all = vec![(EMBEDDING.to_owned(), vec![vocab, hidden]), (NORM.to_owned(), vec![hidden])];
    if !config.tied {
        all.push((HEAD.to_owned(), vec![vocab, hidden]));
    }
    let of_layer = [
        ("self_attn.q_proj", vec![q, hidden]),
        ("self_attn.k_proj", vec![kv, hidden]),
        ("self_attn.v_proj", vec![kv, hidden]),
        ("self_attn.o_proj", vec![hidden, q]),
        ("mlp.gate_proj", vec![intermediate, hidden]),
        ("mlp.up_proj", vec![intermediate, hidden]),
        ("mlp.down_proj", vec![hidden, intermediate]),
        ("input_layernorm", vec![hidden]),
        ("post_attention_layernorm", vec![hidden]),
    ];
    for number in 0..config.layers {
        all.extend(of_layer.iter().map(|(name, shape)| (layer(number, name), shape.clone())));
    }
    all
}

/// Checks from the headers that all tensors are there and have their shapes.
///
/// # Errors
/// [`Failure::Model`] naming the tensor, and both shapes.
pub(crate) fn check(source: &dyn Source, config: &Config) -> Result<()> {
    for (name, expected) in tensors(config) {
        match source.shape(&name) {
            None => return Err(Failure::model(source.path(), format!("tensor {name} is missing"))),
            Some(shape) if shape != expected => {
                let problem = format!("tensor {name} has shape {shape:?}, the model's shape asks for {expected:?}");
                return Err(Failure::model(source.path(), problem));
            }
            Some(_) => (),
        }
    }
    Ok(())
}

/// All of a vector.
///
/// # Errors
/// Those of [`Source::read`].
pub(crate) fn vector(source: &dyn Source, name: &str) -> Result<Vec<f32>> {
    let len = source.shape(name).and_then(|shape| shape.first().copied()).unwrap_or(0);
    let mut out = Vec::with_capacity(len);
    source.read(name, 0..len, &mut out)?;
    Ok(out)
}
