//! Copies, through the cache or around it.

#![expect(unsafe_code, reason = "copies memory that other processes map: raw pointers only, no references")]

use super::arch::Arch;
use super::lane::LINE;

/// Where written bytes should end up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hint {
    /// In the cache: they are read again soon, or they were read just now.
    Cached,
    /// In memory, around the cache: a result larger than the cache whose old contents nobody has read. Saves reading
    /// the old contents from memory. Where the processor has no such stores this is `Cached`.
    Stream,
}

/// Copies `bytes` bytes; nothing if both are the same address. After `Stream` lines call [`fence`] before publishing.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `bytes` bytes; they are equal or do not overlap; the processor has
/// `A`.
#[inline(always)]
pub(super) unsafe fn copy_bytes<A: Arch>(src: *const u8, dst: *mut u8, bytes: usize, hint: Hint) {
    if std::ptr::eq(src, dst) {
        return;
    }
    let head = match hint {
        Hint::Cached => bytes,
        Hint::Stream => dst.align_offset(LINE).min(bytes),
    };
    let lines = (bytes - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: `head <= bytes`.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, head) };
    for line in 0..lines {
        let at = head + line * LINE;
        // SAFETY: `at + LINE <= tail <= bytes`, and `dst + at` is a multiple of LINE.
        unsafe { A::stream_line(src.wrapping_add(at), dst.wrapping_add(at)) };
    }
    // SAFETY: `tail <= bytes`.
    unsafe { std::ptr::copy_nonoverlapping(src.wrapping_add(tail), dst.wrapping_add(tail), bytes - tail) };
}

/// Orders streamed stores before every later store of this thread, which ordinary release stores do not.
#[inline(always)]
pub(super) fn fence(hint: Hint) {
    #[cfg(target_arch = "x86_64")]
    if hint == Hint::Stream {
        // SAFETY: SSE is part of x86-64.
        unsafe { std::arch::x86_64::_mm_sfence() };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = hint;
}
