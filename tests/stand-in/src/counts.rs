//! What is alive: for tests that look for leaks.
//!
//! In the process: `hccl_stand_in_live` writes seven numbers in the order of [`Kind`]. After it: with
//! `HCCL_STAND_IN_COUNTS=DIR` a process that used the library writes `DIR/PID` when it exits, one `name number` a line.
#![expect(unsafe_code, reason = "an exported function, and one to run at exit")]

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::Array;

/// What is counted.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// `aclrtSetDevice` without its `aclrtResetDevice`.
    Devices,
    Contexts,
    Streams,
    Events,
    Memory,
    HostMemory,
    Comms,
}

const NAMES: [&str; 7] = ["devices", "contexts", "streams", "events", "memory", "host-memory", "comms"];

static LIVE: [AtomicU64; 7] = [const { AtomicU64::new(0) }; 7];

pub(crate) fn more(kind: Kind) {
    LIVE[kind as usize].fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn less(kind: Kind) {
    LIVE[kind as usize].fetch_sub(1, Ordering::Relaxed);
}

fn live() -> [u64; 7] {
    std::array::from_fn(|i| LIVE[i].load(Ordering::Relaxed))
}

/// Writes seven numbers.
#[unsafe(no_mangle)]
extern "C" fn hccl_stand_in_live(into: Array<u64>) {
    // A null pointer gets nothing.
    let _ = into.fill(&live());
}

/// Has the counts written when the process ends.
pub(crate) fn at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::env::var_os("HCCL_STAND_IN_COUNTS").is_some() {
            // SAFETY: the function stays loaded: the library is never closed.
            unsafe { libc::atexit(write) };
        }
    });
}

extern "C" fn write() {
    let Some(dir) = std::env::var_os("HCCL_STAND_IN_COUNTS") else { return };
    let lines: String = NAMES.iter().zip(live()).map(|(name, count)| format!("{name} {count}\n")).collect();
    // A test that misses the file fails.
    let _ = std::fs::write(std::path::Path::new(&dir).join(std::process::id().to_string()), lines);
}
