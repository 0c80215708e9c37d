//! A forked child is no rank: what it does leaves its parent's groups alone.
#![expect(unsafe_code, reason = "forks")]

use crate::kill::{self, Crowd, join, live_on, say};
use hccl::ErrorKind;
use hccl::prelude::*;

#[test]
fn a_child_that_drops_its_copies_hides_no_death() {
    const TEST: &str = "fork::a_child_that_drops_its_copies_hides_no_death";
    if kill::case(TEST).is_some() {
        let first = Communicator::from_env().unwrap();
        let (rank, job) = (first.rank().index(), std::env::var("HCCL_JOB_ID").unwrap());
        let second = join(&format!("{job}-second"), rank, 2).unwrap();
        if rank == 1 {
            first.barrier().unwrap();
            let error = first.barrier().unwrap_err();
            return live_on(first, &error);
        }
        // SAFETY: the child calls nothing but this library and `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let refused = matches!(first.barrier().unwrap_err().kind(), ErrorKind::Forked);
            let no_world = hccl::local(2, |comm| comm.barrier());
            let refused = refused && matches!(no_world.unwrap_err().kind(), ErrorKind::Forked);
            drop(first);
            drop(second);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!refused)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child was not refused");
        first.barrier().unwrap();
        say("forked");
        loop {
            std::thread::park();
        }
    }
    let crowd = Crowd::start(TEST, "", 2, &[("HCCL_TIMEOUT", "20")]);
    crowd.wait_for(0, "forked");
    let killed = crowd.kill(0);
    crowd.expect_loss(0, killed);
}
