//! Fused calls: as if by one all_reduce each, with the same bits; different lists of lengths are a mismatch.

use crate::support::cells::{Cell, cells};
use half::bf16;
use hccl::prelude::*;
use hccl::{ErrorKind, Result};

/// Nothing, little, several rooms full, and what is too long to be packed.
const LENGTHS: [usize; 12] = [0, 1, 5, 700, 0, 33, 24_000, 64, 31_000, 29_999, 140_000, 3];

fn tensors<T: Cell>(rank: usize, n: usize) -> Vec<Vec<T>> {
    // Each tensor starts elsewhere in the sequence, so that no two begin alike.
    let tensor = |(i, len): (usize, &usize)| cells::<T>(len + i, rank, n)[i..].to_vec();
    LENGTHS.iter().enumerate().map(tensor).collect()
}

/// Equal bits, where NaNs are no equals.
fn bits<T: Cell>(tensors: &[Vec<T>]) -> Vec<Vec<u64>> {
    tensors.iter().map(|tensor| tensor.iter().map(|x| x.bits()).collect()).collect()
}

fn compare<T: Cell, Op: ReduceOp<T>>(comm: &Communicator, op: Op) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    let mut one_by_one = tensors::<T>(rank, n);
    one_by_one.iter_mut().try_for_each(|tensor| comm.all_reduce(tensor, op))?;
    let mut fused = tensors::<T>(rank, n);
    comm.all_reduce_fused(&mut fused.iter_mut().collect::<Vec<_>>(), op)?;
    assert_eq!(bits(&fused), bits(&one_by_one));
    let uploaded: Result<Vec<DeviceBuffer<T>>> =
        tensors::<T>(rank, n).iter().map(|tensor| comm.upload(tensor)).collect();
    let mut device = uploaded?;
    comm.all_reduce_fused(&mut device.iter_mut().collect::<Vec<_>>(), op)?;
    let device: Result<Vec<Vec<T>>> = device.iter().map(DeviceBuffer::to_vec).collect();
    assert_eq!(bits(&device?), bits(&one_by_one));
    Ok(())
}

pub(crate) fn same_bits(comm: &Communicator) -> Result<()> {
    compare::<f32, _>(comm, Sum)?;
    compare::<bf16, _>(comm, Avg)?;
    compare::<u8, _>(comm, Max)?;
    compare::<f64, _>(comm, Prod)
}

pub(crate) fn few_and_none(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index() as u32, comm.size() as u32);
    comm.all_reduce_fused(&mut [] as &mut [&mut Vec<u32>], Sum)?;
    let mut one = [rank, 7];
    comm.all_reduce_fused(&mut [&mut one], Sum)?;
    assert_eq!(one, [n * (n - 1) / 2, 7 * n]);
    let (mut a, mut b) = ([rank], [n - rank]);
    comm.all_reduce_fused(&mut [&mut a[..], &mut b[..]], Min)?;
    assert_eq!((a, b), ([0], [1]));
    Ok(())
}

pub(crate) fn lengths_are_compared(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    if n == 1 {
        return Ok(());
    }
    for len in [10, 9000] {
        let group = comm.duplicate()?;
        // The same sum, cut elsewhere on the last rank.
        let cut = if rank == n - 1 { len / 2 + 1 } else { len / 2 };
        let (mut a, mut b) = (vec![1_u16; cut], vec![2_u16; len - cut]);
        let error = group.all_reduce_fused(&mut [&mut a, &mut b], Sum).unwrap_err();
        let text = error.to_string();
        // NPUs take one buffer after the other, whose lengths show the difference.
        let named = text.contains("digest of the lengths") || comm.device() != Device::Cpu;
        assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }) && named, "{text}");
        assert!(a.iter().all(|x| *x == 1) && b.iter().all(|x| *x == 2), "nothing was written");
    }
    comm.barrier()
}
