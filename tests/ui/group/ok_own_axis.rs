//! Axes are the library's: a mesh must know them.
#![allow(dead_code, unused_imports)]
use hccl::Axis;

#[derive(Clone, Copy, Debug)]
struct Ep(usize);

impl Ep {
    pub const NAME: &'static str = "Ep";
}

fn main() -> hccl::Result<()> {
    let axis = Ep(2);
    hccl::local(axis.0, |comm| comm.split(Some(0), 0)?.map_or(Ok(()), |group| group.barrier()))?;
    Ok(())
}
