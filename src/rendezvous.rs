//! How ranks find each other: the environment says who this process is, the engine's meeting place does the rest.

pub(crate) mod environment;

use crate::backend::{Backend, cpu};
use crate::error::{Error, Result};
use crate::options::Options;
use environment::World;
use std::sync::Arc;

/// The world that the environment describes: of one rank when nothing launched this process.
pub(crate) fn connect(options: &Options) -> Result<Arc<dyn Backend>> {
    match environment::this_process()? {
        World::Single => single(options),
        World::Job(job) => process(&job.job, job.generation, (job.rank, job.size), options),
    }
}

/// The world of `size` ranks under the name `job`, whatever the environment describes.
pub(crate) fn join(job: &str, rank: usize, size: usize, options: &Options) -> Result<Arc<dyn Backend>> {
    process(job, 0, (rank, size), options)
}

fn single(options: &Options) -> Result<Arc<dyn Backend>> {
    let mut backends = cpu::threads(1, options)?;
    backends.pop().ok_or_else(|| Error::invalid("a world of no ranks"))
}

#[cfg(all(target_os = "linux", not(hccl_portable)))]
fn process(job: &str, generation: u64, (rank, size): (usize, usize), options: &Options) -> Result<Arc<dyn Backend>> {
    // A socket's name holds 107 bytes, a job's any number.
    let name = format!("{:016x}/{generation}", cpu::name_hash(job));
    cpu::process(&name, rank, size, options)
}

#[cfg(not(all(target_os = "linux", not(hccl_portable))))]
fn process(_job: &str, _generation: u64, (_, size): (usize, usize), options: &Options) -> Result<Arc<dyn Backend>> {
    if size == 1 {
        return single(options);
    }
    let what = "ranks as processes on this system".to_owned();
    Err(Error::new(crate::ErrorKind::Unsupported { what }).hint("run ranks as threads: hccl::local"))
}
