use crate::support::*;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{Init, VarMap};
use hccl_candle::ops::{SharedComm, all_reduce};
use hccl_candle::{DataParallel, Error, Options, Parameters, Result, Sgd, SgdConfig, Wire, clip_grad_norm};
use hccl_candle::{Optimizer, local};

#[test]
fn gradients_of_ranks_are_those_of_one_process_on_all_samples() {
    for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F64, 1e-14)] {
        let expected = reference(12, dtype);
        for n in [1, 2, 3] {
            let found = local(n, |comm| {
                let (model, mut dp) = replica(comm, dtype, Options::default())?;
                let (rank, each) = (dp.comm().rank().index(), 12 / n);
                let grads = dp.backward(&model.loss(&samples(rank * each, (rank + 1) * each, dtype)?)?)?;
                gradients(&dp.sync(grads)?)
            })
            .unwrap();
            assert_close(&found[0], &expected, tolerance);
            assert!(found.iter().all(|other| *other == found[0]), "the same bits on all ranks");
        }
    }
}

#[test]
fn uneven_batches_count_by_their_weights() {
    let expected = reference(11, DType::F64);
    let found = local(3, |comm| {
        let (model, mut dp) = replica(comm, DType::F64, Options::default())?;
        let (from, to) = [(0, 6), (6, 11), (0, 2)][dp.comm().rank().index()];
        // Rank 2 has no samples of its own: whatever it computes counts for nothing.
        let weight = if to == 2 { 0.0 } else { (to - from) as f64 };
        let grads = dp.backward_weighted(&model.loss(&samples(from, to, DType::F64)?)?, weight)?;
        gradients(&dp.sync(grads)?)
    })
    .unwrap();
    assert_close(&found[0], &expected, 1e-14);
    assert!(found.iter().all(|other| *other == found[0]));
}

#[test]
fn a_rank_without_samples_may_have_nan() {
    let found = local(2, |comm| {
        let (model, mut dp) = replica(comm, DType::F32, Options::default())?;
        let rank = dp.comm().rank().index();
        let loss = model.loss(&samples(0, 4, DType::F32)?)?;
        let loss = if rank == 1 { loss.affine(f64::NAN, 0.0)? } else { loss };
        let grads = dp.backward_weighted(&loss, [4.0, 0.0][rank])?;
        gradients(&dp.sync(grads)?)
    });
    assert_close(&found.unwrap()[1], &reference(4, DType::F32), 1e-6);
}

#[test]
fn weights_must_make_sense() {
    let all = errors(2, |comm| {
        let (model, mut dp) = replica(comm, DType::F32, Options::default())?;
        let grads = dp.backward_weighted(&model.loss(&samples(0, 2, DType::F32)?)?, 0.0)?;
        dp.sync(grads).map(drop)
    });
    assert!(all.iter().all(|e| e.contains("weight 0")), "{all:?}");
    for weight in [-1.0, f64::NAN, f64::INFINITY] {
        let all = errors(1, |comm| {
            let (model, dp) = replica(comm, DType::F32, Options::default())?;
            dp.backward_weighted(&model.loss(&samples(0, 2, DType::F32)?)?, weight).map(drop)
        });
        assert!(all[0].contains("a weight of"), "{all:?}");
    }
}

#[test]
fn accumulated_batches_are_one_large_batch() {
    let expected = reference(12, DType::F64);
    for k in [1, 2, 3] {
        let found = local(2, |comm| {
            let (model, mut dp) = replica(comm, DType::F64, Options::default().accumulate(k))?;
            let (rank, each) = (dp.comm().rank().index(), 6 / k);
            let mut synced = Vec::new();
            for batch in 0..k {
                let from = rank * 6 + batch * each;
                let grads = dp.backward(&model.loss(&samples(from, from + each, DType::F64)?)?)?;
                synced.extend(dp.accumulate(grads)?);
                assert_eq!(synced.len(), usize::from(batch + 1 == k), "synchronised at the last batch only");
            }
            gradients(&synced[0])
        })
        .unwrap();
        assert_close(&found[0], &expected, 1e-13);
        assert!(found[0] == found[1]);
    }
}

#[test]
fn what_is_left_of_an_epoch_is_flushed_with_its_weights() {
    let expected = reference(10, DType::F64);
    let found = local(2, |comm| {
        let (model, mut dp) = replica(comm, DType::F64, Options::default().accumulate(4))?;
        let from = 5 * dp.comm().rank().index();
        assert!(dp.flush()?.is_none(), "nothing is held yet");
        for (from, to) in [(from, from + 3), (from + 3, from + 5)] {
            let loss = model.loss(&samples(from, to, DType::F64)?)?;
            let grads = dp.backward_weighted(&loss, (to - from) as f64)?;
            assert!(dp.accumulate(grads)?.is_none());
        }
        assert_eq!(dp.accumulated(), 2);
        let grads = dp.flush()?.expect("two batches are held");
        assert_eq!(dp.accumulated(), 0);
        gradients(&grads)
    });
    assert_close(&found.unwrap()[1], &expected, 1e-13);
}

#[test]
fn the_wire_rounds_once_and_all_ranks_alike() {
    let expected = reference(12, DType::F32);
    for (wire, tolerance) in [(Wire::F32, 1e-6), (Wire::F16, 1.5e-3), (Wire::Bf16, 1.2e-2)] {
        let found = local(3, |comm| {
            let (model, mut dp) = replica(comm, DType::F32, Options::default().wire(wire))?;
            let from = 4 * dp.comm().rank().index();
            let grads = dp.backward(&model.loss(&samples(from, from + 4, DType::F32)?)?)?;
            let grads = dp.sync(grads)?;
            let bytes = 51 + 7;
            assert_eq!(grads.stats().bytes, bytes * if wire == Wire::F32 { 4 } else { 2 });
            gradients(&grads)
        })
        .unwrap();
        assert_close(&found[0], &expected, tolerance);
        assert!(found.iter().all(|other| *other == found[0]));
        if wire != Wire::F32 {
            assert!(found[0] != expected, "{wire:?} must be seen to round");
        }
    }
}

#[test]
fn a_narrow_wire_does_not_overflow_in_the_sum() {
    let found = local(3, |comm| {
        let map = VarMap::new();
        let w = map.get(1, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
        let mut dp = DataParallel::new(comm, &map, Options::default().wire(Wire::F16))?;
        let grads = dp.backward(&w.affine(40000.0, 0.0)?.sum_all()?)?;
        Ok(dp.sync(grads)?.get("w").expect("a gradient").to_vec1::<f32>()?[0])
    });
    assert_eq!(found.unwrap(), [40000.0; 3]);
}

#[test]
fn half_precision_parameters_have_f32_gradients() {
    let found = local(2, |comm| {
        let map = VarMap::new();
        let w = map.get(1, "w", Init::Const(2.0), DType::BF16, &Device::Cpu)?;
        let scale = [1.0, 2.0][comm.rank().index()];
        let mut dp = DataParallel::new(comm, &map, Options::default().wire(Wire::F32))?;
        let grads = dp.backward(&w.affine(scale, 0.0)?.sum_all()?)?;
        let grads = dp.sync(grads)?;
        let mut sgd = Sgd::new(dp.parameters(), SgdConfig { lr: 0.5, momentum: 0.5, ..SgdConfig::default() })?;
        sgd.step(&grads)?;
        Ok((flat(grads.get("w").expect("a gradient"))?, grads.get("w").map(|g| g.dtype()), flat(&w)?))
    });
    assert_eq!(found.unwrap(), vec![(vec![1.5], Some(DType::F32), vec![1.25]); 2]);
}

#[test]
fn bucket_sizes_never_change_a_bit() {
    let run = |options: Options| {
        local(2, |comm| {
            let (model, mut dp) = replica(comm, DType::F32, options.clone())?;
            let mut sgd = Sgd::new(dp.parameters(), SgdConfig { lr: 0.1, momentum: 0.9, ..SgdConfig::default() })?;
            let mut buckets = 0;
            for step in 0..4 {
                let from = 8 * step + 4 * dp.comm().rank().index();
                let grads = dp.backward(&model.loss(&samples(from, from + 4, DType::F32)?)?)?;
                let grads = dp.sync(grads)?;
                buckets = grads.stats().buckets;
                sgd.step(&grads)?;
            }
            Ok((buckets, model.values()?))
        })
        .unwrap()
    };
    let one = run(Options::default());
    let many = run(Options::default().bucket_bytes(1));
    let some = run(Options::default().bucket_bytes(64));
    assert_eq!([one[0].0, many[0].0, some[0].0], [1, 4, 3]);
    assert!(one[0].1 == many[1].1 && one[1].1 == some[0].1);
}

#[test]
fn replicas_start_with_rank_0s_values() {
    let found = local(3, |comm| {
        let (model, dp) = replica(comm, DType::F32, Options::default())?;
        Ok((model.values()?, dp.check_replicas()?))
    })
    .unwrap();
    assert_eq!(found[0].0, Mlp::new(DType::F32, 1).unwrap().values().unwrap());
    assert!(found.iter().all(|other| *other == found[0]));
}

#[test]
fn replicas_that_differ_in_kind_are_named() {
    let build = |second: fn() -> Result<Vec<(String, Var)>>| {
        errors(2, |comm| {
            let named = match comm.rank().index() {
                0 => vec![("a".into(), var(2)?), ("b".into(), var(3)?)],
                _ => second()?,
            };
            DataParallel::from_vars(comm, named, Options::default()).map(drop)
        })
    };
    let shape = build(|| Ok(vec![("b".into(), var(4)?), ("a".into(), var(2)?)]));
    assert!(shape.iter().all(|e| e.contains("rank 0 has `b` F32[3], rank 1 has `b` F32[4]")), "{shape:?}");
    let name = build(|| Ok(vec![("a".into(), var(2)?), ("c".into(), var(3)?)]));
    assert!(name.iter().all(|e| e.contains("rank 1 has `c` F32[3]")), "{name:?}");
    let order = build(|| Ok(vec![("b".into(), var(3)?), ("a".into(), var(2)?)]));
    assert_eq!(order, ["", ""], "the order of declaration does not matter");
}

#[test]
fn options_that_differ_are_named() {
    let all = errors(2, |comm| {
        let options = Options::default().wire([Wire::F32, Wire::Bf16][comm.rank().index()]);
        replica(comm, DType::F32, options).map(drop)
    });
    assert!(all.iter().all(|e| e.contains("option wire = F32, rank 1 has option wire = Bf16")), "{all:?}");
    let all = errors(1, |comm| replica(comm, DType::F32, Options::default().accumulate(0)).map(drop));
    assert!(all[0].contains("accumulate is 0"), "{all:?}");
}

fn var(len: usize) -> Result<Var> {
    Ok(Var::zeros(len, DType::F32, &Device::Cpu)?)
}

#[test]
fn names_and_dtypes_of_parameters_are_checked() {
    let twice = Parameters::new([("a".to_string(), var(1).unwrap()), ("a".to_string(), var(2).unwrap())]);
    assert!(twice.unwrap_err().to_string().contains("two variables are called `a`"));
    let counter = Var::zeros(1, DType::I64, &Device::Cpu).unwrap();
    let integer = Parameters::new([("steps".to_string(), counter)]).unwrap_err().to_string();
    assert!(integer.contains("`steps` is I64") && integer.contains("Options::buffer"), "{integer}");
}

#[test]
fn a_flipped_weight_is_found_and_its_rank_named() {
    for (n, culprit) in [(3, 0), (3, 2), (2, 1)] {
        let all = hccl::local_results(n, |comm| {
            let (model, mut dp) = replica(comm, DType::F32, Options::default().check_every(2))?;
            for step in 0..2 {
                if step == 1 && dp.comm().rank().index() == culprit {
                    flip(&model.map, "second.bias")?;
                }
                let grads = dp.backward(&model.loss(&samples(0, 4, DType::F32)?)?)?;
                drop(dp.sync(grads)?);
            }
            Ok(())
        })
        .unwrap();
        for result in all {
            match result {
                Err(Error::Drift { ranks, parameter }) => {
                    assert_eq!((ranks, parameter.as_str()), (vec![culprit], "second.bias"));
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Changes the last bit of a variable's first element.
fn flip(map: &VarMap, name: &str) -> Result<()> {
    let vars = map.data().lock().unwrap();
    let mut values = vars[name].to_vec1::<f32>()?;
    values[0] = f32::from_bits(values[0].to_bits() ^ 1);
    Ok(vars[name].set(&Tensor::new(values, &Device::Cpu)?)?)
}

#[test]
fn clipping_scales_all_gradients_by_their_common_norm() {
    let found = local(2, |comm| {
        let map = VarMap::new();
        let a = map.get(2, "a", Init::Const(1.0), DType::F32, &Device::Cpu)?;
        let b = map.get(3, "b", Init::Const(1.0), DType::F64, &Device::Cpu)?;
        let mut dp = DataParallel::new(comm, &map, Options::default())?;
        let loss = (a.affine(3.0, 0.0)?.sum_all()?.to_dtype(DType::F64)? + b.affine(4.0, 0.0)?.sum_all()?)?;
        let grads = dp.backward(&loss)?;
        let mut grads = dp.sync(grads)?;
        let whole = clip_grad_norm(&mut grads, 100.0)?;
        assert_eq!(flat(grads.get("a").expect("a"))?, [3.0, 3.0], "below the limit nothing changes");
        let again = clip_grad_norm(&mut grads, 0.5)?;
        assert_eq!(whole, again);
        Ok((whole, grads.norm()?, flat(grads.get("b").expect("b"))?[0]))
    })
    .unwrap();
    let (norm, clipped, b) = found[0];
    assert_eq!(norm, (2.0 * 9.0 + 3.0 * 16.0f64).sqrt());
    assert!((clipped - 0.5).abs() < 1e-6 && (b - 4.0 * 0.5 / (norm + 1e-6)).abs() < 1e-15, "{clipped} {b}");
    assert_eq!(found[0], found[1]);
}

#[test]
fn a_norm_that_is_not_finite_is_told_and_changes_nothing() {
    let found = local(2, |comm| {
        let map = VarMap::new();
        let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
        let factor = Tensor::new(&[1f32, [1.0, f32::NAN][comm.rank().index()]], &Device::Cpu)?;
        let mut dp = DataParallel::new(comm, &map, Options::default())?;
        let grads = dp.backward(&(w * factor)?.sum_all()?)?;
        let mut grads = dp.sync(grads)?;
        let norm = clip_grad_norm(&mut grads, 0.1)?;
        Ok((norm.is_nan(), flat(grads.get("w").expect("w"))?[0]))
    });
    assert_eq!(found.unwrap(), [(true, 1.0); 2]);
    let all = errors(1, |comm| {
        let (model, mut dp) = replica(comm, DType::F32, Options::default())?;
        let grads = dp.backward(&model.loss(&samples(0, 1, DType::F32)?)?)?;
        clip_grad_norm(&mut dp.sync(grads)?, 0.0).map(drop)
    });
    assert!(all[0].contains("max_norm is 0"), "{all:?}");
}

#[test]
fn gradients_of_another_model_are_refused() {
    let all = errors(1, |comm| {
        let (model, mut dp) = replica(comm, DType::F32, Options::default())?;
        let other = Parameters::new([("w".to_string(), var(2)?)])?;
        let mut sgd = Sgd::new(&other, SgdConfig::default())?;
        let grads = dp.backward(&model.loss(&samples(0, 1, DType::F32)?)?)?;
        sgd.step(&dp.sync(grads)?)
    });
    assert!(all[0].contains("another set of parameters") && all[0].contains("first.bias"), "{all:?}");
}

#[test]
fn a_rank_that_fails_fails_the_others_with_its_own_error_first() {
    let result = local(2, |comm| {
        let (model, mut dp) = replica(comm, DType::F32, Options::default())?;
        if dp.comm().rank().index() == 1 {
            return Err(Error::Rank0("no samples left".into()));
        }
        let grads = dp.backward(&model.loss(&samples(0, 1, DType::F32)?)?)?;
        dp.sync(grads).map(drop)
    });
    assert!(result.unwrap_err().to_string().contains("no samples left"));
}

/// candle's layers speak candle's error; what happened to the group is still known outside.
#[test]
fn a_peer_lost_inside_the_model_is_a_lost_peer_outside() {
    let seen = std::sync::Mutex::new(None);
    let result = local(2, |comm| {
        if comm.rank().index() == 1 {
            return Err(Error::Rank0("no samples left".into()));
        }
        let comm = SharedComm::new(comm);
        let forward = |x: &Tensor| -> candle_core::Result<Tensor> { Ok(all_reduce(&comm, x, hccl::Sum)?) };
        let error = Error::from(forward(&Tensor::zeros(3, DType::F32, &Device::Cpu)?).unwrap_err());
        *seen.lock().unwrap() = error.as_hccl().map(|error| error.is_peer_lost());
        Err::<(), _>(error)
    });
    assert!(result.unwrap_err().to_string().contains("no samples left"));
    assert_eq!(*seen.lock().unwrap(), Some(true));
}
