//! Runs of the program, with a deadline, and what is left of them.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// No run of these tests needs as long, on a busy machine too.
const DEADLINE: Duration = Duration::from_secs(300);
/// In the environment of every process of a run.
const MARK: &str = "RESNET50_TEST_MARK";

/// A run that has ended.
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
    mark: String,
}

impl Run {
    #[track_caller]
    pub(crate) fn succeeded(self) -> Run {
        assert_eq!(self.code, Some(0), "{}\n{}", self.out, self.err);
        self
    }

    /// The message of a run that was refused.
    #[track_caller]
    pub(crate) fn refused(&self) -> &str {
        assert!(self.code.is_some_and(|code| code != 0), "{:?}: {}\n{}", self.code, self.out, self.err);
        assert!(!self.err.contains("panicked"), "{}", self.err);
        &self.err
    }

    /// Waits until no process of the run is there, which its end must have brought about.
    #[track_caller]
    pub(crate) fn assert_nothing_left(&self) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while !marked(&self.mark).is_empty() {
            assert!(Instant::now() < deadline, "still there: {:?}", marked(&self.mark));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A run under way.
pub(crate) struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
    err: JoinHandle<String>,
    out: String,
    mark: String,
    watchdog: JoinHandle<bool>,
    done: Sender<()>,
}

/// Runs the program with these flags.
#[track_caller]
pub(crate) fn run(flags: &[&str]) -> Run {
    start(flags).finish()
}

pub(crate) fn start(flags: &[&str]) -> Running {
    start_with(flags, &[])
}

/// Starts the program with these flags and variables.
pub(crate) fn start_with(flags: &[&str], variables: &[(&str, &str)]) -> Running {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mark = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let mut command = Command::new(env!("CARGO_BIN_EXE_resnet50"));
    command.args(flags).envs(variables.iter().copied()).env(MARK, &mark).env("RAYON_NUM_THREADS", "1");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let err = std::thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).unwrap();
        text
    });
    let lines = BufReader::new(child.stdout.take().unwrap());
    let pid = Pid::from_child(&child);
    let (done, watch) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let hung = watch.recv_timeout(DEADLINE) == Err(RecvTimeoutError::Timeout);
        if hung {
            let _ = kill_process(pid, Signal::KILL);
        }
        hung
    });
    Running { child, lines, err, out: String::new(), mark, watchdog, done }
}

impl Running {
    /// Reads on until a line holds this.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, text: &str) {
        loop {
            let start = self.out.len();
            let count = self.lines.read_line(&mut self.out).unwrap();
            assert!(count > 0, "ended without `{text}`: {}", self.out);
            if self.out[start..].contains(text) {
                return;
            }
        }
    }

    /// Kills one rank.
    #[track_caller]
    pub(crate) fn kill_rank(&self, rank: usize) {
        let variable = format!("HCCL_RANK={rank}");
        let pids = marked(&self.mark).into_iter().filter(|pid| has(*pid, &variable));
        let pids: Vec<i32> = pids.collect();
        assert_eq!(pids.len(), 1, "{pids:?}");
        kill_process(Pid::from_raw(pids[0]).unwrap(), Signal::KILL).unwrap();
    }

    /// Waits for the end.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Run {
        self.lines.read_to_string(&mut self.out).unwrap();
        let code = self.child.wait().unwrap().code();
        drop(self.done);
        let err = self.err.join().unwrap();
        assert!(!self.watchdog.join().unwrap(), "hung: {}\n{err}", self.out);
        Run { code, out: self.out, err, mark: self.mark }
    }
}

fn has(pid: i32, variable: &str) -> bool {
    let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environ.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes())
}

/// Processes of a run, zombies left out.
fn marked(mark: &str) -> Vec<i32> {
    let variable = format!("{MARK}={mark}");
    let is_zombie = |pid: i32| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "));
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| has(pid, &variable) && !is_zombie(pid)).collect()
}

/// What is in /dev/shm.
pub(crate) fn shm() -> Vec<String> {
    let entries = fs::read_dir("/dev/shm").into_iter().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The first line of a CSV file, and the numbers of the others.
pub(crate) fn csv(path: &str) -> (String, Vec<Vec<f64>>) {
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let header = lines.next().unwrap().to_owned();
    let row = |line: &str| line.split(',').map(|field| field.parse().unwrap()).collect();
    (header, lines.map(row).collect())
}

/// One column.
pub(crate) fn column(rows: &[Vec<f64>], at: usize) -> Vec<f64> {
    rows.iter().map(|row| row[at]).collect()
}
