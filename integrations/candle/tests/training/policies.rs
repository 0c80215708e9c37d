use crate::support::*;
use candle_core::{DType, Device, Tensor};
use candle_nn::{Init, VarMap};
use hccl::Communicator;
use hccl_candle::{Buffers, DataParallel, Error, Optimizer, Options, Result, Sgd, SgdConfig, Unused, local};

/// A map with parameters `a`, `b`, `c`, each `[2]` of ones.
fn three() -> Result<(VarMap, [Tensor; 3])> {
    let map = VarMap::new();
    let get = |name: &str| map.get(2, name, Init::Const(1.0), DType::F32, &Device::Cpu);
    let tensors = [get("a")?, get("b")?, get("c")?];
    Ok((map, tensors))
}

/// Every rank uses `a`, rank 0 alone uses `b`, nobody uses `c`.
fn run(comm: Communicator, policy: Unused) -> Result<Vec<Option<Vec<f64>>>> {
    let (map, [a, b, _]) = three()?;
    let rank = comm.rank().index();
    let mut dp = DataParallel::new(comm, &map, Options::default().unused(policy))?;
    let loss = if rank == 0 { (a + b.affine(4.0, 0.0)?)? } else { a };
    let grads = dp.backward(&loss.sum_all()?)?;
    let grads = dp.sync(grads)?;
    ["a", "b", "c"].iter().map(|name| grads.get(name).map(flat).transpose()).collect()
}

#[test]
fn unused_parameters_are_errors_that_name_parameter_and_ranks() {
    let all = hccl::local_results(3, |comm| run(comm, Unused::Error)).unwrap();
    for result in all {
        match result {
            Err(Error::NoGradient { parameter, ranks, others }) => {
                assert_eq!((parameter.as_str(), ranks, others), ("b", vec![1, 2], 1));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn unused_parameters_count_as_zeros_where_others_have_gradients() {
    let skipped = local(2, |comm| run(comm, Unused::Skip)).unwrap();
    assert_eq!(skipped, vec![vec![Some(vec![1.0; 2]), Some(vec![2.0; 2]), None]; 2]);
    let zero = local(2, |comm| run(comm, Unused::Zero)).unwrap();
    assert_eq!(zero, vec![vec![Some(vec![1.0; 2]), Some(vec![2.0; 2]), Some(vec![0.0; 2])]; 2]);
}

#[test]
fn a_skipped_parameter_is_left_alone_and_a_zero_one_decays() {
    for (policy, expected) in [(Unused::Skip, 1.0), (Unused::Zero, 0.5)] {
        let found = local(2, |comm| {
            let (map, [a, b, c]) = three()?;
            let mut dp = DataParallel::new(comm, &map, Options::default().unused(policy))?;
            let config = SgdConfig { lr: 0.5, weight_decay: 1.0, ..SgdConfig::default() };
            let mut sgd = Sgd::new(dp.parameters(), config)?;
            let grads = dp.backward(&(a + b)?.sum_all()?)?;
            sgd.step(&dp.sync(grads)?)?;
            Ok(flat(&c)?[0])
        });
        assert_eq!(found.unwrap(), [expected; 2], "{policy:?}");
    }
}

#[test]
fn a_parameter_used_in_an_early_batch_only_is_kept() {
    let found = local(2, |comm| {
        let (map, [a, b, c]) = three()?;
        let options = Options::default().unused(Unused::Skip).accumulate(2);
        let mut dp = DataParallel::new(comm, &map, options)?;
        let early = dp.backward(&(a.clone() + b)?.sum_all()?)?;
        assert!(dp.accumulate(early)?.is_none());
        let late = dp.backward(&(a + c.affine(3.0, 0.0)?)?.sum_all()?)?;
        gradients(&dp.accumulate(late)?.expect("the second of two"))
    });
    assert_eq!(found.unwrap(), vec![vec![vec![1.0; 2], vec![0.5; 2], vec![1.5; 2]]; 2]);
}

#[test]
fn a_rank_without_samples_lacks_nothing() {
    let found = local(2, |comm| {
        let (map, [a, b, c]) = three()?;
        let rank = comm.rank().index();
        let mut dp = DataParallel::new(comm, &map, Options::default())?;
        let loss = if rank == 0 { ((a + b)? + c)?.sum_all()? } else { a.sum_all()? };
        let grads = dp.backward_weighted(&loss, [3.0, 0.0][rank])?;
        gradients(&dp.sync(grads)?)
    });
    assert_eq!(found.unwrap(), vec![vec![vec![1.0; 2]; 3]; 2]);
}

#[test]
fn a_rank_may_run_out_of_samples() {
    for segmented in [false, true] {
        let found = local(2, |comm| {
            let (model, mut dp) = replica(comm, DType::F32, Options::default())?;
            let x = samples(0, 4, DType::F32)?;
            if segmented {
                // The first step makes the plan, together.
                let cut = dp.backward_segments(&model, &x, 4.0, loss)?;
                assert!(cut.grads.is_some());
            }
            let grads = match (dp.comm().rank().index(), segmented) {
                (1, _) => {
                    let nothing = dp.no_samples();
                    dp.sync(nothing)?
                }
                (_, false) => {
                    let grads = dp.backward_weighted(&model.loss(&x)?, 4.0)?;
                    dp.sync(grads)?
                }
                (_, true) => dp.backward_segments(&model, &x, 4.0, loss)?.grads.expect("no accumulation"),
            };
            gradients(&grads)
        })
        .unwrap();
        assert_close(&found[1], &reference(4, DType::F32), 1e-6);
        assert_eq!(found[0], found[1]);
    }
}

/// One parameter, and a buffer of each kind that differs between ranks at the time of the synchronisation.
fn buffers(comm: Communicator, policy: Buffers, dtype: DType) -> Result<Vec<f64>> {
    let map = VarMap::new();
    let w = map.get(1, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    map.get(3, "bn.stat", Init::Const(0.0), dtype, &Device::Cpu)?;
    let rank = comm.rank().index();
    let mut dp = DataParallel::new(comm, &map, Options::default().buffer("stat", policy))?;
    assert_eq!(dp.parameters().names().collect::<Vec<_>>(), ["w"]);
    let values = Tensor::new(&[rank as f64 + 1.0, 10.0 * rank as f64, 7.0], &Device::Cpu)?.to_dtype(dtype)?;
    map.data().lock().unwrap()["bn.stat"].set(&values)?;
    let grads = dp.backward(&w.sum_all()?)?;
    drop(dp.sync(grads)?);
    if policy != Buffers::Local {
        dp.check_replicas()?;
    }
    let (_, var, _) = dp.buffers().next().expect("one buffer");
    flat(var)
}

#[test]
fn buffers_are_broadcast_averaged_or_left() {
    for dtype in [DType::F32, DType::F64] {
        let broadcast = local(3, |comm| buffers(comm, Buffers::Broadcast, dtype)).unwrap();
        assert_eq!(broadcast, vec![vec![1.0, 0.0, 7.0]; 3]);
        let average = local(3, |comm| buffers(comm, Buffers::Average, dtype)).unwrap();
        assert_eq!(average, vec![vec![2.0, 10.0, 7.0]; 3]);
        let own = local(2, |comm| buffers(comm, Buffers::Local, dtype)).unwrap();
        assert_eq!(own, [[1.0, 0.0, 7.0], [2.0, 10.0, 7.0]]);
    }
}

#[test]
fn integer_buffers_are_broadcast_and_not_averaged() {
    let found = local(2, |comm| buffers(comm, Buffers::Broadcast, DType::I64)).unwrap();
    assert_eq!(found, vec![vec![1.0, 0.0, 7.0]; 2]);
    let all = errors(2, |comm| buffers(comm, Buffers::Average, DType::I64).map(drop));
    assert!(all.iter().all(|e| e.contains("`bn.stat` is I64 and cannot be averaged")), "{all:?}");
}

#[test]
fn running_statistics_are_buffers_by_default() {
    let found = local(1, |comm| {
        let map = VarMap::new();
        for name in ["bn.weight", "bn.running_mean", "bn.running_var"] {
            map.get(1, name, Init::Const(1.0), DType::F32, &Device::Cpu)?;
        }
        let dp = DataParallel::new(comm, &map, Options::default().buffer("bn.running_var", Buffers::Local))?;
        let buffers = dp.buffers().map(|(name, _, policy)| (name.to_string(), policy));
        Ok(buffers.collect::<Vec<_>>())
    });
    let expected = [("bn.running_mean", Buffers::Broadcast), ("bn.running_var", Buffers::Local)];
    assert_eq!(found.unwrap()[0], expected.map(|(name, policy)| (name.to_string(), policy)));
}
