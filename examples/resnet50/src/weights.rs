//! Initial weights: from the seed, or from a file with torchvision's names.
//!
//! - Convolutions: normal with standard deviation `sqrt(2 / fan_out)`; `fc`: uniform within `1 / sqrt(2048)`; BatchNorm:
//!   weight 1 (0 at the end of a block, so that a block starts as the identity), bias 0. As torchvision with
//!   `zero_init_residual`.
//! - The same seed gives the same weights on every rank, whatever their number.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use candle_core::{DType, Device, Shape, Tensor, Var};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder, VarMap};
use hccl_candle::init::{Fan, Fill};

use crate::failure::{Failure, Result};
use crate::model::{ResNet50, ResNet50Config};

/// Inputs of the classifier.
const FEATURES: f64 = 2048.0;
/// The most problems of a file that are listed one by one.
const LISTED: usize = 6;

/// A model and its variables; weights are 0 until [`fill`] or [`load`].
///
/// # Errors
/// Those of candle.
pub(crate) fn blank(config: &ResNet50Config, dtype: DType) -> Result<(VarMap, ResNet50)> {
    let map = VarMap::new();
    let backend = Blank(map.clone());
    let model = ResNet50::new(config, VarBuilder::from_backend(Box::new(backend), dtype, Device::Cpu))?;
    Ok((map, model))
}

/// Fills the variables from the seed.
///
/// # Errors
/// Those of candle.
pub(crate) fn fill(map: &VarMap, seed: u64) -> Result<()> {
    let bound = 1.0 / FEATURES.sqrt();
    let rule = |name: &str, shape: &Shape| match shape.rank() {
        4 => Some(Fill::KaimingNormal { fan: Fan::Out, gain: 2f64.sqrt() }),
        _ if name.starts_with("fc.") => Some(Fill::Uniform { low: -bound, high: bound }),
        _ => None,
    };
    Ok(hccl_candle::init::initialise(map, seed, rule)?)
}

/// Takes the variables over from a file, converted to their type. A file without `fc` leaves that as it is; the names
/// of what was left are returned.
///
/// # Errors
/// [`Failure::Init`] with all that is missing or has another shape; nothing was changed then.
pub(crate) fn load(map: &VarMap, path: &Path) -> Result<Vec<String>> {
    let failed = |problem: String| Failure::Init { path: path.to_path_buf(), problem };
    let file = candle_core::safetensors::load(path, &Device::Cpu).map_err(|error| failed(error.to_string()))?;
    let vars = sorted(map);
    let problems = problems(&vars, &file);
    if !problems.is_empty() {
        return Err(failed(problems.join("; ")));
    }
    let mut left = Vec::new();
    for (name, var) in vars {
        match file.get(&name) {
            Some(value) => var.set(&value.to_dtype(var.dtype())?)?,
            None => left.push(name),
        }
    }
    Ok(left)
}

/// Checks a file of weights for a model with so many classes.
///
/// # Errors
/// As for [`load`].
pub(crate) fn check(path: &Path, classes: usize, dtype: DType) -> Result<()> {
    let (map, _) = blank(&ResNet50Config { classes, ..Default::default() }, dtype)?;
    load(&map, path).map(drop)
}

fn sorted(map: &VarMap) -> BTreeMap<String, Var> {
    // A panic elsewhere does not make a map of variables wrong.
    let vars = map.data().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    vars.iter().map(|(name, var)| (name.clone(), var.clone())).collect()
}

/// All in which a file does not fit the variables.
fn problems(vars: &BTreeMap<String, Var>, file: &HashMap<String, Tensor>) -> Vec<String> {
    let mut found = Vec::new();
    let without_head = !file.keys().any(|name| name.starts_with("fc."));
    for (name, var) in vars {
        match file.get(name) {
            None if without_head && name.starts_with("fc.") => {}
            None => found.push(format!("`{name}` {:?} is missing", var.dims())),
            Some(value) if value.dims() != var.dims() && name.starts_with("fc.") => {
                found.push(format!(
                    "`{name}` is {:?}, for the classes of these images it must be {:?} (hint: remove fc.weight and \
                     fc.bias from the file to start the classifier anew)",
                    value.dims(),
                    var.dims()
                ));
            }
            Some(value) if value.dims() != var.dims() => {
                found.push(format!("`{name}` is {:?}, must be {:?}", value.dims(), var.dims()));
            }
            Some(value) if value.dtype().is_int() => {
                found.push(format!("`{name}` is of the type {:?}, must be of floats", value.dtype()));
            }
            Some(_) => {}
        }
    }
    // PyTorch counts batches; nobody here needs the count.
    let unknown = |name: &&String| !vars.contains_key(*name) && !name.ends_with("num_batches_tracked");
    let mut extra: Vec<&String> = file.keys().filter(unknown).collect();
    extra.sort();
    found.extend(extra.into_iter().map(|name| format!("`{name}` is no tensor of a ResNet-50")));
    let more = found.len().saturating_sub(LISTED);
    if more > 0 {
        found.truncate(LISTED);
        found.push(format!("and {more} problems more"));
    }
    found
}

/// Makes variables as layers ask for them: of one value where a layer says so, of zeros elsewhere.
struct Blank(VarMap);

impl SimpleBackend for Blank {
    fn get(&self, shape: Shape, name: &str, init: Init, dtype: DType, device: &Device) -> candle_core::Result<Tensor> {
        let value = match init {
            Init::Const(value) => value,
            _ => 0.0,
        };
        let var = match value {
            0.0 => Var::zeros(shape, dtype, device)?,
            _ => Var::from_tensor(&Tensor::full(value, shape, device)?.to_dtype(dtype)?)?,
        };
        let tensor = var.as_tensor().clone();
        let mut vars = self.0.data().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        vars.insert(name.to_owned(), var);
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> candle_core::Result<Tensor> {
        candle_core::bail!("`{name}`: the shape of a new variable must be given")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.data().lock().unwrap_or_else(std::sync::PoisonError::into_inner).contains_key(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(classes: usize) -> ResNet50Config {
        ResNet50Config { classes, zero_init_residual: true, ..Default::default() }
    }

    #[test]
    fn a_seed_decides_all_weights() {
        let (map, _) = blank(&config(3), DType::F32).unwrap();
        fill(&map, 5).unwrap();
        let std = |name: &str| {
            let values = sorted(&map)[name].flatten_all().unwrap().to_vec1::<f32>().unwrap();
            (values.iter().map(|x| f64::from(x * x)).sum::<f64>() / values.len() as f64).sqrt()
        };
        let near = |found: f64, wanted: f64| assert!((found / wanted - 1.0).abs() < 0.05, "{found}, not {wanted}");
        near(std("conv1.weight"), (2.0f64 / (64.0 * 49.0)).sqrt());
        near(std("layer3.2.conv2.weight"), (2.0f64 / (256.0 * 9.0)).sqrt());
        near(std("fc.weight"), 1.0 / (3.0 * FEATURES).sqrt());
        assert_eq!([std("bn1.weight"), std("layer1.0.bn3.weight"), std("bn1.bias")], [1.0, 0.0, 0.0]);
        assert_eq!([std("bn1.running_mean"), std("bn1.running_var")], [0.0, 1.0]);
        let (other, _) = blank(&config(3), DType::F32).unwrap();
        fill(&other, 6).unwrap();
        let weight = |map: &VarMap| sorted(map)["conv1.weight"].flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_ne!(weight(&map), weight(&other));
        fill(&other, 5).unwrap();
        assert_eq!(weight(&map), weight(&other));
    }

    #[test]
    fn files_load_and_what_does_not_fit_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weights.safetensors");
        let (map, _) = blank(&config(3), DType::F32).unwrap();
        fill(&map, 1).unwrap();
        let mut tensors: HashMap<String, Tensor> =
            sorted(&map).into_iter().map(|(name, var)| (name, var.as_tensor().clone())).collect();
        tensors.insert("bn1.num_batches_tracked".into(), Tensor::new(7i64, &Device::Cpu).unwrap());
        let save = |tensors: &HashMap<String, Tensor>| candle_core::safetensors::save(tensors, &path).unwrap();
        save(&tensors);
        let (other, _) = blank(&config(3), DType::F64).unwrap();
        assert!(load(&other, &path).unwrap().is_empty());
        let sum = |map: &VarMap| {
            let conv = sorted(map)["layer4.2.conv2.weight"].to_dtype(DType::F64).unwrap();
            conv.sum_all().unwrap().to_scalar::<f64>().unwrap()
        };
        assert!(sum(&map) != 0.0 && sum(&map) == sum(&other));

        let classes = check(&path, 10, DType::F32).unwrap_err().to_string();
        assert!(classes.starts_with("--init ") && classes.contains("weights.safetensors"), "{classes}");
        assert!(classes.contains("`fc.weight` is [3, 2048]") && classes.contains("[10, 2048]"), "{classes}");
        tensors.retain(|name, _| !name.starts_with("fc."));
        save(&tensors);
        check(&path, 10, DType::F32).unwrap();
        assert_eq!(load(&other, &path).unwrap(), ["fc.bias", "fc.weight"]);

        tensors.remove("conv1.weight");
        tensors.insert("bn1.weight".into(), Tensor::new(&[1f32], &Device::Cpu).unwrap());
        tensors.insert("head.weight".into(), Tensor::new(&[1f32], &Device::Cpu).unwrap());
        save(&tensors);
        let text = check(&path, 10, DType::F32).unwrap_err().to_string();
        for part in
            ["`conv1.weight` [64, 3, 7, 7] is missing", "`bn1.weight` is [1], must be [64]", "`head.weight` is no"]
        {
            assert!(text.contains(part), "{text}");
        }
        std::fs::write(&path, b"nonsense").unwrap();
        assert!(check(&path, 10, DType::F32).unwrap_err().to_string().contains("weights.safetensors"));
    }
}
