//! A collective in place writes its buffer.
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let mut x = vec![1f32; 4];
        comm.all_reduce(&x, Sum)?;
        x[0] = 2.0;
        Ok(())
    })?;
    Ok(())
}
