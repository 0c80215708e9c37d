//! Linux: memfd, futex, fork detection.
#![expect(unsafe_code, reason = "maps memory")]

pub(crate) mod keeper;

use crate::error::{Error, Result};
use crate::sys::pages;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::thread::futex;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The seals that make the size of a shared file a fact.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// From this size on, the system is asked first whether it has so much: anonymous files have no limit of their own, and
/// reserving more than there is would end other processes.
const LOOK_FIRST: usize = 16 << 20;

/// Memory that can be had without swapping, as the kernel estimates it.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? << 10)
}

/// Memory that other processes can map: anonymous, of fixed size, space reserved, zeroed.
///
/// Invariants: (1) `ptr` is valid for `bytes` bytes until drop. (2) Only drop unmaps it. (3) The file cannot shrink, so
/// no access raises SIGBUS. (4) Mapped memory is never the target of a Rust reference other than to atomics, or to
/// parts that a protocol gives to one side alone.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    ptr: NonNull<u8>,
    bytes: usize,
    /// Of memory made here, to be sent to peers. What a peer made needs none, and there may be much of it.
    file: Option<OwnedFd>,
}

// SAFETY: the mapping belongs to the process, not to a thread; (4) rules access.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// New zeroed memory of at least `bytes` bytes, rounded up to pages.
    ///
    /// # Errors
    /// `Resource` when there is not enough memory: space is reserved here, never at first touch.
    pub(crate) fn create(name: &str, bytes: usize) -> Result<SharedMemory> {
        let bytes = pages(bytes);
        let refused = |e: rustix::io::Errno| Error::resource(format!("{bytes} bytes of shared memory ({name})"), e);
        if bytes > LOOK_FIRST && available().is_some_and(|free| bytes as u64 > free) {
            return Err(refused(rustix::io::Errno::NOMEM));
        }
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(refused)?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes as u64).map_err(refused)?;
        rustix::fs::fcntl_add_seals(&file, SIZE_SEALS).map_err(refused)?;
        let mut memory = SharedMemory::map_file(&file, bytes)?;
        memory.file = Some(file);
        Ok(memory)
    }

    /// Maps memory that another process created.
    ///
    /// # Errors
    /// `Resource` when the file is not sealed or not `bytes` long.
    pub(crate) fn map(file: OwnedFd, bytes: usize) -> Result<SharedMemory> {
        let refused = |e: rustix::io::Errno| Error::resource("a peer's shared memory", e);
        let size = rustix::fs::fstat(&file).map_err(refused)?.st_size;
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(refused)?;
        if !seals.contains(SIZE_SEALS) || u64::try_from(size) != Ok(bytes as u64) || bytes == 0 {
            return Err(refused(rustix::io::Errno::INVAL));
        }
        SharedMemory::map_file(&file, bytes)
    }

    fn map_file(file: &OwnedFd, bytes: usize) -> Result<SharedMemory> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let mapped = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags, file, 0)
        };
        let ptr = mapped.map_err(|e| Error::resource(format!("{bytes} bytes of address space"), e))?;
        let ptr = NonNull::new(ptr.cast()).ok_or_else(|| Error::invalid("mmap returned address 0"))?;
        Ok(SharedMemory { ptr, bytes, file: None })
    }

    /// First byte.
    pub(crate) fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The file, to send to a peer; none when a peer made the memory.
    pub(crate) fn file(&self) -> Option<rustix::fd::BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: (1) and (2).
        let unmapped = unsafe { rustix::mm::munmap(self.ptr.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Sleeps until `word` is woken, differs from `expected`, or `timeout` has passed. May return early.
pub(crate) fn sleep_on(word: &AtomicU32, expected: u32, timeout: Duration) {
    let timeout = futex::Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    // Every outcome (woken, changed, interrupted, timed out) sends the caller back to its condition.
    let _ = futex::wait(word, futex::Flags::empty(), expected, Some(&timeout));
}

/// Wakes all who sleep on `word`, in any process.
pub(crate) fn wake_all(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}

/// Gives the rest of the time slice away.
pub(crate) fn yield_now() {
    rustix::thread::sched_yield();
}

/// True in a child forked from a process that had called this before: a page that the kernel wipes on fork says so.
pub(crate) fn forked() -> bool {
    static PAGE: OnceLock<Option<usize>> = OnceLock::new();
    let Some(address) = *PAGE.get_or_init(wiped_on_fork) else { return false };
    // SAFETY: the page is never unmapped and holds an atomic word that was set before its address was published.
    let word = unsafe { &*(address as *const AtomicU32) };
    word.load(Ordering::Relaxed) == 0
}

/// A page holding 1 here and 0 in any forked child; `None` when the kernel has no such pages.
fn wiped_on_fork() -> Option<usize> {
    let bytes = pages(1);
    // SAFETY: a fresh private mapping.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    let page = mapped.ok()?;
    // SAFETY: the mapping above, which nobody else knows.
    unsafe { rustix::mm::madvise(page, bytes, Advice::LinuxWipeOnFork) }.ok()?;
    // SAFETY: the page is mapped, aligned and zeroed, which is a valid atomic.
    let word = unsafe { &*page.cast::<AtomicU32>() };
    word.store(1, Ordering::Relaxed);
    Some(page as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_sealed_and_validated() {
        let memory = SharedMemory::create("test", 5000).unwrap();
        assert_eq!(memory.bytes(), 8192);
        let file = memory.file().unwrap().try_clone_to_owned().unwrap();
        assert!(rustix::fs::ftruncate(&file, 100).is_err(), "a sealed file cannot shrink");
        assert!(SharedMemory::map(file.try_clone().unwrap(), 4096).is_err(), "another size is refused");
        let again = SharedMemory::map(file, 8192).unwrap();
        let (one, other) = (memory.ptr().as_ptr().wrapping_add(8191), again.ptr().as_ptr().wrapping_add(8191));
        // SAFETY: both mappings are valid for 8192 bytes and only this test uses them.
        unsafe { one.write(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { other.read() }, 7);
        let open = rustix::fs::memfd_create("open", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&open, 4096).unwrap();
        assert!(SharedMemory::map(open, 4096).is_err(), "an unsealed file is refused");
    }

    #[test]
    fn too_much_memory_is_an_error() {
        assert!(SharedMemory::create("huge", 1 << 50).is_err());
    }

    #[test]
    fn this_process_is_not_forked() {
        assert!(!forked());
    }
}
