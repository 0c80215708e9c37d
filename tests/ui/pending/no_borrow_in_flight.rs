//! An asynchronous call outside a scope owns its buffer.
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let mut x = vec![1f32; 8];
        x[0] = 2.0;
        comm.all_reduce_async(&mut x, Sum)?.wait()?;
        Ok(())
    })?;
    Ok(())
}
