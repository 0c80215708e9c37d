//! A root belongs to the group that made it.
use hccl::prelude::*;

fn gradients(dp: &Communicator<Dp>) -> hccl::Result<()> {
    dp.all_reduce(&mut [1f32], Avg)
}

fn main() -> hccl::Result<()> {
    hccl::local(2, |world| {
        let mesh = Mesh::new(&world, (Tp(1), Dp(2)))?;
        let (dp, tp) = (mesh.group::<Dp>(), mesh.group::<Tp>());
        gradients(dp)?;
        tp.broadcast(&mut [1f32], tp.root(0)?)?;
        Ok(())
    })?;
    Ok(())
}
