//! Memory of a device is no slice of this process, unless it says so.

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let buf = comm.upload(&[1f32, 2.0])?;
        let first = buf.as_slice().map(|x| x[0]);
        assert_eq!(first, Some(1.0));
        Ok(())
    })?;
    Ok(())
}
