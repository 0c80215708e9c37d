//! Memory lent to a call: [`Source`] is read, [`InPlace`] is written.

use crate::backend::{Home, Memory};
use crate::element::{DType, Element};
use std::marker::PhantomData;

/// Memory that a call may read for `'a`.
#[derive(Clone, Copy, Debug)]
pub struct Read<'a> {
    pub(crate) memory: Memory,
    pub(crate) len: usize,
    pub(crate) dtype: DType,
    lent: PhantomData<&'a ()>,
}

/// Memory that a call alone may read and write for `'a`.
#[derive(Debug)]
pub struct Write<'a> {
    pub(crate) memory: Memory,
    pub(crate) len: usize,
    pub(crate) dtype: DType,
    lent: PhantomData<&'a mut ()>,
}

impl<'a> Read<'a> {
    /// Plain memory of this process.
    pub(crate) fn plain<T: Element>(slice: &'a [T]) -> Self {
        let memory = Memory { ptr: slice.as_ptr().cast_mut().cast(), bytes: size_of_val(slice), home: Home::Private };
        Read { memory, len: slice.len(), dtype: T::DTYPE, lent: PhantomData }
    }

    /// `len` elements of `T`, which the caller has borrowed for `'a`.
    pub(crate) fn of<T: Element>(memory: Memory, len: usize) -> Self {
        Read { memory, len, dtype: T::DTYPE, lent: PhantomData }
    }
}

impl<'a> Write<'a> {
    /// Plain memory of this process.
    pub(crate) fn plain<T: Element>(slice: &'a mut [T]) -> Self {
        let memory = Memory { ptr: slice.as_mut_ptr().cast(), bytes: size_of_val(slice), home: Home::Private };
        Write { memory, len: slice.len(), dtype: T::DTYPE, lent: PhantomData }
    }

    /// `len` elements of `T`, which the caller has mutably borrowed for `'a`.
    pub(crate) fn of<T: Element>(memory: Memory, len: usize) -> Self {
        Write { memory, len, dtype: T::DTYPE, lent: PhantomData }
    }
}

/// `bytes` bytes of `memory` from `first` on; the caller has checked that they are inside.
pub(crate) fn part(memory: Memory, first: usize, bytes: usize) -> Memory {
    debug_assert!(first + bytes <= memory.bytes);
    let home = match memory.home {
        home @ (Home::Private | Home::Npu { .. }) => home,
        Home::Heap { arena, offset } => Home::Heap { arena, offset: offset + first as u64 },
    };
    Memory { ptr: memory.ptr.wrapping_add(first), bytes, home }
}

/// What became of the memory of a failed call that a stopped peer might still write.
pub(crate) const RETIRED: &str = "the buffer has fresh memory, its contents are unspecified";

pub(crate) mod sealed {
    use super::{Read, Write};

    pub trait Lend {
        fn read(&self) -> Read<'_>;
    }

    pub trait LendMut: Lend {
        fn write(&mut self) -> Write<'_>;

        /// Leaves the old memory to peers that may still write it and takes fresh memory. Plain memory is never reached
        /// by another process, so it stays.
        fn retire(&mut self) {}
    }
}

/// Elements that a collective can read: `[T]`, `[T; N]`, `Vec<T>`, [`DeviceBuffer<T>`](crate::DeviceBuffer), or a range
/// of one. Sealed.
///
/// ```
/// use hccl::Source;
/// fn elements<S: Source + ?Sized>(_: &S) -> &'static str { std::any::type_name::<S::Elem>() }
/// assert_eq!(elements(&[1f32, 2.0][..]), "f32");
/// ```
#[diagnostic::on_unimplemented(
    message = "a collective cannot read from `{Self}`",
    label = "not a buffer of elements",
    note = "buffers are `[T]`, `[T; N]`, `Vec<T>`, `DeviceBuffer<T>` and ranges of a `DeviceBuffer<T>`",
    note = "send other data as bytes: `broadcast_bytes`, `all_gather_bytes`"
)]
pub trait Source: sealed::Lend {
    /// The type of one element.
    ///
    /// ```
    /// use hccl::{DType, Element, Source};
    /// fn dtype<S: Source + ?Sized>(_: &S) -> DType {
    ///     S::Elem::DTYPE
    /// }
    /// assert_eq!((dtype(&[1u8][..]), dtype(&vec![0.5f32])), (DType::U8, DType::F32));
    /// # Ok::<(), hccl::Error>(())
    /// ```
    type Elem: Element;
}

/// Elements that a collective can write: the types of [`Source`] that can be borrowed mutably. Sealed.
///
/// ```
/// use hccl::{Communicator, InPlace, Max, ReduceOp};
/// /// Leaves in `buf` the greatest of all ranks, whatever kind of buffer it is.
/// fn greatest<B: InPlace + ?Sized>(comm: &Communicator, buf: &mut B) -> hccl::Result<()>
/// where
///     Max: ReduceOp<B::Elem>,
/// {
///     comm.all_reduce(buf, Max)
/// }
/// let out = hccl::local(2, |comm| {
///     let mut x = [0u8, comm.rank().index() as u8 + 1];
///     greatest(&comm, &mut x[1..])?;
///     Ok(x)
/// })?;
/// assert_eq!(out, [[0, 2]; 2]);
/// # Ok::<(), hccl::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "a collective cannot write to `{Self}`",
    label = "not a buffer of elements that can be written",
    note = "buffers are `[T]`, `[T; N]`, `Vec<T>`, `DeviceBuffer<T>` and `range_mut` of a `DeviceBuffer<T>`",
    note = "to move data whose length only the sender knows, use `broadcast_bytes` or `all_gather_bytes`"
)]
pub trait InPlace: Source + sealed::LendMut {}

macro_rules! plain {
    ($([$($generics:tt)*] $type:ty;)*) => { $(
        impl<$($generics)*> sealed::Lend for $type {
            fn read(&self) -> Read<'_> { Read::plain(&self[..]) }
        }
        impl<$($generics)*> sealed::LendMut for $type {
            fn write(&mut self) -> Write<'_> { Write::plain(&mut self[..]) }
        }
        impl<$($generics)*> Source for $type { type Elem = T; }
        impl<$($generics)*> InPlace for $type {}
    )* };
}

plain! {
    [T: Element] [T];
    [T: Element, const N: usize] [T; N];
    [T: Element] Vec<T>;
}
