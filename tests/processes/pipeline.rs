//! A rank of a pipeline dies, or its stage fails: every other rank ends soon and names it.

use crate::kill::{self, Crowd, Dice, live_on, say, say_error};
use hccl::pipeline::{self, Act, Costs, Fixed, Pass, Plan, Schedule, StageResult, Train};
use hccl::prelude::*;
use std::time::{Duration, Instant};

const RANKS: usize = 3;
const WIDTH: usize = 20_000;
/// How soon a failing stage must be known everywhere.
const SOON: Duration = Duration::from_secs(2);

type X = Act<f32, (Fixed<WIDTH>,)>;

/// Adds its number, and fails when it is told to.
struct Stage {
    number: usize,
    passes: usize,
    fault: Option<&'static str>,
}

impl Train for Stage {
    type In = X;
    type Out = X;
    type Saved = ();

    fn forward(&mut self, _: Pass, x: X) -> StageResult<(X, ())> {
        self.passes += 1;
        match self.fault {
            Some("error") if self.passes == 9 => return Err("the disk is full".into()),
            Some("panic") if self.passes == 9 => panic!("the disk is full"),
            _ => {}
        }
        Ok((x.map(|x| x + self.number as f32), ()))
    }

    fn backward(&mut self, (): (), grad: X) -> StageResult<X> {
        Ok(grad)
    }
}

/// Trains until a step fails.
fn train(comm: &Communicator, fault: Option<&'static str>) -> hccl::Error {
    let run = || {
        let plan = Plan::new(Schedule::OneFOneB, RANKS, 4, Costs::default())?;
        let make = |at: &pipeline::At<'_, Stage>| {
            Ok(Stage { number: at.index() + 1, passes: 0, fault: fault.filter(|_| at.index() == 1) })
        };
        let mut pipe = pipeline::train(comm, plan).stages(RANKS, make).build()?;
        for step in 0.. {
            let losses = pipe.step(
                |m| Ok(Act::new([WIDTH], vec![(m + step % 10) as f32; WIDTH])?),
                |_, y| Ok((f64::from(y.data()[WIDTH - 1]), y)),
            )?;
            let expected: Vec<f64> = (0..4).map(|m| (m + step % 10 + 6) as f64).collect();
            assert_eq!(losses.as_slice(), expected);
            if step == 0 {
                say("working");
            }
        }
        Ok(())
    };
    run().unwrap_err()
}

#[test]
fn a_killed_rank_is_named_by_the_others() {
    const TEST: &str = "pipeline::a_killed_rank_is_named_by_the_others";
    if kill::case(TEST).is_some() {
        let comm = Communicator::from_env().unwrap();
        let error = train(&comm, None);
        return live_on(comm, &error);
    }
    for seed in 0..6 {
        let mut dice = Dice::new(seed);
        let victim = dice.roll(RANKS as u64) as usize;
        let crowd = Crowd::start(TEST, &format!("seed {seed}"), RANKS, &[]);
        crowd.wait_for_all(&[0, 1, 2], "working");
        std::thread::sleep(Duration::from_micros(dice.roll(20_000)));
        let killed = crowd.kill(victim);
        crowd.expect_loss(victim, killed);
    }
}

#[test]
fn a_trace_is_written_where_the_environment_says() {
    const TEST: &str = "pipeline::a_trace_is_written_where_the_environment_says";
    if kill::case(TEST).is_some() {
        let comm = Communicator::from_env().unwrap();
        let plan = Plan::new(Schedule::GPipe, RANKS, 2, Costs::default()).unwrap();
        let make = |at: &pipeline::At<'_, Stage>| Ok(Stage { number: at.index(), passes: 0, fault: None });
        let mut pipe = pipeline::train(&comm, plan).stages(RANKS, make).build().unwrap();
        pipe.step(|_| Ok(Act::new([WIDTH], vec![1.0; WIDTH])?), |_, y| Ok((0.0, y))).unwrap();
        return pipe.finish().unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let crowd = Crowd::start(TEST, "", RANKS, &[("HCCL_TRACE", path.to_str().unwrap())]);
    crowd.finish(&[]);
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.matches("thread_name").count(), RANKS);
    // Forward and backward of two microbatches; two messages a microbatch over each of two edges, seen at both ends.
    assert_eq!(text.matches("\"cat\":\"compute\"").count(), RANKS * 4);
    assert!(text.matches("\"cat\":\"wait\"").count() >= 8);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn a_failing_stage_is_named_by_every_process() {
    const TEST: &str = "pipeline::a_failing_stage_is_named_by_every_process";
    if let Some(case) = kill::case(TEST) {
        let comm = Communicator::from_env().unwrap();
        let fault = if case == "panic" { "panic" } else { "error" };
        return say_error(&train(&comm, Some(fault)));
    }
    for case in ["error", "panic"] {
        let crowd = Crowd::start(TEST, case, RANKS, &[]);
        crowd.wait_for_all(&[0, 1, 2], "working");
        let begin = Instant::now();
        for rank in 0..RANKS {
            let said = crowd.wait_for(rank, "error Rank");
            assert!(said.text.contains("rank 1 failed: forward of microbatch 0 on stage 1 (Stage)"), "{said:?}");
            assert!(said.text.contains("the disk is full"), "{said:?}");
            assert!(said.at.saturating_duration_since(begin) < SOON, "{said:?}");
        }
        crowd.finish(&[]);
    }
}
