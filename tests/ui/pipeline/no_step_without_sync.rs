//! Gradients that were not synchronised are not applied.
use hccl::pipeline::{Grads, Group};
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let mesh = Mesh::new(&comm, (Dp(2), Tp(1)))?;
        let mut replicas = Group::new(mesh.group::<Dp>());
        let mut weights = [1f32];
        let grads = Grads::local(vec![vec![comm.rank().index() as f32]]);
        replicas.barrier()?;
        grads.descend(0, &mut weights, 1.0)?;
        assert_eq!(weights, [0.5]);
        Ok(())
    })?;
    Ok(())
}
