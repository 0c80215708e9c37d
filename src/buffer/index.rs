//! Indexing a buffer does not compile, and says what to do instead.
//!
//! Without an implementation of [`Index`] the compiler would only say that there is none. This one is for positions of a
//! type that nothing is.

use super::DeviceBuffer;
use crate::element::Element;
use std::ops::Index;

/// Positions in memory that may be a device's: there are none.
#[diagnostic::on_unimplemented(
    message = "a `DeviceBuffer` cannot be indexed",
    label = "its memory may be a device's, which this process cannot read in place",
    note = "copy the elements with `to_vec()`, or borrow them with `as_slice()`, which is `None` on an NPU",
    note = "part of a buffer is lent to a collective with `range` and `range_mut`"
)]
pub trait HostPosition {
    /// Never called, as there is no such position.
    #[doc(hidden)]
    fn of<T>(self, elements: &[T]) -> &T;
}

#[doc(hidden)]
impl<T: Element, I: HostPosition> Index<I> for DeviceBuffer<T> {
    type Output = T;

    fn index(&self, index: I) -> &T {
        index.of(self.as_slice().unwrap_or_default())
    }
}
