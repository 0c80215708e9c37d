//! Ranks for tests: as threads of this process, or as processes that run the same test again.
#![allow(dead_code, reason = "each test binary uses its own part")]

use hccl::{Communicator, Result};
use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Longest time that one world may take: a hang is a failure, not a stuck build.
pub const WATCHDOG: Duration = Duration::from_secs(120);

/// Set in a process that is a rank.
const IS_RANK: &str = "HCCL_TEST_RANK_OF";

/// Runs `law` on `n` ranks that are threads.
pub fn threads(n: usize, law: impl Fn(&Communicator) -> Result<()> + Sync) {
    hccl::local(n, |comm| law(&comm)).unwrap_or_else(|error| panic!("{n} threads: {error}"));
}

/// Runs `law` on `n` ranks that are processes: each runs the test `name` of this binary again and comes here with its
/// communicator. Returns only in the parent, when all ranks have succeeded.
pub fn processes(name: &str, n: usize, law: impl Fn(&Communicator) -> Result<()>) {
    if let Some(of) = rank_of() {
        if of != format!("{name}/{n}") {
            return; // another world of the same test
        }
        let comm = Communicator::from_env().unwrap_or_else(|error| panic!("{error}"));
        law(&comm).unwrap_or_else(|error| panic!("{error}"));
        return;
    }
    let world = World::start(name, n, &[]);
    for (rank, end) in world.finish().into_iter().enumerate() {
        assert!(end.status.success(), "rank {rank} of {n} ended with {}:\n{}", end.status, end.output);
    }
}

/// The world this process is a rank of, when it is one.
pub fn rank_of() -> Option<String> {
    std::env::var(IS_RANK).ok()
}

/// Ranks as processes.
pub struct World {
    pub ranks: Vec<Child>,
}

/// How one rank ended.
pub struct End {
    pub status: ExitStatus,
    pub output: String,
}

impl World {
    /// Starts `n` ranks, each running test `name` of this binary again.
    pub fn start(name: &str, n: usize, variables: &[(&str, &str)]) -> World {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let job = format!("test-{}-{}", std::process::id(), STARTED.fetch_add(1, Ordering::Relaxed));
        let ranks = (0..n).map(|rank| {
            Command::new(std::env::current_exe().unwrap())
                .args([name, "--exact", "--nocapture", "--test-threads=1"])
                .env(IS_RANK, format!("{name}/{n}"))
                .env("HCCL_RANK", rank.to_string())
                .env("HCCL_WORLD_SIZE", n.to_string())
                .env("HCCL_LOCAL_RANK", rank.to_string())
                .env("HCCL_LOCAL_WORLD_SIZE", n.to_string())
                .env("HCCL_JOB_ID", &job)
                .env("HCCL_GENERATION", "0")
                .envs(variables.iter().copied())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        });
        World { ranks: ranks.collect() }
    }

    /// Waits for all ranks; panics when that takes longer than the watchdog allows.
    pub fn finish(mut self) -> Vec<End> {
        let start = Instant::now();
        let ends = std::mem::take(&mut self.ranks).into_iter().enumerate();
        ends.map(|(rank, mut child)| {
            let reader = read_all(&mut child);
            let status = loop {
                if let Some(status) = child.try_wait().unwrap() {
                    break status;
                }
                if start.elapsed() > WATCHDOG {
                    let _ = child.kill();
                    panic!("rank {rank} hangs: {}", reader.join().unwrap());
                }
                std::thread::sleep(Duration::from_millis(2));
            };
            End { status, output: reader.join().unwrap() }
        })
        .collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for child in &mut self.ranks {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn read_all(child: &mut Child) -> std::thread::JoinHandle<String> {
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    std::thread::spawn(move || {
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = err.read_to_string(&mut text);
            text
        });
        let mut text = String::new();
        let _ = out.read_to_string(&mut text);
        text + &errors.join().unwrap()
    })
}
