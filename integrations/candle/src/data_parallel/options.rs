//! How gradients are synchronised.

use crate::error::{Error, Result};
use candle_core::DType;

/// The dtype in which gradients travel. Sums run in f32 for halves and are rounded once, in f64 for f64.
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use candle_nn::{Init, VarMap};
/// use hccl_candle::{DataParallel, Options, Wire};
/// let bytes = |wire| {
///     hccl_candle::local(2, |comm| {
/// #   let map = VarMap::new();
/// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
///         let mut dp = DataParallel::new(comm, &map, Options::default().wire(wire))?;
///         let grads = dp.backward(&w.sum_all()?)?;
///         Ok(dp.sync(grads)?.stats().bytes)
///     })
/// };
/// assert_eq!((bytes(Wire::Native)?, bytes(Wire::Bf16)?), (vec![8, 8], vec![4, 4]));
/// # Ok::<(), hccl_candle::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wire {
    /// Each parameter's own dtype.
    #[default]
    Native,
    /// 32 bits.
    F32,
    /// 16 bits with the range of f32 and 8 bits of precision.
    Bf16,
    /// 16 bits with 11 bits of precision, up to 65504: keep weights near 1.
    F16,
}

impl Wire {
    pub(crate) fn dtype(self, parameter: DType) -> DType {
        match self {
            Wire::Native => parameter,
            Wire::F32 => DType::F32,
            Wire::Bf16 => DType::BF16,
            Wire::F16 => DType::F16,
        }
    }
}

/// What becomes of a parameter that the loss does not reach.
///
/// Ranks agree by flags that travel with each synchronisation. Under every policy but `Error`, a parameter without
/// gradient on some ranks counts as zeros there. A rank of weight 0 never lacks a gradient.
///
/// candle follows no path through a factor of exactly 0: below `affine(0.0, _)` and `x * 0.0` parameters have no gradient
/// at all, not one of zeros. To leave a batch out, give its gradients the weight 0
/// ([`backward_weighted`](crate::DataParallel::backward_weighted)) in place of its loss the factor 0.
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use candle_nn::{Init, VarMap};
/// use hccl_candle::{DataParallel, Options, Unused};
/// let unused = |policy| {
///     hccl_candle::local(2, |comm| {
/// #   let map = VarMap::new();
/// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
/// #       map.get(3, "unused", Init::Const(0.0), DType::F32, &Device::Cpu)?;
///         let mut dp = DataParallel::new(comm, &map, Options::default().unused(policy))?;
///         let grads = dp.backward(&w.sum_all()?)?; // does not reach `unused`
///         Ok(dp.sync(grads)?.get("unused").is_some())
///     })
/// };
/// assert!(unused(Unused::Error).is_err_and(|err| err.to_string().contains("`unused`")));
/// assert_eq!((unused(Unused::Zero)?, unused(Unused::Skip)?), (vec![true; 2], vec![false; 2]));
///
/// let w = candle_core::Var::new(1f32, &Device::Cpu)?;
/// assert!(w.affine(0.0, 0.0)?.backward()?.get(&w).is_none());
/// # Ok::<(), hccl_candle::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unused {
    /// An error on every rank, naming parameter and ranks.
    #[default]
    Error,
    /// Without gradient on all ranks: zeros, and the optimizer moves it by momentum and weight decay.
    Zero,
    /// Without gradient on all ranks: none, and the optimizer leaves it alone.
    Skip,
}

/// How variables that get no gradient, like BatchNorm's running statistics, are kept together.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use hccl_candle::{Buffers, DataParallel, Options};
/// let out = hccl_candle::local(2, |comm| {
///     let rank = comm.rank().index() as f32;
///     let (w, seen) = (Var::new(1f32, &Device::Cpu)?, Var::new(0f32, &Device::Cpu)?);
///     let vars = [("w".to_owned(), w.clone()), ("seen".to_owned(), seen.clone())];
///     let mut dp = DataParallel::from_vars(comm, vars, Options::default().buffer("seen", Buffers::Average))?;
///     seen.set(&Tensor::new(rank * 10.0, &Device::Cpu)?)?; // what the forward pass did
///     let grads = dp.backward(&w.sqr()?)?;
///     dp.sync(grads)?;
///     Ok(seen.to_scalar::<f32>()?)
/// })?;
/// assert_eq!(out, [5.0, 5.0]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Buffers {
    /// Rank 0's values, after every synchronisation.
    Broadcast,
    /// The mean over all ranks, after every synchronisation; floats only.
    Average,
    /// Each rank keeps its own; checkpoints hold one copy a rank.
    Local,
}

/// Options of [`DataParallel`](crate::DataParallel); they must be the same on all ranks.
///
/// ```
/// use hccl_candle::{Buffers, Options, Unused, Wire};
/// let options = Options::default()
///     .wire(Wire::Bf16)
///     .accumulate(4)
///     .unused(Unused::Skip)
///     .buffer("running_mean", Buffers::Average)
///     .check_every(100);
/// # let _ = options;
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub(crate) bucket_bytes: usize,
    pub(crate) first_bucket_bytes: usize,
    pub(crate) wire: Wire,
    pub(crate) accumulate: usize,
    pub(crate) unused: Unused,
    pub(crate) check_every: u64,
    pub(crate) buffers: Vec<(String, Buffers)>,
}

impl Default for Options {
    /// Buckets of 25 MiB, the first of 1 MiB; native wire; no accumulation; unused parameters are errors; no periodic
    /// check; `running_mean` and `running_var` are broadcast.
    fn default() -> Self {
        Options {
            bucket_bytes: 25 << 20,
            first_bucket_bytes: 1 << 20,
            wire: Wire::Native,
            accumulate: 1,
            unused: Unused::Error,
            check_every: 0,
            buffers: ["running_mean", "running_var"].map(|name| (name.into(), Buffers::Broadcast)).into(),
        }
    }
}

impl Options {
    /// How many bytes are reduced at once; a larger parameter travels alone. Never changes a result's bits.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{DataParallel, Options};
    /// let out = hccl_candle::local(2, |comm| {
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    /// #   let v = map.get(2, "v", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let mut dp = DataParallel::new(comm, &map, Options::default().bucket_bytes(8))?;
    ///     let grads = dp.backward(&(w * v)?.sum_all()?)?; // two parameters of 8 bytes
    ///     Ok(dp.sync(grads)?.stats().buckets)
    /// })?;
    /// assert_eq!(out, [2, 2]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    #[must_use]
    pub fn bucket_bytes(mut self, bytes: usize) -> Self {
        self.bucket_bytes = bytes;
        self.first_bucket_bytes = self.first_bucket_bytes.min(bytes);
        self
    }

    /// The size of the first bucket: a smaller one lets communication start early.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{DataParallel, Options};
    /// let out = hccl_candle::local(2, |comm| {
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    /// #   let (u, v) = (map.get(2, "u", Init::Const(1.0), DType::F32, &Device::Cpu)?, w.clone());
    /// #   let v = map.get(2, "v", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let mut dp = DataParallel::new(comm, &map, Options::default().first_bucket_bytes(8))?;
    ///     let grads = dp.backward(&(w * v)?.mul(&u)?.sum_all()?)?; // three parameters of 8 bytes
    ///     Ok(dp.sync(grads)?.stats().buckets)
    /// })?;
    /// assert_eq!(out, [2, 2]); // one of 8 bytes, one of 16
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    #[must_use]
    pub fn first_bucket_bytes(mut self, bytes: usize) -> Self {
        self.first_bucket_bytes = bytes;
        self
    }

    /// The dtype in which gradients travel.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{DataParallel, Options, Wire};
    /// let out = hccl_candle::local(2, |comm| {
    ///     let rank = comm.rank().index() as f64;
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let mut dp = DataParallel::new(comm, &map, Options::default().wire(Wire::Bf16))?;
    ///     let grads = dp.backward(&w.affine(1.001 + rank, 0.0)?.sum_all()?)?;
    ///     Ok(dp.sync(grads)?.get("w").map(|grad| grad.to_vec1::<f32>()).transpose()?)
    /// })?;
    /// assert_eq!(out, [Some(vec![1.5; 2]), Some(vec![1.5; 2])]); // 1.501 in 8 bits of precision
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    #[must_use]
    pub fn wire(mut self, wire: Wire) -> Self {
        self.wire = wire;
        self
    }

    /// Synchronises only each k-th batch given to [`accumulate`](crate::DataParallel::accumulate).
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{DataParallel, Options};
    /// let out = hccl_candle::local(2, |comm| {
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let mut dp = DataParallel::new(comm, &map, Options::default().accumulate(2))?;
    ///     let (first, second) = (dp.backward(&w.sum_all()?)?, dp.backward(&w.sum_all()?)?);
    ///     Ok((dp.accumulate(first)?.is_some(), dp.accumulate(second)?.is_some()))
    /// })?;
    /// assert_eq!(out, [(false, true); 2]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    #[must_use]
    pub fn accumulate(mut self, k: usize) -> Self {
        self.accumulate = k;
        self
    }

    /// What becomes of a parameter that the loss does not reach.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{DataParallel, Options, Unused};
    /// let out = hccl_candle::local(2, |comm| {
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    /// #   map.get(3, "frozen", Init::Const(0.0), DType::F32, &Device::Cpu)?;
    ///     let mut dp = DataParallel::new(comm, &map, Options::default().unused(Unused::Skip))?;
    ///     let grads = dp.backward(&w.sum_all()?)?; // does not reach `frozen`
    ///     let grads = dp.sync(grads)?;
    ///     Ok(grads.iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>())
    /// })?;
    /// assert_eq!(out, [["w"]; 2]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    #[must_use]
    pub fn unused(mut self, policy: Unused) -> Self {
        self.unused = policy;
        self
    }

    /// Compares checksums of all replicas after every k-th synchronisation; 0 is never.
    ///
    /// ```
    /// use candle_core::{Device, Tensor, Var};
    /// use hccl_candle::{DataParallel, Error, Options};
    /// let err = hccl_candle::local(3, |comm| {
    ///     let (rank, w) = (comm.rank().index() as f32, Var::new(1f32, &Device::Cpu)?);
    ///     let options = Options::default().check_every(1);
    ///     let mut dp = DataParallel::from_vars(comm, [("w".to_owned(), w.clone())], options)?;
    ///     w.set(&Tensor::new(rank, &Device::Cpu)?)?; // ranks drift apart
    ///     let grads = dp.backward(&w.sqr()?)?;
    ///     dp.sync(grads)
    /// })
    /// .unwrap_err();
    /// assert!(matches!(err, Error::Drift { .. }), "{err}");
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    #[must_use]
    pub fn check_every(mut self, k: u64) -> Self {
        self.check_every = k;
        self
    }

    /// Declares that variables of this name (whole, or the last part after a dot) are buffers. A later call wins.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use hccl_candle::{Buffers, DataParallel, Options};
    /// let out = hccl_candle::local(2, |comm| {
    ///     let vars = ["fc.weight", "fc.seen"].map(|name| (name.to_owned(), Var::new(1f32, &Device::Cpu)));
    ///     let vars = vars.into_iter().map(|(name, var)| Ok((name, var?))).collect::<hccl_candle::Result<Vec<_>>>()?;
    ///     let dp = DataParallel::from_vars(comm, vars, Options::default().buffer("seen", Buffers::Local))?;
    ///     Ok((dp.parameters().len(), dp.buffers().count()))
    /// })?;
    /// assert_eq!(out, [(1, 1); 2]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    #[must_use]
    pub fn buffer(mut self, name: impl Into<String>, policy: Buffers) -> Self {
        self.buffers.push((name.into(), policy));
        self
    }

    pub(crate) fn policy(&self, name: &str) -> Option<Buffers> {
        let last = name.rsplit('.').next().unwrap_or(name);
        let declared = self.buffers.iter().rev().find(|(declared, _)| declared == name || declared == last);
        declared.map(|(_, policy)| *policy)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.accumulate == 0 {
            return Err(Error::invalid("accumulate is 0, must be 1 or more"));
        }
        if self.bucket_bytes == 0 || self.first_bucket_bytes == 0 {
            return Err(Error::invalid("a bucket of 0 bytes holds nothing; use 1 or more"));
        }
        Ok(())
    }

    /// What ranks must agree on besides parameters and buffers, a line each.
    pub(crate) fn lines(&self) -> Vec<String> {
        vec![
            format!("option wire = {:?}", self.wire),
            format!("option accumulate = {}", self.accumulate),
            format!("option unused = {:?}", self.unused),
            format!("option check_every = {}", self.check_every),
            format!("option bucket_bytes = {}, {}", self.first_bucket_bytes, self.bucket_bytes),
        ]
    }
}
