//! Temporary buffers that each thread keeps, so that a training step in its steady state touches no fresh memory.

use std::any::Any;
use std::cell::RefCell;

thread_local! {
    static POOL: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// Frees the temporary buffers that the layers of this module keep for the calling thread.
///
/// They are as large as the largest layer needed (a few MiB for ResNet-50). Other threads keep theirs until they end.
///
/// ```
/// hccl_candle::nn::trim_scratch();
/// ```
pub fn trim_scratch() {
    POOL.with_borrow_mut(Vec::clear);
}

/// Lends `len` values to `work`; what they hold is unspecified.
///
/// The buffer is taken out of the pool for the time of the call, so calls may nest, also when a rayon worker that waits
/// inside `work` picks up another task that wants a buffer.
pub(super) fn with_scratch<T: Copy + Default + 'static, R>(len: usize, work: impl FnOnce(&mut [T]) -> R) -> R {
    let mut buffer = take::<T>();
    if buffer.len() < len {
        // Not `resize`, which would copy the old contents.
        buffer = vec![T::default(); len];
    }
    let result = work(&mut buffer[..len]);
    POOL.with_borrow_mut(|pool| pool.push(Box::new(buffer)));
    result
}

/// The most recently returned buffer of this element type, so that nested calls at the same depth meet the same buffer
/// again.
fn take<T: 'static>() -> Vec<T> {
    POOL.with_borrow_mut(|pool| {
        let found = pool.iter().rposition(|buffer| buffer.is::<Vec<T>>());
        found.and_then(|at| pool.remove(at).downcast().ok()).map_or_else(Vec::new, |buffer| *buffer)
    })
}
