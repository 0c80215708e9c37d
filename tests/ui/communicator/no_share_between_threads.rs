//! One communicator is one ordered queue: two threads need two.
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let other = comm.duplicate()?;
        std::thread::scope(|threads| {
            threads.spawn(|| comm.barrier());
            drop(other);
            comm.barrier()
        })
    })?;
    Ok(())
}
