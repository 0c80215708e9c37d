//! From the sums of a rank's stages to an optimizer's step: [`Replicas`].

mod tied;

use super::weights::StageWeights;
use crate::data_parallel::{DataParallel, Options, Parameters, SyncStats, Unused, check_weight, gradient_dtype};
use crate::error::{Error, Result};
use crate::grads::{Grads, Local, Synced, same_parameters, scale};
use candle_core::{Tensor, Var};
use hccl::pipeline::Plan;
use hccl::{Axis, Communicator, Dp, World};
use std::fmt;
use tied::Tie;

/// The weights of this rank's stages and everybody who has the same: its replicas, and the other ends of tied weights.
///
/// ```text
///            Pp 0: embedding         Pp 1: head
///    Dp 0    rank 0 ====== tied ===== rank 1
///              |                        |
///            sync                     sync
///              |                        |
///    Dp 1    rank 2 ====== tied ===== rank 3
/// ```
///
/// An optimizer takes `Grads<Synced>` only, and these come from [`sync`](Self::sync) alone, which does all of it: the
/// weighted mean over the replicas, then the sum over tied weights. Every rank makes the same calls in the same order.
pub struct Replicas<'c, A: Axis> {
    weights: StageWeights,
    parameters: Parameters,
    plan: Plan,
    pipeline: &'c Communicator<A>,
    /// `None` where there is one replica: nothing is sent or copied.
    group: Option<DataParallel<Dp>>,
    unused: Unused,
    ties: Vec<Tie<A>>,
}

impl<'c, A: Axis> Replicas<'c, A> {
    /// The stages made with `weights` in a pipeline over the ranks of `pipeline`, with replicas over `replicas`: the
    /// groups of a [`Mesh`](hccl::Mesh). Collective over the replicas, whose weights become those of the first one.
    ///
    /// A group of one replica costs nothing, here and in each step.
    ///
    /// # Errors
    /// A plan for another number of ranks; those of [`DataParallel::new`].
    pub fn new(
        weights: &StageWeights,
        plan: &Plan,
        pipeline: &'c Communicator<A>,
        replicas: &Communicator<Dp>,
        options: Options,
    ) -> Result<Self> {
        let mut made = Self::of_one(weights, plan, pipeline, &options)?;
        if replicas.size() > 1 {
            let group = DataParallel::from_vars(replicas.duplicate()?, weights.vars(), options)?;
            made.parameters = group.parameters().clone();
            made.group = Some(group);
        }
        Ok(made)
    }

    fn of_one(weights: &StageWeights, plan: &Plan, pipeline: &'c Communicator<A>, options: &Options) -> Result<Self> {
        if plan.ranks() != pipeline.size() {
            let (of, on) = (plan.ranks(), pipeline.size());
            return Err(Error::invalid(format!("a plan for {of} ranks, the pipeline has {on}")));
        }
        let vars = weights.vars().into_iter().filter(|(name, _)| options.policy(name).is_none());
        Ok(Replicas {
            weights: weights.clone(),
            parameters: Parameters::new(vars)?,
            plan: plan.clone(),
            pipeline,
            group: None,
            unused: options.unused,
            ties: Vec::new(),
        })
    }

    /// Ties weights of two stages, such as an embedding and a head: both have the values of the first one from now on,
    /// and [`sync`](Self::sync) adds up the gradients of both, in the group of their two ranks. Collective over the
    /// pipeline; each replica calls it.
    ///
    /// # Errors
    /// On every rank: a stage that has no such parameter, or a stage that is not there. On the two: other shapes or dtypes.
    pub fn tie(&mut self, first: (usize, &str), second: (usize, &str)) -> Result<()> {
        let tie = Tie::new(self, first, second)?;
        self.ties.push(tie);
        Ok(())
    }

    /// The parameters of this rank's stages, for an optimizer.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Takes what the steps since the last call added up. `weight` says how much they count against other replicas,
    /// usually the samples; it is the same on all ranks of a pipeline. Not collective.
    ///
    /// # Errors
    /// A weight that is negative or not finite.
    pub fn local(&self, weight: f64) -> Result<Grads<Local>> {
        check_weight(weight)?;
        let mut tensors = Vec::with_capacity(self.parameters.len());
        for (_, var) in self.parameters.iter() {
            let sum = self.weights.sums().take(var).filter(|_| weight != 0.0);
            if let Some(sum) = sum.as_ref().filter(|_| weight != 1.0) {
                scale(sum, weight)?;
            }
            tensors.push(sum);
        }
        Ok(Grads::new(self.parameters.clone(), tensors, weight))
    }

    /// The weighted mean over the replicas, with tied weights' gradients added up. Collective.
    ///
    /// # Errors
    /// Those of [`DataParallel::sync`].
    pub fn sync(&mut self, grads: Grads<Local>) -> Result<Grads<Synced>> {
        let mut grads = match &mut self.group {
            Some(group) => group.sync(grads)?,
            None => self.only(grads)?,
        };
        for tie in &self.ties {
            tie.add_up(&mut grads)?;
        }
        Ok(grads)
    }

    /// Clips by the norm of the whole model's gradients, each tied weight counted once: the norm before, with the same
    /// bits on every rank. [`clip_grad_norm`](crate::clip_grad_norm) knows this rank's stages only. Collective.
    ///
    /// # Errors
    /// A `max_norm` that is not positive; a lost peer.
    pub fn clip_grad_norm(&self, grads: &mut Grads<Synced>, max_norm: f64) -> Result<f64> {
        if max_norm.is_nan() || max_norm <= 0.0 {
            return Err(Error::invalid(format!("clip_grad_norm: max_norm is {max_norm}, must be positive")));
        }
        let mut sum = [0.0];
        for (at, tensor) in grads.tensors.iter().enumerate() {
            if let Some(tensor) = tensor.as_ref().filter(|_| !self.ties.iter().any(|tie| tie.repeats(at))) {
                sum[0] += crate::grads::sum_of_squares(tensor)?;
            }
        }
        self.pipeline.all_reduce(&mut sum, hccl::Sum)?;
        let norm = sum[0].sqrt();
        let factor = max_norm / (norm + 1e-6);
        if norm.is_finite() && factor < 1.0 {
            for tensor in grads.tensors.iter().flatten() {
                scale(tensor, factor)?;
            }
        }
        Ok(norm)
    }

    /// Compares replicas and both ends of tied weights: the checksums of this rank's tied weights, in the order in which
    /// they were tied. Collective.
    ///
    /// # Errors
    /// [`Error::Drift`] on the ranks that have a weight which differs.
    pub fn check(&self) -> Result<Vec<u64>> {
        if let Some(group) = &self.group {
            group.check_replicas()?;
        }
        self.ties.iter().filter_map(|tie| tie.checksum(self).transpose()).collect()
    }

    /// With one replica the gradients are already those over all: divided by their weight, in place.
    fn only(&self, mut grads: Grads<Local>) -> Result<Grads<Synced>> {
        same_parameters(&self.parameters, &grads.parameters)?;
        if grads.weight <= 0.0 {
            return Err(Error::invalid("the only replica gave weight 0: there is no gradient to take the mean of"));
        }
        let lacking: Vec<usize> = (0..grads.tensors.len()).filter(|&at| grads.tensors[at].is_none()).collect();
        match (self.unused, lacking.first()) {
            (Unused::Error, Some(&first)) => {
                let (parameter, ranks) = (self.parameters.name(first).into(), vec![self.pipeline.rank().index()]);
                return Err(Error::NoGradient { parameter, ranks, others: lacking.len() - 1 });
            }
            (Unused::Zero, _) => {
                for at in lacking {
                    grads.tensors[at] = Some(zeros(self.parameters.var(at))?);
                }
            }
            _ => {}
        }
        for tensor in grads.tensors.iter().flatten().filter(|_| grads.weight != 1.0) {
            scale(tensor, 1.0 / grads.weight)?;
        }
        let mut synced = Grads::new(grads.parameters, grads.tensors, 1.0);
        synced.stats = SyncStats::default();
        Ok(synced)
    }
}

impl<'c> Replicas<'c, World> {
    /// For a pipeline over all ranks there are: without replicas, nothing is sent or copied.
    ///
    /// # Errors
    /// A plan for another number of ranks; a name that comes twice, an integer variable that is not a buffer.
    pub fn alone(
        weights: &StageWeights,
        plan: &Plan,
        world: &'c Communicator<World>,
        options: Options,
    ) -> Result<Self> {
        options.check()?;
        Self::of_one(weights, plan, world, &options)
    }
}

/// A gradient of zeros.
fn zeros(var: &Var) -> Result<Tensor> {
    Ok(Tensor::zeros(var.shape(), gradient_dtype(var.dtype()), var.device())?)
}

impl<A: Axis> fmt::Debug for Replicas<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let replicas = self.group.as_ref().map_or(1, |group| group.comm().size());
        write!(f, "Replicas({replicas} of {} parameters, {} tied)", self.parameters.len(), self.ties.len())
    }
}
