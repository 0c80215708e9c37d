//! What the operating system must give: shared memory, sleeping on a word, and the number of cores.
//!
//! One interface, two implementations: Linux has processes (memfd, process-shared futex, robust list); elsewhere ranks
//! are threads and a sleep is a short nap. `--cfg hccl_portable` takes the second on Linux too, so that it is compiled
//! and tested.

use std::sync::OnceLock;

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

/// Bytes of the largest cache. `HCCL_CACHE_BYTES` sets it, for experiments.
pub(crate) fn cache_bytes() -> usize {
    const USUAL: usize = 32 << 20;
    static BYTES: OnceLock<usize> = OnceLock::new();
    let read = || {
        let asked = std::env::var("HCCL_CACHE_BYTES").ok().and_then(|text| text.parse().ok());
        asked.or_else(|| cache_size(&std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size").ok()?))
    };
    *BYTES.get_or_init(|| read().unwrap_or(USUAL))
}

/// A size as Linux writes it, as `32768K`.
fn cache_size(text: &str) -> Option<usize> {
    text.trim().strip_suffix('K')?.parse::<usize>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_have_a_size() {
        assert_eq!(cache_size("32768K\n"), Some(32 << 20));
        assert_eq!((cache_size("32M"), cache_size("K"), cache_size("")), (None, None, None));
        assert!(cache_bytes() > 0);
    }
}
