//! A call out of place reads and writes different memory.
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let mut x = vec![1f32; 4];
        comm.all_reduce_into(&x, &mut x, Sum)?;
        Ok(())
    })?;
    Ok(())
}
