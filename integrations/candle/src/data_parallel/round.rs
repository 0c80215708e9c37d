//! One synchronisation: gradients come in, buckets start in order, results come out.

use super::options::Unused;
use super::plan::Plan;
use super::wire::{InFlight, gradient_dtype};
use super::{DataParallel, SyncStats};
use crate::error::{Error, Result};
use crate::grads::{Grads, Local, Synced, add_into};
use candle_core::Tensor;
use hccl::{Axis, Sum};
use std::time::Instant;

/// The state of one synchronisation on this rank.
pub(super) struct Round {
    /// Sums over this rank's batches, weighted.
    tensors: Vec<Option<Tensor>>,
    /// Whether a parameter's sum is complete.
    ready: Vec<bool>,
    weight: f64,
    /// Buckets on their way: the first ones of the plan.
    flying: Vec<InFlight>,
    pub(super) stats: SyncStats,
}

impl Round {
    /// Starts from the batches held back, for one last batch of this weight.
    pub(super) fn new(parameters: usize, held: Option<Grads<Local>>, weight: f64) -> Round {
        let (tensors, before) = match held {
            Some(held) => (held.tensors, held.weight),
            None => (vec![None; parameters], 0.0),
        };
        let ready = vec![false; parameters];
        Round { tensors, ready, weight: before + weight, flying: Vec::new(), stats: SyncStats::default() }
    }

    /// Adds the last batch's gradient of a parameter.
    pub(super) fn put(&mut self, at: usize, gradient: Option<Tensor>) -> Result<()> {
        match (&self.tensors[at], gradient) {
            (Some(sum), Some(gradient)) => add_into(sum, &gradient)?,
            (None, Some(gradient)) => self.tensors[at] = Some(gradient),
            (_, None) => {}
        }
        self.ready[at] = true;
        Ok(())
    }
}

impl<A: Axis> DataParallel<A> {
    /// Starts every bucket that is complete and whose predecessors have started.
    pub(super) fn launch(&mut self, round: &mut Round) -> Result<()> {
        while let Some(bucket) = self.plan.buckets.get_mut(round.flying.len()) {
            if !bucket.places.iter().all(|place| round.ready[place.parameter]) {
                break;
            }
            let mut memory = match bucket.memory.take() {
                Some(memory) => memory,
                None => super::wire::Flat::zeros(&self.comm, bucket.dtype, bucket.len)?,
            };
            for place in &bucket.places {
                memory.fill(place.start, place.len, round.tensors[place.parameter].as_ref())?;
            }
            round.stats.bytes += memory.bytes();
            round.stats.buckets += 1;
            round.flying.push(memory.start(&self.comm)?);
        }
        Ok(())
    }

    /// Waits for all buckets and makes means of them.
    pub(super) fn finish(&mut self, mut round: Round) -> Result<Grads<Synced>> {
        let started = Instant::now();
        let (total, present) = self.exchange(&round)?;
        for (bucket, flying) in self.plan.buckets.iter_mut().zip(round.flying.drain(..)) {
            bucket.memory = Some(flying.wait()?);
        }
        round.stats.wait += started.elapsed();
        self.check_present(&round, &present)?;
        if total <= 0.0 {
            return Err(Error::invalid("all ranks gave weight 0: there is no gradient to take the mean of"));
        }
        self.collect(&mut round, total, &present)?;
        let started = Instant::now();
        self.buffers.sync(&self.comm)?;
        self.syncs += 1;
        if self.options.check_every > 0 && self.syncs.is_multiple_of(self.options.check_every) {
            self.check_replicas()?;
        }
        round.stats.wait += started.elapsed();
        let mut grads = Grads::new(self.parameters.clone(), round.tensors, 1.0);
        grads.stats = round.stats;
        Ok(grads)
    }

    /// The sum of all weights, and on how many ranks each parameter has a gradient. Exact: f64, whatever the wire.
    fn exchange(&mut self, round: &Round) -> Result<(f64, Vec<f64>)> {
        let len = 1 + self.parameters.len();
        let mut control = match self.control.take() {
            Some(control) => control,
            None => self.comm.zeros(len)?,
        };
        let mut words = vec![round.weight];
        words.extend(self.presence(round).map(f64::from));
        control.copy_from_slice(&words)?;
        self.comm.all_reduce(&mut control, Sum)?;
        let sums = control.to_vec()?;
        self.control = Some(control);
        Ok((sums[0], sums[1..].to_vec()))
    }

    /// Whether this rank has each parameter's gradient: 1 or 0. A rank without samples is excused where lacking one is
    /// an error.
    fn presence(&self, round: &Round) -> impl Iterator<Item = u8> {
        let excused = round.weight == 0.0 && self.options.unused == Unused::Error;
        round.tensors.iter().map(move |tensor| u8::from(excused || tensor.is_some()))
    }

    /// Under [`Unused::Error`], names the parameters without gradient and the ranks. All ranks see the same sums, so all
    /// take the same way.
    fn check_present(&self, round: &Round, present: &[f64]) -> Result<()> {
        let ranks = self.comm.size();
        let lacking = |&at: &usize| present[at] < ranks as f64;
        if self.options.unused != Unused::Error {
            return Ok(());
        }
        let Some(first) = (0..present.len()).find(lacking) else { return Ok(()) };
        let others = (first + 1..present.len()).filter(lacking).count();
        let flags: Vec<u8> = self.presence(round).collect();
        let all = self.comm.all_gather_bytes(&flags)?;
        let ranks = (0..ranks).filter(|&rank| all[rank].get(first) == Some(&0)).collect();
        Err(Error::NoGradient { parameter: self.parameters.name(first).into(), ranks, others })
    }

    /// Copies the means out of the buckets.
    fn collect(&self, round: &mut Round, total: f64, present: &[f64]) -> Result<()> {
        let Plan { buckets, .. } = &self.plan;
        for bucket in buckets {
            let Some(memory) = &bucket.memory else { continue };
            let divisor = memory.divisor(total, self.comm.size());
            for place in &bucket.places {
                let at = place.parameter;
                if present[at] == 0.0 && self.options.unused == Unused::Skip {
                    round.tensors[at] = None;
                    continue;
                }
                let var = self.parameters.var(at);
                if round.tensors[at].is_none() {
                    round.tensors[at] = Some(Tensor::zeros(var.shape(), gradient_dtype(var.dtype()), var.device())?);
                }
                if let Some(gradient) = &round.tensors[at] {
                    memory.drain(place.start, place.len, divisor, gradient)?;
                }
            }
        }
        Ok(())
    }
}
