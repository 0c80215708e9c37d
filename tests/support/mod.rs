//! Ranks for tests: as threads of this process, or as processes that run the same test again.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod cells;
pub(crate) mod guarded;

use hccl::{Communicator, Device, Result};
use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest time that one world may take: a hang is a failure, not a stuck build.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(240);

/// Sizes of world that every law holds for.
pub(crate) const WORLDS: [usize; 5] = [1, 2, 3, 4, 7];

/// Set in a process that is a rank.
const IS_RANK: &str = "HCCL_TEST_RANK_OF";

/// Set to `npu` where ranks are on NPUs: rank r on NPU r.
pub(crate) const DEVICE: &str = "HCCL_TEST_DEVICE";

/// The device of rank `rank`.
pub(crate) fn device(rank: u32) -> Device {
    match std::env::var(DEVICE).as_deref() {
        Ok("npu") => Device::Npu(rank),
        _ => Device::Cpu,
    }
}

/// This process's communicator of the world that the environment describes.
pub(crate) fn from_env() -> Result<Communicator> {
    let rank = std::env::var("HCCL_RANK").ok().and_then(|rank| rank.parse().ok()).unwrap_or(0);
    Communicator::builder().device(device(rank)).from_env()
}

/// What every rank of a world does.
pub(crate) type Law = fn(&Communicator) -> Result<()>;

/// Runs `law` on `n` ranks that are threads.
pub(crate) fn threads(n: usize, law: impl Fn(&Communicator) -> Result<()> + Sync) {
    let builder = Communicator::builder().exec_timeout(WATCHDOG).device(device(0));
    builder.local(n, |comm| law(&comm)).unwrap_or_else(|error| panic!("{n} threads: {error}"));
}

/// Runs `law` on `n` ranks that are processes: each runs the test `name` of this binary again and comes here with its
/// communicator. Returns only in the parent, when all ranks have succeeded.
pub(crate) fn processes(name: &str, n: usize, law: impl Fn(&Communicator) -> Result<()>) {
    processes_with(name, n, &[], law);
}

/// As [`processes`], with more variables in the ranks' environment.
pub(crate) fn processes_with(
    name: &str,
    n: usize,
    variables: &[(&str, &str)],
    law: impl Fn(&Communicator) -> Result<()>,
) {
    if let Some(of) = rank_of() {
        if of != format!("{name}/{n}") {
            return; // another world of the same test
        }
        let comm = from_env().unwrap_or_else(|error| panic!("{error}"));
        law(&comm).unwrap_or_else(|error| panic!("{error}"));
        return;
    }
    let ends = World::start(name, n, variables).finish();
    if ends.iter().all(|end| end.status.success() && end.output.contains("1 passed")) {
        return;
    }
    let tell = |(rank, end): (usize, &End)| format!("--- rank {rank} of {n}: {}\n{}\n", end.status, end.output);
    panic!("{}", ends.iter().enumerate().map(tell).collect::<String>());
}

/// The world this process is a rank of, when it is one.
pub(crate) fn rank_of() -> Option<String> {
    std::env::var(IS_RANK).ok()
}

/// The name by which the test runner knows test `test` of module `module` (its `module_path!()`).
pub(crate) fn test_name(module: &str, test: &str) -> String {
    match module.split_once("::") {
        Some((_, inner)) => format!("{inner}::{test}"),
        None => test.to_owned(),
    }
}

/// Runs laws one after the other on one world, and says which one failed.
pub(crate) fn run_all(laws: &[(&'static str, Law)], comm: &Communicator) -> Result<()> {
    for (name, law) in laws {
        let named = Named(name);
        law(comm).inspect_err(|error| panic!("{error}"))?;
        drop(named);
    }
    Ok(())
}

/// Says what ran when a panic passes.
struct Named(&'static str);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            #[expect(clippy::print_stderr, reason = "the test's own report")]
            {
                eprintln!("the law is `{}`", self.0);
            }
        }
    }
}

/// Waits until `done`, for as long as the watchdog allows.
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < WATCHDOG, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Ranks as processes.
pub(crate) struct World {
    pub(crate) ranks: Vec<Child>,
}

/// How one rank ended.
pub(crate) struct End {
    pub(crate) status: ExitStatus,
    pub(crate) output: String,
}

impl World {
    /// Starts `n` ranks, each running test `name` of this binary again.
    pub(crate) fn start(name: &str, n: usize, variables: &[(&str, &str)]) -> World {
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
                .env("HCCL_TIMEOUT", WATCHDOG.as_secs().to_string())
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
    pub(crate) fn finish(mut self) -> Vec<End> {
        let start = Instant::now();
        let readers: Vec<_> = self.ranks.iter_mut().map(read_all).collect();
        let mut ended: Vec<Option<ExitStatus>> = vec![None; self.ranks.len()];
        while ended.iter().any(Option::is_none) && start.elapsed() < WATCHDOG {
            for (child, status) in self.ranks.iter_mut().zip(&mut ended) {
                *status = status.or_else(|| child.try_wait().unwrap());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let late: Vec<usize> = (0..ended.len()).filter(|rank| ended[*rank].is_none()).collect();
        for rank in &late {
            self.ranks[*rank].kill().unwrap();
            ended[*rank] = Some(self.ranks[*rank].wait().unwrap());
        }
        let end = |(status, reader): (Option<ExitStatus>, JoinHandle<String>)| End {
            status: status.unwrap(),
            output: reader.join().unwrap(),
        };
        let ends: Vec<End> = ended.into_iter().zip(readers).map(end).collect();
        let outputs = || ends.iter().map(|end| end.output.as_str()).collect::<Vec<_>>().join("\n---\n");
        assert!(late.is_empty(), "ranks {late:?} hang:\n{}", outputs());
        ends
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

fn read_all(child: &mut Child) -> JoinHandle<String> {
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
