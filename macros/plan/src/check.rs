//! What makes a plan valid, and what is wrong with one that is not.

use super::plan::{Action, Message, Phase, Shape, Work};
use super::schedule::Schedule;
use super::simulate::Timeline;
use std::collections::HashSet;
use std::fmt;

/// Why a plan is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// A plan without ranks, microbatches or rounds.
    Empty {
        /// The schedule asked for.
        schedule: Schedule,
        /// What there is none of.
        what: &'static str,
    },
    /// The schedule has no order for this number of microbatches.
    Microbatches {
        /// The schedule asked for.
        schedule: Schedule,
        /// Ranks of the pipeline.
        ranks: usize,
        /// Microbatches asked for.
        microbatches: usize,
    },
    /// `interleaved` with fewer than two stages a rank.
    Chunks {
        /// Stages a rank asked for.
        chunks: usize,
    },
    /// More ranks or work than a plan holds ([`PlanError::MOST_RANKS`], [`PlanError::MOST_WORK`]).
    TooLarge {
        /// The schedule asked for.
        schedule: Schedule,
        /// Ranks of the pipeline.
        ranks: usize,
        /// Microbatches asked for.
        microbatches: usize,
        /// Pieces of work that this makes.
        work: usize,
    },
    /// A hand-made plan has not one list of actions a rank.
    Ranks {
        /// Ranks of the pipeline.
        ranks: usize,
        /// Lists given.
        lists: usize,
    },
    /// An action that this rank cannot do: the stage, the edge or the microbatch is not its own or does not exist.
    Misplaced {
        /// The rank.
        rank: usize,
        /// Index in its list of actions.
        position: usize,
        /// The action there.
        action: Action,
    },
    /// A phase that this schedule does not have, as a split backward pass in 1F1B.
    Phase {
        /// The schedule asked for.
        schedule: Schedule,
        /// The rank.
        rank: usize,
        /// Index in its list of actions.
        position: usize,
        /// The action there.
        action: Action,
    },
    /// An action whose input is not there yet, or is used up.
    NotReady {
        /// The rank.
        rank: usize,
        /// Index in its list of actions.
        position: usize,
        /// The action there.
        action: Action,
    },
    /// An action that was done before.
    Twice {
        /// The rank.
        rank: usize,
        /// Index in its list of actions.
        position: usize,
        /// The action there.
        action: Action,
    },
    /// A rank never does this work.
    Missing {
        /// The rank.
        rank: usize,
        /// What it should do.
        work: Work,
    },
    /// A rank makes or receives this and never passes it on.
    Unused {
        /// The rank.
        rank: usize,
        /// What is left over.
        message: Message,
    },
    /// The order of work alone can't be kept: this rank comes to a piece whose input is made only after it.
    Unordered {
        /// The rank.
        rank: usize,
        /// The first piece that never becomes ready.
        work: Work,
    },
    /// Ranks that wait for each other in a circle: each for the next, the last for the first.
    Deadlock {
        /// The circle.
        cycle: Vec<Blocked>,
    },
    /// A rank waits for one that has no action left; others may wait for it in turn.
    Alone {
        /// Who waits for whom; the last one waits for a rank that is done.
        chain: Vec<Blocked>,
    },
}

/// A rank that cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The rank.
    pub rank: usize,
    /// Index in its list of actions.
    pub position: usize,
    /// The action that does not end.
    pub action: Action,
    /// The rank that does not answer.
    pub waits_for: usize,
}

impl PlanError {
    /// Most ranks of a plan.
    pub const MOST_RANKS: usize = 1 << 8;
    /// Most pieces of work in a plan, over all ranks.
    pub const MOST_WORK: usize = 1 << 18;
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty { schedule, what } => write!(f, "{schedule}: 0 {what} (hint: at least 1 is needed)"),
            Self::Microbatches { schedule, ranks, microbatches } => {
                write!(f, "{schedule} on {ranks} ranks cannot run {microbatches} microbatches (hint: use ")?;
                match microbatches - microbatches % ranks {
                    0 => write!(f, "{ranks}, or another multiple of {ranks})"),
                    below => write!(f, "{below} or {}, a multiple of {ranks})", below + ranks),
                }
            }
            Self::Chunks { chunks } => {
                write!(f, "interleaved({chunks}): needs at least 2 stages a rank (hint: with 1, use one_f_one_b)")
            }
            Self::TooLarge { schedule, ranks, microbatches, work } => write!(
                f,
                "{schedule} on {ranks} ranks with {microbatches} microbatches is {work} pieces of work (hint: plan at \
                 most {} ranks and {} pieces, and repeat the plan)",
                Self::MOST_RANKS,
                Self::MOST_WORK
            ),
            Self::Ranks { ranks, lists } => {
                write!(f, "{lists} lists of actions for {ranks} ranks (hint: give one list a rank)")
            }
            _ => self.fmt_hand_made(f),
        }
    }
}

impl PlanError {
    /// The mistakes that only hand-made plans have.
    fn fmt_hand_made(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misplaced { rank, position, action } => write!(
                f,
                "rank {rank}, action {position}: it cannot {} (hint: the stage or an end of the edge must be on this \
                 rank, and the microbatch must exist)",
                Imperative(action)
            ),
            Self::Phase { schedule, rank, position, action } => write!(
                f,
                "rank {rank}, action {position}: {schedule} has no {action} (hint: a backward pass is whole, or split \
                 in two, or absent, as the schedule says)"
            ),
            Self::NotReady { rank, position, action } => write!(
                f,
                "rank {rank}, action {position}: cannot {} here (hint: its input must be made or received before it, \
                 and is used once)",
                Imperative(action)
            ),
            Self::Twice { rank, position, action } => {
                write!(f, "rank {rank}, action {position}: {action} is there twice (hint: leave one out)")
            }
            Self::Missing { rank, work } => write!(f, "rank {rank} never does the {work} (hint: add it)"),
            Self::Unused { rank, message } => {
                write!(f, "rank {rank} never passes on {message} (hint: send it, or do the work that needs it)")
            }
            Self::Unordered { rank, work } => {
                write!(f, "rank {rank} never becomes ready for the {work} (hint: it stands before work that it needs)")
            }
            Self::Deadlock { cycle } => {
                f.write_str("deadlock: ")?;
                list(f, cycle)?;
                f.write_str(" (hint: without buffers a send ends when it is received; reorder one of these actions)")
            }
            Self::Alone { chain } => {
                list(f, chain)?;
                f.write_str(", which has no action left (hint: every send needs its receive, and the reverse)")
            }
            _ => Ok(()),
        }
    }
}

fn list(f: &mut fmt::Formatter<'_>, blocked: &[Blocked]) -> fmt::Result {
    for (n, Blocked { rank, position, action, waits_for }) in blocked.iter().enumerate() {
        let comma = if n == 0 { "" } else { "; " };
        write!(f, "{comma}rank {rank}, action {position} ({action}) waits for rank {waits_for}")?;
    }
    Ok(())
}

/// "run forward of …" beside "send …".
struct Imperative<'a>(&'a Action);

impl fmt::Display for Imperative<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Action::Compute(work) => write!(f, "run {work}"),
            action => action.fmt(f),
        }
    }
}

impl std::error::Error for PlanError {}

/// Whether `actions` do all work once, each with its inputs there, and end without buffers.
pub(super) fn actions(shape: &Shape, actions: &[Vec<Action>]) -> Result<(), PlanError> {
    if actions.len() != shape.ranks {
        return Err(PlanError::Ranks { ranks: shape.ranks, lists: actions.len() });
    }
    for (rank, list) in actions.iter().enumerate() {
        one_rank(shape, rank, list)?;
    }
    Timeline::run(shape, actions, |_| 0, 0).map(|_| ())
}

/// Whether each piece of `work` belongs to the rank in whose list it stands.
pub(super) fn places(shape: &Shape, work: &[Vec<Work>]) -> Result<(), PlanError> {
    if work.len() != shape.ranks {
        return Err(PlanError::Ranks { ranks: shape.ranks, lists: work.len() });
    }
    for (rank, list) in work.iter().enumerate() {
        if let Some(position) = list.iter().position(|&work| !has_place(shape, rank, work)) {
            return Err(PlanError::Misplaced { rank, position, action: Action::Compute(list[position]) });
        }
    }
    Ok(())
}

fn has_place(shape: &Shape, rank: usize, work: Work) -> bool {
    work.stage < shape.stages() && shape.rank_of(work.stage) == rank && work.microbatch < shape.units()
}

/// Everything about a rank that does not depend on when the others act.
fn one_rank(shape: &Shape, rank: usize, actions: &[Action]) -> Result<(), PlanError> {
    let mut state = Holdings::new(shape, rank);
    for (position, &action) in actions.iter().enumerate() {
        state.act(position, action)?;
    }
    state.finish()
}

/// What a rank has done and holds.
struct Holdings<'a> {
    shape: &'a Shape,
    rank: usize,
    done: HashSet<Work>,
    /// Inputs that arrived, from another rank or from this one.
    inputs: HashSet<Message>,
    /// Results that another rank needs.
    outputs: HashSet<Message>,
}

impl<'a> Holdings<'a> {
    fn new(shape: &'a Shape, rank: usize) -> Self {
        Self { shape, rank, done: HashSet::new(), inputs: HashSet::new(), outputs: HashSet::new() }
    }

    fn act(&mut self, position: usize, action: Action) -> Result<(), PlanError> {
        let rank = self.rank;
        if let Action::Compute(work) = action {
            return self.compute(position, work);
        }
        if !self.is_ours(action) {
            return Err(PlanError::Misplaced { rank, position, action });
        }
        if action.sends().is_some_and(|message| !self.outputs.remove(&message)) {
            return Err(PlanError::NotReady { rank, position, action });
        }
        if action.receives().is_some_and(|message| !self.inputs.insert(message)) {
            return Err(PlanError::Twice { rank, position, action });
        }
        Ok(())
    }

    /// Whether this rank is at the right end of each edge of `action`.
    fn is_ours(&self, action: Action) -> bool {
        let exists = |message: Message| {
            message.channel.edge < self.shape.stages()
                && message.microbatch < self.shape.units()
                && !self.shape.is_local(message)
        };
        let sends = action.sends().is_none_or(|m| exists(m) && self.shape.ends(m.channel).0 == self.rank);
        sends && action.receives().is_none_or(|m| exists(m) && self.shape.ends(m.channel).1 == self.rank)
    }

    fn compute(&mut self, position: usize, work: Work) -> Result<(), PlanError> {
        let (rank, shape, action) = (self.rank, self.shape, Action::Compute(work));
        if !has_place(shape, rank, work) {
            return Err(PlanError::Misplaced { rank, position, action });
        }
        if !phases(shape.schedule).contains(&work.phase) {
            return Err(PlanError::Phase { schedule: shape.schedule, rank, position, action });
        }
        if self.done.contains(&work) {
            return Err(PlanError::Twice { rank, position, action });
        }
        let before = before(work).is_none_or(|before| self.done.contains(&before));
        if !before || shape.needs(work).is_some_and(|message| !self.inputs.remove(&message)) {
            return Err(PlanError::NotReady { rank, position, action });
        }
        self.done.insert(work);
        if let Some(message) = shape.makes(work) {
            let place = if shape.is_local(message) { &mut self.inputs } else { &mut self.outputs };
            place.insert(message);
        }
        Ok(())
    }

    fn finish(self) -> Result<(), PlanError> {
        let (rank, shape) = (self.rank, self.shape);
        for stage in (0..shape.stages()).filter(|&stage| shape.rank_of(stage) == rank) {
            for microbatch in 0..shape.units() {
                let due = phases(shape.schedule).iter().map(|&phase| Work { phase, stage, microbatch });
                if let Some(work) = due.into_iter().find(|work| !self.done.contains(work)) {
                    return Err(PlanError::Missing { rank, work });
                }
            }
        }
        // The smallest, so that the message does not depend on the order of a hash table.
        match self.outputs.iter().chain(&self.inputs).min() {
            Some(&message) => Err(PlanError::Unused { rank, message }),
            None => Ok(()),
        }
    }
}

/// The phases that each microbatch passes on each stage.
fn phases(schedule: Schedule) -> &'static [Phase] {
    match (schedule.trains(), schedule.splits_backward()) {
        (false, _) => &[Phase::Forward],
        (true, false) => &[Phase::Forward, Phase::Backward],
        (true, true) => &[Phase::Forward, Phase::BackwardInput, Phase::BackwardWeight],
    }
}

/// What the same stage does before `work` on the same microbatch.
fn before(work: Work) -> Option<Work> {
    let phase = match work.phase {
        Phase::Forward => return None,
        Phase::Backward | Phase::BackwardInput => Phase::Forward,
        Phase::BackwardWeight => Phase::BackwardInput,
    };
    Some(Work { phase, ..work })
}
