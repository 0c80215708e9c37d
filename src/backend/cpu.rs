//! The CPU engine: ranks of one host, as threads or as processes, with one code path.
//!
//! ```text
//! queue ──> engine ──┬─> collective ──> kernel        what happens
//!                    └─> message ────> kernel
//!             group, wait, life                       who is there, and how to wait for them
//!             segment, memory, heap                   where it happens: shared memory
//!             handover, subgroup                      how memory and groups are found
//! ```

mod collective;
mod engine;
mod fingerprint;
mod group;
#[cfg(all(target_os = "linux", not(hccl_portable)))]
pub(crate) mod handover;
pub(crate) mod heap;
mod kernel;
mod life;
#[cfg(all(target_os = "linux", not(hccl_portable)))]
mod meet;
mod memory;
mod message;
mod queue;
pub(crate) mod segment;
mod shape;
mod subgroup;
#[cfg(test)]
mod tests;
mod wait;

use crate::backend::Backend;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use group::Group;
use life::Lives;
use queue::Cpu;
use segment::Segment;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A group of `n` ranks that are threads of this process: one backend a rank, in rank order.
///
/// # Errors
/// `InvalidArgument` for 0 or more than 256 ranks, `Resource` without memory.
pub(crate) fn threads(n: usize, options: &Options) -> Result<Vec<Arc<dyn Backend>>> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let id = subgroup::mix(MADE.fetch_add(1, Ordering::Relaxed));
    refuse_forked()?;
    let segment = Arc::new(Segment::create(n, id, stage_bytes(n), n <= crate::sys::cores())?);
    let backend = |rank| {
        let group = Group::join(segment.clone(), rank, true, options, Lives::Threads);
        Arc::new(Cpu::new(group)) as Arc<dyn Backend>
    };
    Ok((0..n).map(backend).collect())
}

/// One rank of a world of processes: `rank` of `size` ranks that meet under `name`.
///
/// # Errors
/// `Rendezvous`, `Timeout` or `PeerLost` when they do not all meet; `Resource` without memory.
#[cfg(all(target_os = "linux", not(hccl_portable)))]
pub(crate) fn process(name: &str, rank: usize, size: usize, options: &Options) -> Result<Arc<dyn Backend>> {
    refuse_forked()?;
    Ok(Arc::new(Cpu::new(meet::meet(name, rank, size, options)?)))
}

/// From the first call on a forked child is told apart: it has none of the threads that its parent's groups rely on.
fn refuse_forked() -> Result<()> {
    if crate::sys::forked() { Err(Error::new(ErrorKind::Forked)) } else { Ok(()) }
}

/// A job's identity, of any length, as a number.
#[cfg(all(target_os = "linux", not(hccl_portable)))]
pub(crate) fn name_hash(job: &str) -> u64 {
    job.bytes().fold(job.len() as u64, |hash, byte| subgroup::mix(hash ^ u64::from(byte)))
}

/// Bytes of half a staging block. `HCCL_STAGE_BYTES` on the rank that makes the segment changes it, for experiments and
/// for tests that want many rounds of little data.
pub(crate) fn stage_bytes(ranks: usize) -> usize {
    const DEFAULT: usize = 256 << 10;
    let asked = std::env::var("HCCL_STAGE_BYTES").ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(DEFAULT).clamp(64 * ranks.max(1), 1 << 30).next_multiple_of(64)
}
