//! Systems other than Linux: ranks are threads of one process.
#![expect(unsafe_code, reason = "owns raw memory")]

use crate::error::{Error, Result};
use crate::sys::pages;
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Zeroed memory of fixed size, seen by all threads of this process.
///
/// Invariants: (1) `ptr` is valid for `bytes` bytes until drop. (2) Only drop frees it.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    ptr: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to the process, not to a thread.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// New zeroed memory of at least `bytes` bytes, rounded up to pages.
    pub(crate) fn create(name: &str, bytes: usize) -> Result<SharedMemory> {
        let bytes = pages(bytes);
        let layout = SharedMemory::layout(bytes)?;
        // SAFETY: the layout is not empty.
        let ptr = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) });
        let refused = || {
            let out_of_memory = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
            Error::resource(format!("{bytes} bytes of memory ({name})"), out_of_memory)
        };
        Ok(SharedMemory { ptr: ptr.ok_or_else(refused)?, bytes })
    }

    fn layout(bytes: usize) -> Result<Layout> {
        Layout::from_size_align(bytes, 4096).map_err(|e| Error::resource(format!("{bytes} bytes of memory"), e))
    }

    /// First byte.
    pub(crate) fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if let Ok(layout) = SharedMemory::layout(self.bytes) {
            // SAFETY: allocated with this layout, (2).
            unsafe { std::alloc::dealloc(self.ptr.as_ptr(), layout) };
        }
    }
}

/// Naps until `word` differs from `expected` or `timeout` has passed.
pub(crate) fn sleep_on(word: &AtomicU32, expected: u32, timeout: Duration) {
    if word.load(Ordering::Acquire) == expected {
        std::thread::sleep(timeout.min(Duration::from_micros(100)));
    }
}

/// Nothing to do: naps are short.
pub(crate) fn wake_all(_word: &AtomicU32) {}

/// Gives the rest of the time slice away.
pub(crate) fn yield_now() {
    std::thread::yield_now();
}

/// Forks are not told apart here.
pub(crate) fn forked() -> bool {
    false
}
