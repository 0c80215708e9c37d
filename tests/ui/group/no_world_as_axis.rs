//! The world is no data-parallel group, even where both have the same ranks.
use hccl::prelude::*;

fn gradients(dp: &Communicator<Dp>) -> hccl::Result<()> {
    dp.all_reduce(&mut [1f32], Avg)
}

fn main() -> hccl::Result<()> {
    hccl::local(2, |world| {
        let mesh = Mesh::new(&world, (Dp(2),))?;
        let dp = mesh.group::<Dp>();
        assert_eq!(dp.size(), world.size());
        gradients(&world)?;
        Ok(())
    })?;
    Ok(())
}
