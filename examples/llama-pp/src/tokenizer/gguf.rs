//! The tokenizers inside GGUF files: byte-level BPE ("gpt2") and SentencePiece BPE ("llama").

use std::collections::HashMap;

use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::quantized::tokenizer::TokenizerFromGguf;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::{Prepend, Replace, Sequence as Normalizers};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::tokenizer::SplitDelimiterBehavior;
use tokenizers::{AddedToken, PreTokenizerWrapper, Tokenizer};

use crate::config::whole;

/// How LLaMA 3 cuts texts into words.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// What SentencePiece writes for a space.
const SPACE: &str = "▁";

/// Builds the tokenizer of a file.
///
/// # Errors
/// What is missing or not known.
pub(super) fn tokenizer(content: &Content) -> Result<Tokenizer, String> {
    let text = |key: &str| content.metadata.get(key).and_then(|value| value.to_string().ok());
    match text("tokenizer.ggml.model").map(String::as_str) {
        Some("gpt2") => byte_level(content, text("tokenizer.ggml.pre").map_or("default", String::as_str)),
        Some("llama") => sentence_piece(content),
        Some(other) => Err(format!("the tokenizer is of kind {other:?}; \"gpt2\" and \"llama\" are supported")),
        None => Err("the tokenizer is missing: there is no metadata tokenizer.ggml.model".into()),
    }
}

/// The text of the token that metadata `key` names.
pub(super) fn token(content: &Content, key: &str) -> Option<String> {
    let id = content.metadata.get(key).and_then(whole)?;
    Some(strings(content, "tokenizer.ggml.tokens").ok()?.get(id)?.to_string())
}

fn byte_level(content: &Content, words: &str) -> Result<Tokenizer, String> {
    let words = words_of(words)?;
    let mut tokenizer = Tokenizer::from_gguf(content).map_err(|error| {
        format!("the tokenizer is damaged: {}", error.to_string().lines().next().unwrap_or_default())
    })?;
    tokenizer.with_pre_tokenizer(Some(words));
    Ok(tokenizer)
}

/// How a text is cut before its bytes are merged.
fn words_of(name: &str) -> Result<PreTokenizerWrapper, String> {
    let bytes = |cut: bool| PreTokenizerWrapper::from(ByteLevel::new(false, true, cut));
    match name {
        "smollm" => Ok(Sequence::new(vec![Digits::new(true).into(), bytes(true)]).into()),
        "llama-bpe" | "llama3" | "llama-v3" | "smaug-bpe" => {
            let pattern = SplitPattern::Regex(LLAMA3.into());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(|e| e.to_string())?;
            Ok(Sequence::new(vec![split.into(), bytes(false)]).into())
        }
        "default" | "gpt-2" | "gpt2" => Ok(bytes(true)),
        other => Err(format!("the tokenizer cuts words as {other:?}, which is not supported")),
    }
}

/// SentencePiece merges the pair whose result has the highest score: a BPE with merges in the order of scores.
fn sentence_piece(content: &Content) -> Result<Tokenizer, String> {
    let tokens = strings(content, "tokenizer.ggml.tokens")?;
    let scores = array(content, "tokenizer.ggml.scores")?;
    let scores: Vec<f32> = scores.iter().filter_map(|score| score.to_f32().ok()).collect();
    if scores.len() != tokens.len() {
        return Err(format!("the tokenizer has {} tokens and {} scores", tokens.len(), scores.len()));
    }
    let ids: HashMap<&str, usize> = tokens.iter().enumerate().map(|(id, token)| (*token, id)).collect();
    let mut merges = Vec::new();
    for (id, token) in tokens.iter().enumerate() {
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(l), Some(r)) = (ids.get(left), ids.get(right)) {
                merges.push((scores[id], *l, *r, left.to_owned(), right.to_owned()));
            }
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let merges = merges.into_iter().map(|(.., left, right)| (left, right)).collect();
    let vocab: Vocab = (0..).zip(&tokens).map(|(id, token)| ((*token).to_owned(), id)).collect();
    let special = |key: &str| content.metadata.get(key).and_then(whole).filter(|id| *id < tokens.len());
    let unknown = special("tokenizer.ggml.unknown_token_id").unwrap_or(0);
    let bpe = BPE::builder().vocab_and_merges(vocab, merges).byte_fallback(true).fuse_unk(true);
    let bpe = bpe.unk_token(tokens.get(unknown).copied().unwrap_or("<unk>").to_owned()).build();
    let mut tokenizer = Tokenizer::new(bpe.map_err(|error| error.to_string())?);
    let fails = |error: tokenizers::Error| error.to_string();
    let space = Replace::new(" ", SPACE).map_err(fails)?;
    let normalizers = vec![Prepend::new(SPACE.into()).into(), space.into()];
    tokenizer.with_normalizer(Some(Normalizers::new(normalizers))).map_err(fails)?;
    let back = Replace::new(SPACE, " ").map_err(fails)?;
    let decoders = vec![back.into(), ByteFallback::new().into(), Fuse::new().into(), Strip::new(' ', 1, 0).into()];
    tokenizer.with_decoder(Some(Decoders::new(decoders)));
    let ids = [Some(unknown), special("tokenizer.ggml.bos_token_id"), special("tokenizer.ggml.eos_token_id")];
    let specials = ids.iter().flatten().map(|id| AddedToken::from(tokens[*id].to_owned(), true).normalized(false));
    tokenizer.add_special_tokens(specials.collect::<Vec<_>>()).map_err(fails)?;
    let adds = content.metadata.get("tokenizer.ggml.add_bos_token").and_then(|value| value.to_bool().ok());
    if let (Some(id), true) = (ids[1], adds.unwrap_or(true)) {
        let bos = tokens[id].to_owned();
        let mut template = TemplateProcessing::builder();
        template.try_single(format!("{bos} $A"))?.special_tokens(vec![(bos, id as u32)]);
        let template = template.build().map_err(|error| error.to_string())?;
        tokenizer.with_post_processor(Some(template));
    }
    Ok(tokenizer)
}

fn array<'a>(content: &'a Content, key: &str) -> Result<&'a Vec<Value>, String> {
    let value =
        content.metadata.get(key).ok_or_else(|| format!("the tokenizer is missing: there is no metadata {key}"))?;
    value.to_vec().map_err(|_| format!("metadata {key} is no list"))
}

fn strings<'a>(content: &'a Content, key: &str) -> Result<Vec<&'a str>, String> {
    let texts = array(content, key)?.iter().map(|value| value.to_string().map(String::as_str));
    texts.collect::<Result<_, _>>().map_err(|_| format!("metadata {key} holds what is no text"))
}
#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::quantized::gguf_file::VersionedMagic;

    fn content(metadata: Vec<(&str, Value)>) -> Content {
        Content {
            magic: VersionedMagic::GgufV3,
            metadata: metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
            tensor_infos: HashMap::new(),
            tensor_data_offset: 0,
        }
    }

    fn texts(texts: &[&str]) -> Value {
        Value::Array(texts.iter().map(|text| Value::String((*text).into())).collect())
    }

    #[test]
    fn sentence_piece_merges_by_score_and_falls_back_to_bytes() {
        let tokens = ["<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>", "▁", "a", "b", "c", "ab", "bc", "▁a", "▁ab"];
        let scores = [0.0, 0.0, 0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -9.0, -3.0, -1.0, -2.0, -4.0];
        let llama = content(vec![
            ("tokenizer.ggml.model", Value::String("llama".into())),
            ("tokenizer.ggml.tokens", texts(&tokens)),
            ("tokenizer.ggml.scores", Value::Array(scores.map(Value::F32).to_vec())),
            ("tokenizer.ggml.bos_token_id", Value::U32(1)),
            ("tokenizer.ggml.eos_token_id", Value::U32(2)),
        ]);
        let tokenizer = tokenizer(&llama).unwrap();
        let ids = |text: &str, special: bool| tokenizer.encode(text, special).unwrap().get_ids().to_vec();
        assert_eq!(ids("abc", true), [1, 11, 10]); // "bc" scores more than "ab", then "▁a"
        assert_eq!(ids("ab ab", false), [12, 12]);
        assert_eq!(ids("é", false), [5, 3, 4]);
        assert_eq!(tokenizer.decode(&[1, 11, 10, 12, 5, 3, 4, 2], true).unwrap(), "abc ab é");
        assert_eq!(token(&llama, "tokenizer.ggml.eos_token_id").as_deref(), Some("</s>"));
    }

    #[test]
    fn tokenizers_that_are_not_known_are_named() {
        let refused = |metadata: Vec<(&str, Value)>| tokenizer(&content(metadata)).unwrap_err();
        assert!(refused(vec![]).contains("the tokenizer is missing"));
        let text = |text: &str| Value::String(text.into());
        assert!(refused(vec![("tokenizer.ggml.model", text("bert"))]).contains("\"bert\""));
        let words = vec![("tokenizer.ggml.model", text("gpt2")), ("tokenizer.ggml.pre", text("odd"))];
        assert!(refused(words).contains("\"odd\""));
        assert!(refused(vec![("tokenizer.ggml.model", text("llama"))]).contains("tokenizer.ggml.tokens"));
    }
}
