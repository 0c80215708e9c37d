//! Pipelines that run forward: [`Inference`] passes each microbatch once, [`Ring`] sends results back to the first stage.

use super::chunk::lane;
use super::header::Flags;
use super::lane::Entry;
use super::payload::Payload;
use super::run::{Engine, Lanes, Outside, common};
use super::shape::{Bound, Symbols};
use super::stage::{Marker, Pass, StageResult};
use super::train::{feed, take};
use crate::error::Result;
use crate::group::Axis;
use hccl_plan::Plan;
use std::marker::PhantomData;

/// A pipeline that passes each microbatch once. Made by [`infer`](super::infer).
pub struct Inference<A: Axis, First: Payload, Last: Payload> {
    engine: Engine<A>,
    ends: PhantomData<fn() -> (First, Last)>,
}

/// A pipeline whose results return to the first stage as `Back`: token by token generation. Made by
/// [`build_ring`](super::Builder::build_ring).
///
/// Microbatches are slots. A slot holds one sequence, or none; when a sequence ends, the next one can begin in its slot
/// while the other slots go on.
pub struct Ring<A: Axis, First: Payload, Last: Payload, Back: Payload> {
    engine: Engine<A>,
    ends: Marker<(First, Last, Back)>,
}

/// What a slot of a [`Ring`] comes back with, on the rank of the first stage.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply<Back> {
    /// No sequence is in the slot.
    Free,
    /// The last stage's answer; the sequence may go on.
    Next(Back),
    /// The last stage's last answer: it ended the sequence, and every stage has been told.
    End(Back),
}

/// What a slot of a [`Ring`] does next, decided on the rank of the first stage.
#[derive(Clone, Debug, PartialEq)]
pub enum Turn<First> {
    /// A new sequence begins: every stage begins anew for this slot.
    Start(First),
    /// The sequence goes on.
    Next(First),
    /// Nothing is in the slot in this round.
    Idle,
}

/// What the last stage's rank makes of a result.
#[derive(Clone, Debug, PartialEq)]
pub enum Said<Back> {
    /// The sequence may go on with this.
    Next(Back),
    /// The sequence ends with this. The decision travels with it, so that all ranks drop the slot in the same round.
    End(Back),
}

common! { Inference<First, Last> }
common! { Ring<First, Last, Back> }

impl<A: Axis, First: Payload, Last: Payload> Inference<A, First, Last> {
    /// Passes every microbatch through the stages. Every rank calls it.
    ///
    /// `input` gives the input of a microbatch, on the rank of the first stage; `output` gets the result, on that of the
    /// last one. On the other ranks they are never called.
    ///
    /// # Errors
    /// The first error of a stage, of `input` or of `output`, on every rank, as `Rank`; `Mismatch` when ranks run
    /// different steps; what fails the group. Every later call returns the same.
    pub fn run(
        &mut self,
        input: impl FnMut(usize) -> StageResult<First>,
        output: impl FnMut(usize, Last) -> StageResult<()>,
    ) -> Result<()> {
        let mut outside = Through { input, output, ends: PhantomData };
        self.engine.step("Inference::run", &mut outside)
    }
}

struct Through<First, Last, I, O> {
    input: I,
    output: O,
    ends: PhantomData<fn() -> (First, Last)>,
}

impl<First, Last, I, O> Outside for Through<First, Last, I, O>
where
    First: Payload,
    Last: Payload,
    I: FnMut(usize) -> StageResult<First>,
    O: FnMut(usize, Last) -> StageResult<()>,
{
    fn feed(&mut self, lanes: &mut Lanes, symbols: &Symbols, unit: usize) -> StageResult<()> {
        feed(lanes, symbols, unit, (self.input)(unit)?, true)
    }

    fn drain(&mut self, lanes: &mut Lanes, _: &Symbols, unit: usize) -> StageResult<()> {
        let output = take::<Last>(lanes, unit)?;
        (self.output)(unit, output)
    }
}

impl<A: Axis, First: Payload, Last: Payload, Back: Payload> Ring<A, First, Last, Back> {
    /// Runs every round of the plan. Every rank calls it.
    ///
    /// `enter` is called on the rank of the first stage, for each slot in each round, with what came back; it says what
    /// enters the first stage. `leave` is called on the rank of the last stage with each result; it says what returns,
    /// and whether the sequence ends. What `leave` says in the last round returns to nobody: plan one round more than
    /// there are tokens if `enter` must see them all. Rounds of idle slots cost one small message a stage.
    ///
    /// # Errors
    /// Those of [`Inference::run`]; `enter` must not go on with a sequence that is not there.
    pub fn run(
        &mut self,
        enter: impl FnMut(usize, Reply<Back>) -> StageResult<Turn<First>>,
        leave: impl FnMut(Pass, Last) -> StageResult<Said<Back>>,
    ) -> Result<()> {
        let (slots, rounds) = (self.engine.plan.microbatches(), self.engine.plan.schedule().rounds());
        let mut outside = Round { enter, leave, slots, rounds, ends: PhantomData };
        self.engine.step("Ring::run", &mut outside)
    }
}

struct Round<First, Last, Back, E, L> {
    enter: E,
    leave: L,
    slots: usize,
    rounds: usize,
    ends: Marker<(First, Last, Back)>,
}

impl<First, Last, Back, E, L> Round<First, Last, Back, E, L>
where
    Back: Payload,
{
    /// What the slot of `unit` came back with.
    fn reply(&self, lanes: &mut Lanes, unit: usize) -> StageResult<Reply<Back>> {
        let Some(before) = unit.checked_sub(self.slots) else { return Ok(Reply::Free) };
        match lane::<Back>(lanes.ring()?)?.take(before) {
            Some(Entry { packet: Some(back), flags, .. }) if flags.stops => Ok(Reply::End(back)),
            Some(Entry { packet: Some(back), .. }) => Ok(Reply::Next(back)),
            Some(Entry { packet: None, .. }) => Ok(Reply::Free),
            None => Err("the slot did not come back; this is an error of the library".into()),
        }
    }
}

impl<First, Last, Back, E, L> Outside for Round<First, Last, Back, E, L>
where
    First: Payload,
    Last: Payload,
    Back: Payload,
    E: FnMut(usize, Reply<Back>) -> StageResult<Turn<First>>,
    L: FnMut(Pass, Last) -> StageResult<Said<Back>>,
{
    fn feed(&mut self, lanes: &mut Lanes, symbols: &Symbols, unit: usize) -> StageResult<()> {
        let slot = unit % self.slots;
        let reply = self.reply(lanes, unit)?;
        let goes_on = matches!(reply, Reply::Next(_));
        match (self.enter)(slot, reply)? {
            Turn::Start(input) => feed(lanes, symbols, unit, input, true),
            Turn::Next(input) if goes_on => feed(lanes, symbols, unit, input, false),
            Turn::Next(_) => {
                Err(format!("slot {slot} holds no sequence to go on with: begin one with `Turn::Start`").into())
            }
            Turn::Idle => {
                lanes.forward(0).put_idle(unit);
                Ok(())
            }
        }
    }

    fn drain(&mut self, lanes: &mut Lanes, symbols: &Symbols, unit: usize) -> StageResult<()> {
        let (end, round) = (lanes.last(), unit / self.slots);
        let returns = round + 1 < self.rounds;
        let Some(entry) = lane::<Last>(lanes.forward(end))?.take(unit) else {
            return Err("there is no result; this is an error of the library".into());
        };
        let Some(output) = entry.packet else {
            if returns {
                lanes.ring()?.put_idle(unit);
            }
            return Ok(());
        };
        let pass = Pass { microbatch: unit % self.slots, round, starts: entry.flags.starts };
        let (back, stops) = match (self.leave)(pass, output)? {
            Said::Next(back) => (back, false),
            Said::End(back) => (back, true),
        };
        let mut bound = Bound::NOTHING;
        super::lane::Lane::<Back>::check(back.dims(), symbols, &mut bound)
            .map_err(|problem| format!("what returns to the first stage is {problem}"))?;
        if returns {
            let flags = Flags { stops, ..Flags::default() };
            lane::<Back>(lanes.ring()?)?.put(Entry { unit, packet: Some(back), flags, bound });
        }
        Ok(())
    }
}
