//! Rank 0's loop: texts enter free slots, steps go round, tokens come home, texts end.
//!
//! Slots belong to groups. The texts of one group are computed together, one step of each group is under way at a
//! time, and a slot whose text has ended takes the next text in the step after. Long prompts are computed in pieces,
//! beside the tokens of other texts.

use std::time::Instant;

use crate::engine::Choice;
use crate::failure::Result;
use crate::step::{Segment, Step};

/// Tokens of one prompt in one step.
const PIECE: usize = 128;
/// Tokens of all prompts in one step.
const PIECES: usize = 512;

/// What to generate.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The prompt: at least one token, fewer than the context.
    pub(crate) tokens: Vec<u32>,
    /// At most so many more tokens; at least one.
    pub(crate) more: usize,
}

/// Who hears of what happens, as it does.
pub(crate) trait Listener {
    /// Text `prompt` has entered a slot.
    fn start(&mut self, prompt: usize, at: Instant) -> Result<()>;

    /// A token of it was chosen, and whether it is the last.
    fn token(&mut self, prompt: usize, choice: &Choice, last: bool, at: Instant) -> Result<()>;
}

/// What ends texts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits<'a> {
    /// Texts under way at once.
    pub(crate) slots: usize,
    /// Tokens that a text may have.
    pub(crate) context: usize,
    /// Tokens that end a text.
    pub(crate) stop: &'a [u32],
}

/// A text in a slot.
struct Text {
    prompt: usize,
    /// Of the prompt, then the generated ones.
    tokens: Vec<u32>,
    /// How many of them went through the model.
    fed: usize,
    made: usize,
    /// Tokens it may come to have.
    room: usize,
}

/// Which text is where, and what each group computes next. It waits for nothing: whoever moves steps asks it.
pub(crate) struct Driver<'a> {
    requests: std::iter::Enumerate<std::slice::Iter<'a, Request>>,
    limits: Limits<'a>,
    slots: Vec<Option<Text>>,
    /// Of each group, what is being computed.
    under_way: Vec<Option<Step>>,
    listener: &'a mut dyn Listener,
}

impl<'a> Driver<'a> {
    /// All texts are to be generated, by so many groups of slots.
    pub(crate) fn new(
        requests: &'a [Request],
        limits: Limits<'a>,
        groups: usize,
        listener: &'a mut dyn Listener,
    ) -> Self {
        let slots = (0..limits.slots).map(|_| None).collect();
        Driver { requests: requests.iter().enumerate(), limits, slots, under_way: vec![None; groups], listener }
    }

    /// True when every text has ended.
    pub(crate) fn is_done(&self) -> bool {
        self.requests.len() == 0 && self.slots.iter().all(Option::is_none)
    }

    /// What the group computes next: one token of each of its texts, or a piece of their prompt. Texts that wait take
    /// the group's free slots first.
    ///
    /// # Errors
    /// Those of the listener.
    pub(crate) fn next(&mut self, group: usize) -> Result<Option<(Step, Vec<u32>)>> {
        let groups = self.under_way.len();
        let (mut step, mut tokens) = (Step::default(), Vec::new());
        let mut pieces = PIECES;
        for slot in (group..self.limits.slots).step_by(groups) {
            if self.slots[slot].is_none() {
                self.slots[slot] = self.enter()?;
            }
            let Some(text) = &mut self.slots[slot] else { continue };
            let left = text.tokens.len() - text.fed;
            let rows = if left == 1 { 1 } else { left.min(PIECE).min(pieces) };
            if rows == 0 {
                continue;
            }
            pieces -= if left == 1 { 0 } else { rows };
            tokens.extend_from_slice(&text.tokens[text.fed..][..rows]);
            let Text { prompt, fed: start, made, room, .. } = *text;
            step.segments.push(Segment { slot, start, rows, room, prompt, made, choose: rows == left });
            text.fed += rows;
        }
        if step.segments.is_empty() {
            return Ok(None);
        }
        self.under_way[group] = Some(step.clone());
        Ok(Some((step, tokens)))
    }

    fn enter(&mut self) -> Result<Option<Text>> {
        let Some((prompt, request)) = self.requests.next() else { return Ok(None) };
        self.listener.start(prompt, Instant::now())?;
        let room = self.limits.context.min(request.tokens.len() + request.more);
        Ok(Some(Text { prompt, tokens: request.tokens.clone(), fed: 0, made: 0, room }))
    }

    /// Takes what was chosen in the step of this group that was under way.
    ///
    /// # Errors
    /// Those of the listener.
    pub(crate) fn apply(&mut self, group: usize, choices: &[Choice]) -> Result<()> {
        let now = Instant::now();
        let step = self.under_way[group].take().unwrap_or_default();
        for (segment, choice) in step.segments.iter().filter(|segment| segment.choose).zip(choices) {
            let Some(text) = &mut self.slots[segment.slot] else { continue };
            text.tokens.push(choice.token);
            text.made += 1;
            let last = self.limits.stop.contains(&choice.token) || text.tokens.len() >= text.room;
            self.listener.token(text.prompt, choice, last, now)?;
            if last {
                self.slots[segment.slot] = None;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    /// Chooses the sum of all tokens of a text, modulo 100, and checks what it is given.
    fn sums(texts: &mut [Vec<u32>], step: &Step, mut tokens: &[u32]) -> Vec<Choice> {
        let mut choices = Vec::new();
        for s in &step.segments {
            let text = &mut texts[s.slot];
            if s.start == 0 {
                text.clear();
            }
            assert_eq!(text.len(), s.start);
            text.extend(tokens.split_off(..s.rows).unwrap());
            assert!(text.len() <= s.room);
            if s.choose {
                choices.push(Choice { token: text.iter().sum::<u32>() % 100, best: Vec::new() });
            }
        }
        assert!(tokens.is_empty());
        choices
    }

    /// Runs a driver whose groups are computed late, as in a ring; the most segments of a step.
    fn run(requests: &[Request], limits: Limits<'_>, groups: usize, heard: &mut Heard) -> usize {
        let mut driver = Driver::new(requests, limits, groups, heard);
        let mut texts = vec![Vec::new(); limits.slots];
        let mut under_way: Vec<Option<Vec<Choice>>> = vec![None; groups];
        let mut widest = 0;
        while !driver.is_done() {
            for (group, under_way) in under_way.iter_mut().enumerate() {
                if let Some(choices) = under_way.take() {
                    driver.apply(group, &choices).unwrap();
                }
                if let Some((step, tokens)) = driver.next(group).unwrap() {
                    widest = widest.max(step.segments.len());
                    *under_way = Some(sums(&mut texts, &step, &tokens));
                }
            }
        }
        widest
    }

    #[derive(Default)]
    struct Heard {
        texts: Vec<Vec<u32>>,
        ended: Vec<usize>,
        started: usize,
    }

    impl Listener for Heard {
        fn start(&mut self, prompt: usize, _: Instant) -> Result<()> {
            assert_eq!(prompt, self.started);
            self.started += 1;
            self.texts.push(Vec::new());
            Ok(())
        }

        fn token(&mut self, prompt: usize, choice: &Choice, last: bool, _: Instant) -> Result<()> {
            self.texts[prompt].push(choice.token);
            if last {
                self.ended.push(prompt);
            }
            Ok(())
        }
    }

    fn generated(groups: usize, slots: usize) -> (Vec<Vec<u32>>, usize) {
        let request = |i: usize| Request { tokens: vec![i as u32 + 1; 1 + i * 60], more: 3 + i * 7 % 5 };
        let requests: Vec<Request> = (0..11).map(request).collect();
        let mut heard = Heard::default();
        let widest = run(&requests, Limits { slots, context: 610, stop: &[42] }, groups.min(slots), &mut heard);
        heard.ended.sort_unstable();
        assert_eq!(heard.ended, (0..11).collect::<Vec<_>>());
        (heard.texts, widest)
    }

    #[test]
    fn texts_do_not_depend_on_slots_and_groups() {
        let (one_by_one, _) = generated(1, 1);
        // By hand: 1 + 1 + 2 = 4, no stop; the last has 601 of 610 tokens.
        assert_eq!(one_by_one[0], [1, 2, 4]);
        assert_eq!(one_by_one[10].len(), 3);
        for (groups, slots) in [(1, 4), (2, 2), (2, 5), (3, 7), (4, 2), (3, 30)] {
            let (texts, widest) = generated(groups, slots);
            assert_eq!(texts, one_by_one, "{groups} groups, {slots} slots");
            assert!(widest <= slots.div_ceil(groups.min(slots)));
        }
    }

    #[test]
    fn the_context_and_stop_tokens_end_texts() {
        let mut heard = Heard::default();
        let requests = [Request { tokens: vec![21], more: 9 }, Request { tokens: vec![3, 4], more: 50 }];
        run(&requests, Limits { slots: 1, context: 6, stop: &[42] }, 1, &mut heard);
        assert_eq!(heard.texts, [vec![21, 42], vec![7, 14, 28, 56]]);
    }
}
