//! Which rank of which job this process is, read from the variables that a launcher sets.
//!
//! | launcher | rank, size | local rank, local size | job |
//! | --- | --- | --- | --- |
//! | `hccl run` | `HCCL_RANK`, `HCCL_WORLD_SIZE` | `HCCL_LOCAL_RANK`, `HCCL_LOCAL_WORLD_SIZE` (both or none) | `HCCL_JOB_ID` |
//! | torchrun | `RANK`, `WORLD_SIZE` | `LOCAL_RANK`, `LOCAL_WORLD_SIZE` | `MASTER_ADDR:MASTER_PORT` and `TORCHELASTIC_RUN_ID` |
//! | Open MPI | `OMPI_COMM_WORLD_RANK`, `…_SIZE` | `…_LOCAL_RANK`, `…_LOCAL_SIZE` | `PMIX_NAMESPACE`, else `OMPI_MCA_ess_base_jobid` |
//! | MPICH, Intel MPI | `PMI_RANK`, `PMI_SIZE` | `MPI_LOCALRANKID`, `MPI_LOCALNRANKS` (both or none) | pid and start time of the nearest process manager |
//! | srun | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` or `SLURM_NTASKS` | `SLURM_LOCALID` | `SLURM_JOB_ID.SLURM_STEP_ID` |
//!
//! - Launchers are nested in practice (mpirun inside an srun allocation), so the first of the table whose *rank* variable
//!   is set speaks for all; any `HCCL_` variable of the first row counts as set. That launcher's row must be complete.
//! - No rank variable at all, but others of a row: half a launcher, an error that names what is missing. None: alone.
//! - `HCCL_JOB_ID` and `HCCL_GENERATION` replace job and generation of every launcher. The generation is otherwise
//!   `TORCHELASTIC_RESTART_COUNT`, or 0.
//! - Slurm sets `SLURM_PROCID=0` in a batch script and in the shell of an interactive allocation too, where no task
//!   was started by srun: `SLURM_STEP_ID` is then absent, a word, or one of its reserved numbers from 4294967280 up.
//!   Such a process is alone, as is one under salloc; `srun program` starts the tasks.
//! - A job whose ranks sit on several hosts is refused.

use crate::{Error, ErrorKind, Result};

/// Most ranks that a job may claim to have.
const MAX_WORLD: u64 = 65_536;

/// Step numbers from here up name the batch script, an interactive shell or helpers of Slurm, not tasks of srun.
const SLURM_RESERVED_STEPS: u64 = 0xffff_fff0;

/// What the environment says about this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum World {
    /// No launcher: a world of one.
    Single,
    /// A rank of a job.
    Job(JobSpec),
}

/// A rank of a job on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobSpec {
    /// This process, below `size`.
    pub(crate) rank: usize,
    /// Ranks in the job, at least 1.
    pub(crate) size: usize,
    /// This process among those of its host, below `local_size`.
    pub(crate) local_rank: usize,
    /// Ranks on this host; equals `size`.
    pub(crate) local_size: usize,
    /// Equal on all ranks of this job and on no other job of this user and host. Any text, never empty.
    pub(crate) job: String,
    /// Counts restarts of the same job.
    pub(crate) generation: u64,
    /// Whose variables these are.
    pub(crate) launcher: Launcher,
}

/// Who started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Launcher {
    /// `hccl run` or `hccl::launch`.
    Hccl,
    /// torchrun.
    Torchrun,
    /// mpirun of Open MPI.
    OpenMpi,
    /// mpirun of MPICH or Intel MPI, or another that speaks PMI.
    Pmi,
    /// srun.
    Slurm,
}

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

/// [`world`] of this process.
pub(crate) fn this_process() -> Result<World> {
    let var = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    world(&var, &System)
}

/// Reads the variables that `var` looks up.
///
/// # Errors
///
/// `Environment` naming the variable that is missing, not a number or out of range; `Unsupported` for ranks on several
/// hosts.
pub(crate) fn world(var: &dyn Fn(&str) -> Option<String>, processes: &dyn ProcessTree) -> Result<World> {
    let vars = Vars { var };
    let slurm = SlurmStep::of(&vars)?;
    let rows = rows(&slurm);
    let speaks = |row: &&Row| {
        let starts = if row.launcher == Launcher::Hccl { &row.all[..] } else { &row.all[..1] };
        starts.iter().any(|name| vars.is_set(name))
    };
    if let Some(row) = rows.iter().find(speaks) {
        return row.read(&vars, processes).map(World::Job);
    }
    match rows.iter().find_map(|row| row.all.iter().find(|name| vars.is_set(name)).map(|set| (row, set))) {
        Some((row, set)) => Err(missing(row.all[0], set)),
        None => match ["HCCL_JOB_ID", "HCCL_GENERATION"].into_iter().find(|name| vars.is_set(name)) {
            Some(set) => Err(missing("HCCL_RANK", set)),
            None => Ok(World::Single),
        },
    }
}

/// The variables of one launcher.
struct Row {
    launcher: Launcher,
    /// Rank, size, and then whatever else shows that this launcher was meant.
    all: Vec<&'static str>,
    local: Local,
}

/// How a launcher tells of the ranks on this host.
enum Local {
    /// Two variables, local rank and local size, always set.
    Always(&'static str, &'static str),
    /// Two variables, both set or none. None claims that all ranks are on this host.
    Maybe(&'static str, &'static str),
    /// Slurm: the number of hosts, and the local rank if it is known.
    Hosts(&'static str, &'static str),
}

fn rows(slurm: &SlurmStep) -> Vec<Row> {
    let mut rows = vec![
        Row {
            launcher: Launcher::Hccl,
            all: vec!["HCCL_RANK", "HCCL_WORLD_SIZE", "HCCL_LOCAL_RANK", "HCCL_LOCAL_WORLD_SIZE"],
            local: Local::Maybe("HCCL_LOCAL_RANK", "HCCL_LOCAL_WORLD_SIZE"),
        },
        Row {
            launcher: Launcher::Torchrun,
            all: vec!["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"],
            local: Local::Always("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        },
        Row {
            launcher: Launcher::OpenMpi,
            all: vec![
                "OMPI_COMM_WORLD_RANK",
                "OMPI_COMM_WORLD_SIZE",
                "OMPI_COMM_WORLD_LOCAL_RANK",
                "OMPI_COMM_WORLD_LOCAL_SIZE",
            ],
            local: Local::Always("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        },
        Row {
            launcher: Launcher::Pmi,
            all: vec!["PMI_RANK", "PMI_SIZE", "PMI_FD"],
            local: Local::Maybe("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
        },
    ];
    if let SlurmStep::Task { size } = *slurm {
        let local = Local::Hosts("SLURM_STEP_NUM_NODES", "SLURM_NNODES");
        rows.push(Row { launcher: Launcher::Slurm, all: vec!["SLURM_PROCID", size, "SLURM_STEP_ID"], local });
    }
    rows
}

impl Row {
    fn read(&self, vars: &Vars<'_>, processes: &dyn ProcessTree) -> Result<JobSpec> {
        let because = |name: &str| self.all.iter().copied().find(|other| *other != name && vars.is_set(other));
        let need = |name: &'static str| match vars.text(name) {
            Some(_) => Ok(name),
            None => Err(missing(name, because(name).unwrap_or(self.all[0]))),
        };
        let (rank_name, size_name) = (need(self.all[0])?, need(self.all[1])?);
        let size = vars.number(size_name, 1, MAX_WORLD, None)?.unwrap_or(1);
        let rank = vars.number(rank_name, 0, size - 1, Some((size_name, size)))?.unwrap_or(0);
        let (local_rank, local_size) = self.local(vars, (rank_name, rank), (size_name, size))?;
        let (job, generation) = (self.job(vars, processes)?, self.generation(vars)?);
        Ok(JobSpec {
            rank: rank as usize,
            size: size as usize,
            local_rank: local_rank as usize,
            local_size: local_size as usize,
            job,
            generation,
            launcher: self.launcher,
        })
    }

    fn local(&self, vars: &Vars<'_>, rank: (&str, u64), size: (&str, u64)) -> Result<(u64, u64)> {
        let (local_rank, local_size) = match self.local {
            Local::Always(local_rank, local_size) => (local_rank, local_size),
            Local::Maybe(local_rank, local_size) if vars.is_set(local_rank) || vars.is_set(local_size) => {
                (local_rank, local_size)
            }
            Local::Maybe(..) => return Ok((rank.1, size.1)),
            Local::Hosts(step, job) => {
                let name = if vars.is_set(step) { step } else { job };
                if vars.number(name, 1, u64::MAX, None)?.unwrap_or(1) > 1 {
                    return Err(several_hosts(name, vars, size));
                }
                let local = vars.number("SLURM_LOCALID", 0, size.1 - 1, Some(size))?;
                return Ok((local.unwrap_or(rank.1), size.1));
            }
        };
        for (name, set) in [(local_size, local_rank), (local_rank, local_size)] {
            if !vars.is_set(name) {
                return Err(missing(name, if vars.is_set(set) { set } else { rank.0 }));
            }
        }
        let here = vars.number(local_size, 1, size.1, Some(size))?.unwrap_or(size.1);
        if here != size.1 {
            return Err(several_hosts(local_size, vars, size));
        }
        let local = vars.number(local_rank, 0, here - 1, Some((local_size, here)))?.unwrap_or(rank.1);
        Ok((local, here))
    }

    fn job(&self, vars: &Vars<'_>, processes: &dyn ProcessTree) -> Result<String> {
        if let Some(job) = vars.filled("HCCL_JOB_ID")? {
            return Ok(job);
        }
        let need = |name: &'static str| {
            let set = self.all[0];
            vars.filled(name)?.ok_or_else(|| missing(name, set).hint(format!("set {name}, or {SET_JOB_ID}")))
        };
        match self.launcher {
            Launcher::Hccl => Err(missing("HCCL_JOB_ID", "HCCL_RANK").hint(SET_JOB_ID)),
            Launcher::Torchrun => {
                let (address, port) = (need("MASTER_ADDR")?, need("MASTER_PORT")?);
                vars.number("MASTER_PORT", 0, u64::from(u16::MAX), None)?;
                let run = vars.text("TORCHELASTIC_RUN_ID").unwrap_or_default();
                Ok(format!("torchrun:{address}:{port}:{run}"))
            }
            Launcher::OpenMpi => match vars.filled("OMPI_MCA_ess_base_jobid")? {
                Some(id) if !vars.is_set("PMIX_NAMESPACE") => Ok(format!("ompi:{id}")),
                _ => Ok(format!("pmix:{}", need("PMIX_NAMESPACE")?)),
            },
            Launcher::Pmi => process_manager(processes),
            Launcher::Slurm => {
                let job = if vars.is_set("SLURM_JOBID") && !vars.is_set("SLURM_JOB_ID") {
                    need("SLURM_JOBID")?
                } else {
                    need("SLURM_JOB_ID")?
                };
                Ok(format!("slurm:{job}.{}", need("SLURM_STEP_ID")?))
            }
        }
    }

    fn generation(&self, vars: &Vars<'_>) -> Result<u64> {
        let restarts = match self.launcher {
            Launcher::Torchrun => vars.number("TORCHELASTIC_RESTART_COUNT", 0, u64::MAX, None)?,
            _ => None,
        };
        let ours = vars.number("HCCL_GENERATION", 0, u64::MAX, None)?;
        Ok(ours.or(restarts).unwrap_or(0))
    }
}

const SET_JOB_ID: &str = "set HCCL_JOB_ID to one text on all ranks of this job and on no other job";

/// What Slurm's variables say about this process.
enum SlurmStep {
    /// Not a task of srun: nothing of Slurm, salloc, a batch script or an interactive shell.
    None,
    /// A task of srun; `size` names the variable that counts the tasks.
    Task { size: &'static str },
}

impl SlurmStep {
    fn of(vars: &Vars<'_>) -> Result<SlurmStep> {
        let size = if vars.is_set("SLURM_STEP_NUM_TASKS") { "SLURM_STEP_NUM_TASKS" } else { "SLURM_NTASKS" };
        let task = match vars.text("SLURM_STEP_ID").map(|step| step.parse::<u64>()) {
            Some(step) => step.is_ok_and(|step| step < SLURM_RESERVED_STEPS),
            // A batch script is process 0 of a job without a step; anything else lost a variable on its way.
            None => match vars.text("SLURM_PROCID") {
                Some(rank) => rank != "0" || !(vars.is_set("SLURM_JOB_ID") || vars.is_set("SLURM_JOBID")),
                None => false,
            },
        };
        Ok(if task { SlurmStep::Task { size } } else { SlurmStep::None })
    }
}

/// Names of programs that start one process a rank, as the kernel cuts them.
fn is_process_manager(name: &str) -> bool {
    const NAMES: [&str; 8] =
        ["hydra_pmi_proxy", "hydra_bstrap_pr", "pmi_proxy", "mpirun", "slurmstepd", "palsd", "flux-shell", "orterun"];
    NAMES.contains(&name) || name.starts_with("mpiexec")
}

/// Identity of a job whose launcher names none: the process that started all its ranks on this host.
fn process_manager(processes: &dyn ProcessTree) -> Result<String> {
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

struct Vars<'a> {
    var: &'a dyn Fn(&str) -> Option<String>,
}

impl Vars<'_> {
    fn text(&self, name: &str) -> Option<String> {
        (self.var)(name)
    }

    fn is_set(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    /// The text of `name`, which must not be empty.
    fn filled(&self, name: &str) -> Result<Option<String>> {
        match self.text(name) {
            Some(text) if text.is_empty() => {
                Err(error(name, "is empty").hint(format!("give {name} a value, or unset it")))
            }
            text => Ok(text),
        }
    }

    /// The number in `name`, from `min` to `max`; `bound` is the variable that sets `max`.
    fn number(&self, name: &str, min: u64, max: u64, bound: Option<(&str, u64)>) -> Result<Option<u64>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let wanted = match (bound, max) {
            (Some((other, value)), _) => format!("a whole number from {min} to {max} ({other} is {value})"),
            (None, u64::MAX) => format!("a whole number of at least {min}"),
            (None, _) => format!("a whole number from {min} to {max}"),
        };
        match text.parse::<u64>() {
            Ok(number) if (min..=max).contains(&number) => Ok(Some(number)),
            _ => Err(error(name, format!("is {text:?}; it must be {wanted}"))),
        }
    }
}

fn error(variable: &str, problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::Environment { variable: variable.to_owned(), problem: problem.into() })
}

fn missing(variable: &str, set: &str) -> Error {
    error(variable, format!("is missing although {set} is set"))
        .hint(format!("set {variable} too, or unset {set} to run alone"))
}

fn several_hosts(variable: &str, vars: &Vars<'_>, size: (&str, u64)) -> Error {
    let value = vars.text(variable).unwrap_or_default();
    let what = format!("a job on several hosts ({variable} is {value}, {} is {})", size.0, size.1);
    Error::new(ErrorKind::Unsupported { what }).hint("start all ranks on one host: ranks of one host only for now")
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
fn parse_stat(stat: &[u8]) -> Option<Process> {
    let stat = String::from_utf8_lossy(stat);
    let (open, close) = (stat.find('(')?, stat.rfind(')')?);
    let name = stat.get(open + 1..close)?.to_owned();
    let rest: Vec<&str> = stat.get(close + 1..)?.split_whitespace().collect();
    // `rest` starts with field 3, the state; the parent is field 4 and the start time field 22.
    Some(Process { name, parent: rest.get(1)?.parse().ok()?, started: rest.get(19)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree in which `this` is 9 and each process is (pid, parent, name, started).
    struct Tree(&'static [(u32, u32, &'static str, u64)]);

    impl ProcessTree for Tree {
        fn this(&self) -> u32 {
            9
        }
        fn look_up(&self, pid: u32) -> Option<Process> {
            let (_, parent, name, started) = *self.0.iter().find(|row| row.0 == pid)?;
            Some(Process { name: name.to_owned(), parent, started })
        }
    }

    const BARE: Tree = Tree(&[(9, 5, "train", 900), (5, 1, "bash", 500), (1, 0, "init", 1)]);
    const HYDRA: Tree = Tree(&[
        (9, 7, "train", 900),
        (7, 5, "sh", 700),
        (5, 3, "hydra_pmi_proxy", 512),
        (3, 1, "mpiexec.hydra", 300),
        (1, 0, "init", 1),
    ]);

    const HCCL: &str = "HCCL_RANK=1 HCCL_WORLD_SIZE=3 HCCL_LOCAL_RANK=1 HCCL_LOCAL_WORLD_SIZE=3 HCCL_JOB_ID=j1";
    const TORCHRUN: &str = "RANK=2 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 \
                            TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=6";
    const OPEN_MPI: &str = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=5 OMPI_COMM_WORLD_LOCAL_RANK=3 \
                            OMPI_COMM_WORLD_LOCAL_SIZE=5 PMIX_NAMESPACE=prterun-host-77@1";
    const PMI: &str = "PMI_RANK=4 PMI_SIZE=6 PMI_FD=8 MPI_LOCALRANKID=4 MPI_LOCALNRANKS=6";
    const SLURM: &str =
        "SLURM_PROCID=5 SLURM_NTASKS=7 SLURM_LOCALID=5 SLURM_JOB_ID=1234 SLURM_STEP_ID=2 SLURM_NNODES=1";

    fn read_in(vars: &str, tree: &Tree) -> Result<World> {
        let find =
            |name: &str| vars.split_whitespace().filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name);
        world(&|name| find(name).map(|(_, value)| value.to_owned()), tree)
    }

    fn read(vars: &str) -> Result<World> {
        read_in(vars, &HYDRA)
    }

    fn without(vars: &str, name: &str) -> String {
        let kept: Vec<&str> = vars.split_whitespace().filter(|pair| pair.split('=').next() != Some(name)).collect();
        assert_eq!(kept.len() + 1, vars.split_whitespace().count(), "{name} is not in {vars}");
        kept.join(" ")
    }

    fn with(vars: &str, name: &str, value: &str) -> String {
        format!("{name}={value} {}", without(vars, name))
    }

    fn job(rank: usize, size: usize, job: &str, generation: u64, launcher: Launcher) -> World {
        let job = job.to_owned();
        World::Job(JobSpec { rank, size, local_rank: rank, local_size: size, job, generation, launcher })
    }

    /// The variable that the error names, and the whole text.
    #[track_caller]
    fn refused(vars: &str) -> (String, String) {
        let error = read(vars).expect_err(vars);
        match error.kind() {
            ErrorKind::Environment { variable, .. } => (variable.clone(), error.to_string()),
            other => panic!("{vars}: {other:?}"),
        }
    }

    #[test]
    fn nothing_set_is_a_world_of_one() {
        assert_eq!(read("HOME=/root PATH=/bin HCCL_EXEC_TIMEOUT=3").unwrap(), World::Single);
    }

    #[test]
    fn each_launcher_is_understood() {
        let cases = [
            (HCCL, job(1, 3, "j1", 0, Launcher::Hccl)),
            (TORCHRUN, job(2, 4, "torchrun:127.0.0.1:29500:none", 6, Launcher::Torchrun)),
            (OPEN_MPI, job(3, 5, "pmix:prterun-host-77@1", 0, Launcher::OpenMpi)),
            (PMI, job(4, 6, "pmi:5@512", 0, Launcher::Pmi)),
            (SLURM, job(5, 7, "slurm:1234.2", 0, Launcher::Slurm)),
        ];
        for (vars, expected) in cases {
            assert_eq!(read(vars).unwrap(), expected, "{vars}");
        }
    }

    #[test]
    fn the_first_in_the_table_speaks_for_nested_launchers() {
        let order = [HCCL, TORCHRUN, OPEN_MPI, PMI, SLURM];
        for first in 0..order.len() {
            let all = order[first..].join(" ");
            assert_eq!(read(&all).unwrap(), read(order[first]).unwrap(), "{all}");
        }
    }

    #[test]
    fn each_missing_half_is_named() {
        let cases: [(&str, &[&str]); 5] = [
            (HCCL, &["HCCL_RANK", "HCCL_WORLD_SIZE", "HCCL_LOCAL_RANK", "HCCL_LOCAL_WORLD_SIZE", "HCCL_JOB_ID"]),
            (TORCHRUN, &["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]),
            (
                OPEN_MPI,
                &[
                    "OMPI_COMM_WORLD_RANK",
                    "OMPI_COMM_WORLD_SIZE",
                    "OMPI_COMM_WORLD_LOCAL_RANK",
                    "OMPI_COMM_WORLD_LOCAL_SIZE",
                    "PMIX_NAMESPACE",
                ],
            ),
            (PMI, &["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"]),
            (SLURM, &["SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_STEP_ID"]),
        ];
        for (vars, names) in cases {
            for name in names {
                let (variable, text) = refused(&without(vars, name));
                assert_eq!(variable, *name, "{text}");
                assert!(text.contains("is missing although"), "{text}");
            }
        }
    }

    #[test]
    fn a_single_leftover_names_the_rank_variable() {
        let cases = [
            ("HCCL_WORLD_SIZE=2", "HCCL_RANK"),
            ("HCCL_JOB_ID=a", "HCCL_RANK"),
            ("HCCL_GENERATION=1", "HCCL_RANK"),
            ("WORLD_SIZE=2", "RANK"),
            ("MASTER_ADDR=127.0.0.1", "RANK"),
            ("OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK"),
            ("PMI_FD=7", "PMI_RANK"),
            ("SLURM_STEP_ID=0 SLURM_JOB_ID=3 SLURM_NTASKS=2", "SLURM_PROCID"),
        ];
        for (vars, name) in cases {
            assert_eq!(refused(vars).0, name, "{vars}");
        }
    }

    #[test]
    fn a_complete_launcher_wins_over_leftovers_without_a_rank() {
        let vars = format!("MASTER_ADDR=node1 MASTER_PORT=1 WORLD_SIZE=16 {SLURM}");
        assert_eq!(read(&vars).unwrap(), read(SLURM).unwrap());
        assert_eq!(refused(&format!("HCCL_WORLD_SIZE=16 {SLURM}")).0, "HCCL_RANK");
    }

    #[test]
    fn numbers_are_checked_and_the_range_is_told() {
        let cases = [
            (HCCL, "HCCL_RANK", "3", "from 0 to 2"),
            (HCCL, "HCCL_RANK", "-1", "from 0 to 2"),
            (HCCL, "HCCL_RANK", "", "from 0 to 2"),
            (HCCL, "HCCL_WORLD_SIZE", "0", "from 1 to 65536"),
            (HCCL, "HCCL_WORLD_SIZE", "65537", "from 1 to 65536"),
            (HCCL, "HCCL_WORLD_SIZE", "two", "from 1 to 65536"),
            (HCCL, "HCCL_LOCAL_RANK", "7", "from 0 to 2"),
            (HCCL, "HCCL_LOCAL_WORLD_SIZE", "4", "from 1 to 3"),
            (TORCHRUN, "RANK", "4", "from 0 to 3"),
            (TORCHRUN, "MASTER_PORT", "99999", "from 0 to 65535"),
            (TORCHRUN, "TORCHELASTIC_RESTART_COUNT", "x", "at least 0"),
            (OPEN_MPI, "OMPI_COMM_WORLD_SIZE", "1.5", "from 1"),
            (PMI, "PMI_RANK", "6", "from 0 to 5"),
            (SLURM, "SLURM_PROCID", "7", "from 0 to 6"),
            (SLURM, "SLURM_NTASKS", "0", "from 1"),
            (SLURM, "SLURM_LOCALID", "9", "from 0 to 6"),
        ];
        for (vars, name, value, range) in cases {
            let (variable, text) = refused(&with(vars, name, value));
            assert_eq!(variable, name, "{text}");
            assert!(text.contains(range), "{text}");
        }
    }

    #[test]
    fn several_hosts_are_refused() {
        let cases = [
            with(&with(HCCL, "HCCL_LOCAL_WORLD_SIZE", "2"), "HCCL_LOCAL_RANK", "0"),
            with(TORCHRUN, "LOCAL_WORLD_SIZE", "2"),
            with(OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
            with(PMI, "MPI_LOCALNRANKS", "3"),
            with(SLURM, "SLURM_NNODES", "2"),
            format!("SLURM_STEP_NUM_NODES=2 {SLURM}"),
        ];
        for vars in cases {
            let error = read(&vars).expect_err(&vars);
            assert!(matches!(error.kind(), ErrorKind::Unsupported { .. }), "{error:?}");
            assert!(error.to_string().contains("one host only for now"), "{error}");
        }
    }

    #[test]
    fn job_id_and_generation_of_ours_win() {
        for vars in [HCCL, TORCHRUN, OPEN_MPI, PMI, SLURM] {
            let vars = format!("HCCL_JOB_ID=mine HCCL_GENERATION=9 {vars}");
            let World::Job(spec) = read(&vars).unwrap() else { panic!("{vars}") };
            assert_eq!((spec.job.as_str(), spec.generation), ("mine", 9), "{vars}");
        }
        assert_eq!(refused(&with(HCCL, "HCCL_JOB_ID", "")).0, "HCCL_JOB_ID");
        assert_eq!(refused(&format!("HCCL_GENERATION=-1 {HCCL}")).0, "HCCL_GENERATION");
    }

    #[test]
    fn job_id_of_ours_replaces_what_a_launcher_lacks() {
        let cases = [
            without(&without(TORCHRUN, "MASTER_ADDR"), "MASTER_PORT"),
            without(OPEN_MPI, "PMIX_NAMESPACE"),
            without(SLURM, "SLURM_JOB_ID"),
        ];
        for vars in cases {
            let World::Job(spec) = read(&format!("HCCL_JOB_ID=mine {vars}")).unwrap() else { panic!("{vars}") };
            assert_eq!(spec.job, "mine");
        }
    }

    #[test]
    fn an_older_open_mpi_names_its_job_otherwise() {
        let vars = format!("OMPI_MCA_ess_base_jobid=991 {}", without(OPEN_MPI, "PMIX_NAMESPACE"));
        assert_eq!(read(&vars).unwrap(), job(3, 5, "ompi:991", 0, Launcher::OpenMpi));
        let both = format!("OMPI_MCA_ess_base_jobid=991 {OPEN_MPI}");
        assert_eq!(read(&both).unwrap(), read(OPEN_MPI).unwrap());
    }

    #[test]
    fn pmi_without_a_process_manager_says_how_to_name_the_job() {
        let error = read_in(PMI, &BARE).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Environment { variable, .. } if variable == "HCCL_JOB_ID"));
        assert!(error.to_string().contains("(hint: set HCCL_JOB_ID"), "{error}");
        let World::Job(spec) = read_in(&format!("HCCL_JOB_ID=k {PMI}"), &BARE).unwrap() else { panic!() };
        assert_eq!(spec.job, "k");
    }

    #[test]
    fn pmi_and_ours_may_leave_the_host_out() {
        let pmi = without(&without(PMI, "MPI_LOCALRANKID"), "MPI_LOCALNRANKS");
        assert_eq!(read(&pmi).unwrap(), read(PMI).unwrap());
        let ours = without(&without(HCCL, "HCCL_LOCAL_RANK"), "HCCL_LOCAL_WORLD_SIZE");
        assert_eq!(read(&ours).unwrap(), read(HCCL).unwrap());
    }

    #[test]
    fn slurm_without_srun_is_alone() {
        let cases = [
            "SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_NNODES=2",
            "SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0",
            "SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_STEP_ID=batch",
            "SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_STEP_ID=4294967291",
            "SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_STEP_ID=4294967290",
        ];
        for vars in cases {
            assert_eq!(read(vars).unwrap(), World::Single, "{vars}");
        }
        assert_eq!(refused("SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_PROCID=1").0, "SLURM_STEP_ID");
        assert_eq!(refused("SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_STEP_ID=0").0, "SLURM_JOB_ID");
    }

    #[test]
    fn a_step_of_slurm_counts_its_own_tasks() {
        let vars = format!("SLURM_STEP_NUM_TASKS=6 {SLURM}");
        assert_eq!(read(&vars).unwrap(), job(5, 6, "slurm:1234.2", 0, Launcher::Slurm));
    }

    #[test]
    fn stat_with_an_odd_name_is_read() {
        let stat = b"77 (a) b (c) S 12 77 77 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 5555 1 1";
        let process = parse_stat(stat).unwrap();
        assert_eq!((process.name.as_str(), process.parent, process.started), ("a) b (c", 12, 5555));
        assert!(parse_stat(b"77 (cut").is_none());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_is_in_the_tree() {
        let me = System.look_up(System.this()).unwrap();
        let parent = System.look_up(me.parent).unwrap();
        assert!(me.started >= parent.started && me.started > 0);
    }
}
