//! Lent memory must outlive the scope.
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        comm.scope(|s| {
            let mut x = vec![1f32; 8];
            s.all_reduce(&mut x, Sum)?;
            Ok(())
        })
    })?;
    Ok(())
}
