//! How ranks find each other: the environment says who this process is, the engine's meeting place does the rest.

pub(crate) mod environment;

use crate::backend::{Backend, cpu};
use crate::error::{Error, Result};
use crate::options::Options;
use environment::{JobSpec, World};
use std::sync::Arc;

/// The world that the environment describes: of one rank when nothing launched this process.
pub(crate) fn connect(options: &Options) -> Result<Arc<dyn Backend>> {
    match environment::this_process()? {
        World::Single => single(options),
        World::Job(job) => process(&job, options),
    }
}

fn single(options: &Options) -> Result<Arc<dyn Backend>> {
    let mut backends = cpu::threads(1, options)?;
    backends.pop().ok_or_else(|| Error::invalid("a world of no ranks"))
}

#[cfg(all(target_os = "linux", not(hccl_portable)))]
fn process(job: &JobSpec, options: &Options) -> Result<Arc<dyn Backend>> {
    // A socket's name holds 107 bytes, a job's any number.
    let name = format!("{:016x}/{}", cpu::name_hash(&job.job), job.generation);
    cpu::process(&name, job.rank, job.size, options)
}

#[cfg(not(all(target_os = "linux", not(hccl_portable))))]
fn process(job: &JobSpec, options: &Options) -> Result<Arc<dyn Backend>> {
    if job.size == 1 {
        return single(options);
    }
    let what = "ranks as processes on this system".to_owned();
    Err(Error::new(crate::ErrorKind::Unsupported { what }).hint("run ranks as threads: hccl::local"))
}
