//! A message of a batch cannot be sent from the memory that another one fills.

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let other = comm.peer(1 - comm.rank().index())?;
        let mut theirs = [0f32; 4];
        let mine = [1f32; 4];
        comm.batch_send_recv(|batch| {
            batch.recv(&mut theirs, other)?;
            batch.send(&mine, other)
        })?;
        assert_eq!(theirs, mine);
        Ok(())
    })?;
    Ok(())
}
