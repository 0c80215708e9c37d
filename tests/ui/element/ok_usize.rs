//! The size of `usize` differs between machines.
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let mut counts = [3u64, 4];
        comm.all_reduce(&mut counts, Sum)?;
        Ok(())
    })?;
    Ok(())
}
