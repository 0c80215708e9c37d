//! Device memory: its addresses belong to a range that the host cannot touch, its bytes lie elsewhere.
//!
//! ```text
//! address the program holds --> [ no access, n bytes ] [ the bytes, n bytes ] <-- what copies and collectives use
//! ```
#![expect(unsafe_code, reason = "maps memory, and makes slices of what calls were given")]

use std::collections::{BTreeMap, HashMap};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::abi::{Failure, Result, acl_code, invalid};
use crate::counts::{self, Kind};
use crate::handles::lock;
use crate::settings::settings;

/// What fresh memory holds.
const FRESH: u8 = 0xA5;
const PAGE: usize = 4096;

/// A piece of device memory.
#[derive(Debug)]
pub(crate) struct Block {
    /// Invariants: (1) `half` bytes without access start here, and `half` writable ones behind them, until drop.
    /// (2) Only drop unmaps them.
    base: *mut u8,
    half: usize,
    bytes: usize,
    pub(crate) device: i32,
    freed: AtomicBool,
}

// SAFETY: mappings belong to the process; who may write is the business of the program under test, as on a device.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: (1) and (2).
        unsafe { libc::munmap(self.base.cast(), 2 * self.half) };
    }
}

static BLOCKS: Mutex<BTreeMap<usize, Arc<Block>>> = Mutex::new(BTreeMap::new());
static USED: Mutex<BTreeMap<i32, u64>> = Mutex::new(BTreeMap::new());

/// Takes bytes of a device's budget.
pub(crate) fn reserve(device: i32, bytes: u64) -> Result<()> {
    let mut used = lock(&USED);
    let used = used.entry(device).or_default();
    if *used + bytes > settings().memory {
        let text =
            format!("EL0004: device {device} has no {bytes} bytes left: {} of {} used", *used, settings().memory);
        return Err(Failure::new(acl_code::MEMORY_ALLOCATION, text));
    }
    *used += bytes;
    Ok(())
}

/// Gives bytes back.
pub(crate) fn release(device: i32, bytes: u64) {
    if let Some(used) = lock(&USED).get_mut(&device) {
        *used -= bytes;
    }
}

/// Free and total bytes of a device.
pub(crate) fn info(device: i32) -> (usize, usize) {
    let used = lock(&USED).get(&device).copied().unwrap_or_default();
    ((settings().memory - used) as usize, settings().memory as usize)
}

pub(crate) fn malloc(device: i32, bytes: usize) -> Result<usize> {
    if bytes == 0 {
        return Err(invalid("aclrtMalloc of 0 bytes"));
    }
    reserve(device, bytes as u64)?;
    let half = bytes.next_multiple_of(PAGE);
    let block = map(half, bytes, device).inspect_err(|_| release(device, bytes as u64))?;
    let address = block.base as usize;
    lock(&BLOCKS).insert(address, Arc::new(block));
    counts::more(Kind::Memory);
    Ok(address)
}

fn map(half: usize, bytes: usize, device: i32) -> Result<Block> {
    let refused = || Failure::new(acl_code::MEMORY_ALLOCATION, format!("EL0004: the host has no {bytes} bytes"));
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let base = unsafe { libc::mmap(ptr::null_mut(), 2 * half, libc::PROT_NONE, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(refused());
    }
    let block = Block { base: base.cast(), half, bytes, device, freed: AtomicBool::new(false) };
    let data = block.base.wrapping_add(half);
    // SAFETY: the second half of the mapping just made.
    if unsafe { libc::mprotect(data.cast(), half, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
        return Err(refused());
    }
    // SAFETY: `half` writable bytes.
    unsafe { data.write_bytes(FRESH, half) };
    Ok(block)
}

pub(crate) fn free(address: usize) -> Result<()> {
    let Some(block) = lock(&BLOCKS).remove(&address) else {
        return Err(invalid(format!("aclrtFree of {address:#x}, which is no live device memory")));
    };
    block.freed.store(true, Ordering::Release);
    release(block.device, block.bytes as u64);
    counts::less(Kind::Memory);
    Ok(())
}

/// Bytes inside one block, kept mapped as long as this value; no bytes are in no block.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    block: Option<Arc<Block>>,
    offset: usize,
    pub(crate) bytes: usize,
}

/// The span of `bytes` bytes at a device address, or why it is none.
pub(crate) fn span(address: usize, bytes: usize) -> Result<Span, String> {
    if bytes == 0 {
        return Ok(Span { block: None, offset: 0, bytes: 0 });
    }
    let (start, block) = find(address)?;
    let offset = address - start;
    if offset + bytes > block.bytes {
        return Err(format!("{bytes} bytes at {address:#x} end behind the {} bytes that were allocated", block.bytes));
    }
    Ok(Span { block: Some(block), offset, bytes })
}

/// The block an address lies in, and where it starts.
fn find(address: usize) -> Result<(usize, Arc<Block>), String> {
    let blocks = lock(&BLOCKS);
    let below = blocks.range(..=address).next_back().filter(|(start, block)| address < **start + block.half);
    let found = below.map(|(start, block)| (*start, Arc::clone(block)));
    found.ok_or_else(|| format!("{address:#x} is no device memory: a host address, or freed"))
}

/// Whether an address is device memory.
fn is_device(address: usize) -> bool {
    find(address).is_ok()
}

impl Span {
    /// The device; no bytes are on none.
    pub(crate) fn device(&self) -> Option<i32> {
        self.block.as_ref().map(|block| block.device)
    }

    /// Whether the memory was freed since the call that named it.
    pub(crate) fn is_freed(&self) -> bool {
        self.block.as_ref().is_some_and(|block| block.freed.load(Ordering::Acquire))
    }

    pub(crate) fn ptr(&self) -> *mut u8 {
        match &self.block {
            Some(block) => block.base.wrapping_add(block.half + self.offset),
            None => ptr::without_provenance_mut(PAGE),
        }
    }

    pub(crate) fn is_aligned_to(&self, size: usize) -> bool {
        self.offset.is_multiple_of(size.min(8))
    }

    pub(crate) fn overlaps(&self, other: &Span) -> bool {
        let (a, b) = (self.ptr() as usize, other.ptr() as usize);
        a < b + other.bytes && b < a + self.bytes
    }

    /// The elements, to read.
    ///
    /// # Safety
    /// Nobody writes them meanwhile: streams of the program under test run one task at a time, and it orders them.
    pub(crate) unsafe fn slice<T: hccl::Element>(&self) -> &[T] {
        // SAFETY: by (1) of the block; any bits are elements; aligned, as reducing calls check, or bytes.
        unsafe { std::slice::from_raw_parts(self.ptr().cast(), self.bytes / size_of::<T>()) }
    }

    /// The elements, to write.
    ///
    /// # Safety
    /// Nobody else reads or writes them meanwhile.
    #[expect(clippy::mut_from_ref, reason = "device memory is shared; the program under test orders its streams")]
    pub(crate) unsafe fn slice_mut<T: hccl::Element>(&self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.ptr().cast(), self.bytes / size_of::<T>()) }
    }

    /// Copies from another span of as many bytes, overlapping or not.
    pub(crate) fn copy_from(&self, from: &Span) {
        debug_assert_eq!(self.bytes, from.bytes);
        // SAFETY: both are mapped by (1) and have as many bytes.
        unsafe { ptr::copy(from.ptr(), self.ptr(), self.bytes) };
    }
}

/// One side of a copy.
enum Side {
    /// Invariant: the caller of the copy vouches for the bytes.
    Host(usize),
    Device(Span),
}

impl Side {
    fn of(what: &str, address: usize, bytes: usize, device: Option<bool>) -> Result<Side> {
        match device {
            Some(false) if is_device(address) => {
                Err(invalid(format!("{what} {address:#x} of the copy is device memory, the kind says host")))
            }
            Some(false) => Ok(Side::Host(address)),
            Some(true) => span(address, bytes).map(Side::Device).map_err(|why| invalid(format!("{what}: {why}"))),
            None => Side::of(what, address, bytes, Some(is_device(address))),
        }
    }

    fn ptr(&self) -> Result<*mut u8> {
        match self {
            Side::Host(address) => Ok(*address as *mut u8),
            Side::Device(span) if span.is_freed() => {
                Err(Failure::new(acl_code::DEVICE_MEMORY, "EI0012: memory was freed under a copy"))
            }
            Side::Device(span) => Ok(span.ptr()),
        }
    }
}

/// A copy that has been checked and not yet done.
pub(crate) struct Copy {
    to: Side,
    from: Side,
    bytes: usize,
}

impl Copy {
    pub(crate) fn new(to: usize, room: usize, from: usize, bytes: usize, kind: i32) -> Result<Copy> {
        if to == 0 || from == 0 || bytes > room {
            return Err(invalid(format!("copy of {bytes} bytes from {from:#x} to {room} bytes at {to:#x}")));
        }
        let (to_device, from_device) = match kind {
            0 => (Some(false), Some(false)),
            1 | 5 => (Some(true), Some(false)),
            2 => (Some(false), Some(true)),
            3 | 6 | 7 => (Some(true), Some(true)),
            4 => (None, None),
            _ => return Err(invalid(format!("{kind} is no kind of copy"))),
        };
        let to = Side::of("target", to, bytes, to_device)?;
        let from = Side::of("source", from, bytes, from_device)?;
        Ok(Copy { to, from, bytes })
    }

    pub(crate) fn run(&self) -> Result<()> {
        let (to, from) = (self.to.ptr()?, self.from.ptr()?);
        // SAFETY: device sides are mapped, host sides are the caller's.
        unsafe { ptr::copy(from, to, self.bytes) };
        Ok(())
    }
}

/// A fill that has been checked and not yet done.
pub(crate) struct Fill {
    span: Span,
    value: u8,
}

impl Fill {
    pub(crate) fn new(address: usize, room: usize, value: i32, bytes: usize) -> Result<Fill> {
        if bytes > room {
            return Err(invalid(format!("fill of {bytes} bytes into {room}")));
        }
        Ok(Fill { span: span(address, bytes).map_err(invalid)?, value: value as u8 })
    }

    pub(crate) fn run(&self) -> Result<()> {
        if self.span.is_freed() {
            return Err(Failure::new(acl_code::DEVICE_MEMORY, "EI0012: memory was freed under a fill"));
        }
        // SAFETY: mapped.
        unsafe { self.span.ptr().write_bytes(self.value, self.span.bytes) };
        Ok(())
    }
}

/// Host memory that was handed out; its contents are the caller's.
static HOST: Mutex<Option<HashMap<usize, Box<[u64]>>>> = Mutex::new(None);

pub(crate) fn malloc_host(bytes: usize) -> Result<usize> {
    if bytes == 0 {
        return Err(invalid("aclrtMallocHost of 0 bytes"));
    }
    let mut memory = vec![0u64; bytes.div_ceil(8)].into_boxed_slice();
    let address = memory.as_mut_ptr() as usize;
    lock(&HOST).get_or_insert_default().insert(address, memory);
    counts::more(Kind::HostMemory);
    Ok(address)
}

pub(crate) fn free_host(address: usize) -> Result<()> {
    let memory = lock(&HOST).get_or_insert_default().remove(&address);
    if memory.is_none() {
        return Err(invalid(format!("aclrtFreeHost of {address:#x}, which it did not give")));
    }
    counts::less(Kind::HostMemory);
    Ok(())
}
