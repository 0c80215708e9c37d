//! Small models with random weights, in the forms that real ones have.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::llama::{Cache, Config, Llama, LlamaEosToks};
use tokenizers::decoders::byte_level::ByteLevel as Decoder;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

pub(crate) const HIDDEN: usize = 96;
pub(crate) const MIDDLE: usize = 192;
pub(crate) const LAYERS: usize = 5;
pub(crate) const HEADS: usize = 12;
pub(crate) const KV_HEADS: usize = 6;
pub(crate) const VOCAB: usize = 301;
pub(crate) const CONTEXT: usize = 256;

/// Named tensors.
pub(crate) type Weights = HashMap<String, Tensor>;

/// Names and shapes of all tensors.
fn shapes(tied: bool) -> Vec<(String, Vec<usize>)> {
    let kv = KV_HEADS * HIDDEN / HEADS;
    let mut all = vec![("model.embed_tokens".to_owned(), vec![VOCAB, HIDDEN]), ("model.norm".into(), vec![HIDDEN])];
    if !tied {
        all.push(("lm_head".into(), vec![VOCAB, HIDDEN]));
    }
    for layer in 0..LAYERS {
        let of_layer = [
            ("self_attn.q_proj", vec![HIDDEN, HIDDEN]),
            ("self_attn.k_proj", vec![kv, HIDDEN]),
            ("self_attn.v_proj", vec![kv, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, HIDDEN]),
            ("mlp.gate_proj", vec![MIDDLE, HIDDEN]),
            ("mlp.up_proj", vec![MIDDLE, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, MIDDLE]),
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
        ];
        all.extend(of_layer.map(|(name, shape)| (format!("model.layers.{layer}.{name}"), shape)));
    }
    all.into_iter().map(|(name, shape)| (name + ".weight", shape)).collect()
}

/// The same every time: uniform, scaled by the width.
pub(crate) fn weights(tied: bool, dtype: DType) -> Weights {
    let mut state = 0x1234_5678_9abc_def1u64;
    let mut uniform = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let tensor = |(name, shape): (String, Vec<usize>)| {
        let (base, scale) = if shape.len() == 1 { (1.0, 0.2) } else { (0.0, (6.0 / shape[1] as f32).sqrt()) };
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| base + scale * uniform()).collect();
        (name, Tensor::from_vec(values, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap())
    };
    shapes(tied).into_iter().map(tensor).collect()
}

/// config.json.
pub(crate) fn config(tied: bool) -> serde_json::Value {
    serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": HIDDEN, "intermediate_size": MIDDLE, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB,
        "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": tied, "eos_token_id": 1,
    })
}

fn vocabulary() -> Vec<String> {
    let mut bytes: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    bytes.sort_unstable();
    let special = ["<s>", "</s>"].map(str::to_owned).into_iter();
    let filler = (0..VOCAB - 258).map(|number| format!("<filler {number}>"));
    special.chain(bytes.into_iter().map(String::from)).chain(filler).collect()
}

fn tokenizer() -> Tokenizer {
    let vocab: Vocab = (0..).zip(vocabulary()).map(|(id, token)| (token, id)).collect();
    let mut tokenizer = Tokenizer::new(BPE::builder().vocab_and_merges(vocab, vec![]).build().unwrap());
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    tokenizer.with_decoder(Some(Decoder::default()));
    tokenizer.add_special_tokens(["<s>", "</s>"].map(|token| AddedToken::from(token, true))).unwrap();
    tokenizer
}

/// Writes a model of one file.
pub(crate) fn write(dir: &Path, weights: &Weights, tied: bool) {
    candle_core::safetensors::save(weights, dir.join("model.safetensors")).unwrap();
    write_rest(dir, tied);
}

/// Writes a model of three files with an index.
pub(crate) fn write_sharded(dir: &Path, weights: &Weights, tied: bool) {
    let mut names: Vec<&String> = weights.keys().collect();
    names.sort();
    let mut map = serde_json::Map::new();
    for (number, names) in names.chunks(names.len().div_ceil(3)).enumerate() {
        let file = format!("model-{}-of-3.safetensors", number + 1);
        let part: Weights = names.iter().map(|name| ((*name).clone(), weights[*name].clone())).collect();
        candle_core::safetensors::save(&part, dir.join(&file)).unwrap();
        map.extend(names.iter().map(|name| ((*name).clone(), file.clone().into())));
    }
    let index = serde_json::json!({ "metadata": {}, "weight_map": map });
    fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
    write_rest(dir, tied);
}

fn write_rest(dir: &Path, tied: bool) {
    fs::write(dir.join("config.json"), config(tied).to_string()).unwrap();
    tokenizer().save(dir.join("tokenizer.json"), false).unwrap();
    let template =
        "{% for m in messages %}<s>{{ m['content'] | trim }}{% endfor %}{% if add_generation_prompt %}:{% endif %}";
    let config =
        serde_json::json!({ "chat_template": template, "bos_token": "<s>", "eos_token": { "content": "</s>" } });
    fs::write(dir.join("tokenizer_config.json"), config.to_string()).unwrap();
}

/// Writes a GGUF file, matrices as Q8_0, and returns its weights as they come back from that.
pub(crate) fn write_gguf(dir: &Path, weights: &Weights) -> (PathBuf, Weights) {
    let path = dir.join("model.gguf");
    let (mut stored, mut back) = (Vec::new(), Weights::new());
    let mut names: Vec<&String> = weights.keys().collect();
    names.sort();
    for name in names {
        let tensor = &weights[name];
        let heads = if name.contains("q_proj") { HEADS } else { KV_HEADS };
        let is_turned = name.contains("q_proj") || name.contains("k_proj");
        let turned = if is_turned { interleave(tensor, heads) } else { tensor.clone() };
        let dtype = if tensor.rank() == 2 { GgmlDType::Q8_0 } else { GgmlDType::F32 };
        let quantized = QTensor::quantize(&turned, dtype).unwrap();
        let plain = quantized.dequantize(&Device::Cpu).unwrap();
        back.insert(name.clone(), if is_turned { halves(&plain, heads) } else { plain });
        stored.push((gguf_name(name), quantized));
    }
    let values = metadata();
    let metadata: Vec<(&str, &Value)> = values.iter().map(|(name, value)| (*name, value)).collect();
    let tensors: Vec<(&str, &QTensor)> = stored.iter().map(|(name, tensor)| (&name[..], tensor)).collect();
    gguf_file::write(&mut File::create(&path).unwrap(), &metadata, &tensors).unwrap();
    (path, back)
}

fn metadata() -> Vec<(&'static str, Value)> {
    let number = |number: usize| Value::U32(number as u32);
    let texts = |texts: Vec<String>| Value::Array(texts.into_iter().map(Value::String).collect());
    let kinds = (0..VOCAB).map(|id| Value::I32(if id < 2 { 3 } else { 1 })).collect();
    vec![
        ("general.architecture", Value::String("llama".into())),
        ("llama.embedding_length", number(HIDDEN)),
        ("llama.feed_forward_length", number(MIDDLE)),
        ("llama.block_count", number(LAYERS)),
        ("llama.attention.head_count", number(HEADS)),
        ("llama.attention.head_count_kv", number(KV_HEADS)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("llama.context_length", number(CONTEXT)),
        ("llama.rope.freq_base", Value::F32(10_000.0)),
        ("tokenizer.ggml.model", Value::String("gpt2".into())),
        ("tokenizer.ggml.pre", Value::String("smollm".into())),
        ("tokenizer.ggml.tokens", texts(vocabulary())),
        ("tokenizer.ggml.token_type", Value::Array(kinds)),
        ("tokenizer.ggml.merges", texts(vec![])),
        ("tokenizer.ggml.bos_token_id", number(0)),
        ("tokenizer.ggml.eos_token_id", number(1)),
    ]
}

/// Halves of heads to the order of GGUF files.
fn interleave(tensor: &Tensor, heads: usize) -> Tensor {
    let (rows, cols) = tensor.dims2().unwrap();
    let split = tensor.reshape((heads, 2, rows / heads / 2, cols)).unwrap();
    split.transpose(1, 2).unwrap().contiguous().unwrap().reshape((rows, cols)).unwrap()
}

fn halves(tensor: &Tensor, heads: usize) -> Tensor {
    let (rows, cols) = tensor.dims2().unwrap();
    let split = tensor.reshape((heads, rows / heads / 2, 2, cols)).unwrap();
    split.transpose(1, 2).unwrap().contiguous().unwrap().reshape((rows, cols)).unwrap()
}

fn gguf_name(name: &str) -> String {
    let names = [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers", "blk"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("post_attention_layernorm", "ffn_norm"),
        ("input_layernorm", "attn_norm"),
    ];
    names.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to))
}

/// candle's own model on the same weights.
pub(crate) struct Reference {
    model: Llama,
    config: Config,
}

impl Reference {
    pub(crate) fn new(weights: &Weights, tied: bool) -> Reference {
        let config = Config {
            hidden_size: HIDDEN,
            intermediate_size: MIDDLE,
            vocab_size: VOCAB,
            num_hidden_layers: LAYERS,
            num_attention_heads: HEADS,
            num_key_value_heads: KV_HEADS,
            use_flash_attn: false,
            rms_norm_eps: 1e-5,
            rope_theta: 10_000.0,
            bos_token_id: None,
            eos_token_id: Some(LlamaEosToks::Single(1)),
            rope_scaling: None,
            max_position_embeddings: CONTEXT,
            tie_word_embeddings: tied,
        };
        let wide = weights.iter().map(|(name, w)| (name.clone(), w.to_dtype(DType::F32).unwrap())).collect();
        let builder = VarBuilder::from_tensors(wide, DType::F32, &Device::Cpu);
        Reference { model: Llama::load(builder, &config).unwrap(), config }
    }

    /// Logits after the prompt, and the tokens that greedy decoding gives.
    pub(crate) fn generate(&self, prompt: &[u32], count: usize) -> (Vec<f32>, Vec<u32>) {
        let mut cache = Cache::new(true, DType::F32, &self.config, &Device::Cpu).unwrap();
        let (mut first, mut tokens) = (Vec::new(), Vec::new());
        let (mut input, mut at) = (prompt.to_vec(), 0);
        for _ in 0..count {
            let ids = Tensor::new(&input[..], &Device::Cpu).unwrap().unsqueeze(0).unwrap();
            let logits =
                self.model.forward(&ids, at, &mut cache).unwrap().squeeze(0).unwrap().to_vec1::<f32>().unwrap();
            at += input.len();
            let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap() as u32;
            if first.is_empty() {
                first = logits;
            }
            tokens.push(best);
            if best == 1 {
                break;
            }
            input = vec![best];
        }
        (first, tokens)
    }
}

/// The tokens of a text, one a byte.
pub(crate) fn tokens_of(text: &str) -> Vec<u32> {
    tokenizer().encode(text, false).unwrap().get_ids().to_vec()
}

/// Writes a GGUF file without tensors.
pub(crate) fn with_metadata(path: &Path, metadata: &[(&str, Value)]) -> PathBuf {
    let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(name, value)| (*name, value)).collect();
    gguf_file::write(&mut File::create(path).unwrap(), &metadata, &[]).unwrap();
    path.to_owned()
}
