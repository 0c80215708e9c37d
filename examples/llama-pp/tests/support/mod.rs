//! Runs of the program, with a deadline, and small models to run.

pub(crate) mod models;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

/// No run of these tests needs as long, on a busy machine too.
const DEADLINE: Duration = Duration::from_secs(240);

/// A run that has ended.
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
    /// How long the run went on after each line of its stderr.
    pub(crate) after: Vec<(String, Duration)>,
}

/// A line of `--json`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Line {
    pub(crate) prompt: String,
    pub(crate) tokens: Vec<u32>,
    pub(crate) text: String,
    pub(crate) first_token_ms: f64,
    pub(crate) ms_per_token: Option<f64>,
    pub(crate) logits: Option<Vec<(u32, f32)>>,
}

impl Run {
    #[track_caller]
    pub(crate) fn succeeded(self) -> Run {
        assert_eq!(self.code, Some(0), "{}\n{}", self.out, self.err);
        self
    }

    /// The message of a run that was refused before it started ranks.
    #[track_caller]
    pub(crate) fn refused(&self, parts: &[&str]) {
        assert_eq!(self.code, Some(2), "{}\n{}", self.out, self.err);
        assert!(parts.iter().all(|part| self.err.contains(part)), "{parts:?}: {}", self.err);
        assert!(!self.err.contains("panicked") && !self.err.contains("[rank"), "{}", self.err);
        assert!(self.out.is_empty(), "{}", self.out);
    }

    /// The lines of `--json`.
    #[track_caller]
    pub(crate) fn lines(&self) -> Vec<Line> {
        self.out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
    }
}

/// Runs the program with these flags.
#[track_caller]
pub(crate) fn run(flags: &[&str]) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_llama-pp"));
    command.args(flags).env("RAYON_NUM_THREADS", "1");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let err = std::thread::spawn(move || {
        stderr.lines().map(|line| (line.unwrap(), Instant::now())).collect::<Vec<(String, Instant)>>()
    });
    let pid = Pid::from_child(&child);
    let (done, watch) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let hung = watch.recv_timeout(DEADLINE) == Err(RecvTimeoutError::Timeout);
        if hung {
            let _ = kill_process(pid, Signal::KILL);
        }
        hung
    });
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    let code = child.wait().unwrap().code();
    let end = Instant::now();
    drop(done);
    let lines = err.join().unwrap();
    let err: String = lines.iter().map(|(line, _)| format!("{line}\n")).collect();
    assert!(!watchdog.join().unwrap(), "hung: {out}\n{err}");
    let after = lines.into_iter().map(|(line, at)| (line, end.saturating_duration_since(at))).collect();
    Run { code, out, err, after }
}

/// Runs the program with `--json` and returns its lines.
#[track_caller]
pub(crate) fn lines(flags: &[&str]) -> Vec<Line> {
    run(&[flags, &["--json"]].concat()).succeeded().lines()
}
