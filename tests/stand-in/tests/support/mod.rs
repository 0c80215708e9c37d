//! Tests whose bodies run in child processes: each has its own environment, may be killed, and is counted for leaks.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::cell::Cell;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ascend_sys::safe::{Comm, Context, Device, DeviceMemory, RootInfoComm, Stream};
use ascend_sys::sys::{HcclCommConfig, HcclRootInfo};
use ascend_sys::{Libraries, Search};

#[path = "../../../support/stand_in.rs"]
pub(crate) mod stand_in;

pub(crate) use stand_in::StandIn;

/// A child that takes longer has hung.
const PATIENCE: Duration = Duration::from_secs(60);

thread_local! {
    /// Cases that this thread's test has had so far.
    static CASES: Cell<u32> = const { Cell::new(0) };
}

/// How a child process is started, and what is expected of it.
pub(crate) struct Case {
    env: Vec<(String, String)>,
    processes: u32,
    without: &'static [&'static str],
    names: &'static [&'static str],
    leaks: bool,
    killed: Option<u32>,
}

pub(crate) fn case(env: &[(&str, &str)]) -> Case {
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Case { env, processes: 1, without: &[], names: stand_in::OLD_NAMES, leaks: false, killed: None }
}

impl Case {
    /// Runs the body in so many processes, each with a rank.
    pub(crate) fn processes(mut self, n: u32) -> Case {
        self.processes = n;
        self
    }

    /// The libraries lack these functions.
    pub(crate) fn without(mut self, functions: &'static [&'static str]) -> Case {
        self.without = functions;
        self
    }

    /// The libraries have these file names.
    pub(crate) fn names(mut self, names: &'static [&'static str]) -> Case {
        self.names = names;
        self
    }

    /// Something stays alive, which the counts must say.
    pub(crate) fn leaks(mut self) -> Case {
        self.leaks = true;
        self
    }

    /// This rank is killed.
    pub(crate) fn killed(mut self, rank: u32) -> Case {
        self.killed = Some(rank);
        self
    }

    /// Runs the body of the calling test in child processes.
    #[track_caller]
    pub(crate) fn run(self, body: impl FnOnce(World)) {
        let number = CASES.replace(CASES.get() + 1);
        if let Some(dir) = std::env::var_os("STAND_IN_TEST_DIR") {
            // A child runs the case it was started for, and passes the others of the same test.
            if std::env::var("STAND_IN_TEST_CASE").is_ok_and(|own| own == number.to_string()) {
                body(World::of_child(dir.into()));
            }
            return;
        }
        let installed = StandIn::with(self.names, self.without);
        let dir = tempfile::tempdir().unwrap();
        let mut children: Vec<_> =
            (0..self.processes).map(|rank| self.start(&installed, dir.path(), rank, number)).collect();
        let deadline = Instant::now() + PATIENCE;
        for (rank, child) in children.iter_mut().enumerate() {
            let rank = rank as u32;
            let (status, said) = finish(child, deadline);
            if self.killed == Some(rank) {
                assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "rank {rank}: {said}");
                continue;
            }
            assert!(status.success(), "rank {rank}: {status}\n{said}");
            let counts = fs::read_to_string(dir.path().join(child.id().to_string())).unwrap();
            let clean = counts.lines().count() == 7 && counts.lines().all(|line| line.ends_with(" 0"));
            assert_eq!(clean, !self.leaks, "rank {rank} leaves:\n{counts}");
        }
    }

    fn start(&self, installed: &StandIn, dir: &Path, rank: u32, number: u32) -> std::process::Child {
        // Tests run on threads named after them.
        let test = std::thread::current().name().unwrap().to_owned();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &test, "--nocapture", "--test-threads=1"]);
        command.env_remove("HCCL_EXEC_TIMEOUT").env_remove("HCCL_CONNECT_TIMEOUT");
        command.envs(installed.env()).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.env("STAND_IN_TEST_DIR", dir).env("STAND_IN_TEST_RANK", rank.to_string());
        command.env("STAND_IN_TEST_CASE", number.to_string());
        command.env("HCCL_STAND_IN_COUNTS", dir);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }
}

fn finish(child: &mut std::process::Child, deadline: Instant) -> (ExitStatus, String) {
    let mut late = false;
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > deadline && !late => {
                late = true;
                child.kill().unwrap();
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(!late, "a child hung: {said}");
    (status, said)
}

/// The libraries as a child process sees them.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) libs: &'static Libraries,
    /// Shared by the processes of the test.
    pub(crate) dir: PathBuf,
    pub(crate) rank: u32,
}

impl World {
    fn of_child(dir: PathBuf) -> World {
        // SAFETY: the environment names the stand-ins of this test.
        let libs = unsafe { Libraries::open(&Search::from_env()) }.unwrap();
        let rank = std::env::var("STAND_IN_TEST_RANK").unwrap().parse().unwrap();
        World { libs: Box::leak(Box::new(libs)), dir, rank }
    }

    /// A control function of the stand-in.
    fn control<F: Copy>(&self, name: &str) -> F {
        let dir = PathBuf::from(std::env::var_os("HCCL_ASCEND_LIB_DIR").unwrap());
        let file = fs::read_dir(dir).unwrap().next().unwrap().unwrap().path();
        // SAFETY: the stand-in, which is open already.
        let library = unsafe { libloading::Library::new(file) }.unwrap();
        // SAFETY: `F` is the function's type, as the callers here wrote it.
        let found = *unsafe { library.get::<F>(name) }.unwrap();
        std::mem::forget(library);
        found
    }

    /// Replaces the faults.
    pub(crate) fn faults(&self, text: &str) {
        let set: extern "C" fn(*const std::ffi::c_char) = self.control("hccl_stand_in_faults");
        set(std::ffi::CString::new(text).unwrap().as_ptr());
    }

    /// Devices, contexts, streams, events, memory, host memory, communicators.
    pub(crate) fn live(&self) -> [u64; 7] {
        let read: extern "C" fn(*mut u64) = self.control("hccl_stand_in_live");
        let mut counts = [u64::MAX; 7];
        read(counts.as_mut_ptr());
        counts
    }

    /// A device and its context, on this thread.
    pub(crate) fn context(&self, device: i32) -> Context {
        Device::open(self.libs, device).unwrap().default_context()
    }

    /// Runs `body` for each of `n` ranks as threads, one device each.
    pub(crate) fn threads<R: Send>(&self, n: u32, body: impl Fn(Rank) -> R + Sync) -> Vec<R> {
        let info = Comm::root_info(&self.context(0)).unwrap();
        std::thread::scope(|scope| {
            let start = |rank| {
                scope.spawn({
                    let (body, info) = (&body, &info);
                    move || body(self.join(rank as i32, rank, n, info, None))
                })
            };
            let all: Vec<_> = (0..n).map(start).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// This process as one of `n` ranks; the root info goes by a file.
    pub(crate) fn process(&self, n: u32) -> Rank {
        let (path, draft) = (self.dir.join("root-info"), self.dir.join("draft"));
        let device = self.rank as i32;
        if self.rank == 0 {
            let info = Comm::root_info(&self.context(device)).unwrap();
            fs::write(&draft, info.as_bytes()).unwrap();
            fs::rename(&draft, &path).unwrap();
        }
        let bytes = loop {
            match fs::read(&path) {
                Ok(bytes) => break bytes,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let info = HcclRootInfo::from(<[u8; HcclRootInfo::LEN]>::try_from(bytes).unwrap());
        self.join(device, self.rank, n, &info, None)
    }

    pub(crate) fn join(
        &self,
        device: i32,
        rank: u32,
        ranks: u32,
        info: &HcclRootInfo,
        config: Option<&HcclCommConfig>,
    ) -> Rank {
        let context = self.context(device);
        let stream = Stream::new(&context).unwrap();
        let comm = Comm::from_root_info(stream, RootInfoComm { ranks, rank, info, config }).unwrap();
        Rank { libs: self.libs, rank, size: ranks, comm, context }
    }
}

/// A rank with its communicator, of this thread.
pub(crate) struct Rank {
    pub(crate) libs: &'static Libraries,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) comm: Comm,
    pub(crate) context: Context,
}

impl Rank {
    pub(crate) fn stream(&self) -> &Stream {
        self.comm.stream()
    }

    /// Device memory with these elements.
    pub(crate) fn upload<T: Bytes>(&self, elements: &[T]) -> DeviceMemory {
        let bytes: Vec<u8> = elements.iter().flat_map(|element| element.bytes()).collect();
        let mut memory = DeviceMemory::new(&self.context, bytes.len()).unwrap();
        memory.write(0, &bytes).unwrap();
        memory
    }

    /// The elements of device memory, once the stream is done.
    pub(crate) fn download<T: Bytes>(&self, memory: &DeviceMemory) -> Vec<T> {
        self.stream().synchronize().unwrap();
        let mut bytes = vec![0; memory.len()];
        memory.read(0, &mut bytes).unwrap();
        bytes.chunks_exact(size_of::<T>()).map(T::from_bytes).collect()
    }
}

/// Numbers as bytes.
pub(crate) trait Bytes: Copy {
    fn bytes(self) -> Vec<u8>;
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! bytes {
    ($($t:ty)*) => {$(
        impl Bytes for $t {
            fn bytes(self) -> Vec<u8> { self.to_ne_bytes().to_vec() }
            fn from_bytes(bytes: &[u8]) -> Self { <$t>::from_ne_bytes(bytes.try_into().unwrap()) }
        }
    )*};
}

bytes! { u8 i16 i32 i64 f32 f64 }
