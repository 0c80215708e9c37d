//! Gradients are averaged over replicas, not over slices of a layer.
use hccl::prelude::*;

fn gradients(dp: &Communicator<Dp>) -> hccl::Result<()> {
    dp.all_reduce(&mut [1f32], Avg)
}

fn main() -> hccl::Result<()> {
    hccl::local(2, |world| {
        let mesh = Mesh::new(&world, (Dp(2), Tp(1)))?;
        gradients(mesh.group::<Dp>())?;
        Ok(())
    })?;
    Ok(())
}
