//! Every layer against a plain reference, candle's own operations and finite differences, in f64 and on odd shapes.

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};
use hccl_candle::nn::{
    BatchNorm2d, BatchNormConfig, Conv2d, Conv2dConfig, MaxPool2d, StatsReduce, add_relu, global_avg_pool, relu,
};
use std::collections::HashMap;
use std::sync::{Arc, Barrier, Mutex};

/// Values without pattern or ties, different at every index and for every seed, within -1 to 1.
fn noise(shape: &[usize], seed: u64) -> Tensor {
    let count: usize = shape.iter().product();
    let value = |i: usize| {
        let mut z = (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed.wrapping_mul(0xD1B5_4A32_D192_ED03);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    Tensor::from_vec((0..count).map(value).collect::<Vec<f64>>(), shape, &Device::Cpu).unwrap()
}

fn flat(x: &Tensor) -> Vec<f64> {
    x.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

#[track_caller]
fn close(actual: &Tensor, expected: &Tensor, tolerance: f64) {
    assert_eq!(actual.dims(), expected.dims());
    for (i, (a, e)) in flat(actual).iter().zip(flat(expected)).enumerate() {
        assert!((a - e).abs() <= tolerance * (1.0 + e.abs()), "value {i}: {a} instead of {e}");
    }
}

/// The gradient of `sum(f(x) * weights)` for fixed weights that differ at every index, and that sum.
fn pulled(f: &dyn Fn(&Tensor) -> Result<Tensor>, x: &Tensor) -> (Tensor, f64) {
    let var = Var::from_tensor(x).unwrap();
    let y = f(var.as_tensor()).unwrap();
    let loss = (&y * noise(y.dims(), 77).to_dtype(y.dtype()).unwrap()).unwrap().sum_all().unwrap();
    let gradient = loss.backward().unwrap().get(&var).unwrap().clone();
    (gradient, loss.to_dtype(DType::F64).unwrap().to_scalar().unwrap())
}

/// Compares the gradient with central differences at up to 40 places spread over `x` (f64).
#[track_caller]
fn check_gradient(f: &dyn Fn(&Tensor) -> Result<Tensor>, x: &Tensor) {
    let (gradient, _) = pulled(f, x);
    let (gradient, values) = (flat(&gradient), flat(x));
    let step = 1e-5;
    for i in (0..values.len()).step_by(values.len().div_ceil(40)) {
        let at = |delta: f64| {
            let mut moved = values.clone();
            moved[i] += delta;
            pulled(f, &Tensor::from_vec(moved, x.shape(), &Device::Cpu).unwrap()).1
        };
        let numeric = (at(step) - at(-step)) / (2.0 * step);
        assert!((gradient[i] - numeric).abs() < 1e-6 * (1.0 + numeric.abs()), "{i}: {} against {numeric}", gradient[i]);
    }
}

fn config(stride: (usize, usize), padding: (usize, usize), dilation: (usize, usize)) -> Conv2dConfig {
    Conv2dConfig { stride, padding, dilation, ..Default::default() }
}

/// (input, weight, configuration): sizes on both sides of the point where images share a matrix product.
fn convolutions() -> Vec<([usize; 4], [usize; 4], Conv2dConfig)> {
    vec![
        ([1, 1, 1, 1], [1, 1, 1, 1], config((1, 1), (0, 0), (1, 1))),
        ([2, 3, 5, 7], [4, 3, 3, 3], config((1, 1), (1, 1), (1, 1))),
        ([3, 2, 8, 7], [5, 2, 3, 3], config((2, 2), (1, 1), (1, 1))),
        ([2, 3, 9, 6], [2, 3, 3, 2], config((2, 1), (0, 1), (2, 3))),
        ([3, 4, 6, 5], [7, 4, 1, 1], config((1, 1), (0, 0), (1, 1))),
        ([2, 4, 7, 5], [3, 4, 1, 1], config((2, 2), (0, 0), (1, 1))),
        ([2, 3, 15, 11], [4, 3, 7, 7], config((2, 2), (3, 3), (1, 1))),
        ([2, 3, 13, 17], [4, 3, 3, 3], config((1, 1), (1, 1), (1, 1))),
        ([3, 3, 14, 12], [6, 3, 1, 1], config((1, 1), (0, 0), (1, 1))),
        ([2, 2, 27, 25], [3, 2, 3, 3], config((2, 2), (1, 1), (1, 1))),
        ([2, 2, 4, 4], [3, 2, 2, 2], config((3, 3), (4, 4), (1, 1))),
        // 700 rows of columns times 400 pixels: more than one tile.
        ([1, 28, 20, 20], [2, 28, 5, 5], config((1, 1), (2, 2), (1, 1))),
        ([2, 40, 41, 39], [2, 40, 3, 3], config((1, 1), (1, 1), (1, 1))),
        // 600 images of one pixel: more than one shared product.
        ([600, 2, 1, 1], [3, 2, 1, 1], config((1, 1), (0, 0), (1, 1))),
        ([530, 2, 1, 2], [3, 2, 3, 3], config((1, 1), (1, 1), (1, 1))),
    ]
}

/// The definition: seven nested loops.
fn naive_convolution(x: &Tensor, w: &Tensor, c: Conv2dConfig) -> Tensor {
    let ((n, ci, h, wd), (co, _, kh, kw)) = (x.dims4().unwrap(), w.dims4().unwrap());
    let side = |size, p, k, s, d| (size + 2 * p - d * (k - 1) - 1) / s + 1;
    let oh = side(h, c.padding.0, kh, c.stride.0, c.dilation.0);
    let ow = side(wd, c.padding.1, kw, c.stride.1, c.dilation.1);
    let (xs, ws) = (flat(x), flat(w));
    let mut y = Vec::new();
    for (b, o, oy, ox) in (0..n * co * oh * ow).map(|i| (i / (co * oh * ow), i / (oh * ow) % co, i / ow % oh, i % ow)) {
        let mut sum = 0.0;
        for (i, ky, kx) in (0..ci * kh * kw).map(|k| (k / (kh * kw), k / kw % kh, k % kw)) {
            let iy = (oy * c.stride.0 + ky * c.dilation.0).wrapping_sub(c.padding.0);
            let ix = (ox * c.stride.1 + kx * c.dilation.1).wrapping_sub(c.padding.1);
            if iy < h && ix < wd {
                sum += xs[((b * ci + i) * h + iy) * wd + ix] * ws[((o * ci + i) * kh + ky) * kw + kx];
            }
        }
        y.push(sum);
    }
    Tensor::from_vec(y, (n, co, oh, ow), &Device::Cpu).unwrap()
}

fn convolve(x: &Tensor, w: &Tensor, c: Conv2dConfig) -> Result<Tensor> {
    Conv2d::from_tensors(w.clone(), None, c)?.forward(x)
}

#[test]
fn convolution_is_the_definition() {
    for (i, (xs, ws, c)) in convolutions().into_iter().enumerate() {
        let (x, w) = (noise(&xs, i as u64), noise(&ws, 100 + i as u64));
        let expected = naive_convolution(&x, &w, c);
        close(&convolve(&x, &w, c).unwrap(), &expected, 1e-12);
        let (x, w) = (x.to_dtype(DType::F32).unwrap(), w.to_dtype(DType::F32).unwrap());
        close(&convolve(&x, &w, c).unwrap(), &expected, 1e-4);
    }
}

#[test]
fn convolution_gradients_are_the_definition() {
    for (i, (xs, ws, c)) in convolutions().into_iter().enumerate() {
        let (x, w) = (noise(&xs, i as u64), noise(&ws, 100 + i as u64));
        check_gradient(&|x| convolve(x, &w, c), &x);
        check_gradient(&|w| convolve(&x, w, c), &w);
    }
}

#[test]
fn convolution_in_f32_has_the_gradients_of_f64() {
    for (i, (xs, ws, c)) in convolutions().into_iter().enumerate() {
        let (x, w) = (noise(&xs, i as u64), noise(&ws, 100 + i as u64));
        let (x32, w32) = (x.to_dtype(DType::F32).unwrap(), w.to_dtype(DType::F32).unwrap());
        close(&pulled(&|x| convolve(x, &w32, c), &x32).0, &pulled(&|x| convolve(x, &w, c), &x).0, 1e-4);
        close(&pulled(&|w| convolve(&x32, w, c), &w32).0, &pulled(&|w| convolve(&x, w, c), &w).0, 1e-4);
    }
}

#[test]
fn convolution_agrees_with_candle() {
    // candle's backward pass needs square inputs.
    for (size, kernel, stride) in [(9, 3, 1), (8, 3, 2), (16, 1, 1), (15, 5, 2)] {
        let (x, w) = (noise(&[2, 3, size, size], 1), noise(&[4, 3, kernel, kernel], 2));
        let c = config((stride, stride), (kernel / 2, kernel / 2), (1, 1));
        let theirs = |x: &Tensor, w: &Tensor| x.conv2d(w, kernel / 2, stride, 1, 1);
        close(&convolve(&x, &w, c).unwrap(), &theirs(&x, &w).unwrap(), 1e-12);
        close(&pulled(&|x| convolve(x, &w, c), &x).0, &pulled(&|x| theirs(x, &w), &x).0, 1e-12);
        close(&pulled(&|w| convolve(&x, w, c), &w).0, &pulled(&|w| theirs(&x, w), &w).0, 1e-12);
    }
}

#[test]
fn convolution_takes_views_and_bias() {
    let (x, w) = (noise(&[6, 7, 3, 2], 1), noise(&[5, 3, 3, 3], 2));
    let view = |x: &Tensor| x.permute((3, 2, 0, 1)).unwrap().narrow(3, 1, 5).unwrap();
    let c = Conv2dConfig { bias: true, ..config((1, 1), (1, 1), (1, 1)) };
    let bias = noise(&[5], 3);
    let layer = |bias: &Tensor| Conv2d::from_tensors(w.clone(), Some(bias.clone()), c).unwrap();
    let expected = naive_convolution(&view(&x), &w, c).broadcast_add(&bias.reshape((1, 5, 1, 1)).unwrap()).unwrap();
    close(&layer(&bias).forward(&view(&x)).unwrap(), &expected, 1e-12);
    check_gradient(&|x| layer(&bias).forward(&view(x)), &x);
    check_gradient(&|bias| layer(bias).forward(&view(&x)), &bias);
}

#[test]
fn convolution_refuses_by_name() {
    let w = noise(&[2, 3, 3, 3], 1);
    let fails = |x: Tensor, words: &[&str]| {
        let message = convolve(&x, &w, Conv2dConfig::default()).unwrap_err().to_string();
        words.iter().for_each(|word| assert!(message.contains(word), "{message}"));
    };
    fails(noise(&[1, 3, 4, 4], 1).to_dtype(DType::F16).unwrap(), &["Conv2d", "F16", "f32"]);
    fails(noise(&[1, 3, 4, 4], 1).to_dtype(DType::F32).unwrap(), &["F32", "F64"]);
    fails(noise(&[1, 2, 4, 4], 1), &["2 channels", "3"]);
    fails(noise(&[1, 3, 2, 4], 1), &["height 2", "kernel"]);
    fails(noise(&[3, 4, 4], 1), &["N x C x H x W"]);
    let refused = |c: Conv2dConfig| Conv2d::from_tensors(w.clone(), None, c).unwrap_err().to_string();
    assert!(refused(Conv2dConfig { groups: 3, ..Default::default() }).contains("groups = 3"));
    assert!(refused(config((0, 1), (0, 0), (1, 1))).contains("stride"));
    assert!(refused(Conv2dConfig { bias: true, ..Default::default() }).contains("no bias"));
}

fn naive_max_pool(x: &Tensor, kernel: usize, stride: usize, padding: usize) -> (Vec<f64>, Vec<usize>) {
    let (n, c, h, w) = x.dims4().unwrap();
    let (oh, ow) = ((h + 2 * padding - kernel) / stride + 1, (w + 2 * padding - kernel) / stride + 1);
    let xs = flat(x);
    let window = |i: usize| {
        let (plane, oy, ox) = (i / (oh * ow), i / ow % oh, i % ow);
        let inside = (0..kernel * kernel).filter_map(|k| {
            let y = (oy * stride + k / kernel).checked_sub(padding).filter(|y| *y < h)?;
            let x = (ox * stride + k % kernel).checked_sub(padding).filter(|x| *x < w)?;
            Some((plane * h + y) * w + x)
        });
        inside.fold(None, |best: Option<usize>, at| best.filter(|best| xs[*best] >= xs[at]).or(Some(at))).unwrap()
    };
    let places: Vec<usize> = (0..n * c * oh * ow).map(window).collect();
    (places.iter().map(|at| xs[*at]).collect(), places)
}

#[test]
fn max_pooling_is_the_definition() {
    let shapes = [
        ([2, 3, 8, 7], 3, 2, 1),
        ([1, 2, 5, 9], 2, 1, 0),
        ([3, 1, 6, 6], 2, 2, 0),
        ([1, 1, 4, 5], 3, 1, 1),
        ([1, 2, 7, 6], 2, 3, 1),
    ];
    for (shape, kernel, stride, padding) in shapes {
        // Rounded, so that there are ties.
        for x in [noise(&shape, 5), (noise(&shape, 6) * 2.0).unwrap().round().unwrap()] {
            let pool = MaxPool2d::new(kernel, stride, padding).unwrap();
            let y = pool.forward(&x).unwrap();
            let (values, places) = naive_max_pool(&x, kernel, stride, padding);
            assert_eq!(flat(&y), values);
            let mut expected = vec![0.0; x.elem_count()];
            places.iter().zip(flat(&noise(y.dims(), 77))).for_each(|(at, g)| expected[*at] += g);
            close(
                &pulled(&|x| pool.forward(x), &x).0,
                &Tensor::from_vec(expected, &shape, &Device::Cpu).unwrap(),
                1e-12,
            );
        }
    }
    let nan = Tensor::new(&[1f32, f32::NAN, 3.0, 2.0], &Device::Cpu).unwrap().reshape((1, 1, 2, 2)).unwrap();
    assert!(
        MaxPool2d::new(2, 1, 0).unwrap().forward(&nan).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()[0]
            .is_nan()
    );
    assert!(MaxPool2d::new(3, 1, 2).unwrap_err().to_string().contains("padding 2"));
    assert!(MaxPool2d::new(0, 1, 0).is_err());
    assert!(MaxPool2d::new(3, 1, 0).unwrap().forward(&nan).unwrap_err().to_string().contains("smaller than kernel"));
}

#[test]
fn rectifiers_and_average() {
    let x = noise(&[2, 3, 5, 7], 1);
    let other = noise(&[2, 3, 5, 7], 2);
    close(&relu(&x).unwrap(), &x.relu().unwrap(), 0.0);
    check_gradient(&|x| relu(x), &x);
    close(&add_relu(&x, &other).unwrap(), &(&x + &other).unwrap().relu().unwrap(), 0.0);
    check_gradient(&|x| add_relu(x, &other), &x);
    check_gradient(&|other| add_relu(&x, other), &other);
    // One tensor on both sides gets both gradients.
    check_gradient(&|x| add_relu(x, x), &x);
    close(&global_avg_pool(&x).unwrap(), &x.mean((2, 3)).unwrap(), 1e-14);
    check_gradient(&|x| global_avg_pool(x), &x);
    assert!(add_relu(&x, &x.t().unwrap()).unwrap_err().to_string().contains("one shape"));
    let nan = Tensor::new(&[f64::NAN, -1.0], &Device::Cpu).unwrap();
    assert!(flat(&relu(&nan).unwrap())[0].is_nan());
}

/// A layer whose parameters and running statistics all differ, and its variables.
fn batch_norm(channels: usize, dtype: DType) -> (VarMap, BatchNorm2d) {
    let vars = VarMap::new();
    let norm = BatchNorm2d::new(channels, VarBuilder::from_varmap(&vars, dtype, &Device::Cpu)).unwrap();
    for (name, var) in vars.data().lock().unwrap().iter() {
        let offset = if name.ends_with("var") { 1.5 } else { 0.25 };
        var.set(&(noise(&[channels], name.len() as u64) + offset).unwrap().to_dtype(dtype).unwrap()).unwrap();
    }
    (vars, norm)
}

/// The formula on plain candle operations, differentiable by candle.
fn reference_norm(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let mean = x.mean_keepdim((0, 2, 3))?;
    let centred = x.broadcast_sub(&mean)?;
    let var = centred.sqr()?.mean_keepdim((0, 2, 3))?;
    let scaled = centred.broadcast_div(&(var + 1e-5)?.sqrt()?)?;
    scaled.broadcast_mul(&weight.reshape((1, (), 1, 1))?)?.broadcast_add(&bias.reshape((1, (), 1, 1))?)
}

#[test]
fn batch_norm_is_the_formula() {
    for shape in [[2, 3, 5, 7], [1, 2, 4, 33], [5, 3, 1, 1], [3, 1, 2, 1]] {
        let (_vars, norm) = batch_norm(shape[1], DType::F64);
        let x = (noise(&shape, 3) + 2.0).unwrap();
        let other = noise(&shape, 4);
        let expected = reference_norm(&x, norm.weight(), norm.bias()).unwrap();
        close(&norm.forward(&x, true).unwrap(), &expected, 1e-12);
        close(&norm.forward_relu(&x, true).unwrap(), &expected.relu().unwrap(), 1e-12);
        close(&norm.forward_add_relu(&x, &other, true).unwrap(), &(&expected + &other).unwrap().relu().unwrap(), 1e-12);
        for train in [true, false] {
            check_gradient(&|x| norm.forward(x, train), &x);
            check_gradient(&|x| norm.forward_relu(x, train), &x);
            check_gradient(&|x| norm.forward_add_relu(x, &other, train), &x);
            check_gradient(&|other| norm.forward_add_relu(&x, other, train), &other);
        }
        let loss = |y: Tensor| (&y * noise(&shape, 9)).unwrap().sum_all().unwrap().backward().unwrap();
        let ours = loss(norm.forward(&x, true).unwrap());
        let theirs = loss(expected);
        for parameter in [norm.weight(), norm.bias()] {
            close(ours.get(parameter).unwrap(), theirs.get(parameter).unwrap(), 1e-11);
        }
        let ours = loss(norm.forward_add_relu(&x, &other, true).unwrap());
        let sum = (reference_norm(&x, norm.weight(), norm.bias()).unwrap() + &other).unwrap();
        let theirs = loss(relu(&sum).unwrap());
        for parameter in [norm.weight(), norm.bias()] {
            close(ours.get(parameter).unwrap(), theirs.get(parameter).unwrap(), 1e-11);
        }
    }
}

#[test]
fn running_statistics_are_those_of_pytorch() {
    let (_vars, norm) = batch_norm(2, DType::F64);
    let (mean, var) = (flat(norm.running_mean()), flat(norm.running_var()));
    let x = noise(&[3, 2, 2, 5], 8);
    norm.forward(&x, true).unwrap();
    let rows = flat(&x.transpose(0, 1).unwrap().contiguous().unwrap());
    for (channel, row) in rows.chunks(30).enumerate() {
        let m = row.iter().sum::<f64>() / 30.0;
        let v = row.iter().map(|x| (x - m) * (x - m)).sum::<f64>() / 29.0;
        assert!((flat(norm.running_mean())[channel] - (0.9 * mean[channel] + 0.1 * m)).abs() < 1e-14);
        assert!((flat(norm.running_var())[channel] - (0.9 * var[channel] + 0.1 * v)).abs() < 1e-14);
    }
    // Evaluation uses them and changes nothing.
    let (mean, var) = (flat(norm.running_mean()), flat(norm.running_var()));
    let y = flat(&norm.forward(&x, false).unwrap());
    let scale = flat(norm.weight())[1] / (var[1] + 1e-5).sqrt();
    assert!((y[10] - ((flat(&x)[10] - mean[1]) * scale + flat(norm.bias())[1])).abs() < 1e-12);
    assert_eq!((flat(norm.running_mean()), flat(norm.running_var())), (mean, var));
    // They are variables without gradients.
    let gradients = norm.forward(&x, true).unwrap().sqr().unwrap().sum_all().unwrap().backward().unwrap();
    assert!(gradients.get(norm.running_mean()).is_none() && gradients.get(norm.running_var()).is_none());
    assert!(gradients.get(norm.weight()).is_some());
}

#[test]
fn a_large_mean_costs_no_accuracy() {
    let (_vars, norm) = batch_norm(1, DType::F32);
    let x = (noise(&[2, 1, 64, 64], 1) * 0.5).unwrap();
    let near = norm.forward(&x.to_dtype(DType::F32).unwrap(), true).unwrap();
    // 4096 and the noise rounded to 2^-11 are exact in f32, so only the statistics could lose digits.
    let coarse = ((&x * 2048.0).unwrap().round().unwrap() / 2048.0).unwrap();
    let far = norm.forward(&(coarse + 4096.0).unwrap().to_dtype(DType::F32).unwrap(), true).unwrap();
    close(&far, &near, 3e-3);
}

#[test]
fn batch_norm_refuses_by_name() {
    let (_vars, norm) = batch_norm(3, DType::F64);
    let message = norm.forward(&noise(&[1, 3, 1, 1], 1), true).unwrap_err().to_string();
    assert!(message.contains("at least 2 values per channel") && message.contains("larger batch"), "{message}");
    assert!(norm.forward(&noise(&[1, 3, 1, 1], 1), false).is_ok());
    assert!(norm.forward(&noise(&[2, 4, 1, 1], 1), true).unwrap_err().to_string().contains("4 channels"));
    let half = noise(&[2, 3, 2, 2], 1).to_dtype(DType::BF16).unwrap();
    assert!(norm.forward(&half, true).unwrap_err().to_string().contains("BF16"));
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F64, &Device::Cpu);
    let config = BatchNormConfig { momentum: 1.5, ..Default::default() };
    assert!(BatchNorm2d::with_config(3, config, vb).unwrap_err().to_string().contains("momentum"));
}

#[test]
fn loads_a_file_with_num_batches_tracked() {
    let path = tempfile::tempdir().unwrap();
    let file = path.path().join("norm.safetensors");
    let names = ["bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"];
    let mut tensors: HashMap<String, Tensor> =
        names.iter().zip(1..).map(|(name, seed)| (name.to_string(), noise(&[4], seed))).collect();
    tensors.insert("bn.num_batches_tracked".into(), Tensor::new(7i64, &Device::Cpu).unwrap());
    candle_core::safetensors::save(&tensors, &file).unwrap();
    let mut vars = VarMap::new();
    let norm = BatchNorm2d::new(4, VarBuilder::from_varmap(&vars, DType::F64, &Device::Cpu).pp("bn")).unwrap();
    vars.load(&file).unwrap();
    let expected: Vec<_> = names.iter().map(|name| flat(&tensors[*name])).collect();
    assert_eq!(
        [flat(norm.weight()), flat(norm.bias()), flat(norm.running_mean()), flat(norm.running_var())].to_vec(),
        expected
    );
}

/// Ranks as threads: every rank adds its values, waits, reads the sum, waits.
struct InProcess {
    sums: Mutex<HashMap<usize, Vec<f64>>>,
    barrier: Barrier,
}

struct Rank(Arc<InProcess>, usize);

impl StatsReduce for Rank {
    fn all_reduce_sum(&self, values: &mut [f64]) -> Result<()> {
        let InProcess { sums, barrier } = &*self.0;
        sums.lock().unwrap().insert(self.1, values.to_vec());
        barrier.wait();
        {
            let sums = sums.lock().unwrap();
            for (i, value) in values.iter_mut().enumerate() {
                *value = (0..sums.len()).map(|rank| sums[&rank][i]).sum();
            }
        }
        barrier.wait();
        Ok(())
    }
}

/// What one rank sees of a step through two layers: output, input gradient, parameter gradients, running statistics.
type Seen = (Tensor, Tensor, Vec<Tensor>, Vec<Tensor>);

fn step(x: &Tensor, upstream: &Tensor, sync: Option<Arc<dyn StatsReduce>>) -> Seen {
    let channels = x.dim(1).unwrap();
    let layer = || {
        let (_vars, norm) = batch_norm(channels, DType::F64);
        match &sync {
            Some(sync) => norm.synchronized(sync.clone()),
            None => norm,
        }
    };
    let (first, second) = (layer(), layer());
    let x = Var::from_tensor(x).unwrap();
    let hidden = first.forward_relu(x.as_tensor(), true).unwrap();
    let y = second.forward_add_relu(&hidden, x.as_tensor(), true).unwrap();
    let gradients = (&y * upstream).unwrap().sum_all().unwrap().backward().unwrap();
    let parameters =
        [&first, &second].into_iter().flat_map(|n| [n.weight(), n.bias()]).map(|p| gradients.get(p).unwrap().clone());
    let running =
        [&first, &second].into_iter().flat_map(|n| [n.running_mean(), n.running_var()]).map(|v| v.as_tensor().clone());
    (y, gradients.get(&x).unwrap().clone(), parameters.collect(), running.collect())
}

#[test]
fn synchronised_statistics_are_those_of_the_concatenated_batch() {
    for sizes in [vec![2, 1], vec![3, 3], vec![1, 4, 2], vec![1, 1, 1]] {
        let total: usize = sizes.iter().sum();
        let shape = |images| [images, 3, 3, 5];
        let (x, upstream) = (noise(&shape(total), 11), noise(&shape(total), 12));
        let whole = step(&x, &upstream, None);
        let group = Arc::new(InProcess { sums: Mutex::default(), barrier: Barrier::new(sizes.len()) });
        let seen: Vec<Seen> = std::thread::scope(|scope| {
            let mut start = 0;
            let ranks = sizes.iter().enumerate().map(|(rank, images)| {
                let part = |t: &Tensor| t.narrow(0, start, *images).unwrap();
                let (x, upstream, sync) = (part(&x), part(&upstream), Arc::new(Rank(group.clone(), rank)));
                start += images;
                scope.spawn(move || step(&x, &upstream, Some(sync)))
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let joined = |pick: fn(&Seen) -> &Tensor| Tensor::cat(&seen.iter().map(pick).collect::<Vec<_>>(), 0).unwrap();
        close(&joined(|s| &s.0), &whole.0, 1e-12);
        close(&joined(|s| &s.1), &whole.1, 1e-11);
        for (i, expected) in whole.2.iter().enumerate() {
            let sum = seen.iter().map(|s| s.2[i].clone()).reduce(|a, b| (a + b).unwrap()).unwrap();
            close(&sum, expected, 1e-11);
        }
        for (i, expected) in whole.3.iter().enumerate() {
            for rank in &seen {
                close(&rank.3[i], expected, 1e-13);
                assert_eq!(flat(&rank.3[i]), flat(&seen[0].3[i]), "ranks must agree bit for bit");
            }
        }
    }
}

#[test]
fn a_failed_reduction_is_the_layers_error() {
    struct Broken;
    impl StatsReduce for Broken {
        fn all_reduce_sum(&self, _: &mut [f64]) -> Result<()> {
            candle_core::bail!("rank 1 is gone")
        }
    }
    let (_vars, norm) = batch_norm(3, DType::F64);
    let norm = norm.synchronized(Arc::new(Broken));
    assert!(norm.forward(&noise(&[2, 3, 2, 2], 1), true).unwrap_err().to_string().contains("rank 1 is gone"));
    assert!(norm.forward(&noise(&[2, 3, 2, 2], 1), false).is_ok());
}

/// Prints the bits of results and gradients, above and below the sizes from which work is spread over threads.
#[test]
#[expect(clippy::print_stdout, reason = "another process reads it")]
fn digest_of_a_step() {
    let mut digest = 0u64;
    let mut add = |x: &Tensor| flat(x).iter().for_each(|v| digest = digest.rotate_left(5) ^ v.to_bits());
    for (xs, ws) in
        [([4, 16, 33, 31], [16, 16, 3, 3]), ([3, 64, 4, 4], [96, 64, 3, 3]), ([1, 8, 40, 40], [24, 8, 1, 1])]
    {
        for dtype in [DType::F32, DType::F64] {
            let (x, w) = (noise(&xs, 1).to_dtype(dtype).unwrap(), noise(&ws, 2).to_dtype(dtype).unwrap());
            let (_vars, norm) = batch_norm(ws[0], dtype);
            let c = config((1, 1), (ws[2] / 2, ws[2] / 2), (1, 1));
            let f = |x: &Tensor, w: &Tensor| {
                MaxPool2d::new(3, 2, 1)?.forward(&norm.forward_relu(&convolve(x, w, c)?, true)?)
            };
            add(&f(&x, &w).unwrap());
            add(&pulled(&|x| f(x, &w), &x).0);
            add(&pulled(&|w| f(&x, w), &w).0);
        }
    }
    println!("digest {digest:016x}");
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let run = |threads: &str| {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["digest_of_a_step", "--exact", "--nocapture"])
            .env("RAYON_NUM_THREADS", threads)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_once("digest ").unwrap_or_else(|| panic!("no digest in {text}")).1[..16].to_string()
    };
    let one = run("1");
    assert_eq!(run("2"), one);
    assert_eq!(run("3"), one);
}
