//! What one pass through the model computes: tokens of several texts at once.

/// Tokens of one text in a step, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Whose keys and values are read and written.
    pub(crate) slot: usize,
    /// Tokens of the text before these. At 0 the slot is taken over from another text.
    pub(crate) start: usize,
    /// How many tokens.
    pub(crate) rows: usize,
    /// Tokens that the text may come to have.
    pub(crate) room: usize,
    /// Which text, counted from 0.
    pub(crate) prompt: usize,
    /// How many tokens were generated for it before.
    pub(crate) made: usize,
    /// True when a token is to be chosen after the last of these.
    pub(crate) choose: bool,
}

/// Segments of different slots, computed together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// In any order.
    pub(crate) segments: Vec<Segment>,
}

/// Words of a segment in a message.
const WORDS: usize = 7;

impl Step {
    /// Tokens of all segments.
    pub(crate) fn rows(&self) -> usize {
        self.segments.iter().map(|segment| segment.rows).sum()
    }

    /// Words of a message of a step of so many segments.
    pub(crate) fn words(segments: usize) -> usize {
        1 + segments * WORDS
    }

    /// The step as a message of [`words`](Step::words) words. Every number is small: no model has 2^24 of anything.
    pub(crate) fn encode(&self) -> Vec<u32> {
        let mut words = vec![self.segments.len() as u32];
        for s in &self.segments {
            let numbers = [s.slot, s.start, s.rows, s.room, s.prompt, s.made, usize::from(s.choose)];
            words.extend(numbers.map(|number| number as u32));
        }
        words
    }

    /// What [`encode`](Step::encode) made, where more may follow it; and how many words it has.
    pub(crate) fn decode(words: &[u32]) -> (Step, usize) {
        let count = words.first().map_or(0, |count| *count as usize);
        let read = |w: &[u32; WORDS]| {
            let [slot, start, rows, room, prompt, made, choose] = w.map(|word| word as usize);
            Segment { slot, start, rows, room, prompt, made, choose: choose == 1 }
        };
        let (segments, _) = words.get(1..).unwrap_or_default().as_chunks::<WORDS>();
        (Step { segments: segments.iter().take(count).map(read).collect() }, Step::words(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_brings_the_step_across() {
        let segment = |slot| Segment { slot, start: 5, rows: 2, room: 9, prompt: 7 + slot, made: 3, choose: slot == 1 };
        let step = Step { segments: vec![segment(1), segment(0)] };
        let mut words = step.encode();
        assert_eq!(words.len(), Step::words(2));
        words.extend([9; 20]);
        assert_eq!((Step::decode(&words), step.rows()), ((step, Step::words(2)), 4));
        assert!(Step::decode(&Step::default().encode()).0.segments.is_empty());
    }
}
