//! What the operating system must give: shared memory, sleeping on a word, and the number of cores.
//!
//! One interface, two implementations: Linux has processes (memfd, process-shared futex, robust list); elsewhere ranks
//! are threads and a sleep is a short nap. `--cfg hccl_portable` takes the second on Linux too, so that it is compiled
//! and tested.

#[cfg(all(target_os = "linux", not(hccl_portable)))]
mod linux;
#[cfg(all(target_os = "linux", not(hccl_portable)))]
pub(crate) use linux::*;

#[cfg(not(all(target_os = "linux", not(hccl_portable))))]
mod portable;
#[cfg(not(all(target_os = "linux", not(hccl_portable))))]
pub(crate) use portable::*;

/// Cores this process may run on.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// `bytes` rounded up to whole pages.
pub(crate) fn pages(bytes: usize) -> usize {
    const PAGE: usize = 4096;
    bytes.div_ceil(PAGE).max(1) * PAGE
}
