//! A small language model whose head is its embedding: token ids in, sequences of changing lengths.

use crate::support::{Piece, SGD, Values, WIDTH, block, difference, fill, values};
use candle_core::{DType, Device, Result as CandleResult, Tensor};
use candle_nn::{Embedding, Linear, Module, VarBuilder, VarMap, loss::cross_entropy};
use hccl::pipeline::{self, Costs, Fixed, Plan, Schedule};
use hccl::{Communicator, Dp, Mesh, Pp};
use hccl_candle::pipeline::split::{self, Queue};
use hccl_candle::pipeline::{Microbatches, Replicas, StageWeights, TensorAct, TensorStage, loss};
use hccl_candle::{DataParallel, Error, Optimizer, Options, Result, Sgd, clip_grad_norm, local};

hccl::dim!(Batch);
hccl::dim!(Seq);

const WORDS: usize = 10;
const BLOCKS: usize = 2;
/// Sequences and their length, in each step.
const STEPS: [(usize, usize); 3] = [(7, 3), (5, 4), (9, 2)];
const MOST_NORM: f64 = 0.3;

type Ids = TensorAct<u32, (Batch, Seq)>;
type H = TensorAct<f32, (Batch, Seq, Fixed<WIDTH>)>;
type Y = TensorAct<f32, (Batch, Seq, Fixed<WORDS>)>;

fn tokens(step: usize, sequences: usize, len: usize) -> CandleResult<[Tensor; 2]> {
    let word = |i: usize| ((i * 7 + step * 3 + i / 5) % WORDS) as u32;
    let of = |from: usize| {
        Tensor::from_vec((from..from + sequences * len).map(word).collect(), (sequences, len), &Device::Cpu)
    };
    Ok([of(0)?, of(1)?])
}

fn mean_loss(y: &Tensor, next: &Tensor) -> CandleResult<Tensor> {
    cross_entropy(&y.flatten_to(1)?, &next.flatten_all()?)
}

fn embed(weight: Tensor, queue: Option<&Queue>) -> CandleResult<Piece> {
    match queue {
        Some(queue) => {
            let embed = split::Embedding::from_tensor(weight, queue)?;
            Ok(Box::new(move |ids| embed.forward(ids)))
        }
        None => {
            let embed = Embedding::new(weight, WIDTH);
            Ok(Box::new(move |ids| embed.forward(ids)))
        }
    }
}

fn head(weight: Tensor, queue: Option<&Queue>) -> CandleResult<Piece> {
    match queue {
        Some(queue) => {
            let head = split::Linear::from_tensors(weight, None, queue)?;
            Ok(Box::new(move |x| head.forward(x)))
        }
        None => {
            let head = Linear::new(weight, None);
            Ok(Box::new(move |x| head.forward(x)))
        }
    }
}

/// Weights after all steps in one process, with one table for both ends; and the norm of the last step's gradients.
fn single(replicas: usize) -> (Values, f64) {
    let all = local(1, |comm| {
        let map = VarMap::new();
        let vb = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
        let table = vb.get((WORDS, WIDTH), "embed.weight")?;
        let (embed, head) = (embed(table.clone(), None)?, head(table, None)?);
        let blocks = (0..BLOCKS).map(|i| block(vb.pp(format!("block{i}")), None)).collect::<CandleResult<Vec<_>>>()?;
        fill(&map, 9)?;
        let mut dp = DataParallel::new(comm, &map, Options::default())?;
        let mut sgd = Sgd::new(dp.parameters(), SGD)?;
        let mut norm = 0.0;
        for (step, (sequences, len)) in STEPS.into_iter().enumerate() {
            let [ids, next] = tokens(step, sequences * replicas, len)?;
            let h = blocks.iter().try_fold(embed(&ids)?, |h, block| block(&h))?;
            let grads = dp.backward(&mean_loss(&head(&h)?, &next)?)?;
            let mut grads = dp.sync(grads)?;
            norm = clip_grad_norm(&mut grads, MOST_NORM)?;
            sgd.step(&grads)?;
        }
        Ok((values(dp.parameters())?, norm))
    });
    all.unwrap().remove(0)
}

/// Which blocks a stage between the ends has.
fn middle<S>(at: &pipeline::At<'_, S>) -> std::ops::Range<usize> {
    let (index, stages) = (at.index() - 1, at.stages() - 2);
    BLOCKS * index / stages..BLOCKS * (index + 1) / stages
}

/// Trains; the values of this rank's weights, with the head's under the embedding's name, and the last norm.
fn train(world: &Communicator, replicas: usize, schedule: Schedule, queued: bool) -> Result<(Values, f64)> {
    let mesh = Mesh::new(world, (Dp(replicas), Pp(world.size() / replicas)))?;
    let (stages, others) = (mesh.group::<Pp>(), mesh.group::<Dp>());
    let plan = Plan::new(schedule, stages.size(), 4, Costs::default())?;
    let count = plan.stages();
    let weights = StageWeights::new();
    let queue = queued.then(|| weights.queue());
    // Every rank and every end starts with other values: only the embedding's of the first replica may count.
    let seed = |index: usize| if index == 0 || index + 1 < count { 9 + others.rank().index() as u64 } else { 100 };
    let first = |at: &pipeline::At<'_, TensorStage<Ids, H>>| {
        let map = VarMap::new();
        let vb = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
        let embed = embed(vb.get((WORDS, WIDTH), "embed.weight")?, queue)?;
        let blocks = if count == 2 { 0..BLOCKS } else { 0..0 };
        let blocks = blocks.map(|i| block(vb.pp(format!("block{i}")), queue)).collect::<CandleResult<Vec<_>>>()?;
        fill(&map, seed(at.index()))?;
        Ok(blocks.into_iter().fold(weights.stage(at, &map, embed)?, TensorStage::then))
    };
    let between = |at: &pipeline::At<'_, TensorStage<H, H>>| {
        let map = VarMap::new();
        let vb = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
        let blocks = middle(at).map(|i| block(vb.pp(format!("block{i}")), queue)).collect::<CandleResult<Vec<_>>>()?;
        fill(&map, seed(at.index()))?;
        weights.stage(at, &map, move |x| blocks.iter().try_fold(x.clone(), |x, block| block(&x)))
    };
    let last = |at: &pipeline::At<'_, TensorStage<H, Y>>| {
        let map = VarMap::new();
        let vb = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
        let head = head(vb.get((WORDS, WIDTH), "head.weight")?, queue)?;
        fill(&map, seed(at.index()))?;
        weights.stage(at, &map, head)
    };
    let start = pipeline::train(stages, plan).split_stage(first);
    let mut pipe = (2..count).fold(start, |pipe, _| pipe.split_stage(between)).split_stage(last).build()?;
    let mut replicas = Replicas::new(&weights, pipe.plan(), stages, others, Options::default())?;
    replicas.tie((0, "embed.weight"), (count - 1, "head.weight"))?;
    let ends = [0, count - 1].map(|stage| pipe.plan().rank_of(stage));
    let tied = usize::from(ends.contains(&stages.rank().index()));
    let mut sgd = Sgd::new(replicas.parameters(), SGD)?;
    let mut norm = 0.0;
    for (step, (sequences, len)) in STEPS.into_iter().enumerate() {
        let own = sequences * others.rank().index();
        let [ids, next] = tokens(step, sequences * others.size(), len)?;
        let [ids, next] = [ids.narrow(0, own, sequences)?, next.narrow(0, own, sequences)?];
        let parts = Microbatches::new(sequences, 4)?;
        pipe.step(
            |m| Ok(Ids::new(parts.of(&ids, m)?)?),
            |m, y| {
                let next = parts.of(&next, m)?;
                loss(y, parts.share(m), |y| mean_loss(y, &next))
            },
        )?;
        let grads = replicas.local(sequences as f64)?;
        let mut grads = replicas.sync(grads)?;
        norm = replicas.clip_grad_norm(&mut grads, MOST_NORM)?;
        sgd.step(&grads)?;
        assert_eq!(replicas.check()?.len(), tied, "a checksum where an end is");
    }
    let mut found = values(replicas.parameters())?;
    if let Some(head) = found.remove("head.weight") {
        let embed = found.insert("embed.weight".into(), head.clone());
        assert!(embed.is_none_or(|embed| embed == head), "both ends on one rank are equal");
    }
    Ok((found, norm))
}

#[track_caller]
fn compare(found: Vec<(Values, f64)>, expected: &(Values, f64), ends: [usize; 2], what: &str) {
    let (found, norms): (Vec<Values>, Vec<f64>) = found.into_iter().unzip();
    let off = difference(&found, &expected.0);
    assert!(off < 3e-6, "{what}: off by {off:e}");
    assert_eq!(found[ends[0]]["embed.weight"], found[ends[1]]["embed.weight"], "{what}: both ends, bit for bit");
    assert!(norms.iter().all(|norm| *norm == norms[0]), "{what}: {norms:?}");
    assert!((norms[0] - expected.1).abs() < 1e-5 * expected.1, "{what}: {norms:?}, expected {}", expected.1);
    assert!(expected.1 > MOST_NORM, "clipping does something: {}", expected.1);
}

#[test]
fn tied_weights_train_as_one_and_stay_equal() {
    let expected = single(1);
    let cases = [
        (2, Schedule::GPipe, [0, 1]),
        (4, Schedule::OneFOneB, [0, 3]),
        (2, Schedule::Interleaved { chunks: 2 }, [0, 1]),
        (3, Schedule::ZbH1, [0, 2]),
        (2, Schedule::ZbV, [0, 0]),
    ];
    for (ranks, schedule, ends) in cases {
        for queued in [false, true] {
            let found = local(ranks, |world| train(&world, 1, schedule, queued)).unwrap();
            compare(found, &expected, ends, &format!("{schedule} on {ranks} ranks, queued {queued}"));
        }
    }
}

#[test]
fn tied_weights_of_replicas_stay_equal() {
    let expected = single(2);
    let found = local(4, |world| train(&world, 2, Schedule::OneFOneB, true)).unwrap();
    assert_eq!(found[..2], found[2..], "replicas have the same bits");
    compare(found, &expected, [0, 1], "1F1B, two replicas");
}

#[test]
fn ends_that_are_not_there_are_refused_on_every_rank() {
    let refused = |first: (usize, &'static str), second: (usize, &'static str)| {
        let results = hccl::local_results(3, |comm| {
            let weights = StageWeights::new();
            let plan = Plan::new(Schedule::GPipe, 3, 2, Costs::default())?;
            let pipe = pipeline::train(&comm, plan)
                .stages(3, |at| {
                    let map = VarMap::new();
                    let rows = 4 + at.index();
                    map.get(
                        (rows, 2),
                        &format!("w{}", at.index()),
                        candle_nn::Init::Const(1.0),
                        DType::F32,
                        &Device::Cpu,
                    )?;
                    weights.stage(at, &map, |x| Ok(x.clone()))
                })
                .build()?;
            let pipe: pipeline::Trainer<_, H, H> = pipe;
            Replicas::alone(&weights, pipe.plan(), &comm, Options::default())?.tie(first, second)
        });
        let results: Vec<Result<()>> = results.unwrap();
        results.into_iter().map(|result| result.err()).collect::<Vec<Option<Error>>>()
    };
    let texts = |errors: Vec<Option<Error>>| errors.into_iter().map(|e| e.map(|e| e.to_string()).unwrap_or_default());
    for text in texts(refused((0, "w0"), (2, "w1"))) {
        assert!(text.contains("stage 2 has no parameter `w1`"), "{text}");
    }
    for text in texts(refused((0, "w0"), (3, "w1"))) {
        assert!(text.contains("`w1` of stage 3, the pipeline has 3"), "{text}");
    }
    let differing: Vec<String> = texts(refused((0, "w0"), (2, "w2"))).collect();
    assert!(differing[0].contains("[4, 2]") && differing[0].contains("[6, 2]"), "{differing:?}");
    assert_eq!(differing[1], "", "rank 1 has neither end");
    assert_eq!(differing[2], differing[0]);
}
