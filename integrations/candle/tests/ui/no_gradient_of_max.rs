//! A maximum over ranks has no gradient here.
use candle_core::{Device, Var};
use hccl_candle::{SharedComm, ops};

pub fn main() -> hccl_candle::Result<()> {
    hccl_candle::local(2, |comm| {
        let x = Var::new(&[1f32, 2.0], &Device::Cpu)?;
        let y = ops::all_reduce(&SharedComm::new(comm), &x, hccl::Max)?;
        assert!(y.sum_all()?.backward()?.get(&x).is_some());
        Ok(())
    })?;
    Ok(())
}
