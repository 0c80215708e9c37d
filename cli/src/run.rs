//! `hccl run`: the launcher of [`hccl::launch`] as a command.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use hccl::launch::{Bind, Launch, MAX_RANKS};

/// Start the ranks of one host and watch them
///
/// Ranks find each other by themselves: the program calls Communicator::from_env(). Their output appears whole lines at
/// a time with the rank in front. The first rank that fails ends all and is named last; its exit code (128 and the
/// signal if one killed it) is the exit code of the run. 127: there is no such program; 126: it cannot be executed.
#[derive(Args)]
pub(crate) struct Run {
    /// Ranks to start, from 1 to 1024
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_RANKS as u64))]
    ranks: u64,

    /// RAYON_NUM_THREADS of each rank [default: as set, else cores / N]
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    threads_per_rank: Option<u64>,

    /// Also write the output of rank R to DIR/rank-R.log
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,

    /// Run each rank on its own share of the cores, or all on all
    #[arg(long, value_enum, default_value = "cores")]
    bind: BindArg,

    /// Name the job; no other running job of this user may have the name [default: random]
    #[arg(long, value_name = "ID", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    job_id: Option<String>,

    /// The program of every rank and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Clone, Copy, ValueEnum)]
enum BindArg {
    Cores,
    None,
}

/// Runs it; the exit code of the launcher.
#[expect(clippy::print_stderr, reason = "a command tells its errors on stderr")]
pub(crate) fn run(args: Run) -> ExitCode {
    let mut program = args.program.into_iter();
    let launch = Launch::new(program.next().unwrap_or_default())
        .args(program)
        .ranks(args.ranks as usize)
        .threads_per_rank(args.threads_per_rank.map(|threads| threads as usize))
        .log_dir(args.log_dir)
        .job_id(args.job_id)
        .bind(match args.bind {
            BindArg::Cores => Bind::Cores,
            BindArg::None => Bind::None,
        });
    match launch.run() {
        Ok(outcome) => ExitCode::from(outcome.code()),
        Err(error) => {
            eprintln!("hccl: {error}");
            ExitCode::from(code_of(&error))
        }
    }
}

/// As a shell has it: 127 for no such program, 126 for one that cannot be executed.
fn code_of(error: &hccl::Error) -> u8 {
    let not_started = error.to_string().starts_with("cannot start rank");
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    match source.map(io::Error::kind) {
        Some(io::ErrorKind::NotFound) if not_started => 127,
        Some(io::ErrorKind::PermissionDenied) if not_started => 126,
        _ => 2,
    }
}
