//! A value that differs between ranks decides no branch outside of `local`.
use hccl::pipeline::Group;
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let mut group = Group::new(&comm);
        let mut x = [1f32];
        if group.size() == 2 {
            group.all_reduce(&mut x, Sum)?;
        }
        Ok(())
    })?;
    Ok(())
}
