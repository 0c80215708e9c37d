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

mod manager;
#[cfg(test)]
mod tests;
mod vars;

use crate::Result;
use manager::{ProcessTree, System};
use vars::{Vars, missing, several_hosts};

/// Most ranks that a job may claim to have.
const MAX_WORLD: u64 = 65_536;

/// What to do when nothing names the job.
const SET_JOB_ID: &str = "set HCCL_JOB_ID to one text on all ranks of this job and on no other job";

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
            Launcher::Pmi => manager::process_manager(processes),
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
