//! A closed communicator is gone.
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        comm.barrier()?;
        comm.close()?;
        comm.barrier()?;
        Ok(())
    })?;
    Ok(())
}
