//! Pipelines of candle models over ranks as threads: the weights are those of one process, whatever the schedule.

mod support;
mod tied;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarMap;
use hccl::pipeline::{self, Costs, Plan, Schedule, Wire};
use hccl::{Dp, ErrorKind, Mesh, Pp};
use hccl_candle::pipeline::{Replicas, StageWeights};
use hccl_candle::{Error, Optimizer, Options, Result, Sgd, Unused, local};
use support::*;

const SCHEDULES: [Schedule; 5] =
    [Schedule::GPipe, Schedule::OneFOneB, Schedule::Interleaved { chunks: 2 }, Schedule::ZbH1, Schedule::ZbV];

/// Batches that no number of microbatches here divides, and that differ from step to step.
const BATCHES: [usize; 3] = [17, 13, 21];

#[test]
fn every_schedule_trains_as_one_process() {
    let expected = single(3, &BATCHES);
    for ranks in [1, 2, 4] {
        for schedule in SCHEDULES {
            for split in [false, true] {
                let found = local(ranks, |comm| train(&comm, schedule, split, &BATCHES, Wire::F32)).unwrap();
                assert!(found.iter().all(|part| !part.is_empty()), "each rank holds a part");
                let off = difference(&found, &expected);
                assert!(off < 2e-6, "{schedule} on {ranks} ranks, split {split}: off by {off:e}");
            }
        }
    }
}

#[test]
fn gradients_in_half_the_bytes_are_close_and_not_the_same() {
    let expected = single(3, &BATCHES);
    let start = single(3, &[]);
    let moved = difference(std::slice::from_ref(&start), &expected);
    let found = local(2, |comm| train(&comm, Schedule::OneFOneB, false, &BATCHES, Wire::BF16)).unwrap();
    let off = difference(&found, &expected);
    assert!(off > 1e-7 && off < 0.02 * moved, "off by {off:e}, training moved by {moved:e}");
}

/// Two replicas of two stages, with 7 and 4 samples: one batch of 11.
#[test]
fn a_mesh_of_replicas_and_stages_trains_as_one_process() {
    let expected = single(5, &[11, 11]);
    for (schedule, split) in [(Schedule::OneFOneB, false), (Schedule::ZbV, true)] {
        let found = local(4, |world| {
            let mesh = Mesh::new(&world, (Dp(2), Pp(2)))?;
            let (stages, others) = (mesh.group::<Pp>(), mesh.group::<Dp>());
            let replica = others.rank().index();
            let plan = Plan::new(schedule, stages.size(), 4, Costs::default())?;
            let weights = StageWeights::new();
            // The second replica starts with other values: only the first one's may count.
            let mut pipe = chain(stages, plan, &weights, 5 + replica as u64, split, Wire::F32)?;
            let mut replicas = Replicas::new(&weights, pipe.plan(), stages, others, Options::default())?;
            let mut sgd = Sgd::new(replicas.parameters(), SGD)?;
            let (from, to) = [(0, 7), (7, 11)][replica];
            for index in 0..2 {
                step(&mut pipe, index, from, to)?;
                let grads = replicas.local((to - from) as f64)?;
                sgd.step(&replicas.sync(grads)?)?;
                assert!(replicas.check()?.is_empty(), "nothing is tied");
            }
            values(replicas.parameters())
        })
        .unwrap();
        for replica in [&found[..2], &found[2..]] {
            let off = difference(replica, &expected);
            assert!(off < 2e-6, "{schedule}: off by {off:e}");
        }
        assert_eq!(found[..2], found[2..], "replicas have the same bits");
    }
}

#[test]
fn a_group_of_one_replica_is_none() {
    let expected = local(2, |comm| train(&comm, Schedule::GPipe, false, &BATCHES, Wire::F32)).unwrap();
    let found = local(2, |world| {
        let mesh = Mesh::new(&world, (Dp(1), Pp(2)))?;
        let stages = mesh.group::<Pp>();
        let plan = Plan::new(Schedule::GPipe, 2, 4, Costs::default())?;
        let weights = StageWeights::new();
        let mut pipe = chain(stages, plan, &weights, 3, false, Wire::F32)?;
        let options = Options::default();
        let mut replicas = Replicas::new(&weights, pipe.plan(), stages, mesh.group::<Dp>(), options)?;
        let mut sgd = Sgd::new(replicas.parameters(), SGD)?;
        for (index, &count) in BATCHES.iter().enumerate() {
            step(&mut pipe, index, 0, count)?;
            // A power of two: its division is exact.
            let grads = replicas.local(4.0)?;
            let grads = replicas.sync(grads)?;
            assert_eq!(grads.stats().bytes, 0);
            sgd.step(&grads)?;
        }
        values(replicas.parameters())
    });
    assert_eq!(found.unwrap(), expected, "bit for bit");
}

#[test]
fn losses_are_those_of_the_batch_on_every_rank() {
    let losses = local(3, |comm| {
        let plan = Plan::new(Schedule::OneFOneB, 3, 5, Costs::default())?;
        let weights = StageWeights::new();
        let mut pipe = chain(&comm, plan, &weights, 3, false, Wire::F32)?;
        Ok([step(&mut pipe, 0, 0, 13)?, step(&mut pipe, 1, 0, 6)?])
    })
    .unwrap();
    let one = local(1, |comm| {
        let plan = Plan::new(Schedule::OneFOneB, 1, 1, Costs::default())?;
        let weights = StageWeights::new();
        let mut pipe = chain(&comm, plan, &weights, 3, false, Wire::F32)?;
        Ok([step(&mut pipe, 0, 0, 13)?, step(&mut pipe, 1, 0, 6)?])
    })
    .unwrap();
    assert!(losses.iter().all(|other| *other == losses[0]));
    for (found, expected) in losses[0].iter().zip(one[0]) {
        assert!((found - expected).abs() < 1e-6 * expected, "{found}, expected {expected}");
    }
}

/// The first failure of each rank.
fn failures(ranks: usize, f: impl Fn(hccl::Communicator) -> Result<()> + Sync) -> Vec<Error> {
    let results = hccl::local_results(ranks, f).unwrap();
    results.into_iter().map(|result| result.expect_err("every rank fails")).collect()
}

#[test]
fn a_stage_that_fails_ends_every_rank_with_its_error() {
    let all = failures(3, |comm| {
        let plan = Plan::new(Schedule::OneFOneB, 3, 4, Costs::default())?;
        let weights = StageWeights::new();
        let passes = std::rc::Rc::new(std::cell::Cell::new(0));
        let mut pipe = pipeline::train(&comm, plan)
            .stages(3, |at| {
                let (index, passes) = (at.index(), passes.clone());
                let scale = candle_core::Var::new(1f32, &Device::Cpu)?;
                weights.stage_of_vars(at, [("scale".to_string(), scale.clone())], move |x| {
                    passes.set(passes.get() + 1);
                    match index == 1 && passes.get() == 6 {
                        true => candle_core::bail!("out of tea"),
                        false => x.broadcast_mul(&scale),
                    }
                })
            })
            .build()?;
        step(&mut pipe, 0, 0, 9)?;
        step(&mut pipe, 1, 0, 9).map(drop)
    });
    for error in all {
        let inner = error.as_hccl().expect("an error of the pipeline");
        assert!(matches!(inner.kind(), ErrorKind::Rank { rank: 1, .. }), "{error}");
        assert!(error.to_string().contains("out of tea"), "{error}");
    }
}

#[test]
fn batches_that_do_not_fit_are_refused_and_never_cut_short() {
    let all = failures(2, |comm| {
        let plan = Plan::new(Schedule::GPipe, 2, 4, Costs::default())?;
        let weights = StageWeights::new();
        let mut pipe = chain(&comm, plan, &weights, 3, false, Wire::F32)?;
        let parts = hccl_candle::pipeline::Microbatches::new(9, 4)?;
        let [x, _] = samples(0, 0, 10)?;
        pipe.step(|m| Ok(H::new(parts.of(&x, m)?)?), |_, _| Err("unreachable".into()))?;
        Ok(())
    });
    assert!(all.iter().all(|error| error.to_string().contains("[10, 6] is not 9 samples")), "{all:?}");
    let all = failures(2, |comm| {
        let plan = Plan::new(Schedule::GPipe, 2, 4, Costs::default())?;
        let weights = StageWeights::new();
        let mut pipe = chain(&comm, plan, &weights, 3, false, Wire::F32)?;
        step(&mut pipe, 0, 0, 3).map(drop)
    });
    assert!(all.iter().all(|error| error.to_string().contains("3 samples do not make 4 microbatches")), "{all:?}");
}

#[test]
fn a_weight_that_the_loss_does_not_reach_is_named() {
    let results = hccl::local_results(2, |comm| {
        let plan = Plan::new(Schedule::GPipe, 2, 2, Costs::default())?;
        let weights = StageWeights::new();
        let mut pipe = pipeline::train(&comm, plan)
            .stages(2, |at| {
                let map = VarMap::new();
                let init = candle_nn::Init::Const(1.0);
                let used = map.get(WIDTH, &format!("used{}", at.index()), init, DType::F32, &Device::Cpu)?;
                if at.index() == 1 {
                    map.get(2, "idle", init, DType::F32, &Device::Cpu)?;
                }
                weights.stage(at, &map, move |x| x.broadcast_mul(&used))
            })
            .build()?;
        step(&mut pipe, 0, 0, 4)?;
        let grads = Replicas::alone(&weights, pipe.plan(), &comm, Options::default())?;
        let mut skipping = Replicas::alone(&weights, pipe.plan(), &comm, Options::default().unused(Unused::Skip))?;
        let local = grads.local(1.0)?;
        let synced = { grads }.sync(local);
        step(&mut pipe, 0, 0, 4)?;
        let local = skipping.local(1.0)?;
        let skipped = skipping.sync(local)?;
        assert_eq!(skipped.iter().count(), 1);
        synced.map(drop)
    })
    .unwrap();
    assert!(results[0].is_ok());
    match &results[1] {
        Err(Error::NoGradient { parameter, ranks, others: 0 }) => {
            assert_eq!((parameter.as_str(), ranks.as_slice()), ("idle", &[1][..]));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_name_for_two_variables_of_a_rank_is_refused() {
    let all = failures(2, |comm| {
        let plan = Plan::new(Schedule::Interleaved { chunks: 2 }, 2, 4, Costs::default())?;
        let weights = StageWeights::new();
        let pipe = pipeline::train(&comm, plan).stages(4, |at| {
            let scale = candle_core::Var::new(1f32, &Device::Cpu)?;
            weights.stage_of_vars(at, [("scale".to_string(), scale.clone())], move |x: &Tensor| x.broadcast_mul(&scale))
        });
        let pipe: pipeline::Trainer<_, H, H> = pipe.build()?;
        drop(pipe);
        Ok(())
    });
    assert!(all.iter().all(|error| error.to_string().contains("different variables `scale`")), "{all:?}");
}
