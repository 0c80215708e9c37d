//! A buffer belongs to the call until `wait` gives it back.
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let grads = comm.upload(&[1f32; 8])?;
        let op = comm.all_reduce_async(grads, Sum)?;
        let grads = op.wait()?;
        println!("{:?}", grads.to_vec()?);
        Ok(())
    })?;
    Ok(())
}
