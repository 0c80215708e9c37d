//! The pipeline: stages declared once, and the ring in which tokens come home.
//!
//! ```text
//! rank 0  First    embedding, layers  --> activations --+      +-- chosen tokens <--+
//! rank 1  Middle   layers             <-----------------+      |                    |
//! rank 2  Last     layers, head       <-- activations ---------|--------------------+
//! ```
//!
//! Nothing here sends or receives: [`hccl::pipeline!`] makes the ring out of the stages' types. A slot of the ring is a
//! group of texts that are computed together. With as many groups as ranks, all ranks compute at once. A step's plan
//! travels in front of its activations, so that every rank knows whose keys and values the rows belong to; rank 0
//! decides it, the last rank chooses the tokens, and nobody decides anything alone.

use hccl::pipeline::{self, Act, Dyn, Reply, Said, StageResult, Turn};
use hccl::{Communicator, World};

use crate::engine::{Choice, Part, Ranks};
use crate::failure::Result;
use crate::generate::{Driver, Limits, Listener, Request};
use crate::job::Job;
use crate::step::Step;

/// Rounds that the ring runs before the ranks ask rank 0 whether there is more. The last one only brings tokens home.
const ROUNDS: usize = 65;

/// A step, then the tokens of its rows.
type Tokens = Act<u32, (Dyn,)>;
/// A step, its words as the bits of f32, then the activations of its rows.
type Rows = Act<f32, (Dyn,)>;
/// For each choice its token, how many logits are told, and those with their tokens.
type Chosen = Act<u32, (Dyn,)>;

struct First(Part);
struct Middle(Part);
struct Last {
    part: Part,
    logits: Vec<f32>,
}

#[hccl::stage]
impl First {
    fn forward(&mut self, tokens: Tokens) -> StageResult<Rows> {
        let (step, words) = Step::decode(tokens.data());
        let mut rows: Vec<f32> = tokens.data()[..words].iter().map(|word| f32::from_bits(*word)).collect();
        self.0.embed(&tokens.data()[words..], &mut rows)?;
        self.0.blocks(&step, &mut rows[words..], &mut |_| Ok(()))?;
        Ok(Act::new([rows.len()], rows)?)
    }
}

#[hccl::stage]
impl Middle {
    fn forward(&mut self, mut rows: Rows) -> StageResult<Rows> {
        let (step, words) = step_of(&rows);
        self.0.blocks(&step, &mut rows.data_mut()[words..], &mut |_| Ok(()))?;
        Ok(rows)
    }
}

#[hccl::stage]
impl Last {
    fn forward(&mut self, mut rows: Rows) -> StageResult<Chosen> {
        let (step, words) = step_of(&rows);
        let hidden = &mut rows.data_mut()[words..];
        self.part.blocks(&step, hidden, &mut |_| Ok(()))?;
        self.part.logits(&step, hidden, &mut self.logits)?;
        let chosen = encode(&self.part.choose(&step, &self.logits)?);
        Ok(Act::new([chosen.len()], chosen)?)
    }
}

hccl::pipeline! {
    /// A model over as many ranks as there are.
    struct Llama = First => Middle * _ => Last;
    schedule = ring(slots = _, rounds = ROUNDS);
    feedback = Last => First: Chosen;
}

/// The step in front of activations, and its words.
fn step_of(rows: &Rows) -> (Step, usize) {
    let count = rows.data().first().map_or(0, |word| word.to_bits() as usize);
    let words: Vec<u32> = rows.data().iter().take(Step::words(count)).map(|word| word.to_bits()).collect();
    Step::decode(&words)
}

fn encode(choices: &[Choice]) -> Vec<u32> {
    let mut words = Vec::new();
    for Choice { token, best } in choices {
        words.extend([*token, best.len() as u32]);
        words.extend(best.iter().flat_map(|(token, logit)| [*token, logit.to_bits()]));
    }
    words
}

fn decode(words: &[u32]) -> Vec<Choice> {
    let mut words = words.iter().copied();
    let mut choices = Vec::new();
    while let (Some(token), Some(told)) = (words.next(), words.next()) {
        let mut pair = || Some((words.next()?, f32::from_bits(words.next()?)));
        choices.push(Choice { token, best: (0..told).map_while(|_| pair()).collect() });
    }
    choices
}

/// The ring as a rank sees it.
pub(crate) struct Ring<'a> {
    comm: &'a Communicator,
    ring: pipeline::Ring<World, Tokens, Chosen, Chosen>,
    groups: usize,
    bytes: usize,
}

impl<'a> Ring<'a> {
    /// Reads this rank's layers and joins the ring of at least two ranks. Collective.
    ///
    /// # Errors
    /// The first error of a rank that reads its layers; those of the ranks meeting.
    pub(crate) fn join(job: &Job, comm: &'a Communicator) -> Result<Self> {
        let (groups, mut bytes) = (job.groups(), 0);
        let ring = Llama::infer(comm, groups, |role| {
            let part = Part::load(job, comm.rank().index())?;
            bytes = part.bytes();
            Ok(match role {
                LlamaRole::First(at) => at.hold(First(part)),
                LlamaRole::Middle(at) => at.hold(Middle(part)),
                LlamaRole::Last(at) => at.hold(Last { part, logits: Vec::new() }),
            })
        })?;
        Ok(Ring { comm, ring, groups, bytes })
    }

    /// Rank 0 tells whether there is more.
    fn agree(&self, more: bool) -> Result<bool> {
        let mut word = [u8::from(more)];
        self.comm.broadcast(&mut word, self.comm.root(0)?)?;
        Ok(word == [1])
    }
}

impl Ranks for Ring<'_> {
    fn generate(&mut self, requests: &[Request], limits: Limits<'_>, listener: &mut dyn Listener) -> Result<()> {
        let groups = self.groups.min(limits.slots);
        let mut driver = Driver::new(requests, limits, groups, listener);
        while !driver.is_done() {
            self.agree(true)?;
            let mut round = vec![0; self.groups];
            let enter = |group: usize, reply: Reply<Chosen>| -> StageResult<Turn<Tokens>> {
                round[group] += 1;
                let goes_on = match &reply {
                    Reply::Next(chosen) | Reply::End(chosen) => {
                        driver.apply(group, &decode(chosen.data()))?;
                        true
                    }
                    Reply::Free => false,
                };
                if group >= groups || round[group] == ROUNDS {
                    return Ok(Turn::Idle);
                }
                let Some((step, tokens)) = driver.next(group)? else { return Ok(Turn::Idle) };
                let mut words = step.encode();
                words.extend(tokens);
                let tokens = Act::new([words.len()], words)?;
                Ok(if goes_on { Turn::Next(tokens) } else { Turn::Start(tokens) })
            };
            self.ring.run(enter, |_, chosen| Ok(Said::Next(chosen)))?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.agree(false).map(|_| ())
    }

    fn serve(&mut self) -> Result<()> {
        while self.agree(false)? {
            self.ring.run(|_, _| Ok(Turn::Idle), |_, chosen| Ok(Said::Next(chosen)))?;
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_come_home() {
        let choices = [
            Choice { token: 7, best: vec![(7, 1.5), (u32::MAX, f32::NEG_INFINITY)] },
            Choice { token: 0, best: Vec::new() },
        ];
        assert_eq!(decode(&encode(&choices)), choices);
        assert!(decode(&encode(&[])).is_empty());
    }
}
