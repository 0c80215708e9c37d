//! How ranks find each other: the environment says who this process is, the engine's meeting place does the rest.

pub(crate) mod environment;

use crate::backend::{Backend, cpu};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::options::Options;
use environment::World;
use std::sync::Arc;

#[cfg(all(target_os = "linux", not(hccl_portable)))]
mod npu;

/// The world that the environment describes: of one rank when nothing launched this process.
pub(crate) fn connect(device: Device, options: &Options) -> Result<Arc<dyn Backend>> {
    match device {
        Device::Cpu => match environment::this_process()? {
            World::Single => single(options),
            World::Job(job) => process(&job.job, job.generation, (job.rank, job.size), options),
        },
        #[cfg(all(target_os = "linux", not(hccl_portable)))]
        Device::Npu(index) => npu::connect(index, options),
        #[cfg(not(all(target_os = "linux", not(hccl_portable))))]
        Device::Npu(_) => Err(no_npus(device)),
    }
}

/// A world of `n` ranks that are threads of this process; `device` is that of rank 0.
pub(crate) fn threads(device: Device, n: usize, options: &Options) -> Result<Vec<Arc<dyn Backend>>> {
    match device {
        Device::Cpu => cpu::threads(n, options),
        #[cfg(all(target_os = "linux", not(hccl_portable)))]
        Device::Npu(first) => crate::backend::hccl::threads(n, first, options),
        #[cfg(not(all(target_os = "linux", not(hccl_portable))))]
        Device::Npu(_) => Err(no_npus(device)),
    }
}

#[cfg(not(all(target_os = "linux", not(hccl_portable))))]
fn no_npus(device: Device) -> Error {
    let what = format!("a communicator on {device}");
    Error::new(crate::ErrorKind::Unsupported { what }).hint("NPUs are reached on Linux only: use Device::Cpu")
}

/// The world of `size` ranks under the name `job`, whatever the environment describes.
pub(crate) fn join(device: Device, job: &str, rank: usize, size: usize, options: &Options) -> Result<Arc<dyn Backend>> {
    match device {
        Device::Cpu => process(job, 0, (rank, size), options),
        #[cfg(all(target_os = "linux", not(hccl_portable)))]
        Device::Npu(index) => crate::backend::hccl::process(&meeting_place(job, 0), (rank, size), index, None, options),
        #[cfg(not(all(target_os = "linux", not(hccl_portable))))]
        Device::Npu(_) => Err(no_npus(device)),
    }
}

fn single(options: &Options) -> Result<Arc<dyn Backend>> {
    let mut backends = cpu::threads(1, options)?;
    backends.pop().ok_or_else(|| Error::invalid("a world of no ranks"))
}

#[cfg(all(target_os = "linux", not(hccl_portable)))]
fn process(job: &str, generation: u64, (rank, size): (usize, usize), options: &Options) -> Result<Arc<dyn Backend>> {
    cpu::process(&meeting_place(job, generation), rank, size, options)
}

/// Where the ranks of a job meet. A socket's name holds 107 bytes, a job's any number.
#[cfg(all(target_os = "linux", not(hccl_portable)))]
fn meeting_place(job: &str, generation: u64) -> String {
    format!("{:016x}/{generation}", cpu::name_hash(job))
}

#[cfg(not(all(target_os = "linux", not(hccl_portable))))]
fn process(_job: &str, _generation: u64, (_, size): (usize, usize), options: &Options) -> Result<Arc<dyn Backend>> {
    if size == 1 {
        return single(options);
    }
    let what = "ranks as processes on this system".to_owned();
    Err(Error::new(crate::ErrorKind::Unsupported { what }).hint("run ranks as threads: hccl::local"))
}
