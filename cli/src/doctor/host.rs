//! What the host gives: memory, limits, and what the CPU engine is made of.

use std::fs;

use hccl::{Communicator, Sum};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create, statvfs};
use rustix::process::{Resource, getrlimit};

use super::report::Report;

const AREA: &str = "Host";

/// Less memory than this does not hold the buffers of a few ranks.
const LEAST_MEMORY: u64 = 256 << 20;
/// Files that a rank of a large job opens: sockets and shared memory of each peer.
const FILES: u64 = 1024;

/// Looks at the host.
pub(super) fn look(report: &mut Report) {
    system(report);
    memory(report);
    shared_memory(report);
    limits(report);
    anonymous_memory(report);
    engine(report);
}

fn system(report: &mut Report) {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    report.ok(AREA, "system", format!("Linux {}, {cores} cores for this process", kernel.trim()));
}

fn memory(report: &mut Report) {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? << 10)
    };
    let (Some(total), Some(free)) = (field("MemTotal:"), field("MemAvailable:")) else {
        return report.note(AREA, "memory", "/proc/meminfo does not say how much there is");
    };
    let limit = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let limit = limit.iter().find_map(|path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok());
    let limit = limit.filter(|limit| *limit < total);
    let held = limit.map_or_else(String::new, |limit| format!(", a limit of {} MB on this container", limit >> 20));
    let text = format!("{} of {} MB available{held}", free >> 20, total >> 20);
    match free.min(limit.unwrap_or(u64::MAX)) < LEAST_MEMORY {
        true => report.problem(AREA, "memory", text, "end other programs, or raise the container's limit"),
        false => report.ok(AREA, "memory", text),
    }
}

/// The engine does not need it; other programs of a training job do.
fn shared_memory(report: &mut Report) {
    let Ok(system) = statvfs("/dev/shm") else {
        return report.note(AREA, "/dev/shm", "is not there; this library does not need it");
    };
    let (total, free) = (system.f_blocks * system.f_frsize, system.f_bavail * system.f_frsize);
    let text = format!("{} of {} MB free; this library does not need it", free >> 20, total >> 20);
    if total < 1 << 30 {
        let hint = ", data loaders of other frameworks do (docker run --shm-size, or --ipc=host)";
        return report.note(AREA, "/dev/shm", text + hint);
    }
    report.ok(AREA, "/dev/shm", text);
}

fn limits(report: &mut Report) {
    let files = getrlimit(Resource::Nofile);
    let text = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    let said = format!("{} (at most {})", text(files.current), text(files.maximum));
    if files.maximum.is_some_and(|most| most < FILES) {
        let remedy = format!("raise the hard limit to {FILES} or more (ulimit -Hn, /etc/security/limits.conf)");
        report.problem(AREA, "open files", said, remedy);
    } else if files.current.is_some_and(|now| now < FILES) {
        report.note(AREA, "open files", format!("{said}; hccl run raises it for its ranks, others need ulimit -n"));
    } else {
        report.ok(AREA, "open files", said);
    }
    let locked = getrlimit(Resource::Memlock);
    let said = locked.current.map_or_else(|| "unlimited".to_owned(), |bytes| format!("{} KB", bytes >> 10));
    if report.ascend && locked.current.is_some() {
        return report.note(AREA, "locked memory", format!("{said}; RDMA between hosts may need ulimit -l unlimited"));
    }
    report.ok(AREA, "locked memory", said);
}

fn anonymous_memory(report: &mut Report) {
    let made = memfd_create("hccl-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .and_then(|file| ftruncate(&file, 4096).map(|()| file))
        .and_then(|file| fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW));
    match made {
        Ok(()) => report.ok(AREA, "memfd", "shared memory without a file system can be made and sealed"),
        Err(error) => {
            let remedy =
                "allow memfd_create and fcntl in the container's seccomp profile; Linux 3.17 or later is needed";
            report.problem(AREA, "memfd", format!("sealed shared memory is refused: {error}"), remedy);
        }
    }
}

/// Two ranks meet as processes do, and add: abstract sockets, passed memory, futexes, and the robust list by which a
/// dead rank is noticed.
fn engine(report: &mut Report) {
    let job = format!("doctor-{}", std::process::id());
    let rank = |rank: usize| {
        let patience = std::time::Duration::from_secs(10);
        let builder = Communicator::builder().connect_timeout(patience).exec_timeout(patience);
        let comm = builder.join(&job, rank, 2)?;
        let mut sums = vec![rank as f32 + 1.0; 1000];
        comm.all_reduce(&mut sums, Sum)?;
        Ok::<_, hccl::Error>(sums.iter().all(|sum| *sum == 3.0))
    };
    let results = std::thread::scope(|scope| {
        let ranks = [0, 1].map(|n| scope.spawn(move || rank(n)));
        ranks.map(|rank| rank.join().unwrap_or(Ok(false)))
    });
    let remedy = "allow futex, set_robust_list, unix sockets and memfd_create in the container's seccomp profile";
    match results.into_iter().collect::<Result<Vec<_>, _>>() {
        Ok(right) if right == [true, true] => {
            report.ok(AREA, "CPU engine", "two ranks met over sockets, shared memory and robust futexes, and added");
        }
        Ok(_) => report.problem(AREA, "CPU engine", "two ranks met, and their sum is wrong", "report this as a bug"),
        Err(error) => report.problem(AREA, "CPU engine", error.to_string(), remedy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_runs_the_engine() {
        let mut report = Report::new();
        engine(&mut report);
        anonymous_memory(&mut report);
        assert!(report.is_healthy(), "{report}");
    }
}
