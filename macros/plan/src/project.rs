//! One order of the whole pipeline, and each rank's part of it.
//!
//! The order lists every piece of work and every message. A rank's actions are the entries that concern it, in that
//! order. This can't deadlock: of the entries not done yet, the first is next on every rank that it concerns.
//!
//! A message is placed at the first instant at which it is made and both its ranks are between two pieces of work.
//! Where the ideal timing has such an instant before the receiver needs the message, nothing is lost. Where it has
//! none, a sender may gain by waiting for its receiver instead of starting something long; several patiences are
//! tried.

use super::check::PlanError;
use super::plan::{Action, Costs, Message, Shape, Work};
use super::simulate::Timeline;
use std::collections::HashSet;

/// Pieces of work over all orders tried, two orders aside.
const WORK_TRIED: usize = 1 << 17;

/// An entry of the order.
#[derive(Clone, Copy)]
enum Event {
    Work(usize, Work),
    Transfer(Message),
    /// Two messages between the same ranks, in opposite directions, with nothing between them.
    Swap(Message, Message),
}

/// The actions of each rank; of several orders, the first of those that take least time.
pub(super) fn actions(
    shape: &Shape,
    work: &[Vec<Work>],
    costs: Costs,
    ideal: u64,
) -> Result<Vec<Vec<Action>>, PlanError> {
    let mut best: Option<(u64, Vec<Vec<Action>>)> = None;
    let total: usize = work.iter().map(Vec::len).sum();
    // At most 16 orders for usual sizes, fewer where one takes long.
    for manner in manners(costs).take((WORK_TRIED / total.max(1)).max(2)) {
        let actions = project(shape, swapped(shape, Clock::new(shape, work, costs, manner).order()?));
        let ticks = Timeline::run(shape, &actions, |work| costs.of(work), costs.transfer.into())?.makespan();
        if best.as_ref().is_none_or(|(least, _)| ticks < *least) {
            best = Some((ticks, actions));
        }
        if ticks <= ideal {
            break;
        }
    }
    Ok(best.map(|(_, actions)| actions).unwrap_or_default())
}

/// Whether messages go early, and how long senders wait for a busy receiver, in ticks: not at all, for parts of the
/// work, for ever.
fn manners(costs: Costs) -> impl Iterator<Item = (bool, u64)> {
    let [f, b, w] = [costs.forward, costs.backward, costs.weight].map(u64::from);
    let mut patience = vec![0, f, b, w, b + w, f + b, f + b + w, u64::MAX];
    patience.sort_unstable();
    patience.dedup();
    patience.into_iter().flat_map(|ticks| [(true, ticks), (false, ticks)])
}

/// Events unfold on a clock: ranks work, and hand messages over between two pieces of work.
struct Clock<'a> {
    shape: &'a Shape,
    costs: Costs,
    patience: u64,
    /// Whether messages are handed over as soon as they can be, or when the receiver needs them.
    eager: bool,
    now: u64,
    ranks: Vec<Rank<'a>>,
    /// Made, not delivered, in the order in which they were made.
    pending: Vec<Message>,
    delivered: HashSet<Message>,
    order: Vec<Event>,
}

struct Rank<'a> {
    work: std::slice::Iter<'a, Work>,
    busy_until: u64,
    /// What the work under way makes when it ends.
    makes: Option<Message>,
}

impl<'a> Clock<'a> {
    fn new(shape: &'a Shape, work: &'a [Vec<Work>], costs: Costs, (eager, patience): (bool, u64)) -> Self {
        let ranks = work.iter().map(|work| Rank { work: work.iter(), busy_until: 0, makes: None }).collect();
        let (pending, delivered, order) = (Vec::new(), HashSet::new(), Vec::new());
        Self { shape, costs, patience, eager, now: 0, ranks, pending, delivered, order }
    }

    fn order(mut self) -> Result<Vec<Event>, PlanError> {
        loop {
            self.finish_work();
            if self.deliver() | self.start_work() {
                continue;
            }
            match self.ranks.iter().map(|rank| rank.busy_until).filter(|&until| until > self.now).min() {
                Some(next) => self.now = next,
                None => break,
            }
        }
        let late = self.ranks.iter_mut().enumerate().find_map(|(rank, state)| Some((rank, *state.work.next()?)));
        match late {
            Some((rank, work)) => Err(PlanError::Unordered { rank, work }),
            None => Ok(self.order),
        }
    }

    fn is_idle(&self, rank: usize) -> bool {
        self.ranks[rank].busy_until <= self.now
    }

    fn finish_work(&mut self) {
        for rank in 0..self.ranks.len() {
            if !self.is_idle(rank) {
                continue;
            }
            let Some(message) = self.ranks[rank].makes.take() else { continue };
            if self.shape.is_local(message) {
                self.delivered.insert(message);
            } else {
                self.pending.push(message);
            }
        }
    }

    /// Hands over what can be handed over now.
    fn deliver(&mut self) -> bool {
        let before = self.order.len();
        for message in std::mem::take(&mut self.pending) {
            let (from, to) = self.shape.ends(message.channel);
            if self.is_idle(from) && self.is_idle(to) && (self.eager || self.is_urgent(message, to)) {
                let until = self.now + u64::from(self.costs.transfer);
                self.ranks[from].busy_until = until;
                self.ranks[to].busy_until = until;
                self.delivered.insert(message);
                self.order.push(Event::Transfer(message));
            } else {
                self.pending.push(message);
            }
        }
        self.order.len() > before
    }

    fn start_work(&mut self) -> bool {
        let before = self.order.len();
        for rank in 0..self.ranks.len() {
            let Some(&work) = self.ranks[rank].work.as_slice().first() else { continue };
            if !self.is_idle(rank) || !self.is_ready(work) || self.waits_to_send(rank) {
                continue;
            }
            self.ranks[rank].work.next();
            self.ranks[rank].busy_until = self.now + self.costs.of(work);
            self.ranks[rank].makes = self.shape.makes(work);
            self.order.push(Event::Work(rank, work));
        }
        self.order.len() > before
    }

    /// Whether the receiver's next piece of work needs the message.
    fn is_urgent(&self, message: Message, to: usize) -> bool {
        self.ranks[to].work.as_slice().first().is_some_and(|&work| self.shape.needs(work) == Some(message))
    }

    fn is_ready(&self, work: Work) -> bool {
        self.shape.needs(work).is_none_or(|message| self.delivered.contains(&message))
    }

    /// Whether a receiver of this rank's messages is busy, but not for longer than the rank has patience.
    fn waits_to_send(&self, rank: usize) -> bool {
        self.pending.iter().any(|message| {
            let (from, to) = self.shape.ends(message.channel);
            from == rank && !self.is_idle(to) && self.ranks[to].busy_until - self.now <= self.patience
        })
    }
}

/// Merges two opposite messages where they follow each other on both ranks.
fn swapped(shape: &Shape, order: Vec<Event>) -> Vec<Event> {
    let mut last: Vec<Option<usize>> = vec![None; shape.ranks];
    let mut merged: Vec<Event> = Vec::with_capacity(order.len());
    for event in order {
        let (a, b) = ranks_of(shape, event);
        let previous = last[a].filter(|_| last[a] == last[b]).map(|index| (index, merged[index]));
        if let (Event::Transfer(second), Some((index, Event::Transfer(first)))) = (event, previous)
            && shape.ends(first.channel) == (b, a)
        {
            merged[index] = Event::Swap(first, second);
            continue;
        }
        last[a] = Some(merged.len());
        last[b] = Some(merged.len());
        merged.push(event);
    }
    merged
}

/// The ranks that an event concerns; the same one twice for work.
fn ranks_of(shape: &Shape, event: Event) -> (usize, usize) {
    match event {
        Event::Work(rank, _) => (rank, rank),
        Event::Transfer(message) | Event::Swap(message, _) => shape.ends(message.channel),
    }
}

fn project(shape: &Shape, order: Vec<Event>) -> Vec<Vec<Action>> {
    let mut actions = vec![Vec::new(); shape.ranks];
    for event in order {
        let (a, b) = ranks_of(shape, event);
        match event {
            Event::Work(_, work) => actions[a].push(Action::Compute(work)),
            Event::Transfer(message) => {
                actions[a].push(Action::Send(message));
                actions[b].push(Action::Recv(message));
            }
            Event::Swap(first, second) => {
                actions[a].push(Action::Exchange { send: first, recv: second });
                actions[b].push(Action::Exchange { send: second, recv: first });
            }
        }
    }
    actions
}
