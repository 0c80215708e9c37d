//! The control segment of a group: everything its ranks say to each other, in one piece of shared memory.
//!
//! ```text
//! header        magic, layout, size, id │ failed │ sleepers
//! cell[rank]    arrive │ visiting │ life │ bell, sleeping │ blocked │ cause │ place
//! slot[rank][2] stamp, fingerprint, addresses or 96 bytes of data │ data up to INLINE bytes │ table of a V call
//! mail[from][to] sender: posted, what, data │ receiver: posted, what, done
//! ```
//!
//! All words are atomics; data areas are written by their owner before it publishes a number beside them, and read by
//! others after they have seen it. What is read from here is checked before it is used as an address or a length.
#![expect(unsafe_code, reason = "lays structures over shared memory")]

use crate::error::{Error, ErrorKind, Result};
use crate::sys::SharedMemory;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Changes with every change of the layout: ranks built from different versions refuse each other.
pub(crate) const LAYOUT: u32 = 3;
/// Most ranks of one group on one host.
pub(crate) const MAX_RANKS: usize = 256;
/// Bytes of data that travel inside a slot.
pub(crate) const INLINE: usize = 8192;
/// Bytes of data that travel inside a mailbox.
pub(crate) const MAIL_INLINE: usize = 384;
/// Most ranks that an error's list names.
pub(crate) const CAUSE_RANKS: usize = 24;

const MAGIC: u64 = 0x6863_636c_2d73_6567;

/// Facts of the group, written once by its leader before anyone else sees the segment.
#[repr(C, align(128))]
pub(crate) struct Header {
    magic: AtomicU64,
    layout: AtomicU32,
    size: AtomicU32,
    /// The group's id.
    pub(crate) id: AtomicU64,
    /// Bytes of one half of a staging block.
    pub(crate) stage: AtomicU64,
    /// 1 when waiting ranks may spin: there is a core for each.
    pub(crate) spin: AtomicU32,
    /// 0, or who failed the group: see `failure`.
    pub(crate) failed: Line<AtomicU32>,
    /// How many ranks sleep, or are about to.
    pub(crate) sleepers: Line<AtomicU32>,
}

/// A value on cache lines of its own.
#[repr(C, align(128))]
#[derive(Default)]
pub(crate) struct Line<T>(pub(crate) T);

/// What a rank says about itself.
#[repr(C)]
pub(crate) struct Cell {
    /// Counts the points at which this rank met the others.
    pub(crate) arrive: Line<AtomicU64>,
    /// 1 while this rank reads or writes memory of another.
    pub(crate) visiting: Line<AtomicU32>,
    /// Whether it lives.
    pub(crate) life: Line<Life>,
    /// Rung to wake it.
    pub(crate) bell: Line<Bell>,
    /// What it waits for.
    pub(crate) blocked: Line<Blocked>,
    /// Why it failed the group, if it did.
    pub(crate) cause: Line<Cause>,
    /// Collectives that another engine, for which this group is the control channel, has finished on this rank.
    #[cfg_attr(not(all(target_os = "linux", not(hccl_portable))), allow(dead_code, reason = "of the HCCL backend"))]
    pub(crate) place: Line<AtomicU64>,
}

/// Membership, and the word that the kernel marks when the process dies.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Life {
    /// Link of the keeper thread's robust list; belongs to the rank's own process.
    pub(crate) next: AtomicUsize,
    /// Thread id of the keeper; the kernel sets `OWNER_DIED`. 0 when the rank is a thread.
    pub(crate) word: AtomicU32,
    /// See [`Status`].
    pub(crate) status: AtomicU32,
    /// The process.
    pub(crate) pid: AtomicU32,
    /// Tells processes of the same pid apart.
    pub(crate) nonce: AtomicU64,
}

/// Values of `Life::status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Status {
    Absent = 0,
    Active = 1,
    Left = 2,
    Panicked = 3,
}

/// What a rank sleeps on.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Bell {
    pub(crate) word: AtomicU32,
    pub(crate) sleeping: AtomicU32,
}

/// What a rank waits for, published when it has waited long: `version` is odd while the rest is true.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Blocked {
    pub(crate) version: AtomicU64,
    pub(crate) on: AtomicU32,
    pub(crate) peer: AtomicU32,
    pub(crate) target: AtomicU64,
}

/// The cause that a rank gave for failing the group; complete before `Header::failed` names the rank.
#[repr(C)]
pub(crate) struct Cause {
    pub(crate) code: AtomicU32,
    pub(crate) value: AtomicU64,
    pub(crate) count: AtomicU32,
    pub(crate) ranks: [AtomicU16; CAUSE_RANKS],
}

/// One rank's part of one collective. Slots alternate: the n-th collective uses slot n mod 2, which is free again
/// because every rank waits for every other rank's slot of the call between.
#[repr(C, align(128))]
pub(crate) struct Slot {
    /// Number of the collective; stored last.
    pub(crate) stamp: AtomicU64,
    /// Kind, dtype, operation, root.
    pub(crate) call: AtomicU64,
    /// Elements.
    pub(crate) count: AtomicU64,
    /// Where the memory is.
    pub(crate) place: AtomicU64,
    /// The data when it is at most 96 bytes, else addresses.
    pub(crate) small: [AtomicU64; 12],
}

/// The sender's side of a mailbox.
#[repr(C, align(128))]
pub(crate) struct Outbox {
    /// Number of the last message offered; stored after the rest.
    pub(crate) posted: AtomicU64,
    /// Number of the last message that the sender's running call offers before it ends.
    pub(crate) planned: AtomicU64,
    /// dtype, and how the data travels.
    pub(crate) what: AtomicU64,
    /// Elements.
    pub(crate) count: AtomicU64,
    /// Address or offset of the data.
    pub(crate) place: AtomicU64,
    /// Chunks that the sender has put into the bounce block; 1 when it has written its half of a shared copy.
    pub(crate) filled: AtomicU64,
    padding: [AtomicU64; 10],
    /// Data of short messages.
    pub(crate) inline: [AtomicU8; MAIL_INLINE],
}

/// The receiver's side of a mailbox.
#[repr(C, align(128))]
pub(crate) struct Inbox {
    /// Number of the last message asked for; stored after the rest.
    pub(crate) posted: AtomicU64,
    /// Number of the last message that the receiver's running call asks for before it ends.
    pub(crate) planned: AtomicU64,
    /// dtype, and where the memory asked for is, if the sender reaches it.
    pub(crate) what: AtomicU64,
    /// Elements.
    pub(crate) count: AtomicU64,
    /// Address or offset of the memory asked for.
    pub(crate) place: AtomicU64,
    /// Number of the last message received whole.
    pub(crate) done: AtomicU64,
    /// Chunks that the receiver has taken out of the bounce block.
    pub(crate) taken: AtomicU64,
}

/// One direction between two ranks.
#[repr(C)]
pub(crate) struct Mail {
    pub(crate) outbox: Outbox,
    pub(crate) inbox: Inbox,
}

/// Invariants: (1) `memory` holds `Layout::of(size).bytes` bytes laid out as above. (2) All structures are atomics, valid
/// for any bytes. (3) `size` is at most `MAX_RANKS` and equals the header's.
pub(crate) struct Segment {
    memory: SharedMemory,
    size: usize,
    layout: Layout,
}

/// Offsets of the parts for a group of one size.
#[derive(Clone, Copy)]
struct Layout {
    cells: usize,
    slots: usize,
    slot_bytes: usize,
    mails: usize,
    bytes: usize,
}

impl Layout {
    fn of(size: usize) -> Layout {
        let cells = size_of::<Header>();
        let slots = cells + size * size_of::<Cell>();
        let slot_bytes = (size_of::<Slot>() + INLINE + size * size_of::<TableRow>()).next_multiple_of(128);
        let mails = slots + 2 * size * slot_bytes;
        Layout { cells, slots, slot_bytes, mails, bytes: mails + size * size * size_of::<Mail>() }
    }
}

/// What a V call says about one peer: elements sent to it, where they start, elements expected from it.
#[repr(C)]
pub(crate) struct TableRow {
    pub(crate) send_start: AtomicU64,
    pub(crate) send_count: AtomicU64,
    pub(crate) recv_count: AtomicU64,
}

impl Segment {
    /// A new segment for `size` ranks; `id` names the group.
    ///
    /// # Errors
    /// `InvalidArgument` for 0 or too many ranks, `Resource` without memory.
    pub(crate) fn create(size: usize, id: u64, stage: usize, spin: bool) -> Result<Segment> {
        if size == 0 || size > MAX_RANKS {
            return Err(Error::invalid(format!("a group has 1 to {MAX_RANKS} ranks on one host, not {size}")));
        }
        let layout = Layout::of(size);
        let segment = Segment { memory: SharedMemory::create("hccl-group", layout.bytes)?, size, layout };
        let header = segment.header();
        header.layout.store(LAYOUT, Ordering::Relaxed);
        header.size.store(size as u32, Ordering::Relaxed);
        header.id.store(id, Ordering::Relaxed);
        header.stage.store(stage as u64, Ordering::Relaxed);
        header.spin.store(u32::from(spin), Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(segment)
    }

    /// Bytes of the shared memory of a group of `size` ranks.
    #[cfg(any(test, all(target_os = "linux", not(hccl_portable))))]
    pub(crate) fn bytes_for(size: usize) -> usize {
        crate::sys::pages(Layout::of(size).bytes)
    }

    /// The segment inside memory that another process made, checked.
    #[cfg(any(test, all(target_os = "linux", not(hccl_portable))))]
    pub(crate) fn adopt(memory: SharedMemory, size: usize) -> Result<Segment> {
        let refused = |problem: String| Err(Error::new(ErrorKind::Rendezvous { problem }));
        let layout = Layout::of(size);
        if size == 0 || size > MAX_RANKS || memory.bytes() < layout.bytes {
            return refused(format!("the control segment does not fit a group of {size}"));
        }
        let segment = Segment { memory, size, layout };
        let header = segment.header();
        let (magic, version) = (header.magic.load(Ordering::Acquire), header.layout.load(Ordering::Relaxed));
        if magic != MAGIC || version != LAYOUT || header.size.load(Ordering::Relaxed) as usize != size {
            return refused(format!("the control segment is of layout {version}, this rank has layout {LAYOUT}"));
        }
        Ok(segment)
    }

    /// Ranks of the group.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The memory, to send to a peer.
    #[cfg(any(test, all(target_os = "linux", not(hccl_portable))))]
    pub(crate) fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// # Safety
    /// `T` is made of atomics and lies at `offset` inside the layout, aligned.
    unsafe fn at<T>(&self, offset: usize) -> &T {
        debug_assert!(offset + size_of::<T>() <= self.layout.bytes && offset.is_multiple_of(align_of::<T>()));
        // SAFETY: inside the memory by the caller's promise and (1).
        let ptr = unsafe { self.memory.ptr().add(offset) };
        // SAFETY: aligned by the caller's promise, valid by (2), alive as long as `self`.
        unsafe { ptr.cast().as_ref() }
    }

    /// The header.
    pub(crate) fn header(&self) -> &Header {
        // SAFETY: the header is first.
        unsafe { self.at(0) }
    }

    /// What `rank` says about itself.
    ///
    /// # Panics
    /// When `rank` is outside the group, as the other accessors do.
    pub(crate) fn cell(&self, rank: usize) -> &Cell {
        assert!(rank < self.size);
        // SAFETY: one of `size` cells.
        unsafe { self.at(self.layout.cells + rank * size_of::<Cell>()) }
    }

    fn slot_offset(&self, rank: usize, number: u64) -> usize {
        assert!(rank < self.size);
        self.layout.slots + (2 * rank + (number % 2) as usize) * self.layout.slot_bytes
    }

    /// The slot of `rank` for collective `number`.
    pub(crate) fn slot(&self, rank: usize, number: u64) -> &Slot {
        // SAFETY: one of `2 * size` slots.
        unsafe { self.at(self.slot_offset(rank, number)) }
    }

    /// First byte of the data of a slot: the 96 bytes beside the stamp, or the area when there are more.
    pub(crate) fn slot_data(&self, rank: usize, number: u64, bytes: usize) -> *mut u8 {
        assert!(bytes <= INLINE);
        let slot = self.slot(rank, number);
        if bytes <= size_of_val(&slot.small) {
            return slot.small.as_ptr().cast_mut().cast();
        }
        let offset = self.slot_offset(rank, number) + size_of::<Slot>();
        // SAFETY: the area of `INLINE` bytes behind a slot lies inside the memory.
        unsafe { self.memory.ptr().as_ptr().add(offset) }
    }

    /// What `rank` says about `peer` in the table of V call `number`.
    pub(crate) fn row(&self, rank: usize, number: u64, peer: usize) -> &TableRow {
        assert!(peer < self.size);
        let table = self.slot_offset(rank, number) + size_of::<Slot>() + INLINE;
        // SAFETY: one of `size` rows behind the area.
        unsafe { self.at(table + peer * size_of::<TableRow>()) }
    }

    /// The mailbox from one rank to another.
    pub(crate) fn mail(&self, from: usize, to: usize) -> &Mail {
        assert!(from < self.size && to < self.size);
        // SAFETY: one of `size * size` mailboxes.
        unsafe { self.at(self.layout.mails + (from * self.size + to) * size_of::<Mail>()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap() {
        let segment = Segment::create(3, 7, 4096, true).unwrap();
        let mut parts: Vec<(usize, usize)> = vec![(segment.header() as *const _ as usize, size_of::<Header>())];
        for rank in 0..3 {
            parts.push((segment.cell(rank) as *const _ as usize, size_of::<Cell>()));
            for number in 0..2 {
                parts.push((segment.slot(rank, number) as *const _ as usize, size_of::<Slot>()));
                parts.push((segment.slot_data(rank, number, INLINE) as usize, INLINE));
                for peer in 0..3 {
                    parts.push((segment.row(rank, number, peer) as *const _ as usize, size_of::<TableRow>()));
                }
            }
            for to in 0..3 {
                parts.push((segment.mail(rank, to) as *const _ as usize, size_of::<Mail>()));
            }
        }
        parts.sort_unstable();
        assert!(parts.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
        let (last, bytes) = parts[parts.len() - 1];
        assert!(last + bytes <= segment.memory().ptr().as_ptr() as usize + segment.memory().bytes());
    }

    #[test]
    fn wrong_sizes_are_refused() {
        assert!(Segment::create(0, 0, 4096, true).is_err());
        assert!(Segment::create(MAX_RANKS + 1, 0, 4096, true).is_err());
        let other = SharedMemory::create("other", Segment::bytes_for(2)).unwrap();
        assert!(Segment::adopt(other, 2).is_err(), "no magic");
    }
}
