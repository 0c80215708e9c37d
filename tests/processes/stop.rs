//! A rank that stands still is late, not dead: it is named, lives, and hears of it when it goes on.

use crate::kill::{self, Crowd, Dice, SOON, live_on, say, say_error};
use crate::midway::work_until_it_fails;
use hccl::prelude::*;
use std::time::{Duration, Instant};

const RANKS: usize = 3;
const LIMIT: &str = "0.7";

/// The others name `late` by their deadline; it lives, and learns the same when it goes on.
fn expect_late(mut crowd: Crowd, late: usize, stopped: Instant) {
    let names = format!("error late [{late}]");
    for rank in crowd.others(late) {
        let said = crowd.wait_for(rank, &names);
        // Its deadline, and the second that a failed call gives a rank that stands still in its memory.
        let after = said.at.saturating_duration_since(stopped);
        assert!(after < 3 * SOON, "rank {rank} was told after {after:?}");
    }
    assert!(crowd.is_alive(late));
    crowd.go_on(late);
    crowd.wait_for(late, &names);
    crowd.again(&[0, 1, 2]);
    crowd.finish(&[]);
}

#[test]
fn a_rank_that_stands_still_is_late() {
    const TEST: &str = "stop::a_rank_that_stands_still_is_late";
    if let Some(case) = kill::case(TEST) {
        let late: usize = case.parse().unwrap();
        let comm = Communicator::from_env().unwrap();
        comm.barrier().unwrap();
        say("ready");
        if comm.rank().index() == late {
            kill::hear();
        }
        let error = match late {
            0 => comm.barrier().unwrap_err(),
            1 => comm.all_reduce(&mut [1_u8; 100_000], Sum).unwrap_err(),
            _ => comm.all_gather_bytes(&[1, 2, 3]).unwrap_err(),
        };
        return live_on(comm, &error);
    }
    for late in 0..RANKS {
        let mut crowd = Crowd::start(TEST, &late.to_string(), RANKS, &[("HCCL_EXEC_TIMEOUT", LIMIT)]);
        crowd.wait_for(late, "ready");
        let stopped = Instant::now();
        crowd.stop(late);
        crowd.tell(late, "go");
        expect_late(crowd, late, stopped);
    }
}

#[test]
fn a_rank_that_stands_still_in_a_large_call_spoils_no_memory() {
    const TEST: &str = "stop::a_rank_that_stands_still_in_a_large_call_spoils_no_memory";
    if let Some(case) = kill::case(TEST) {
        let comm = Communicator::from_env().unwrap();
        let error = work_until_it_fails(&comm, case.starts_with("device"));
        return live_on(comm, &error);
    }
    for seed in 0..8 {
        let mut dice = Dice::new(100 + seed);
        let late = dice.roll(RANKS as u64) as usize;
        let memory = if seed % 4 == 3 { "plain" } else { "device" };
        let case = format!("{memory} seed {seed}");
        let crowd = Crowd::start(TEST, &case, RANKS, &[("HCCL_EXEC_TIMEOUT", LIMIT)]);
        crowd.wait_for_all(&[0, 1, 2], "working");
        std::thread::sleep(Duration::from_micros(dice.roll(30_000)));
        let stopped = Instant::now();
        crowd.stop(late);
        expect_late(crowd, late, stopped);
    }
}

/// The late rank has shown its call and stands still before anyone has mapped its memory.
#[test]
fn a_rank_whose_memory_cannot_be_mapped_is_late() {
    const TEST: &str = "stop::a_rank_whose_memory_cannot_be_mapped_is_late";
    if kill::case(TEST).is_some() {
        let comm = Communicator::from_env().unwrap();
        let values = comm.upload(&vec![comm.rank().index() as u32; 100_000]).unwrap();
        if comm.rank().index() != 1 {
            kill::hear();
        }
        let pending = comm.all_reduce_async(values, Sum).unwrap();
        if comm.rank().index() == 1 {
            std::thread::sleep(Duration::from_millis(50)); // the queue shows the call
            say("shown");
        }
        let error = pending.wait().unwrap_err().into_error();
        return live_on(comm, &error);
    }
    let mut crowd = Crowd::start(TEST, "", RANKS, &[("HCCL_EXEC_TIMEOUT", LIMIT)]);
    crowd.wait_for(1, "shown");
    let stopped = Instant::now();
    crowd.stop(1);
    crowd.tell(0, "go");
    crowd.tell(2, "go");
    let names = "error late [1]";
    crowd.wait_for(0, names);
    crowd.wait_for(2, names);
    expect_late(crowd, 1, stopped);
}

/// Rank 0 waits in a batch for any of three messages and stands still; what it has not sent yet holds up the others,
/// but nobody waits in a circle.
#[test]
fn a_batch_that_stands_still_is_no_circle() {
    const TEST: &str = "stop::a_batch_that_stands_still_is_no_circle";
    if kill::case(TEST).is_some() {
        let comm = Communicator::from_env().unwrap();
        let me = comm.rank().index();
        say("ready");
        if me > 0 {
            kill::hear();
        }
        let (mut a, mut b) = ([0_u32; 2], [0_u32; 3]);
        let done = match me {
            0 => comm.batch_send_recv(|batch| {
                batch.recv(&mut a, comm.peer(1)?)?;
                batch.send(&[5_u32; 2], comm.peer(2)?)?;
                batch.send(&[6_u32; 3], comm.peer(2)?)
            }),
            1 => comm.recv(&mut a, comm.peer(2).unwrap()).and_then(|()| comm.send(&a, comm.peer(0)?)),
            _ => comm
                .recv(&mut a, comm.peer(0).unwrap())
                .and_then(|()| comm.recv(&mut b, comm.peer(0)?))
                .and_then(|()| comm.send(&a, comm.peer(1)?)),
        };
        return match done {
            Ok(()) => {
                assert!(a == [5; 2] && (me < 2 || b == [6; 3]));
                say("done")
            }
            Err(error) => say_error(&error),
        };
    }
    let mut crowd = Crowd::start(TEST, "", RANKS, &[]);
    crowd.wait_for_all(&[0, 1, 2], "ready");
    std::thread::sleep(Duration::from_millis(100)); // rank 0 waits in its batch and has said so
    crowd.stop(0);
    crowd.tell(1, "go");
    crowd.tell(2, "go");
    std::thread::sleep(Duration::from_millis(400));
    crowd.go_on(0);
    crowd.wait_for_all(&[0, 1, 2], "done");
    crowd.finish(&[]);
}
