//! Two calls of a scope cannot write one buffer.
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let mut x = vec![1f32; 8];
        let mut y = vec![2f32; 8];
        comm.scope(|s| {
            s.all_reduce(&mut x, Sum)?;
            s.all_reduce(&mut y, Max)?;
            Ok(())
        })?;
        y[0] = x[0];
        Ok(())
    })?;
    Ok(())
}
