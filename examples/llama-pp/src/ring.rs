//! The decode ring: activations go from rank to rank, the chosen token from the last one home to the first.
//!
//! ```text
//! rank 0  | pass 0 | pass 1 |<- token 0| pass 2 |<- token 1| ...
//! rank 1           | pass 0 |          | pass 1 |            the last rank: logits, choice, token home
//! ```
//!
//! - With as many groups of texts under way as there are ranks, all ranks compute at once.
//! - A send waits for its receive. The order of all messages is one order of the whole ring: before rank 0 sends step
//!   `j`, it receives the tokens of step `j - (ranks - 1)`; so no ranks wait for each other in a circle.
//! - Nobody decides anything alone: rank 0 says in each step which slots it is about and when there are no more steps,
//!   and the last rank chooses the tokens.

use std::collections::VecDeque;

use hccl::Communicator;

use crate::engine::{Choice, Chooser, Engine, Part};
use crate::failure::Result;
use crate::job::Job;
use crate::step::Step;

/// Messages of the ring, of one rank.
struct Link<'a> {
    comm: &'a Communicator,
    /// Most segments of a step.
    segments: usize,
    hidden: usize,
    chooser: Chooser,
}

impl<'a> Link<'a> {
    fn new(comm: &'a Communicator, job: &Job) -> Self {
        let segments = job.slots.div_ceil(job.groups());
        Link { comm, segments, hidden: job.config.hidden, chooser: job.chooser() }
    }

    fn is_last(&self) -> bool {
        self.comm.rank().index() + 1 == self.comm.size()
    }

    fn send_on(&self, step: &Step, hidden: &[f32]) -> Result<()> {
        let next = self.comm.peer(self.comm.rank().index() + 1)?;
        self.comm.send(&step.encode(self.segments), next)?;
        if !step.segments.is_empty() {
            self.comm.send(hidden, next)?;
        }
        Ok(())
    }

    /// A step and its vectors, which the previous rank has passed through its layers.
    fn receive(&self, hidden: &mut Vec<f32>) -> Result<Step> {
        let previous = self.comm.peer(self.comm.rank().index() - 1)?;
        let mut words = vec![0u64; Step::words(self.segments)];
        self.comm.recv(&mut words, previous)?;
        let step = Step::decode(&words);
        if !step.segments.is_empty() {
            hidden.resize(step.rows() * self.hidden, 0.0);
            self.comm.recv(hidden, previous)?;
        }
        Ok(step)
    }

    /// Words of the message that brings the choices of a step home.
    fn words(&self, step: &Step) -> usize {
        let asked = step.segments.iter().filter(|segment| segment.choose);
        asked.map(|segment| 1 + self.chooser.told(segment.made)).sum()
    }

    fn send_home(&self, choices: &[Choice]) -> Result<()> {
        let mut words = Vec::new();
        for choice in choices {
            words.push(u64::from(choice.token));
            words.extend(choice.best.iter().map(|(token, logit)| u64::from(*token) << 32 | u64::from(logit.to_bits())));
        }
        if words.is_empty() { Ok(()) } else { Ok(self.comm.send(&words, self.comm.peer(0)?)?) }
    }

    fn receive_home(&self, step: &Step) -> Result<Vec<Choice>> {
        let mut words = vec![0u64; self.words(step)];
        if !words.is_empty() {
            self.comm.recv(&mut words, self.comm.peer(self.comm.size() - 1)?)?;
        }
        let mut words = words.into_iter();
        let asked = step.segments.iter().filter(|segment| segment.choose);
        let choice = |told: usize| {
            let token = words.next().unwrap_or_default() as u32;
            let best = words.by_ref().take(told).map(|word| ((word >> 32) as u32, f32::from_bits(word as u32)));
            Choice { token, best: best.collect() }
        };
        Ok(asked.map(|segment| self.chooser.told(segment.made)).map(choice).collect())
    }
}

/// Rank 0.
pub(crate) struct First<'a> {
    part: &'a mut Part,
    link: Link<'a>,
    groups: usize,
    /// Sent on, their tokens not received.
    under_way: VecDeque<Step>,
    chosen: VecDeque<Vec<Choice>>,
}

impl<'a> First<'a> {
    /// Rank 0 of a ring of at least two.
    pub(crate) fn new(part: &'a mut Part, comm: &'a Communicator, job: &Job) -> Self {
        let link = Link::new(comm, job);
        First { part, link, groups: job.groups(), under_way: VecDeque::new(), chosen: VecDeque::new() }
    }

    fn receive_oldest(&mut self) -> Result<Vec<Choice>> {
        match self.under_way.pop_front() {
            Some(step) => self.link.receive_home(&step),
            None => Ok(Vec::new()),
        }
    }
}

impl Engine for First<'_> {
    fn groups(&self) -> usize {
        self.groups
    }

    fn submit(&mut self, step: Step, tokens: &[u32]) -> Result<()> {
        let mut hidden = self.part.embed(tokens)?;
        self.part.blocks(&step, &mut hidden, &mut |_| Ok(()))?;
        if self.under_way.len() + 1 == self.link.comm.size() {
            let chosen = self.receive_oldest()?;
            self.chosen.push_back(chosen);
        }
        self.link.send_on(&step, &hidden)?;
        self.under_way.push_back(step);
        Ok(())
    }

    fn collect(&mut self) -> Result<Vec<Choice>> {
        match self.chosen.pop_front() {
            Some(chosen) => Ok(chosen),
            None => self.receive_oldest(),
        }
    }

    fn finish(&mut self) -> Result<()> {
        self.link.send_on(&Step::default(), &[])
    }
}

/// Any other rank of the ring, until there are no more steps.
///
/// # Errors
/// Those of this rank's stage and of the other ranks.
pub(crate) fn serve(part: &mut Part, comm: &Communicator, job: &Job) -> Result<()> {
    let link = Link::new(comm, job);
    let (mut hidden, mut logits) = (Vec::new(), Vec::new());
    loop {
        let step = link.receive(&mut hidden)?;
        match (step.segments.is_empty(), link.is_last()) {
            (true, true) => return Ok(()),
            (true, false) => return link.send_on(&step, &[]),
            (false, last) => {
                part.blocks(&step, &mut hidden, &mut |_| Ok(()))?;
                if last {
                    part.logits(&step, &hidden, &mut logits)?;
                    link.send_home(&part.choose(&step, &logits)?)?;
                } else {
                    link.send_on(&step, &hidden)?;
                }
            }
        }
    }
}
