use crate::support::errors;
use candle_core::{DType, Device, Tensor};
use half::{bf16, f16};
use hccl::{Avg, Max, Min, Prod, Sum};
use hccl_candle::{Error, Result, TensorCollectives, local};

const DTYPES: [DType; 9] =
    [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64, DType::BF16, DType::F16, DType::F32, DType::F64];

/// `first, first + step, …` in this dtype.
fn ramp(first: usize, step: usize, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let len: usize = shape.iter().product();
    let values: Vec<i64> = (0..len).map(|i| (first + i * step) as i64).collect();
    Ok(Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)?)
}

fn numbers(tensor: &Tensor) -> Result<Vec<i64>> {
    Ok(tensor.flatten_all()?.to_dtype(DType::I64)?.to_vec1()?)
}

#[test]
fn every_dtype_is_reduced_in_place() {
    for n in [1, 2, 3] {
        for dtype in DTYPES {
            let sums = local(n, |comm| {
                let t = ramp(comm.rank().index(), n, &[2, 3], dtype)?;
                let clone = t.clone();
                comm.all_reduce_tensor(&t, Sum)?;
                assert_eq!(t.dtype(), dtype);
                numbers(&clone)
            })
            .unwrap();
            let expected: Vec<i64> = (0..6).map(|i| (i * n * n + n * (n - 1) / 2) as i64).collect();
            assert_eq!(sums, vec![expected; n], "{dtype:?} over {n}");
        }
    }
}

#[test]
fn every_operation_is_reached() {
    let results = local(3, |comm| {
        let reduce = |op: usize| -> Result<f32> {
            let t = Tensor::new(&[comm.rank().index() as f32 + 2.0], &Device::Cpu)?;
            match op {
                0 => comm.all_reduce_tensor(&t, Sum)?,
                1 => comm.all_reduce_tensor(&t, Prod)?,
                2 => comm.all_reduce_tensor(&t, Min)?,
                3 => comm.all_reduce_tensor(&t, Max)?,
                _ => comm.all_reduce_tensor(&t, Avg)?,
            }
            Ok(t.to_vec1::<f32>()?[0])
        };
        (0..5).map(reduce).collect::<Result<Vec<f32>>>()
    })
    .unwrap();
    assert_eq!(results, vec![vec![9.0, 24.0, 2.0, 4.0, 3.0]; 3]);
}

#[test]
fn integers_are_not_averaged() {
    let all = errors(2, |comm| comm.all_reduce_tensor(&ramp(0, 1, &[3], DType::I32)?, Avg));
    assert!(all.iter().all(|e| e.contains("I32 cannot be averaged") && e.contains("use Sum")), "{all:?}");
    let all = errors(2, |comm| comm.reduce_scatter_tensor(&ramp(0, 1, &[4], DType::U8)?, Avg).map(drop));
    assert!(all.iter().all(|e| e.contains("U8 cannot be averaged")), "{all:?}");
}

#[test]
fn views_of_every_layout_are_written_through() {
    let results = local(2, |comm| {
        let base = ramp(comm.rank().index(), 2, &[3, 4], DType::F64)?;
        comm.all_reduce_tensor(&base.t()?, Sum)?;
        comm.all_reduce_tensor(&base.narrow(1, 1, 2)?, Sum)?;
        comm.all_reduce_tensor(&base.narrow(0, 2, 1)?, Sum)?;
        numbers(&base)
    })
    .unwrap();
    let expected: Vec<i64> = (0..12)
        .map(|i| {
            let column = i % 4 == 1 || i % 4 == 2;
            let row = i >= 8;
            (4 * i + 1) << (u32::from(column) + u32::from(row))
        })
        .collect();
    assert_eq!(results, vec![expected; 2]);
}

#[test]
fn a_broadcast_view_is_refused_and_everything_else_is_untouched() {
    let all = errors(1, |comm| {
        let view = Tensor::new(&[1f32], &Device::Cpu)?.broadcast_as((2, 3))?;
        comm.all_reduce_tensor(&view, Sum)
    });
    assert!(all[0].contains("broadcast view") && all[0].contains("contiguous"), "{all:?}");
}

#[test]
fn a_broadcast_view_may_be_gathered() {
    let results = local(2, |comm| {
        let view = ramp(comm.rank().index() + 3, 1, &[1], DType::I64)?.broadcast_as((2, 2))?;
        numbers(&comm.all_gather_tensor(&view)?)
    });
    assert_eq!(results.unwrap(), vec![vec![3, 3, 3, 3, 4, 4, 4, 4]; 2]);
}

#[test]
fn dtypes_that_do_not_travel_are_named() {
    let all = errors(1, |comm| {
        let t = Tensor::new(&[1f32, 2.0], &Device::Cpu)?.to_dtype(DType::F8E4M3)?;
        comm.all_reduce_tensor(&t, Sum)
    });
    assert!(all[0].contains("F8E4M3") && all[0].contains("to_dtype"), "{all:?}");
}

#[test]
fn the_root_wins_a_broadcast() {
    let results = local(3, |comm| {
        let t = ramp(100 * comm.rank().index(), 1, &[2, 2], DType::I16)?;
        comm.broadcast_tensor(&t.t()?, comm.root(2)?)?;
        numbers(&t)
    });
    assert_eq!(results.unwrap(), vec![vec![200, 201, 202, 203]; 3]);
}

#[test]
fn gathers_along_the_first_axis() {
    let results = local(3, |comm| {
        let t = ramp(10 * comm.rank().index(), 1, &[2, 1], DType::U32)?;
        let all = comm.all_gather_tensor(&t)?;
        let scalars = comm.all_gather_tensor(&Tensor::new(comm.rank().index() as i64, &Device::Cpu)?)?;
        Ok((all.dims().to_vec(), numbers(&all)?, scalars.dims().to_vec(), numbers(&scalars)?))
    });
    let expected = (vec![6, 1], vec![0, 1, 10, 11, 20, 21], vec![3], vec![0, 1, 2]);
    assert_eq!(results.unwrap(), vec![expected; 3]);
}

#[test]
fn gathers_unequal_lengths_and_names_other_differences() {
    let results = local(3, |comm| {
        let rank = comm.rank().index();
        let all = comm.all_gather_tensor_v(&ramp(10 * rank, 1, &[rank, 2], DType::F32)?)?;
        Ok((all.dims().to_vec(), numbers(&all)?))
    });
    assert_eq!(results.unwrap(), vec![(vec![3, 2], vec![10, 11, 20, 21, 22, 23]); 3]);

    let all = errors(2, |comm| {
        let rank = comm.rank().index();
        comm.all_gather_tensor_v(&ramp(0, 1, &[1, 2 + rank], DType::F32)?).map(drop)
    });
    assert!(all.iter().all(|e| e.contains("F32[1, 2]") && e.contains("rank 1 has F32[1, 3]")), "{all:?}");
    let all = errors(2, |comm| {
        let dtype = [DType::F32, DType::I32][comm.rank().index()];
        comm.all_gather_tensor_v(&ramp(0, 1, &[2], dtype)?).map(drop)
    });
    assert!(all.iter().all(|e| e.contains("rank 1 has I32[2]")), "{all:?}");
}

#[test]
fn scatters_what_it_reduced() {
    let results = local(2, |comm| {
        let part = comm.reduce_scatter_tensor(&ramp(comm.rank().index(), 2, &[4, 2], DType::F16)?, Sum)?;
        Ok((part.dims().to_vec(), numbers(&part)?))
    });
    assert_eq!(results.unwrap(), [(vec![2, 2], vec![1, 5, 9, 13]), (vec![2, 2], vec![17, 21, 25, 29])]);

    let all = errors(2, |comm| comm.reduce_scatter_tensor(&ramp(0, 1, &[3, 2], DType::F32)?, Sum).map(drop));
    assert!(all.iter().all(|e| e.contains("[3, 2]") && e.contains("2 ranks")), "{all:?}");
}

#[test]
fn halves_are_summed_in_f32() {
    let results = local(3, |comm| {
        let t = Tensor::new(&[bf16::from_f32([256.0, 1.0, 1.0][comm.rank().index()])], &Device::Cpu)?;
        let u = Tensor::new(&[f16::from_f32([60000.0, 60000.0, -60000.0][comm.rank().index()])], &Device::Cpu)?;
        comm.all_reduce_tensor(&t, Sum)?;
        comm.all_reduce_tensor(&u, Sum)?;
        Ok((t.to_vec1::<bf16>()?[0].to_f32(), u.to_vec1::<f16>()?[0].to_f32()))
    });
    assert_eq!(results.unwrap(), vec![(258.0, 60000.0); 3], "one rounding, at the end");
}

#[test]
fn messages_carry_shape_and_dtype() {
    for dtype in DTYPES {
        let results = local(2, |comm| {
            let peer = comm.peer(1 - comm.rank().index())?;
            if comm.rank().index() == 0 {
                comm.send_tensor(&ramp(5, 3, &[2, 3], dtype)?.t()?, peer)?;
                comm.send_tensor(&ramp(0, 1, &[3, 0], dtype)?, peer)?;
                return comm.send_tensor(&ramp(9, 1, &[], dtype)?, peer).map(|()| Vec::new());
            }
            let received = (0..3).map(|_| comm.recv_tensor(peer, 1 << 10)).collect::<Result<Vec<_>>>()?;
            let fact = |t: &Tensor| Ok((t.dtype(), t.dims().to_vec(), numbers(t)?));
            received.iter().map(fact).collect()
        });
        let expected = vec![
            (dtype, vec![3, 2], vec![5, 14, 8, 17, 11, 20]),
            (dtype, vec![3, 0], vec![]),
            (dtype, vec![], vec![9]),
        ];
        assert_eq!(results.unwrap()[1], expected);
    }
}

#[test]
fn a_refused_message_fails_on_both_sides_and_leaves_them_in_step() {
    let results = local(2, |comm| {
        let sends = comm.rank().index() == 0;
        let peer = comm.peer(1 - comm.rank().index())?;
        let into = Tensor::zeros((3, 2), DType::F32, &Device::Cpu)?;
        let mut texts = Vec::new();
        for case in 0..3 {
            let message =
                [ramp(0, 1, &[2, 3], DType::F32)?, ramp(0, 1, &[3, 2], DType::F64)?, ramp(0, 1, &[4, 4], DType::F32)?];
            let outcome = match (sends, case) {
                (true, _) => comm.send_tensor(&message[case], peer),
                (false, 2) => comm.recv_tensor(peer, 63).map(drop),
                (false, _) => comm.recv_tensor_into(&into, peer),
            };
            match outcome {
                Err(Error::Message { message, expected, .. }) => texts.push(format!("{message} | {expected}")),
                other => panic!("case {case}: {other:?}"),
            }
        }
        match sends {
            true => comm.send_tensor(&ramp(1, 1, &[3, 2], DType::F32)?, peer)?,
            false => comm.recv_tensor_into(&into, peer)?,
        }
        Ok((texts, numbers(&into)?))
    })
    .unwrap();
    let texts = ["F32[2, 3] | F32[3, 2]", "F64[3, 2] | F32[3, 2]", "F32[4, 4] | any tensor of at most 63 bytes"];
    assert_eq!(results[0].0, texts);
    assert_eq!(results[1].0, texts);
    assert_eq!(results[1].1, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn too_many_axes_are_refused_before_the_peer_waits() {
    let all = errors(1, |comm| comm.send_tensor(&Tensor::zeros(vec![1; 9], DType::F32, &Device::Cpu)?, comm.peer(0)?));
    assert!(all[0].contains("9 axes, at most 8"), "{all:?}");
}
