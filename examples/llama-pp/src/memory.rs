//! What a rank holds of the model, and how much memory it has ever used.

use hccl::Communicator;

use crate::cli::Parallel;
use crate::failure::Result;
use crate::job::Job;

/// What rank 0 knows of a rank at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// Bytes of weights.
    pub(crate) weights: u64,
    /// Most bytes ever resident, less those shared with files and other processes; 0 where that is not known.
    pub(crate) peak: u64,
}

/// What each rank has used, on rank 0; empty elsewhere. This rank holds `weights` bytes of them. Collective.
///
/// # Errors
/// Those of the other ranks.
pub(crate) fn gather(comm: &Communicator, weights: usize) -> Result<Vec<Held>> {
    let root = comm.root(0)?;
    let mut all = vec![0u64; 2 * comm.size()];
    let mine = [weights as u64, peak()];
    comm.gather(&mine, comm.is_root(root).then_some(&mut all), root)?;
    let held = all.as_chunks::<2>().0.iter().map(|[weights, peak]| Held { weights: *weights, peak: *peak });
    Ok(if comm.is_root(root) { held.collect() } else { Vec::new() })
}

fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    peak_of(&status)
}

fn peak_of(status: &str) -> u64 {
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    kib("VmHWM").saturating_sub(kib("RssFile") + kib("RssShmem")) * 1024
}

/// A line on what rank `rank` has held.
pub(crate) fn line(job: &Job, rank: usize, held: Held) -> String {
    let layers = job.layers_of(rank);
    let mut parts = Vec::new();
    if layers.start == 0 {
        parts.push("embedding".to_owned());
    }
    let share = if job.parallel == Parallel::Tp { format!("1/{} of ", job.world) } else { String::new() };
    parts.push(format!("{share}layers {} to {}", layers.start, layers.end - 1));
    if layers.end == job.config.layers {
        parts.push(format!("{share}head"));
    }
    format!(
        "rank {rank}: {}; {} of {} weights, peak memory {}",
        parts.join(", "),
        megabytes(held.weights),
        job.dtype.name(),
        megabytes(held.peak)
    )
}

/// Bytes as people read them.
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_does_not_count() {
        let status = "Name:\tx\nVmHWM:\t  5000 kB\nRssAnon:\t 1 kB\nRssFile:\t 1000 kB\nRssShmem:\t  500 kB\n";
        assert_eq!((peak_of(status), peak_of("")), (3500 * 1024, 0));
        assert!(peak() > 100_000);
    }
}
