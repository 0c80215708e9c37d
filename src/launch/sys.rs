#![expect(unsafe_code, reason = "fork, pre_exec and signal dispositions have no safe interface")]
//! The process group of the ranks with its guardian, and the signals of the launcher.
//!
//! ```text
//! launcher ---- write end of a pipe ----> guardian (leads group G, waits for the end of the pipe)
//!    |                                        |
//!    +-- rank 0 (in G) -- its children        +-- at the end of the pipe: kill(G, SIGKILL), itself too
//!    +-- rank 1 (in G)
//! ```
//!
//! The pipe ends when the launcher ends, however it ends. While the guardian is a child that nobody reaped, its pid and
//! so the number of the group cannot be used again: signalling G reaches ranks and their children, nobody else.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions, setrlimit};
use rustix::thread::CpuSet;

/// The process group of all ranks. Dropping it kills whatever is left in the group.
pub(crate) struct Group {
    guardian: Pid,
    /// Ends with this process or with this value, and the guardian acts.
    _alive: OwnedFd,
}

impl Group {
    /// Starts the guardian.
    pub(crate) fn new() -> io::Result<Group> {
        let (watched, alive) = pipe_with(PipeFlags::CLOEXEC)?;
        // SAFETY: the child calls nothing but `guard`, which keeps to async-signal-safe calls: no allocation, no lock.
        let pid = match unsafe { libc::fork() } {
            0 => guard(watched.as_raw_fd()),
            -1 => return Err(io::Error::last_os_error()),
            pid => pid,
        };
        let Some(guardian) = Pid::from_raw(pid) else { return Err(Errno::CHILD.into()) };
        // The guardian does this too; whoever comes first, the group exists before a rank wants to join it.
        rustix::process::setpgid(Some(guardian), Some(guardian))?;
        Ok(Group { guardian, _alive: alive })
    }

    /// Makes `command` join the group, die with the calling thread, run on `cores` and have `files` as its limit.
    pub(crate) fn adopt(&self, command: &mut Command, cores: Option<CpuSet>, files: Option<Rlimit>) {
        let (group, launcher) = (self.guardian, rustix::process::getpid());
        let join = move || -> io::Result<()> {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            if rustix::process::getppid() != Some(launcher) {
                return Err(Errno::SRCH.into());
            }
            rustix::process::setpgid(None, Some(group))?;
            if let Some(cores) = &cores {
                rustix::thread::sched_setaffinity(None, cores)?;
            }
            if let Some(files) = &files {
                setrlimit(Resource::Nofile, *files)?;
            }
            Ok(())
        };
        // SAFETY: `join` makes plain system calls on values it owns: no allocation, no lock, nothing of other threads.
        unsafe { command.pre_exec(join) };
    }

    /// Sends `signal` to every process of the group. The guardian ignores all but SIGKILL.
    pub(crate) fn signal(&self, signal: i32) {
        if let Some(signal) = Signal::from_named_raw(signal) {
            // A group without members is what the caller wants in the end.
            let _ = rustix::process::kill_process_group(self.guardian, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        while matches!(rustix::process::waitpid(Some(self.guardian), WaitOptions::empty()), Err(Errno::INTR)) {}
        // Orphans of ranks are reaped by others; give them a moment, so that no process is seen after the launcher.
        let deadline = Instant::now() + Duration::from_millis(200);
        while rustix::process::test_kill_process_group(self.guardian).is_ok() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The guardian's whole life. Runs in a forked child of a process with threads.
fn guard(watched: i32) -> ! {
    // SAFETY: takes numbers, touches no memory.
    unsafe { libc::setpgid(0, 0) };
    for signal in 1..32 {
        // SAFETY: replaces this process's own disposition; SIGKILL and SIGSTOP are refused, which is fine.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // SAFETY: the name is a constant that ends in NUL.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"hccl-guardian".as_ptr()) };
    // SAFETY: both are file descriptor numbers of this process alone.
    unsafe { libc::dup2(watched, 0) };
    close_from_1();
    let mut byte = 0u8;
    loop {
        // SAFETY: `byte` is one writable byte.
        let read = unsafe { libc::read(0, (&raw mut byte).cast(), 1) };
        if read >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            break;
        }
    }
    // SAFETY: takes numbers. Group 0 is the caller's own: the ranks, their children, the guardian.
    unsafe { libc::kill(0, libc::SIGKILL) };
    // SAFETY: ends the process without running anything of the launcher's.
    unsafe { libc::_exit(0) }
}

/// Closes everything but 0, so that no reader of the launcher's output waits for the guardian.
fn close_from_1() {
    // SAFETY: takes numbers; the descriptors are this process's own copies and nothing here uses them.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0) };
    if closed != 0 {
        // Kernels before 5.9: more than these are unlikely.
        for fd in 1..4096 {
            // SAFETY: as above.
            unsafe { libc::close(fd) };
        }
    }
}

/// Where the handler writes the signals it sees; -1 while no handler is installed.
static SIGNAL_PIPE: AtomicI32 = AtomicI32::new(-1);

/// The pipe behind [`SIGNAL_PIPE`], never closed: a handler may still be about to write.
static PIPE: OnceLock<(OwnedFd, OwnedFd)> = OnceLock::new();

extern "C" fn on_signal(signal: libc::c_int) {
    // SAFETY: takes nothing; async-signal-safe.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: `errno` points to this thread's errno.
    let saved = unsafe { *errno };
    let byte = signal as u8;
    // SAFETY: `byte` is one readable byte; write is async-signal-safe, and the pipe does not block.
    unsafe { libc::write(SIGNAL_PIPE.load(Ordering::Relaxed), (&raw const byte).cast(), 1) };
    // SAFETY: as above; the interrupted code must not see the errno of `write`.
    unsafe { *errno = saved };
}

/// Catches SIGINT, SIGTERM and SIGHUP until dropped, when the earlier dispositions come back.
///
/// A signal that was ignored stays ignored: `nohup` and the background jobs of a shell rely on it. An ignored SIGCHLD
/// is not: the kernel would throw the exit codes of the ranks away.
pub(crate) struct Signals {
    saved: Vec<(i32, libc::sigaction)>,
    pipe: &'static (OwnedFd, OwnedFd),
}

impl Signals {
    /// Starts to catch. At most one value lives at a time: the caller holds a lock.
    pub(crate) fn catch() -> io::Result<Signals> {
        if PIPE.get().is_none() {
            let _ = PIPE.set(pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?);
        }
        let Some(pipe) = PIPE.get() else { return Err(Errno::BADF.into()) };
        while rustix::io::read(&pipe.0, &mut [0u8; 64]).is_ok_and(|n| n > 0) {}
        SIGNAL_PIPE.store(pipe.1.as_raw_fd(), Ordering::Relaxed);
        let mut signals = Signals { saved: Vec::new(), pipe };
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            let before = disposition(signal, None)?;
            if before.sa_sigaction != libc::SIG_IGN {
                disposition(signal, Some(&action(on_signal as extern "C" fn(libc::c_int) as libc::sighandler_t)))?;
                signals.saved.push((signal, before));
            }
        }
        let before = disposition(libc::SIGCHLD, None)?;
        if before.sa_sigaction == libc::SIG_IGN || before.sa_flags & libc::SA_NOCLDWAIT != 0 {
            disposition(libc::SIGCHLD, Some(&action(libc::SIG_DFL)))?;
            signals.saved.push((libc::SIGCHLD, before));
        }
        Ok(signals)
    }

    /// Readable when a signal came; each is one byte.
    pub(crate) fn readable(&self) -> BorrowedFd<'static> {
        self.pipe.0.as_fd()
    }

    /// Wakes the reader with a byte 0, which is no signal.
    pub(crate) fn wake(&self) {
        // A full pipe wakes the reader as well.
        let _ = rustix::io::write(&self.pipe.1, &[0]);
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (signal, before) in self.saved.drain(..) {
            // These were accepted by the kernel before.
            let _ = disposition(signal, Some(&before));
        }
    }
}

fn action(handler: libc::sighandler_t) -> libc::sigaction {
    // SAFETY: all fields are numbers and pointers for which zero is a value; the mask of zeros blocks nothing.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_RESTART;
    action
}

/// The disposition of `signal` before, and `new` from now on.
fn disposition(signal: i32, new: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    // SAFETY: as in `action`.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `new` is null or valid, `before` is writable; a handler of ours is async-signal-safe.
    match unsafe { libc::sigaction(signal, new, &mut before) } {
        0 => Ok(before),
        _ => Err(io::Error::last_os_error()),
    }
}
