//! Asynchronous calls check the operation too.
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let steps = comm.upload(&[1u8, 2])?;
        let op = comm.all_reduce_async(steps, Avg)?;
        op.wait()?;
        Ok(())
    })?;
    Ok(())
}
