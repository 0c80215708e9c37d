//! Each axis is in a mesh at most once.
use hccl::prelude::*;

fn gradients(dp: &Communicator<Dp>) -> hccl::Result<()> {
    dp.all_reduce(&mut [1f32], Avg)
}

fn main() -> hccl::Result<()> {
    hccl::local(2, |world| {
        let mesh = Mesh::new(&world, (Dp(2), Dp(1)))?;
        gradients(mesh.group::<Dp>())?;
        Ok(())
    })?;
    Ok(())
}
