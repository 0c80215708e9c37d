//! Through the cache or around it: chosen by trying both on a program's own calls.
//!
//! Streaming a result saves reading what it overwrites, and costs whoever reads the result next. Which is faster at
//! what size depends on the machine (on some from 1 MiB, on others only past a large last-level cache), so the first
//! calls of each size class alternate, and the rest take the winner. The choice changes no bits, so ranks need not agree.

use crate::backend::cpu::kernel::Hint;
use std::time::Duration;

/// Shorter results stay in the cache.
const LEAST: usize = 512 << 10;
/// Size classes: powers of two, the last for all that is longer.
const CLASSES: usize = 32;
/// Timed calls of each way, of which the fastest counts.
const TRIALS: u32 = 4;
/// A streamed result must save this share of the time to be worth being out of the cache.
const WORTH: f64 = 0.1;

#[derive(Clone, Copy, Default)]
struct Trial {
    runs: u32,
    /// Nanoseconds a byte, the least.
    best: f64,
}

/// What this rank has measured, by the power of two of the bytes: copies, then reductions.
#[derive(Default)]
pub(super) struct Tuning {
    trials: [[[Trial; 2]; CLASSES]; 2],
}

/// A way, and whether its time is worth knowing.
#[derive(Clone, Copy)]
pub(super) struct Choice {
    pub(super) hint: Hint,
    pub(super) reduces: bool,
    pub(super) bytes: usize,
    pub(super) is_trial: bool,
}

impl Choice {
    /// For memory that was read just now, or will be.
    pub(super) const CACHED: Choice = Choice { hint: Hint::Cached, reduces: false, bytes: 0, is_trial: false };
}

impl Tuning {
    /// How to write `bytes` bytes that nobody has read.
    pub(super) fn choose(&self, reduces: bool, bytes: usize) -> Choice {
        if bytes < LEAST {
            return Choice::CACHED;
        }
        let [cached, stream] = self.trials[usize::from(reduces)][class(bytes)];
        let is_trial = stream.runs < TRIALS;
        let streams = if is_trial { stream.runs < cached.runs } else { stream.best < cached.best * (1.0 - WORTH) };
        Choice { hint: if streams { Hint::Stream } else { Hint::Cached }, reduces, bytes, is_trial }
    }

    /// Notes how long a trial took.
    pub(super) fn note(&mut self, choice: Choice, time: Duration) {
        let ways = &mut self.trials[usize::from(choice.reduces)][class(choice.bytes)];
        let trial = &mut ways[usize::from(choice.hint == Hint::Stream)];
        let each = time.as_nanos() as f64 / choice.bytes.max(1) as f64;
        trial.best = if trial.runs == 0 { each } else { trial.best.min(each) };
        trial.runs += 1;
    }
}

fn class(bytes: usize) -> usize {
    (bytes.max(1).ilog2() as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_are_tried_and_the_faster_stays() {
        for (stream_us, expected) in [(50, Hint::Stream), (95, Hint::Cached), (200, Hint::Cached)] {
            let mut tuning = Tuning::default();
            let mut tried = Vec::new();
            loop {
                let choice = tuning.choose(true, 3 << 20);
                if !choice.is_trial {
                    assert_eq!(choice.hint, expected);
                    break;
                }
                tried.push(choice.hint);
                let us = if choice.hint == Hint::Stream { stream_us } else { 100 };
                tuning.note(choice, Duration::from_micros(us));
            }
            assert_eq!(tried.len(), 2 * TRIALS as usize);
            assert!(tried.chunks(2).all(|pair| pair == [Hint::Cached, Hint::Stream]));
            assert!(tuning.choose(false, 3 << 20).is_trial && tuning.choose(true, 9 << 20).is_trial);
        }
        assert_eq!(Tuning::default().choose(true, LEAST - 1).hint, Hint::Cached);
    }
}
