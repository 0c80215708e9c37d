//! The virtual clock: plans executed on a transport without buffers, and on an ideal one.

use super::check::{Blocked, PlanError};
use super::plan::{Action, Costs, Message, Phase, Shape, Work};
use super::schedule::Schedule;
use std::collections::HashMap;

/// When each action of each rank begins and ends, in ticks from the start of the step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    spans: Vec<Vec<Span>>,
}

/// One action on the virtual clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What runs.
    pub action: Action,
    /// When the rank is ready for it. Until `begin` it waits for its peers.
    pub arrived: u64,
    /// When it begins.
    pub begin: u64,
    /// When it ends.
    pub end: u64,
}

/// Idle time of a step that starts and ends together on all ranks. The literature divides it in two ways.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bubble {
    /// Ticks without computing, summed over the ranks.
    pub idle: u64,
    /// Ticks of computing, summed over the ranks.
    pub busy: u64,
}

impl Bubble {
    /// Idle over computing time, as in the Megatron-LM and zero-bubble papers. Zero for a plan without any time.
    pub fn of_ideal(self) -> f64 {
        self.idle as f64 / self.busy.max(1) as f64
    }

    /// Idle over total time, as in the GPipe paper. Zero for a plan without any time.
    pub fn of_total(self) -> f64 {
        self.idle as f64 / self.idle.saturating_add(self.busy).max(1) as f64
    }
}

impl Timeline {
    /// Runs `actions` with sends that end only when received, each rank strictly in order.
    ///
    /// Whatever can meet meets, so the order in which ranks are stepped changes nothing.
    pub(super) fn run(
        shape: &Shape,
        actions: &[Vec<Action>],
        ticks: impl Fn(Work) -> u64,
        transfer: u64,
    ) -> Result<Self, PlanError> {
        let mut ranks: Vec<Clock<'_>> = actions.iter().map(|actions| Clock::new(actions)).collect();
        let mut moved = true;
        while moved {
            moved = false;
            // Both ways, as activations go one way and gradients the other: a few rounds are enough.
            for rank in (0..ranks.len()).chain((0..ranks.len()).rev()) {
                while step(shape, &mut ranks, rank, &ticks, transfer) {
                    moved = true;
                }
            }
        }
        if ranks.iter().any(|clock| clock.current().is_some()) {
            return Err(stuck(shape, &ranks));
        }
        Ok(Self { spans: ranks.into_iter().map(|clock| clock.spans).collect() })
    }

    /// What `rank` does and when, in order. Empty for a rank outside the pipeline.
    pub fn spans(&self, rank: usize) -> &[Span] {
        self.spans.get(rank).map_or(&[], Vec::as_slice)
    }

    /// Ticks until the last rank is done.
    pub fn makespan(&self) -> u64 {
        self.spans.iter().filter_map(|spans| spans.last()).map(|span| span.end).max().unwrap_or(0)
    }

    /// Ticks in which `rank` computes.
    pub fn busy(&self, rank: usize) -> u64 {
        let computing = self.spans(rank).iter().filter(|span| matches!(span.action, Action::Compute(_)));
        computing.map(|span| span.end - span.begin).sum()
    }

    /// Ticks in which `rank` waits for a peer, before its last action.
    pub fn waiting(&self, rank: usize) -> u64 {
        self.spans(rank).iter().map(|span| span.begin - span.arrived).sum()
    }

    /// All time without computing, waiting and transferring alike, until the last rank is done.
    pub fn bubble(&self) -> Bubble {
        let busy = (0..self.spans.len()).map(|rank| self.busy(rank)).sum();
        let all = self.makespan().saturating_mul(self.spans.len() as u64);
        Bubble { idle: all.saturating_sub(busy), busy }
    }

    /// Ranks on the clock.
    pub fn ranks(&self) -> usize {
        self.spans.len()
    }
}

/// One rank on its way through its actions.
struct Clock<'a> {
    actions: &'a [Action],
    spans: Vec<Span>,
    now: u64,
    /// When the send half and the receive half of the current action met their peer.
    met: [Option<u64>; 2],
}

impl<'a> Clock<'a> {
    fn new(actions: &'a [Action]) -> Self {
        Self { actions, spans: Vec::with_capacity(actions.len()), now: 0, met: [None; 2] }
    }

    fn current(&self) -> Option<Action> {
        self.actions.get(self.spans.len()).copied()
    }

    /// The message that half `side` (0 sends, 1 receives) of the current action still waits to hand over.
    fn offers(&self, side: usize) -> Option<Message> {
        self.current().and_then(|action| half(action, side)).filter(|_| self.met[side].is_none())
    }

    fn finish(&mut self, action: Action, begin: u64, end: u64) {
        self.spans.push(Span { action, arrived: self.now, begin, end });
        self.now = end;
        self.met = [None; 2];
    }
}

fn half(action: Action, side: usize) -> Option<Message> {
    if side == 0 { action.sends() } else { action.receives() }
}

/// Moves `rank` on by one action, if it can.
fn step(shape: &Shape, ranks: &mut [Clock<'_>], rank: usize, ticks: &impl Fn(Work) -> u64, transfer: u64) -> bool {
    let Some(action) = ranks[rank].current() else { return false };
    if let Action::Compute(work) = action {
        let begin = ranks[rank].now;
        ranks[rank].finish(action, begin, begin.saturating_add(ticks(work)));
        return true;
    }
    for side in [0, 1] {
        meet(shape, ranks, rank, side);
    }
    if [0, 1].into_iter().any(|side| ranks[rank].offers(side).is_some()) {
        return false;
    }
    let met = ranks[rank].met.into_iter().flatten().max().unwrap_or(ranks[rank].now);
    ranks[rank].finish(action, met, met + transfer);
    true
}

/// Hands a message over if the peer offers the other half of it.
fn meet(shape: &Shape, ranks: &mut [Clock<'_>], rank: usize, side: usize) {
    let Some(message) = ranks[rank].offers(side) else { return };
    let peer = peer(shape, message, side);
    if ranks.get(peer).is_some_and(|clock| clock.offers(1 - side) == Some(message)) {
        let met = ranks[rank].now.max(ranks[peer].now);
        ranks[rank].met[side] = Some(met);
        ranks[peer].met[1 - side] = Some(met);
    }
}

fn peer(shape: &Shape, message: Message, side: usize) -> usize {
    let (from, to) = shape.ends(message.channel);
    if side == 0 { to } else { from }
}

/// Why nothing moves: a peer that has no action left, or a circle of ranks that wait for each other.
fn stuck(shape: &Shape, ranks: &[Clock<'_>]) -> PlanError {
    let mut chain: Vec<Blocked> = Vec::new();
    let mut rank = ranks.iter().position(|clock| clock.current().is_some()).unwrap_or(0);
    loop {
        if let Some(start) = chain.iter().position(|blocked| blocked.rank == rank) {
            return PlanError::Deadlock { cycle: chain.split_off(start) };
        }
        let Some(blocked) = blocked(shape, &ranks[rank], rank) else {
            return PlanError::Alone { chain };
        };
        rank = blocked.waits_for;
        chain.push(blocked);
    }
}

fn blocked(shape: &Shape, clock: &Clock<'_>, rank: usize) -> Option<Blocked> {
    let action = clock.current()?;
    let side = if clock.offers(0).is_some() { 0 } else { 1 };
    let waits_for = peer(shape, clock.offers(side)?, side);
    Some(Blocked { rank, position: clock.spans.len(), action, waits_for })
}

/// Ticks of `work`, one list a rank in this order, if messages are buffered and travel beside the work.
pub(super) fn ideal(shape: &Shape, work: &[Vec<Work>], costs: Costs) -> Result<u64, PlanError> {
    let mut arrival: HashMap<Message, u64> = HashMap::new();
    let mut done = vec![(0, 0); work.len()];
    let mut moved = true;
    while moved {
        moved = false;
        for (list, (next, now)) in work.iter().zip(&mut done) {
            while let Some(begin) = list.get(*next).and_then(|&work| ready(shape, &arrival, work, *now)) {
                let work = list[*next];
                *now = begin + costs.of(work);
                if let Some(message) = shape.makes(work) {
                    let travel = if shape.is_local(message) { 0 } else { costs.transfer.into() };
                    arrival.insert(message, *now + travel);
                }
                *next += 1;
                moved = true;
            }
        }
    }
    let late = work.iter().zip(&done).enumerate().find_map(|(rank, (list, done))| Some((rank, *list.get(done.0)?)));
    match late {
        Some((rank, work)) => Err(PlanError::Unordered { rank, work }),
        None => Ok(done.iter().map(|&(_, now)| now).max().unwrap_or(0)),
    }
}

fn ready(shape: &Shape, arrival: &HashMap<Message, u64>, work: Work, now: u64) -> Option<u64> {
    match shape.needs(work) {
        Some(message) => arrival.get(&message).map(|&at| at.max(now)),
        None => Some(now),
    }
}

/// Most activations held at once, in stages.
pub(super) fn peak_activations(schedule: Schedule, actions: &[Action]) -> usize {
    let (mut live, mut peak) = (0_usize, 0);
    for work in super::plan::work_of(actions) {
        match work.phase {
            Phase::Forward if schedule.trains() => live += 1,
            Phase::Forward => live = 1,
            Phase::Backward | Phase::BackwardWeight => live = live.saturating_sub(1),
            Phase::BackwardInput => {}
        }
        peak = peak.max(live);
    }
    peak
}

/// Most messages held at once: received and not used yet, or made and not sent yet.
pub(super) fn peak_messages(shape: &Shape, actions: &[Action]) -> usize {
    let (mut held, mut peak) = (0_usize, 0);
    for action in actions {
        let remote = |message: &Message| !shape.is_local(*message);
        let (more, less) = match *action {
            Action::Compute(work) => (shape.makes(work).filter(remote), shape.needs(work).filter(remote)),
            _ => (action.receives(), action.sends()),
        };
        // Both at once: what comes needs its place before what goes has left.
        held += usize::from(more.is_some());
        peak = peak.max(held);
        held = held.saturating_sub(usize::from(less.is_some()));
    }
    peak
}
