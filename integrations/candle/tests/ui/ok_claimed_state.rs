//! Nobody but `sync` makes synchronised gradients.
use candle_core::{DType, Device};
use candle_nn::{Init, VarMap};
use hccl_candle::{DataParallel, Options, Grads, Synced};

pub fn main() -> hccl_candle::Result<()> {
    hccl_candle::local(2, |comm| {
        let map = VarMap::new();
        let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
        let mut dp = DataParallel::new(comm, &map, Options::default())?;
        let grads = dp.backward(&w.sum_all()?)?;
        let grads: Grads<Synced> = dp.sync(grads)?;
        assert!(grads.get("w").is_some());
        Ok(())
    })?;
    Ok(())
}
