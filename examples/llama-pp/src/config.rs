//! The shape of a model: from config.json, from the metadata of a GGUF file, or by name.

use std::path::Path;

use candle_core::quantized::gguf_file::{Content, Value};
use serde::Deserialize;

use crate::cli::RandomConfig;
use crate::failure::{Failure, Result};

/// What all ranks know of a model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Config {
    /// Width of the residual stream.
    pub(crate) hidden: usize,
    /// Width of the feed-forward layers.
    pub(crate) intermediate: usize,
    /// Decoder layers.
    pub(crate) layers: usize,
    /// Query heads.
    pub(crate) heads: usize,
    /// Key and value heads; each serves `heads / kv_heads` query heads.
    pub(crate) kv_heads: usize,
    /// Width of a head.
    pub(crate) head_dim: usize,
    /// Tokens that exist.
    pub(crate) vocab: usize,
    /// Tokens that a text may have.
    pub(crate) context: usize,
    /// Base of the rotary embedding.
    pub(crate) rope_theta: f32,
    /// How the rotary embedding is stretched.
    pub(crate) rope_scaling: RopeScaling,
    /// Added to the mean square in RMSNorm.
    pub(crate) eps: f32,
    /// True when the embedding is the head too.
    pub(crate) tied: bool,
    /// Tokens that end a text.
    pub(crate) stop: Vec<u32>,
}

/// How the rotary embedding is stretched.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RopeScaling {
    /// Not at all.
    None,
    /// All frequencies divided alike.
    Linear(f32),
    /// As LLaMA 3.1: low frequencies divided, high ones kept, those between blended.
    Llama3 {
        /// What low frequencies are divided by.
        factor: f32,
        /// Low ones turn fewer times than this in the original context.
        low: f32,
        /// High ones turn more often than this.
        high: f32,
        /// The original context.
        original: f32,
    },
    /// Each frequency divided by its own factor, as GGUF files store it.
    Factors(Vec<f32>),
}

#[derive(Deserialize)]
struct Hf {
    model_type: Option<String>,
    #[serde(default)]
    architectures: Vec<String>,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: usize,
    max_position_embeddings: usize,
    rope_theta: Option<f32>,
    #[serde(alias = "rope_parameters")]
    rope_scaling: Option<HfRope>,
    rms_norm_eps: f32,
    #[serde(default)]
    tie_word_embeddings: bool,
    eos_token_id: Option<Ids>,
    hidden_act: Option<String>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
}

#[derive(Deserialize)]
struct HfRope {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f32>,
    factor: Option<f32>,
    low_freq_factor: Option<f32>,
    high_freq_factor: Option<f32>,
    original_max_position_embeddings: Option<f32>,
}

/// One token or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Ids {
    One(u32),
    Many(Vec<u32>),
}

impl Ids {
    fn list(self) -> Vec<u32> {
        match self {
            Ids::One(id) => vec![id],
            Ids::Many(ids) => ids,
        }
    }
}

/// What is read of generation_config.json.
#[derive(Deserialize)]
struct Generation {
    eos_token_id: Option<Ids>,
}

impl Config {
    /// config.json of `dir`, with the stop tokens of generation_config.json if there is one.
    ///
    /// # Errors
    /// [`Failure::Model`] naming the file and what is missing or unknown.
    pub(crate) fn from_folder(dir: &Path) -> Result<Config> {
        let path = dir.join("config.json");
        let text = std::fs::read_to_string(&path).map_err(|error| Failure::model(&path, error))?;
        let mut config = Config::from_json(&text).map_err(|problem| Failure::model(&path, problem))?;
        let path = dir.join("generation_config.json");
        if let Ok(text) = std::fs::read_to_string(&path) {
            let read: Generation = serde_json::from_str(&text).map_err(|error| Failure::model(&path, error))?;
            let more = read.eos_token_id.map_or(Vec::new(), Ids::list);
            more.into_iter().for_each(|id| {
                if !config.stop.contains(&id) {
                    config.stop.push(id)
                }
            });
        }
        Ok(config)
    }

    fn from_json(text: &str) -> Result<Config, String> {
        // The architecture first: another one has other fields.
        let named: serde_json::Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let architecture = named.get("model_type").and_then(|name| name.as_str());
        known_architecture(architecture.or_else(|| named.pointer("/architectures/0").and_then(|name| name.as_str())))?;
        let hf: Hf = serde_json::from_value(named).map_err(|error| error.to_string())?;
        debug_assert!(hf.model_type.is_some() || !hf.architectures.is_empty());
        if hf.hidden_act.as_deref().is_some_and(|act| act != "silu") {
            return Err(format!("hidden_act is {:?}; LLaMA models have \"silu\"", hf.hidden_act.unwrap_or_default()));
        }
        if hf.attention_bias || hf.mlp_bias {
            return Err("attention_bias or mlp_bias is true; LLaMA models have no biases".into());
        }
        let theta = hf.rope_theta.or(hf.rope_scaling.as_ref().and_then(|rope| rope.rope_theta)).unwrap_or(10_000.0);
        Config {
            hidden: hf.hidden_size,
            intermediate: hf.intermediate_size,
            layers: hf.num_hidden_layers,
            heads: hf.num_attention_heads,
            kv_heads: hf.num_key_value_heads.unwrap_or(hf.num_attention_heads),
            head_dim: hf.head_dim.unwrap_or(hf.hidden_size / hf.num_attention_heads.max(1)),
            vocab: hf.vocab_size,
            context: hf.max_position_embeddings,
            rope_theta: theta,
            rope_scaling: hf.rope_scaling.map_or(Ok(RopeScaling::None), HfRope::scaling)?,
            eps: hf.rms_norm_eps,
            tied: hf.tie_word_embeddings,
            stop: hf.eos_token_id.map_or(Vec::new(), Ids::list),
        }
        .checked()
    }

    /// The metadata of a GGUF file.
    ///
    /// # Errors
    /// What is missing or unknown.
    pub(crate) fn from_gguf(content: &Content) -> Result<Config, String> {
        let value = |key: &str| content.metadata.get(key);
        let name = value("general.architecture").and_then(|name| name.to_string().ok());
        known_architecture(name.map(String::as_str))?;
        let number = |key: &str| match value(key).map(whole) {
            Some(Some(number)) => Ok(number),
            Some(None) => Err(format!("metadata {key} is not a whole number")),
            None => Err(format!("metadata {key} is missing")),
        };
        let real = |key: &str| value(key).and_then(|value| value.to_f32().ok());
        let shape = |name: &str| content.tensor_infos.get(name).map(|info| info.shape.dims().to_vec());
        let (hidden, heads) = (number("llama.embedding_length")?, number("llama.attention.head_count")?);
        let scaling = match (
            value("llama.rope.scaling.type").and_then(|kind| kind.to_string().ok()),
            real("llama.rope.scaling.factor"),
        ) {
            (Some(kind), Some(factor)) if kind == "linear" => RopeScaling::Linear(factor),
            (Some(kind), _) if kind != "none" && kind != "linear" => {
                return Err(format!("rope scaling {kind:?} is not supported"));
            }
            _ => RopeScaling::None,
        };
        let optional = |key: &str, other: usize| if value(key).is_some() { number(key) } else { Ok(other) };
        Config {
            hidden,
            intermediate: number("llama.feed_forward_length")?,
            layers: number("llama.block_count")?,
            heads,
            kv_heads: optional("llama.attention.head_count_kv", heads)?,
            head_dim: optional("llama.attention.key_length", hidden / heads.max(1))?,
            vocab: shape("token_embd.weight").and_then(|shape| shape.first().copied()).unwrap_or(0),
            context: number("llama.context_length")?,
            rope_theta: real("llama.rope.freq_base").unwrap_or(10_000.0),
            rope_scaling: scaling,
            eps: real("llama.attention.layer_norm_rms_epsilon")
                .ok_or("metadata llama.attention.layer_norm_rms_epsilon is missing")?,
            tied: shape("output.weight").is_none(),
            stop: stop_tokens(content),
        }
        .checked()
    }

    /// A shape by name, for random weights.
    pub(crate) fn random(name: RandomConfig) -> Config {
        let shape = |hidden, intermediate, layers, heads, kv_heads, vocab, context| Config {
            hidden,
            intermediate,
            layers,
            heads,
            kv_heads,
            head_dim: hidden / heads,
            vocab,
            context,
            rope_theta: 10_000.0,
            rope_scaling: RopeScaling::None,
            eps: 1e-5,
            tied: false,
            stop: Vec::new(),
        };
        match name {
            RandomConfig::Tiny => shape(64, 176, 8, 4, 2, 512, 2048),
            RandomConfig::Cache => shape(512, 1408, 4, 8, 4, 320, 2048),
            RandomConfig::Even => shape(1024, 2816, 16, 16, 4, 32_000, 4096),
            RandomConfig::Llama2_7b => shape(4096, 11_008, 32, 32, 32, 32_000, 4096),
        }
    }

    fn checked(self) -> Result<Config, String> {
        let counts = [
            ("hidden size", self.hidden),
            ("intermediate size", self.intermediate),
            ("layers", self.layers),
            ("heads", self.heads),
            ("kv heads", self.kv_heads),
            ("head size", self.head_dim),
            ("vocabulary", self.vocab),
            ("context", self.context),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(format!("{name} is 0 or missing"));
        }
        if let Some((name, count)) = counts.iter().find(|(_, count)| *count > 1 << 24) {
            return Err(format!("{name} is {count}, more than any model has"));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(format!("{} heads do not divide over {} kv heads", self.heads, self.kv_heads));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(format!("head size is {}; the rotary embedding needs an even one", self.head_dim));
        }
        Ok(self)
    }
}

impl HfRope {
    fn scaling(self) -> Result<RopeScaling, String> {
        let needs = |value: Option<f32>, name: &str| value.ok_or_else(|| format!("rope_scaling has no {name}"));
        match self.rope_type.as_deref() {
            None | Some("default") => Ok(RopeScaling::None),
            Some("linear") => Ok(RopeScaling::Linear(needs(self.factor, "factor")?)),
            Some("llama3") => Ok(RopeScaling::Llama3 {
                factor: needs(self.factor, "factor")?,
                low: needs(self.low_freq_factor, "low_freq_factor")?,
                high: needs(self.high_freq_factor, "high_freq_factor")?,
                original: needs(self.original_max_position_embeddings, "original_max_position_embeddings")?,
            }),
            Some(other) => Err(format!("rope_scaling {other:?} is not supported (default, linear and llama3 are)")),
        }
    }
}

fn known_architecture(name: Option<&str>) -> Result<(), String> {
    match name {
        Some("llama" | "LlamaForCausalLM") => Ok(()),
        Some(other) => Err(format!("unknown architecture {other:?}; this program runs \"llama\" only")),
        None => Err("does not say its architecture; this program runs \"llama\" only".into()),
    }
}

/// A number of metadata, of any whole type.
pub(crate) fn whole(value: &Value) -> Option<usize> {
    match value {
        Value::U8(n) => Some((*n).into()),
        Value::U16(n) => Some((*n).into()),
        Value::U32(n) => usize::try_from(*n).ok(),
        Value::U64(n) => usize::try_from(*n).ok(),
        Value::I8(n) => usize::try_from(*n).ok(),
        Value::I16(n) => usize::try_from(*n).ok(),
        Value::I32(n) => usize::try_from(*n).ok(),
        Value::I64(n) => usize::try_from(*n).ok(),
        _ => None,
    }
}

/// Tokens that end a text: of the file, and end of turn where it has another one.
fn stop_tokens(content: &Content) -> Vec<u32> {
    let keys = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"];
    let ids = keys.iter().filter_map(|key| content.metadata.get(*key).and_then(whole));
    let mut ids: Vec<u32> = ids.filter_map(|id| u32::try_from(id).ok()).collect();
    ids.dedup();
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(change: &str, to: &str) -> String {
        let text = r#"{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 128,
            "rms_norm_eps": 1e-5, "eos_token_id": [2, 7]}"#;
        assert!(text.contains(change));
        text.replace(change, to)
    }

    #[test]
    fn a_config_is_read() {
        let config = Config::from_json(&json("", "")).unwrap();
        assert_eq!((config.head_dim, config.kv_heads, config.rope_theta, config.tied), (16, 2, 10_000.0, false));
        assert_eq!((config.stop, config.rope_scaling), (vec![2, 7], RopeScaling::None));
        let stretched = r#""rope_scaling": {"rope_type": "linear", "factor": 2.0}, "vocab_size""#;
        let config = Config::from_json(&json(r#""vocab_size""#, stretched)).unwrap();
        assert_eq!(config.rope_scaling, RopeScaling::Linear(2.0));
    }

    #[test]
    fn what_is_not_llama_is_refused_by_name() {
        let refused = |change, to| Config::from_json(&json(change, to)).unwrap_err();
        assert!(refused("\"llama\"", "\"gpt_neox\"").contains("unknown architecture \"gpt_neox\""));
        assert!(refused("\"hidden_size\": 64,", "").contains("hidden_size"));
        assert!(refused("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3").contains("4 heads"));
        assert!(refused("\"vocab_size\": 512", "\"vocab_size\": 0").contains("vocabulary is 0"));
        assert!(refused("\"vocab_size\"", "\"hidden_act\": \"gelu\", \"vocab_size\"").contains("gelu"));
        let yarn = r#""rope_scaling": {"type": "yarn"}, "vocab_size""#;
        assert!(refused("\"vocab_size\"", yarn).contains("yarn"));
    }
}
