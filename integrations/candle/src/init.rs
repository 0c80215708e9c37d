//! Initial values that a seed and a name decide, and nothing else.
//!
//! candle's generator on the CPU cannot be seeded. Here every variable has its own stream, so its values do not depend on
//! which others exist or on the order in which they are filled:
//!
//! - The stream of (`seed`, `name`) starts at `digest(name) + seed * 0x9e3779b97f4a7c15` and is SplitMix64: add
//!   `0x9e3779b97f4a7c15`, finalise.
//! - A uniform number in \[0, 1) is the upper 53 bits of a word times 2^-53.
//! - Two normal numbers come of two uniform ones by Box and Muller: `sqrt(-2 ln(1 - u)) * cos(2 pi v)`, then with `sin`.
//! - Values are made in f64 and rounded to the variable's dtype.
//!
//! Uniform values are the same on every machine. Normal ones need `ln`, `sin` and `cos`, which may differ in the last bit
//! between systems: [`DataParallel`](crate::DataParallel) copies rank 0's to all.
//!
//! ```
//! use candle_core::{DType, Device};
//! use candle_nn::{VarBuilder, VarMap, linear};
//! use hccl_candle::init::{Fan, Fill, initialise};
//!
//! let map = VarMap::new();
//! let layer = linear(64, 10, VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu).pp("fc"))?;
//! initialise(&map, 7, |name, _| match name {
//!     name if name.ends_with(".bias") => Some(Fill::Zeros),
//!     _ => Some(Fill::KaimingUniform { fan: Fan::In, gain: 2f64.sqrt() }),
//! })?;
//! let bound = 2f64.sqrt() * (3f64 / 64.0).sqrt();
//! let largest = layer.weight().abs()?.max_all()?.to_scalar::<f32>()? as f64;
//! assert!(largest > 0.95 * bound && largest <= bound);
//! # Ok::<(), hccl_candle::Error>(())
//! ```

use crate::data_parallel::of_map;
use crate::digest::{Digest, mix};
use crate::error::{Error, Result};
use crate::storage::{self, Elem, VisitMut};
use candle_core::{Shape, Tensor};
use candle_nn::VarMap;

/// Which fan scales a weight.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use hccl_candle::init::{Fan, Fill, fill_tensor};
/// let largest = |fan| {
///     let weight = Tensor::zeros((1, 400), DType::F64, &Device::Cpu)?; // 400 inputs, 1 output
///     fill_tensor(&weight, "w", 7, Fill::KaimingUniform { fan, gain: 1.0 })?;
///     Ok::<_, hccl_candle::Error>(weight.abs()?.max_all()?.to_scalar::<f64>()?)
/// };
/// assert!(largest(Fan::In)? <= (3f64 / 400.0).sqrt() && largest(Fan::Out)? > 1.0);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fan {
    /// Inputs of one output: keeps the variance of the forward pass.
    In,
    /// Outputs of one input: keeps the variance of the backward pass.
    Out,
}

/// What a variable starts with. `gain` is 1 for linear layers and `sqrt(2)` before a ReLU.
///
/// Fans are PyTorch's: of a weight `[out, in, k…]`, `in * k…` inputs and `out * k…` outputs.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use hccl_candle::init::{Fill, fill_tensor};
/// let x = Tensor::zeros(1000, DType::F64, &Device::Cpu)?;
/// fill_tensor(&x, "x", 7, Fill::Normal { mean: 3.0, std: 0.1 })?;
/// assert!((x.mean_all()?.to_scalar::<f64>()? - 3.0).abs() < 0.02);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Fill {
    /// 0.
    Zeros,
    /// 1.
    Ones,
    /// One value.
    Constant(f64),
    /// Uniform in `[low, high)`.
    Uniform {
        /// Least value.
        low: f64,
        /// Bound above.
        high: f64,
    },
    /// Normal.
    Normal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        std: f64,
    },
    /// Normal with standard deviation `gain / sqrt(fan)`.
    KaimingNormal {
        /// Which fan.
        fan: Fan,
        /// Gain of the activation that follows.
        gain: f64,
    },
    /// Uniform in `±gain * sqrt(3 / fan)`.
    KaimingUniform {
        /// Which fan.
        fan: Fan,
        /// Gain of the activation that follows.
        gain: f64,
    },
    /// Normal with standard deviation `gain * sqrt(2 / (fan_in + fan_out))`.
    XavierNormal {
        /// Gain of the activation that follows.
        gain: f64,
    },
    /// Uniform in `±gain * sqrt(6 / (fan_in + fan_out))`.
    XavierUniform {
        /// Gain of the activation that follows.
        gain: f64,
    },
}

/// Fills the variables of a map by a rule; those for which it gives `None` keep their values.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_nn::{Init, VarMap};
/// use hccl_candle::init::{Fill, initialise};
/// let map = VarMap::new();
/// let weight = map.get(2, "fc.weight", Init::Const(9.0), DType::F32, &Device::Cpu)?;
/// let kept = map.get(2, "fc.bias", Init::Const(9.0), DType::F32, &Device::Cpu)?;
/// initialise(&map, 7, |name, _shape| name.ends_with("weight").then_some(Fill::Ones))?;
/// assert_eq!((weight.to_vec1::<f32>()?, kept.to_vec1::<f32>()?), (vec![1.0; 2], vec![9.0; 2]));
/// # Ok::<(), hccl_candle::Error>(())
/// ```
///
/// # Errors
/// A fan of a variable with fewer than two axes, a fan of 0, a dtype without a rule, naming the variable.
pub fn initialise(map: &VarMap, seed: u64, rule: impl Fn(&str, &Shape) -> Option<Fill>) -> Result<()> {
    for (name, var) in of_map(map) {
        if let Some(fill) = rule(&name, var.shape()) {
            fill_tensor(&var, &name, seed, fill)?;
        }
    }
    Ok(())
}

/// Fills one tensor's own memory from the stream of (`seed`, `name`).
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use hccl_candle::init::{Fill, fill_tensor};
/// let values = hccl_candle::local(2, |comm| {
///     let x = Tensor::full(comm.rank().index() as f32, 3, &Device::Cpu)?;
///     fill_tensor(&x, "x", 7, Fill::Uniform { low: 0.0, high: 1.0 })?; // the seed and the name say all
///     Ok(x.to_vec1::<f32>()?)
/// })?;
/// assert_eq!(values[0], values[1]);
/// assert_ne!(values[0][0], values[0][1]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
///
/// # Errors
/// As for [`initialise`].
pub fn fill_tensor(tensor: &Tensor, name: &str, seed: u64, fill: Fill) -> Result<()> {
    let source = Source::of(fill, tensor.dims()).map_err(|problem| Error::invalid(format!("`{name}`: {problem}")))?;
    storage::write("init", tensor, Values { source, stream: Stream::new(seed, name) })
}

/// A fill with its numbers worked out.
enum Source {
    Constant(f64),
    Uniform { low: f64, high: f64 },
    Normal { mean: f64, std: f64 },
}

impl Source {
    fn of(fill: Fill, dims: &[usize]) -> Result<Source, String> {
        let symmetric = |bound: f64| Source::Uniform { low: -bound, high: bound };
        let centred = |std: f64| Source::Normal { mean: 0.0, std };
        Ok(match fill {
            Fill::Zeros => Source::Constant(0.0),
            Fill::Ones => Source::Constant(1.0),
            Fill::Constant(value) => Source::Constant(value),
            Fill::Uniform { low, high } => Source::Uniform { low, high },
            Fill::Normal { mean, std } => Source::Normal { mean, std },
            Fill::KaimingNormal { fan, gain } => centred(gain / pick(fan, dims)?.sqrt()),
            Fill::KaimingUniform { fan, gain } => symmetric(gain * (3.0 / pick(fan, dims)?).sqrt()),
            Fill::XavierNormal { gain } => centred(gain * (2.0 / both(dims)?).sqrt()),
            Fill::XavierUniform { gain } => symmetric(gain * (6.0 / both(dims)?).sqrt()),
        })
    }
}

fn pick(fan: Fan, dims: &[usize]) -> Result<f64, String> {
    let (fan_in, fan_out) = fans(dims)?;
    Ok(match fan {
        Fan::In => fan_in,
        Fan::Out => fan_out,
    })
}

fn both(dims: &[usize]) -> Result<f64, String> {
    let (fan_in, fan_out) = fans(dims)?;
    Ok(fan_in + fan_out)
}

fn fans(dims: &[usize]) -> Result<(f64, f64), String> {
    let [outputs, inputs, kernel @ ..] = dims else {
        return Err(format!("a weight of {dims:?} has no fans: two axes or more have"));
    };
    let kernel: usize = kernel.iter().product();
    let (fan_in, fan_out) = (inputs * kernel, outputs * kernel);
    match fan_in > 0 && fan_out > 0 {
        true => Ok((fan_in as f64, fan_out as f64)),
        false => Err(format!("a weight of {dims:?} has a fan of 0")),
    }
}

/// The numbers of one variable.
struct Stream(u64);

impl Stream {
    fn new(seed: u64, name: &str) -> Self {
        let mut digest = Digest::new();
        digest.text(name);
        Stream(digest.finish().wrapping_add(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Uniform in [0, 1).
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.0) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Two independent normal numbers.
    fn normal(&mut self) -> (f64, f64) {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        let (sin, cos) = (std::f64::consts::TAU * self.uniform()).sin_cos();
        (radius * cos, radius * sin)
    }
}

struct Values {
    source: Source,
    stream: Stream,
}

impl VisitMut for Values {
    type Out = ();

    fn visit<T: Elem>(mut self, values: &mut [T]) -> Result<()> {
        match self.source {
            Source::Constant(value) => values.fill(T::from_f64(value)),
            Source::Uniform { low, high } => {
                values.iter_mut().for_each(|x| *x = T::from_f64(low + (high - low) * self.stream.uniform()));
            }
            Source::Normal { mean, std } => {
                for pair in values.chunks_mut(2) {
                    let (a, b) = self.stream.normal();
                    pair.iter_mut().zip([a, b]).for_each(|(x, z)| *x = T::from_f64(mean + std * z));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    fn filled(dims: &[usize], name: &str, seed: u64, fill: Fill) -> Vec<f64> {
        let tensor = Tensor::zeros(dims, DType::F64, &Device::Cpu).unwrap();
        fill_tensor(&tensor, name, seed, fill).unwrap();
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    fn moments(values: &[f64]) -> (f64, f64) {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / values.len() as f64;
        (mean, variance.sqrt())
    }

    #[test]
    fn seed_and_name_decide_the_values() {
        let fill = Fill::Uniform { low: -1.0, high: 1.0 };
        let base = filled(&[5], "w", 1, fill);
        assert_eq!(base, filled(&[5], "w", 1, fill));
        assert_eq!(base, filled(&[9], "w", 1, fill)[..5]);
        assert_ne!(base, filled(&[5], "v", 1, fill));
        assert_ne!(base, filled(&[5], "w", 2, fill));
    }

    #[test]
    fn scales_follow_the_fans() {
        let dims = [64, 32, 3, 3];
        let gain = 2f64.sqrt();
        let cases = [
            (Fill::KaimingNormal { fan: Fan::In, gain }, gain / (32f64 * 9.0).sqrt()),
            (Fill::KaimingNormal { fan: Fan::Out, gain }, gain / (64f64 * 9.0).sqrt()),
            (Fill::KaimingUniform { fan: Fan::Out, gain }, gain / (64f64 * 9.0).sqrt()),
            (Fill::XavierNormal { gain: 1.0 }, (2.0 / (96.0 * 9.0f64)).sqrt()),
            (Fill::XavierUniform { gain: 1.0 }, (2.0 / (96.0 * 9.0f64)).sqrt()),
            (Fill::Normal { mean: 0.0, std: 3.0 }, 3.0),
        ];
        for (fill, std) in cases {
            let (mean, found) = moments(&filled(&dims, "conv", 3, fill));
            assert!((found / std - 1.0).abs() < 0.02, "{fill:?}: {found}, want {std}");
            assert!(mean.abs() < 0.03 * std, "{fill:?}: mean {mean}");
        }
    }

    #[test]
    fn bounds_hold_and_constants_are_exact() {
        let bound = (6f64 / 30.0).sqrt();
        let values = filled(&[10, 20], "w", 0, Fill::XavierUniform { gain: 1.0 });
        assert!(values.iter().all(|x| x.abs() <= bound));
        assert_eq!(filled(&[3], "b", 0, Fill::Constant(0.25)), [0.25; 3]);
        assert_eq!(filled(&[2], "b", 0, Fill::Ones), [1.0; 2]);
    }

    #[test]
    fn a_vector_has_no_fans() {
        let tensor = Tensor::zeros(4, DType::F32, &Device::Cpu).unwrap();
        let error = fill_tensor(&tensor, "bn.weight", 0, Fill::XavierUniform { gain: 1.0 }).unwrap_err();
        assert!(error.to_string().contains("`bn.weight`") && error.to_string().contains("[4]"), "{error}");
    }
}
