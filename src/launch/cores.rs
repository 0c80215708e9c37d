//! Which cores each rank may use.

use rustix::thread::CpuSet;

/// The cores that this thread may use, neighbours in hardware next to each other; empty when they cannot be told.
pub(crate) fn inherited() -> Vec<usize> {
    let Ok(mask) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    let mut cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| mask.is_set(*core)).collect();
    // Linux often counts the second hardware threads after all first ones: split as they sit, not as they count.
    cores.sort_by_cached_key(|core| (topology(*core, "physical_package_id"), topology(*core, "core_id"), *core));
    cores
}

fn topology(core: usize, what: &str) -> i64 {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/{what}");
    std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// The share of `rank` out of `ranks`: a contiguous run of `cores`, all of them for one rank; when there are more ranks
/// than cores, ranks take turns on single cores.
pub(crate) fn share(cores: &[usize], rank: usize, ranks: usize) -> &[usize] {
    let count = cores.len();
    match count {
        0 => cores,
        _ if ranks > count => &cores[rank % count..][..1],
        _ => &cores[rank * count / ranks..(rank + 1) * count / ranks],
    }
}

/// The mask of [`share`]; `None` when there is nothing to bind to.
pub(crate) fn mask(cores: &[usize], rank: usize, ranks: usize) -> Option<CpuSet> {
    let share = share(cores, rank, ranks);
    let mut mask = CpuSet::new();
    share.iter().for_each(|core| mask.set(*core));
    (!share.is_empty()).then_some(mask)
}

/// Threads of computation for each of `ranks` ranks, at least 1: cores by ranks, a processor quota counted in.
pub(crate) fn threads(ranks: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / ranks).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_every_core_once() {
        let cores: Vec<usize> = (10..23).collect();
        for ranks in 1..=cores.len() {
            let all: Vec<usize> = (0..ranks).flat_map(|rank| share(&cores, rank, ranks).to_vec()).collect();
            assert_eq!(all, cores, "{ranks}");
            let sizes: Vec<usize> = (0..ranks).map(|rank| share(&cores, rank, ranks).len()).collect();
            assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{sizes:?}");
        }
    }

    #[test]
    fn more_ranks_than_cores_take_turns() {
        let shares: Vec<&[usize]> = (0..5).map(|rank| share(&[4, 7], rank, 5)).collect();
        assert_eq!(shares, [&[4][..], &[7], &[4], &[7], &[4]]);
    }

    #[test]
    fn no_cores_known_binds_nothing() {
        assert!(mask(&[], 0, 2).is_none());
        assert!(mask(&[3], 1, 2).unwrap().is_set(3));
    }

    #[test]
    fn this_machine_has_cores() {
        assert!(!inherited().is_empty());
        assert_eq!(threads(100_000), 1);
    }
}
