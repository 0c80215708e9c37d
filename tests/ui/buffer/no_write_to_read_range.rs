//! `range` is for reading, `range_mut` for writing.
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let mut buf = comm.upload(&[1f32, 2.0, 3.0])?;
        buf.fill(1.0)?;
        comm.all_reduce(&mut buf.range(1..)?, Sum)?;
        Ok(())
    })?;
    Ok(())
}
