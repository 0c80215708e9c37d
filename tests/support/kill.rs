//! Worlds of processes whose ranks are killed, stopped and disturbed, and who tell what they see.
//!
//! A test starts a [`Crowd`]: each rank runs the same test of this binary again, finds its case with [`case`], and talks
//! to its parent: [`say`] tells, [`hear`] waits to be told. The parent notes when a line came.
#![allow(dead_code, reason = "each test binary uses its own part")]

use hccl::{Communicator, Error, ErrorKind, Sum};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Longest wait for anything: a hang is a failure, not a stuck build.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);
/// How soon a loss must be told.
pub(crate) const SOON: Duration = Duration::from_secs(1);

const CASE: &str = "HCCL_TEST_CASE";

/// The case of `test` that this process is a rank of, when it is one.
pub(crate) fn case(test: &str) -> Option<String> {
    std::env::var(CASE).ok()?.strip_prefix(test)?.strip_prefix('/').map(str::to_owned)
}

/// Tells the parent a line.
pub(crate) fn say(text: impl AsRef<str>) {
    let line = format!("@{}\n", text.as_ref().replace('\n', " "));
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// Waits for a line of the parent.
pub(crate) fn hear() -> String {
    let mut line = String::new();
    assert!(std::io::stdin().read_line(&mut line).unwrap() > 0, "the parent is gone");
    line.trim().to_owned()
}

/// Says how a call ended, in words that the parent compares.
pub(crate) fn say_error(error: &Error) {
    say(format!("error {}: {error}", describe(error)));
}

fn describe(error: &Error) -> String {
    match error.kind() {
        ErrorKind::PeerLost { peer, how } => format!("lost {peer} {how:?}"),
        ErrorKind::Timeout { late, .. } => format!("late {late:?}"),
        other => format!("{other:?}").chars().take_while(|c| c.is_alphanumeric()).collect(),
    }
}

/// The life of a rank after its communicator failed: every later call returns the first cause, and a new world of the
/// ranks that are left works.
pub(crate) fn live_on(comm: Communicator, error: &Error) {
    say_error(error);
    let later = comm.barrier().unwrap_err();
    assert_eq!(describe(&later), describe(error), "{later}");
    assert_eq!(describe(&comm.failure().unwrap()), describe(error));
    drop(comm);
    start_again();
}

/// Joins the world that the parent names with [`Crowd::again`] and says "fine" when it works.
pub(crate) fn start_again() {
    let told = hear();
    let [job, rank, size] = told.split(' ').collect::<Vec<_>>()[..] else { panic!("{told:?}") };
    let comm = join(job, rank.parse().unwrap(), size.parse().unwrap()).unwrap();
    let (rank, n) = (comm.rank().index(), comm.size());
    let mut values: Vec<u64> = (0..50_000).map(|i| (i * n + rank) as u64).collect();
    let mut device = comm.upload(&values).unwrap();
    comm.all_reduce(&mut values, Sum).unwrap();
    comm.all_reduce(&mut device, Sum).unwrap();
    assert!(values.iter().enumerate().all(|(i, v)| *v == (i * n * n + n * (n - 1) / 2) as u64));
    assert_eq!(device.to_vec().unwrap(), values);
    comm.close().unwrap();
    say("fine");
}

/// Joins another world than the one this process was started for.
#[expect(unsafe_code, reason = "the environment says which world")]
pub(crate) fn join(job: &str, rank: usize, size: usize) -> hccl::Result<Communicator> {
    let (rank, size) = (rank.to_string(), size.to_string());
    let variables = [
        ("HCCL_JOB_ID", job),
        ("HCCL_RANK", &rank),
        ("HCCL_WORLD_SIZE", &size),
        ("HCCL_LOCAL_RANK", &rank),
        ("HCCL_LOCAL_WORLD_SIZE", &size),
    ];
    for (name, value) in variables {
        // SAFETY: no other thread of this test process reads the environment.
        unsafe { std::env::set_var(name, value) };
    }
    Communicator::from_env()
}

/// A line that a rank said.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) rank: usize,
    pub(crate) at: Instant,
    /// The line; what a panic printed has no mark.
    pub(crate) text: String,
    marked: bool,
}

#[derive(Default)]
struct Talk {
    said: Mutex<(Vec<Said>, Vec<bool>)>,
    new: Condvar,
}

struct Member {
    child: Child,
    ears: Option<ChildStdin>,
}

/// The ranks of one world, each a process.
pub(crate) struct Crowd {
    test: &'static str,
    case: String,
    size: usize,
    pub(crate) job: String,
    pub(crate) generation: u64,
    variables: Vec<(String, String)>,
    members: Vec<Option<Member>>,
    pids: Vec<u32>,
    talk: Arc<Talk>,
    tmp: tempfile::TempDir,
}

fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    (u64::from(std::process::id()) << 20) | NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Crowd {
    /// A world of `size` ranks, none started.
    pub(crate) fn new(test: &'static str, case: &str, size: usize, variables: &[(&str, &str)]) -> Crowd {
        let generation = unique();
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Crowd {
            test,
            case: case.to_owned(),
            size,
            job: format!("kill-{generation}"),
            generation,
            variables: variables.iter().map(own).collect(),
            members: (0..size).map(|_| None).collect(),
            pids: vec![0; size],
            talk: Arc::new(Talk { said: Mutex::new((Vec::new(), vec![false; size])), new: Condvar::new() }),
            tmp: tempfile::tempdir().unwrap(),
        }
    }

    /// A world of `size` ranks, all started.
    pub(crate) fn start(test: &'static str, case: &str, size: usize, variables: &[(&str, &str)]) -> Crowd {
        let mut crowd = Crowd::new(test, case, size, variables);
        (0..size).for_each(|rank| crowd.spawn(rank));
        crowd
    }

    /// Starts a rank.
    pub(crate) fn spawn(&mut self, rank: usize) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([self.test, "--exact", "--nocapture", "--test-threads=1"])
            .env(CASE, format!("{}/{}", self.test, self.case))
            .env("HCCL_RANK", rank.to_string())
            .env("HCCL_WORLD_SIZE", self.size.to_string())
            .env("HCCL_LOCAL_RANK", rank.to_string())
            .env("HCCL_LOCAL_WORLD_SIZE", self.size.to_string())
            .env("HCCL_JOB_ID", &self.job)
            .env("HCCL_GENERATION", self.generation.to_string())
            .env("HCCL_TIMEOUT", "20")
            .env("TMPDIR", self.tmp.path())
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (ears, errors, talk) = (child.stdin.take(), child.stderr.take().unwrap(), self.talk.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                let at = Instant::now();
                let (text, marked) = line.strip_prefix('@').map_or((&*line, false), |text| (text, true));
                talk.said.lock().unwrap().0.push(Said { rank, at, text: text.to_owned(), marked });
                talk.new.notify_all();
            }
            talk.said.lock().unwrap().1[rank] = true;
            talk.new.notify_all();
        });
        self.pids[rank] = child.id();
        self.members[rank] = Some(Member { child, ears });
    }

    /// Process id of a rank.
    pub(crate) fn pid(&self, rank: usize) -> u32 {
        self.pids[rank]
    }

    /// Waits until `rank` says a line that starts with `word`.
    pub(crate) fn wait_for(&self, rank: usize, word: &str) -> Said {
        let until = Instant::now() + WATCHDOG;
        let mut said = self.talk.said.lock().unwrap();
        loop {
            let found = said.0.iter().find(|said| said.rank == rank && said.marked && said.text.starts_with(word));
            if let Some(found) = found {
                return found.clone();
            }
            let ended = said.1[rank];
            let left = until.saturating_duration_since(Instant::now());
            if ended || left.is_zero() {
                let how = if ended { "ended" } else { "hangs" };
                panic!("rank {rank} of {} {how} without saying {word:?}: {:#?}", self.case, said.0);
            }
            said = self.talk.new.wait_timeout(said, left).unwrap().0;
        }
    }

    /// Waits until `rank` says that its call timed out and names `late`, alone or with ranks that wait for it.
    pub(crate) fn wait_for_timeout(&self, rank: usize, late: usize) -> Said {
        let said = self.wait_for(rank, "error late [");
        let names = said.text["error late [".len()..].split(']').next().unwrap();
        assert_eq!(names, late.to_string(), "{}: {said:?}", self.case);
        said
    }

    /// Waits until these ranks say a line that starts with `word`.
    pub(crate) fn wait_for_all(&self, ranks: &[usize], word: &str) {
        ranks.iter().for_each(|rank| drop(self.wait_for(*rank, word)));
    }

    /// Everything that was said so far.
    pub(crate) fn all_said(&self) -> Vec<Said> {
        self.talk.said.lock().unwrap().0.clone()
    }

    /// Tells a rank a line.
    pub(crate) fn tell(&mut self, rank: usize, line: &str) {
        let ears = self.members[rank].as_mut().unwrap().ears.as_mut().unwrap();
        ears.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn signal(&self, rank: usize, signal: Signal) -> Instant {
        let pid = Pid::from_raw(self.pids[rank] as i32).unwrap();
        let now = Instant::now();
        kill_process(pid, signal).unwrap();
        now
    }

    /// Kills a rank with SIGKILL; when it did.
    pub(crate) fn kill(&self, rank: usize) -> Instant {
        self.signal(rank, Signal::KILL)
    }

    /// Stops a rank with SIGSTOP, and waits until it stands.
    pub(crate) fn stop(&self, rank: usize) {
        self.signal(rank, Signal::STOP);
        let status = format!("/proc/{}/stat", self.pids[rank]);
        wait_until("the rank stands", || std::fs::read_to_string(&status).unwrap().contains(") T "));
    }

    /// Continues a rank that was stopped.
    pub(crate) fn go_on(&self, rank: usize) {
        self.signal(rank, Signal::CONT);
    }

    /// True when the process of a rank is there and has not ended.
    pub(crate) fn is_alive(&mut self, rank: usize) -> bool {
        self.members[rank].as_mut().unwrap().child.try_wait().unwrap().is_none()
    }

    /// The ranks but one.
    pub(crate) fn others(&self, but: usize) -> Vec<usize> {
        (0..self.size).filter(|rank| *rank != but).collect()
    }

    /// The survivors of a kill: each names the victim soon, and together they start again.
    pub(crate) fn expect_loss(mut self, victim: usize, killed: Instant) {
        let survivors = self.others(victim);
        for rank in &survivors {
            let said = self.wait_for(*rank, "error");
            let names = format!("error lost {victim} Died");
            assert!(said.text.starts_with(&names), "{}: {said:?}", self.case);
            let after = said.at.saturating_duration_since(killed);
            assert!(after < SOON, "{}: rank {rank} was told after {after:?}", self.case);
        }
        self.again(&survivors);
        self.finish(&[victim]);
    }

    /// Lets these ranks form a world of their own under a new name.
    pub(crate) fn again(&mut self, ranks: &[usize]) {
        let job = format!("again-{}", unique());
        for (new, rank) in ranks.iter().enumerate() {
            self.tell(*rank, &format!("{job} {new} {}", ranks.len()));
        }
        self.wait_for_all(ranks, "fine");
    }

    /// Waits for all started ranks; all but `killed` must have succeeded, and nothing may be left of any.
    pub(crate) fn finish(mut self, killed: &[usize]) {
        let until = Instant::now() + WATCHDOG;
        for rank in 0..self.size {
            let Some(mut member) = self.members[rank].take() else { continue };
            drop(member.ears.take());
            let status = wait(&mut member.child, until);
            let lines = || self.all_said();
            let Some(status) = status else { panic!("rank {rank} of {} hangs: {:#?}", self.case, lines()) };
            let expected = status.success() || killed.contains(&rank);
            assert!(expected, "rank {rank} of {} ended with {status}: {:#?}", self.case, lines());
        }
        self.assert_nothing_left();
    }

    fn assert_nothing_left(&self) {
        let sockets = sockets();
        let jobs = format!("/{}", self.generation);
        let own = |name: &&String| {
            let of = |pid: &u32| *pid != 0 && name.contains(&format!("/process/{pid}/"));
            (name.contains("/job/") && name.ends_with(&jobs)) || self.pids.iter().any(of)
        };
        // Sockets are closed after the process is reaped only when another process holds them.
        assert_eq!(sockets.iter().filter(own).collect::<Vec<_>>(), Vec::<&String>::new(), "{}", self.case);
        let files = |dir: &std::path::Path| -> Vec<String> {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(files(self.tmp.path()), Vec::<String>::new(), "{}", self.case);
        let shared = files("/dev/shm".as_ref());
        assert!(!shared.iter().any(|name| name.contains("hccl")), "{}: {shared:?}", self.case);
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for member in self.members.iter_mut().flatten() {
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
    }
}

fn wait(child: &mut Child, until: Instant) -> Option<ExitStatus> {
    loop {
        match child.try_wait().unwrap() {
            Some(status) => return Some(status),
            None if Instant::now() > until => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// Names of the abstract sockets of this library, one for each end that is open.
pub(crate) fn sockets() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/net/unix").unwrap();
    let names = text.lines().filter_map(|line| Some(line.split_once("@hccl/")?.1));
    names.map(|name| format!("hccl/{name}")).collect()
}

/// Waits until something outside this process holds.
pub(crate) fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + WATCHDOG;
    while !holds() {
        assert!(Instant::now() < until, "{what}: still not");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A stream of numbers from a seed (xorshift64*).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `below`.
    pub(crate) fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % below
    }
}
