//! The run-time name of an operation is not an operation.
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let mut x = [1f32];
        comm.all_reduce(&mut x, hccl::OpKind::Sum)?;
        Ok(())
    })?;
    Ok(())
}
