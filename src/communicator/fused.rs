//! Many small tensors as one operation: [`Communicator::all_reduce_fused`].
//!
//! Small tensors are packed into memory that peers reach, reduced there as one call, and unpacked. The memory belongs to
//! the communicator and is made at its first fused call. A long tensor goes alone, and so does memory of an NPU.
#![expect(unsafe_code, reason = "packs lent memory")]

use super::Communicator;
use crate::backend::{Home, Kind, Memory};
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::error::Result;
use crate::group::Axis;
use crate::memory::{InPlace, Write, part, sealed::LendMut};
use crate::reduce::ReduceOp;
use std::sync::PoisonError;

/// Bytes that are reduced as one call: small enough for a second-level cache to hold two ranks' memory.
const ROOM: usize = 512 << 10;
/// A tensor of more bytes goes alone: packing it costs more than the call it saves.
const ALONE: usize = 128 << 10;

/// The memory of fused calls; nothing until the first.
pub(super) type Room = Option<DeviceBuffer<u64>>;

impl<A: Axis> Communicator<A> {
    /// Reduces every buffer of `bufs` over all ranks, in place, as if by one [`all_reduce`](Communicator::all_reduce)
    /// each, with the same bits, but as few operations: for the many small tensors of a model.
    ///
    /// Every rank passes as many buffers, with the same lengths in the same order.
    ///
    /// ```
    /// use hccl::Sum;
    /// let out = hccl::local(2, |comm| {
    ///     let (mut weight, mut bias) = (vec![1.0f32; 6], vec![comm.rank().index() as f32; 2]);
    ///     comm.all_reduce_fused(&mut [&mut weight, &mut bias], Sum)?;
    ///     Ok((weight, bias))
    /// })?;
    /// assert_eq!(out, vec![(vec![2.0; 6], vec![1.0; 2]); 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`all_reduce`](Communicator::all_reduce): `Mismatch` also when the lengths of two ranks have the same
    /// sum but differ. After an error all buffers are unspecified.
    pub fn all_reduce_fused<B, Op>(&self, bufs: &mut [&mut B], op: Op) -> Result<()>
    where
        B: InPlace + ?Sized,
        Op: ReduceOp<B::Elem>,
    {
        let on_host = |buf: &&mut B| !matches!(buf.read().memory.home, Home::Npu { .. });
        if self.device() != Device::Cpu || !bufs.iter().all(on_host) {
            return bufs.iter_mut().try_for_each(|buf| self.all_reduce(&mut **buf, op));
        }
        let lengths = digest(bufs.iter().map(|buf| buf.read().len));
        let mut first = 0;
        while first < bufs.len() {
            let end = first + fitting(bufs[first..].iter().map(|buf| buf.read().memory.bytes));
            match end - first {
                1 => self.all_reduce(&mut *bufs[first], op)?,
                _ => self.reduce_packed::<B, Op>(&mut bufs[first..end], lengths)?,
            }
            first = end;
        }
        if bufs.is_empty() { self.barrier() } else { Ok(()) }
    }

    /// One call for all of `bufs`, which fit into the room.
    fn reduce_packed<B, Op>(&self, bufs: &mut [&mut B], lengths: u32) -> Result<()>
    where
        B: InPlace + ?Sized,
        Op: ReduceOp<B::Elem>,
    {
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let room = match &mut *room {
            // After a failed call the room may be empty.
            Some(room) if !room.is_empty() => room,
            room => room.insert(DeviceBuffer::zeros(Device::Cpu, ROOM / size_of::<u64>())?),
        };
        let memory = room.write().memory;
        let bytes = each(bufs, memory, copy);
        let packed = Write::of::<B::Elem>(part(memory, 0, bytes), bytes / size_of::<B::Elem>());
        let mut call = self.place().all_reduce(packed, Op::KIND)?;
        call.call.root = lengths;
        let done = self.queue.run(call);
        done.map_err(|failure| self.queue.failed(Kind::AllReduce, failure, || room.retire()))?;
        each(bufs, memory, |tensor, packed| copy(packed, tensor));
        Ok(())
    }
}

/// Pairs each buffer with its place in the room, one after the other; the bytes used.
fn each<B: InPlace + ?Sized>(bufs: &mut [&mut B], room: Memory, work: impl Fn(Memory, Memory)) -> usize {
    let place = |used: usize, buf: &mut &mut B| {
        let memory = buf.write().memory;
        work(memory, part(room, used, memory.bytes));
        used + memory.bytes
    };
    bufs.iter_mut().fold(0, place)
}

/// Copies between a tensor and its place, which have the same length.
fn copy(from: Memory, to: Memory) {
    // SAFETY: both are lent to this call, so valid for `to.bytes` bytes and not otherwise used; the room belongs to the
    // communicator and overlaps no tensor.
    unsafe { std::ptr::copy_nonoverlapping(from.ptr, to.ptr, to.bytes) };
}

/// How many of the tensors go into one call: at least 1.
fn fitting(tensors: impl Iterator<Item = usize>) -> usize {
    let (mut used, mut count) = (0, 0);
    for bytes in tensors {
        if count > 0 && (bytes > ALONE || used + bytes > ROOM) {
            break;
        }
        count += 1;
        used += bytes;
        if bytes > ALONE {
            break;
        }
    }
    count.max(1)
}

/// A number that tells lists of lengths apart, never 0.
fn digest(lengths: impl Iterator<Item = usize>) -> u32 {
    // FNV-1a by words: it guards against mistakes, not malice.
    let mix = |hash: u64, len: usize| (hash ^ len as u64).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    let hash = lengths.fold(0xcbf2_9ce4_8422_2325, mix);
    ((hash >> 32) as u32 ^ hash as u32).max(1)
}

const _: () = assert!(ALONE <= ROOM && ROOM.is_multiple_of(size_of::<u64>()));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_take_what_fits() {
        assert_eq!(fitting([8, 0, 100].into_iter()), 3);
        assert_eq!(fitting([ALONE + 1, 8].into_iter()), 1);
        assert_eq!(fitting([8, ALONE + 1].into_iter()), 1);
        assert_eq!(fitting([ALONE; 9].into_iter()), ROOM / ALONE);
        assert_eq!(fitting([ROOM * 3].into_iter()), 1);
    }

    #[test]
    fn digests_see_order_and_cuts() {
        let lists: [&[usize]; 6] = [&[], &[0], &[3, 5], &[5, 3], &[8], &[4, 4]];
        let digests: std::collections::HashSet<u32> = lists.iter().map(|list| digest(list.iter().copied())).collect();
        assert_eq!(digests.len(), lists.len());
    }
}
