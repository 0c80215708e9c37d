//! Text is sent as bytes.

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let name = String::from("run 7");
        let bytes = comm.broadcast_bytes(name.into_bytes(), comm.root(0)?)?;
        assert_eq!(bytes, b"run 7");
        Ok(())
    })?;
    Ok(())
}
