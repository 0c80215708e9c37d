//! ResNet-50 v1.5 (the stride of a stage on its first 3x3 convolution), with torchvision's parameter names, so that its
//! safetensors files load.
//!
//! ```text
//! segment 0   stem     conv1 7x7/2, bn1, relu, max pool 3x3/2
//! segment 1   layer1   3 blocks,  64 ->  256 channels
//! segment 2   layer2   4 blocks, 128 ->  512 channels, stride 2
//! segment 3   layer3   first 3 of its 6 blocks, 256 -> 1024 channels, stride 2
//! segment 4   layer3   the other 3
//! segment 5-7 layer4   1 block each, 512 -> 2048 channels, the first with stride 2
//! segment 8   head     average pool, fc
//! ```
//!
//! Most parameters are in `layer4`, whose backward pass comes first; a segment per block lets their gradients travel early.

use candle_core::{Result, Tensor, bail};
use candle_nn::init::Init;
use candle_nn::{Linear, Module, VarBuilder};
use hccl_candle::nn::{
    BatchNorm2d, BatchNormConfig, Conv2d, Conv2dConfig, MaxPool2d, SegmentedModel, StatsReduce, global_avg_pool,
};
use std::sync::Arc;

/// What a ResNet-50 is built with.
#[derive(Clone, Default)]
pub struct ResNet50Config {
    /// Number of classes the head tells apart.
    pub classes: usize,
    /// Start the last BatchNorm weight of each block at 0 instead of 1, so that a block starts as the identity
    /// (torchvision's `zero_init_residual`, off there by default).
    pub zero_init_residual: bool,
    /// Take BatchNorm statistics over the batches of all ranks of this group.
    pub sync_batch_norm: Option<Arc<dyn StatsReduce>>,
}

/// The model; see the module's page for its segments.
pub struct ResNet50 {
    segments: Vec<Segment>,
}

impl ResNet50 {
    /// Builds the model from the variables of `vb`.
    ///
    /// # Errors
    /// No classes; a parameter that `vb` lacks or holds with another shape.
    pub fn new(config: &ResNet50Config, vb: VarBuilder<'_>) -> Result<Self> {
        if config.classes == 0 {
            bail!("ResNet-50: needs at least one class");
        }
        let mut segments = vec![Segment::stem(config, &vb)?];
        let mut channels = STEM_CHANNELS;
        for (stage, &(blocks, width, cuts)) in STAGES.iter().enumerate() {
            let mut names = Names::default();
            let mut group = Vec::new();
            for block in 0..blocks {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                let vb = vb.pp(format!("layer{}.{block}", stage + 1));
                group.push(Bottleneck::new(channels, width, stride, config, &vb, &mut names)?);
                channels = width * EXPANSION;
                if (block + 1) % (blocks / cuts) == 0 {
                    segments.push(Segment {
                        part: Part::Blocks(std::mem::take(&mut group)),
                        names: std::mem::take(&mut names),
                    });
                }
            }
        }
        segments.push(Segment::head(channels, config, &vb)?);
        Ok(Self { segments })
    }
}

impl SegmentedModel for ResNet50 {
    fn len(&self) -> usize {
        self.segments.len()
    }

    fn forward(&self, segment: usize, x: &Tensor, train: bool) -> Result<Tensor> {
        match self.segments.get(segment) {
            Some(segment) => segment.part.forward(x, train),
            None => bail!("ResNet-50: segment {segment} does not exist, there are {}", self.segments.len()),
        }
    }

    fn parameters(&self, segment: usize) -> Vec<String> {
        self.segments.get(segment).map_or_else(Vec::new, |segment| segment.names.0.clone())
    }
}

const STEM_CHANNELS: usize = 64;
/// Output channels of a block per inner channel.
const EXPANSION: usize = 4;
/// Blocks, inner channels and segments of each stage.
const STAGES: [(usize, usize, usize); 4] = [(3, 64, 1), (4, 128, 1), (6, 256, 2), (3, 512, 3)];

/// Names of trainable parameters, in the order of declaration.
#[derive(Default)]
struct Names(Vec<String>);

impl Names {
    fn add(&mut self, vb: &VarBuilder<'_>, names: &[&str]) {
        let prefix = vb.prefix();
        let full = |name: &&str| if prefix.is_empty() { (*name).to_string() } else { format!("{prefix}.{name}") };
        self.0.extend(names.iter().map(full));
    }
}

struct Segment {
    part: Part,
    names: Names,
}

impl Segment {
    fn stem(config: &ResNet50Config, vb: &VarBuilder<'_>) -> Result<Self> {
        let mut names = Names::default();
        let conv = conv(3, STEM_CHANNELS, 7, 2, vb.pp("conv1"), &mut names)?;
        let norm = norm(STEM_CHANNELS, config, vb.pp("bn1"), &mut names)?;
        Ok(Self { part: Part::Stem(conv, norm, MaxPool2d::new(3, 2, 1)?), names })
    }

    /// The classifier, initialised as PyTorch's `Linear`: uniform within ±1/sqrt(channels).
    fn head(channels: usize, config: &ResNet50Config, vb: &VarBuilder<'_>) -> Result<Self> {
        let mut names = Names::default();
        let vb = vb.pp("fc");
        names.add(&vb, &["weight", "bias"]);
        let bound = 1.0 / (channels as f64).sqrt();
        let init = Init::Uniform { lo: -bound, up: bound };
        let weight = vb.get_with_hints((config.classes, channels), "weight", init)?;
        let bias = vb.get_with_hints(config.classes, "bias", init)?;
        Ok(Self { part: Part::Head(Linear::new(weight, Some(bias))), names })
    }
}

enum Part {
    Stem(Conv2d, BatchNorm2d, MaxPool2d),
    Blocks(Vec<Bottleneck>),
    Head(Linear),
}

impl Part {
    fn forward(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        match self {
            Self::Stem(conv, norm, pool) => pool.forward(&norm.forward_relu(&conv.forward(x)?, train)?),
            Self::Blocks(blocks) => blocks.iter().try_fold(x.clone(), |x, block| block.forward(&x, train)),
            Self::Head(fc) => fc.forward(&global_avg_pool(x)?),
        }
    }
}

/// 1x1 down to `width`, 3x3 (with the stride), 1x1 up to `EXPANSION * width`, plus the input.
struct Bottleneck {
    layers: [(Conv2d, BatchNorm2d); 3],
    downsample: Option<(Conv2d, BatchNorm2d)>,
}

impl Bottleneck {
    fn new(
        channels: usize,
        width: usize,
        stride: usize,
        config: &ResNet50Config,
        vb: &VarBuilder<'_>,
        names: &mut Names,
    ) -> Result<Self> {
        let out = width * EXPANSION;
        let mut layer = |number: usize, (from, to, kernel, stride): (usize, usize, usize, usize)| {
            let conv = conv(from, to, kernel, stride, vb.pp(format!("conv{number}")), names)?;
            Ok::<_, candle_core::Error>((conv, norm(to, config, vb.pp(format!("bn{number}")), names)?))
        };
        let layers =
            [layer(1, (channels, width, 1, 1))?, layer(2, (width, width, 3, stride))?, layer(3, (width, out, 1, 1))?];
        let downsample = (stride > 1 || channels != out)
            .then(|| {
                let vb = vb.pp("downsample");
                let conv = conv(channels, out, 1, stride, vb.pp("0"), names)?;
                Ok::<_, candle_core::Error>((conv, norm(out, config, vb.pp("1"), names)?))
            })
            .transpose()?;
        Ok(Self { layers, downsample })
    }

    fn forward(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        let [(conv1, bn1), (conv2, bn2), (conv3, bn3)] = &self.layers;
        let y = bn1.forward_relu(&conv1.forward(x)?, train)?;
        let y = bn2.forward_relu(&conv2.forward(&y)?, train)?;
        let y = conv3.forward(&y)?;
        let shortcut = match &self.downsample {
            Some((conv, norm)) => norm.forward(&conv.forward(x)?, train)?,
            None => x.clone(),
        };
        bn3.forward_add_relu(&y, &shortcut, train)
    }
}

/// A square convolution without bias whose output has the input's size divided by the stride, rounded up.
fn conv(from: usize, to: usize, kernel: usize, stride: usize, vb: VarBuilder<'_>, names: &mut Names) -> Result<Conv2d> {
    names.add(&vb, &["weight"]);
    let padding = kernel / 2;
    let config = Conv2dConfig { stride: (stride, stride), padding: (padding, padding), ..Conv2dConfig::default() };
    Conv2d::new(from, to, kernel, config, vb)
}

fn norm(channels: usize, config: &ResNet50Config, vb: VarBuilder<'_>, names: &mut Names) -> Result<BatchNorm2d> {
    names.add(&vb, &["weight", "bias"]);
    let zero = config.zero_init_residual && vb.prefix().ends_with("bn3");
    let constants = BatchNormConfig { initial_weight: if zero { 0.0 } else { 1.0 }, ..Default::default() };
    let norm = BatchNorm2d::with_config(channels, constants, vb)?;
    Ok(match &config.sync_batch_norm {
        Some(reduce) => norm.synchronized(reduce.clone()),
        None => norm,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};
    use candle_nn::VarMap;
    use std::collections::BTreeSet;

    fn build(config: &ResNet50Config) -> (VarMap, ResNet50) {
        let vars = VarMap::new();
        let model = ResNet50::new(config, VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu)).unwrap();
        (vars, model)
    }

    fn names(model: &ResNet50) -> Vec<String> {
        (0..model.len()).flat_map(|segment| model.parameters(segment)).collect()
    }

    #[test]
    fn has_the_parameters_of_torchvision() {
        let (vars, model) = build(&ResNet50Config { classes: 1000, ..Default::default() });
        let names = names(&model);
        let unique: BTreeSet<_> = names.iter().cloned().collect();
        assert_eq!((names.len(), unique.len()), (161, 161));
        let data = vars.data().lock().unwrap();
        assert_eq!(names.iter().map(|name| data[name].elem_count()).sum::<usize>(), 25_557_032);
        let buffers: BTreeSet<_> = data.keys().filter(|name| name.contains("running_")).cloned().collect();
        assert_eq!(buffers.len(), 2 * 53);
        assert_eq!(data.len(), 161 + 106);
        for (name, shape) in [
            ("conv1.weight", vec![64, 3, 7, 7]),
            ("bn1.running_var", vec![64]),
            ("layer1.0.conv1.weight", vec![64, 64, 1, 1]),
            ("layer1.0.downsample.0.weight", vec![256, 64, 1, 1]),
            ("layer2.0.conv2.weight", vec![128, 128, 3, 3]),
            ("layer4.2.bn3.bias", vec![2048]),
            ("fc.weight", vec![1000, 2048]),
        ] {
            assert_eq!(data[name].dims(), shape, "{name}");
        }
    }

    #[test]
    fn every_parameter_and_no_buffer_gets_a_gradient() {
        let (vars, model) = build(&ResNet50Config { classes: 10, ..Default::default() });
        let images = Tensor::randn(0f32, 1.0, (2, 3, 32, 32), &Device::Cpu).unwrap();
        let scores = model.forward_all(&images, true).unwrap();
        assert_eq!(scores.dims(), [2, 10]);
        let labels = Tensor::new(&[3u32, 7], &Device::Cpu).unwrap();
        let gradients = candle_nn::loss::cross_entropy(&scores, &labels).unwrap().backward().unwrap();
        let data = vars.data().lock().unwrap();
        let wanted: BTreeSet<_> = names(&model).into_iter().collect();
        for (name, var) in data.iter() {
            let gradient = gradients.get(var);
            assert_eq!(gradient.is_some(), wanted.contains(name), "{name}");
            if let Some(gradient) = gradient {
                let norm = gradient.sqr().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap();
                assert!(norm.is_finite() && norm > 0.0, "{name}: {norm}");
            }
        }
    }

    #[test]
    fn segments_in_a_row_are_the_model() {
        let (_vars, model) = build(&ResNet50Config { classes: 10, zero_init_residual: true, ..Default::default() });
        let images = Tensor::randn(0f32, 1.0, (2, 3, 32, 32), &Device::Cpu).unwrap();
        let whole = model.forward_all(&images, false).unwrap().to_vec2::<f32>().unwrap();
        let mut x = images;
        for segment in 0..model.len() {
            x = SegmentedModel::forward(&model, segment, &x.detach(), false).unwrap();
        }
        assert_eq!(x.to_vec2::<f32>().unwrap(), whole);
        assert!(SegmentedModel::forward(&model, model.len(), &x, false).unwrap_err().to_string().contains("segment 9"));
    }
}
