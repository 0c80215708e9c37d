//! A peer belongs to the group that made it.
use hccl::prelude::*;

fn gradients(dp: &Communicator<Dp>) -> hccl::Result<()> {
    dp.all_reduce(&mut [1f32], Avg)
}

fn main() -> hccl::Result<()> {
    hccl::local(2, |world| {
        let mesh = Mesh::new(&world, (Pp(2), Dp(1)))?;
        let (dp, pp) = (mesh.group::<Dp>(), mesh.group::<Pp>());
        gradients(dp)?;
        let mut x = [1f32];
        match pp.rank().index() {
            0 => pp.send(&x, pp.peer(1)?)?,
            _ => pp.recv(&mut x, dp.peer(0)?)?,
        }
        Ok(())
    })?;
    Ok(())
}
