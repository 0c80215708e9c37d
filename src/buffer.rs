//! Owned memory that collectives move without a copy: [`DeviceBuffer`].
//!
//! A `DeviceBuffer<T>` is a one-dimensional run of elements on a [`Device`]. Host memory of a buffer comes from a heap
//! that the peers of this host map: a collective on it reads and writes it directly, where plain slices are copied
//! through a staging area.
//!
//! It does not deref to a slice, because memory of an NPU is no slice of this process: [`as_slice`] says so by `None`.
//! Part of a buffer is lent with [`range`] and [`range_mut`].
//!
//! ```
//! use hccl::Sum;
//! let out = hccl::local(2, |comm| {
//!     let mut buf = comm.upload(&[1i64, 2, 3, 4])?;
//!     comm.all_reduce(&mut buf.range_mut(1..3)?, Sum)?;
//!     buf.to_vec()
//! })?;
//! assert_eq!(out, vec![vec![1, 4, 6, 4]; 2]);
//! # Ok::<(), hccl::Error>(())
//! ```
//!
//! [`as_slice`]: DeviceBuffer::as_slice
//! [`range`]: DeviceBuffer::range
//! [`range_mut`]: DeviceBuffer::range_mut
#![expect(unsafe_code, reason = "views raw memory as elements")]

use crate::backend::Memory;
use crate::backend::cpu::heap::Block;
#[cfg(all(target_os = "linux", not(hccl_portable)))]
use crate::backend::hccl::NpuBlock;
use crate::device::Device;
use crate::element::Element;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{InPlace, Read, Source, Write, part, sealed};
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Bound, Range, RangeBounds};

/// Owned, one-dimensional memory of a [`Device`]; the module page says more.
///
/// ```
/// use hccl::{Communicator, DeviceBuffer, Sum};
/// /// The gradients stay in one buffer from one step to the next: no step allocates.
/// fn step(comm: &Communicator, grads: DeviceBuffer<f32>) -> hccl::Result<DeviceBuffer<f32>> {
///     Ok(comm.all_reduce_async(grads, Sum)?.wait()?)
/// }
/// let out = hccl::local(2, |comm| step(&comm, comm.upload(&[1.0, comm.rank().index() as f32])?)?.to_vec())?;
/// assert_eq!(out, [[2.0, 1.0]; 2]);
/// # Ok::<(), hccl::Error>(())
/// ```
pub struct DeviceBuffer<T> {
    /// Invariants: (1) a block holds at least `len` initialised elements of `T`, aligned for `T`; there is none only when
    /// `len` is 0. (2) Nobody but this buffer and the calls it is lent to reach the block: only a failed call may leave
    /// a peer behind, and then `retire` replaces the block.
    block: Blocks,
    len: usize,
    device: Device,
    elements: PhantomData<T>,
}

/// The memory of a buffer, by where it lives.
enum Blocks {
    None,
    Host(Block),
    #[cfg(all(target_os = "linux", not(hccl_portable)))]
    Npu(NpuBlock),
}

impl Blocks {
    fn zeroed(device: Device, bytes: usize) -> Result<Blocks> {
        match device {
            Device::Cpu => Block::zeroed(bytes).map(Blocks::Host),
            #[cfg(all(target_os = "linux", not(hccl_portable)))]
            Device::Npu(index) => NpuBlock::zeroed(index, bytes).map(Blocks::Npu),
            #[cfg(not(all(target_os = "linux", not(hccl_portable))))]
            Device::Npu(_) => Err(Error::new(ErrorKind::Unsupported { what: format!("memory on {device}") })
                .hint("NPUs are reached on Linux only: use Device::Cpu")),
        }
    }
}

impl<T: Element> DeviceBuffer<T> {
    /// A buffer of `len` zeros.
    ///
    /// ```
    /// use hccl::{Device, DeviceBuffer};
    /// let buf = DeviceBuffer::<f32>::zeros(Device::Cpu, 3)?;
    /// assert_eq!(buf.to_vec()?, [0.0; 3]);
    /// assert!(DeviceBuffer::<f64>::zeros(Device::Cpu, usize::MAX).is_err());
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Resource` when there is not enough memory; for an NPU `Unsupported` without Ascend's libraries, and the device's
    /// own errors.
    pub fn zeros(device: Device, len: usize) -> Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= isize::MAX as usize);
        let bytes = bytes.ok_or_else(|| too_big::<T>(len))?;
        Ok(DeviceBuffer { block: Blocks::zeroed(device, bytes)?, len, device, elements: PhantomData })
    }

    /// A buffer with a copy of these elements.
    ///
    /// ```
    /// use hccl::{Device, DeviceBuffer};
    /// let buf = DeviceBuffer::from_slice(Device::Cpu, &[3u8, 1, 2])?;
    /// assert_eq!(format!("{buf:?}"), "DeviceBuffer<u8>(3 elements on CPU)");
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`zeros`](DeviceBuffer::zeros).
    pub fn from_slice(device: Device, elements: &[T]) -> Result<Self> {
        let mut buf = DeviceBuffer::zeros(device, elements.len())?;
        buf.copy_from_slice(elements)?;
        Ok(buf)
    }

    /// A second buffer with the same elements.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let own = comm.upload(&[comm.rank().index() as i32 + 4])?;
    ///     let mut sum = own.try_clone()?;
    ///     comm.all_reduce(&mut sum, hccl::Sum)?;
    ///     Ok((own.to_vec()?, sum.to_vec()?))
    /// })?;
    /// assert_eq!(out, [(vec![4], vec![9]), (vec![5], vec![9])]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`zeros`](DeviceBuffer::zeros).
    pub fn try_clone(&self) -> Result<Self> {
        match self.as_slice() {
            Some(elements) => DeviceBuffer::from_slice(self.device, elements),
            None => DeviceBuffer::from_slice(self.device, &self.to_vec()?),
        }
    }

    /// Elements in the buffer.
    ///
    /// ```
    /// let own = hccl::Communicator::from_env()?.upload(&[1.0f32, 2.0, 3.0])?;
    /// assert_eq!(own.len() * size_of::<f32>(), 12);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when the buffer has no elements.
    ///
    /// ```
    /// let comm = hccl::Communicator::from_env()?;
    /// assert!(comm.zeros::<i32>(0)?.is_empty() && !comm.zeros::<i32>(1)?.is_empty());
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the memory lives.
    ///
    /// ```
    /// use hccl::DeviceBuffer;
    /// let weights = hccl::Communicator::from_env()?.upload(&[1.0f32, 2.0])?;
    /// let momentum = DeviceBuffer::<f32>::zeros(weights.device(), weights.len())?; // beside the weights
    /// assert_eq!((momentum.device(), momentum.len()), (hccl::Device::Cpu, 2));
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn device(&self) -> Device {
        self.device
    }

    /// The elements, or `None` when they are not in host memory.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let mut grads = comm.upload(&[3.0f32, comm.rank().index() as f32 * 4.0])?;
    ///     comm.all_reduce(&mut grads, hccl::Avg)?;
    ///     let norm = grads.as_slice().map(|grads| grads.iter().map(|g| g * g).sum::<f32>().sqrt());
    ///     Ok(norm)
    /// })?;
    /// assert_eq!(out, [Some(13f32.sqrt()); 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn as_slice(&self) -> Option<&[T]> {
        let Blocks::Host(block) = &self.block else { return self.is_empty().then_some(&[]) };
        // SAFETY: (1) gives length, alignment and initialised numbers, which have no invalid bits; (2) and `&self` mean
        // that nobody writes.
        Some(unsafe { std::slice::from_raw_parts(block.ptr().cast::<T>().as_ptr(), self.len) })
    }

    /// The elements, or `None` when they are not in host memory.
    ///
    /// ```
    /// let mut grads = hccl::Communicator::from_env()?.upload(&[3.0f32, -8.0])?;
    /// for g in grads.as_mut_slice().into_iter().flatten() {
    ///     *g = g.clamp(-5.0, 5.0);
    /// }
    /// assert_eq!(grads.to_vec()?, [3.0, -5.0]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn as_mut_slice(&mut self) -> Option<&mut [T]> {
        let Blocks::Host(block) = &self.block else { return self.is_empty().then_some(&mut []) };
        // SAFETY: as in `as_slice`; `&mut self` excludes readers too.
        Some(unsafe { std::slice::from_raw_parts_mut(block.ptr().cast::<T>().as_ptr(), self.len) })
    }

    /// A copy of the elements in host memory.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let own = comm.upload(&[comm.rank().index() as u16])?;
    ///     let mut all = comm.zeros(2)?;
    ///     comm.all_gather(&own, &mut all)?;
    ///     all.to_vec()
    /// })?;
    /// assert_eq!(out, [[0, 1]; 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the device that holds them; none for host memory.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        match &self.block {
            #[cfg(all(target_os = "linux", not(hccl_portable)))]
            Blocks::Npu(block) => {
                let mut elements = vec![T::default(); self.len];
                block.read(0, bytes_mut(&mut elements))?;
                Ok(elements)
            }
            _ => Ok(self.as_slice().unwrap_or_default().to_vec()),
        }
    }

    /// Overwrites the elements.
    ///
    /// ```
    /// let mut input = hccl::Communicator::from_env()?.zeros::<f32>(3)?;
    /// for batch in [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]] {
    ///     input.copy_from_slice(&batch)?; // the same memory for every batch
    /// }
    /// assert_eq!(input.to_vec()?, [4.0, 5.0, 6.0]);
    /// assert!(input.copy_from_slice(&[7.0]).is_err());
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Length` when `elements` has not exactly [`len`](DeviceBuffer::len) elements; nothing is written then.
    pub fn copy_from_slice(&mut self, elements: &[T]) -> Result<()> {
        if elements.len() != self.len {
            let kind = ErrorKind::Length { what: "the source", expected: self.len, actual: elements.len() };
            return Err(Error::new(kind));
        }
        #[cfg(all(target_os = "linux", not(hccl_portable)))]
        if let Blocks::Npu(block) = &self.block {
            return block.write(0, bytes(elements));
        }
        self.as_mut_slice().unwrap_or_default().copy_from_slice(elements);
        Ok(())
    }

    /// Sets every element to `value`.
    ///
    /// ```
    /// let mut grads = hccl::Communicator::from_env()?.upload(&[1.5f32, 2.5])?;
    /// grads.fill(0.0)?; // before the next backward pass
    /// assert_eq!(grads.to_vec()?, [0.0; 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the device that holds them; none for host memory.
    pub fn fill(&mut self, value: T) -> Result<()> {
        if let Some(elements) = self.as_mut_slice() {
            elements.fill(value);
            return Ok(());
        }
        self.copy_from_slice(&vec![value; self.len])
    }

    /// Part of the buffer, to be read by a collective.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let rank = comm.rank().index() as i64;
    ///     let parameters = comm.upload(&[rank, rank + 10, rank + 20])?;
    ///     let mut last = [0; 2];
    ///     comm.all_gather(&parameters.range(2..)?, &mut last)?;
    ///     Ok(last)
    /// })?;
    /// assert_eq!(out, [[20, 21]; 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` when the range is not inside the buffer.
    pub fn range(&self, range: impl RangeBounds<usize>) -> Result<DeviceSlice<'_, T>> {
        Ok(DeviceSlice { range: resolve(range, self.len)?, buf: self })
    }

    /// Part of the buffer, to be written by a collective.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let mut layers = comm.upload(&[comm.rank().index() as f32; 4])?;
    ///     comm.broadcast(&mut layers.range_mut(..2)?, comm.root(1)?)?; // the first layer only
    ///     layers.to_vec()
    /// })?;
    /// assert_eq!(out, [[1.0, 1.0, 0.0, 0.0], [1.0; 4]]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` when the range is not inside the buffer.
    pub fn range_mut(&mut self, range: impl RangeBounds<usize>) -> Result<DeviceSliceMut<'_, T>> {
        Ok(DeviceSliceMut { range: resolve(range, self.len)?, buf: self })
    }

    fn memory(&self) -> Memory {
        let bytes = self.len * size_of::<T>();
        match &self.block {
            Blocks::Host(block) => Memory { ptr: block.ptr().as_ptr(), bytes, home: block.home() },
            #[cfg(all(target_os = "linux", not(hccl_portable)))]
            Blocks::Npu(block) => Memory { ptr: block.address(), bytes, home: block.home() },
            Blocks::None => Memory::NONE,
        }
    }

    /// Leaves the block to peers that may still write `lost`, and takes a fresh one with a copy of the rest. Without
    /// memory for that the buffer is empty afterwards.
    fn retire_range(&mut self, lost: Range<usize>) {
        let fresh = DeviceBuffer::<T>::zeros(self.device, self.len)
            .and_then(|mut fresh| {
                self.copy_out(&mut fresh, 0..lost.start)?;
                self.copy_out(&mut fresh, lost.end..self.len)?;
                Ok(fresh)
            })
            .ok();
        let (block, len) = fresh.map_or((Blocks::None, 0), |fresh| (fresh.block, fresh.len));
        // Not freed: a stopped peer may wake up and write it.
        let _leaked = ManuallyDrop::new(std::mem::replace(&mut self.block, block));
        self.len = len;
    }

    /// Copies elements that no peer reaches out of a block in which a peer may still write others, into a buffer of the
    /// same length and device.
    fn copy_out(&self, fresh: &mut Self, kept: Range<usize>) -> Result<()> {
        #[cfg(all(target_os = "linux", not(hccl_portable)))]
        if let (Blocks::Npu(old), Blocks::Npu(new)) = (&self.block, &fresh.block) {
            let mut elements = vec![T::default(); kept.len()];
            old.read(kept.start * size_of::<T>(), bytes_mut(&mut elements))?;
            return new.write(kept.start * size_of::<T>(), bytes(&elements));
        }
        let from = self.memory().ptr.cast::<T>().wrapping_add(kept.start);
        let into = fresh.as_mut_slice().map_or(&mut [][..], |elements| &mut elements[kept]);
        // SAFETY: `into` lies as far inside the fresh block as `from` inside the old one, of the same length (1); the
        // lost range, which others may write, is not part of it.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
        Ok(())
    }
}

#[cfg(all(target_os = "linux", not(hccl_portable)))]
fn bytes<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: elements are plain numbers without padding, so their bytes are initialised.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

#[cfg(all(target_os = "linux", not(hccl_portable)))]
fn bytes_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `bytes`; and any bytes make a number.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), size_of_val(elements)) }
}

fn too_big<T: Element>(len: usize) -> Error {
    Error::new(ErrorKind::Resource { what: format!("a buffer of {len} x {}: more than memory can address", T::DTYPE) })
}

fn resolve(range: impl RangeBounds<usize>, len: usize) -> Result<Range<usize>> {
    let start = match range.start_bound() {
        Bound::Included(&start) => Some(start),
        Bound::Excluded(&before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.checked_add(1),
        Bound::Excluded(&end) => Some(end),
        Bound::Unbounded => Some(len),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= len => Ok(start..end),
        _ => Err(Error::invalid(format!(
            "the range {:?} to {:?} is not inside a buffer of {len} elements",
            range.start_bound(),
            range.end_bound()
        ))),
    }
}

impl<T: Element> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer<{}>({} elements on {})", T::DTYPE, self.len, self.device)
    }
}

impl<T: Element> sealed::Lend for DeviceBuffer<T> {
    fn read(&self) -> Read<'_> {
        Read::of::<T>(self.memory(), self.len)
    }
}

impl<T: Element> sealed::LendMut for DeviceBuffer<T> {
    fn write(&mut self) -> Write<'_> {
        Write::of::<T>(self.memory(), self.len)
    }

    fn retire(&mut self) {
        self.retire_range(0..self.len);
    }
}

impl<T: Element> Source for DeviceBuffer<T> {
    type Elem = T;
}

impl<T: Element> InPlace for DeviceBuffer<T> {}

/// A range of a [`DeviceBuffer`], to be read by a collective. Made by [`DeviceBuffer::range`].
///
/// ```
/// let out = hccl::local(2, |comm| {
///     let own = comm.upload(&[1u8, 2, 3, 4])?;
///     let half = own.range(..2)?;
///     let mut got = vec![0u8; half.len()];
///     match comm.rank().index() {
///         0 => comm.send(&half, comm.peer(1)?)?,
///         _ => comm.recv(&mut got, comm.peer(0)?)?,
///     }
///     Ok(got)
/// })?;
/// assert_eq!(out, [[0, 0], [1, 2]]);
/// # Ok::<(), hccl::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct DeviceSlice<'a, T: Element> {
    buf: &'a DeviceBuffer<T>,
    /// Inside `buf`.
    range: Range<usize>,
}

/// A range of a [`DeviceBuffer`], to be written by a collective. Made by [`DeviceBuffer::range_mut`].
///
/// ```
/// use hccl::Max;
/// let out = hccl::local(2, |comm| {
///     let mut buf = comm.upload(&[comm.rank().index() as i8; 4])?;
///     let mut tail = buf.range_mut(3..)?;
///     comm.all_reduce(&mut tail, Max)?;
///     buf.to_vec()
/// })?;
/// assert_eq!(out, [[0, 0, 0, 1], [1; 4]]);
/// # Ok::<(), hccl::Error>(())
/// ```
#[derive(Debug)]
pub struct DeviceSliceMut<'a, T: Element> {
    buf: &'a mut DeviceBuffer<T>,
    /// Inside `buf`.
    range: Range<usize>,
}

impl<T: Element> DeviceSlice<'_, T> {
    /// Elements in the range.
    ///
    /// ```
    /// let buf = hccl::Communicator::from_env()?.zeros::<u8>(10)?;
    /// assert_eq!(buf.range(7..)?.len(), 3);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// True when the range has no elements.
    ///
    /// ```
    /// let buf = hccl::Communicator::from_env()?.zeros::<u8>(10)?;
    /// assert!(buf.range(10..)?.is_empty() && !buf.range(9..)?.is_empty());
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }
}

impl<T: Element> DeviceSliceMut<'_, T> {
    /// Elements in the range.
    ///
    /// ```
    /// let mut buf = hccl::Communicator::from_env()?.zeros::<u8>(10)?;
    /// assert_eq!(buf.range_mut(2..=4)?.len(), 3);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// True when the range has no elements.
    ///
    /// ```
    /// let mut buf = hccl::Communicator::from_env()?.zeros::<u8>(10)?;
    /// assert!(buf.range_mut(..0)?.is_empty() && !buf.range_mut(..1)?.is_empty());
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }
}

fn ranged<T: Element>(buf: &DeviceBuffer<T>, range: &Range<usize>) -> Memory {
    part(buf.memory(), range.start * size_of::<T>(), range.len() * size_of::<T>())
}

impl<T: Element> sealed::Lend for DeviceSlice<'_, T> {
    fn read(&self) -> Read<'_> {
        Read::of::<T>(ranged(self.buf, &self.range), self.range.len())
    }
}

impl<T: Element> sealed::Lend for DeviceSliceMut<'_, T> {
    fn read(&self) -> Read<'_> {
        Read::of::<T>(ranged(self.buf, &self.range), self.range.len())
    }
}

impl<T: Element> sealed::LendMut for DeviceSliceMut<'_, T> {
    fn write(&mut self) -> Write<'_> {
        Write::of::<T>(ranged(self.buf, &self.range), self.range.len())
    }

    fn retire(&mut self) {
        self.buf.retire_range(self.range.clone());
        // Without memory for a fresh block the buffer is empty, and so is every range of it.
        if self.buf.is_empty() {
            self.range = 0..0;
        }
    }
}

impl<T: Element> Source for DeviceSlice<'_, T> {
    type Elem = T;
}

impl<T: Element> Source for DeviceSliceMut<'_, T> {
    type Elem = T;
}

impl<T: Element> InPlace for DeviceSliceMut<'_, T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use sealed::{Lend, LendMut};

    fn counted(len: usize) -> DeviceBuffer<i32> {
        let elements: Vec<i32> = (0..len as i32).map(|i| i * 3 + 1).collect();
        DeviceBuffer::from_slice(Device::Cpu, &elements).unwrap()
    }

    #[test]
    fn ranges_point_into_the_buffer() {
        let mut buf = counted(10);
        let whole = buf.read().memory;
        let view = buf.range(3..=5).unwrap().read().memory;
        assert_eq!(view.ptr, whole.ptr.wrapping_add(12));
        assert_eq!(view.bytes, 12);
        let (crate::backend::Home::Heap { offset: a, .. }, crate::backend::Home::Heap { offset: b, .. }) =
            (whole.home, view.home)
        else {
            panic!("a device buffer lives in the heap");
        };
        assert_eq!(b, a + 12);
        assert_eq!(buf.range_mut(10..).unwrap().write().len, 0);
        let (start, end) = (4, 3);
        for error in [buf.range(..11).unwrap_err(), buf.range(start..end).unwrap_err(), buf.range(11..).unwrap_err()] {
            assert!(error.to_string().contains("buffer of 10 elements"), "{error}");
        }
        assert!(buf.range(..=usize::MAX).is_err());
    }

    #[test]
    fn copies_check_the_length() {
        let mut buf = counted(4);
        let error = buf.copy_from_slice(&[9, 9, 9]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Length { expected: 4, actual: 3, .. }), "{error}");
        assert_eq!(buf.to_vec().unwrap(), [1, 4, 7, 10]);
        let copy = buf.try_clone().unwrap();
        buf.fill(5).unwrap();
        assert_eq!(copy.as_slice(), Some(&[1, 4, 7, 10][..]));
        assert_eq!(buf.as_mut_slice(), Some(&mut [5; 4][..]));
    }

    #[test]
    fn a_retired_range_moves_the_buffer_and_keeps_the_rest() {
        let mut buf = counted(6);
        let before = buf.read().memory.ptr;
        buf.range_mut(2..4).unwrap().retire();
        assert_ne!(buf.read().memory.ptr, before);
        let after = buf.to_vec().unwrap();
        assert_eq!((&after[..2], &after[4..]), (&[1, 4][..], &[13, 16][..]));
    }

    #[test]
    fn refuses_what_memory_cannot_hold() {
        let error = DeviceBuffer::<f64>::zeros(Device::Cpu, usize::MAX / 4).unwrap_err();
        assert!(error.to_string().contains("f64"), "{error}");
        assert!(DeviceBuffer::<u8>::zeros(Device::Cpu, 0).unwrap().is_empty());
    }
}
