//! Copies of a queue would mix up its order: `duplicate` makes a queue of its own.
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let second = comm.duplicate()?;
        second.barrier()?;
        Ok(())
    })?;
    Ok(())
}
