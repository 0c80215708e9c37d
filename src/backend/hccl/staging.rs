//! Host memory of a call on its way to the device and back.
//!
//! The parts of host memory that a call names are laid out one after the other in a buffer of the lane, those that are
//! read first. The worker copies that buffer to a block of the device and what was written back; the lane alone touches
//! the caller's memory. Parts that overlap, as in place, are one part.
#![expect(unsafe_code, reason = "copies the caller's memory")]

use crate::backend::{Call, Home, Memory, Message};
use std::ops::Range;

/// Parts start at multiples of this.
const ALIGN: usize = 512;

/// How the host memory of one call is laid out.
#[derive(Debug, Default)]
pub(super) struct Staging {
    parts: Vec<Part>,
    /// Bytes of the part of the layout that is copied to the device.
    pub(super) up: usize,
    /// Bytes of the layout.
    pub(super) total: usize,
}

/// A run of host memory, `from..to` as addresses.
#[derive(Clone, Copy, Debug)]
struct Part {
    from: usize,
    to: usize,
    read: bool,
    written: Option<(usize, usize)>,
    offset: usize,
}

impl Staging {
    /// Lays out the host memory that `call` names, and makes the call name places in the layout instead: a [`Memory`]
    /// whose home is [`Home::Private`] then has an offset for its address.
    pub(super) fn plan(call: &mut Call) -> Staging {
        let mut staging = Staging::default();
        staging.add(&call.send, false);
        staging.add(&call.recv, true);
        for message in &call.messages {
            staging.add(&message.memory, !message.sends);
        }
        staging.place();
        call.send = staging.moved(&call.send);
        call.recv = staging.moved(&call.recv);
        let moved = |message: &Message| Message { memory: staging.moved(&message.memory), ..*message };
        call.messages = call.messages.iter().map(moved).collect();
        staging
    }

    fn add(&mut self, memory: &Memory, written: bool) {
        if memory.home != Home::Private || memory.bytes == 0 {
            return;
        }
        let (from, to) = (memory.ptr as usize, memory.ptr as usize + memory.bytes);
        let written = written.then_some((from, to));
        match self.parts.iter_mut().find(|part| part.from < to && from < part.to) {
            // In place: one of the two holds the other, and the whole is read.
            Some(part) => {
                *part = Part {
                    from: part.from.min(from),
                    to: part.to.max(to),
                    read: part.read || written.is_none(),
                    written: part.written.or(written),
                    offset: 0,
                }
            }
            None => self.parts.push(Part { from, to, read: written.is_none(), written, offset: 0 }),
        }
    }

    fn place(&mut self) {
        self.parts.sort_by_key(|part| !part.read);
        for part in &mut self.parts {
            part.offset = self.total.next_multiple_of(ALIGN);
            self.total = part.offset + (part.to - part.from);
            if part.read {
                self.up = self.total;
            }
        }
    }

    fn moved(&self, memory: &Memory) -> Memory {
        let from = memory.ptr as usize;
        let inside = |part: &&Part| part.from <= from && from + memory.bytes <= part.to;
        match self.parts.iter().find(inside).filter(|_| memory.home == Home::Private && memory.bytes > 0) {
            Some(part) => Memory { ptr: (part.offset + (from - part.from)) as *mut u8, ..*memory },
            None => *memory,
        }
    }

    /// Copies what is read into `buffer`, which gets the length of the layout.
    ///
    /// # Safety
    /// The memory that the planned call named is readable.
    pub(super) unsafe fn fill(&self, buffer: &mut Vec<u8>) {
        buffer.resize(self.total.max(buffer.len()), 0);
        for part in self.parts.iter().filter(|part| part.read) {
            let (from, bytes) = (part.from as *const u8, part.to - part.from);
            // SAFETY: the caller's; and `place` made room.
            unsafe { std::ptr::copy_nonoverlapping(from, buffer[part.offset..][..bytes].as_mut_ptr(), bytes) }
        }
    }

    /// The places in the layout that are copied back.
    pub(super) fn down(&self) -> Vec<Range<usize>> {
        self.written().map(|(_, range)| range).collect()
    }

    /// Copies what was written out of `buffer`.
    ///
    /// # Safety
    /// The memory that the planned call named is writable and touched by nobody else.
    pub(super) unsafe fn drain(&self, buffer: &[u8]) {
        for (to, range) in self.written() {
            let (bytes, from) = (range.len(), &buffer[range]);
            // SAFETY: the caller's.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, bytes) }
        }
    }

    fn written(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        self.parts.iter().filter_map(|part| {
            let (from, to) = part.written?;
            let start = part.offset + (from - part.from);
            Some((from, start..start + (to - from)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Kind;
    use crate::element::DType;

    fn memory(bytes: &mut [u8]) -> Memory {
        Memory { ptr: bytes.as_mut_ptr(), bytes: bytes.len(), home: Home::Private }
    }

    fn round(call: &mut Call, change: impl Fn(&Call, &mut [u8])) {
        let staging = Staging::plan(call);
        let mut buffer = Vec::new();
        // SAFETY: the tests lend whole arrays.
        unsafe { staging.fill(&mut buffer) };
        change(call, &mut buffer);
        // SAFETY: as above.
        unsafe { staging.drain(&buffer) };
    }

    #[test]
    fn memory_in_place_is_one_part_and_only_what_is_written_comes_back() {
        let mut all = [0, 1, 2, 3, 4, 5, 6, 7];
        let mut call = Call::new(Kind::ReduceScatter, DType::U8);
        call.send = memory(&mut all);
        call.recv = memory(&mut all[4..6]);
        round(&mut call, |call, buffer| {
            assert_eq!(call.recv.ptr as usize, call.send.ptr as usize + 4);
            assert_eq!(buffer, [0, 1, 2, 3, 4, 5, 6, 7]);
            buffer.fill(9);
        });
        assert_eq!(all, [0, 1, 2, 3, 9, 9, 6, 7]);
    }

    #[test]
    fn parts_that_are_only_written_are_not_copied_to_the_device() {
        let (mut send, mut recv) = ([1, 2, 3], [7; 9]);
        let mut call = Call::new(Kind::AllGather, DType::U8);
        call.send = memory(&mut send);
        call.recv = memory(&mut recv);
        let staging = Staging::plan(&mut call);
        assert_eq!((staging.up, staging.total), (3, ALIGN + 9));
        let down = staging.down();
        assert_eq!((down.len(), &down[0]), (1, &(ALIGN..ALIGN + 9)));
    }

    #[test]
    fn memory_of_the_device_and_no_memory_stay_as_they_are() {
        let mut call = Call::new(Kind::AllReduce, DType::F32);
        call.send = Memory { ptr: 4096 as *mut u8, bytes: 64, home: Home::Npu { device: 1 } };
        let staging = Staging::plan(&mut call);
        assert_eq!((call.send.ptr as usize, call.recv.bytes, staging.total), (4096, 0, 0));
    }

    #[test]
    fn messages_have_a_part_each() {
        let (mut a, mut b) = ([1, 2], [3, 4]);
        let mut call = Call::new(Kind::BatchSendRecv, DType::U8);
        let of = |sends, memory| Message { sends, peer: 1, dtype: DType::U8, count: 2, memory };
        call.messages = Box::new([of(false, memory(&mut a)), of(true, memory(&mut b))]);
        round(&mut call, |call, buffer| {
            let places = call.messages.iter().map(|message| message.memory.ptr as usize).collect::<Vec<_>>();
            assert_eq!(&buffer[places[1]..][..2], [3, 4]);
            buffer[places[0]..][..2].copy_from_slice(&[8, 9]);
        });
        assert_eq!((a, b), ([8, 9], [3, 4]));
    }
}
