//! Which work each rank does, in which order, and what theory says that it costs.

use super::check::PlanError;
use super::plan::{Costs, Phase, Work};
use std::fmt;

/// An order in which the stages of a pipeline work on the microbatches of one step.
///
/// The [page of the crate](crate) compares them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Schedule {
    /// All forward passes, then all backward passes: simple, and keeps every microbatch's activations.
    GPipe,
    /// One forward, one backward: the time of [`GPipe`](Self::GPipe), activations of at most `ranks` microbatches.
    OneFOneB,
    /// No backward pass: inference.
    ForwardOnly(Flow),
    /// 1F1B with `chunks` stages a rank (at least 2), dealt round: the bubble shrinks by that factor, messages
    /// multiply by it.
    ///
    /// The number of microbatches must be a multiple of the number of ranks.
    Interleaved {
        /// Stages that each rank holds.
        chunks: usize,
    },
    /// 1F1B whose backward pass is split into an input part and a weight part; the weight parts fill the bubble.
    ///
    /// The memory of 1F1B's first rank, on every rank.
    ZbH1,
    /// Two stages a rank, laid out as a V, with a split backward pass: the first rank holds both the first and last
    /// stage.
    ZbV,
}

/// How microbatches pass through a pipeline that only runs forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Flow {
    /// Each microbatch passes once: scoring, or the prompts of a generation.
    FillDrain,
    /// The last stage's result returns to the first stage, `rounds` times: token by token generation.
    ///
    /// Microbatch `m` of the plan is then a slot, and unit `round * microbatches + slot` is one pass of it.
    Ring {
        /// Passes of each microbatch, at least 1.
        rounds: usize,
    },
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GPipe => f.write_str("gpipe"),
            Self::OneFOneB => f.write_str("one_f_one_b"),
            Self::ForwardOnly(Flow::FillDrain) => f.write_str("fill_drain"),
            Self::ForwardOnly(Flow::Ring { rounds }) => write!(f, "ring(rounds = {rounds})"),
            Self::Interleaved { chunks } => write!(f, "interleaved({chunks})"),
            Self::ZbH1 => f.write_str("zb_h1"),
            Self::ZbV => f.write_str("zb_v"),
        }
    }
}

impl Schedule {
    /// Stages that each rank holds.
    pub fn chunks(self) -> usize {
        match self {
            Self::Interleaved { chunks } => chunks,
            Self::ZbV => 2,
            Self::GPipe | Self::OneFOneB | Self::ForwardOnly(_) | Self::ZbH1 => 1,
        }
    }

    /// Whether the backward pass runs at all.
    pub fn trains(self) -> bool {
        !matches!(self, Self::ForwardOnly(_))
    }

    /// Whether the backward pass is split into [`Phase::BackwardInput`] and [`Phase::BackwardWeight`].
    pub fn splits_backward(self) -> bool {
        matches!(self, Self::ZbH1 | Self::ZbV)
    }

    /// Passes through the pipeline of each microbatch: 1, but for the rounds of a ring.
    pub fn rounds(self) -> usize {
        match self {
            Self::ForwardOnly(Flow::Ring { rounds }) => rounds,
            _ => 1,
        }
    }

    /// Most microbatch activations that `rank` holds at once, counted in stages: a rank of `chunks` stages that holds
    /// one whole microbatch counts `chunks`. Kept from the forward pass until the (weight part of the) backward pass.
    pub fn peak_bound(self, rank: usize, ranks: usize, microbatches: usize) -> usize {
        let most = microbatches * self.chunks();
        match self {
            Self::GPipe => most,
            Self::OneFOneB => (ranks - rank).min(most),
            Self::ForwardOnly(_) => 1,
            Self::Interleaved { chunks } => (2 * (ranks - rank - 1) + (chunks - 1) * ranks + 1).min(most),
            Self::ZbH1 => ranks.min(most),
            Self::ZbV => (2 * ranks).min(most),
        }
    }

    /// The makespan that theory gives, in ticks, or `None` where no formula is valid.
    ///
    /// All formulas assume equal stages and free transfers. `zb_h1` needs at least as many microbatches as ranks,
    /// `zb_v` three equal costs and at least `2 * ranks - 1` microbatches.
    pub fn formula(self, ranks: usize, microbatches: usize, costs: Costs) -> Option<u64> {
        let (p, m) = (ranks as u64, microbatches as u64);
        let [f, b, w] = [costs.forward, costs.backward, costs.weight].map(u64::from);
        let all = f + b + w;
        if costs.transfer != 0 {
            return None;
        }
        match self {
            Self::GPipe | Self::OneFOneB => Some((m + p - 1) * all),
            Self::Interleaved { chunks } => Some((m * chunks as u64 + p - 1) * all),
            Self::ForwardOnly(flow) => Some(forward_only(flow, p, m) * f),
            Self::ZbH1 => (m >= p).then(|| m * all + (p - 1) * zb_h1_slope(f, b, w)),
            Self::ZbV => (f == b && b == w && m >= 2 * p - 1).then(|| 2 * m * all + (p - 1) * f),
        }
    }

    /// Refuses sizes that this schedule has no order for.
    pub(super) fn admit(self, ranks: usize, microbatches: usize) -> Result<(), PlanError> {
        let empty = |what| Err(PlanError::Empty { schedule: self, what });
        match self {
            _ if ranks == 0 => empty("ranks"),
            _ if microbatches == 0 => empty("microbatches"),
            Self::ForwardOnly(Flow::Ring { rounds: 0 }) => empty("rounds"),
            Self::Interleaved { chunks } if chunks < 2 => Err(PlanError::Chunks { chunks }),
            Self::Interleaved { .. } if !microbatches.is_multiple_of(ranks) => {
                Err(PlanError::Microbatches { schedule: self, ranks, microbatches })
            }
            _ => self.admit_size(ranks, microbatches),
        }
    }

    fn admit_size(self, ranks: usize, microbatches: usize) -> Result<(), PlanError> {
        let phases = if self.splits_backward() { 3 } else { 1 + usize::from(self.trains()) };
        let work = [ranks, microbatches, self.chunks(), self.rounds(), phases].into_iter();
        match work.fold(1, usize::saturating_mul) {
            work if work <= PlanError::MOST_WORK && ranks <= PlanError::MOST_RANKS => Ok(()),
            work => Err(PlanError::TooLarge { schedule: self, ranks, microbatches, work }),
        }
    }

    /// The work of `rank`, in order. The sizes have been admitted.
    pub(super) fn work(self, rank: usize, ranks: usize, microbatches: usize) -> Vec<Work> {
        let of = |phase, microbatch| Work { phase, stage: rank, microbatch };
        let units = microbatches * self.rounds();
        let forward = (0..units).map(|unit| of(Phase::Forward, unit));
        match self {
            Self::ForwardOnly(_) => forward.collect(),
            Self::GPipe => forward.chain((0..units).map(|unit| of(Phase::Backward, unit))).collect(),
            Self::OneFOneB => {
                let backward = (0..units).map(|unit| of(Phase::Backward, unit)).collect();
                alternate(forward.collect(), backward, ranks - rank - 1)
            }
            Self::Interleaved { chunks } => interleaved(rank, ranks, microbatches, chunks),
            Self::ZbH1 => zb_h1(rank, ranks, microbatches),
            Self::ZbV => zb_v(rank, ranks, microbatches),
        }
    }
}

/// The makespan of inference, in forward passes of one stage.
fn forward_only(flow: Flow, p: u64, m: u64) -> u64 {
    match flow {
        Flow::FillDrain => m + p - 1,
        // A slot starts its next round when its last result is back and all the others have had their turn.
        Flow::Ring { rounds } => (rounds as u64 - 1) * p.max(m) + m + p - 1,
    }
}

/// What each further rank adds to `zb_h1`. The paper has `f + b - w`, valid for `w` up to `f` and `b`; a longer weight
/// part cannot hide the time in which the pipeline fills with forward passes or empties of backward passes.
fn zb_h1_slope(f: u64, b: u64, w: u64) -> u64 {
    (f + b).saturating_sub(w).max(f).max(b)
}

/// `warm_up` forward passes, then one forward and one backward in turn, then the backward passes that remain.
fn alternate(forward: Vec<Work>, backward: Vec<Work>, warm_up: usize) -> Vec<Work> {
    let mut forward = forward.into_iter();
    let mut work: Vec<Work> = forward.by_ref().take(warm_up).collect();
    for backward in backward {
        work.extend(forward.next());
        work.push(backward);
    }
    work
}

/// Chunks take turns every `ranks` microbatches; backward passes visit them from the last to the first.
fn interleaved(rank: usize, ranks: usize, microbatches: usize, chunks: usize) -> Vec<Work> {
    let nth = |phase, n: usize| {
        let (round, place) = (n / (ranks * chunks), n % (ranks * chunks));
        let turn = place / ranks;
        let chunk = if phase == Phase::Forward { turn } else { chunks - 1 - turn };
        Work { phase, stage: chunk * ranks + rank, microbatch: round * ranks + place % ranks }
    };
    let all = 0..microbatches * chunks;
    let warm_up = 2 * (ranks - rank - 1) + (chunks - 1) * ranks;
    let forward = all.clone().map(|n| nth(Phase::Forward, n)).collect();
    alternate(forward, all.map(|n| nth(Phase::Backward, n)).collect(), warm_up)
}

/// 1F1B with each weight part `rank` microbatches late: then every rank holds `ranks` microbatches and the last ranks
/// have weight parts left for the time in which they would wait.
fn zb_h1(rank: usize, ranks: usize, microbatches: usize) -> Vec<Work> {
    let of = |phase, microbatch| Work { phase, stage: rank, microbatch };
    let warm_up = ranks - rank - 1;
    let mut work: Vec<Work> = (0..warm_up.min(microbatches)).map(|unit| of(Phase::Forward, unit)).collect();
    let mut weights = 0..microbatches;
    for unit in 0..microbatches {
        if warm_up + unit < microbatches {
            work.push(of(Phase::Forward, warm_up + unit));
        }
        work.push(of(Phase::BackwardInput, unit));
        if unit >= rank {
            work.extend(weights.next().map(|unit| of(Phase::BackwardWeight, unit)));
        }
    }
    work.extend(weights.map(|unit| of(Phase::BackwardWeight, unit)));
    work
}

/// The V-shaped order. It needs `2 * ranks - 1` microbatches to unfold; with fewer it is the order of that many, less
/// the work on those that do not exist (dependencies stay within a microbatch, so what remains is still in order).
fn zb_v(rank: usize, ranks: usize, microbatches: usize) -> Vec<Work> {
    let count = microbatches.max(2 * ranks - 1);
    let mut v = VShape { stages: [rank, 2 * ranks - 1 - rank], next: [[0; 3]; 2], work: Vec::new() };
    v.forward(0, 2 * (ranks - rank) - 1);
    for _ in 0..rank {
        v.forward(1, 1);
        v.forward(0, 1);
    }
    for _ in rank..ranks {
        v.forward(1, 1);
        v.backward(1);
    }
    while v.done(1, Phase::Forward) < count {
        if v.done(0, Phase::Forward) < count {
            v.forward(0, 1);
        }
        v.backward(0);
        v.forward(1, 1);
        v.backward(1);
    }
    v.finish(rank, ranks);
    v.work.retain(|work| work.microbatch < microbatches);
    v.work
}

/// The state of [`zb_v`]: the two stages of a rank, and how often each phase of each was done.
struct VShape {
    stages: [usize; 2],
    next: [[usize; 3]; 2],
    work: Vec<Work>,
}

impl VShape {
    fn done(&self, chunk: usize, phase: Phase) -> usize {
        self.next[chunk][Self::column(phase)]
    }

    fn column(phase: Phase) -> usize {
        match phase {
            Phase::Forward => 0,
            Phase::Backward | Phase::BackwardInput => 1,
            Phase::BackwardWeight => 2,
        }
    }

    fn push(&mut self, chunk: usize, phase: Phase) {
        let next = &mut self.next[chunk][Self::column(phase)];
        self.work.push(Work { phase, stage: self.stages[chunk], microbatch: *next });
        *next += 1;
    }

    fn forward(&mut self, chunk: usize, times: usize) {
        for _ in 0..times {
            self.push(chunk, Phase::Forward);
        }
    }

    fn backward(&mut self, chunk: usize) {
        self.push(chunk, Phase::BackwardInput);
        self.push(chunk, Phase::BackwardWeight);
    }

    /// The backward passes that remain; weight parts wait where another rank needs a gradient sooner.
    fn finish(&mut self, rank: usize, ranks: usize) {
        for _ in 0..rank {
            self.push(0, Phase::BackwardInput);
            self.push(1, Phase::BackwardInput);
        }
        for _ in rank..ranks {
            self.push(0, Phase::BackwardInput);
            self.push(0, Phase::BackwardWeight);
        }
        for chunk in [1, 0] {
            while self.done(chunk, Phase::BackwardWeight) < self.done(chunk, Phase::BackwardInput) {
                self.push(chunk, Phase::BackwardWeight);
            }
        }
    }
}
