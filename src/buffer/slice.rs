//! Ranges of buffers, lent to collectives.

use super::DeviceBuffer;
use crate::backend::Memory;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::memory::{InPlace, Read, Source, Write, part, sealed};
use std::ops::{Bound, Range, RangeBounds};

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

impl<'a, T: Element> DeviceSlice<'a, T> {
    pub(super) fn of(buf: &'a DeviceBuffer<T>, range: impl RangeBounds<usize>) -> Result<Self> {
        Ok(DeviceSlice { range: resolve(range, buf.len())?, buf })
    }

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

impl<'a, T: Element> DeviceSliceMut<'a, T> {
    pub(super) fn of(buf: &'a mut DeviceBuffer<T>, range: impl RangeBounds<usize>) -> Result<Self> {
        Ok(DeviceSliceMut { range: resolve(range, buf.len())?, buf })
    }

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
