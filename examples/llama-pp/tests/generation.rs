//! The program itself, as processes: every way of sharing a model gives the tokens of one rank and the logits of
//! candle's own model, slots change nothing, and bad input is refused by name.
#![cfg(target_os = "linux")]

mod support;

use std::fs;
use std::path::Path;
use std::time::Duration;

use candle_core::quantized::gguf_file::Value;
use candle_core::{DType, Device, Tensor};
use support::models::{self, CONTEXT, LAYERS, Reference, VOCAB, Weights};
use support::{Line, lines, run};

const PROMPTS: [&str; 5] = ["Once upon a time", "x", "What is the capital?", "abcdefghijklmnopqrstuvwxyz", "1 2 3"];

fn path(dir: &Path, name: &str) -> String {
    dir.join(name).to_str().unwrap().to_owned()
}

fn tokens(lines: &[Line]) -> Vec<Vec<u32>> {
    lines.iter().map(|line| line.tokens.clone()).collect()
}

/// Flags for all prompts, with a model.
fn asking<'a>(model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut flags = vec!["--model", model, "--max-new-tokens=12"];
    flags.extend(PROMPTS.iter().flat_map(|prompt| ["--prompt", prompt]));
    flags.extend(more);
    flags
}

/// Logits and tokens of every mode against candle's.
fn assert_as_candle(model: &str, weights: &Weights, tied: bool, modes: &[&[&str]]) {
    let reference = Reference::new(weights, tied);
    for mode in modes {
        let all = lines(&asking(model, &[*mode, &["--logits=301"]].concat()));
        assert_eq!(all.len(), PROMPTS.len());
        for (line, prompt) in all.iter().zip(PROMPTS) {
            assert_eq!(line.prompt, prompt);
            let (expected, expected_tokens) = reference.generate(&models::tokens_of(prompt), 12);
            let logits = line.logits.as_ref().unwrap();
            assert_eq!(logits.len(), VOCAB);
            assert!(logits.windows(2).all(|pair| pair[0].1 >= pair[1].1));
            for (token, logit) in logits {
                let difference = (logit - expected[*token as usize]).abs();
                assert!(difference < 1e-3, "{mode:?} {prompt:?}: token {token}: {difference}");
            }
            assert_eq!(line.tokens, expected_tokens, "{mode:?} {prompt:?}");
        }
    }
}

#[test]
fn every_mode_gives_candles_logits_and_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let weights = models::weights(true, DType::F32);
    models::write(dir.path(), &weights, true);
    let modes: [&[&str]; 7] = [
        &["--parallel=none"],
        &["--ranks=2"],
        &["--ranks=3"],
        &["--ranks=4"],
        &["--ranks=5", "--slots=2"],
        &["--ranks=2", "--parallel=tp"],
        &["--ranks=3", "--parallel=tp", "--slots=4"],
    ];
    assert_as_candle(&path(dir.path(), ""), &weights, true, &modes);
}

#[test]
fn half_precision_weights_with_a_head_of_their_own_from_several_files() {
    for dtype in [DType::BF16, DType::F16] {
        let dir = tempfile::tempdir().unwrap();
        let weights = models::weights(false, dtype);
        models::write_sharded(dir.path(), &weights, false);
        let modes: [&[&str]; 3] = [&[], &["--ranks=3", "--threads-per-rank=2"], &["--ranks=2", "--parallel=tp"]];
        assert_as_candle(&path(dir.path(), ""), &weights, false, &modes);
    }
}

#[test]
fn a_gguf_file_is_dequantized_rank_by_rank() {
    for tied in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let (file, weights) = models::write_gguf(dir.path(), &models::weights(tied, DType::F32));
        let modes: [&[&str]; 3] = [&[], &["--ranks=4"], &["--ranks=3", "--parallel=tp"]];
        assert_as_candle(file.to_str().unwrap(), &weights, tied, &modes);
        // The folder will do where it has one file.
        assert_as_candle(&path(dir.path(), ""), &weights, tied, &[&["--ranks=2"]]);
    }
}

#[test]
fn slots_and_refill_change_no_text() {
    let dir = tempfile::tempdir().unwrap();
    models::write(dir.path(), &models::weights(true, DType::F32), true);
    let (model, file) = (path(dir.path(), ""), path(dir.path(), "prompts.txt"));
    let mut prompts: Vec<String> = (0..9).map(|number| format!("{number} {}", "word ".repeat(number * 3))).collect();
    // Longer than what one step takes of a prompt.
    prompts.push("long ".repeat(40));
    fs::write(&file, prompts.join("\n") + "\n\n").unwrap();
    let flags = |more: &[&'static str]| -> Vec<Line> {
        lines(&[&["--model", &model, "--prompts", &file, "--max-new-tokens=20"][..], more].concat())
    };
    let one_by_one = flags(&["--slots=1"]);
    assert_eq!(
        one_by_one.iter().map(|line| line.prompt.trim_end()).collect::<Vec<_>>(),
        prompts.iter().map(|prompt| prompt.trim_end()).collect::<Vec<_>>()
    );
    assert!(one_by_one.iter().all(|line| line.first_token_ms > 0.0 && line.ms_per_token.is_some_and(|ms| ms > 0.0)));
    assert!(one_by_one.iter().any(|line| line.tokens.iter().any(|token| *token != line.tokens[0])));
    let cases: [&[&str]; 4] = [
        &["--slots=4"],
        &["--ranks=2", "--slots=5"],
        &["--ranks=3", "--slots=16"],
        &["--ranks=2", "--parallel=tp", "--slots=3"],
    ];
    for case in cases {
        let all = flags(case);
        assert_eq!(tokens(&all), tokens(&one_by_one), "{case:?}");
        assert!(all.iter().zip(&one_by_one).all(|(a, b)| a.text == b.text && a.prompt == b.prompt), "{case:?}");
    }
}

#[test]
fn random_choices_are_the_same_on_all_ranks_and_follow_the_seed() {
    let dir = tempfile::tempdir().unwrap();
    models::write(dir.path(), &models::weights(true, DType::F32), true);
    let model = path(dir.path(), "");
    let draw = |more: &[&str]| {
        let random = ["--temperature=1.3", "--top-k=40", "--top-p=0.95"];
        tokens(&lines(&asking(&model, &[&random[..], more].concat())))
    };
    let one = draw(&["--seed=7"]);
    assert_eq!(draw(&["--seed=7", "--ranks=3", "--slots=6"]), one);
    assert_eq!(draw(&["--seed=7", "--ranks=2", "--parallel=tp"]), one);
    assert_ne!(draw(&["--seed=8"]), one);
    assert_ne!(tokens(&lines(&asking(&model, &[]))), one);
}

#[test]
fn stop_tokens_end_texts_and_text_streams_in_order() {
    let dir = tempfile::tempdir().unwrap();
    models::write(dir.path(), &models::weights(true, DType::F32), true);
    let model = path(dir.path(), "");
    let whole = lines(&asking(&model, &[]));
    let stop = whole[0].tokens[3];
    let mut config = models::config(true);
    config["eos_token_id"] = serde_json::json!([1, stop]);
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let stopped = lines(&asking(&model, &["--ranks=2"]));
    for (short, long) in stopped.iter().zip(&whole) {
        let end = long.tokens.iter().position(|token| *token == stop).map_or(long.tokens.len(), |at| at + 1);
        assert_eq!(short.tokens, long.tokens[..end]);
    }
    let text = run(&asking(&model, &["--ranks=3"])).succeeded();
    let expected: Vec<String> = stopped.iter().map(|line| format!("{}{}", line.prompt, line.text)).collect();
    assert_eq!(text.out, expected.join("\n\n") + "\n");
    for rank in 0..3 {
        assert!(text.err.contains(&format!("rank {rank}: ")) && text.err.contains("peak memory"), "{}", text.err);
    }
    let chat = run(&["--model", &model, "--chat", "--prompt= hi ", "--max-new-tokens=5", "--ranks=2"]).succeeded();
    let same = lines(&["--model", &model, "--prompt=<s>hi:", "--max-new-tokens=5"]);
    assert_eq!(chat.out, format!("{}\n", same[0].text));
}

#[test]
fn a_rank_holds_its_own_layers_only() {
    let run = run(&["--random-config=tiny", "--prompt=a", "--max-new-tokens=2", "--ranks=4"]).succeeded();
    let held = |rank: usize| {
        let line = run.err.lines().find(|line| line.contains(&format!(" rank {rank}: "))).unwrap();
        line.rsplit_once(" MB of f32 weights").unwrap().0.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let (layer, table) = (4.0 * 46_208.0 / 1e6, 4.0 * 512.0 * 64.0 / 1e6);
    for (rank, expected) in [2.0 * layer + table, 2.0 * layer, 2.0 * layer, 2.0 * layer + table].iter().enumerate() {
        assert!((held(rank) - expected).abs() <= 0.06, "rank {rank}: {} {expected}\n{}", held(rank), run.err);
    }
}

#[test]
fn a_failing_stage_ends_every_rank_with_its_error() {
    for (how, said) in [("error", "layers "), ("panic", "panicked on purpose")] {
        for mode in ["pp", "tp"] {
            // A pipeline turns a panic of a stage into an error of every rank.
            let code = if (how, mode) == ("panic", "tp") { 101 } else { 1 };
            let fail = format!("--fail=1:{how}");
            let flags = ["--random-config=tiny", "--prompt=a", "--ranks=2", "--parallel", mode, &fail];
            let run = run(&flags);
            assert_eq!(run.code, Some(code), "{}", run.err);
            assert!(run.err.contains(said) && run.err.contains("on purpose"), "{}", run.err);
            let last = run.err.lines().rev().find(|line| line.contains("failed first")).unwrap();
            assert!(last.contains("rank 1 of 2 failed first"), "{}", run.err);
            let (_, after) = run.after.iter().find(|(line, _)| line.contains("on purpose")).unwrap();
            assert!(*after < Duration::from_secs(2), "{after:?}");
        }
    }
}

#[test]
fn bench_prints_a_table() {
    let run = run(&["--random-config=tiny", "--bench", "--slots=3", "--max-new-tokens=4"]).succeeded();
    let rows = |mode: &str| run.out.lines().filter(|line| line.starts_with(mode)).count();
    assert_eq!((rows("none"), rows("pp"), rows("tp")), (3, 3, 3), "{}", run.out);
    assert!(run.out.contains("tokens/s") && run.out.contains("min(2, B2/B1) = "), "{}", run.out);
}

#[test]
fn flags_that_do_not_fit_are_refused() {
    let tiny = ["--random-config=tiny", "--prompt=a"];
    let refused = |flags: &[&str], parts: &[&str]| run(&[&tiny[..], flags].concat()).refused(parts);
    refused(&["--ranks=9"], &["--ranks 9", "8 layers"]);
    refused(&["--ranks=3", "--parallel=tp"], &["4 heads", "2 kv heads", "3 ranks"]);
    refused(&["--ranks=2", "--parallel=none"], &["--parallel none", "2 ranks"]);
    refused(&["--chat"], &["--chat", "no chat template"]);
    let long = "a".repeat(2048);
    run(&["--random-config=tiny", "--ranks=2", "--prompt", &long]).refused(&["2048 tokens", "context of 2048"]);
    run(&["--prompt=a"]).refused(&["--model", "--fetch", "--random-config"]);
    run(&["--random-config=tiny", "--ranks=2"]).refused(&["no prompt", "--prompts FILE"]);
    run(&["--random-config=tiny", "--prompts=/nowhere/p.txt"]).refused(&["--prompts /nowhere/p.txt"]);
    run(&["--model=/nowhere/model", "--prompt=a"]).refused(&["/nowhere/model"]);
}

#[test]
fn damaged_folders_are_refused_by_file_and_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let weights = models::weights(true, DType::F32);
    let model = path(dir.path(), "");
    let refused = |parts: &[&str]| run(&["--model", &model, "--prompt=a", "--ranks=2"]).refused(parts);
    let with = |name: &str, tensor: Option<Tensor>| {
        let mut changed = weights.clone();
        match tensor {
            Some(tensor) => changed.insert(name.into(), tensor),
            None => changed.remove(name),
        };
        models::write(dir.path(), &changed, true);
    };
    refused(&["has no config.json and no GGUF file"]);
    let name = "model.layers.3.mlp.up_proj.weight";
    with(name, None);
    refused(&[name, "missing"]);
    with(name, Some(Tensor::zeros((192, 95), DType::F32, &Device::Cpu).unwrap()));
    refused(&[name, "[192, 95]", "[192, 96]"]);
    models::write(dir.path(), &weights, true);
    let file = dir.path().join("model.safetensors");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() - 5]).unwrap();
    refused(&["model.safetensors", "truncated"]);
    fs::write(&file, &whole[..100]).unwrap();
    refused(&["model.safetensors", "truncated"]);
    fs::write(&file, b"this is no file of weights").unwrap();
    refused(&["model.safetensors", "not a safetensors file"]);
    fs::write(&file, &whole).unwrap();
    fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
    refused(&["tokenizer.json", "missing"]);
    let mut config = models::config(true);
    config["model_type"] = "gpt_neox".into();
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    refused(&["config.json", "unknown architecture", "gpt_neox"]);
    fs::remove_file(&file).unwrap();
    fs::write(dir.path().join("config.json"), models::config(true).to_string()).unwrap();
    refused(&["model.safetensors"]);
    assert_eq!(LAYERS, 5);
    let text = "a".repeat(CONTEXT);
    models::write(dir.path(), &weights, true);
    run(&["--model", &model, "--prompt", &text]).refused(&["256 tokens", "context of 256"]);
}

#[test]
fn damaged_gguf_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (file, _) = models::write_gguf(dir.path(), &models::weights(true, DType::F32));
    let whole = fs::read(&file).unwrap();
    let name = file.to_str().unwrap();
    let refused = |content: &[u8], parts: &[&str]| {
        fs::write(&file, content).unwrap();
        run(&["--model", name, "--prompt=a", "--ranks=2"]).refused(&[&[name][..], parts].concat());
    };
    refused(&whole[..whole.len() - 40_000], &["truncated"]);
    refused(&whole[..3000], &["truncated"]);
    refused(&whole[..2], &["truncated"]);
    refused(b"PK\x03\x04 something else", &["not a GGUF file"]);
    let replaced = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let at = whole.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
        [&whole[..at], to.as_bytes(), &whole[at + from.len()..]].concat()
    };
    refused(&replaced("llama.block_count", "llama.block_cxunt"), &["llama.block_count", "missing"]);
    refused(&replaced("blk.2.ffn_up", "blk.2.ffn_xp"), &["model.layers.2.mlp.up_proj.weight", "missing"]);
    refused(&replaced("tokenizer.ggml.model", "tokenizer.ggml.mxdel"), &["tokenizer", "missing"]);
    refused(&replaced("smollm", "smxllm"), &["smxllm", "not supported"]);
    let kind = models::with_metadata(
        &dir.path().join("other.gguf"),
        &[("general.architecture", Value::String("qwen2".into()))],
    );
    run(&["--model", kind.to_str().unwrap(), "--prompt=a"]).refused(&["unknown architecture", "qwen2"]);
}
