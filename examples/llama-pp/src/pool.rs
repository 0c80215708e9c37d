//! Threads of computation that stay: [`Pool::run`] hands out the parts of a task and returns when all are done.
//!
//! A decoder starts hundreds of small products for each token. Threads that wait for the next one spin for a moment
//! before they sleep, where there are cores for all of them.
#![expect(unsafe_code, reason = "the task is borrowed by threads that outlive it, which `run` waits for")]

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

/// How often a helper looks for work before it sleeps: about 50 us.
const SPINS: u32 = 10_000;

type Task<'a> = dyn Fn(usize) + Sync + 'a;

/// A fixed number of threads, the caller's included.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    /// Memory that tasks of the owner use again and again.
    pub(crate) scratch: Vec<f32>,
}

struct Shared {
    /// Invariants: (1) written by `run` alone, which `&mut Pool` makes one at a time, while `busy` is 0. (2) Read by
    /// helpers only after they saw the `epoch` that followed the write, and before they count themselves out of `busy`.
    /// (3) What it points to lives until `run` has seen `busy` at 0.
    task: UnsafeCell<Option<*const Task<'static>>>,
    parts: AtomicUsize,
    next: AtomicUsize,
    epoch: AtomicUsize,
    busy: AtomicUsize,
    panicked: AtomicBool,
    quit: AtomicBool,
    spins: u32,
}

// SAFETY: by (1) and (2) accesses of `task` are ordered by `epoch` and `busy`; the task itself is `Sync`.
unsafe impl Send for Shared {}
// SAFETY: as for `Send`.
unsafe impl Sync for Shared {}

impl Pool {
    /// `threads` threads, of which the caller of [`run`](Pool::run) is one; at least 1.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub(crate) fn new(threads: usize) -> std::io::Result<Pool> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let shared = Arc::new(Shared {
            task: UnsafeCell::new(None),
            parts: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            epoch: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            quit: AtomicBool::new(false),
            spins: if threads <= cores { SPINS } else { 0 },
        });
        let mut pool = Pool { shared, helpers: Vec::new(), scratch: Vec::new() };
        for number in 1..threads {
            let shared = Arc::clone(&pool.shared);
            pool.helpers.push(thread::Builder::new().name(format!("compute {number}")).spawn(move || help(&shared))?);
        }
        Ok(pool)
    }

    /// Threads, the caller's included.
    pub(crate) fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls `task` with each of `0..parts`, on all threads, and returns when all calls have.
    ///
    /// # Panics
    /// When `task` panics.
    pub(crate) fn run(&mut self, parts: usize, task: &Task<'_>) {
        if self.helpers.is_empty() || parts < 2 {
            return (0..parts).for_each(task);
        }
        let shared = &*self.shared;
        let task: *const Task<'_> = task;
        // SAFETY: only the lifetime changes; (3) holds because `Wait` below lets nobody out before `busy` is 0.
        let erased = unsafe { std::mem::transmute::<*const Task<'_>, *const Task<'static>>(task) };
        // SAFETY: (1): `&mut self`, and the last `run` has waited for `busy` to be 0.
        unsafe { *shared.task.get() = Some(erased) };
        shared.parts.store(parts, Ordering::Relaxed);
        shared.next.store(0, Ordering::Relaxed);
        shared.busy.store(self.helpers.len(), Ordering::Relaxed);
        shared.epoch.fetch_add(1, Ordering::Release);
        let wait = Wait(shared);
        self.helpers.iter().for_each(|helper| helper.thread().unpark());
        // SAFETY: the caller's borrow is alive.
        shared.take_parts(unsafe { &*task });
        drop(wait);
        assert!(!shared.panicked.swap(false, Ordering::Relaxed), "a thread of computation panicked");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.quit.store(true, Ordering::Relaxed);
        self.shared.epoch.fetch_add(1, Ordering::Release);
        for helper in self.helpers.drain(..) {
            helper.thread().unpark();
            // A helper catches panics of tasks; nothing else in it panics.
            let _ = helper.join();
        }
    }
}

/// Waits, also while a panic unwinds, until no helper uses the task.
struct Wait<'a>(&'a Shared);

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let mut spins = 0;
        while self.0.busy.load(Ordering::Acquire) != 0 {
            spins += 1;
            if spins < self.0.spins { std::hint::spin_loop() } else { thread::yield_now() }
        }
    }
}

impl Shared {
    fn take_parts(&self, task: &Task<'_>) {
        let parts = self.parts.load(Ordering::Relaxed);
        loop {
            let part = self.next.fetch_add(1, Ordering::Relaxed);
            if part >= parts {
                return;
            }
            task(part);
        }
    }

    /// Waits for an epoch other than `seen`.
    fn next_epoch(&self, seen: usize) -> usize {
        let mut spins = 0;
        loop {
            let epoch = self.epoch.load(Ordering::Acquire);
            if epoch != seen {
                return epoch;
            }
            spins += 1;
            if spins < self.spins { std::hint::spin_loop() } else { thread::park() }
        }
    }
}

fn help(shared: &Shared) {
    let mut seen = 0;
    loop {
        seen = shared.next_epoch(seen);
        if shared.quit.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: (2): after the epoch that followed the write, before `busy` is counted down.
        let task = unsafe { *shared.task.get() };
        if let Some(task) = task {
            // SAFETY: (3).
            let task = unsafe { &*task };
            if catch_unwind(AssertUnwindSafe(|| shared.take_parts(task))).is_err() {
                shared.panicked.store(true, Ordering::Relaxed);
            }
        }
        shared.busy.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn every_part_runs_once() {
        for threads in [1, 2, 3] {
            let mut pool = Pool::new(threads).unwrap();
            assert_eq!(pool.threads(), threads);
            for parts in [0, 1, 2, 7, 100] {
                let seen = Mutex::new(vec![0; parts]);
                pool.run(parts, &|part| seen.lock().unwrap()[part] += 1);
                assert_eq!(seen.into_inner().unwrap(), vec![1; parts], "{threads} threads");
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let mut pool = Pool::new(2).unwrap();
        for _ in 0..20 {
            let caught = catch_unwind(AssertUnwindSafe(|| pool.run(8, &|part| assert!(part != 5))));
            assert!(caught.is_err());
            pool.run(4, &|_| ());
        }
    }
}
