//! What a run will be, from its flags and the headers of its model: checked by the program before it starts ranks, and
//! by each rank. No weight is read here.

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::cli::{Args, DTypeArg, Parallel};
use crate::config::Config;
use crate::engine::Chooser;
use crate::failure::{Failure, Result};
use crate::generate::Request;
use crate::matrix::Dtype;
use crate::sample::Sampler;
use crate::tokenizer::Tokenizer;
use crate::weights::{self, Gguf, Random, Safetensors, Source};
use crate::{fetch, model, split};

/// A run: flags, model and what follows from both.
pub(crate) struct Job {
    pub(crate) args: Args,
    pub(crate) config: Config,
    pub(crate) world: usize,
    pub(crate) parallel: Parallel,
    /// Texts under way at once.
    pub(crate) slots: usize,
    /// Type in which weights are held.
    pub(crate) dtype: Dtype,
    store: Store,
    /// Of each rank.
    layers: Vec<Range<usize>>,
}

enum Store {
    Folder(PathBuf, Safetensors),
    Gguf(Gguf),
    Random(Random),
}

impl Job {
    /// Opens the model and checks that it, the flags and the number of ranks go together.
    ///
    /// # Errors
    /// [`Failure`] naming flag, file or tensor.
    pub(crate) fn new(args: Args, world: usize) -> Result<Job> {
        let (store, config) = open(&args)?;
        let parallel = args.parallel(world);
        if parallel == Parallel::None && world > 1 {
            let problem = format!("--parallel none: {world} ranks cannot do the work of one (hint: leave --ranks out)");
            return Err(Failure::Usage(problem));
        }
        let layers = match parallel {
            Parallel::Pp => split::layers(&config, world)?,
            Parallel::Tp => {
                model::check_share(&config, world)?;
                vec![0..config.layers; world]
            }
            Parallel::None => std::iter::once(0..config.layers).collect(),
        };
        let slots = args.slots(world);
        let dtype = match args.dtype {
            Some(DTypeArg::F32) => Dtype::F32,
            Some(DTypeArg::Bf16) => Dtype::Bf16,
            Some(DTypeArg::F16) => Dtype::F16,
            None => store.source().dtype(),
        };
        weights::check(store.source(), &config)?;
        Ok(Job { args, config, world, parallel, slots, dtype, store, layers })
    }

    /// Where the weights come from.
    pub(crate) fn source(&self) -> &dyn Source {
        self.store.source()
    }

    /// Layers of a rank.
    pub(crate) fn layers_of(&self, rank: usize) -> Range<usize> {
        self.layers[rank].clone()
    }

    /// Steps under way at once.
    pub(crate) fn groups(&self) -> usize {
        match self.parallel {
            Parallel::Pp => self.world.min(self.slots),
            Parallel::Tp | Parallel::None => 1,
        }
    }

    /// Threads of computation of this rank.
    pub(crate) fn threads(&self) -> usize {
        let flag = self.args.threads_per_rank.map(|threads| threads as usize);
        let variable = || std::env::var("RAYON_NUM_THREADS").ok()?.parse().ok().filter(|threads| *threads > 0);
        let cores = || std::thread::available_parallelism().map_or(1, usize::from) / self.world;
        flag.or_else(variable).unwrap_or_else(|| cores().max(1))
    }

    /// How the last stage chooses tokens.
    pub(crate) fn chooser(&self) -> Chooser {
        let sampler = Sampler {
            temperature: self.args.temperature,
            top_k: self.args.top_k.map(|k| k as usize),
            top_p: self.args.top_p,
            seed: self.args.seed,
        };
        Chooser::new(sampler, self.config.vocab, self.args.logits.unwrap_or(0) as usize)
    }

    /// The tokenizer of the model.
    ///
    /// # Errors
    /// [`Failure::Model`] when there is none, or one that is not known.
    pub(crate) fn tokenizer(&self) -> Result<Tokenizer> {
        match &self.store {
            Store::Folder(dir, _) => Tokenizer::from_folder(dir),
            Store::Gguf(gguf) => {
                Tokenizer::from_gguf(gguf.content()).map_err(|problem| Failure::model(gguf.path(), problem))
            }
            Store::Random(_) => Ok(Tokenizer::bytes()),
        }
    }

    /// The texts to continue, as given.
    ///
    /// # Errors
    /// [`Failure::Usage`] when there are none, [`Failure::Model`] for a file that cannot be read.
    pub(crate) fn prompts(&self) -> Result<Vec<String>> {
        let mut prompts = self.args.prompt.clone();
        if let Some(path) = &self.args.prompts {
            let text = std::fs::read_to_string(path)
                .map_err(|error| Failure::Usage(format!("--prompts {}: {error}", path.display())))?;
            prompts.extend(text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned));
        }
        match prompts.is_empty() {
            true => Err(Failure::Usage("no prompt: give --prompt TEXT or --prompts FILE".into())),
            false => Ok(prompts),
        }
    }

    /// The texts as tokens.
    ///
    /// # Errors
    /// [`Failure::Usage`] for a text that is empty, longer than the context or made of tokens that the model does not
    /// know; [`Failure::Model`] for a model without a chat template.
    pub(crate) fn requests(&self, tokenizer: &Tokenizer, prompts: &[String]) -> Result<Vec<Request>> {
        let Config { context, vocab, .. } = self.config;
        let request = |prompt: &String| {
            let refuse = |problem: String| Err(Failure::Usage(format!("prompt {:?}: {problem}", shortened(prompt))));
            let tokens = if self.args.chat { tokenizer.encode_chat(prompt) } else { tokenizer.encode(prompt) };
            let tokens = tokens.map_err(|problem| Failure::model(self.source().path(), problem))?;
            if tokens.is_empty() {
                return refuse("has no tokens".into());
            }
            if tokens.len() >= context {
                return refuse(format!("its {} tokens leave no room in the context of {context} tokens", tokens.len()));
            }
            match tokens.iter().find(|token| **token as usize >= vocab) {
                Some(token) => refuse(format!("token {token} is not in the model's vocabulary of {vocab}")),
                None => Ok(Request { tokens, more: self.args.max_new_tokens as usize }),
            }
        };
        prompts.iter().map(request).collect()
    }
}

impl Store {
    fn source(&self) -> &dyn Source {
        match self {
            Store::Folder(_, source) => source,
            Store::Gguf(source) => source,
            Store::Random(source) => source,
        }
    }
}

fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(40).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

fn open(args: &Args) -> Result<(Store, Config)> {
    if let Some(name) = args.random_config {
        let config = Config::random(name);
        return Ok((Store::Random(Random::new(&config, args.seed)), config));
    }
    match &args.model {
        _ if args.fetch => open_path(&fetch::model()?),
        Some(path) => open_path(path),
        None => Err(Failure::Usage("no model: give --model PATH, --fetch or --random-config NAME".into())),
    }
}

fn open_path(path: &Path) -> Result<(Store, Config)> {
    let meta = std::fs::metadata(path).map_err(|error| Failure::model(path, error))?;
    if meta.is_dir() {
        return match path.join("config.json").exists() {
            true => open_folder(path),
            false => open_gguf(&only_gguf(path)?),
        };
    }
    match (path.extension().and_then(|end| end.to_str()), path.parent()) {
        (Some("safetensors" | "json"), Some(dir)) => {
            open_folder(if dir.as_os_str().is_empty() { Path::new(".") } else { dir })
        }
        _ => open_gguf(path),
    }
}

fn open_folder(dir: &Path) -> Result<(Store, Config)> {
    let config = Config::from_folder(dir)?;
    Ok((Store::Folder(dir.to_owned(), Safetensors::open(dir)?), config))
}

fn open_gguf(path: &Path) -> Result<(Store, Config)> {
    let (gguf, config) = Gguf::open(path)?;
    Ok((Store::Gguf(gguf), config))
}

fn only_gguf(dir: &Path) -> Result<PathBuf> {
    let entries = std::fs::read_dir(dir).map_err(|error| Failure::model(dir, error))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut found: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|end| end == "gguf")).collect();
    match (found.pop(), found.is_empty()) {
        (Some(path), true) => Ok(path),
        (Some(_), false) => Err(Failure::model(dir, "has several GGUF files; name one of them")),
        (None, _) => Err(Failure::model(dir, "has no config.json and no GGUF file")),
    }
}
