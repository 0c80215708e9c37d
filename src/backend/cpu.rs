//! The CPU engine: ranks of one host, as threads or as processes, with one code path.
//!
//! ```text
//! engine ──┬─> collective ──> kernel                  what happens
//!          └─> message ────> kernel
//!             group, wait, life                       who is there, and how to wait for them
//!             segment, memory, heap                   where it happens: shared memory
//!             handover, subgroup                      how memory and groups are found
//! ```

mod collective;
pub(crate) mod engine;
pub(crate) mod fingerprint;
pub(crate) mod group;
#[cfg(all(target_os = "linux", not(hccl_portable)))]
pub(crate) mod handover;
pub(crate) mod heap;
pub(crate) mod kernel;
mod life;
#[cfg(all(target_os = "linux", not(hccl_portable)))]
mod meet;
mod memory;
mod message;
pub(crate) mod segment;
mod shape;
pub(crate) mod subgroup;
#[cfg(test)]
mod tests;
mod tuning;
mod wait;

use crate::backend::queue::{Lane, Ordered, Side};
use crate::backend::{Backend, Call, Failure, Support};
use crate::device::Device;
use crate::element::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::reduce::OpKind;
use engine::Engine;
use group::Group;
use life::Lives;
use segment::Segment;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The backend of one rank.
pub(crate) type Cpu = Ordered<Engine>;

impl Cpu {
    fn of(group: Group) -> Cpu {
        let group = Arc::new(group);
        Ordered::new(group.clone(), Engine::new(group), Facts)
    }
}

impl Lane for Engine {
    type Side = Facts;

    fn execute(&mut self, call: &Call, eager: bool) -> Result<(), Failure> {
        Engine::execute(self, call, eager)
    }

    fn give_up(&mut self, error: Error, call: &Call) -> Failure {
        Engine::give_up(self, error, call)
    }
}

/// What holds for every group of this engine.
pub(crate) struct Facts;

impl Side for Facts {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn device(&self) -> Device {
        Device::Cpu
    }

    fn support(&self, _dtype: DType, _op: Option<OpKind>) -> Support {
        Support::Native
    }

    fn check(&self, _call: &Call) -> Result<()> {
        Ok(())
    }

    fn group(&self, parent: &Arc<Group>, members: &[usize], tag: u64) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(Cpu::of(subgroup::make(parent, members, tag)?)))
    }
}

/// A group of `n` ranks that are threads of this process: one backend a rank, in rank order.
///
/// # Errors
/// `InvalidArgument` for 0 or more than 256 ranks, `Resource` without memory.
pub(crate) fn threads(n: usize, options: &Options) -> Result<Vec<Arc<dyn Backend>>> {
    let backend = |group| Arc::new(Cpu::of(group)) as Arc<dyn Backend>;
    Ok(thread_groups(n, options)?.into_iter().map(backend).collect())
}

/// As [`threads`], the groups alone.
pub(crate) fn thread_groups(n: usize, options: &Options) -> Result<Vec<Group>> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let id = subgroup::mix(MADE.fetch_add(1, Ordering::Relaxed));
    refuse_forked()?;
    let segment = Arc::new(Segment::create(n, id, stage_bytes(n), n <= crate::sys::cores())?);
    Ok((0..n).map(|rank| Group::join(segment.clone(), rank, true, options, Lives::Threads)).collect())
}

/// One rank of a world of processes: `rank` of `size` ranks that meet under `name`.
///
/// # Errors
/// `Rendezvous`, `Timeout` or `PeerLost` when they do not all meet; `Resource` without memory.
#[cfg(all(target_os = "linux", not(hccl_portable)))]
pub(crate) fn process(name: &str, rank: usize, size: usize, options: &Options) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(Cpu::of(process_group(name, rank, size, options)?)))
}

/// As [`process`], the group alone.
#[cfg(all(target_os = "linux", not(hccl_portable)))]
pub(crate) fn process_group(name: &str, rank: usize, size: usize, options: &Options) -> Result<Group> {
    refuse_forked()?;
    meet::meet(name, rank, size, options)
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
