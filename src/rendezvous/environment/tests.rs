use super::manager::{Process, parse_stat};
use super::*;
use crate::ErrorKind;

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
const SLURM: &str = "SLURM_PROCID=5 SLURM_NTASKS=7 SLURM_LOCALID=5 SLURM_JOB_ID=1234 SLURM_STEP_ID=2 SLURM_NNODES=1";

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
