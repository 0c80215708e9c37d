use crate::support::{errors, flat};
use candle_core::{DType, Device, Tensor};
use candle_nn::{Init, VarMap};
use hccl_candle::{AdamW, AdamWConfig, DataParallel, Grads, Optimizer, Options, Result, Sgd, SgdConfig, Synced};
use hccl_candle::{Unused, local};

const START: [f64; 3] = [0.5, -1.25, 2.0];

/// The gradient of a step.
fn slope(step: usize) -> [f64; 3] {
    [0.3, -0.7, 0.11].map(|x: f64| x * (1.0 + step as f64) - 0.05 * step as f64)
}

/// A replica with the parameters `w` and `other`, and gradients for `w` alone.
struct Bench {
    map: VarMap,
    w: Tensor,
    dp: DataParallel,
}

impl Bench {
    fn new(comm: hccl::Communicator, dtype: DType) -> Result<Bench> {
        let map = VarMap::new();
        let w = map.get(3, "w", Init::Const(0.0), dtype, &Device::Cpu)?;
        map.get(2, "other", Init::Const(1.0), dtype, &Device::Cpu)?;
        map.data().lock().unwrap()["w"].set(&Tensor::new(&START, &Device::Cpu)?.to_dtype(dtype)?)?;
        let dp = DataParallel::new(comm, &map, Options::default().unused(Unused::Skip))?;
        Ok(Bench { map, w, dp })
    }

    fn grads(&mut self, step: usize) -> Result<Grads<Synced>> {
        let slope = Tensor::new(&slope(step), &Device::Cpu)?.to_dtype(self.w.dtype())?;
        let grads = self.dp.backward(&(&self.w * slope)?.sum_all()?)?;
        self.dp.sync(grads)
    }
}

/// The values of `w` after each step.
fn run<O: Optimizer>(dtype: DType, steps: usize, make: impl Fn(&DataParallel) -> Result<O> + Sync) -> Vec<Vec<f64>> {
    let result = local(1, |comm| {
        let mut bench = Bench::new(comm, dtype)?;
        let mut optimizer = make(&bench.dp)?;
        let mut values = Vec::new();
        for step in 0..steps {
            let grads = bench.grads(step)?;
            optimizer.step(&grads)?;
            values.push(flat(&bench.w)?);
        }
        assert_eq!(flat(&bench.map.data().lock().unwrap()["other"])?, [1.0; 2], "no gradient, no change");
        Ok(values)
    });
    result.unwrap().remove(0)
}

/// PyTorch's SGD, written down from its documentation, element by element.
fn torch_sgd(c: SgdConfig, steps: usize) -> Vec<Vec<f64>> {
    let mut p = START;
    let mut b: Option<[f64; 3]> = None;
    let mut all = Vec::new();
    for step in 0..steps {
        let mut g = slope(step);
        (0..3).for_each(|i| g[i] += c.weight_decay * p[i]);
        if c.momentum != 0.0 {
            let buffer = match b {
                None => g,
                Some(b) => [0, 1, 2].map(|i| c.momentum * b[i] + (1.0 - c.dampening) * g[i]),
            };
            b = Some(buffer);
            g = if c.nesterov { [0, 1, 2].map(|i| g[i] + c.momentum * buffer[i]) } else { buffer };
        }
        (0..3).for_each(|i| p[i] -= c.lr * g[i]);
        all.push(p.to_vec());
    }
    all
}

/// PyTorch's AdamW, written down from its documentation, element by element.
fn torch_adamw(c: AdamWConfig, steps: usize) -> Vec<Vec<f64>> {
    let (mut p, mut m, mut v) = (START, [0.0; 3], [0.0; 3]);
    let mut all = Vec::new();
    for step in 0..steps {
        let (g, t) = (slope(step), step as i32 + 1);
        for i in 0..3 {
            p[i] -= c.lr * c.weight_decay * p[i];
            m[i] = c.beta1 * m[i] + (1.0 - c.beta1) * g[i];
            v[i] = c.beta2 * v[i] + (1.0 - c.beta2) * g[i] * g[i];
            let (mean, square) = (m[i] / (1.0 - c.beta1.powi(t)), v[i] / (1.0 - c.beta2.powi(t)));
            p[i] -= c.lr * mean / (square.sqrt() + c.eps);
        }
        all.push(p.to_vec());
    }
    all
}

#[track_caller]
fn close(found: &[Vec<f64>], expected: &[Vec<f64>], tolerance: f64, what: &str) {
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        for (x, y) in found.iter().zip(expected) {
            assert!((x - y).abs() <= tolerance, "{what}, step {step}: {found:?}, not {expected:?}");
        }
    }
}

#[test]
fn sgd_follows_torch_with_every_option() {
    let base = SgdConfig { lr: 0.1, ..SgdConfig::default() };
    let cases = [
        base,
        SgdConfig { weight_decay: 0.3, ..base },
        SgdConfig { momentum: 0.9, ..base },
        SgdConfig { momentum: 0.9, dampening: 0.25, ..base },
        SgdConfig { momentum: 0.9, weight_decay: 0.3, ..base },
        SgdConfig { momentum: 0.9, weight_decay: 0.3, nesterov: true, ..base },
    ];
    for config in cases {
        let expected = torch_sgd(config, 5);
        for (dtype, tolerance) in [(DType::F64, 1e-14), (DType::F32, 2e-6), (DType::F16, 1e-2), (DType::BF16, 6e-2)] {
            let found = run(dtype, 5, |dp| Sgd::new(dp.parameters(), config));
            close(&found, &expected, tolerance, &format!("{config:?} in {dtype:?}"));
        }
    }
    let distinct: Vec<_> = cases.map(|config| torch_sgd(config, 5).pop()).into_iter().collect();
    assert!((0..6).all(|i| (0..i).all(|j| distinct[i] != distinct[j])), "every option matters here");
}

#[test]
fn adamw_follows_torch_with_every_option() {
    let base = AdamWConfig { lr: 0.05, ..AdamWConfig::default() };
    let cases = [
        base,
        AdamWConfig { weight_decay: 0.5, ..base },
        AdamWConfig { beta1: 0.5, beta2: 0.9, ..base },
        AdamWConfig { eps: 0.1, ..base },
    ];
    for config in cases {
        let expected = torch_adamw(config, 6);
        for (dtype, tolerance) in [(DType::F64, 1e-13), (DType::F32, 2e-6)] {
            let found = run(dtype, 6, |dp| AdamW::new(dp.parameters(), config));
            close(&found, &expected, tolerance, &format!("{config:?} in {dtype:?}"));
        }
    }
}

#[test]
fn exempt_names_do_not_decay() {
    let sgd = SgdConfig { lr: 0.1, weight_decay: 0.3, ..SgdConfig::default() };
    let found = run(DType::F64, 3, |dp| {
        let mut optimizer = Sgd::new(dp.parameters(), sgd)?;
        optimizer.no_weight_decay(|name| name == "w");
        Ok(optimizer)
    });
    close(&found, &torch_sgd(SgdConfig { weight_decay: 0.0, ..sgd }, 3), 1e-14, "sgd");
    let adamw = AdamWConfig { lr: 0.1, weight_decay: 0.5, ..AdamWConfig::default() };
    let found = run(DType::F64, 3, |dp| {
        let mut optimizer = AdamW::new(dp.parameters(), adamw)?;
        optimizer.no_weight_decay(|name| name != "other");
        Ok(optimizer)
    });
    close(&found, &torch_adamw(AdamWConfig { weight_decay: 0.0, ..adamw }, 3), 1e-13, "adamw");
}

/// Two steps, a copy of the state, two more: the copy must end in the same bits.
fn resumes<O: Optimizer>(dtype: DType, make: impl Fn(&DataParallel) -> Result<O> + Sync) {
    let steps = |bench: &mut Bench, optimizer: &mut O, range: std::ops::Range<usize>| -> Result<Vec<f64>> {
        for step in range {
            let grads = bench.grads(step)?;
            optimizer.step(&grads)?;
        }
        flat(&bench.w)
    };
    local(1, |comm| {
        let mut bench = Bench::new(comm, dtype)?;
        let mut optimizer = make(&bench.dp)?;
        steps(&mut bench, &mut optimizer, 0..2)?;
        let (state, weights) = (optimizer.state_dict()?, bench.w.copy()?);
        assert_eq!(state.steps, [("w".to_string(), 2)].into());
        let expected = steps(&mut bench, &mut optimizer, 2..4)?;

        let mut resumed = make(&bench.dp)?;
        resumed.load_state_dict(&state)?;
        bench.map.data().lock().unwrap()["w"].set(&weights)?;
        assert_eq!(steps(&mut bench, &mut resumed, 2..4)?, expected);

        bench.map.data().lock().unwrap()["w"].set(&weights)?;
        let mut fresh = make(&bench.dp)?;
        assert_ne!(steps(&mut bench, &mut fresh, 2..4)?, expected, "the state must matter");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_state_that_is_taken_over_continues_bit_for_bit() {
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        let sgd = SgdConfig { lr: 0.1, momentum: 0.9, nesterov: true, ..SgdConfig::default() };
        resumes(dtype, |dp| Sgd::new(dp.parameters(), sgd));
        let adamw = AdamWConfig { lr: 0.1, ..AdamWConfig::default() };
        resumes(dtype, |dp| AdamW::new(dp.parameters(), adamw));
    }
}

#[test]
fn a_state_that_does_not_fit_changes_nothing() {
    local(1, |comm| {
        let mut bench = Bench::new(comm, DType::F32)?;
        let mut adamw = AdamW::new(bench.dp.parameters(), AdamWConfig::default())?;
        let grads = bench.grads(0)?;
        adamw.step(&grads)?;
        let good = adamw.state_dict()?;
        let refuse = |adamw: &mut AdamW, change: fn(&mut hccl_candle::OptimizerState)| {
            let mut state = good.clone();
            change(&mut state);
            let error = adamw.load_state_dict(&state).expect_err("it does not fit").to_string();
            assert_eq!(adamw.state_dict().map(|state| state.steps).ok(), Some(good.steps.clone()));
            error
        };
        let kind = refuse(&mut adamw, |state| state.kind = "sgd".into());
        assert!(kind.contains("`sgd`") && kind.contains("`adamw`"), "{kind}");
        let lacking = refuse(&mut adamw, |state| drop(state.tensors.remove("w.exp_avg_sq")));
        assert!(lacking.contains("lacks `w.exp_avg_sq`"), "{lacking}");
        let unknown = refuse(&mut adamw, |state| state.steps.extend([("x".into(), 1)]));
        assert!(unknown.contains("parameter `x`"), "{unknown}");
        let shape = refuse(&mut adamw, |state| {
            let long = Tensor::zeros(4, DType::F32, &Device::Cpu).expect("zeros");
            state.tensors.insert("w.exp_avg".into(), long);
        });
        assert!(shape.contains("`w.exp_avg` is F32[4], must be F32[3]"), "{shape}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn hyperparameters_are_checked() {
    let sgd = |config: SgdConfig| {
        errors(1, |comm| Sgd::new(Bench::new(comm, DType::F32)?.dp.parameters(), config).map(drop)).remove(0)
    };
    assert!(sgd(SgdConfig { lr: -0.1, ..SgdConfig::default() }).contains("lr is -0.1"));
    assert!(sgd(SgdConfig { momentum: f64::NAN, ..SgdConfig::default() }).contains("momentum is NaN"));
    assert!(sgd(SgdConfig { nesterov: true, ..SgdConfig::default() }).contains("nesterov"));
    let damped = SgdConfig { nesterov: true, momentum: 0.9, dampening: 0.1, ..SgdConfig::default() };
    assert!(sgd(damped).contains("dampening of 0"));
    let adamw = |config: AdamWConfig| {
        errors(1, |comm| AdamW::new(Bench::new(comm, DType::F32)?.dp.parameters(), config).map(drop)).remove(0)
    };
    assert!(adamw(AdamWConfig { beta2: 1.0, ..AdamWConfig::default() }).contains("beta2 is 1"));
    assert!(adamw(AdamWConfig { eps: -1.0, ..AdamWConfig::default() }).contains("eps is -1"));
}

#[test]
fn an_optimizer_may_be_a_trait_object() {
    local(1, |comm| {
        let mut bench = Bench::new(comm, DType::F64)?;
        let mut optimizer: Box<dyn Optimizer> =
            Box::new(Sgd::new(bench.dp.parameters(), SgdConfig { lr: 0.1, ..SgdConfig::default() })?);
        optimizer.set_learning_rate(0.2);
        assert_eq!(optimizer.learning_rate(), 0.2);
        let grads = bench.grads(0)?;
        optimizer.step_synced(&grads)?;
        assert_eq!(flat(&bench.w)?[0], START[0] - 0.2 * slope(0)[0]);
        Ok(())
    })
    .unwrap();
}
