//! The laws of the seam, once, for every backend.

#[path = "../support/mod.rs"]
mod support;

use hccl::prelude::*;

fn sums(comm: &Communicator) -> hccl::Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    for length in [0, 1, 7, 1023, 1024, 1025, 4097, 70_001, 300_007] {
        let mut values: Vec<u64> = (0..length).map(|i| (i * n + rank) as u64).collect();
        let mut device = comm.upload(&values)?;
        comm.all_reduce(&mut values, Sum)?;
        comm.all_reduce(&mut device, Sum)?;
        for (i, v) in values.iter().enumerate() {
            assert_eq!(*v, (i * n * n + n * (n - 1) / 2) as u64, "{length} at {i}");
        }
        assert_eq!(device.to_vec()?, values);
    }
    Ok(())
}

#[test]
fn sums_processes() {
    for n in [2, 3, 4] {
        support::processes("sums_processes", n, sums);
    }
}

fn messages(comm: &Communicator) -> hccl::Result<()> {
    for length in [0_usize, 1, 96, 97, 1000, 300_000, 1_000_000] {
        let values: Vec<u32> = (0..length).map(|i| (i * 7) as u32).collect();
        let device = comm.upload(&values)?;
        let mut out = vec![0_u32; length];
        let mut out_device = comm.zeros::<u32>(length)?;
        if comm.rank().index() == 0 {
            comm.send(&values, comm.peer(1)?)?;
            comm.send(&device, comm.peer(1)?)?;
            comm.send(&values, comm.peer(1)?)?;
        } else {
            comm.recv(&mut out, comm.peer(0)?)?;
            assert_eq!(out, values);
            comm.recv(&mut out_device, comm.peer(0)?)?;
            assert_eq!(out_device.to_vec()?, values);
            comm.recv(&mut out_device, comm.peer(0)?)?;
        }
        let half = comm.split(Some(comm.rank().index() as u64), 0)?.unwrap();
        let mut x = [1_u8];
        half.all_reduce(&mut x, Sum)?;
        let all = comm.duplicate()?;
        all.all_reduce(&mut x, Sum)?;
        assert_eq!(x[0], 2);
    }
    Ok(())
}

#[test]
fn messages_processes() {
    support::processes("messages_processes", 2, messages);
}
