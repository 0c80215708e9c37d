//! Axes are the library's: a mesh must know them.
#[derive(Clone, Copy, Debug)]
struct Ep(usize);

impl hccl::Axis for Ep {
    const NAME: &'static str = "Ep";
}

fn main() -> hccl::Result<()> {
    let (axis, _) = (Ep(2), Ep::NAME);
    hccl::local(axis.0, |comm| comm.split(Some(0), 0)?.map_or(Ok(()), |group| group.barrier()))?;
    Ok(())
}
