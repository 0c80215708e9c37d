//! Text is sent as bytes.

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let name = String::from("run 7");
        let mut bytes = vec![name];
        comm.broadcast(&mut bytes, comm.root(0)?)?;
        Ok(())
    })?;
    Ok(())
}
