//! The process that started all ranks of a host, for launchers that do not name their job.

use super::SET_JOB_ID;
use super::vars::error;
use crate::Result;

/// The processes of this host, as far as they can be seen.
pub(crate) trait ProcessTree {
    /// This process.
    fn this(&self) -> u32;
    /// Process `pid`; `None` when it cannot be seen.
    fn look_up(&self, pid: u32) -> Option<Process>;
}

/// One process of a [`ProcessTree`].
#[derive(Clone, Debug)]
pub(crate) struct Process {
    /// Its name, cut to 15 bytes as the kernel does.
    pub(crate) name: String,
    /// Its parent.
    pub(crate) parent: u32,
    /// When it started, in clock ticks since boot.
    pub(crate) started: u64,
}

/// Names of programs that start one process a rank, as the kernel cuts them.
fn is_process_manager(name: &str) -> bool {
    const NAMES: [&str; 8] =
        ["hydra_pmi_proxy", "hydra_bstrap_pr", "pmi_proxy", "mpirun", "slurmstepd", "palsd", "flux-shell", "orterun"];
    NAMES.contains(&name) || name.starts_with("mpiexec")
}

/// Identity of a job whose launcher names none: the process that started all its ranks on this host.
pub(super) fn process_manager(processes: &dyn ProcessTree) -> Result<String> {
    let mut pid = processes.this();
    // Deeper trees do not occur; the bound keeps a torn reading of the tree from looping.
    for _ in 0..64 {
        let Some(parent) = processes.look_up(pid).map(|process| process.parent).filter(|parent| *parent != 0) else {
            break;
        };
        match processes.look_up(parent) {
            Some(process) if is_process_manager(&process.name) => {
                return Ok(format!("pmi:{parent}@{}", process.started));
            }
            _ => pid = parent,
        }
    }
    let problem = "is missing, and no mpirun, mpiexec or hydra proxy was found among the ancestors of this process: \
                   PMI_RANK and PMI_SIZE alone do not name the job";
    Err(error("HCCL_JOB_ID", problem).hint(SET_JOB_ID))
}

/// The processes that this one can see.
pub(crate) struct System;

impl ProcessTree for System {
    fn this(&self) -> u32 {
        std::process::id()
    }

    #[cfg(target_os = "linux")]
    fn look_up(&self, pid: u32) -> Option<Process> {
        parse_stat(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    #[cfg(not(target_os = "linux"))]
    fn look_up(&self, _pid: u32) -> Option<Process> {
        None
    }
}

/// Reads `pid (name) state ppid … starttime …`, where the name may hold blanks and parentheses.
#[cfg(any(target_os = "linux", test))]
pub(super) fn parse_stat(stat: &[u8]) -> Option<Process> {
    let stat = String::from_utf8_lossy(stat);
    let (open, close) = (stat.find('(')?, stat.rfind(')')?);
    let name = stat.get(open + 1..close)?.to_owned();
    let rest: Vec<&str> = stat.get(close + 1..)?.split_whitespace().collect();
    // `rest` starts with field 3, the state; the parent is field 4 and the start time field 22.
    Some(Process { name, parent: rest.get(1)?.parse().ok()?, started: rest.get(19)?.parse().ok()? })
}
