//! `hccl bench`: how long the collectives take here, in the manner of nccl-tests.
//!
//! ```text
//! hccl bench --ranks 2 ── starts ranks: processes, or threads ──┐
//! hccl run / mpirun / torchrun: hccl bench ─────────────────────┴─> per point: fill, check, warm up, time, report
//! ```
//!
//! The protocol: barrier, then every rank times its call, and the time of the call is the longest of all ranks. `bytes`
//! is the larger buffer of a rank. Rank 0 chooses how many calls, and reports.

mod buffers;
mod cell;
mod measure;
mod operation;
mod plan;
mod plot;
mod report;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use hccl::launch::{self, MAX_RANKS};
use hccl::{Communicator, DType, OpKind};

use crate::bench_pipeline;
use operation::Operation;
use plan::{Iterations, Plan, Size};
use report::Report;

/// Where rank 0 writes, when this command started the ranks: their own output has prefixes.
const OUT: &str = "HCCL_BENCH_OUT";

/// Measure collectives: time, bandwidth, correctness
///
/// Starts its own ranks, unless a launcher (hccl run, mpirun, torchrun, srun) started this process as one: then that
/// world is measured. Each call follows a barrier and takes as long as its slowest rank. Bytes are those of the larger
/// buffer of a rank: what all-gather receives, what reduce-scatter and all-to-all send.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Bench {
    #[command(subcommand)]
    other: Option<Other>,

    /// What to measure
    #[arg(value_enum, default_value = "all-reduce", value_name = "OPERATION")]
    operations: Vec<Which>,

    /// Ranks to start [default: 2, or what the launcher started]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_RANKS as u64))]
    ranks: Option<u64>,

    /// Start the ranks as threads of this process
    #[arg(long)]
    threads: bool,

    /// Bytes to measure, as 8,64K,1M
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with_all = ["min", "max", "factor"])]
    sizes: Vec<Size>,

    /// Fewest bytes
    #[arg(long, value_name = "BYTES", default_value = "8")]
    min: Size,

    /// Most bytes
    #[arg(long, value_name = "BYTES", default_value = "64M")]
    max: Size,

    /// From one size to the next
    #[arg(long, value_name = "F", default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..=1 << 30))]
    factor: u64,

    /// Element type
    #[arg(long, default_value = "f32")]
    dtype: DType,

    /// Reduce operation: sum, prod, min, max, or avg of floats
    #[arg(long, default_value = "sum", value_parser = parse_op)]
    op: OpKind,

    /// Buffers that peers reach, or plain slices
    #[arg(long, value_enum, default_value = "device")]
    buffers: BuffersArg,

    /// all-reduce, reduce, all-gather and reduce-scatter on one buffer instead of two
    #[arg(long)]
    in_place: bool,

    /// Timed calls of a point, or auto: as many as fit into --time
    #[arg(long, value_name = "auto|N", default_value = "auto")]
    iters: Iterations,

    /// Seconds of timed calls of a point
    #[arg(long, value_name = "SECONDS", default_value_t = 0.15, value_parser = parse_seconds)]
    time: f64,

    /// Compare every element of the results, before and after the timed calls
    #[arg(long)]
    check: bool,

    /// Print CSV: peer,op,ranks,bytes,median_us,p99_us,p10_us,b2b_us
    #[arg(long, conflicts_with = "json")]
    csv: bool,

    /// Print JSON: an array of points
    #[arg(long)]
    json: bool,

    /// Draw bus bandwidth over bytes
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,

    /// First column of the CSV
    #[arg(long, default_value = "hccl")]
    name: String,
}

/// What is measured by other rules.
#[derive(clap::Subcommand)]
enum Other {
    Pipeline(bench_pipeline::Bench),
}

/// An operation, or all of them.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    Scatter,
    Gather,
    AllToAll,
    SendRecv,
    Barrier,
    All,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BuffersArg {
    Device,
    Slice,
}

fn parse_op(text: &str) -> Result<OpKind, String> {
    let found = OpKind::ALL.iter().copied().find(|op| op.name() == text);
    found.ok_or_else(|| "operations are sum, prod, min, max and avg".to_owned())
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "seconds are a number from 0 to 3600".to_owned())
}

/// Why nothing, or not everything, was measured.
#[derive(Debug)]
pub(crate) struct Problem {
    text: String,
    code: u8,
}

impl Problem {
    /// A flag that cannot be obeyed.
    fn flag(text: impl Into<String>) -> Problem {
        Problem { text: text.into(), code: 2 }
    }
}

impl From<hccl::Error> for Problem {
    fn from(error: hccl::Error) -> Problem {
        Problem { text: error.to_string(), code: launch::exit_code(&error) }
    }
}

/// Runs it; the exit code of the command: 1 for wrong values, 2 for flags that cannot be obeyed.
#[expect(clippy::print_stderr, reason = "a command tells its errors on stderr")]
pub(crate) fn run(args: Bench) -> ExitCode {
    if let Some(Other::Pipeline(args)) = args.other {
        return bench_pipeline::run(args);
    }
    match start(args) {
        Ok(code) => ExitCode::from(code),
        Err(problem) => {
            eprintln!("hccl bench: {}", problem.text);
            ExitCode::from(problem.code)
        }
    }
}

fn start(args: Bench) -> Result<u8, Problem> {
    let (threads, asked) = (args.threads, args.ranks.map(|ranks| ranks as usize));
    let plan = Plan::of(args)?;
    if launch::is_rank() {
        if threads {
            return Err(Problem::flag("--threads: a launcher started this process as a rank, and ranks it stays"));
        }
        let comm = Communicator::from_env()?;
        if let Some(asked) = asked.filter(|asked| *asked != comm.size()) {
            let size = comm.size();
            return Err(Problem::flag(format!("--ranks {asked}: the launcher started {size}; leave --ranks out")));
        }
        return rank(&comm, &plan);
    }
    let ranks = asked.unwrap_or(2);
    plan.check_ranks(ranks)?;
    if threads {
        return as_threads(ranks, &plan);
    }
    if ranks == 1 {
        return rank(&Communicator::from_env()?, &plan);
    }
    as_processes(ranks)
}

fn as_threads(ranks: usize, plan: &Plan) -> Result<u8, Problem> {
    let ended = hccl::local_results(ranks, |comm| rank(&comm, plan))?;
    let knock_on = |problem: &Problem| problem.code != 1;
    let mut code = 0;
    let mut problems = Vec::new();
    for result in ended {
        match result {
            Ok(own) => code = code.max(own),
            Err(problem) => problems.push(problem),
        }
    }
    problems.sort_by_key(knock_on);
    problems.into_iter().next().map_or(Ok(code), Err)
}

/// Starts this program again as ranks, and passes on what rank 0 reports, without the launcher's prefixes.
fn as_processes(ranks: usize) -> Result<u8, Problem> {
    let pipe = |error| Problem { text: format!("a pipe to rank 0: {error}"), code: 1 };
    let (mut reports, writer) = io::pipe().map_err(pipe)?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), writer.as_raw_fd());
    let launch = launch::this_program(ranks)?.env(OUT, path);
    let outcome = std::thread::scope(|scope| {
        // Ends when the last writer is gone; a reader of ours that goes away first ends the reports, not the ranks.
        scope.spawn(|| io::copy(&mut reports, &mut io::stdout().lock()));
        let outcome = launch.run();
        drop(writer);
        outcome
    });
    Ok(outcome?.code())
}

/// One rank's part.
fn rank(comm: &Communicator, plan: &Plan) -> Result<u8, Problem> {
    plan.check_ranks(comm.size())?;
    let mut report = match comm.rank().index() {
        0 => Some(Report::new(plan, comm.size(), sink()?)?),
        _ => None,
    };
    let mut wrong = 0;
    measure::all(comm, plan, &mut |point| {
        wrong += point.wrong.unwrap_or(0);
        report.as_mut().map_or(Ok(()), |report| report.add(point))
    })?;
    if let Some(report) = report {
        report.finish()?;
    }
    if wrong == 0 {
        return Ok(0);
    }
    let text = format!("{wrong} elements are wrong");
    if comm.rank().index() == 0 { Err(Problem { text, code: 1 }) } else { Ok(1) }
}

/// Where the report goes.
fn sink() -> Result<Box<dyn Write>, Problem> {
    let Some(path) = std::env::var_os(OUT) else { return Ok(Box::new(io::stdout())) };
    let file: io::Result<File> = OpenOptions::new().write(true).open(&path);
    let problem = |error| Problem { text: format!("{OUT}={}: {error}", PathBuf::from(&path).display()), code: 1 };
    Ok(Box::new(file.map_err(problem)?))
}

impl Which {
    fn operations(self) -> Vec<Operation> {
        match self {
            Which::AllReduce => vec![Operation::AllReduce],
            Which::Reduce => vec![Operation::Reduce],
            Which::Broadcast => vec![Operation::Broadcast],
            Which::AllGather => vec![Operation::AllGather],
            Which::ReduceScatter => vec![Operation::ReduceScatter],
            Which::Scatter => vec![Operation::Scatter],
            Which::Gather => vec![Operation::Gather],
            Which::AllToAll => vec![Operation::AllToAll],
            Which::SendRecv => vec![Operation::SendRecv],
            Which::Barrier => vec![Operation::Barrier],
            Which::All => Operation::ALL.to_vec(),
        }
    }
}
