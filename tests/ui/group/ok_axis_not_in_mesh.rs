//! A mesh has the axes it was made with.
use hccl::prelude::*;

fn gradients(dp: &Communicator<Dp>) -> hccl::Result<()> {
    dp.all_reduce(&mut [1f32], Avg)
}

fn main() -> hccl::Result<()> {
    hccl::local(2, |world| {
        let mesh = Mesh::new(&world, (Dp(2), Tp(1)))?;
        gradients(mesh.group::<Dp>())?;
        mesh.group::<Tp>().barrier()?;
        Ok(())
    })?;
    Ok(())
}
