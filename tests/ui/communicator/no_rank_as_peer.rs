//! This rank is not the other side of its messages.

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let mut x = [1f32];
        let other = 1 - comm.rank().index();
        if other == 1 {
            comm.send(&x, comm.rank())?;
        } else {
            comm.recv(&mut x, comm.peer(other)?)?;
        }
        Ok(())
    })?;
    Ok(())
}
