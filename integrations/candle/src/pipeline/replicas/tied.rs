//! One weight in two stages.

use super::{Replicas, zeros};
use crate::data_parallel::{agree, check_replicas, describe};
use crate::error::{Error, Result};
use crate::grads::{Grads, Synced, add_into};
use crate::tensor::TensorCollectives;
use candle_core::{Tensor, Var};
use hccl::{Axis, Communicator, Sum};

/// What a rank knows of a tie.
pub(super) struct Tie<A: Axis>(Part<A>);

enum Part<A: Axis> {
    /// Neither end is here, or both are the same variable.
    None,
    /// One end is here.
    End(End<A>),
    /// Both ends are here, places in the parameters.
    Both { first: usize, second: usize, name: String, var: Var },
}

struct End<A: Axis> {
    /// The two ranks, that of the first end first.
    group: Communicator<A>,
    at: usize,
    name: String,
    var: Var,
}

impl<A: Axis> Tie<A> {
    pub(super) fn new(of: &Replicas<'_, A>, first: (usize, &str), second: (usize, &str)) -> Result<Self> {
        let (owners, vars) = find(of, [first, second])?;
        let place = |name: &str| of.parameters.position(name).ok_or_else(|| no_parameter(name));
        let part = match vars {
            [None, None] => Part::None,
            [Some(a), Some(b)] if a.id() == b.id() => Part::None,
            [Some(a), Some(b)] => {
                let ends = [(first.1, &a), (second.1, &b)].map(|(_, var)| describe("tied weight", var));
                if ends[0] != ends[1] {
                    let detail = format!("{} and {}", describe(first.1, &a), describe(second.1, &b));
                    return Err(Error::Mismatch { what: "tied weights", detail });
                }
                b.set(&a.as_tensor().detach())?;
                Part::Both { first: place(first.1)?, second: place(second.1)?, name: first.1.into(), var: a }
            }
            [a, b] => {
                let name = if a.is_some() { first.1 } else { second.1 };
                let Some(var) = a.or(b) else { return Ok(Tie(Part::None)) };
                let group = of.pipeline.group(&owners)?;
                agree(&group, "tied weights", &[describe("tied weight", &var)])?;
                group.broadcast_tensor(&var, group.root(0)?)?;
                Part::End(End { group, at: place(name)?, name: name.into(), var })
            }
        };
        Ok(Tie(part))
    }

    /// Both ends get the sum of their gradients, with the same bits.
    pub(super) fn add_up(&self, grads: &mut Grads<Synced>) -> Result<()> {
        match &self.0 {
            Part::None => Ok(()),
            Part::End(end) => end.group.all_reduce_tensor(gradient(grads, end.at)?, Sum),
            Part::Both { first, second, .. } => {
                let more = gradient(grads, *second)?.clone();
                add_into(gradient(grads, *first)?, &more)?;
                // A copy: each is changed in place later, by clipping for one.
                grads.tensors[*second] = Some(gradient(grads, *first)?.copy()?);
                Ok(())
            }
        }
    }

    /// Whether the parameter at this place counts elsewhere already.
    pub(super) fn repeats(&self, place: usize) -> bool {
        match &self.0 {
            Part::None => false,
            Part::End(end) => end.group.rank().index() == 1 && end.at == place,
            Part::Both { second, .. } => *second == place,
        }
    }

    /// The weight's checksum, compared with the other end; `None` where neither end is.
    pub(super) fn checksum(&self, of: &Replicas<'_, A>) -> Result<Option<u64>> {
        match &self.0 {
            Part::None => Ok(None),
            Part::End(end) => check_replicas(&end.group, [(end.name.as_str(), &end.var)].into_iter()).map(Some),
            Part::Both { second, name, var, .. } => {
                let sum = |var: &Var| -> Result<u64> {
                    let mut digest = crate::digest::Digest::new();
                    digest.tensor(var)?;
                    Ok(digest.finish())
                };
                let (first, second) = (sum(var)?, sum(of.parameters.var(*second))?);
                match first == second {
                    true => Ok(Some(first)),
                    false => Err(Error::Drift { ranks: vec![of.pipeline.rank().index()], parameter: name.clone() }),
                }
            }
        }
    }
}

/// The ranks of both ends, and what of them is here. Every rank learns of an end that is not where it should be.
fn find<A: Axis>(of: &Replicas<'_, A>, ends: [(usize, &str); 2]) -> Result<([usize; 2], [Option<Var>; 2])> {
    let stages = of.plan.stages();
    if let Some((stage, name)) = ends.iter().find(|(stage, _)| *stage >= stages) {
        return Err(Error::invalid(format!("tie: `{name}` of stage {stage}, the pipeline has {stages}")));
    }
    let owners = ends.map(|(stage, _)| of.plan.rank_of(stage));
    let vars = ends.map(|(stage, name)| of.weights.of_stage(stage, name).filter(|_| of.parameters.get(name).is_some()));
    let missing = (0..2).find(|&end| owners[end] == of.pipeline.rank().index() && vars[end].is_none());
    let problem = missing.map(|end| format!("tie: stage {} has no parameter `{}`", ends[end].0, ends[end].1));
    let all = of.pipeline.all_gather_bytes(problem.unwrap_or_default().as_bytes())?;
    match all.iter().find(|problem| !problem.is_empty()) {
        Some(problem) => Err(Error::invalid(String::from_utf8_lossy(problem))),
        None => Ok((owners, vars)),
    }
}

fn no_parameter(name: &str) -> Error {
    Error::invalid(format!("tie: there is no parameter `{name}`"))
}

/// The gradient at a place: zeros if this end has none, as the other may have one.
fn gradient(grads: &mut Grads<Synced>, at: usize) -> Result<&Tensor> {
    let slot = &mut grads.tensors[at];
    match slot {
        Some(tensor) => Ok(tensor),
        None => Ok(slot.insert(zeros(grads.parameters.var(at))?)),
    }
}
