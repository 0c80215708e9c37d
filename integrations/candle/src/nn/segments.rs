//! A model as a chain of segments, so that gradients can be synchronised while the rest of the backward pass runs.

use candle_core::{Result, Tensor};

/// A model cut into a chain: `forward(0)`, then `forward(1)` on its result, and so on, is the whole model.
///
/// candle calls nobody back during `backward()`, so a data-parallel trainer that wants to overlap communication with
/// computation takes the backward pass segment by segment: it runs each segment on a fresh variable holding the
/// previous segment's output, and then, last segment first, takes the vector-Jacobian product of one segment and starts
/// the all-reduce of that segment's gradients while the next product is computed. Cutting also bounds the depth of
/// candle's recursive graph walk.
///
/// The contract:
///
/// * A segment reads nothing but its input `x`, its parameters and its buffers: two segments share no tensor with a
///   gradient except through `x`.
/// * [`parameters`](Self::parameters) of all segments are disjoint and together are every trainable parameter, by the
///   names under which the variables were created. Buffers (BatchNorm's running statistics) are not parameters.
/// * Cut, names and order are the same on every rank. They may depend on the configuration, never on the data.
///
/// ```
/// use candle_core::{DType, Device, Result, Tensor};
/// use candle_nn::{Linear, Module, VarBuilder, VarMap, linear};
/// use hccl_candle::nn::{SegmentedModel, relu};
///
/// struct Mlp(Vec<Linear>);
///
/// impl SegmentedModel for Mlp {
///     fn len(&self) -> usize {
///         self.0.len()
///     }
///     fn forward(&self, segment: usize, x: &Tensor, _train: bool) -> Result<Tensor> {
///         relu(&self.0[segment].forward(x)?)
///     }
///     fn parameters(&self, segment: usize) -> Vec<String> {
///         vec![format!("{segment}.weight"), format!("{segment}.bias")]
///     }
/// }
///
/// let vars = VarMap::new();
/// let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
/// let model = Mlp(vec![linear(4, 8, vb.pp("0"))?, linear(8, 2, vb.pp("1"))?]);
/// let x = Tensor::ones((3, 4), DType::F32, &Device::Cpu)?;
/// assert_eq!(model.forward_all(&x, true)?.dims(), [3, 2]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub trait SegmentedModel {
    /// How many segments there are.
    fn len(&self) -> usize;

    /// Runs segment `segment` (`0..len()`) on `x`: the model's input for segment 0, else the result of `segment - 1`.
    ///
    /// `train` picks the training behaviour (batch statistics, dropout) over the inference one.
    ///
    /// # Errors
    /// Those of the layers, and a segment out of range.
    fn forward(&self, segment: usize, x: &Tensor, train: bool) -> Result<Tensor>;

    /// Names of the trainable parameters of a segment, in declaration order; empty for a segment out of range.
    fn parameters(&self, segment: usize) -> Vec<String>;

    /// Whether there is no segment at all; such a model is the identity.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Runs all segments in one graph.
    ///
    /// # Errors
    /// Those of [`forward`](Self::forward).
    fn forward_all(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        (0..self.len()).try_fold(x.clone(), |x, segment| self.forward(segment, &x, train))
    }
}
