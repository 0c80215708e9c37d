//! `--bench`: how fast one rank, a pipeline and tensor parallelism generate, with few and many texts under way.
//!
//! Every mode runs in processes of its own, one after the other, with the same weights and prompts. A rate counts
//! the tokens after all texts had their first one.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use hccl::launch::Launch;
use serde::{Deserialize, Serialize};

use crate::cli::{Args, Parallel};
use crate::engine::{Choice, Ranks};
use crate::failure::{Failure, Result};
use crate::generate::{Limits, Listener, Request};
use crate::job::Job;
use crate::matrix::Matrix;
use crate::memory::{Held, megabytes};
use crate::output::{Output, Relay, VARIABLE};
use crate::pool::Pool;

/// Tokens of each prompt.
const PROMPT: usize = 8;
/// Texts under way in the largest workload, unless `--slots` says otherwise.
const SLOTS: usize = 64;

/// One workload of one mode.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Figure {
    flight: usize,
    tokens_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
}

/// What a rank 0 tells.
#[derive(Debug, Serialize, Deserialize)]
struct Part {
    figures: Vec<Figure>,
    peaks: Vec<u64>,
}

/// Remembers when tokens came.
#[derive(Default)]
struct Meter {
    texts: Vec<Vec<Instant>>,
}

impl Listener for Meter {
    fn start(&mut self, _: usize, _: Instant) -> Result<()> {
        self.texts.push(Vec::new());
        Ok(())
    }

    fn token(&mut self, prompt: usize, _: &Choice, _: bool, at: Instant) -> Result<()> {
        self.texts[prompt].push(at);
        Ok(())
    }
}

impl Meter {
    fn figure(&self, flight: usize) -> Figure {
        let begin = self.texts.iter().filter_map(|text| text.first()).max().copied();
        let end = self.texts.iter().filter_map(|text| text.last()).max().copied();
        let (Some(begin), Some(end)) = (begin, end) else {
            return Figure { flight, tokens_per_s: 0.0, p50_ms: 0.0, p99_ms: 0.0 };
        };
        let after = self.texts.iter().flatten().filter(|at| **at > begin).count();
        let gaps = self.texts.iter().flat_map(|text| text.windows(2)).filter(|gap| gap[0] >= begin || flight == 1);
        let mut gaps: Vec<Duration> = gaps.map(|gap| gap[1] - gap[0]).collect();
        gaps.sort_unstable();
        let at = |share: f64| {
            let place = (gaps.len() as f64 * share) as usize;
            gaps.get(place.min(gaps.len().saturating_sub(1))).map_or(0.0, |gap| gap.as_secs_f64() * 1e3)
        };
        let tokens_per_s = after as f64 / (end - begin).as_secs_f64().max(1e-9);
        Figure { flight, tokens_per_s, p50_ms: at(0.5), p99_ms: at(0.99) }
    }
}

/// Numbers of texts under way that are measured.
fn flights(args: &Args, ranks: usize) -> Vec<usize> {
    let most = args.slots.map_or(SLOTS, |slots| slots as usize);
    let mut flights = vec![1, ranks, most];
    flights.retain(|flight| *flight <= most);
    flights.sort_unstable();
    flights.dedup();
    flights
}

/// The workloads, on rank 0.
///
/// # Errors
/// Those of the ranks.
pub(crate) fn measure(job: &Job, ranks: &mut dyn Ranks) -> Result<String> {
    let (vocab, context) = (job.config.vocab, job.config.context);
    let more = job.args.max_new_tokens as usize;
    let mut figures = Vec::new();
    for flight in flights(&job.args, job.args.ranks()) {
        let limits = Limits { slots: flight, context, stop: &[] };
        let token = |text: usize, place: usize| ((text * 7919 + place * 104_729 + 11) % vocab) as u32;
        let request =
            |text: usize, more: usize| Request { tokens: (0..PROMPT).map(|place| token(text, place)).collect(), more };
        let warm: Vec<Request> = (0..flight).map(|text| request(text, 2)).collect();
        ranks.generate(&warm, limits, &mut Meter::default())?;
        let requests: Vec<Request> = (0..flight).map(|text| request(text, more)).collect();
        let mut meter = Meter::default();
        ranks.generate(&requests, limits, &mut meter)?;
        figures.push(meter.figure(flight));
    }
    serde_json::to_string(&figures).map_err(|error| Failure::Output(error.into()))
}

/// Sends the figures to the program that asked for them.
///
/// # Errors
/// [`Failure::Output`].
pub(crate) fn send(figures: &str, held: &[Held]) -> Result<()> {
    let read = || -> serde_json::Result<String> {
        let peaks = held.iter().map(|held| held.peak).collect();
        serde_json::to_string(&Part { figures: serde_json::from_str(figures)?, peaks })
    };
    let text = read().map_err(|error| Failure::Output(error.into()))?;
    Output::open()?.write(&text)
}

/// Measures all modes and prints the table; the exit code.
///
/// # Errors
/// Those of the flags, of starting ranks and of passing figures.
pub(crate) fn run(args: &Args, launch: &dyn Fn(usize) -> Result<Launch>) -> Result<u8> {
    let ranks = args.ranks();
    let threads = args.threads_per_rank.unwrap_or(1);
    let mut rows: Vec<[String; 8]> = vec![HEADER.map(str::to_owned)];
    let mut notes = Vec::new();
    let mut alone: Vec<Figure> = Vec::new();
    let mut name = String::new();
    for (mode, count) in [(Parallel::None, 1), (Parallel::Pp, ranks), (Parallel::Tp, ranks)] {
        let flag = mode.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned());
        let asked = Args { parallel: Some(mode), ranks: Some(count as u64), ..args.clone() };
        match Job::new(asked, count) {
            Ok(job) => name = format!("{}, {} weights", job.source().path().display(), job.dtype.name()),
            Err(failure @ Failure::Usage(_)) if mode == Parallel::Tp => {
                notes.push(failure.to_string());
                continue;
            }
            Err(failure) => return Err(failure),
        }
        let relay = Relay::open(true)?;
        let flags = ["--parallel".into(), flag.clone(), "--threads-per-rank".into(), threads.to_string()];
        let flags = flags.into_iter().chain(["--bench-part".into(), "--ranks".into(), ranks.to_string()]);
        let outcome = launch(count)?.args(flags).env(VARIABLE, relay.place()).run()?;
        let said = relay.finish()?;
        if !outcome.is_success() {
            return Ok(outcome.code());
        }
        let part: Part = serde_json::from_slice(&said).map_err(|error| Failure::Output(error.into()))?;
        for figure in &part.figures {
            let one = alone.iter().find(|one| one.flight == figure.flight).map(|one| one.tokens_per_s);
            rows.push(row(&flag, count, threads, figure, one, &part.peaks));
        }
        if mode == Parallel::None {
            alone = part.figures;
        }
    }
    notes.push(rates()?);
    Output::Stdout.write(&format!("{name}\n\n{}\n{}\n", table(&rows), notes.join("\n")))?;
    Ok(0)
}

const HEADER: [&str; 8] = [
    "parallel",
    "ranks x threads",
    "in flight",
    "tokens/s",
    "speed-up",
    "p50 ms",
    "p99 ms",
    "peak memory of each rank",
];

fn row(mode: &str, ranks: usize, threads: u64, figure: &Figure, alone: Option<f64>, peaks: &[u64]) -> [String; 8] {
    [
        mode.to_owned(),
        format!("{ranks} x {threads}"),
        figure.flight.to_string(),
        format!("{:.1}", figure.tokens_per_s),
        alone.map_or("1.00".into(), |alone| format!("{:.2}", figure.tokens_per_s / alone)),
        format!("{:.2}", figure.p50_ms),
        format!("{:.2}", figure.p99_ms),
        peaks.iter().map(|peak| megabytes(*peak)).collect::<Vec<_>>().join(", "),
    ]
}

fn table(rows: &[[String; 8]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let line = |row: &[String; 8]| {
        let cells = row.iter().enumerate().map(|(at, cell)| match at {
            0 | 7 => format!("{cell:<width$}", width = width(at)),
            _ => format!("{cell:>width$}", width = width(at)),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// How fast weights are read by one thread and by two, and what that allows.
fn rates() -> Result<String> {
    let matrix = Matrix::filled(32_768, 4096, 0.5);
    let rate = |threads: usize| -> Result<f64> {
        let refused = |error: std::io::Error| Failure::Usage(format!("--bench: a thread: {error}"));
        let mut pool = Pool::new(threads).map_err(refused)?;
        let x = vec![1f32; matrix.cols()];
        let mut y = Vec::new();
        let mut best = Duration::MAX;
        for _ in 0..8 {
            let start = Instant::now();
            matrix.product(0..matrix.rows(), &x, 1, &mut y, &mut pool);
            best = best.min(start.elapsed());
        }
        Ok(matrix.bytes() as f64 / best.as_secs_f64() / 1e9)
    };
    let (one, two) = (rate(1)?, rate(2)?);
    Ok(format!(
        "weights are read at {one:.1} GB/s by 1 thread (B1) and {two:.1} GB/s by 2 (B2): min(2, B2/B1) = {:.2}",
        (two / one).min(2.0)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_counts_after_all_texts_have_begun() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let meter = Meter { texts: vec![vec![at(0), at(10), at(20), at(30)], vec![at(10), at(20), at(30), at(50)]] };
        let figure = meter.figure(2);
        assert_eq!(figure.tokens_per_s, 5.0 / 0.04);
        assert_eq!((figure.p50_ms, figure.p99_ms), (10.0, 20.0));
    }

    #[test]
    fn columns_line_up() {
        let figure = Figure { flight: 2, tokens_per_s: 10.0, p50_ms: 3.0, p99_ms: 4.0 };
        let rows = [HEADER.map(str::to_owned), row("pp", 2, 1, &figure, Some(5.0), &[1_000_000, 2_000_000])];
        let text = table(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].find("speed-up").map(|at| at + 4), lines[1].find("2.00"));
        assert!(lines[1].ends_with("1.0 MB, 2.0 MB"), "{text}");
    }
}
