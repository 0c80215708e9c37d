//! Truth values have no sum.
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let mut flags = [1u8, 0];
        comm.all_reduce(&mut flags, Max)?;
        Ok(())
    })?;
    Ok(())
}
