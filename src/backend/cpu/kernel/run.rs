//! The loops over memory: whole cache lines, then one padded line for what is left.
//!
//! An element is read from every source before it is written anywhere, so an output may be one of the sources.

#![expect(unsafe_code, reason = "reads and writes memory that other processes map: raw pointers only, no references")]

use super::arch::Arch;
use super::copy::{Hint, copy_bytes};
use super::fold::Fold;
use super::lane::LINE;
use std::mem::MaybeUninit;

/// Cache lines folded at a time when there are many sources or outputs. With the widest accumulators the scratch is
/// 6 KiB: it stays in the first-level cache beside one block of a source.
pub(super) const BLOCK_LINES: usize = 32;

/// One reduction. Invariants:
/// (1) every source is valid for reads, and every output for writes, of `elements` elements;
/// (2) an output equals a source or does not overlap it; outputs do not overlap each other;
/// (3) there is at least one source.
pub(super) struct Call<'a> {
    pub(super) sources: &'a [*const u8],
    pub(super) outputs: &'a [*mut u8],
    pub(super) elements: usize,
    pub(super) ranks: usize,
    pub(super) hint: Hint,
}

/// Reduces with the operation `K` and the instructions of `A`.
///
/// # Safety
/// The invariants of [`Call`] hold and the processor has `A`.
#[inline(always)]
pub(super) unsafe fn run<K: Fold<A>, A: Arch>(call: &Call<'_>) {
    let bytes = call.elements * K::BYTES;
    let lines = bytes / LINE;
    match (call.sources, call.outputs, call.hint) {
        // SAFETY: invariants (1) and (2); `lines` whole lines lie inside.
        (&[a, b], &[out], Hint::Cached) => unsafe { pair::<K, A, 1, false>([a, b], [out], lines, call.ranks) },
        // SAFETY: as above.
        (&[a, b], &[x, y], Hint::Cached) => unsafe { pair::<K, A, 2, false>([a, b], [x, y], lines, call.ranks) },
        // SAFETY: as above, and the output starts at a line of memory.
        (&[a, b], &[out], Hint::Stream) if at_line(out) => unsafe {
            pair::<K, A, 1, true>([a, b], [out], lines, call.ranks)
        },
        // SAFETY: as above.
        (&[a, b], &[x, y], Hint::Stream) if at_line(x) && at_line(y) => unsafe {
            pair::<K, A, 2, true>([a, b], [x, y], lines, call.ranks)
        },
        // SAFETY: as above.
        _ => unsafe { blocks::<K, A>(call, lines) },
    }
    if bytes > lines * LINE {
        // SAFETY: the rest is shorter than a line and lies inside.
        unsafe { rest::<K, A>(call, lines * LINE, bytes - lines * LINE) };
    }
}

fn at_line(output: *mut u8) -> bool {
    output.addr().is_multiple_of(LINE)
}

/// Two sources in registers, no scratch. With `STREAM` the outputs are multiples of [`LINE`].
#[inline(always)]
unsafe fn pair<K: Fold<A>, A: Arch, const OUTPUTS: usize, const STREAM: bool>(
    sources: [*const u8; 2],
    outputs: [*mut u8; OUTPUTS],
    lines: usize,
    ranks: usize,
) {
    for line in 0..lines {
        // SAFETY: the caller's `lines` lines lie inside the sources.
        let a = unsafe { load::<K, A>(sources[0], line * LINE) };
        // SAFETY: as above.
        let b = unsafe { load::<K, A>(sources[1], line * LINE) };
        let result = K::close(K::fold(K::open(a), K::open(b)), ranks);
        for output in outputs {
            if STREAM {
                let to = output.wrapping_add(line * LINE);
                // SAFETY: a chunk is a line; the caller's `lines` lines lie inside the outputs, which start at lines.
                unsafe { A::stream_line((&raw const result).cast(), to) };
            } else {
                // SAFETY: the caller's `lines` lines lie inside the outputs.
                unsafe { store::<K, A>(output, line * LINE, result) };
            }
        }
    }
}

/// Any number of sources and outputs, one block after the other, folded in scratch memory.
#[inline(always)]
unsafe fn blocks<K: Fold<A>, A: Arch>(call: &Call<'_>, lines: usize) {
    let mut folded = [const { MaybeUninit::<K::Acc>::uninit() }; BLOCK_LINES];
    let mut first = 0;
    while first < lines {
        let count = BLOCK_LINES.min(lines - first);
        let folded = &mut folded[..count];
        // SAFETY: `first + count <= lines`, and the lines lie inside every source.
        unsafe { fold_block::<K, A>(call.sources, first * LINE, folded) };
        match call.hint {
            // SAFETY: `fold_block` has written all of `folded`; the lines lie inside every output.
            Hint::Cached => unsafe { close_block::<K, A>(call, first * LINE, folded) },
            // SAFETY: as above.
            Hint::Stream => unsafe { stream_block::<K, A>(call, first * LINE, folded) },
        }
        first += count;
    }
}

/// Writes the fold of all sources, from `offset` bytes on, to every element of `folded`.
#[inline(always)]
unsafe fn fold_block<K: Fold<A>, A: Arch>(sources: &[*const u8], offset: usize, folded: &mut [MaybeUninit<K::Acc>]) {
    // SAFETY: the caller's lines lie inside every source.
    let open = |source, line: usize| K::open(unsafe { load::<K, A>(source, offset + line * LINE) });
    let rest = match *sources {
        [] => return,
        [only] => {
            for (line, acc) in folded.iter_mut().enumerate() {
                acc.write(open(only, line));
            }
            return;
        }
        [a, b, ref rest @ ..] => {
            for (line, acc) in folded.iter_mut().enumerate() {
                acc.write(K::fold(open(a, line), open(b, line)));
            }
            rest
        }
    };
    for &source in rest {
        for (line, acc) in folded.iter_mut().enumerate() {
            // SAFETY: written by the loop over the first two.
            let earlier = unsafe { acc.assume_init() };
            acc.write(K::fold(earlier, open(source, line)));
        }
    }
}

/// Writes the results of a block, all of whose `folded` is initialised, to `offset` of every output.
#[inline(always)]
unsafe fn close_block<K: Fold<A>, A: Arch>(call: &Call<'_>, offset: usize, folded: &[MaybeUninit<K::Acc>]) {
    for (line, acc) in folded.iter().enumerate() {
        // SAFETY: the caller's.
        let result = K::close(unsafe { acc.assume_init() }, call.ranks);
        for &output in call.outputs {
            // SAFETY: the caller's lines lie inside every output.
            unsafe { store::<K, A>(output, offset + line * LINE, result) };
        }
    }
}

/// As [`close_block`], around the cache: lines of an output need not be lines of memory, so they take a detour.
#[inline(always)]
unsafe fn stream_block<K: Fold<A>, A: Arch>(call: &Call<'_>, offset: usize, folded: &[MaybeUninit<K::Acc>]) {
    let mut results = [const { MaybeUninit::<K::Chunk>::uninit() }; BLOCK_LINES];
    for (result, acc) in results.iter_mut().zip(folded) {
        // SAFETY: the caller's.
        result.write(K::close(unsafe { acc.assume_init() }, call.ranks));
    }
    for output in call.outputs {
        let (from, to) = (results.as_ptr().cast(), output.wrapping_add(offset));
        // SAFETY: the caller's lines lie inside the output; as many results were written above.
        unsafe { copy_bytes::<A>(from, to, folded.len() * LINE, Hint::Stream) };
    }
}

/// The last `bytes < LINE` bytes, in lines padded with zeros.
#[inline(always)]
unsafe fn rest<K: Fold<A>, A: Arch>(call: &Call<'_>, offset: usize, bytes: usize) {
    let mut folded = None;
    for &source in call.sources {
        let mut chunk = K::ZERO;
        let source = source.wrapping_add(offset);
        // SAFETY: the caller's `bytes` lie inside the source; `chunk` is a private line.
        unsafe { std::ptr::copy_nonoverlapping(source, (&raw mut chunk).cast::<u8>(), bytes) };
        let opened = K::open(chunk);
        folded = Some(match folded {
            None => opened,
            Some(earlier) => K::fold(earlier, opened),
        });
    }
    let Some(folded) = folded else { return };
    let result = K::close(folded, call.ranks);
    for output in call.outputs {
        let output = output.wrapping_add(offset);
        // SAFETY: the caller's `bytes` lie inside the output; `result` is a private line.
        unsafe { std::ptr::copy_nonoverlapping((&raw const result).cast::<u8>(), output, bytes) };
    }
}

#[inline(always)]
unsafe fn load<K: Fold<A>, A>(source: *const u8, offset: usize) -> K::Chunk {
    // SAFETY: the caller has checked that a line lies at `offset`; every bit pattern is a `Chunk`.
    unsafe { source.wrapping_add(offset).cast::<K::Chunk>().read_unaligned() }
}

#[inline(always)]
unsafe fn store<K: Fold<A>, A>(output: *mut u8, offset: usize, chunk: K::Chunk) {
    // SAFETY: the caller has checked that a line lies at `offset`.
    unsafe { output.wrapping_add(offset).cast::<K::Chunk>().write_unaligned(chunk) };
}
