//! LLaMA text generation over several ranks: `llama-pp --fetch --ranks 2 --prompt "Once upon a time"`.
//!
//! ```text
//! this program -+- rank 0: the same program -+- Job     flags and headers of the model, checked
//!               |                            +- Part    its layers, read by it alone
//!               |                            +- generate, on rank 0: which token of which text is computed next
//!               +- rank 1                    +- ring (pp) or engine/whole (tp, none): how ranks compute it together
//! ```
//!
//! Without `--ranks`, and under another launcher, the program is a rank itself.

mod bench;
mod cli;
mod config;
mod engine;
mod failure;
mod fetch;
mod generate;
mod job;
mod kernel;
mod matrix;
mod memory;
mod model;
mod output;
mod pool;
mod report;
mod ring;
mod sample;
mod split;
mod step;
mod tokenizer;
mod weights;

use std::process::ExitCode;

use clap::Parser;
use hccl::Communicator;
use hccl::launch::{self, Launch};

use cli::Args;
use failure::{Failure, Result};
use generate::Limits;
use job::Job;
use output::{Output, Relay};
use report::Report;

fn main() -> ExitCode {
    let args = Args::parse();
    let (said, code) = match launch::is_rank() {
        true => rank(args),
        false => start(args).map_or_else(|failure| failure.verdict(0), |code| (None, code)),
    };
    if let Some(text) = said {
        tell(&text);
    }
    ExitCode::from(code)
}

#[expect(clippy::print_stderr, reason = "a program tells of itself on stderr")]
fn tell(text: &str) {
    eprintln!("llama-pp: {text}");
}

/// Checks all that can be checked, then starts the ranks, or is the only one; the exit code.
fn start(args: Args) -> Result<u8> {
    if args.fetch {
        tell(fetch::WHAT);
        fetch::model()?;
    }
    let threads = args.threads_per_rank.map(|threads| threads as usize);
    let launch = |ranks| -> Result<Launch> { Ok(launch::this_program(ranks)?.threads_per_rank(threads)) };
    if args.bench {
        return bench::run(&args, &launch);
    }
    let ranks = args.ranks();
    let job = Job::new(args, ranks)?;
    if ranks == 1 {
        return run(&job, &Communicator::from_env()?).map(|()| 0);
    }
    let prompts = job.prompts()?;
    job.requests(&job.tokenizer()?, &prompts)?;
    // The ranks read the model themselves.
    drop(job);
    let relay = Relay::open(false)?;
    let outcome = launch(ranks)?.env(output::VARIABLE, relay.place()).run()?;
    match relay.finish() {
        Err(failure) if outcome.is_success() => Err(failure),
        _ => Ok(outcome.code()),
    }
}

/// One rank, whoever started it: what it says of its failure, and the exit code.
fn rank(args: Args) -> (Option<String>, u8) {
    let comm = match Communicator::from_env() {
        Ok(comm) => comm,
        Err(error) => return Failure::from(error).verdict(0),
    };
    let rank = comm.rank().index();
    let done =
        check_launcher(&args, comm.size()).and_then(|()| Job::new(args, comm.size())).and_then(|job| run(&job, &comm));
    done.map_or_else(|failure| failure.verdict(rank), |()| (None, 0))
}

/// Refuses flags that ask for what another launcher has decided.
fn check_launcher(args: &Args, world: usize) -> Result<()> {
    if args.ranks.is_some_and(|ranks| ranks != world as u64) && !args.bench_part {
        let problem = format!("--ranks {}: the launcher has started {world}", args.ranks());
        return Err(Failure::Usage(problem));
    }
    if args.bench && !args.bench_part {
        return Err(Failure::Usage("--bench: starts ranks itself, so it cannot run under another launcher".into()));
    }
    Ok(())
}

/// The work of one rank. Collective.
fn run(job: &Job, comm: &Communicator) -> Result<()> {
    match (comm.rank().index(), job.args.bench_part) {
        (0, false) => lead(job, comm),
        (0, true) => {
            let mut ranks = engine::join(job, comm)?;
            let figures = bench::measure(job, &mut *ranks)?;
            ranks.finish()?;
            bench::send(&figures, &memory::gather(comm, ranks.bytes())?)
        }
        _ => {
            let mut ranks = engine::join(job, comm)?;
            ranks.serve()?;
            memory::gather(comm, ranks.bytes()).map(|_| ())
        }
    }
}

/// The work of rank 0: reads the prompts, has tokens generated, tells.
fn lead(job: &Job, comm: &Communicator) -> Result<()> {
    let tokenizer = job.tokenizer()?;
    let prompts = job.prompts()?;
    let requests = job.requests(&tokenizer, &prompts)?;
    let output = Output::open()?;
    let mut ranks = engine::join(job, comm)?;
    let mut report = Report::new(job, &tokenizer, &prompts, output);
    let limits = Limits { slots: job.slots, context: job.config.context, stop: &job.config.stop };
    ranks.generate(&requests, limits, &mut report)?;
    ranks.finish()?;
    let summary = report.summary();
    for (rank, held) in memory::gather(comm, ranks.bytes())?.into_iter().enumerate() {
        tell(&memory::line(job, rank, held));
    }
    tell(&summary);
    Ok(())
}
