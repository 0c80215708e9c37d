//! Ranks on NPUs, over the stand-in libraries: what the laws of `tests/conformance` do not see.
//!
//! | file | shows |
//! | --- | --- |
//! | `surface` | devices, buffers, deadlines, comparison of calls, rank tables, missing libraries |
//! | `faults` | every fault of the libraries is a typed error in time, and nothing is left behind |
//! | `gradients` | gradients reduced on NPUs have the bits of the CPU engine |
//!
//! Each test runs in a process of its own, because a process looks for the libraries once.
#![cfg(target_os = "linux")]

mod faults;
mod gradients;
#[path = "../support/stand_in.rs"]
mod stand_in;
#[path = "../support/mod.rs"]
mod support;
mod surface;

use hccl::{Builder, Communicator, Device};
use stand_in::StandIn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::{End, World, rank_of, test_name, wait_until};

/// A test in processes of its own.
pub(crate) struct Case {
    name: String,
    libraries: Option<StandIn>,
    variables: Vec<(&'static str, String)>,
    leaks: bool,
}

impl Case {
    /// The test `test` of the module `module`, with whole libraries.
    pub(crate) fn new(module: &str, test: &str) -> Case {
        let libraries = rank_of().is_none().then(StandIn::new);
        Case { name: test_name(module, test), libraries, variables: Vec::new(), leaks: false }
    }

    /// Libraries that lack these functions.
    pub(crate) fn without(mut self, functions: &[&str]) -> Case {
        self.libraries = rank_of().is_none().then(|| StandIn::with(stand_in::OLD_NAMES, functions));
        self
    }

    /// No libraries at all.
    pub(crate) fn without_libraries(mut self) -> Case {
        self.libraries = None;
        self.set("HCCL_ASCEND_LIB_DIR", "/nowhere/ascend/lib64")
    }

    /// One more variable.
    pub(crate) fn set(mut self, name: &'static str, value: impl Into<String>) -> Case {
        self.variables.push((name, value.into()));
        self
    }

    /// Something is still held at the end, as after a call that never returns.
    pub(crate) fn leaks(mut self) -> Case {
        self.leaks = true;
        self
    }

    /// Runs `body` in one process.
    pub(crate) fn run(self, body: impl Fn()) {
        self.ranks(1, |_| body());
    }

    /// Runs `body` with the rank's number in `n` processes, which must all succeed.
    pub(crate) fn ranks(self, n: usize, body: impl Fn(usize)) {
        self.ended(n, body, |rank, end| {
            assert!(end.status.success(), "rank {rank} of {n}: {}\n{}", end.status, end.output);
        });
    }

    /// As [`ranks`](Case::ranks), judging the ends of the processes by `judge`.
    pub(crate) fn ended(self, n: usize, body: impl Fn(usize), judge: impl Fn(usize, &End)) {
        if let Some(of) = rank_of() {
            // A test with several cases starts a process for each, which runs but one.
            static RAN: AtomicBool = AtomicBool::new(false);
            if of == format!("{}/{n}", self.name) && !RAN.swap(true, Ordering::Relaxed) {
                body(std::env::var("HCCL_RANK").unwrap().parse().unwrap());
                wait_until("the threads of all NPUs have ended", || self.leaks || npu_threads() == 0);
            }
            return;
        }
        let counts = tempfile::tempdir().unwrap();
        let found = self.libraries.as_ref().map(StandIn::env).unwrap_or_default();
        let found = found.iter().map(|(name, value)| (*name, value.to_str().unwrap()));
        let own = self.variables.iter().map(|(name, value)| (*name, value.as_str()));
        let counted = [("HCCL_STAND_IN_COUNTS", counts.path().to_str().unwrap())];
        let variables: Vec<_> = found.chain(own).chain(counted).collect();
        let ends = World::start(&self.name, n, &variables).finish();
        ends.iter().enumerate().for_each(|(rank, end)| judge(rank, end));
        for file in std::fs::read_dir(counts.path()).unwrap().filter(|_| !self.leaks) {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            assert!(text.lines().all(|line| line.ends_with(" 0")), "{} leaks:\n{text}", self.name);
        }
    }
}

fn npu_threads() -> usize {
    let names = std::fs::read_dir("/proc/self/task").unwrap().filter_map(|task| {
        // A thread may end between the two looks.
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
    });
    names.filter(|name| name.starts_with("npu")).count()
}

/// A world on NPUs from 0 on, with this deadline.
pub(crate) fn npus(seconds: u64) -> Builder {
    Communicator::builder().device(Device::Npu(0)).exec_timeout(Duration::from_secs(seconds))
}
