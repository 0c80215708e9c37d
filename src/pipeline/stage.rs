//! What a stage is: [`Stage`] runs forward, [`Train`] backward too, [`SplitTrain`] in two parts.

use super::chunk::{Chunk, Split, Trained, Whole};
use super::payload::Payload;
use std::any::Any;
use std::fmt;
use std::marker::PhantomData;

/// Any error of a stage; `?` makes one of every error type. It ends the step on every rank.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// `Result` of a stage's own code.
pub type StageResult<T> = Result<T, BoxError>;

/// Which pass through the pipeline a stage is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pass {
    /// The microbatch of the step, or the slot of the ring.
    pub microbatch: usize,
    /// The round of the ring, from 0; else 0.
    pub round: usize,
    /// True when a new sequence begins in this slot: what the stage keeps for it (a key/value cache) begins anew. Always
    /// true outside a ring.
    pub starts: bool,
}

/// A stage that runs forward: inference.
///
/// Every [`Train`] stage is one too.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a stage of a pipeline",
    label = "not a stage",
    note = "put `#[hccl::stage]` on its `impl` block, or implement `hccl::pipeline::Stage`"
)]
pub trait Stage: 'static {
    /// What it is given: the output of the stage before it.
    type In: Payload;
    /// What it makes.
    type Out: Payload;

    /// The output for `input`.
    ///
    /// # Errors
    /// Any: it ends the step on every rank, with this error.
    fn forward(&mut self, pass: Pass, input: Self::In) -> StageResult<Self::Out>;

    /// A slot of a ring holds no sequence: what the stage keeps for it can go. Called once a round while it is idle.
    fn release(&mut self, slot: usize) {
        let _ = slot;
    }
}

/// The gradient of a payload.
pub type Grad<P> = <P as Payload>::Grad;

/// A stage that can be trained. It adds up the gradients of its weights itself, in f32 whatever the edges carry.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be trained in a pipeline",
    label = "has no backward pass",
    note = "write `forward` that also returns what the backward pass needs, and `backward`, in a `#[hccl::stage]` \
            impl, or implement `hccl::pipeline::Train`"
)]
pub trait Train: 'static {
    /// What it is given: the output of the stage before it.
    type In: Payload;
    /// What it makes.
    type Out: Payload;
    /// What the backward pass of a microbatch needs of its forward pass: moved from one to the other, used once.
    type Saved: 'static;

    /// The output for `input`, and what [`backward`](Train::backward) will need.
    ///
    /// # Errors
    /// Any: it ends the step on every rank, with this error.
    fn forward(&mut self, pass: Pass, input: Self::In) -> StageResult<(Self::Out, Self::Saved)>;

    /// The gradient of the input from that of the output; adds the gradients of the weights to what was there.
    ///
    /// # Errors
    /// As [`forward`](Train::forward).
    fn backward(&mut self, saved: Self::Saved, grad: Grad<Self::Out>) -> StageResult<Grad<Self::In>>;

    /// As [`Stage::release`], when it runs forward in a ring.
    fn release(&mut self, slot: usize) {
        let _ = slot;
    }

    /// The stage as the pipeline runs it: `#[hccl::stage]` says here whether its backward pass is split.
    #[doc(hidden)]
    fn into_chunk(self) -> IntoChunk
    where
        Self: Sized,
    {
        IntoChunk(Box::new(Trained::<Self, Whole>::new(self)))
    }
}

/// A stage that is ready to run.
#[doc(hidden)]
pub struct IntoChunk(pub(super) Box<dyn Chunk>);

impl IntoChunk {
    /// A stage whose backward pass comes in two parts.
    pub fn split<S: SplitTrain>(stage: S) -> Self {
        IntoChunk(Box::new(Trained::<S, Split>::new(stage)))
    }
}

/// A stage whose backward pass comes in two parts, so that `zb_h1` and `zb_v` can fill their bubbles with the second.
#[diagnostic::on_unimplemented(
    message = "the backward pass of `{Self}` is not split",
    label = "has no `backward_input` and `backward_weight`",
    note = "implement `hccl::pipeline::SplitTrain`, or add the stage with `stage` instead of `split_stage`: the schedule \
            then runs with whole backward passes"
)]
pub trait SplitTrain: Train {
    /// What the weight part needs.
    type Queued: 'static;

    /// The gradient of the input, which the stage before waits for, and what [`backward_weight`] will need.
    ///
    /// # Errors
    /// As [`forward`](Train::forward).
    ///
    /// [`backward_weight`]: SplitTrain::backward_weight
    fn backward_input(
        &mut self,
        saved: Self::Saved,
        grad: Grad<Self::Out>,
    ) -> StageResult<(Grad<Self::In>, Self::Queued)>;

    /// Adds the gradients of the weights to what was there.
    ///
    /// # Errors
    /// As [`forward`](Train::forward).
    fn backward_weight(&mut self, queued: Self::Queued) -> StageResult<()>;
}

impl<S: Train> Stage for S {
    type In = S::In;
    type Out = S::Out;

    fn forward(&mut self, pass: Pass, input: Self::In) -> StageResult<Self::Out> {
        Ok(Train::forward(self, pass, input)?.0)
    }

    fn release(&mut self, slot: usize) {
        Train::release(self, slot);
    }
}

/// Types that a value has to do with and does not hold.
pub(super) type Marker<T> = PhantomData<fn() -> T>;

/// Neither a longer nor a shorter lifetime fits.
type Invariant<'p> = PhantomData<fn(&'p ()) -> &'p ()>;

/// Proof that this rank holds stage `S`: exists while the stage is made, on that rank alone.
///
/// A constructor that takes `&At<Self>` can be called nowhere else, so no rank builds weights of others by mistake. The
/// lifetime is invariant, so that it cannot be kept.
pub struct At<'p, S> {
    index: usize,
    stages: usize,
    place: Invariant<'p>,
    stage: PhantomData<fn() -> S>,
}

impl<S> At<'_, S> {
    pub(super) fn new(index: usize, stages: usize) -> Self {
        At { index, stages, place: PhantomData, stage: PhantomData }
    }

    /// The number of the stage along the pipeline, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Stages of the pipeline.
    pub fn stages(&self) -> usize {
        self.stages
    }

    /// The share of `total` layers that this stage takes when they are dealt evenly, the first ones one more.
    ///
    /// ```
    /// # use hccl::pipeline::{self, Act, Dyn, Pass, Plan, Schedule, Stage, StageResult, Costs, Flow};
    /// # struct Layers(std::ops::Range<usize>);
    /// # impl Stage for Layers {
    /// #     type In = Act<u8, (Dyn,)>;
    /// #     type Out = Act<u8, (Dyn,)>;
    /// #     fn forward(&mut self, _: Pass, x: Self::In) -> StageResult<Self::Out> { Ok(x) }
    /// # }
    /// let ranges = hccl::local(3, |comm| {
    ///     let plan = Plan::new(Schedule::ForwardOnly(Flow::FillDrain), 3, 1, Costs::default())?;
    ///     let mut pipe = pipeline::infer(&comm, plan).stages(3, |at| Ok(Layers(at.layers(8)))).build()?;
    ///     Ok(pipe.stage_mut::<Layers>(comm.rank().index()).map(|stage| stage.0.clone()))
    /// })?;
    /// assert_eq!(ranges, [Some(0..3), Some(3..6), Some(6..8)]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn layers(&self, total: usize) -> std::ops::Range<usize> {
        let (each, more) = (total / self.stages, total % self.stages);
        let first = |index: usize| index * each + index.min(more);
        first(self.index)..first(self.index + 1)
    }
}

impl<'p, S: 'static> At<'p, S> {
    /// The stage that this place is for: what the function given to a declared pipeline returns.
    pub fn hold(&self, stage: S) -> Held<'p> {
        Held { stage: Box::new(stage), place: PhantomData }
    }

    /// The same place.
    #[doc(hidden)]
    pub fn again(&self) -> At<'p, S> {
        At::new(self.index, self.stages)
    }

    /// The stage that was held here.
    #[doc(hidden)]
    pub fn made(&self, held: Held<'p>) -> StageResult<S> {
        let stage = held.stage.downcast().map_err(|_| "the stage of another place was given back")?;
        Ok(*stage)
    }
}

/// A stage in its place: made by [`At::hold`], nowhere else.
pub struct Held<'p> {
    stage: Box<dyn Any>,
    place: Invariant<'p>,
}

impl fmt::Debug for Held<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Held")
    }
}

impl<S> fmt::Debug for At<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "At({}, stage {} of {})", name_of::<S>(), self.index, self.stages)
    }
}

/// `Blocks` of `model::Blocks`, whatever stands in angle brackets.
pub(super) fn name_of<S>() -> &'static str {
    let full = std::any::type_name::<S>();
    let path = full.split('<').next().unwrap_or(full);
    path.rsplit("::").next().unwrap_or(path)
}
