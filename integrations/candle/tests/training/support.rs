//! A small model, its data, and ways to compare.

use candle_core::{DType, Device, Tensor};
use candle_nn::{Linear, Module, VarBuilder, VarMap, linear, loss::mse};
use hccl::Communicator;
use hccl_candle::init::{Fill, initialise};
use hccl_candle::nn::SegmentedModel;
use hccl_candle::{DataParallel, Grads, Options, Result, Synced};

/// Two layers with a tanh between, in two segments.
pub(crate) struct Mlp {
    pub(crate) map: VarMap,
    first: Linear,
    second: Linear,
}

pub(crate) const INPUTS: usize = 5;
const HIDDEN: usize = 7;

impl Mlp {
    pub(crate) fn new(dtype: DType, seed: u64) -> Result<Mlp> {
        let map = VarMap::new();
        let vb = VarBuilder::from_varmap(&map, dtype, &Device::Cpu);
        let first = linear(INPUTS, HIDDEN, vb.pp("first"))?;
        let second = linear(HIDDEN, 2, vb.pp("second"))?;
        initialise(&map, seed, |_, _| Some(Fill::Uniform { low: -0.5, high: 0.5 }))?;
        Ok(Mlp { map, first, second })
    }

    pub(crate) fn loss(&self, x: &Tensor) -> Result<Tensor> {
        Ok(loss(&self.forward_all(x, true)?)?)
    }

    pub(crate) fn values(&self) -> Result<Vec<Vec<f64>>> {
        values(&self.map)
    }
}

/// The mean over the batch of the squared distance to 0.3.
pub(crate) fn loss(y: &Tensor) -> candle_core::Result<Tensor> {
    mse(y, &y.detach().ones_like()?.affine(0.3, 0.0)?)
}

impl SegmentedModel for Mlp {
    fn len(&self) -> usize {
        2
    }

    fn forward(&self, segment: usize, x: &Tensor, _train: bool) -> candle_core::Result<Tensor> {
        match segment {
            0 => self.first.forward(x)?.tanh(),
            _ => self.second.forward(x),
        }
    }

    fn parameters(&self, segment: usize) -> Vec<String> {
        let layer = ["first", "second"][segment];
        vec![format!("{layer}.weight"), format!("{layer}.bias")]
    }
}

/// All variables of a map in order of names.
pub(crate) fn values(map: &VarMap) -> Result<Vec<Vec<f64>>> {
    let vars = map.data().lock().unwrap();
    let mut names: Vec<&String> = vars.keys().collect();
    names.sort();
    names.iter().map(|name| flat(&vars[*name])).collect()
}

pub(crate) fn flat(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?)
}

/// Samples `from..to` of a data set in which no two values are alike.
pub(crate) fn samples(from: usize, to: usize, dtype: DType) -> Result<Tensor> {
    let value = |i: usize| ((i * 37 % 101) as f64 - 50.0) / 40.0;
    let values: Vec<f64> = (from * INPUTS..to * INPUTS).map(value).collect();
    Ok(Tensor::from_vec(values, (to - from, INPUTS), &Device::Cpu)?.to_dtype(dtype)?)
}

/// The gradients of one process on the samples `0..n`.
pub(crate) fn reference(n: usize, dtype: DType) -> Vec<Vec<f64>> {
    let grads = hccl_candle::local(1, |comm| {
        let model = Mlp::new(dtype, 1)?;
        let mut dp = DataParallel::new(comm, &model.map, Options::default())?;
        let grads = dp.backward(&model.loss(&samples(0, n, dtype)?)?)?;
        gradients(&dp.sync(grads)?)
    });
    grads.unwrap().remove(0)
}

/// Gradients in order of names.
pub(crate) fn gradients(grads: &Grads<Synced>) -> Result<Vec<Vec<f64>>> {
    grads.iter().map(|(_, gradient)| flat(gradient)).collect()
}

/// A replica of the model, with a seed of its own on each rank: only rank 0's may count.
pub(crate) fn replica(comm: Communicator, dtype: DType, options: Options) -> Result<(Mlp, DataParallel)> {
    let model = Mlp::new(dtype, 1 + comm.rank().index() as u64)?;
    let dp = DataParallel::new(comm, &model.map, options)?;
    Ok((model, dp))
}

#[track_caller]
pub(crate) fn assert_close(found: &[Vec<f64>], expected: &[Vec<f64>], relative: f64) {
    assert_eq!(found.len(), expected.len(), "as many tensors");
    let largest = expected.iter().flatten().fold(0f64, |largest, x| largest.max(x.abs()));
    assert!(largest > 0.0, "the expected values are all zero");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.len(), expected.len(), "tensor {at}");
        for (i, (x, y)) in found.iter().zip(expected).enumerate() {
            assert!((x - y).abs() <= relative * largest, "tensor {at}, element {i}: {x}, expected {y}");
        }
    }
}

/// Runs ranks and gives each one's error text, or `""`.
pub(crate) fn errors(n: usize, f: impl Fn(Communicator) -> Result<()> + Sync) -> Vec<String> {
    let results = hccl::local_results(n, f).unwrap();
    results.into_iter().map(|result| result.err().map(|error| error.to_string()).unwrap_or_default()).collect()
}
