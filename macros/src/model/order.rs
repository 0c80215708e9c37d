//! Orders by hand.

use super::Errors;
use crate::parse::{OrderAction, RankOrder};
use hccl_plan::{Action, Channel, Direction, Message, Phase, PlanError, Work};
use proc_macro2::Span;
use syn::Ident;

/// An order by hand as actions, one list a rank.
pub(super) fn lower(order: &[RankOrder], ranks: usize, span: Span, errors: &mut Errors) -> Option<Vec<Vec<Action>>> {
    let mut lists: Vec<Option<Vec<Action>>> = vec![None; ranks];
    let mut sound = true;
    for RankOrder { rank, actions } in order {
        let number = errors.keep(rank.base10_parse::<usize>());
        let Some(list) = number.and_then(|number| lists.get_mut(number)) else {
            errors.at(rank.span(), format!("there is no such rank: {ranks} ranks count from 0"));
            sound = false;
            continue;
        };
        if list.is_some() {
            errors.at(rank.span(), "this rank's order is there already");
            sound = false;
        }
        let number = number.unwrap_or_default();
        let lowered: Vec<Option<Action>> =
            actions.iter().map(|action| errors.keep(lower_action(number, action))).collect();
        sound &= lowered.iter().all(Option::is_some);
        *list = Some(lowered.into_iter().flatten().collect());
    }
    for (rank, _) in lists.iter().enumerate().filter(|(_, list)| list.is_none()) {
        errors.at(span, format!("the order of rank {rank} is missing: add `rank {rank} {{ … }}`"));
        sound = false;
    }
    sound.then(|| lists.into_iter().flatten().collect())
}

fn lower_action(rank: usize, action: &OrderAction) -> syn::Result<Action> {
    let work = |word: &Ident| -> syn::Result<Work> {
        let text = word.to_string();
        let (letter, number) = text.split_at(text.chars().next().map_or(0, char::len_utf8));
        let phase = match letter {
            "F" => Some(Phase::Forward),
            "B" => Some(Phase::Backward),
            "I" => Some(Phase::BackwardInput),
            "W" => Some(Phase::BackwardWeight),
            _ => None,
        };
        match (phase, number.parse()) {
            (Some(phase), Ok(microbatch)) => Ok(Work { phase, stage: rank, microbatch }),
            _ => Err(syn::Error::new(
                word.span(),
                "an action is `F0` (forward of microbatch 0), `B0` (backward), `I0` and `W0` (its parts), `send F0`, \
                 `recv B0`, or `swap F1 B0` (send one and receive the other)",
            )),
        }
    };
    // An activation leaves over the edge behind the stage and comes over the one before it, gradients the other way.
    let message = |word: &Ident, sends: bool| -> syn::Result<Message> {
        let Work { phase, microbatch, .. } = work(word)?;
        let direction = if phase == Phase::Forward { Direction::Forward } else { Direction::Backward };
        let behind = (direction == Direction::Forward) == sends;
        let edge = if behind { Some(rank) } else { rank.checked_sub(1) };
        let edge = edge.ok_or_else(|| syn::Error::new(word.span(), "rank 0 has nobody before it"))?;
        Ok(Message { channel: Channel { edge, direction }, microbatch })
    };
    Ok(match action {
        OrderAction::Compute(word) => Action::Compute(work(word)?),
        OrderAction::Send(word) => Action::Send(message(word, true)?),
        OrderAction::Recv(word) => Action::Recv(message(word, false)?),
        OrderAction::Swap(out, back) => Action::Exchange { send: message(out, true)?, recv: message(back, false)? },
    })
}

/// The token of the action that a plan was refused for.
pub(super) fn at_fault(error: &PlanError, order: &[RankOrder]) -> Option<Span> {
    let (rank, position) = match error {
        PlanError::Deadlock { cycle } => cycle.first().map(|blocked| (blocked.rank, blocked.position))?,
        PlanError::Alone { chain } => chain.last().map(|blocked| (blocked.rank, blocked.position))?,
        PlanError::Misplaced { rank, position, .. }
        | PlanError::Phase { rank, position, .. }
        | PlanError::NotReady { rank, position, .. }
        | PlanError::Twice { rank, position, .. } => (*rank, *position),
        PlanError::Missing { rank, .. } | PlanError::Unused { rank, .. } => {
            let of = |order: &&RankOrder| order.rank.base10_parse::<usize>().is_ok_and(|number| number == *rank);
            return order.iter().find(of).map(|order| order.rank.span());
        }
        _ => return None,
    };
    let of = |order: &&RankOrder| order.rank.base10_parse::<usize>().is_ok_and(|number| number == rank);
    order.iter().find(of)?.actions.get(position).map(OrderAction::span)
}
