//! Memory that peers can reach.
#![expect(unsafe_code, reason = "owns raw memory")]

use crate::backend::Home;
use crate::error::{Error, Result};
use std::alloc::Layout;
use std::ptr::NonNull;

/// A block of heap memory, zeroed when made. Aligned to 64 bytes. Freed on drop; forgotten, it leaks.
#[derive(Debug)]
pub(crate) struct Block {
    ptr: NonNull<u8>,
    bytes: usize,
    home: Home,
}

// SAFETY: a block owns its memory.
unsafe impl Send for Block {}
// SAFETY: a shared block only hands out its address.
unsafe impl Sync for Block {}

impl Block {
    /// A zeroed block; `bytes` may be 0.
    pub(crate) fn zeroed(bytes: usize) -> Result<Block> {
        let layout = Layout::from_size_align(bytes.max(1), 64).map_err(|e| Error::resource("memory", e))?;
        // SAFETY: the layout is not empty.
        let ptr = unsafe { std::alloc::alloc_zeroed(layout) };
        let ptr = NonNull::new(ptr).ok_or_else(|| Error::invalid("out of memory"))?;
        Ok(Block { ptr, bytes, home: Home::Heap { arena: 0, offset: 0 } })
    }

    /// First byte.
    pub(crate) fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How peers find it.
    pub(crate) fn home(&self) -> Home {
        self.home
    }
}
