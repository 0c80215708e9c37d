//! What is lent to a call is out of reach until it is given back.
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let mut x = vec![1f32; 8];
        comm.scope(|s| {
            let handle = s.all_reduce(&mut x, Sum)?;
            handle.wait()?[0] = 2.0;
            Ok(())
        })?;
        Ok(())
    })?;
    Ok(())
}
