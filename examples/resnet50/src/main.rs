//! Data-parallel ResNet-50 on real images: `resnet50 --ranks 2`.
//!
//! ```text
//! this program -+- rank 0: the same program -+- Job      flags and images, checked
//!               |                            +- Trainer  the loop
//!               +- rank 1                    +- Teller   progress, CSV, plot (rank 0)
//! ```
//!
//! Without `--ranks`, and under another launcher, the program is a rank itself.

mod cli;
mod compare;
pub mod data;
mod eval;
mod failure;
mod job;
pub mod model;
pub mod plot;
pub mod report;
mod resume;
mod speed;
mod tell;
mod train;
mod weights;

use std::io::IsTerminal;
use std::process::ExitCode;

use hccl::Communicator;
use hccl::launch::{self, Launch};

use cli::Args;
use failure::{Failure, Result};
use job::Job;

fn main() -> ExitCode {
    let args = Args::read();
    let (said, code) = match launch::is_rank() {
        true => rank(args),
        false => start(args).map_or_else(|failure| failure.verdict(0), |code| (None, code)),
    };
    if let Some(text) = said {
        complain(&text);
    }
    ExitCode::from(code)
}

#[expect(clippy::print_stderr, reason = "a program tells its errors on stderr")]
fn complain(text: &str) {
    eprintln!("resnet50: {text}");
}

/// Checks all that can be checked, then starts the ranks, or is the only one; the exit code.
fn start(args: Args) -> Result<u8> {
    let ranks = args.ranks();
    let job = Job::new(args, ranks)?;
    job.check_files()?;
    let threads = job.args.threads_per_rank.map(|threads| threads as usize);
    let launch = |ranks| {
        let launch = launch::this_program(ranks)?.threads_per_rank(threads);
        Ok(match std::io::stdout().is_terminal() {
            true => launch.env(tell::TERMINAL, console::Term::stdout().size().1.to_string()),
            false => launch,
        })
    };
    if job.args.compare {
        return compare(&job, &launch);
    }
    if ranks == 1 && threads.is_none() {
        return train::run(&job, Communicator::from_env()?).map(|()| 0);
    }
    let checkpoints = job.args.checkpoint.clone();
    // The ranks load the images themselves.
    drop(job);
    let outcome = launch(ranks)?.run()?;
    if let (false, Some(dir)) = (outcome.is_success(), checkpoints) {
        hccl_candle::checkpoint::sweep(&dir);
    }
    Ok(outcome.code())
}

#[expect(clippy::print_stdout, reason = "the table is what was asked for")]
fn compare(job: &Job, launch: &dyn Fn(usize) -> Result<Launch>) -> Result<u8> {
    let (code, table) = compare::run(job, launch)?;
    if let Some(table) = table {
        println!("{table}");
    }
    Ok(code)
}

/// One rank, whoever started it: what it says of its failure, and the exit code.
fn rank(args: Args) -> (Option<String>, u8) {
    let comm = match Communicator::from_env() {
        Ok(comm) => comm,
        Err(error) => return Failure::from(error).verdict(0),
    };
    let rank = comm.rank().index();
    let trained = check_launcher(&args, comm.size())
        .and_then(|()| Job::new(args, comm.size()))
        .and_then(|job| train::run(&job, comm));
    trained.map_or_else(|failure| failure.verdict(rank), |()| (None, 0))
}

/// Refuses flags that ask for what another launcher has decided.
fn check_launcher(args: &Args, world: usize) -> Result<()> {
    let refuse = |problem: String| Err(Failure::Usage(problem));
    if args.ranks.is_some_and(|ranks| ranks != world as u64) {
        return refuse(format!("--ranks {}: the launcher has started {world}", args.ranks()));
    }
    if args.compare && args.speed_file.is_none() {
        return refuse("--compare: starts ranks itself, so it cannot run under another launcher; use --ranks".into());
    }
    let has = candle_core::utils::get_num_threads() as u64;
    match args.threads_per_rank {
        Some(wanted) if wanted != has => {
            refuse(format!("--threads-per-rank {wanted}: the launcher has set RAYON_NUM_THREADS for {has}"))
        }
        _ => Ok(()),
    }
}
