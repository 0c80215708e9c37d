//! The weights of this rank's stages, and what their backward passes add up: [`StageWeights`].

use super::payload::TensorPayload;
use super::split::Queue;
use super::stage::TensorStage;
use crate::data_parallel::{gradient_dtype, of_map};
use crate::error::{Error, Result};
use crate::grads::add_into;
use candle_core::{DType, Tensor, TensorId, Var};
use candle_nn::VarMap;
use hccl::pipeline::{At, StageResult};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::rc::Rc;

/// The weights of all stages that this rank holds. Clones are the same weights.
///
/// Make one on each rank before the pipeline, make the stages with it, and then [`Replicas`](super::Replicas) of it. Names
/// are those of the variables, which must differ between the stages of a rank (`vb.pp(format!("layer{i}"))`).
#[derive(Clone, Default)]
pub struct StageWeights(Rc<Inner>);

#[derive(Default)]
struct Inner {
    named: RefCell<BTreeMap<String, Entry>>,
    sums: Sums,
    queue: Queue,
}

struct Entry {
    var: Var,
    /// The stages that have it.
    stages: Vec<usize>,
}

impl StageWeights {
    /// No weights yet.
    pub fn new() -> Self {
        StageWeights::default()
    }

    /// A stage of any candle code: `forward` with the variables of `map`.
    ///
    /// # Errors
    /// A name that another stage of this rank has for another variable.
    pub fn stage<In: TensorPayload, Out: TensorPayload>(
        &self,
        at: &At<'_, TensorStage<In, Out>>,
        map: &VarMap,
        forward: impl Fn(&Tensor) -> candle_core::Result<Tensor> + 'static,
    ) -> StageResult<TensorStage<In, Out>> {
        self.stage_of_vars(at, of_map(map), forward)
    }

    /// [`stage`](Self::stage) with named variables.
    ///
    /// # Errors
    /// As there.
    pub fn stage_of_vars<In: TensorPayload, Out: TensorPayload>(
        &self,
        at: &At<'_, TensorStage<In, Out>>,
        vars: impl IntoIterator<Item = (String, Var)>,
        forward: impl Fn(&Tensor) -> candle_core::Result<Tensor> + 'static,
    ) -> StageResult<TensorStage<In, Out>> {
        let mut all = Vec::new();
        for (name, var) in vars {
            self.register(at.index(), &name, &var)?;
            if var.dtype().is_float() {
                all.push(var);
            }
        }
        Ok(TensorStage::new(self.clone(), at.index() == 0, all, Box::new(forward)))
    }

    /// Where layers of [`split`](super::split) leave their weight parts.
    pub fn queue(&self) -> &Queue {
        &self.0.queue
    }

    pub(super) fn sums(&self) -> &Sums {
        &self.0.sums
    }

    /// Everything, in order of names.
    pub(super) fn vars(&self) -> Vec<(String, Var)> {
        self.0.named.borrow().iter().map(|(name, entry)| (name.clone(), entry.var.clone())).collect()
    }

    /// The weight of this name that a stage has.
    pub(super) fn of_stage(&self, stage: usize, name: &str) -> Option<Var> {
        let named = self.0.named.borrow();
        named.get(name).filter(|entry| entry.stages.contains(&stage)).map(|entry| entry.var.clone())
    }

    fn register(&self, stage: usize, name: &str, var: &Var) -> Result<()> {
        let mut named = self.0.named.borrow_mut();
        let entry = named.entry(name.into()).or_insert_with(|| Entry { var: var.clone(), stages: Vec::new() });
        if entry.var.id() != var.id() {
            return Err(Error::invalid(format!(
                "stages {:?} and {stage} of this rank have different variables `{name}` (hint: name them apart, as \
                 `vb.pp(format!(\"stage{{}}\", at.index()))`)",
                entry.stages
            )));
        }
        if !entry.stages.contains(&stage) {
            entry.stages.push(stage);
        }
        Ok(())
    }
}

impl fmt::Debug for StageWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StageWeights({} variables)", self.0.named.borrow().len())
    }
}

/// Gradients added up over microbatches, one tensor a variable, whatever the number of microbatches.
#[derive(Default)]
pub(super) struct Sums(RefCell<HashMap<TensorId, Tensor>>);

impl Sums {
    /// Adds a gradient that nobody else holds: in f32, in f64 for an F64 variable.
    pub(super) fn add(&self, var: &Tensor, gradient: &Tensor) -> Result<()> {
        let gradient = gradient.detach().to_dtype(gradient_dtype(var.dtype()))?.contiguous()?;
        let mut sums = self.0.borrow_mut();
        match sums.get(&var.id()) {
            Some(sum) => add_into(sum, &gradient)?,
            None => {
                sums.insert(var.id(), gradient);
            }
        }
        Ok(())
    }

    /// The sum of a variable, from zeros if it has none yet, to be added to in place.
    pub(super) fn slot(&self, var: &Tensor) -> Result<Tensor> {
        let dtype: DType = gradient_dtype(var.dtype());
        let mut sums = self.0.borrow_mut();
        if let Some(sum) = sums.get(&var.id()) {
            return Ok(sum.clone());
        }
        let zeros = Tensor::zeros(var.shape(), dtype, var.device())?;
        sums.insert(var.id(), zeros.clone());
        Ok(zeros)
    }

    /// Takes a variable's sum.
    pub(super) fn take(&self, var: &Tensor) -> Option<Tensor> {
        self.0.borrow_mut().remove(&var.id())
    }
}
