//! The training loop of one rank.
//!
//! ```text
//! a step:  K batches -> forward, backward segment by segment (gradients travel meanwhile) -> mean over ranks
//!          -> gradient norm -> SGD -> mean loss over ranks -> CSV, progress -> checkpoint every so many steps
//! ```
//!
//! Every rank does the same; rank 0 also writes and talks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::DType;
use candle_nn::loss::cross_entropy;
use hccl::{Communicator, Sum};
use hccl_candle::nn::StatsReduce;
use hccl_candle::ops::SharedComm;
use hccl_candle::sampler::Sampler;
use hccl_candle::{DataParallel, Grads, Optimizer, Options, Schedule, Sgd, SgdConfig, Synced};

use crate::data::Normalizer;
use crate::eval;
use crate::failure::{Failure, Result};
use crate::job::Job;
use crate::model::{ResNet50, ResNet50Config};
use crate::report::{Row, Summary};
use crate::resume::Saver;
use crate::speed::Meter;
use crate::tell::Teller;
use crate::weights;

/// One rank of a run.
pub(crate) struct Trainer<'a> {
    job: &'a Job,
    replica: DataParallel,
    model: ResNet50,
    sgd: Sgd,
    sampler: Sampler,
    schedule: Schedule,
    normalizer: Normalizer,
    /// Steps taken since the start of the run, those before a resumption included.
    done: u64,
}

/// Trains, tests and reports. Collective.
///
/// # Errors
/// [`Failure`]; what it says of files and data names them.
pub(crate) fn run(job: &Job, comm: Communicator) -> Result<()> {
    let rank = comm.rank().index();
    let statistics = match job.args.sync_bn {
        // On a queue of their own: gradients travel on the other at the same time.
        true => Some(SharedComm::new(comm.duplicate()?)),
        false => None,
    };
    Trainer::new(job, comm, statistics)?.run(rank)
}

impl<'a> Trainer<'a> {
    fn new(job: &'a Job, comm: Communicator, statistics: Option<SharedComm>) -> Result<Self> {
        let args = &job.args;
        let config = ResNet50Config {
            classes: job.data.classes.len(),
            zero_init_residual: true,
            sync_batch_norm: statistics.map(|statistics| Arc::new(statistics) as Arc<dyn StatsReduce>),
        };
        let (map, model) = weights::blank(&config, args.dtype())?;
        let rank = comm.rank().index();
        if rank == 0 {
            weights::fill(&map, args.seed)?;
            if let Some(path) = &args.init {
                weights::load(&map, path)?;
            }
        }
        let options = Options::default().wire(args.wire()).accumulate(args.accumulate as usize);
        let replica = DataParallel::new(comm, &map, options)?;
        let config =
            SgdConfig { lr: args.lr, momentum: args.momentum, weight_decay: args.weight_decay, ..SgdConfig::default() };
        let sgd = Sgd::new(replica.parameters(), config)?;
        let normalizer = Normalizer::new(args.normalize, &job.data.train)?;
        let (sampler, schedule) = (job.sampler(rank)?, job.schedule()?);
        Ok(Trainer { job, replica, model, sgd, sampler, schedule, normalizer, done: 0 })
    }

    fn run(mut self, rank: usize) -> Result<()> {
        let saver = Saver::open(self.job)?;
        let mut notes = Vec::new();
        if let Some(saver) = saver.as_ref().filter(|_| self.job.args.resume) {
            let resumed = saver.resume(self.job, &mut self.replica, &mut self.sgd, &mut self.sampler)?;
            self.done = resumed.done;
            notes = resumed.notes;
        }
        let mut teller = Teller::new(self.job, rank, self.done)?;
        notes.iter().try_for_each(|note| teller.note(note))?;
        let mut meter = Meter::default();
        let started = Instant::now();
        let before = self.done;
        while self.done < self.job.steps {
            let row = self.step()?;
            meter.add(&row);
            teller.row(&row)?;
            if let Some(saver) = saver.as_ref().filter(|saver| saver.is_due(self.done, self.job.steps)) {
                saver.save(self.job, &self.replica, &self.sgd, &self.sampler, self.done)?;
            }
        }
        let seconds = started.elapsed();
        let speed = meter.speed();
        if rank == 0 {
            speed.send(self.job)?;
        }
        if self.job.args.speed_only {
            return teller.finish(None);
        }
        let steps = self.done - before;
        let summary = self.summary(steps, seconds, &meter)?;
        teller.finish(Some(&summary))
    }

    /// One optimizer step.
    fn step(&mut self) -> Result<Row> {
        let started = Instant::now();
        self.sgd.set_learning_rate(self.schedule.at(self.done));
        let (loss, grads) = self.gradients()?;
        let grad_norm = grads.norm()?;
        let mut sync = grads.stats().wait;
        self.sgd.step(&grads)?;
        drop(grads);
        let waiting = Instant::now();
        let mut sum = [loss];
        self.replica.comm().all_reduce(&mut sum, Sum)?;
        sync += waiting.elapsed();
        self.done += 1;
        let loss = sum[0] / self.job.world as f64;
        if !loss.is_finite() {
            return Err(Failure::NotFinite { step: self.done, loss });
        }
        let step = started.elapsed();
        let images_per_s = self.job.images_per_step() as f64 / step.as_secs_f64();
        Ok(Row { step: self.done, loss, grad_norm, images_per_s, step_ms: millis(step), sync_ms: millis(sync) })
    }

    /// The mean loss of this rank's batches and the mean gradient over all ranks.
    fn gradients(&mut self) -> Result<(f64, Grads<Synced>)> {
        let mut sum = 0.0;
        for batch in 1..=self.job.args.accumulate {
            let indices = self.sampler.next_batch().indices;
            let (images, labels) = self.job.data.train.batch(&indices, &self.normalizer, self.job.args.dtype())?;
            let loss_of = |scores: &candle_core::Tensor| cross_entropy(scores, &labels);
            // Every rank has as many images: all weigh the same.
            let part = self.replica.backward_segments(&self.model, &images, 1.0, loss_of)?;
            sum += part.loss.to_dtype(DType::F64)?.to_scalar::<f64>()?;
            if let Some(grads) = part.grads {
                return Ok((sum / batch as f64, grads));
            }
        }
        // `accumulate` gives gradients at each k-th batch, and a step starts with none held.
        Err(Failure::Usage("--accumulate: no gradients after the last batch".into()))
    }

    fn summary(&self, steps: u64, seconds: Duration, meter: &Meter) -> Result<Summary> {
        let comm = self.replica.comm();
        let (correct, tested) = eval::run(self.job, comm, &self.model, &self.normalizer)?;
        let checksum = self.replica.check_replicas()?;
        let images = steps * self.job.images_per_step();
        Ok(Summary {
            steps,
            seconds: seconds.as_secs_f64(),
            images_per_s: images as f64 / seconds.as_secs_f64().max(f64::MIN_POSITIVE),
            sync_share: meter.sync_share(),
            correct,
            tested,
            checksums: vec![checksum; comm.size()],
        })
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
