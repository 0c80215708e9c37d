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

mod index;
mod slice;
#[cfg(test)]
mod tests;

pub use slice::{DeviceSlice, DeviceSliceMut};

use crate::backend::Memory;
use crate::backend::cpu::heap::Block;
#[cfg(all(target_os = "linux", not(hccl_portable)))]
use crate::backend::hccl::NpuBlock;
use crate::device::Device;
use crate::element::Element;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{InPlace, Read, Source, Write, sealed};
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Range, RangeBounds};

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
        DeviceSlice::of(self, range)
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
        DeviceSliceMut::of(self, range)
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
