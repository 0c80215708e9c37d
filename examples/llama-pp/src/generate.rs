//! Rank 0's loop: texts enter free slots, steps go round, tokens come home, texts end.
//!
//! Slots belong to groups. The texts of one group are computed together, one step of each group is under way at a
//! time, and a slot whose text has ended takes the next text in the step after. Long prompts are computed in pieces,
//! beside the tokens of other texts.

use std::time::Instant;

use crate::engine::{Choice, Engine};
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

/// Generates all texts.
///
/// # Errors
/// Those of the engine and of the listener.
pub(crate) fn run(
    engine: &mut dyn Engine,
    requests: &[Request],
    limits: Limits<'_>,
    listener: &mut dyn Listener,
) -> Result<()> {
    let groups = engine.groups().min(limits.slots);
    let mut waiting = requests.iter().enumerate();
    let mut slots: Vec<Option<Text>> = (0..limits.slots).map(|_| None).collect();
    let mut under_way: Vec<Option<Step>> = vec![None; groups];
    loop {
        let mut idle = true;
        for group in 0..groups {
            if let Some(step) = under_way[group].take() {
                let choices = engine.collect()?;
                apply(&step, &choices, &mut slots, limits, listener)?;
            }
            for slot in (group..limits.slots).step_by(groups).filter(|slot| slots[*slot].is_none()).collect::<Vec<_>>()
            {
                let Some((prompt, request)) = waiting.next() else { break };
                listener.start(prompt, Instant::now())?;
                let room = limits.context.min(request.tokens.len() + request.more);
                slots[slot] = Some(Text { prompt, tokens: request.tokens.clone(), fed: 0, made: 0, room });
            }
            let (step, tokens) = next_step(&mut slots, group, groups);
            if !step.segments.is_empty() {
                engine.submit(step.clone(), &tokens)?;
                under_way[group] = Some(step);
                idle = false;
            }
        }
        if idle && under_way.iter().all(Option::is_none) {
            return Ok(());
        }
    }
}

/// What the texts of a group compute next: one token each, or a piece of their prompt.
fn next_step(slots: &mut [Option<Text>], group: usize, groups: usize) -> (Step, Vec<u32>) {
    let (mut step, mut tokens) = (Step::default(), Vec::new());
    let mut pieces = PIECES;
    for (slot, text) in slots.iter_mut().enumerate().skip(group).step_by(groups) {
        let Some(text) = text else { continue };
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
    (step, tokens)
}

fn apply(
    step: &Step,
    choices: &[Choice],
    slots: &mut [Option<Text>],
    limits: Limits<'_>,
    listener: &mut dyn Listener,
) -> Result<()> {
    let now = Instant::now();
    for (segment, choice) in step.segments.iter().filter(|segment| segment.choose).zip(choices) {
        let Some(text) = &mut slots[segment.slot] else { continue };
        text.tokens.push(choice.token);
        text.made += 1;
        let last = limits.stop.contains(&choice.token) || text.tokens.len() >= text.room;
        listener.token(text.prompt, choice, last, now)?;
        if last {
            slots[segment.slot] = None;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Chooses the sum of all tokens of a text, modulo 100, and checks what it is given.
    struct Adder {
        groups: usize,
        texts: Vec<Vec<u32>>,
        results: VecDeque<Vec<Choice>>,
        widest: usize,
    }

    impl Engine for Adder {
        fn groups(&self) -> usize {
            self.groups
        }

        fn submit(&mut self, step: Step, mut tokens: &[u32]) -> Result<()> {
            self.widest = self.widest.max(step.segments.len());
            let mut choices = Vec::new();
            for s in &step.segments {
                let text = &mut self.texts[s.slot];
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
            self.results.push_back(choices);
            assert!(tokens.is_empty() && self.results.len() <= self.groups);
            Ok(())
        }

        fn collect(&mut self) -> Result<Vec<Choice>> {
            Ok(self.results.pop_front().unwrap())
        }

        fn finish(&mut self) -> Result<()> {
            Ok(())
        }
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
        let mut engine = Adder { groups, texts: vec![Vec::new(); slots], results: VecDeque::new(), widest: 0 };
        let mut heard = Heard::default();
        let limits = Limits { slots, context: 610, stop: &[42] };
        run(&mut engine, &requests, limits, &mut heard).unwrap();
        heard.ended.sort_unstable();
        assert_eq!(heard.ended, (0..11).collect::<Vec<_>>());
        (heard.texts, engine.widest)
    }

    #[test]
    fn texts_do_not_depend_on_slots_and_groups() {
        let (one_by_one, _) = generated(1, 1);
        // By hand: 1 + 1 + 2 = 4, no stop; the last has 601 of 610 tokens.
        assert_eq!(one_by_one[0], [1, 2, 4]);
        assert_eq!(one_by_one[10].len(), 3 + 70 % 5);
        for (groups, slots) in [(1, 4), (2, 2), (2, 5), (3, 7), (4, 2), (3, 30)] {
            let (texts, widest) = generated(groups, slots);
            assert_eq!(texts, one_by_one, "{groups} groups, {slots} slots");
            assert!(widest <= slots.div_ceil(groups.min(slots)));
        }
    }

    #[test]
    fn the_context_and_stop_tokens_end_texts() {
        let mut engine = Adder { groups: 1, texts: vec![Vec::new(); 1], results: VecDeque::new(), widest: 0 };
        let mut heard = Heard::default();
        let requests = [Request { tokens: vec![21], more: 9 }, Request { tokens: vec![3, 4], more: 50 }];
        run(&mut engine, &requests, Limits { slots: 1, context: 6, stop: &[42] }, &mut heard).unwrap();
        assert_eq!(heard.texts, [vec![21, 42], vec![7, 14, 28, 56]]);
    }
}
