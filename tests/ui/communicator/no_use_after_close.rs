//! A closed communicator is gone.

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        comm.barrier()?;
        comm.close()?;
        comm.barrier()?;
        Ok(())
    })?;
    Ok(())
}
