//! Lent memory must outlive the scope.
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let mut x = vec![1f32; 8];
        comm.scope(|s| {
            s.all_reduce(&mut x, Sum)?;
            Ok(())
        })
    })?;
    Ok(())
}
