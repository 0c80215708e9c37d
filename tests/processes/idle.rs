//! A rank dies while the others wait for it, in every kind of call.

use crate::kill::{self, Crowd, live_on, say};
use hccl::prelude::*;

const RANKS: usize = 3;

/// Every call, as ranks make it that wait for `victim`.
fn call(comm: &Communicator, name: &str, victim: usize) -> hccl::Result<()> {
    let (n, me) = (comm.size(), comm.rank().index());
    let (to, root) = (comm.peer(victim)?, comm.root(victim)?);
    let other_root = comm.root((victim + 1) % n)?;
    let small: Vec<u32> = (0..60).map(|i| i * n as u32 + me as u32).collect();
    let mut all = vec![0_u32; 60 * n];
    let mut part = vec![0_u32; 60];
    let mut large = comm.upload(&vec![me as f32; 300_000])?;
    let counts = vec![60; n];
    match name {
        "barrier" => comm.barrier(),
        "all_reduce" => comm.all_reduce(&mut part, Sum),
        "all_reduce large" => comm.all_reduce(&mut large, Sum),
        "reduce to it" => comm.reduce(&mut part, Sum, root),
        "reduce to another" => comm.reduce(&mut large, Sum, other_root),
        "broadcast from it" => comm.broadcast(&mut part, root),
        "broadcast from another" => comm.broadcast(&mut large, other_root),
        "all_gather" => comm.all_gather(&small, &mut all),
        "all_gather_v" => comm.all_gather_v(&small, &mut all, &counts),
        "reduce_scatter" => comm.reduce_scatter(&all.clone(), &mut part, Sum),
        "reduce_scatter_v" => comm.reduce_scatter_v(&all.clone(), &mut part, &counts, Sum),
        "scatter from it" => comm.scatter(None::<&Vec<u32>>, &mut part, root),
        "gather to it" => comm.gather(&small, None::<&mut Vec<u32>>, root),
        "all_to_all" => comm.all_to_all(&all.clone(), &mut all),
        "all_to_all_v" => comm.all_to_all_v(&all.clone(), &counts, &mut all, &counts),
        "send" => comm.send(&small, to),
        "send large" => comm.send(&vec![1_u8; 3_000_000], to),
        "recv" => comm.recv(&mut part, to),
        "batch" => comm.batch_send_recv(|batch| {
            batch.send(&small, to)?;
            batch.recv(&mut part, to)
        }),
        "async" => comm.all_reduce_async(part, Sum)?.wait().map(drop).map_err(Into::into),
        "async send" => comm.send_async(small, to)?.wait().map(drop).map_err(Into::into),
        "scope" => comm.scope(|scope| {
            scope.all_reduce(&mut large, Sum)?;
            scope.broadcast(&mut part, root)?;
            Ok(())
        }),
        "split" => comm.split(Some(me as u64 % 2), 0).map(drop),
        "group" => comm.group(&[1, 0, 2]).map(drop),
        "group led by it" => comm.group(&[victim, (victim + 1) % n, (victim + 2) % n]).map(drop),
        "duplicate" => comm.duplicate().map(drop),
        "bytes" => comm.all_gather_bytes(&[me as u8]).map(drop),
        _ => panic!("{name}"),
    }
}

fn rank(case: &str) {
    let (victim, name) = case.split_once(' ').unwrap();
    let victim: usize = victim.parse().unwrap();
    let comm = Communicator::from_env().unwrap();
    comm.barrier().unwrap();
    say("ready");
    if comm.rank().index() == victim {
        loop {
            std::thread::park(); // until it is killed
        }
    }
    let error = call(&comm, name, victim).unwrap_err();
    live_on(comm, &error);
}

fn killed_during(test: &'static str, names: &[&str]) {
    if let Some(case) = kill::case(test) {
        return rank(&case);
    }
    for (i, name) in names.iter().enumerate() {
        let victim = i % RANKS;
        let crowd = Crowd::start(test, &format!("{victim} {name}"), RANKS, &[]);
        crowd.wait_for_all(&[0, 1, 2], "ready");
        // Some are killed while the others still spin, some when they have gone to sleep.
        std::thread::sleep(std::time::Duration::from_millis(i as u64 % 2 * 30));
        let killed = crowd.kill(victim);
        crowd.expect_loss(victim, killed);
    }
}

#[test]
fn collectives_name_a_rank_that_was_killed() {
    let names = [
        "barrier",
        "all_reduce",
        "all_reduce large",
        "reduce to it",
        "reduce to another",
        "broadcast from it",
        "broadcast from another",
        "all_gather",
        "all_gather_v",
        "reduce_scatter",
        "reduce_scatter_v",
        "scatter from it",
        "gather to it",
        "all_to_all",
        "all_to_all_v",
        "bytes",
    ];
    killed_during("idle::collectives_name_a_rank_that_was_killed", &names);
}

#[test]
fn messages_queues_and_groups_name_a_rank_that_was_killed() {
    let names = [
        "send",
        "send large",
        "recv",
        "batch",
        "async",
        "async send",
        "scope",
        "split",
        "group",
        "group led by it",
        "duplicate",
        // Again with the other ranks as victims.
        "group led by it",
        "group",
        "duplicate",
        "barrier",
    ];
    killed_during("idle::messages_queues_and_groups_name_a_rank_that_was_killed", &names);
}

/// One member is dead and another only late: the dead one is named.
#[test]
fn a_group_names_its_dead_member_not_a_late_one() {
    const TEST: &str = "idle::a_group_names_its_dead_member_not_a_late_one";
    if kill::case(TEST).is_some() {
        let comm = Communicator::from_env().unwrap();
        comm.barrier().unwrap();
        say("ready");
        if comm.rank().index() != 0 {
            kill::hear();
        }
        let error = comm.duplicate().unwrap_err();
        return live_on(comm, &error);
    }
    let mut crowd = Crowd::start(TEST, "", RANKS, &[]);
    crowd.wait_for_all(&[0, 1, 2], "ready");
    let killed = crowd.kill(2);
    crowd.wait_for(0, "error");
    crowd.tell(1, "late");
    crowd.wait_for(1, "error lost 2 Died");
    crowd.expect_loss(2, killed);
}
