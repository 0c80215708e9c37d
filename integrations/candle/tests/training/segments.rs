use crate::support::*;
use candle_core::{DType, Tensor};
use hccl_candle::nn::SegmentedModel;
use hccl_candle::{Options, Result, Unused, local};

#[test]
fn segments_give_the_gradients_of_the_whole_graph() {
    for n in [1, 2, 3] {
        let found = local(n, |comm| {
            let (model, mut dp) = replica(comm, DType::F64, Options::default())?;
            let from = 4 * dp.comm().rank().index();
            let x = samples(from, from + 4, DType::F64)?;
            let whole = model.loss(&x)?;
            let grads = dp.backward_weighted(&whole, 2.0)?;
            let expected = gradients(&dp.sync(grads)?)?;
            let cut = dp.backward_segments(&model, &x, 2.0, loss)?;
            assert_eq!(cut.loss.to_scalar::<f64>()?, whole.to_scalar::<f64>()?);
            Ok((gradients(&cut.grads.expect("no accumulation"))?, expected))
        })
        .unwrap();
        for (cut, whole) in &found {
            assert_eq!(cut, whole, "bit for bit, over {n}");
            assert_eq!(cut, &found[0].0);
        }
    }
}

#[test]
fn segments_accumulate_like_whole_graphs() {
    let found = local(2, |comm| {
        let (model, mut dp) = replica(comm, DType::F64, Options::default().accumulate(3))?;
        let start = 6 * dp.comm().rank().index();
        let mut last = None;
        for from in [start, start + 2, start + 4] {
            assert!(last.is_none(), "synchronised at the third batch only");
            last = dp.backward_segments(&model, &samples(from, from + 2, DType::F64)?, 1.0, loss)?.grads;
        }
        gradients(&last.expect("the third of three"))
    })
    .unwrap();
    assert_close(&found[0], &reference(12, DType::F64), 1e-13);
    assert_eq!(found[0], found[1]);
}

#[test]
fn small_buckets_start_with_their_segment() {
    let found = local(2, |comm| {
        let (model, mut dp) = replica(comm, DType::F32, Options::default().bucket_bytes(64))?;
        let from = 6 * dp.comm().rank().index();
        let cut = dp.backward_segments(&model, &samples(from, from + 6, DType::F32)?, 1.0, loss)?;
        let grads = cut.grads.expect("no accumulation");
        assert_eq!(grads.stats().buckets, 3);
        gradients(&grads)
    });
    assert_close(&found.unwrap()[1], &reference(12, DType::F32), 1e-6);
}

/// A model whose declared cut may be wrong.
struct Declared<'a>(&'a Mlp, Vec<Vec<String>>);

impl SegmentedModel for Declared<'_> {
    fn len(&self) -> usize {
        self.1.len()
    }

    fn forward(&self, segment: usize, x: &Tensor, train: bool) -> candle_core::Result<Tensor> {
        self.0.forward(segment, x, train)
    }

    fn parameters(&self, segment: usize) -> Vec<String> {
        self.1[segment].clone()
    }
}

fn declared(names: [&[&str]; 2]) -> Vec<Vec<String>> {
    names.iter().map(|names| names.iter().map(|name| name.to_string()).collect()).collect()
}

#[test]
fn a_wrong_cut_is_refused_on_every_rank() {
    let run = |cut: fn(usize) -> [&'static [&'static str]; 2]| {
        errors(2, |comm| {
            let (model, mut dp) = replica(comm, DType::F32, Options::default())?;
            let declared = Declared(&model, declared(cut(dp.comm().rank().index())));
            dp.backward_segments(&declared, &samples(0, 2, DType::F32)?, 1.0, loss).map(drop)
        })
    };
    let missing = run(|_| [&["first.weight", "first.bias"], &["second.weight"]]);
    assert!(missing.iter().all(|e| e.contains("`second.bias` is in no segment")), "{missing:?}");
    let differing = run(|rank| match rank {
        0 => [&["first.weight", "first.bias"], &["second.weight", "second.bias"]],
        _ => [&["first.weight"], &["second.weight", "second.bias", "first.bias"]],
    });
    let expected = "rank 0 has segment 0: first.weight, first.bias, rank 1 has segment 0: first.weight";
    assert!(differing.iter().all(|e| e.contains(expected)), "{differing:?}");
}

/// A model whose second segment hides the first from the loss.
struct Blind<'a>(&'a Mlp);

impl SegmentedModel for Blind<'_> {
    fn len(&self) -> usize {
        2
    }

    fn forward(&self, segment: usize, x: &Tensor, train: bool) -> candle_core::Result<Tensor> {
        let x = if segment == 1 { x.detach() } else { x.clone() };
        self.0.forward(segment, &x, train)
    }

    fn parameters(&self, segment: usize) -> Vec<String> {
        self.0.parameters(segment)
    }
}

#[test]
fn segments_out_of_the_losss_reach_are_unused() {
    let run = |policy| {
        hccl::local_results(2, |comm| -> Result<Vec<String>> {
            let (model, mut dp) = replica(comm, DType::F32, Options::default().unused(policy))?;
            let cut = dp.backward_segments(&Blind(&model), &samples(0, 2, DType::F32)?, 1.0, loss)?;
            let grads = cut.grads.expect("no accumulation");
            Ok(grads.iter().map(|(name, _)| name.to_string()).collect())
        })
        .unwrap()
    };
    for result in run(Unused::Skip) {
        assert_eq!(result.unwrap(), ["second.bias", "second.weight"]);
    }
    for result in run(Unused::Error) {
        assert!(result.unwrap_err().to_string().contains("`first.bias` has no gradient on rank(s) [0, 1]"));
    }
}

#[test]
fn a_model_without_segments_is_refused() {
    let all = errors(1, |comm| {
        let (model, mut dp) = replica(comm, DType::F32, Options::default())?;
        dp.backward_segments(&Declared(&model, Vec::new()), &samples(0, 2, DType::F32)?, 1.0, loss).map(drop)
    });
    assert!(all[0].contains("no segments"), "{all:?}");
}
