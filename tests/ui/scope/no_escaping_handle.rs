//! A handle on borrowed memory ends with its scope.
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let mut x = vec![1f32; 8];
        let handle = comm.scope(|s| s.all_reduce(&mut x, Sum))?;
        handle.wait()?;
        Ok(())
    })?;
    Ok(())
}
