//! The heap that peers reach: blocks of memory inside arenas of shared memory.
//!
//! ```text
//! arena 0  [block][block][ free      ][block][ free                     ]   4 MiB
//! arena 1  [ block                                    ][ free           ]   8 MiB
//! ```
//!
//! A process has one heap. Arenas are made on demand, each twice as large as the last up to 64 MiB (or as large as the
//! block that asked for it), and are kept: fresh pages cost more than a collective. A peer maps an arena at its first use
//! and finds a block by arena number and offset.
#![expect(unsafe_code, reason = "hands out raw memory")]

use crate::backend::Home;
use crate::error::{Error, Result};
use crate::sys::SharedMemory;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// Every block starts at a multiple of this, so that no two blocks share a cache line (or the pair that is fetched with it).
const ALIGN: usize = 128;
const FIRST_ARENA: usize = 4 << 20;
const LARGEST_STEP: usize = 64 << 20;

static HEAP: Mutex<Vec<Arena>> = Mutex::new(Vec::new());

/// Invariants: (1) `free` holds disjoint, non-adjacent runs inside the memory, by offset. (2) What is not free belongs
/// to exactly one block, or is retired for ever. (3) Bytes from `fresh` on were never given out and are zero.
struct Arena {
    memory: Arc<SharedMemory>,
    free: BTreeMap<usize, usize>,
    fresh: usize,
}

impl Arena {
    fn new(bytes: usize) -> Result<Arena> {
        let memory = Arc::new(SharedMemory::create("hccl-heap", bytes)?);
        Ok(Arena { free: BTreeMap::from([(0, memory.bytes())]), fresh: 0, memory })
    }

    /// The smallest free run that holds `bytes`, cut to size.
    fn take(&mut self, bytes: usize) -> Option<usize> {
        let fits = self.free.iter().filter(|(_, len)| **len >= bytes);
        let (offset, len) = fits.min_by_key(|(_, len)| **len).map(|(offset, len)| (*offset, *len))?;
        self.free.remove(&offset);
        if len > bytes {
            self.free.insert(offset + bytes, len - bytes);
        }
        Some(offset)
    }

    /// Puts a run back and joins it with its free neighbours.
    fn give(&mut self, mut offset: usize, mut bytes: usize) {
        if let Some((&before, &len)) = self.free.range(..offset).next_back()
            && before + len == offset
        {
            self.free.remove(&before);
            (offset, bytes) = (before, bytes + len);
        }
        if let Some(len) = self.free.remove(&(offset + bytes)) {
            bytes += len;
        }
        self.free.insert(offset, bytes);
    }
}

/// A block of heap memory, zeroed when made. Freed on drop; forgotten, it leaks.
///
/// Invariants: (1) `ptr` is valid for `bytes` bytes until drop and belongs to this block alone. (2) `ptr` is a multiple
/// of 128.
#[derive(Debug)]
pub(crate) struct Block {
    ptr: NonNull<u8>,
    bytes: usize,
    arena: u32,
    offset: usize,
}

// SAFETY: (1), memory is not tied to a thread.
unsafe impl Send for Block {}
// SAFETY: a shared block only hands out its address.
unsafe impl Sync for Block {}

impl Block {
    /// A zeroed block; `bytes` may be 0.
    ///
    /// # Errors
    /// `Resource` when the system has no memory left.
    pub(crate) fn zeroed(bytes: usize) -> Result<Block> {
        let (block, used) = Block::take(bytes)?;
        // SAFETY: the run is this block's alone by (1); what was never used is zero already.
        unsafe { block.ptr.write_bytes(0, used) };
        Ok(block)
    }

    /// A block that holds what its last owner left.
    pub(crate) fn scratch(bytes: usize) -> Result<Block> {
        Ok(Block::take(bytes)?.0)
    }

    /// A block, and how many of its first bytes may not be zero.
    fn take(bytes: usize) -> Result<(Block, usize)> {
        let Some(rounded) = bytes.max(1).checked_next_multiple_of(ALIGN) else {
            return Err(Error::invalid(format!("{bytes} bytes are more than an address space holds")));
        };
        let mut heap = HEAP.lock().unwrap_or_else(PoisonError::into_inner);
        let found = heap.iter_mut().enumerate().find_map(|(i, arena)| Some((i, arena.take(rounded)?)));
        let (index, offset) = match found {
            Some(found) => found,
            None => grow(&mut heap, rounded)?,
        };
        let arena = &mut heap[index];
        // SAFETY: the run lies inside the arena by (1) of `Arena`.
        let ptr = unsafe { arena.memory.ptr().add(offset) };
        let used = arena.fresh.saturating_sub(offset).min(rounded);
        arena.fresh = arena.fresh.max(offset + rounded);
        Ok((Block { ptr, bytes, arena: index as u32, offset }, used))
    }

    /// First byte.
    pub(crate) fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Length in bytes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How peers find it.
    pub(crate) fn home(&self) -> Home {
        Home::Heap { arena: self.arena, offset: self.offset as u64 }
    }

    /// Gives the memory up for ever: a peer that was stopped may still write it.
    pub(crate) fn retire(self) {
        std::mem::forget(self);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut heap = HEAP.lock().unwrap_or_else(PoisonError::into_inner);
        heap[self.arena as usize].give(self.offset, self.bytes.max(1).next_multiple_of(ALIGN));
    }
}

/// Adds an arena that holds `bytes`, and takes them.
fn grow(heap: &mut Vec<Arena>, bytes: usize) -> Result<(usize, usize)> {
    let step = FIRST_ARENA.checked_shl(heap.len() as u32).unwrap_or(LARGEST_STEP).clamp(FIRST_ARENA, LARGEST_STEP);
    let mut arena = Arena::new(bytes.max(step))?;
    let offset = arena.take(bytes).unwrap_or(0);
    heap.push(arena);
    Ok((heap.len() - 1, offset))
}

/// The memory of an arena of this process.
pub(crate) fn arena(index: u32) -> Option<Arc<SharedMemory>> {
    let heap = HEAP.lock().unwrap_or_else(PoisonError::into_inner);
    heap.get(index as usize).map(|arena| arena.memory.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_arena_joins_what_it_gets_back() {
        let mut arena = Arena::new(4096).unwrap();
        let runs: Vec<_> = (0..4).map(|_| arena.take(1024).unwrap()).collect();
        assert_eq!(arena.take(1), None);
        for i in [1, 3, 0, 2] {
            arena.give(runs[i], 1024);
        }
        assert_eq!(arena.free, BTreeMap::from([(0, 4096)]));
    }

    proptest! {
        #[test]
        fn blocks_are_zeroed_aligned_and_disjoint(sizes in prop::collection::vec(0_usize..100_000, 1..20)) {
            let mut live: Vec<Block> = Vec::new();
            for (i, &bytes) in sizes.iter().enumerate() {
                let block = Block::zeroed(bytes).unwrap();
                prop_assert_eq!(block.ptr().as_ptr() as usize % ALIGN, 0);
                // SAFETY: the block is valid for `bytes` bytes.
                let content = unsafe { std::slice::from_raw_parts_mut(block.ptr().as_ptr(), bytes) };
                prop_assert!(content.iter().all(|b| *b == 0));
                content.fill(i as u8 + 1);
                live.push(block);
                if i % 3 == 2 {
                    live.swap_remove(i % live.len());
                }
            }
            for block in &live {
                // SAFETY: as above.
                let content = unsafe { std::slice::from_raw_parts(block.ptr().as_ptr(), block.bytes()) };
                prop_assert!(content.windows(2).all(|w| w[0] == w[1]), "another block wrote here");
            }
        }
    }

    #[test]
    fn too_much_is_an_error() {
        assert!(Block::zeroed(usize::MAX).is_err());
        assert!(Block::zeroed(1 << 50).is_err());
    }
}
