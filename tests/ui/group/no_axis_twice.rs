//! Each axis is in a mesh at most once.
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |world| {
        let mesh = Mesh::new(&world, (Dp(2), Dp(1)))?;
        println!("{mesh:?}");
        Ok(())
    })?;
    Ok(())
}
