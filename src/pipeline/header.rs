//! What goes ahead of every message, and is compared on arrival.
//!
//! ```text
//! word  0      1     2     3               4      5                  6      7   8 .. 15  16 .. 23  24 .. 47
//!       magic  plan  step  edge|direction  unit   dtype|rank|flags   bytes  0   lengths  bound     a small payload
//! ```
//!
//! A payload of up to [`INLINE`] bytes travels inside, a larger one as a message of its own behind.

use super::shape::{Bound, Dims, MOST_DIMS};
use crate::element::DType;
use crate::error::{Error, ErrorKind};
use hccl_plan::{Channel, Direction, Message};
use std::fmt;

/// Words of a header: what the CPU engine hands over without a second look at the sender's memory.
pub(super) const WORDS: usize = 48;
/// Bytes of a payload that fit into the header.
pub(super) const INLINE: usize = (WORDS - FIRST_INLINE) * 8;
const FIRST_INLINE: usize = 24;
const MAGIC: u64 = 0x6863_636c_7069_7065;

/// Why a unit travels: bits of a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags {
    /// The slot holds no sequence: there is no payload, and no stage works on it.
    pub(super) idle: bool,
    /// The unit is the first of its sequence.
    pub(super) starts: bool,
    /// The last stage decided that the sequence ends here.
    pub(super) stops: bool,
}

/// One message, but for its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) plan: u64,
    pub(super) step: u64,
    pub(super) message: Message,
    pub(super) dtype: DType,
    pub(super) dims: Dims,
    pub(super) bytes: u64,
    pub(super) bound: Bound,
    pub(super) flags: Flags,
}

impl Header {
    /// True when the payload is a message of its own.
    pub(super) fn is_followed(&self) -> bool {
        self.bytes > INLINE as u64
    }

    pub(super) fn encode(&self, words: &mut [u64; WORDS]) {
        let Message { channel, microbatch } = self.message;
        words[0] = MAGIC;
        words[1] = self.plan;
        words[2] = self.step;
        words[3] = (channel.edge as u64) << 1 | u64::from(channel.direction == Direction::Backward);
        words[4] = microbatch as u64;
        let flags = u64::from(self.flags.idle) | u64::from(self.flags.starts) << 1 | u64::from(self.flags.stops) << 2;
        let lengths = self.dims.as_slice();
        words[5] = self.dtype as u64 | (lengths.len() as u64) << 8 | flags << 16;
        words[6] = self.bytes;
        words[7] = 0;
        words[8..16].fill(0);
        words[8..].iter_mut().zip(lengths).for_each(|(word, &len)| *word = len as u64);
        words[16..24].copy_from_slice(&self.bound.0);
    }

    /// `None` for words that no pipeline of this version wrote.
    pub(super) fn decode(words: &[u64; WORDS]) -> Option<Header> {
        let rank = usize::from((words[5] >> 8) as u8);
        let mut lengths = [0; MOST_DIMS];
        for (length, &word) in lengths.iter_mut().zip(&words[8..16]) {
            *length = usize::try_from(word).ok()?;
        }
        let direction = if words[3] & 1 == 0 { Direction::Forward } else { Direction::Backward };
        let channel = Channel { edge: usize::try_from(words[3] >> 1).ok()?, direction };
        let message = Message { channel, microbatch: usize::try_from(words[4]).ok()? };
        let flag = |bit: u32| words[5] >> (16 + bit) & 1 == 1;
        let mut bound = Bound::NOTHING;
        bound.0.copy_from_slice(&words[16..24]);
        (words[0] == MAGIC).then_some(())?;
        Some(Header {
            plan: words[1],
            step: words[2],
            message,
            dtype: DType::from_code(words[5] as u8)?,
            dims: Dims::new(lengths.get(..rank)?).ok()?,
            bytes: words[6],
            bound,
            flags: Flags { idle: flag(0), starts: flag(1), stops: flag(2) },
        })
    }

    /// Whether this is the message that `expected` names: plan, step, edge, direction, microbatch and dtype, and a
    /// payload as long as its dimensions say. The shape is the receiving lane's business.
    pub(super) fn is(&self, expected: &Header) -> bool {
        let elements = if self.flags.idle { Some(0) } else { self.dims.elements() };
        let bytes = elements.and_then(|elements| (elements as u64).checked_mul(self.dtype.size() as u64));
        (self.plan, self.step, self.message, self.dtype)
            == (expected.plan, expected.step, expected.message, expected.dtype)
            && bytes == Some(self.bytes)
    }
}

/// The payload inside a header.
pub(super) fn inline(words: &[u64; WORDS]) -> &[u8] {
    super::bytes::of(&words[FIRST_INLINE..])
}

/// The place of the payload inside a header.
pub(super) fn inline_mut(words: &mut [u64; WORDS]) -> &mut [u8] {
    super::bytes::of_mut(&mut words[FIRST_INLINE..])
}

/// A message that is not the expected one.
#[cold]
pub(super) fn mismatch(peer: usize, got: Option<&Header>, expected: &Header) -> Error {
    let theirs = got.map_or("a message of no pipeline".to_owned(), |header| format!("send({header})"));
    let kind = ErrorKind::Mismatch { peer, ours: format!("recv({})", Expected(expected)), theirs };
    Error::new(kind).hint(
        "every rank must run the same steps of the same pipeline, and nobody else may use the ranks' messages meanwhile",
    )
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {:?}, {} bytes", Expected(self), self.dims, self.bytes)
    }
}

/// A header of which only the receiver's expectations are filled in.
struct Expected<'a>(&'a Header);

impl fmt::Display for Expected<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Header { plan, step, message, dtype, .. } = self.0;
        write!(f, "{message} in step {step} of plan {:06x}, {dtype}", plan & 0xff_ffff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let channel = Channel { edge: 3, direction: Direction::Backward };
        Header {
            plan: 0x1234_5678_9abc,
            step: 9,
            message: Message { channel, microbatch: 5 },
            dtype: DType::BF16,
            dims: Dims::new(&[2, 3]).unwrap(),
            bytes: 12,
            bound: Bound([1, 2, 3, 4, 5, 6, 7, u64::MAX]),
            flags: Flags { idle: false, starts: true, stops: true },
        }
    }

    #[test]
    fn headers_survive_the_wire() {
        let mut words = [7; WORDS];
        header().encode(&mut words);
        assert_eq!(Header::decode(&words), Some(header()));
        words[0] += 1;
        assert_eq!(Header::decode(&words), None);
    }

    #[test]
    fn every_difference_is_a_mismatch() {
        let expected = header();
        assert!(header().is(&expected));
        let mut wrong = [header(); 7];
        wrong[0].plan += 1;
        wrong[1].step += 1;
        wrong[2].message.channel.edge += 1;
        wrong[3].message.channel.direction = Direction::Forward;
        wrong[4].message.microbatch += 1;
        wrong[5].dtype = DType::F16;
        wrong[6].bytes += 2;
        for wrong in wrong {
            assert!(!wrong.is(&expected), "{wrong}");
        }
    }

    #[test]
    fn a_mismatch_names_both_sides() {
        let mut theirs = header();
        theirs.message.microbatch = 6;
        let text = mismatch(2, Some(&theirs), &header()).to_string();
        assert!(text.contains("rank 2 called send(the gradient of microbatch 6 over edge 3 in step 9"), "{text}");
        assert!(text.contains("this rank called recv(the gradient of microbatch 5 over edge 3"), "{text}");
    }
}
