//! Named variables in an order that is the same on every rank.

use crate::error::{Error, Result};
use candle_core::{DType, Var};
use candle_nn::VarMap;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

/// The trainable variables of a model, sorted by name. Clones are the same list.
///
/// candle's `VarMap` iterates in an order that differs between ranks; names do not.
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use candle_nn::{Init, VarMap};
/// use hccl_candle::{AdamW, AdamWConfig, DataParallel, Options};
/// let out = hccl_candle::local(2, |comm| {
/// #   let map = VarMap::new();
/// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
///     let dp = DataParallel::new(comm, &map, Options::default())?;
///     let parameters = dp.parameters().clone(); // the same variables
///     AdamW::new(&parameters, AdamWConfig::default())?;
///     Ok(parameters.iter().map(|(_, var)| var.elem_count()).sum::<usize>())
/// })?;
/// assert_eq!(out, [2, 2]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Parameters(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    names: Vec<String>,
    vars: Vec<Var>,
}

impl Parameters {
    /// Sorts by name.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use hccl_candle::Parameters;
    /// let var = |value: f32| Var::new(value, &Device::Cpu);
    /// let parameters = Parameters::new([("fc.weight".to_owned(), var(1.0)?), ("conv.weight".to_owned(), var(2.0)?)])?;
    /// assert_eq!(parameters.names().collect::<Vec<_>>(), ["conv.weight", "fc.weight"]);
    /// assert!(Parameters::new([("w".to_owned(), var(1.0)?), ("w".to_owned(), var(2.0)?)]).is_err());
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// A name that comes twice; a variable whose dtype has no gradient (only F16, BF16, F32 and F64 have).
    pub fn new(vars: impl IntoIterator<Item = (String, Var)>) -> Result<Self> {
        let sorted = sorted(vars)?;
        for (name, var) in &sorted {
            if !matches!(var.dtype(), DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
                return Err(Error::invalid(format!(
                    "`{name}` is {:?} and cannot be a parameter (hint: declare it with `Options::buffer`)",
                    var.dtype()
                )));
            }
        }
        let (names, vars) = sorted.into_iter().unzip();
        Ok(Parameters(Arc::new(Inner { names, vars })))
    }

    /// How many there are.
    ///
    /// ```
    /// # use candle_core::{Device, Var};
    /// let w = Var::new(&[1f32, 2.0], &Device::Cpu)?;
    /// assert_eq!(hccl_candle::Parameters::new([("w".to_owned(), w)])?.len(), 1); // variables, not elements
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn len(&self) -> usize {
        self.0.names.len()
    }

    /// Whether there is none.
    ///
    /// ```
    /// assert!(hccl_candle::Parameters::new([])?.is_empty());
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.0.names.is_empty()
    }

    /// Names in order.
    ///
    /// ```
    /// # use candle_core::{Device, Var};
    /// let w = Var::new(&[1f32, 2.0], &Device::Cpu)?;
    /// let vars = [("fc.weight".to_owned(), w.clone()), ("fc.bias".to_owned(), w)];
    /// let parameters = hccl_candle::Parameters::new(vars)?;
    /// assert_eq!(parameters.names().next(), Some("fc.bias"));
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.names.iter().map(String::as_str)
    }

    /// Names and variables in order.
    ///
    /// ```
    /// # use candle_core::{Device, Var};
    /// let w = Var::new(&[1f32, 2.0], &Device::Cpu)?;
    /// let parameters = hccl_candle::Parameters::new([("w".to_owned(), w)])?;
    /// let elements: usize = parameters.iter().map(|(_, var)| var.elem_count()).sum();
    /// assert_eq!(elements, 2);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Var)> {
        self.names().zip(&self.0.vars)
    }

    /// The variable of a name.
    ///
    /// ```
    /// # use candle_core::{Device, Var};
    /// let w = Var::new(&[1f32, 2.0], &Device::Cpu)?;
    /// let parameters = hccl_candle::Parameters::new([("w".to_owned(), w)])?;
    /// assert_eq!(parameters.get("w").map(|var| var.dims()), Some(&[2][..]));
    /// assert!(parameters.get("b").is_none());
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn get(&self, name: &str) -> Option<&Var> {
        self.position(name).map(|at| self.var(at))
    }

    /// The place of a name.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.0.names.binary_search_by(|known| known.as_str().cmp(name)).ok()
    }

    /// The name at a place below [`len`](Self::len).
    pub(crate) fn name(&self, at: usize) -> &str {
        &self.0.names[at]
    }

    /// The variable at a place below [`len`](Self::len).
    pub(crate) fn var(&self, at: usize) -> &Var {
        &self.0.vars[at]
    }

    /// Whether these are the same variables under the same names.
    pub(crate) fn same_as(&self, other: &Parameters) -> bool {
        let same_vars = || self.0.vars.iter().zip(&other.0.vars).all(|(a, b)| a.id() == b.id());
        Arc::ptr_eq(&self.0, &other.0) || (self.0.names == other.0.names && same_vars())
    }

    /// The first line in which the names, dtypes and shapes differ.
    pub(crate) fn first_difference(&self, other: &Parameters) -> Option<String> {
        let (ours, theirs) = (self.lines(), other.lines());
        first_difference(&ours, &theirs).map(|(ours, theirs)| format!("{theirs}, not {ours}"))
    }

    /// A line for each: name, dtype and shape.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.iter().map(|(name, var)| describe(name, var)).collect()
    }
}

/// `` `name` F32[2, 3] ``.
pub(crate) fn describe(name: &str, tensor: &candle_core::Tensor) -> String {
    format!("`{name}` {:?}{:?}", tensor.dtype(), tensor.dims())
}

/// The first place where two lists of lines differ, as both sides' texts.
pub(crate) fn first_difference(ours: &[String], theirs: &[String]) -> Option<(String, String)> {
    let side = |lines: &[String], at: usize| lines.get(at).cloned().unwrap_or_else(|| "nothing more".into());
    let longest = ours.len().max(theirs.len());
    let at = (0..longest).find(|&at| ours.get(at) != theirs.get(at))?;
    Some((side(ours, at), side(theirs, at)))
}

/// Everything in a map, sorted by name.
pub(crate) fn of_map(map: &VarMap) -> Vec<(String, Var)> {
    let vars = map.data().lock().unwrap_or_else(PoisonError::into_inner);
    vars.iter().map(|(name, var)| (name.clone(), var.clone())).collect()
}

/// Sorts by name.
pub(crate) fn sorted(vars: impl IntoIterator<Item = (String, Var)>) -> Result<BTreeMap<String, Var>> {
    let mut sorted = BTreeMap::new();
    for (name, var) in vars {
        if sorted.contains_key(&name) {
            return Err(Error::invalid(format!("two variables are called `{name}`")));
        }
        sorted.insert(name, var);
    }
    Ok(sorted)
}
