//! A chain of blocks, as stages and in one process.

use candle_core::{DType, Device, Result as CandleResult, Tensor};
use candle_nn::{Linear, Module, VarBuilder, VarMap, linear, loss::mse};
use hccl::pipeline::{self, Costs, Fixed, Plan, Schedule};
use hccl::{Axis, Communicator};
use hccl_candle::init::{Fill, initialise};
use hccl_candle::pipeline::split::{self, Queue};
use hccl_candle::pipeline::{Microbatches, Replicas, StageWeights, TensorAct, TensorStage, loss};
use hccl_candle::{DataParallel, Optimizer, Options, Parameters, Result, Sgd, SgdConfig};
use std::collections::BTreeMap;

hccl::dim!(pub(crate) Batch);

pub(crate) const WIDTH: usize = 6;
pub(crate) const LAYERS: usize = 8;
pub(crate) type H = TensorAct<f32, (Batch, Fixed<WIDTH>)>;

/// A piece of a model.
pub(crate) type Piece = Box<dyn Fn(&Tensor) -> CandleResult<Tensor>>;

/// Values by names.
pub(crate) type Values = BTreeMap<String, Vec<f64>>;

pub(crate) const SGD: SgdConfig =
    SgdConfig { lr: 0.2, momentum: 0.5, dampening: 0.0, weight_decay: 0.01, nesterov: false };

/// Fills by names, so that a stage has the values of the whole model.
pub(crate) fn fill(map: &VarMap, seed: u64) -> Result<()> {
    initialise(map, seed, |_, _| Some(Fill::Uniform { low: -0.6, high: 0.6 }))
}

pub(crate) fn values(parameters: &Parameters) -> Result<Values> {
    let value = |(name, var): (&str, &candle_core::Var)| {
        Ok((name.to_string(), var.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?))
    };
    parameters.iter().map(value).collect()
}

/// `x + tanh(linear(norm(x)))`: of candle, or of layers that queue their weight parts.
pub(crate) fn block(vb: VarBuilder<'_>, queue: Option<&Queue>) -> CandleResult<Piece> {
    if let Some(queue) = queue {
        let norm = split::RmsNorm::new(WIDTH, 1e-5, queue, vb.pp("norm"))?;
        let fc = split::Linear::new(WIDTH, WIDTH, queue, vb.pp("fc"))?;
        return Ok(Box::new(move |x| x + fc.forward(&norm.forward(x)?)?.tanh()?));
    }
    let norm = vb.pp("norm").get(WIDTH, "weight")?;
    let fc: Linear = linear(WIDTH, WIDTH, vb.pp("fc"))?;
    Ok(Box::new(move |x| {
        let root = (x.sqr()?.mean_keepdim(candle_core::D::Minus1)? + 1e-5)?.sqrt()?;
        x + fc.forward(&x.broadcast_div(&root)?.broadcast_mul(&norm)?)?.tanh()?
    }))
}

/// Samples in which no two values are alike, and what the model should make of them.
pub(crate) fn samples(step: usize, from: usize, to: usize) -> CandleResult<[Tensor; 2]> {
    let value = |i: usize| ((i * 37 + step * 11) % 101) as f32 / 40.0 - 1.25;
    let values: Vec<f32> = (from * WIDTH..to * WIDTH).map(value).collect();
    let x = Tensor::from_vec(values, (to - from, WIDTH), &Device::Cpu)?;
    let y = x.sin()?.affine(0.5, 0.1)?;
    Ok([x, y])
}

/// Weights after as many steps as there are batches, in one process; each batch is one graph.
pub(crate) fn single(seed: u64, batches: &[usize]) -> Values {
    let all = hccl_candle::local(1, |comm| {
        let map = VarMap::new();
        let vb = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
        let blocks = (0..LAYERS).map(|i| block(vb.pp(format!("layer{i}")), None)).collect::<CandleResult<Vec<_>>>()?;
        fill(&map, seed)?;
        let mut dp = DataParallel::new(comm, &map, Options::default())?;
        let mut sgd = Sgd::new(dp.parameters(), SGD)?;
        for (step, &count) in batches.iter().enumerate() {
            let [x, y] = samples(step, 0, count)?;
            let out = blocks.iter().try_fold(x, |x, block| block(&x))?;
            let grads = dp.backward(&mse(&out, &y)?)?;
            sgd.step(&dp.sync(grads)?)?;
        }
        values(dp.parameters())
    });
    all.unwrap().remove(0)
}

/// The chain as stages of a pipeline, with layers that queue their weight parts if `split`.
pub(crate) fn chain<A: Axis>(
    comm: &Communicator<A>,
    plan: Plan,
    weights: &StageWeights,
    seed: u64,
    split: bool,
    wire: pipeline::Wire,
) -> Result<pipeline::Trainer<A, H, H>> {
    let make = |at: &pipeline::At<'_, TensorStage<H, H>>| {
        let map = VarMap::new();
        let vb = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
        let queue = split.then(|| weights.queue());
        let layers = at.layers(LAYERS).map(|i| block(vb.pp(format!("layer{i}")), queue));
        let mut layers = layers.collect::<CandleResult<Vec<_>>>()?.into_iter();
        fill(&map, seed)?;
        let first = layers.next().ok_or("a stage without layers")?;
        // Each layer in a graph of its own.
        Ok(layers.fold(weights.stage(at, &map, first)?, TensorStage::then))
    };
    let stages = plan.stages();
    let start = pipeline::train(comm, plan).grad_wire(wire);
    let first = if split { start.split_stage(make) } else { start.stage(make) };
    let chain = (1..stages).fold(first, |pipe, _| if split { pipe.split_stage(make) } else { pipe.stage(make) });
    Ok(chain.build()?)
}

/// One step of a chain on samples `from..to`; the loss of the step.
pub(crate) fn step<A: Axis>(pipe: &mut pipeline::Trainer<A, H, H>, step: usize, from: usize, to: usize) -> Result<f64> {
    let parts = Microbatches::new(to - from, pipe.plan().microbatches())?;
    let [x, y] = samples(step, from, to)?;
    let losses = pipe.step(
        |microbatch| Ok(H::new(parts.of(&x, microbatch)?)?),
        |microbatch, out| {
            let y = parts.of(&y, microbatch)?;
            loss(out, parts.share(microbatch), |out| mse(out, &y))
        },
    )?;
    Ok(losses.sum())
}

/// Trains the chain on all ranks of a world: every rank's weights together.
pub(crate) fn train(
    comm: &Communicator,
    schedule: Schedule,
    split: bool,
    batches: &[usize],
    wire: pipeline::Wire,
) -> Result<Values> {
    let plan = Plan::new(schedule, comm.size(), 2 * comm.size(), Costs::default())?;
    let weights = StageWeights::new();
    let mut pipe = chain(comm, plan, &weights, 3, split, wire)?;
    let mut replicas = Replicas::alone(&weights, pipe.plan(), comm, Options::default())?;
    let mut sgd = Sgd::new(replicas.parameters(), SGD)?;
    for (index, &count) in batches.iter().enumerate() {
        step(&mut pipe, index, 0, count)?;
        let grads = replicas.local(1.0)?;
        sgd.step(&replicas.sync(grads)?)?;
    }
    values(replicas.parameters())
}

/// The largest difference, relative to the largest value; the names must be the same.
pub(crate) fn difference(found: &[Values], expected: &Values) -> f64 {
    let found: Values = found.iter().flat_map(|part| part.clone()).collect();
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    let largest = expected.values().flatten().fold(0f64, |largest, x| largest.max(x.abs()));
    assert!(largest > 0.0, "the expected values are all zero");
    let pairs = found.values().flatten().zip(expected.values().flatten());
    pairs.fold(0f64, |worst, (x, y)| worst.max((x - y).abs())) / largest
}
