//! A plan: what each rank does, in order, projected from one order of the whole pipeline.

use super::check::{self, PlanError};
use super::picture;
use super::project;
use super::schedule::{Flow, Schedule};
use super::simulate::{self, Timeline};
use std::fmt;

/// What every rank of a pipeline does in one step, in order. Proved to end on a transport that buffers nothing.
///
/// The [page of the crate](crate) has examples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    shape: Shape,
    costs: Costs,
    /// Invariant: (1) passed [`check::actions`] for `shape`.
    actions: Vec<Vec<Action>>,
    timeline: Timeline,
    ideal: u64,
}

/// How long work takes, in ticks, the same for every stage.
///
/// A rank that holds several stages spends the sum on a microbatch: to compare `interleaved(2)` with 1F1B, halve its
/// costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Costs {
    /// The forward pass of one stage on one microbatch.
    pub forward: u32,
    /// The part of the backward pass that makes the gradient of the stage's input.
    pub backward: u32,
    /// The part of the backward pass that makes the gradients of the weights. An unsplit backward pass takes both.
    pub weight: u32,
    /// One message, during which both ranks are busy.
    pub transfer: u32,
}

/// What a rank does at one place of its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Run a part of a stage on a microbatch.
    Compute(Work),
    /// Send, and wait until the receiver has it.
    Send(Message),
    /// Wait for a message.
    Recv(Message),
    /// Send one message and receive another in one call, so that neither waits for the other.
    Exchange {
        /// What leaves this rank.
        send: Message,
        /// What arrives.
        recv: Message,
    },
}

/// One piece of computing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Work {
    /// The part of the stage that runs.
    pub phase: Phase,
    /// The stage, counted along the pipeline; a rank may hold several ([`Plan::rank_of`]).
    pub stage: usize,
    /// The microbatch; in a ring `round * microbatches + slot`.
    pub microbatch: usize,
}

/// A part of a stage's work on a microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// The stage's output from its input.
    Forward,
    /// All gradients at once.
    Backward,
    /// The gradient of the stage's input alone, which the previous stage waits for.
    BackwardInput,
    /// The gradients of the stage's weights, which nobody waits for.
    BackwardWeight,
}

/// A tensor on its way between two stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    /// Where it travels.
    pub channel: Channel,
    /// The microbatch that it belongs to.
    pub microbatch: usize,
}

/// One direction of one edge. Messages of a channel arrive in the order in which they were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Channel {
    /// Edge `e` joins stage `e` to stage `e + 1`; in a ring the last edge joins the last stage to the first.
    pub edge: usize,
    /// Which way.
    pub direction: Direction,
}

/// Activations go forward, gradients backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Activations, and the results that return in a ring.
    Forward,
    /// Gradients.
    Backward,
}

/// What waiting for unbuffered messages costs: see [`Plan::loss`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Ticks of the same order of work if messages were buffered and travelled beside the work.
    pub ideal: u64,
    /// Ticks of the plan.
    pub blocking: u64,
}

impl Plan {
    /// Plans one step of `schedule` on `ranks` ranks with `microbatches` microbatches (slots, in a ring).
    ///
    /// `costs` decide where messages stand between the work and what the pictures show; every plan runs to its end
    /// whatever the work really takes.
    ///
    /// # Errors
    /// [`PlanError::Microbatches`] and its relatives: sizes that the schedule has no order for.
    pub fn new(schedule: Schedule, ranks: usize, microbatches: usize, costs: Costs) -> Result<Self, PlanError> {
        let shape = Shape::new(schedule, ranks, microbatches)?;
        let work: Vec<_> = (0..ranks).map(|rank| schedule.work(rank, ranks, microbatches)).collect();
        Self::projected(shape, costs, &work)
    }

    /// Places the messages for work in an order of your own, one list a rank; stages live where `schedule` puts them.
    ///
    /// # Errors
    /// [`PlanError::Unordered`] where a rank's order can't be kept, and what [`by_hand`](Self::by_hand) says about
    /// work.
    pub fn from_work(
        schedule: Schedule,
        ranks: usize,
        microbatches: usize,
        costs: Costs,
        work: &[Vec<Work>],
    ) -> Result<Self, PlanError> {
        let shape = Shape::new(schedule, ranks, microbatches)?;
        check::places(&shape, work)?;
        Self::projected(shape, costs, work)
    }

    /// Takes hand-made `actions`, one list a rank, if they do all the work of `schedule`, each with its inputs there,
    /// and come to an end without buffers. The order of the work is free.
    ///
    /// # Errors
    /// The first mistake found: see [`PlanError`]. A deadlock names each rank in it and the action it is stuck in.
    pub fn by_hand(
        schedule: Schedule,
        ranks: usize,
        microbatches: usize,
        costs: Costs,
        actions: Vec<Vec<Action>>,
    ) -> Result<Self, PlanError> {
        let shape = Shape::new(schedule, ranks, microbatches)?;
        check::actions(&shape, &actions)?;
        let work: Vec<Vec<Work>> = actions.iter().map(|actions| work_of(actions).collect()).collect();
        let ideal = simulate::ideal(&shape, &work, costs)?;
        Self::checked(shape, costs, actions, ideal)
    }

    fn projected(shape: Shape, costs: Costs, work: &[Vec<Work>]) -> Result<Self, PlanError> {
        let ideal = simulate::ideal(&shape, work, costs)?;
        let actions = project::actions(&shape, work, costs, ideal)?;
        Self::checked(shape, costs, actions, ideal)
    }

    fn checked(shape: Shape, costs: Costs, actions: Vec<Vec<Action>>, ideal: u64) -> Result<Self, PlanError> {
        check::actions(&shape, &actions)?;
        let timeline = Timeline::run(&shape, &actions, |work| costs.of(work), costs.transfer.into())?;
        Ok(Self { shape, costs, actions, timeline, ideal })
    }

    /// The schedule it was made for.
    pub fn schedule(&self) -> Schedule {
        self.shape.schedule
    }

    /// Ranks of the pipeline.
    pub fn ranks(&self) -> usize {
        self.shape.ranks
    }

    /// Stages of the pipeline: `ranks` times [`Schedule::chunks`].
    pub fn stages(&self) -> usize {
        self.shape.stages()
    }

    /// Microbatches of the step, or slots of a ring.
    pub fn microbatches(&self) -> usize {
        self.shape.microbatches
    }

    /// The costs that it was made with.
    pub fn costs(&self) -> Costs {
        self.costs
    }

    /// The rank that holds `stage`.
    pub fn rank_of(&self, stage: usize) -> usize {
        self.shape.rank_of(stage)
    }

    /// The stages that `rank` holds, first to last.
    pub fn stages_of(&self, rank: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.stages()).filter(move |&stage| self.rank_of(stage) == rank)
    }

    /// The ranks that send and receive on `channel`.
    pub fn ends(&self, channel: Channel) -> (usize, usize) {
        self.shape.ends(channel)
    }

    /// What `rank` does, in order. Empty for a rank outside the pipeline.
    pub fn actions(&self, rank: usize) -> &[Action] {
        self.actions.get(rank).map_or(&[], Vec::as_slice)
    }

    /// When each action begins and ends with the plan's [`costs`](Self::costs).
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// When each action would begin and end if work took `ticks` and a message `transfer` ticks.
    ///
    /// Use it for stages of unequal cost. The order stays that of the plan.
    pub fn retimed(&self, ticks: impl Fn(Work) -> u32, transfer: u32) -> Timeline {
        // (1): actions that passed the check end whatever they cost, so the error cannot happen.
        Timeline::run(&self.shape, &self.actions, |work| ticks(work).into(), transfer.into()).unwrap_or_default()
    }

    /// Most activations that `rank` holds at once, in stages: see [`Schedule::peak_bound`].
    pub fn peak_activations(&self, rank: usize) -> usize {
        simulate::peak_activations(self.shape.schedule, self.actions(rank))
    }

    /// Most messages that `rank` holds at once: received and not used yet, or made and not sent yet.
    pub fn peak_messages(&self, rank: usize) -> usize {
        simulate::peak_messages(&self.shape, self.actions(rank))
    }

    /// The time lost because messages are not buffered and do not travel beside the work: none wherever `ideal` equals
    /// `blocking`.
    pub fn loss(&self) -> Loss {
        Loss { ideal: self.ideal, blocking: self.timeline.makespan() }
    }

    /// A number that differs, in all likelihood, between plans that differ in any action: compare it between ranks
    /// before the first step.
    pub fn digest(&self) -> u64 {
        let text = format!("{}/{}/{:?}", self.ranks(), self.microbatches(), self.actions);
        // FNV-1a: the same on every host and toolchain, which the standard hasher does not promise.
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    /// The picture of the plan as text: the [page of the crate](crate) shows one.
    ///
    /// One row a rank. A column is one tick, or the largest number of ticks that divides all times, so that nothing is
    /// rounded; a picture that would be wider than 1000 columns is sampled at that many. `.` waits for a peer, `=`
    /// transfers, and a rank that is done shows nothing.
    pub fn to_text(&self) -> String {
        picture::text(self)
    }

    /// The same as a well-formed SVG image: colours tell microbatches apart, shades the phases; waiting is hatched.
    pub fn to_svg(&self) -> String {
        picture::svg(self)
    }
}

impl Costs {
    /// Costs with free transfers, in ticks.
    pub const fn new(forward: u32, backward: u32, weight: u32) -> Self {
        Self { forward, backward, weight, transfer: 0 }
    }

    /// The same with `ticks` a message.
    #[must_use]
    pub const fn with_transfer(self, ticks: u32) -> Self {
        Self { transfer: ticks, ..self }
    }

    pub(super) fn of(self, work: Work) -> u64 {
        match work.phase {
            Phase::Forward => self.forward.into(),
            Phase::Backward => u64::from(self.backward) + u64::from(self.weight),
            Phase::BackwardInput => self.backward.into(),
            Phase::BackwardWeight => self.weight.into(),
        }
    }
}

/// One tick for each part of the work, transfers free.
impl Default for Costs {
    fn default() -> Self {
        Self::new(1, 1, 1)
    }
}

impl Loss {
    /// Ticks lost.
    pub fn ticks(self) -> u64 {
        self.blocking.saturating_sub(self.ideal)
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ticks() {
            0 => f.write_str("no time lost to blocking messages"),
            lost => write!(f, "{lost} of {} ticks lost to blocking messages", self.blocking),
        }
    }
}

impl Action {
    /// What the action sends.
    pub fn sends(&self) -> Option<Message> {
        match *self {
            Self::Send(message) | Self::Exchange { send: message, .. } => Some(message),
            Self::Compute(_) | Self::Recv(_) => None,
        }
    }

    /// What the action receives.
    pub fn receives(&self) -> Option<Message> {
        match *self {
            Self::Recv(message) | Self::Exchange { recv: message, .. } => Some(message),
            Self::Compute(_) | Self::Send(_) => None,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Compute(work) => work.fmt(f),
            Self::Send(message) => write!(f, "send {message}"),
            Self::Recv(message) => write!(f, "receive {message}"),
            Self::Exchange { send, recv } => write!(f, "send {send} and receive {recv}"),
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = match self.phase {
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::BackwardInput => "backward (input)",
            Phase::BackwardWeight => "backward (weights)",
        };
        write!(f, "{phase} of microbatch {} on stage {}", self.microbatch, self.stage)
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, edge) = match self.channel.direction {
            Direction::Forward => ("activation", self.channel.edge),
            Direction::Backward => ("gradient", self.channel.edge),
        };
        write!(f, "the {what} of microbatch {} over edge {edge}", self.microbatch)
    }
}

/// The work in a list of actions.
pub(super) fn work_of(actions: &[Action]) -> impl Iterator<Item = Work> + '_ {
    actions.iter().filter_map(|action| match action {
        Action::Compute(work) => Some(*work),
        _ => None,
    })
}

/// Sizes, where stages live, and what work needs and makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) schedule: Schedule,
    pub(super) ranks: usize,
    pub(super) microbatches: usize,
}

impl Shape {
    fn new(schedule: Schedule, ranks: usize, microbatches: usize) -> Result<Self, PlanError> {
        schedule.admit(ranks, microbatches)?;
        Ok(Self { schedule, ranks, microbatches })
    }

    pub(super) fn stages(&self) -> usize {
        self.ranks * self.schedule.chunks()
    }

    /// Passes through the whole pipeline.
    pub(super) fn units(&self) -> usize {
        self.microbatches * self.schedule.rounds()
    }

    pub(super) fn rank_of(&self, stage: usize) -> usize {
        match self.schedule {
            Schedule::ZbV if stage >= self.ranks => (2 * self.ranks).saturating_sub(stage + 1),
            _ => stage % self.ranks,
        }
    }

    /// Sender and receiver; the same rank where two neighbouring stages share one.
    pub(super) fn ends(&self, channel: Channel) -> (usize, usize) {
        let near = self.rank_of(channel.edge);
        let far = self.rank_of((channel.edge % self.stages() + 1) % self.stages());
        match channel.direction {
            Direction::Forward => (near, far),
            Direction::Backward => (far, near),
        }
    }

    /// Whether `message` stays within a rank: then nothing is sent.
    pub(super) fn is_local(&self, message: Message) -> bool {
        let (from, to) = self.ends(message.channel);
        from == to
    }

    /// What must be there before `work` starts, beside what the same stage did before on the same microbatch.
    pub(super) fn needs(&self, work: Work) -> Option<Message> {
        let Work { stage, microbatch, .. } = work;
        match work.phase {
            Phase::Forward if stage > 0 => Some(message(stage - 1, Direction::Forward, microbatch)),
            Phase::Forward if self.is_ring() => {
                let before = microbatch.checked_sub(self.microbatches)?;
                Some(message(self.stages() - 1, Direction::Forward, before))
            }
            Phase::Backward | Phase::BackwardInput if stage < self.stages() - 1 => {
                Some(message(stage, Direction::Backward, microbatch))
            }
            _ => None,
        }
    }

    /// What others wait for once `work` is done.
    pub(super) fn makes(&self, work: Work) -> Option<Message> {
        let Work { stage, microbatch, .. } = work;
        match work.phase {
            Phase::Forward if stage < self.stages() - 1 => Some(message(stage, Direction::Forward, microbatch)),
            Phase::Forward if self.is_ring() && microbatch < self.units() - self.microbatches => {
                Some(message(stage, Direction::Forward, microbatch))
            }
            Phase::Backward | Phase::BackwardInput if stage > 0 => {
                Some(message(stage - 1, Direction::Backward, microbatch))
            }
            _ => None,
        }
    }

    fn is_ring(&self) -> bool {
        matches!(self.schedule, Schedule::ForwardOnly(Flow::Ring { .. }))
    }
}

fn message(edge: usize, direction: Direction, microbatch: usize) -> Message {
    Message { channel: Channel { edge, direction }, microbatch }
}
