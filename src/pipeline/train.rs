//! A pipeline that trains: [`Trainer`].

use super::chunk::lane;
use super::header::Flags;
use super::lane::{Entry, Lane};
use super::payload::Payload;
use super::run::{Engine, Lanes, Outside, common};
use super::shape::{Bound, Symbols};
use super::stage::{Grad, StageResult};
use crate::error::Result;
use crate::group::Axis;
use hccl_plan::Plan;
use std::marker::PhantomData;

/// A pipeline whose stages lead from `First` to `Last` and are trained. Made by [`train`](super::train).
pub struct Trainer<A: Axis, First: Payload, Last: Payload> {
    pub(super) engine: Engine<A>,
    ends: PhantomData<fn() -> (First, Last)>,
}

/// The losses of a step's microbatches, the same on every rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Losses(Vec<f64>);

impl Losses {
    /// One a microbatch.
    pub fn as_slice(&self) -> &[f64] {
        &self.0
    }

    /// Their sum: the loss of the step when each is a share of it.
    pub fn sum(&self) -> f64 {
        self.0.iter().sum()
    }

    /// Their mean: the loss of the step when microbatches count alike.
    pub fn mean(&self) -> f64 {
        self.sum() / self.0.len() as f64
    }
}

common! { Trainer<First, Last> }

impl<A: Axis, First: Payload, Last: Payload> Trainer<A, First, Last> {
    /// Runs every microbatch forward and backward, in the order of the plan. Every rank calls it.
    ///
    /// `input` gives the input of a microbatch, on the rank of the first stage. `loss` gives, on the rank of the last
    /// stage, the loss of a microbatch and its gradient with respect to the output. Both are called once a microbatch, on
    /// the other ranks never. Microbatches may have different lengths, and steps too.
    ///
    /// # Errors
    /// The first error of a stage, of `input` or of `loss`, on every rank, as `Rank`; `Mismatch` when ranks run different
    /// steps; what fails the group. Every later call returns the same.
    pub fn step(
        &mut self,
        input: impl FnMut(usize) -> StageResult<First>,
        loss: impl FnMut(usize, Last) -> StageResult<(f64, Grad<Last>)>,
    ) -> Result<Losses> {
        let losses = vec![0.0; self.engine.plan.microbatches()];
        let mut outside = Supervised { input, loss, losses, ends: PhantomData };
        self.engine.step("Trainer::step", &mut outside)?;
        Ok(Losses(outside.losses))
    }
}

struct Supervised<First, Last, I, L> {
    input: I,
    loss: L,
    losses: Vec<f64>,
    ends: PhantomData<fn() -> (First, Last)>,
}

impl<First, Last, I, L> Outside for Supervised<First, Last, I, L>
where
    First: Payload,
    Last: Payload,
    I: FnMut(usize) -> StageResult<First>,
    L: FnMut(usize, Last) -> StageResult<(f64, Grad<Last>)>,
{
    fn feed(&mut self, lanes: &mut Lanes, symbols: &Symbols, unit: usize) -> StageResult<()> {
        feed(lanes, symbols, unit, (self.input)(unit)?, true)
    }

    fn drain(&mut self, lanes: &mut Lanes, _: &Symbols, unit: usize) -> StageResult<()> {
        let end = lanes.last();
        let output = take::<Last>(lanes, unit)?;
        let (loss, grad) = (self.loss)(unit, output)?;
        self.losses[unit] = loss;
        let entry = Entry { unit, packet: Some(grad), flags: Flags::default(), bound: Bound::NOTHING };
        lane::<Grad<Last>>(lanes.backward(end))?.put(entry);
        Ok(())
    }

    fn results(&mut self) -> &mut [f64] {
        &mut self.losses
    }
}

/// Puts what enters the pipeline on its first lane, where names of dimensions are bound.
pub(super) fn feed<P: Payload>(
    lanes: &mut Lanes,
    symbols: &Symbols,
    unit: usize,
    packet: P,
    starts: bool,
) -> StageResult<()> {
    let mut bound = Bound::NOTHING;
    Lane::<P>::check(packet.dims(), symbols, &mut bound).map_err(|problem| format!("the input is {problem}"))?;
    let flags = Flags { starts, ..Flags::default() };
    lane::<P>(lanes.forward(0))?.put(Entry { unit, packet: Some(packet), flags, bound });
    Ok(())
}

/// Takes what leaves the last stage.
pub(super) fn take<P: Payload>(lanes: &mut Lanes, unit: usize) -> StageResult<P> {
    let end = lanes.last();
    let entry = lane::<P>(lanes.forward(end))?.take(unit);
    entry.and_then(|entry| entry.packet).ok_or_else(|| format!("microbatch {unit} has no result").into())
}
