//! A root is a checked value of the group.

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let mut x = [1f32];
        comm.broadcast(&mut x, comm.root(0)?)?;
        Ok(())
    })?;
    Ok(())
}
