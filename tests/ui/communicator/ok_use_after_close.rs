//! A closed communicator is gone.

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        comm.barrier()?;
        comm.barrier()?;
        comm.close()?;
        Ok(())
    })?;
    Ok(())
}
