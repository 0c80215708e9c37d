//! A collective cannot stand in a branch that depends on the rank.
use hccl::pipeline::Group;
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let mut group = Group::new(&comm);
        let mut x = [1f32];
        group.local(|rank| if rank == 0 { group.all_reduce(&mut x, Sum) } else { Ok(()) });
        Ok(())
    })?;
    Ok(())
}
