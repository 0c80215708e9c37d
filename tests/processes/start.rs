//! Ranks that die, stand still or come twice while the job starts.

use crate::kill::{self, Crowd, Dice, SOON, live_on, say, say_error, sockets, wait_until};
use hccl::prelude::*;
use std::time::{Duration, Instant};

/// A rank that starts and then waits for the others until one is lost.
fn rank() {
    say("up");
    match Communicator::from_env() {
        Err(error) => say_error(&error),
        Ok(comm) => {
            say("met");
            let error = (0..).find_map(|_| comm.barrier().err()).unwrap();
            say_error(&error);
        }
    }
}

/// Waits until `others` ranks have connected to rank 0.
fn wait_for_connections(crowd: &Crowd, others: usize) {
    let name = format!("/{}", crowd.generation);
    let connected = || sockets().iter().filter(|s| s.contains("/job/") && s.ends_with(&name)).count();
    wait_until("ranks connect", || connected() == others + 1);
    // Between connecting and its hello a rank has no number; nothing outside shows when that is over.
    std::thread::sleep(Duration::from_millis(100));
}

/// Every rank in `ranks` must name `victim` soon after `killed`.
fn expect_named(crowd: &Crowd, ranks: &[usize], victim: usize, killed: Instant) {
    for rank in ranks {
        let said = crowd.wait_for(*rank, "error");
        let names = said.text.contains(&format!("rank {victim} died"));
        assert!(names, "{said:?}");
        assert!(said.at.saturating_duration_since(killed) < SOON, "{said:?}");
    }
}

#[test]
fn random_kills_during_the_start() {
    const TEST: &str = "start::random_kills_during_the_start";
    if kill::case(TEST).is_some() {
        return rank();
    }
    for seed in 0..30 {
        let mut dice = Dice::new(seed);
        let victim = dice.roll(4) as usize;
        let crowd = Crowd::start(TEST, &format!("seed {seed}"), 4, &[("HCCL_CONNECT_TIMEOUT", "1.5")]);
        if dice.roll(4) > 0 {
            crowd.wait_for(victim, "up");
        }
        std::thread::sleep(Duration::from_micros(dice.roll(15_000)));
        let killed = crowd.kill(victim);
        for rank in crowd.others(victim) {
            let said = crowd.wait_for(rank, "error");
            // One that died before it came is only known to be missing, or not to answer; and one that comes after
            // rank 0 has given up finds nobody.
            let mut names = vec![format!("rank {victim} died"), format!("for rank {victim}")];
            names.extend((rank != 0).then(|| "late [0]".to_owned()));
            assert!(
                names.iter().any(|name| said.text.contains(name)),
                "victim {victim}: {said:?} of {:#?}",
                crowd.all_said()
            );
            let after = said.at.saturating_duration_since(killed);
            assert!(after < SOON + Duration::from_millis(1500), "{said:?} after {after:?}");
        }
        crowd.finish(&[victim]);
    }
}

#[test]
fn a_rank_killed_while_the_others_are_awaited_is_named_at_once() {
    const TEST: &str = "start::a_rank_killed_while_the_others_are_awaited_is_named_at_once";
    if kill::case(TEST).is_some() {
        return rank();
    }
    for victim in [2, 0] {
        let mut crowd = Crowd::new(TEST, "", 4, &[]);
        (0..3).for_each(|rank| crowd.spawn(rank));
        wait_for_connections(&crowd, 2);
        let killed = crowd.kill(victim);
        let survivors: Vec<usize> = (0..3).filter(|rank| *rank != victim).collect();
        expect_named(&crowd, &survivors, victim, killed);
        crowd.finish(&[victim]);
    }
}

/// Rank 2 stands still after its hello, so that the others are between welcome and go.
#[test]
fn a_rank_killed_between_welcome_and_go_is_named_at_once() {
    const TEST: &str = "start::a_rank_killed_between_welcome_and_go_is_named_at_once";
    if kill::case(TEST).is_some() {
        return rank();
    }
    for victim in [0, 1, 2] {
        let mut crowd = Crowd::new(TEST, "", 3, &[]);
        crowd.spawn(0);
        crowd.spawn(2);
        wait_for_connections(&crowd, 1);
        crowd.stop(2);
        crowd.spawn(1);
        wait_until("rank 0 closes the door", || {
            let maps = std::fs::read_to_string(format!("/proc/{}/maps", crowd.pid(1))).unwrap();
            maps.contains("memfd:hccl-group")
        });
        std::thread::sleep(Duration::from_millis(50)); // rank 1 says that it is ready
        let killed = crowd.kill(victim);
        let survivors: Vec<usize> = [0, 1].into_iter().filter(|rank| *rank != victim).collect();
        expect_named(&crowd, &survivors, victim, killed);
        if victim != 2 {
            crowd.go_on(2);
            crowd.wait_for(2, "error");
        }
        crowd.finish(&[victim]);
    }
}

#[test]
fn a_rank_that_stood_still_during_the_start_goes_on() {
    const TEST: &str = "start::a_rank_that_stood_still_during_the_start_goes_on";
    if kill::case(TEST).is_some() {
        let comm = Communicator::from_env().unwrap();
        let mut sum = [comm.rank().index() as u32 + 1];
        comm.all_reduce(&mut sum, Sum).unwrap();
        return say(format!("sum {}", sum[0]));
    }
    let mut crowd = Crowd::new(TEST, "", 3, &[]);
    crowd.spawn(0);
    crowd.spawn(1);
    wait_for_connections(&crowd, 1);
    for _ in 0..3 {
        // Linux interrupts a receive with a time limit when the process is continued.
        std::thread::sleep(Duration::from_millis(10));
        [0, 1].iter().for_each(|rank| crowd.stop(*rank));
        [0, 1].iter().for_each(|rank| crowd.go_on(*rank));
    }
    crowd.spawn(2);
    (0..3).for_each(|rank| drop(crowd.wait_for(rank, "sum 6")));
    crowd.finish(&[]);
}

#[test]
fn two_jobs_at_once_do_not_mix() {
    const TEST: &str = "start::two_jobs_at_once_do_not_mix";
    if let Some(case) = kill::case(TEST) {
        let comm = Communicator::from_env().unwrap();
        let of: u64 = case.parse().unwrap();
        for i in 0..50_u64 {
            let mut values = vec![of + i; 3000];
            comm.all_reduce(&mut values, Sum).unwrap();
            assert!(values.iter().all(|value| *value == 3 * (of + i)));
        }
        return say("fine");
    }
    let mut crowds: Vec<Crowd> = ["1000", "5000"].map(|case| Crowd::new(TEST, case, 3, &[])).into();
    for rank in [1, 2, 0] {
        crowds.iter_mut().for_each(|crowd| crowd.spawn(rank));
    }
    for crowd in crowds {
        crowd.wait_for_all(&[0, 1, 2], "fine");
        crowd.finish(&[]);
    }
}

#[test]
fn a_name_or_a_rank_taken_twice_is_refused_and_the_job_starts() {
    const TEST: &str = "start::a_name_or_a_rank_taken_twice_is_refused_and_the_job_starts";
    if kill::case(TEST).is_some() {
        return match Communicator::from_env() {
            Ok(comm) => say(format!("met {}", comm.size())),
            Err(error) => say_error(&error),
        };
    }
    let mut first = Crowd::new(TEST, "", 3, &[]);
    first.spawn(0);
    first.spawn(1);
    wait_for_connections(&first, 1);
    let mut second = Crowd::new(TEST, "", 3, &[]);
    (second.job, second.generation) = (first.job.clone(), first.generation);
    second.spawn(0);
    second.spawn(1);
    let said = second.wait_for(0, "error Rendezvous");
    assert!(said.text.contains("another rank 0 of this job") && said.text.contains("HCCL_JOB_ID"), "{said:?}");
    let said = second.wait_for(1, "error Rendezvous");
    assert!(said.text.contains("rank 1 is taken"), "{said:?}");
    first.spawn(2);
    first.wait_for_all(&[0, 1, 2], "met 3");
    first.finish(&[]);
    second.finish(&[]);
}

#[test]
fn different_world_sizes_are_told_to_everyone_who_came() {
    const TEST: &str = "start::different_world_sizes_are_told_to_everyone_who_came";
    if kill::case(TEST).is_some() {
        return rank();
    }
    let mut crowd = Crowd::new(TEST, "", 3, &[]);
    crowd.spawn(0);
    crowd.spawn(1);
    wait_for_connections(&crowd, 1);
    let mut other = Crowd::new(TEST, "", 4, &[]);
    (other.job, other.generation) = (crowd.job.clone(), crowd.generation);
    other.spawn(2);
    for said in [crowd.wait_for(0, "error"), crowd.wait_for(1, "error"), other.wait_for(2, "error")] {
        assert!(said.text.contains("rank 2 says the world has 4 ranks, rank 0 says 3"), "{said:?}");
    }
    crowd.finish(&[]);
    other.finish(&[]);
}

/// The rank that listens for the others dies once all have met: it is a rank like any other.
#[test]
fn rank_0_may_die_after_the_start() {
    const TEST: &str = "start::rank_0_may_die_after_the_start";
    if kill::case(TEST).is_some() {
        let comm = Communicator::from_env().unwrap();
        say("met");
        let error = (0..).find_map(|_| comm.barrier().err()).unwrap();
        return live_on(comm, &error);
    }
    let crowd = Crowd::start(TEST, "", 3, &[]);
    crowd.wait_for_all(&[0, 1, 2], "met");
    let killed = crowd.kill(0);
    crowd.expect_loss(0, killed);
}
