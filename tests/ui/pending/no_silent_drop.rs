//! A `Pending` that nobody waits for loses its buffer and its error.
#![deny(unused_must_use)]
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        comm.all_reduce_async(vec![1f32; 8], Sum)?;
        Ok(())
    })?;
    Ok(())
}
