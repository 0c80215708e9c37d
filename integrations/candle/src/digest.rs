//! A 64-bit digest that every rank computes alike: of names and shapes, and of values.
//!
//! Not against malice: it finds ranks that differ by accident, and bits that flipped. Each word is mixed in by
//! `state = rotate(state, 29) ^ word, times an odd constant`, and the end runs through the SplitMix64 finaliser.

use crate::error::Result;
use crate::storage::{self, Elem, Visit};
use candle_core::Tensor;

/// A running digest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Digest(u64);

impl Digest {
    pub(crate) const fn new() -> Self {
        Digest(0x9e37_79b9_7f4a_7c15)
    }

    /// Mixes in one word.
    pub(crate) fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(29) ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93);
    }

    /// Mixes in a text and its length.
    pub(crate) fn text(&mut self, text: &str) {
        self.word(text.len() as u64);
        for chunk in text.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
    }

    /// Mixes in a tensor's values, bit by bit, in row-major order.
    pub(crate) fn tensor(&mut self, tensor: &Tensor) -> Result<()> {
        *self = storage::read("checksum", tensor, Values(*self))?;
        Ok(())
    }

    /// The digest of everything so far.
    pub(crate) fn finish(self) -> u64 {
        mix(self.0)
    }
}

/// The SplitMix64 finaliser.
pub(crate) const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

struct Values(Digest);

impl Visit for Values {
    type Out = Digest;

    fn visit<T: Elem>(self, values: &[T]) -> Result<Digest> {
        // Four lanes: one would wait for its own multiplication at every element.
        let mut lanes = [self.0; 4];
        lanes[0].word(values.len() as u64);
        let chunks = values.chunks_exact(4);
        let tail = chunks.remainder();
        for chunk in chunks {
            for (lane, value) in lanes.iter_mut().zip(chunk) {
                lane.word(value.bits());
            }
        }
        let mut digest = self.0;
        lanes.iter().for_each(|lane| digest.word(lane.0));
        tail.iter().for_each(|value| digest.word(value.bits()));
        Ok(digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn of(values: &[f32]) -> u64 {
        let mut digest = Digest::new();
        digest.tensor(&Tensor::new(values, &Device::Cpu).unwrap()).unwrap();
        digest.finish()
    }

    #[test]
    fn every_bit_of_every_place_counts() {
        let values: Vec<f32> = (0..11).map(|i| i as f32 + 0.5).collect();
        let whole = of(&values);
        for place in 0..values.len() {
            for bit in 0..32 {
                let mut changed = values.clone();
                changed[place] = f32::from_bits(changed[place].to_bits() ^ (1 << bit));
                assert_ne!(of(&changed), whole, "bit {bit} of element {place}");
            }
        }
    }

    #[test]
    fn length_and_order_count() {
        assert_ne!(of(&[0.0; 8]), of(&[0.0; 12]));
        assert_ne!(of(&[1.0, 2.0, 3.0, 4.0]), of(&[2.0, 1.0, 3.0, 4.0]));
        assert_ne!(of(&[0.0]), of(&[-0.0]));
    }

    #[test]
    fn text_boundaries_count() {
        let digest = |texts: &[&str]| {
            let mut digest = Digest::new();
            texts.iter().for_each(|text| digest.text(text));
            digest.finish()
        };
        assert_ne!(digest(&["ab", "c"]), digest(&["a", "bc"]));
    }
}
