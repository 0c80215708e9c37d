//! What rank 0 tells: text as it is generated, or lines of JSON.

use std::time::Instant;

use serde::Serialize;

use crate::engine::Choice;
use crate::failure::{Failure, Result};
use crate::generate::Listener;
use crate::job::Job;
use crate::output::Output;
use crate::tokenizer::Tokenizer;

/// Hears of tokens, and tells in the order of the prompts: the first text that has not ended is shown as it grows.
pub(crate) struct Report<'a> {
    job: &'a Job,
    tokenizer: &'a Tokenizer,
    prompts: &'a [String],
    output: Output,
    texts: Vec<Text>,
    /// Texts that were told of in full.
    told: usize,
    started: Instant,
}

#[derive(Default)]
struct Text {
    tokens: Vec<u32>,
    started: Option<Instant>,
    first: Option<Instant>,
    latest: Option<Instant>,
    best: Vec<(u32, f32)>,
    ended: bool,
    /// Decoded, and how much of it was shown.
    text: String,
    shown: usize,
    /// Tokens before `from` are in `text`; those from there to `to` were decoded to know what comes after them.
    from: usize,
    to: usize,
}

#[derive(Serialize)]
struct Line<'a> {
    prompt: &'a str,
    tokens: &'a [u32],
    text: &'a str,
    first_token_ms: f64,
    ms_per_token: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logits: Option<&'a [(u32, f32)]>,
}

impl<'a> Report<'a> {
    /// Tells of these prompts.
    pub(crate) fn new(job: &'a Job, tokenizer: &'a Tokenizer, prompts: &'a [String], output: Output) -> Self {
        let texts = prompts.iter().map(|_| Text::default()).collect();
        Report { job, tokenizer, prompts, output, texts, told: 0, started: Instant::now() }
    }

    /// How fast it was, in words.
    pub(crate) fn summary(&self) -> String {
        let tokens: usize = self.texts.iter().map(|text| text.tokens.len()).sum();
        let seconds = self.started.elapsed().as_secs_f64();
        let rate = tokens as f64 / seconds.max(1e-9);
        let first: f64 = self.texts.iter().map(Text::first_token_ms).sum::<f64>() / self.texts.len().max(1) as f64;
        let times: Vec<f64> = self.texts.iter().filter_map(Text::ms_per_token).collect();
        let each = match times.len() {
            0 => String::new(),
            count => format!(", {:.1} ms a token after it", times.iter().sum::<f64>() / count as f64),
        };
        format!("{tokens} tokens in {seconds:.2} s ({rate:.1} a second); first token after {first:.1} ms{each}")
    }

    fn tell(&mut self) -> Result<()> {
        while self.told < self.texts.len() {
            let ended = self.texts[self.told].ended;
            match self.job.args.json {
                true if ended => self.tell_line()?,
                true => return Ok(()),
                false => self.show()?,
            }
            if !ended {
                return Ok(());
            }
            self.told += 1;
        }
        Ok(())
    }

    fn tell_line(&mut self) -> Result<()> {
        let text = &self.texts[self.told];
        let line = Line {
            prompt: &self.prompts[self.told],
            tokens: &text.tokens,
            text: &text.text,
            first_token_ms: text.first_token_ms(),
            ms_per_token: text.ms_per_token(),
            logits: self.job.args.logits.map(|_| &text.best[..]),
        };
        let line = serde_json::to_string(&line).map_err(|error| Failure::Output(error.into()))?;
        self.output.write(&(line + "\n"))
    }

    /// What is new of the text that is shown.
    fn show(&mut self) -> Result<()> {
        let text = &mut self.texts[self.told];
        let mut new = String::new();
        if text.shown == 0 && !text.text.is_empty() || text.ended && text.text.is_empty() {
            let prompt = &self.prompts[self.told];
            match (self.job.args.chat, self.prompts.len()) {
                (true, 1) => (),
                (true, _) => new = format!("> {prompt}\n"),
                (false, _) => new.clone_from(prompt),
            }
        }
        new.push_str(&text.text[text.shown..]);
        text.shown = text.text.len();
        if text.ended {
            let more = self.told + 1 < self.prompts.len();
            new.push_str(if more { "\n\n" } else { "\n" });
        }
        if new.is_empty() { Ok(()) } else { self.output.write(&new) }
    }
}

impl Text {
    fn first_token_ms(&self) -> f64 {
        match (self.started, self.first) {
            (Some(started), Some(first)) => (first - started).as_secs_f64() * 1e3,
            _ => 0.0,
        }
    }

    fn ms_per_token(&self) -> Option<f64> {
        let more = self.tokens.len().checked_sub(1).filter(|more| *more > 0)?;
        Some((self.latest? - self.first?).as_secs_f64() * 1e3 / more as f64)
    }

    /// Decodes what tokens after `from` add. A character may have several tokens: it is added when it is whole, or at
    /// the end.
    fn grow(&mut self, tokenizer: &Tokenizer) -> Result<(), String> {
        let known = tokenizer.decode(&self.tokens[self.from..self.to])?;
        let all = tokenizer.decode(&self.tokens[self.from..])?;
        if all.ends_with('\u{fffd}') && !self.ended {
            return Ok(());
        }
        self.text.push_str(all.get(known.len()..).unwrap_or_default());
        (self.from, self.to) = (self.to, self.tokens.len());
        Ok(())
    }
}

impl Listener for Report<'_> {
    fn start(&mut self, prompt: usize, at: Instant) -> Result<()> {
        self.texts[prompt].started = Some(at);
        Ok(())
    }

    fn token(&mut self, prompt: usize, choice: &Choice, last: bool, at: Instant) -> Result<()> {
        let text = &mut self.texts[prompt];
        if text.tokens.is_empty() {
            text.first = Some(at);
            text.best.clone_from(&choice.best);
        }
        text.tokens.push(choice.token);
        (text.latest, text.ended) = (Some(at), last);
        text.grow(self.tokenizer).map_err(|problem| Failure::model(self.job.source().path(), problem))?;
        self.tell()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_appear_when_they_are_whole() {
        let tokenizer = Tokenizer::bytes();
        let tokens = tokenizer.encode("aü€").unwrap();
        let mut text = Text::default();
        let mut seen = Vec::new();
        for token in tokens {
            text.tokens.push(token);
            text.grow(&tokenizer).unwrap();
            seen.push(text.text.clone());
        }
        assert_eq!(seen, ["a", "a", "aü", "aü", "aü", "aü€"]);
        text.tokens.push(tokenizer.encode("ü").unwrap()[0]);
        text.ended = true;
        text.grow(&tokenizer).unwrap();
        assert_eq!(text.text, "aü€\u{fffd}");
    }
}
