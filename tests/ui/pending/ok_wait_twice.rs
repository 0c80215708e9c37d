//! `wait` gives the buffer back once.
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let op = comm.all_reduce_async(vec![1f32; 8], Sum)?;
        let first = op.wait()?;
        let second = first.clone();
        assert_eq!(first, second);
        Ok(())
    })?;
    Ok(())
}
