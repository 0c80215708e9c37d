//! Handles: numbers that only look like pointers, so that a stale or foreign one is an error and never a crash.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// A pointer-sized handle as it crosses the interface.
pub(crate) type Handle = usize;

/// The live objects of one kind.
pub(crate) struct Handles<T>(LazyLock<Mutex<HashMap<Handle, Arc<T>>>>);

impl<T> Handles<T> {
    pub(crate) const fn new() -> Handles<T> {
        Handles(LazyLock::new(Mutex::default))
    }

    pub(crate) fn add(&self, object: Arc<T>) -> Handle {
        // Handles of all kinds differ, and lie where no memory is.
        static NEXT: AtomicUsize = AtomicUsize::new(0x6000_0000_0000_0000);
        let handle = NEXT.fetch_add(16, Ordering::Relaxed);
        self.map().insert(handle, object);
        handle
    }

    pub(crate) fn get(&self, handle: Handle) -> Option<Arc<T>> {
        self.map().get(&handle).cloned()
    }

    pub(crate) fn remove(&self, handle: Handle) -> Option<Arc<T>> {
        self.map().remove(&handle)
    }

    pub(crate) fn all(&self) -> Vec<(Handle, Arc<T>)> {
        self.map().iter().map(|(handle, object)| (*handle, Arc::clone(object))).collect()
    }

    fn map(&self) -> MutexGuard<'_, HashMap<Handle, Arc<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Locks, whatever a panicked thread left: that test has failed already.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
