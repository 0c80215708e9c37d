//! A vector belongs to the call until `wait` gives it back.
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let mut grads = vec![1f32; 8];
        let op = comm.all_reduce_async(grads, Sum)?;
        grads = op.wait()?;
        grads[0] = 0.0;
        Ok(())
    })?;
    Ok(())
}
