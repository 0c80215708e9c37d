//! One communicator is one ordered queue: two threads need two.
use hccl::prelude::*;

fn on_another_thread(work: impl FnOnce() + Send) {
    std::thread::scope(|threads| drop(threads.spawn(work)));
}

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm: Communicator| {
        let other = comm.duplicate()?;
        on_another_thread(move || comm.barrier().unwrap());
        other.barrier()
    })?;
    Ok(())
}
