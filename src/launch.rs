//! Starts the ranks of one host as processes, and leaves none behind.
//!
//! ```text
//! launcher -+- guardian       kills the group when the launcher is gone, however it went
//!           +- rank 0  --->   stdout and stderr, whole lines:   [rank 0] epoch 1 loss 2.31
//!           +- rank 1  --->                                     [rank 1] epoch 1 loss 2.29
//! ```
//!
//! - Every rank finds `HCCL_RANK`, `HCCL_WORLD_SIZE`, `HCCL_LOCAL_RANK`, `HCCL_LOCAL_WORLD_SIZE`, `HCCL_JOB_ID` and
//!   `HCCL_GENERATION` in its environment, from which [`Communicator::from_env`](crate) makes its communicator, and
//!   `RAYON_NUM_THREADS` = cores / ranks unless that was set already. Its stdin is empty.
//! - Every rank runs on its own share of the cores that the launcher may use; see [`Bind`].
//! - Lines of ranks never mix. A line longer than 64 KiB is cut, bytes that are not text pass, a progress bar redrawn
//!   with `\r` is redrawn on a terminal and plain lines elsewhere.
//! - The first rank that fails ends all: SIGTERM, after a grace (1 s) SIGKILL. Which was first, and why, is printed last
//!   on stderr, exits that only followed from it before that, and its code is the code of the run. A rank killed by a
//!   signal counts as first before a panic, a panic before another code, and any before [`exit_code`]'s code for a lost
//!   peer, among all that end within 150 ms (500 ms while every rank says that it only lost a peer).
//! - SIGINT, SIGTERM and SIGHUP are passed on to the ranks, which get the same grace; a second one kills them at once.
//! - No process outlives the launcher, not after its SIGKILL, and no child of a rank outlives the run, unless it
//!   left the process group of the ranks.
//!
//! An example program that starts its own ranks:
//!
//! ```
//! use hccl::launch;
//!
//! # fn parse_ranks() -> usize { 1 }
//! fn main() -> hccl::Result<()> {
//!     let ranks = parse_ranks();
//!     if ranks > 1 && !launch::is_rank() {
//!         let outcome = launch::this_program(ranks)?.run()?;
//!         std::process::exit(outcome.code().into());
//!     }
//!     // From here on this process is a rank, or alone.
//!     Ok(())
//! }
//! ```

mod cores;
mod files;
mod lines;
mod outcome;
mod output;
mod supervise;
mod sys;
#[cfg(test)]
mod tests;
mod verdict;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::pipe::{PipeFlags, pipe_with};

use crate::rendezvous::environment::{self, World};
use crate::{Error, ErrorKind, Result};
use output::{Log, Output, Target};
use supervise::{Supervisor, Watched};
use sys::{Group, Signals};

pub use outcome::Outcome;
pub use verdict::Exit;

/// Most ranks of one launch.
///
/// ```
/// use hccl::launch::{Launch, MAX_RANKS};
/// let refused = Launch::new("true").ranks(MAX_RANKS + 1).run().unwrap_err();
/// assert!(refused.to_string().contains("from 1 to 1024"));
/// ```
pub const MAX_RANKS: usize = 1024;

/// The exit code that says: this rank only lost a peer (`EX_TEMPFAIL`).
const KNOCK_ON: u8 = 75;

/// One launch at a time: signals belong to the process.
static RUNNING: Mutex<()> = Mutex::new(());

/// On which cores ranks run.
///
/// ```
/// use hccl::launch::{Bind, Launch};
/// let cores = std::thread::available_parallelism().unwrap().to_string();
/// // `nproc` says on how many cores it may run.
/// let all = Launch::new("sh").args(["-c", "test $(nproc) = $CORES"]).env("CORES", cores).ranks(2).bind(Bind::None);
/// assert!(all.run()?.is_success());
/// # Ok::<(), hccl::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bind {
    /// Each on its contiguous share of the cores that the launcher may use; one rank on all of them; when there are
    /// more ranks than cores, each on one core, in turn.
    #[default]
    Cores,
    /// All on all cores that the launcher may use.
    None,
}

/// A launch to be: which program, how many ranks.
///
/// ```
/// use hccl::launch::Launch;
///
/// let outcome = Launch::new("sh").args(["-c", "exit $((HCCL_RANK * 7))"]).ranks(2).run()?;
/// assert_eq!((outcome.code(), outcome.failed_rank()), (7, Some(1)));
/// # Ok::<(), hccl::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a launch starts nothing before `run`"]
pub struct Launch {
    program: OsString,
    args: Vec<OsString>,
    ranks: usize,
    threads: Option<usize>,
    log_dir: Option<PathBuf>,
    bind: Bind,
    env: Vec<(OsString, OsString)>,
    job: Option<String>,
    grace: Duration,
}

impl Launch {
    /// A launch of one rank of `program`, looked up in `PATH` unless it holds a slash.
    ///
    /// ```
    /// use hccl::launch::Launch;
    /// assert!(Launch::new("true").run()?.is_success());
    /// let refused = Launch::new("no-such-program").run().unwrap_err();
    /// assert!(refused.to_string().contains("there is no program no-such-program"));
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn new(program: impl Into<OsString>) -> Launch {
        Launch {
            program: program.into(),
            args: Vec::new(),
            ranks: 1,
            threads: None,
            log_dir: None,
            bind: Bind::Cores,
            env: Vec::new(),
            job: None,
            grace: Duration::from_secs(1),
        }
    }

    /// Adds arguments of the program.
    ///
    /// ```
    /// use hccl::launch::Launch;
    /// let outcome = Launch::new("sh").args(["-c", "exit $1", "sh"]).args(["6"]).run()?;
    /// assert_eq!(outcome.code(), 6);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Launch {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// How many ranks to start, from 1 to [`MAX_RANKS`]. The default is 1.
    ///
    /// ```
    /// use hccl::launch::Launch;
    /// let script = "test $HCCL_WORLD_SIZE = 3 && test $HCCL_RANK -lt 3";
    /// assert!(Launch::new("sh").args(["-c", script]).ranks(3).run()?.is_success());
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn ranks(mut self, ranks: usize) -> Launch {
        self.ranks = ranks;
        self
    }

    /// `RAYON_NUM_THREADS` of each rank, at least 1. `None`, the default, leaves a value that is set, and else takes
    /// cores / ranks.
    ///
    /// ```
    /// use hccl::launch::Launch;
    /// let script = "test $RAYON_NUM_THREADS = 5";
    /// assert!(Launch::new("sh").args(["-c", script]).threads_per_rank(Some(5)).run()?.is_success());
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn threads_per_rank(mut self, threads: Option<usize>) -> Launch {
        self.threads = threads;
        self
    }

    /// Also writes all that rank `r` says to `rank-r.log` in this directory, without prefixes. The directory is made,
    /// older files of these names are emptied.
    ///
    /// ```
    /// use hccl::launch::Launch;
    /// let dir = std::env::temp_dir().join(format!("hccl-logs-{}", std::process::id()));
    /// Launch::new("sh").args(["-c", "echo loss $HCCL_RANK.5"]).ranks(2).log_dir(Some(dir.clone())).run()?;
    /// assert_eq!(std::fs::read_to_string(dir.join("rank-1.log")).unwrap(), "loss 1.5\n");
    /// # std::fs::remove_dir_all(dir).unwrap();
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn log_dir(mut self, dir: Option<PathBuf>) -> Launch {
        self.log_dir = dir;
        self
    }

    /// On which cores the ranks run.
    ///
    /// ```
    /// use hccl::launch::{Bind, Launch};
    /// // With the default, one core for each of very many ranks.
    /// let launch = Launch::new("sh").args(["-c", "test $(nproc) = 1"]).ranks(64);
    /// assert!(launch.clone().bind(Bind::Cores).run()?.is_success());
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn bind(mut self, bind: Bind) -> Launch {
        self.bind = bind;
        self
    }

    /// Sets an environment variable of all ranks.
    ///
    /// ```
    /// use hccl::launch::Launch;
    /// let launch = Launch::new("sh").args(["-c", "test $RUST_LOG = hccl=debug"]);
    /// assert!(launch.env("RUST_LOG", "hccl=debug").run()?.is_success());
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Launch {
        self.env.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// `HCCL_JOB_ID` of the run: one that no other running job of this user has. The default is random.
    ///
    /// ```
    /// use hccl::launch::Launch;
    /// let launch = Launch::new("sh").args(["-c", "test $HCCL_JOB_ID = night-7"]).ranks(2);
    /// assert!(launch.job_id(Some("night-7".to_owned())).run()?.is_success());
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn job_id(mut self, job: Option<String>) -> Launch {
        self.job = job;
        self
    }

    /// How long ranks that were asked to end may take before SIGKILL. The default is 1 s.
    ///
    /// ```
    /// use hccl::launch::Launch;
    /// use std::time::{Duration, Instant};
    /// // Rank 1 fails, and rank 0 does not listen to SIGTERM.
    /// let script = "if [ $HCCL_RANK = 1 ]; then exit 4; fi; trap '' TERM; sleep 60";
    /// let started = Instant::now();
    /// let outcome = Launch::new("sh").args(["-c", script]).ranks(2).grace(Duration::from_millis(20)).run()?;
    /// assert_eq!(outcome.failed_rank(), Some(1));
    /// assert!(started.elapsed() < Duration::from_secs(50));
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn grace(mut self, grace: Duration) -> Launch {
        self.grace = grace;
        self
    }

    /// Starts the ranks and waits for all of them. While it runs, SIGINT, SIGTERM and SIGHUP of this process belong to
    /// it; a second launch in the same process waits for the first.
    ///
    /// ```
    /// use hccl::launch::Launch;
    /// let outcome = Launch::new("sh").args(["-c", "echo epoch 1; exit $HCCL_RANK"]).ranks(2).run()?;
    /// assert_eq!((outcome.code(), outcome.failed_rank()), (1, Some(1)));
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Nothing was started, or all of it is gone again: `InvalidArgument` for a number out of range, a program that is
    /// not there or not executable, and a log directory that cannot be written; `Resource` when the system refuses a
    /// process, thread or pipe. Failing ranks are not an error but an [`Outcome`].
    pub fn run(&self) -> Result<Outcome> {
        self.check()?;
        let _running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let logs = match &self.log_dir {
            Some(dir) => Log::create(dir, self.ranks)?,
            None => Vec::new(),
        };
        let refused = |error| Error::resource("a handler for SIGINT, SIGTERM and SIGHUP", error);
        let signals = Signals::catch().map_err(refused)?;
        let watched = self.start(&signals, logs)?;
        drop(signals);
        Ok(Outcome::of(watched, self.ranks))
    }

    fn check(&self) -> Result<()> {
        if !(1..=MAX_RANKS).contains(&self.ranks) {
            let problem = format!("--ranks is {}; it must be from 1 to {MAX_RANKS}", self.ranks);
            return Err(Error::invalid(problem));
        }
        if self.threads == Some(0) {
            return Err(Error::invalid("--threads-per-rank is 0; it must be at least 1"));
        }
        if self.job.as_deref() == Some("") {
            return Err(Error::invalid("the job id is empty; leave it out for a random one"));
        }
        Ok(())
    }

    /// Starts all ranks, then watches them to their end.
    fn start(&self, signals: &Signals, logs: Vec<Log>) -> Result<Watched> {
        let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|error| Error::resource("a pipe", error));
        let group = Group::new().map_err(|error| Error::resource("a guardian process for the ranks", error))?;
        let room = files::Room::for_ranks(self.ranks);
        let (finished, finish) = pipe()?;
        let (sender, events) = channel();
        let mut output = Output::new(self.ranks, logs, finished);
        let job = match &self.job {
            Some(job) => job.clone(),
            None => random_job()?,
        };
        let cores = if self.bind == Bind::Cores { cores::inherited() } else { Vec::new() };
        for rank in 0..self.ranks {
            let mut command = self.command(rank, &job);
            group.adopt(&mut command, cores::mask(&cores, rank, self.ranks), room.of_ranks());
            let mut child = command.spawn().map_err(|error| self.not_started(rank, error))?;
            take_output(&mut output, rank, &mut child);
            supervise::await_child(rank, child, sender.clone())?;
        }
        supervise::copy_output(output, sender.clone())?;
        let watcher = supervise::await_signals(signals, sender)?;
        let watched = Supervisor { group, events, grace: self.grace, finish }.watch(self.ranks);
        signals.wake();
        // The thread ends at the wake; its panic would have been printed.
        let _ = watcher.join();
        Ok(watched)
    }

    fn command(&self, rank: usize, job: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let threads = self.threads.unwrap_or_else(|| cores::threads(self.ranks));
        if self.threads.is_some() || std::env::var_os("RAYON_NUM_THREADS").is_none() {
            command.env("RAYON_NUM_THREADS", threads.to_string());
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        let (rank, size) = (rank.to_string(), self.ranks.to_string());
        command.env("HCCL_RANK", &rank).env("HCCL_WORLD_SIZE", &size);
        command.env("HCCL_LOCAL_RANK", &rank).env("HCCL_LOCAL_WORLD_SIZE", &size);
        command.env("HCCL_JOB_ID", job).env("HCCL_GENERATION", "0");
        command
    }

    fn not_started(&self, rank: usize, error: io::Error) -> Error {
        let program = self.program.display();
        let problem = match error.kind() {
            io::ErrorKind::NotFound => format!("cannot start rank {rank}: there is no program {program}"),
            io::ErrorKind::PermissionDenied => format!("cannot start rank {rank}: {program} may not be executed"),
            _ => {
                let what = format!("the process of rank {rank} ({program})");
                return Error::resource(what, error)
                    .hint("start fewer ranks, or raise the limits that `ulimit -a` shows");
            }
        };
        let hint = "a name without a slash is looked up in PATH, one with a slash from the current directory";
        Error::new(ErrorKind::InvalidArgument { problem }).source(error).hint(hint)
    }
}

fn take_output(output: &mut Output, rank: usize, child: &mut Child) {
    if let Some(stdout) = child.stdout.take() {
        output.add(rank, Target::Out, OwnedFd::from(stdout));
    }
    if let Some(stderr) = child.stderr.take() {
        output.add(rank, Target::Err, OwnedFd::from(stderr));
    }
}

/// 128 random bits in hexadecimal.
fn random_job() -> Result<String> {
    let mut bytes = [0u8; 16];
    let refused = |error| Error::resource("random bytes for a job id", error);
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).map_err(refused)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

/// A launch of `ranks` ranks of the running program with the arguments it was given. Ask [`is_rank`] first: a rank that
/// launches ranks never ends.
///
/// ```
/// use hccl::{Communicator, Sum, launch};
/// if !launch::is_rank() {
///     let outcome = launch::this_program(2)?.run()?;
///     assert!(outcome.is_success());
///     return Ok(());
/// }
/// // The same program, as one of two ranks.
/// let comm = Communicator::from_env()?;
/// let mut x = [comm.rank().index() as i32 + 1];
/// comm.all_reduce(&mut x, Sum)?;
/// assert_eq!(x, [3]);
/// # Ok::<(), hccl::Error>(())
/// ```
///
/// # Errors
///
/// `Resource` when the path of the running program cannot be read.
pub fn this_program(ranks: usize) -> Result<Launch> {
    let program = std::env::current_exe().map_err(|error| Error::resource("the path of this program", error))?;
    Ok(Launch::new(program).args(std::env::args_os().skip(1)).ranks(ranks))
}

/// True when a launcher started this process as a rank: this one, torchrun, mpirun or srun. Also when it left only half
/// of its variables, which making the communicator then reports.
///
/// ```
/// assert!(!hccl::launch::is_rank());
/// ```
pub fn is_rank() -> bool {
    !matches!(environment::this_process(), Ok(World::Single))
}

/// The exit code with which a rank should end after this error: 75 when it only tells of another rank's failure, so that
/// the launcher looks for the first cause elsewhere, and 1 otherwise.
///
/// ```
/// let error = hccl::launch::Launch::new("true").ranks(0).run().unwrap_err();
/// assert_eq!(hccl::launch::exit_code(&error), 1);
/// ```
pub fn exit_code(error: &Error) -> u8 {
    if error.is_knock_on() { KNOCK_ON } else { 1 }
}
