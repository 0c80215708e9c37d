//! `state.json`, and what of it must fit the run.

use super::files::{self, Contents};
use super::{DataParallel, OptimizerState, Progress};
use crate::error::{Error, Result};
use hccl::{Axis, Communicator};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The version of this layout.
const FORMAT: u32 = 1;

/// The most differences that are listed one by one.
const LISTED: usize = 6;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct State {
    format: u32,
    world: usize,
    step: u64,
    /// Name, and dtype with shape.
    parameters: BTreeMap<String, String>,
    /// Name, and dtype with shape and policy.
    buffers: BTreeMap<String, String>,
    pub(super) optimizer: Optimizer,
    pub(super) ranks: Vec<Progress>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Optimizer {
    pub(super) kind: String,
    /// As texts: every bit of a number comes back.
    hyper: BTreeMap<String, String>,
    pub(super) steps: BTreeMap<String, u64>,
}

impl State {
    pub(super) fn of<A: Axis>(replica: &DataParallel<A>, optimizer: &OptimizerState, ranks: Vec<Progress>) -> State {
        let optimizer =
            Optimizer { kind: optimizer.kind.clone(), hyper: texts(optimizer), steps: optimizer.steps.clone() };
        State {
            format: FORMAT,
            world: replica.comm().size(),
            step: ranks.first().map_or(0, |progress| progress.step),
            parameters: parameters(replica),
            buffers: buffers(replica),
            optimizer,
            ranks,
        }
    }

    pub(super) fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec_pretty(self).map_err(|error| Error::invalid(format!("state.json: {error}")))
    }

    pub(super) fn from_json(bytes: &[u8]) -> Result<State, String> {
        serde_json::from_slice(bytes).map_err(|error| format!("state.json: {error}"))
    }

    /// Everything in which the checkpoint does not fit the run.
    pub(super) fn problems<A: Axis>(&self, replica: &DataParallel<A>, optimizer: &OptimizerState) -> Vec<String> {
        let mut problems = Vec::new();
        if self.format != FORMAT {
            problems.push(format!("its layout is version {}, this library reads {FORMAT}", self.format));
        }
        if self.world != replica.comm().size() {
            problems.push(format!("it is of {} ranks, this run has {}", self.world, replica.comm().size()));
        }
        if self.optimizer.kind != optimizer.kind {
            problems.push(format!("its optimizer is {}, this run's is {}", self.optimizer.kind, optimizer.kind));
        }
        problems.extend(differences("parameter", &self.parameters, &parameters(replica)));
        problems.extend(differences("buffer", &self.buffers, &buffers(replica)));
        problems
    }

    /// Hyperparameters that are not as they were.
    pub(super) fn changed(&self, optimizer: &OptimizerState) -> Vec<String> {
        let now = texts(optimizer);
        let changed = now.iter().filter(|(name, value)| self.optimizer.hyper.get(*name) != Some(*value));
        let was = |name: &String| self.optimizer.hyper.get(name).map_or("unknown", String::as_str);
        changed.map(|(name, value)| format!("{name} was {}, is {value}", was(name))).collect()
    }
}

/// Every rank's progress; an error, the same on all, when steps differ.
pub(super) fn progresses(all: &[Vec<u8>]) -> Result<Vec<Progress>> {
    let read = |bytes: &Vec<u8>| serde_json::from_slice(bytes).map_err(|error| Error::invalid(error.to_string()));
    let all: Vec<Progress> = all.iter().map(read).collect::<Result<_>>()?;
    match all.iter().position(|progress| progress.step != all[0].step) {
        Some(rank) => {
            let detail = format!("rank 0 is at step {}, rank {rank} at step {}", all[0].step, all[rank].step);
            Err(Error::Mismatch { what: "steps", detail })
        }
        None => Ok(all),
    }
}

fn texts(optimizer: &OptimizerState) -> BTreeMap<String, String> {
    optimizer.hyper.iter().map(|(name, value)| (name.clone(), format!("{value:?}"))).collect()
}

fn parameters<A: Axis>(replica: &DataParallel<A>) -> BTreeMap<String, String> {
    replica.parameters().iter().map(|(name, var)| (name.into(), shape(var))).collect()
}

fn buffers<A: Axis>(replica: &DataParallel<A>) -> BTreeMap<String, String> {
    replica.buffers().map(|(name, var, policy)| (name.into(), format!("{} {policy:?}", shape(var)))).collect()
}

fn shape(tensor: &candle_core::Tensor) -> String {
    format!("{:?}{:?}", tensor.dtype(), tensor.dims())
}

fn differences(what: &str, theirs: &BTreeMap<String, String>, ours: &BTreeMap<String, String>) -> Vec<String> {
    let mut found = Vec::new();
    for (name, shape) in theirs {
        match ours.get(name) {
            None => found.push(format!("it has the {what} `{name}` {shape}, this run has not")),
            Some(own) if own != shape => {
                found.push(format!("the {what} `{name}` is {shape} there and {own} in this run"));
            }
            Some(_) => {}
        }
    }
    let missing = ours.iter().filter(|(name, _)| !theirs.contains_key(*name));
    found.extend(missing.map(|(name, shape)| format!("it lacks the {what} `{name}` {shape}")));
    let more = found.len().saturating_sub(LISTED);
    if more > 0 {
        found.truncate(LISTED);
        found.push(format!("and {more} more {what}s differ"));
    }
    found
}

/// What rank 0 found in the folder, for all ranks.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Offer {
    pub(super) path: Option<String>,
    pub(super) files: Vec<String>,
    pub(super) skipped: Vec<String>,
}

impl Offer {
    /// The newest checkpoint that is whole.
    pub(super) fn newest(dir: &Path) -> (Offer, Contents) {
        let mut offer = Offer::default();
        for step in files::steps(dir) {
            let path = dir.join(files::folder(step));
            match files::read(&path) {
                Ok(contents) => {
                    offer.path = Some(path.to_string_lossy().into_owned());
                    offer.files = contents.keys().cloned().collect();
                    return (offer, contents);
                }
                Err(error) => offer.skipped.push(error.to_string()),
            }
        }
        (offer, Contents::new())
    }

    /// Rank 0's offer on every rank.
    pub(super) fn share<A: Axis>(self, comm: &Communicator<A>) -> Result<Offer> {
        let own = serde_json::to_vec(&self).map_err(|error| Error::invalid(error.to_string()))?;
        let bytes = comm.broadcast_bytes(own, comm.root(0)?)?;
        serde_json::from_slice(&bytes).map_err(|error| Error::invalid(error.to_string()))
    }
}
