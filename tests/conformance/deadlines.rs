//! What does not belong to one group of ranks that goes on: deadlines, panics of ranks, and worlds after worlds.

use crate::support::{WATCHDOG, threads, wait_until};
use hccl::prelude::*;
use hccl::{ErrorKind, Loss, Result};
use std::time::Duration;

/// The deadline of these laws: long enough for a busy machine to start a call, short enough to wait for.
const SECONDS: u64 = 3;

/// Every call but the last of its kind is made by all; then one rank is late, and is named.
fn late_ranks_are_named(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    comm.barrier()?;
    if rank == n - 1 {
        wait_until("the others have given up", || comm.failure().is_some());
    }
    let error = comm.all_reduce(&mut vec![1_u32; 2000], Sum).unwrap_err();
    let ErrorKind::Timeout { late, after } = error.kind() else { panic!("{error}") };
    assert!(late == &[n - 1] && *after >= Duration::from_secs(SECONDS), "{error}");
    assert!(error.is_timeout() && error.to_string().contains("HCCL_EXEC_TIMEOUT"), "{error}");
    let again = comm.barrier().unwrap_err();
    assert_eq!(again.kind(), error.kind(), "the first cause, for good");
    Ok(())
}

/// The same for a message that nobody takes.
fn late_receivers_are_named(comm: &Communicator) -> Result<()> {
    if comm.rank().index() == 1 {
        wait_until("the sender has given up", || comm.failure().is_some());
        assert!(comm.recv(&mut [0_u8], comm.peer(0)?).unwrap_err().is_timeout());
        return Ok(());
    }
    let error = comm.send(&[1_u8], comm.peer(1)?).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Timeout { late, .. } if late == &[1]), "{error}");
    Ok(())
}

#[test]
fn timeouts_threads() {
    let builder = || Communicator::builder().exec_timeout(Duration::from_secs(SECONDS));
    builder().local(3, |comm| late_ranks_are_named(&comm)).unwrap();
    builder().local(2, |comm| late_receivers_are_named(&comm)).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn timeouts_processes() {
    use crate::support::{processes_with, test_name};
    let name = test_name(module_path!(), "timeouts_processes");
    let short = [("HCCL_EXEC_TIMEOUT", SECONDS.to_string())];
    let short = short.each_ref().map(|(name, value)| (*name, value.as_str()));
    processes_with(&name, 3, &short, late_ranks_are_named);
    processes_with(&name, 2, &short, late_receivers_are_named);
}

#[test]
fn a_panicking_rank_is_the_cause_and_the_others_are_told() {
    let results = Communicator::builder().exec_timeout(WATCHDOG).local_results(3, |comm| {
        if comm.rank().index() == 1 {
            std::panic::resume_unwind(Box::new("no such luck"));
        }
        comm.barrier()
    });
    for (rank, result) in results.unwrap().into_iter().enumerate() {
        let error = result.unwrap_err();
        match error.kind() {
            ErrorKind::Rank { rank: 1, message } => assert!(rank == 1 && message.contains("no such luck"), "{error}"),
            kind => assert_eq!(*kind, ErrorKind::PeerLost { peer: 1, how: Loss::Panicked }),
        }
    }
}

#[test]
fn worlds_after_worlds_threads() {
    for round in 0..30 {
        let n = 1 + round % 4;
        let failed = hccl::local(n, |comm| if round % 2 == 0 { comm.barrier() } else { Err(gone(&comm)) });
        assert_eq!(failed.is_err(), round % 2 == 1);
        threads(n, |comm| comm.barrier());
    }
}

fn gone(comm: &Communicator) -> hccl::Error {
    hccl::Error::rank_failed(comm.rank().index(), "on purpose")
}

/// A job's ranks may meet again under the same name: after a drop, an abort, and while the first world still lives.
#[cfg(target_os = "linux")]
#[test]
fn worlds_after_worlds_processes() {
    use crate::support::{processes, test_name};
    let name = test_name(module_path!(), "worlds_after_worlds_processes");
    processes(&name, 3, |first| {
        let sum = |comm: &Communicator| -> Result<()> {
            let mut x = vec![comm.rank().index() as u32; 5000];
            comm.all_reduce(&mut x, Sum)?;
            assert!(x.iter().all(|x| *x == 3));
            Ok(())
        };
        for round in 0..6 {
            let comm = Communicator::from_env()?;
            sum(&comm)?;
            if round % 2 == 1 {
                comm.abort_handle().abort();
                assert!(comm.barrier().is_err());
            }
            sum(first)?;
        }
        Ok(())
    });
}
