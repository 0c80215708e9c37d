//! Buffers owned by a running call: [`OwnedBuffer`] and what a [`Pending`](crate::Pending) gives back, [`InFlight`].
//!
//! A buffer in flight is held as raw parts, so that moving the handle touches no memory that peers write, and dropping
//! the parts leaks rather than frees.
#![expect(unsafe_code, reason = "takes a Vec apart and puts it together again")]

use crate::buffer::DeviceBuffer;
use crate::element::Element;
use crate::group::{Axis, Peer};
use crate::memory::{InPlace, sealed::LendMut};
use std::mem::ManuallyDrop;

pub(crate) mod sealed {
    /// Values that can be taken apart for the time of a call. Dropping the raw parts leaks.
    pub trait Hold: Sized {
        type Raw: Send + 'static;
        fn into_raw(self) -> Self::Raw;
        fn from_raw(raw: Self::Raw) -> Self;
        /// Leaves memory that a peer may still write, and takes fresh memory.
        fn retire_raw(raw: &mut Self::Raw);
    }

    /// Raw parts of one buffer.
    pub trait Parts {
        fn read(&self) -> crate::memory::Read<'_>;
        fn write(&mut self) -> crate::memory::Write<'_>;
    }

    /// The raw parts of one buffer can be lent.
    pub trait HoldOne: Hold<Raw: Parts> {}
}

use sealed::{Hold, HoldOne, Parts};

/// A buffer that a call can own while it runs: `Vec<T>` or [`DeviceBuffer<T>`]. Sealed.
#[diagnostic::on_unimplemented(
    message = "an asynchronous call cannot own `{Self}`",
    label = "borrowed memory cannot be given to an `…_async` call",
    note = "give it a `DeviceBuffer<T>` or a `Vec<T>`, and take it back from `Pending::wait`",
    note = "for borrowed memory use `comm.scope(|s| …)`, or the blocking call"
)]
pub trait OwnedBuffer: InPlace + InFlight + HoldOne {}

/// What a [`Pending`](crate::Pending) gives back: a buffer, `()`, or pairs, options and messages of buffers. Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not what an asynchronous call gives back",
    note = "a `Pending` holds a `DeviceBuffer<T>` or `Vec<T>`, `()`, or pairs, options and messages of buffers"
)]
pub trait InFlight: Hold + Send + 'static {}

/// A `Vec` taken apart.
#[derive(Debug)]
pub struct RawVec<T> {
    /// Invariant: (1) the parts of one `Vec`, which nothing else owns.
    ptr: *mut T,
    len: usize,
    capacity: usize,
}

// SAFETY: by (1) it owns its elements, as a `Vec` does.
unsafe impl<T: Send> Send for RawVec<T> {}

impl<T: Element> Hold for Vec<T> {
    type Raw = RawVec<T>;

    fn into_raw(self) -> RawVec<T> {
        let mut vec = ManuallyDrop::new(self);
        RawVec { ptr: vec.as_mut_ptr(), len: vec.len(), capacity: vec.capacity() }
    }

    fn from_raw(raw: RawVec<T>) -> Self {
        // SAFETY: (1), and `raw` is consumed, so that the parts are used once.
        unsafe { Vec::from_raw_parts(raw.ptr, raw.len, raw.capacity) }
    }

    fn retire_raw(_: &mut RawVec<T>) {}
}

impl<T: Element> Parts for RawVec<T> {
    fn read(&self) -> crate::memory::Read<'_> {
        // SAFETY: (1) gives a valid run of `len` elements.
        crate::memory::Read::plain(unsafe { std::slice::from_raw_parts(self.ptr, self.len) })
    }

    fn write(&mut self) -> crate::memory::Write<'_> {
        // SAFETY: (1) gives a valid run of `len` elements, and `&mut self` excludes others.
        crate::memory::Write::plain(unsafe { std::slice::from_raw_parts_mut(self.ptr, self.len) })
    }
}

impl<T: Element> HoldOne for Vec<T> {}
impl<T: Element> OwnedBuffer for Vec<T> {}
impl<T: Element> InFlight for Vec<T> {}

/// A device buffer that is leaked when dropped.
#[derive(Debug)]
pub struct RawBuffer<T: Element>(ManuallyDrop<DeviceBuffer<T>>);

impl<T: Element> Hold for DeviceBuffer<T> {
    type Raw = RawBuffer<T>;

    fn into_raw(self) -> RawBuffer<T> {
        RawBuffer(ManuallyDrop::new(self))
    }

    fn from_raw(raw: RawBuffer<T>) -> Self {
        ManuallyDrop::into_inner(raw.0)
    }

    fn retire_raw(raw: &mut RawBuffer<T>) {
        LendMut::retire(&mut *raw.0);
    }
}

impl<T: Element> Parts for RawBuffer<T> {
    fn read(&self) -> crate::memory::Read<'_> {
        crate::memory::sealed::Lend::read(&*self.0)
    }

    fn write(&mut self) -> crate::memory::Write<'_> {
        LendMut::write(&mut *self.0)
    }
}

impl<T: Element> HoldOne for DeviceBuffer<T> {}
impl<T: Element> OwnedBuffer for DeviceBuffer<T> {}
impl<T: Element> InFlight for DeviceBuffer<T> {}

impl Hold for () {
    type Raw = ();
    fn into_raw(self) {}
    fn from_raw((): ()) {}
    fn retire_raw((): &mut ()) {}
}

impl InFlight for () {}

impl<B: OwnedBuffer> Hold for Option<B> {
    type Raw = Option<B::Raw>;

    fn into_raw(self) -> Self::Raw {
        self.map(B::into_raw)
    }

    fn from_raw(raw: Self::Raw) -> Self {
        raw.map(B::from_raw)
    }

    fn retire_raw(raw: &mut Self::Raw) {
        if let Some(raw) = raw {
            B::retire_raw(raw);
        }
    }
}

impl<B: OwnedBuffer> InFlight for Option<B> {}

impl<S: InFlight, R: InFlight> Hold for (S, R) {
    type Raw = (S::Raw, R::Raw);

    fn into_raw(self) -> Self::Raw {
        (self.0.into_raw(), self.1.into_raw())
    }

    fn from_raw(raw: Self::Raw) -> Self {
        (S::from_raw(raw.0), R::from_raw(raw.1))
    }

    fn retire_raw(raw: &mut Self::Raw) {
        S::retire_raw(&mut raw.0);
        R::retire_raw(&mut raw.1);
    }
}

impl<S: InFlight, R: InFlight> InFlight for (S, R) {}

/// Messages of a batch: what to move, and with whom.
impl<B: OwnedBuffer, A: Axis> Hold for Vec<(B, Peer<A>)> {
    type Raw = Vec<(B::Raw, Peer<A>)>;

    fn into_raw(self) -> Self::Raw {
        self.into_iter().map(|(buf, peer)| (buf.into_raw(), peer)).collect()
    }

    fn from_raw(raw: Self::Raw) -> Self {
        raw.into_iter().map(|(raw, peer)| (B::from_raw(raw), peer)).collect()
    }

    fn retire_raw(raw: &mut Self::Raw) {
        raw.iter_mut().for_each(|(raw, _)| B::retire_raw(raw));
    }
}

impl<B: OwnedBuffer, A: Axis> InFlight for Vec<(B, Peer<A>)> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_go_back_together() {
        let mut vec = Vec::with_capacity(9);
        vec.extend([5u16, 6, 7]);
        let address = vec.as_ptr();
        let mut raw = (vec, Some(vec![1f32])).into_raw();
        assert_eq!((raw.0.write().len, raw.1.as_ref().unwrap().read().memory.bytes), (3, 4));
        let (vec, other) = <(Vec<u16>, Option<Vec<f32>>)>::from_raw(raw);
        assert_eq!((vec.as_ptr(), vec.capacity(), other), (address, 9, Some(vec![1.0])));
    }
}
