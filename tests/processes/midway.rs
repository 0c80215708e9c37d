//! A rank dies in the middle of large operations, at times drawn from a seed.

use crate::kill::{self, Crowd, Dice, live_on, say};
use hccl::DeviceBuffer;
use hccl::prelude::*;
use std::time::Duration;

const RANKS: usize = 3;
const LENGTH: usize = 400_000;

fn input(i: usize, n: usize, rank: usize) -> u32 {
    (i * n + rank) as u32
}

fn sum(i: usize, n: usize) -> u32 {
    (i * n * n + n * (n - 1) / 2) as u32
}

/// Memory around which the calls work, and what must stand in it.
struct Guard(DeviceBuffer<u8>, u8);

impl Guard {
    fn new(comm: &Communicator, value: u8) -> Guard {
        Guard(comm.upload(&[value; 5000]).unwrap(), value)
    }

    fn check(&self) {
        assert!(self.0.as_slice().unwrap().iter().all(|byte| *byte == self.1), "a guard was written");
    }
}

fn all_equal(found: &[u32], expected: impl Fn(usize) -> u32) {
    for (i, value) in found.iter().enumerate() {
        assert_eq!(*value, expected(i), "at {i}");
    }
}

/// One round of the calls under test; every result is checked whole.
fn round(comm: &Communicator, device: bool, own: &[u32], buf: &mut DeviceBuffer<u32>) -> hccl::Result<()> {
    let (n, me) = (comm.size(), comm.rank().index());
    let gathered = |i: usize| input(i % (LENGTH / 4), n, i / (LENGTH / 4));
    let quarter = &own[..LENGTH / 4];
    let (next, last) = (comm.peer((me + 1) % n)?, (me + n - 1) % n);
    if device {
        buf.copy_from_slice(own)?;
        comm.all_reduce(buf, Sum)?;
        all_equal(buf.as_slice().unwrap(), |i| sum(i, n));
        let source = comm.upload(quarter)?;
        let mut all = comm.zeros::<u32>(quarter.len() * n)?;
        comm.all_gather(&source, &mut all)?;
        all_equal(all.as_slice().unwrap(), gathered);
    } else {
        let mut values = own.to_vec();
        comm.all_reduce(&mut values, Sum)?;
        all_equal(&values, |i| sum(i, n));
        let mut all = vec![0; quarter.len() * n];
        comm.all_gather(quarter, &mut all)?;
        all_equal(&all, gathered);
    }
    let mut received = vec![0; LENGTH / 2];
    comm.batch_send_recv(|batch| {
        batch.send(&own[..LENGTH / 2], next)?;
        batch.recv(&mut received, comm.peer(last)?)
    })?;
    all_equal(&received, |i| input(i, n, last));
    Ok(())
}

/// Works until a rank is lost; then nobody writes this rank's memory any more.
pub(crate) fn work_until_it_fails(comm: &Communicator, device: bool) -> hccl::Error {
    let (n, me) = (comm.size(), comm.rank().index());
    let own: Vec<u32> = (0..LENGTH).map(|i| input(i, n, me)).collect();
    let before = Guard::new(comm, 0xa1);
    let mut buf = comm.zeros::<u32>(LENGTH).unwrap();
    let after = Guard::new(comm, 0xb2);
    let mut rounds = 0;
    let error = loop {
        match round(comm, device, &own, &mut buf) {
            Err(error) => break error,
            Ok(()) => rounds += 1,
        }
        if rounds == 1 {
            say("working");
        }
    };
    // What the failed call was to write is unspecified, but it is ours alone now, as is all that is given out later.
    buf.fill(7).unwrap();
    let fresh: Vec<Guard> = (0..8).map(|i| Guard::new(comm, i)).collect();
    let large = comm.upload(&vec![9_u32; LENGTH]).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    all_equal(buf.as_slice().unwrap(), |_| 7);
    all_equal(large.as_slice().unwrap(), |_| 9);
    [before, after].iter().chain(&fresh).for_each(Guard::check);
    error
}

fn rank(case: &str) {
    let heavy = case.contains("heavy");
    let comm = Communicator::from_env().unwrap();
    let ballast = (heavy && comm.rank().index() == 1).then(|| vec![1_u8; 1 << 30]);
    let error = work_until_it_fails(&comm, !case.contains("plain"));
    drop(ballast);
    live_on(comm, &error);
}

fn killed_at_random(test: &'static str, seeds: std::ops::Range<u64>) {
    if let Some(case) = kill::case(test) {
        return rank(&case);
    }
    for seed in seeds {
        let mut dice = Dice::new(seed);
        let victim = dice.roll(RANKS as u64) as usize;
        let memory = if seed % 2 == 0 { "device" } else { "plain" };
        // Small staging blocks on some, so that a call has many rounds.
        let stage = if dice.roll(2) == 0 { "4096" } else { "262144" };
        let case = format!("{memory} seed {seed}");
        let crowd = Crowd::start(test, &case, RANKS, &[("HCCL_STAGE_BYTES", stage)]);
        crowd.wait_for_all(&[0, 1, 2], "working");
        std::thread::sleep(Duration::from_micros(dice.roll(40_000)));
        let killed = crowd.kill(victim);
        crowd.expect_loss(victim, killed);
    }
}

#[test]
fn random_kills_in_large_calls() {
    killed_at_random("midway::random_kills_in_large_calls", 0..40);
}

#[test]
fn a_rank_with_a_gibibyte_is_seen_to_die_as_soon() {
    const TEST: &str = "midway::a_rank_with_a_gibibyte_is_seen_to_die_as_soon";
    if let Some(case) = kill::case(TEST) {
        return rank(&case);
    }
    let crowd = Crowd::start(TEST, "device heavy", RANKS, &[]);
    crowd.wait_for_all(&[0, 1, 2], "working");
    let killed = crowd.kill(1);
    crowd.expect_loss(1, killed);
}

/// The victim has shown its call and died before anyone has mapped its memory.
#[test]
fn a_rank_that_died_before_its_memory_was_mapped_is_named() {
    const TEST: &str = "midway::a_rank_that_died_before_its_memory_was_mapped_is_named";
    if kill::case(TEST).is_some() {
        let comm = Communicator::from_env().unwrap();
        let mut values = comm.upload(&vec![comm.rank().index() as u32; LENGTH]).unwrap();
        if comm.rank().index() == 1 {
            let _pending = comm.all_reduce_async(values, Sum).unwrap();
            std::thread::sleep(Duration::from_millis(50)); // the queue shows the call
            say("shown");
            kill::hear();
            return;
        }
        kill::hear();
        let error = comm.all_reduce(&mut values, Sum).unwrap_err();
        return live_on(comm, &error);
    }
    let mut crowd = Crowd::start(TEST, "", RANKS, &[]);
    crowd.wait_for(1, "shown");
    let killed = crowd.kill(1);
    crowd.tell(0, "go");
    crowd.tell(2, "go");
    crowd.expect_loss(1, killed);
}
