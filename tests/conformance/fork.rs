//! A child of a rank must not speak in its name: every call there is refused, and the rank goes on undisturbed.
#![expect(unsafe_code, reason = "forks")]

use crate::support::{processes, test_name, threads};
use hccl::prelude::*;
use hccl::{Error, ErrorKind, Result};

/// What a forked child finds: the number of the first call that was not refused, or 0.
fn refusals(comm: &Communicator, idle: Communicator) -> i32 {
    let forked = |error: Error| *error.kind() == ErrorKind::Forked;
    let mut x = [1_u8];
    let calls = [
        comm.barrier().is_err_and(forked),
        comm.all_reduce(&mut x, Sum).is_err_and(forked),
        comm.all_reduce_async(vec![1_u8], Sum).is_err_and(|refused| forked(refused.into_error())),
        comm.scope(|s| s.barrier().map(|_| ())).is_err_and(forked),
        comm.group(&[comm.rank().index()]).is_err_and(forked),
        comm.duplicate().is_err_and(forked),
    ];
    comm.abort_handle().abort(); // must not reach the parent
    drop(idle); // nor must this
    calls.iter().position(|refused| !refused).map_or(0, |call| call as i32 + 1)
}

fn law(comm: &Communicator) -> Result<()> {
    let idle = comm.duplicate()?;
    comm.barrier()?;
    // SAFETY: the child only makes calls that return at once, and then ends without unwinding.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        let found = refusals(comm, idle);
        // SAFETY: ends the child, without running what belongs to the parent.
        unsafe { libc::_exit(found) }
    }
    let mut status = 0;
    // SAFETY: `status` is valid, and the child is ours.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!((waited, status), (child, 0), "the child's call number {} was not refused", status >> 8);
    for group in [comm, &idle] {
        let mut sum = vec![1_u32; 3000];
        group.all_reduce(&mut sum, Sum)?;
        assert!(sum.iter().all(|x| *x as usize == comm.size()));
    }
    Ok(())
}

#[test]
fn a_forked_child_is_refused_processes() {
    let name = test_name(module_path!(), "a_forked_child_is_refused_processes");
    for n in [1, 2] {
        processes(&name, n, law);
    }
}

/// In a process of its own: a child of the test runner would hold its locks.
#[test]
fn a_forked_child_is_refused_threads() {
    let name = test_name(module_path!(), "a_forked_child_is_refused_threads");
    processes(&name, 1, |_| {
        threads(2, |comm| {
            comm.barrier()?;
            if comm.rank().index() == 0 {
                law(&comm.group(&[0])?)?;
            }
            comm.barrier()
        });
        Ok(())
    });
}
