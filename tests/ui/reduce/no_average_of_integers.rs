//! An average of integers is not an integer.
use hccl::prelude::*;

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let mut steps = [comm.rank().index() as i32, 2];
        comm.all_reduce(&mut steps, Avg)?;
        Ok(())
    })?;
    Ok(())
}
