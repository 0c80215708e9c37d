//! An array moves with its owner, so that no call can keep it.

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let op = comm.broadcast_async([1f32; 8], comm.root(0)?)?;
        op.wait()?;
        Ok(())
    })?;
    Ok(())
}
