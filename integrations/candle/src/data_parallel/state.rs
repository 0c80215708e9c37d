//! What a replica consists of.

use super::{Buffers, DataParallel, Options, Parameters};
use candle_core::Var;
use hccl::{Axis, Communicator};

impl<A: Axis> DataParallel<A> {
    /// The communicator, for further calls in the same order on all ranks.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{DataParallel, Options};
    /// let out = hccl_candle::local(2, |comm| {
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let dp = DataParallel::new(comm, &map, Options::default())?;
    ///     let mut loss = [dp.comm().rank().index() as f32 * 3.0];
    ///     dp.comm().all_reduce(&mut loss, hccl::Avg)?; // for the log
    ///     Ok(loss[0])
    /// })?;
    /// assert_eq!(out, [1.5, 1.5]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn comm(&self) -> &Communicator<A> {
        &self.comm
    }

    /// Gives the communicator back.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{DataParallel, Options};
    /// let out = hccl_candle::local(2, |comm| {
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let comm = DataParallel::new(comm, &map, Options::default())?.into_comm();
    ///     comm.barrier()?;
    ///     Ok(comm.rank().index())
    /// })?;
    /// assert_eq!(out, [0, 1]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn into_comm(self) -> Communicator<A> {
        self.comm
    }

    /// The parameters, for an optimizer.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{DataParallel, Options};
    /// let out = hccl_candle::local(2, |comm| {
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    /// #   map.get(3, "norm.running_mean", Init::Const(0.0), DType::F32, &Device::Cpu)?;
    ///     let dp = DataParallel::new(comm, &map, Options::default())?;
    ///     Ok(dp.parameters().names().map(str::to_owned).collect::<Vec<_>>())
    /// })?;
    /// assert_eq!(out, [["w"]; 2]); // running statistics are buffers
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The buffers and their policies, in order of names.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{Buffers, DataParallel, Options};
    /// let out = hccl_candle::local(2, |comm| {
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    /// #   map.get(3, "norm.running_mean", Init::Const(0.0), DType::F32, &Device::Cpu)?;
    ///     let dp = DataParallel::new(comm, &map, Options::default())?;
    ///     Ok(dp.buffers().map(|(name, _, policy)| (name.to_owned(), policy)).collect::<Vec<_>>())
    /// })?;
    /// assert_eq!(out[1], [("norm.running_mean".to_owned(), Buffers::Broadcast)]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn buffers(&self) -> impl Iterator<Item = (&str, &Var, Buffers)> {
        self.buffers.iter().map(|(name, var)| (name, var, self.buffers.policy(name)))
    }

    /// The options that it was made with.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{DataParallel, Options};
    /// let options = Options::default().accumulate(4);
    /// let same = hccl_candle::local(2, |comm| {
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let dp = DataParallel::new(comm, &map, options.clone())?;
    ///     Ok(*dp.options() == options)
    /// })?;
    /// assert_eq!(same, [true, true]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Batches that wait for [`accumulate`](Self::accumulate) to reach its k.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{DataParallel, Options};
    /// let out = hccl_candle::local(2, |comm| {
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let mut dp = DataParallel::new(comm, &map, Options::default().accumulate(3))?;
    ///     let mut held = Vec::new();
    ///     for _batch in 0..3 {
    ///         let grads = dp.backward(&w.sum_all()?)?;
    ///         dp.accumulate(grads)?;
    ///         held.push(dp.accumulated());
    ///     }
    ///     Ok(held)
    /// })?;
    /// assert_eq!(out, [[1, 2, 0]; 2]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn accumulated(&self) -> usize {
        self.batches
    }
}
