//! Buffers owned by a running call: [`OwnedBuffer`].

use crate::buffer::DeviceBuffer;
use crate::element::Element;
use crate::group::{Axis, Peer};
use crate::memory::{InPlace, sealed::LendMut};

/// A buffer that a call can own while it runs: `Vec<T>` or [`DeviceBuffer<T>`]. Sealed.
///
/// Its elements lie behind a pointer, so that moving the handle of a running call moves no element.
///
/// ```
/// use hccl::{Communicator, Numeric, OwnedBuffer, Pending, Sum};
/// /// Starts to sum up any buffer that can be given away.
/// fn start<B: OwnedBuffer<Elem: Numeric>>(comm: &Communicator, buf: B) -> hccl::Result<Pending<B>> {
///     Ok(comm.all_reduce_async(buf, Sum)?)
/// }
/// let out = hccl::local(2, |comm| {
///     let rank = comm.rank().index() as i32;
///     let (a, b) = (start(&comm, vec![rank])?, start(&comm, comm.upload(&[rank + 5])?)?);
///     Ok((a.wait()?[0], b.wait()?.to_vec()?[0]))
/// })?;
/// assert_eq!(out, [(1, 11); 2]);
/// # Ok::<(), hccl::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "an asynchronous call cannot own `{Self}`",
    label = "not a buffer that can be given away",
    note = "give it a `DeviceBuffer<T>` or a `Vec<T>`, and take it back from `Pending::wait`",
    note = "for borrowed memory use `comm.scope(|s| …)`, or the blocking call"
)]
pub trait OwnedBuffer: InPlace + InFlight {}

impl<T: Element> OwnedBuffer for Vec<T> {}
impl<T: Element> OwnedBuffer for DeviceBuffer<T> {}

mod sealed {
    /// What a running call can own: a buffer, or pairs, options and messages of buffers.
    pub trait InFlight: Send + 'static {
        /// Leaves memory that a peer may still write, and takes fresh memory.
        fn retire_all(&mut self);
    }
}

pub(crate) use sealed::InFlight;

impl<T: Element> InFlight for Vec<T> {
    fn retire_all(&mut self) {}
}

impl<T: Element> InFlight for DeviceBuffer<T> {
    fn retire_all(&mut self) {
        self.retire();
    }
}

impl InFlight for () {
    fn retire_all(&mut self) {}
}

impl<B: InFlight> InFlight for Option<B> {
    fn retire_all(&mut self) {
        self.iter_mut().for_each(B::retire_all);
    }
}

impl<S: InFlight, R: InFlight> InFlight for (S, R) {
    fn retire_all(&mut self) {
        self.0.retire_all();
        self.1.retire_all();
    }
}

impl<B: InFlight, A: Axis> InFlight for Vec<(B, Peer<A>)> {
    fn retire_all(&mut self) {
        self.iter_mut().for_each(|(buf, _)| buf.retire_all());
    }
}
