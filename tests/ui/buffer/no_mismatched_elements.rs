//! What is sent and what is received have the same element type.

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let own = [1f32, 2.0];
        let mut all = vec![0f64; 4];
        comm.all_gather(&own, &mut all)?;
        Ok(())
    })?;
    Ok(())
}
