//! Characters are no numbers.
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let mut letters = vec![b'a', b'b'];
        comm.all_reduce(&mut letters, Sum)?;
        Ok(())
    })?;
    Ok(())
}
