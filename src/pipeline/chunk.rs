//! A stage on the rank that holds it, behind one face for all kinds of stages.

use super::header::Flags;
use super::lane::{AnyLane, Entry, Lane};
use super::payload::Payload;
use super::shape::{Bound, Dims, Symbols};
use super::stage::{Grad, Pass, SplitTrain, Stage, StageResult, Train};
use std::any::Any;

/// A stage and what it keeps between the passes of a microbatch. A lane that is not of the stage's type is an error of
/// this library: the builder joins stages of fitting types only.
pub(super) trait Chunk: Any {
    fn forward(&mut self, pass: Pass, unit: usize, input: &mut Ends<'_>) -> StageResult<()>;

    /// The whole backward pass, or its input part.
    fn backward(&mut self, unit: usize, split: bool, ends: &mut Ends<'_>) -> StageResult<()>;

    fn backward_weight(&mut self, unit: usize) -> StageResult<()>;

    fn release(&mut self, slot: usize);

    /// Forgets what it keeps between passes.
    fn clear(&mut self);

    fn stage(&mut self) -> &mut dyn Any;
}

/// The lanes on both sides of a stage, and what names are bound to.
pub(super) struct Ends<'a> {
    pub(super) from: &'a mut dyn AnyLane,
    pub(super) to: &'a mut dyn AnyLane,
    pub(super) symbols: &'a Symbols,
}

impl Ends<'_> {
    fn take<P: Payload>(&mut self, unit: usize) -> StageResult<(P, Flags, Bound)> {
        let entry = lane::<P>(self.from)?.take(unit);
        match entry {
            Some(Entry { packet: Some(packet), flags, bound, .. }) => Ok((packet, flags, bound)),
            _ => Err(format!("the input of microbatch {unit} is not there").into()),
        }
    }

    fn put<P: Payload>(&mut self, unit: usize, packet: P, flags: Flags, mut bound: Bound) -> StageResult<()> {
        Lane::<P>::check(packet.dims(), self.symbols, &mut bound).map_err(|problem| format!("made {problem}"))?;
        lane::<P>(self.to)?.put(Entry { unit, packet: Some(packet), flags, bound });
        Ok(())
    }
}

/// The lane as what it is.
pub(super) fn lane<P: Payload>(lane: &mut dyn AnyLane) -> StageResult<&mut Lane<P>> {
    let lane: &mut dyn Any = lane;
    lane.downcast_mut().ok_or_else(|| "a lane of another payload; this is an error of the library".into())
}

/// A stage that runs forward.
pub(super) struct Forward<S>(pub(super) S);

impl<S: Stage> Chunk for Forward<S> {
    fn forward(&mut self, pass: Pass, unit: usize, ends: &mut Ends<'_>) -> StageResult<()> {
        let (input, flags, bound) = ends.take::<S::In>(unit)?;
        let output = self.0.forward(pass, input)?;
        ends.put::<S::Out>(unit, output, flags, bound)
    }

    fn backward(&mut self, _: usize, _: bool, _: &mut Ends<'_>) -> StageResult<()> {
        Err("this pipeline was made for inference".into())
    }

    fn backward_weight(&mut self, _: usize) -> StageResult<()> {
        Ok(())
    }

    fn release(&mut self, slot: usize) {
        self.0.release(slot);
    }

    fn clear(&mut self) {}

    fn stage(&mut self) -> &mut dyn Any {
        &mut self.0
    }
}

/// The input part and the weight part of a backward pass, as a stage has them.
pub(super) trait Parts<S: Train>: 'static {
    type Queued: 'static;

    fn input(stage: &mut S, saved: S::Saved, grad: Grad<S::Out>) -> StageResult<(Grad<S::In>, Self::Queued)>;

    fn weight(stage: &mut S, queued: Self::Queued) -> StageResult<()>;
}

/// All at once: nothing is left for the weight part.
pub(super) struct Whole;

impl<S: Train> Parts<S> for Whole {
    type Queued = ();

    fn input(stage: &mut S, saved: S::Saved, grad: Grad<S::Out>) -> StageResult<(Grad<S::In>, ())> {
        Ok((stage.backward(saved, grad)?, ()))
    }

    fn weight(_: &mut S, (): ()) -> StageResult<()> {
        Ok(())
    }
}

/// As [`SplitTrain`] says.
pub(super) struct Split;

impl<S: SplitTrain> Parts<S> for Split {
    type Queued = S::Queued;

    fn input(stage: &mut S, saved: S::Saved, grad: Grad<S::Out>) -> StageResult<(Grad<S::In>, S::Queued)> {
        stage.backward_input(saved, grad)
    }

    fn weight(stage: &mut S, queued: S::Queued) -> StageResult<()> {
        stage.backward_weight(queued)
    }
}

/// A stage that is trained.
pub(super) struct Trained<S: Train, B: Parts<S>> {
    stage: S,
    saved: Vec<Saved<S>>,
    queued: Vec<(usize, B::Queued)>,
}

struct Saved<S: Train> {
    unit: usize,
    value: S::Saved,
    /// What the gradients must look like.
    input: Dims,
    output: Dims,
}

impl<S: Train, B: Parts<S>> Trained<S, B> {
    pub(super) fn new(stage: S) -> Self {
        Trained { stage, saved: Vec::new(), queued: Vec::new() }
    }
}

impl<S: Train, B: Parts<S>> Chunk for Trained<S, B> {
    fn forward(&mut self, pass: Pass, unit: usize, ends: &mut Ends<'_>) -> StageResult<()> {
        let (input, flags, bound) = ends.take::<S::In>(unit)?;
        let dims = input.dims();
        let (output, value) = Train::forward(&mut self.stage, pass, input)?;
        self.saved.push(Saved { unit, value, input: dims, output: output.dims() });
        ends.put::<S::Out>(unit, output, flags, bound)
    }

    fn backward(&mut self, unit: usize, split: bool, ends: &mut Ends<'_>) -> StageResult<()> {
        let Some(index) = self.saved.iter().position(|saved| saved.unit == unit) else {
            return Err(format!("microbatch {unit} has no forward pass").into());
        };
        let saved = self.saved.remove(index);
        let (grad, flags, _) = ends.take::<Grad<S::Out>>(unit)?;
        same_dims("the gradient of its output has", grad.dims(), saved.output)?;
        let (grad, queued) = B::input(&mut self.stage, saved.value, grad)?;
        if split {
            self.queued.push((unit, queued));
        } else {
            B::weight(&mut self.stage, queued)?;
        }
        same_dims("made a gradient of its input with", grad.dims(), saved.input)?;
        ends.put::<Grad<S::In>>(unit, grad, flags, Bound::NOTHING)
    }

    fn backward_weight(&mut self, unit: usize) -> StageResult<()> {
        let Some(index) = self.queued.iter().position(|(queued, _)| *queued == unit) else {
            return Err(format!("microbatch {unit} has no queued weight part").into());
        };
        B::weight(&mut self.stage, self.queued.remove(index).1)
    }

    fn release(&mut self, _: usize) {}

    fn clear(&mut self) {
        self.saved.clear();
        self.queued.clear();
    }

    fn stage(&mut self) -> &mut dyn Any {
        &mut self.stage
    }
}

/// A gradient has the dimensions of what it is the gradient of, unless it is none.
fn same_dims(what: &str, grad: Dims, of: Dims) -> StageResult<()> {
    if grad == of || grad.as_slice() == [0] {
        return Ok(());
    }
    Err(format!("{what} dimensions {grad:?}, must have {of:?}").into())
}
