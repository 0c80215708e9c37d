//! What a run will be, from its flags and its data: checked by the program before it starts ranks, and by each rank.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use hccl_candle::sampler::{Order, Sampler};
use hccl_candle::{Checkpoints, Schedule};

use crate::cli::{Args, OrderArg};
use crate::data::Data;
use crate::failure::{Failure, Result};
use crate::{plot, report, weights};

/// A ResNet-50 halves the sides of its images so often, and BatchNorm needs two values of a channel at the end.
const SHRINK: usize = 32;
/// Part of the steps in which the learning rate rises.
const WARMUP: u64 = 10;

/// A run: flags, images and what follows from both.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) args: Args,
    pub(crate) data: Data,
    pub(crate) world: usize,
    /// Training images in use.
    pub(crate) train_samples: usize,
    /// Test images in use.
    pub(crate) test_samples: usize,
    /// Optimizer steps of the whole run.
    pub(crate) steps: u64,
}

impl Job {
    /// Loads the images and checks that they, the flags and the number of ranks go together.
    ///
    /// # Errors
    /// [`Failure`] naming flag or file.
    pub(crate) fn new(args: Args, world: usize) -> Result<Job> {
        let data = Data::load(&args.place(), args.image_size.map(|size| size as usize))?;
        data.check_ranks(world)?;
        let train_samples = part("--train-samples", args.train_samples, data.train.len(), "training")?;
        let test_samples = part("--test-samples", args.test_samples, data.test.len(), "test")?;
        let mut job = Job { args, data, world, train_samples, test_samples, steps: 0 };
        job.check_batch()?;
        let batches = job.sampler(0)?.steps_per_epoch() as u64;
        job.steps = match job.args.steps {
            Some(steps) => steps,
            None => job.args.epochs.saturating_mul(batches).div_ceil(job.args.accumulate),
        };
        Ok(job)
    }

    /// Checks the files that the run will read and write. Leaves nothing behind but the folder of `--checkpoint`.
    ///
    /// # Errors
    /// [`Failure`] naming flag and file.
    pub(crate) fn check_files(&self) -> Result<()> {
        let args = &self.args;
        if let Some(path) = &args.init {
            weights::check(path, self.data.classes.len(), args.dtype())?;
        }
        if let Some(path) = &args.csv {
            report::csv::check(path, args.resume)?;
        }
        if let Some(path) = &args.plot {
            plot::check(path)?;
        }
        if let Some(dir) = &args.checkpoint {
            if !args.resume {
                check_unused(dir)?;
            }
            Checkpoints::open(dir).map_err(|error| Failure::Usage(format!("--checkpoint {error}")))?;
        }
        Ok(())
    }

    /// The training batches of a rank.
    ///
    /// # Errors
    /// More ranks than samples.
    pub(crate) fn sampler(&self, rank: usize) -> Result<Sampler> {
        let order = match self.args.order {
            OrderArg::Shuffled => Order::Shuffled { seed: self.args.seed },
            OrderArg::Sequential => Order::Sequential,
        };
        Ok(Sampler::new(self.train_samples, rank, self.world, self.args.batch())?.order(order))
    }

    /// The learning rates.
    ///
    /// # Errors
    /// None for flags that clap let pass.
    pub(crate) fn schedule(&self) -> Result<Schedule> {
        Ok(Schedule::warmup_cosine(self.args.lr, self.steps / WARMUP, self.steps, 0.0)?)
    }

    /// Images of all ranks in a step.
    pub(crate) fn images_per_step(&self) -> u64 {
        self.world as u64 * self.args.batch * self.args.accumulate
    }

    /// Flags without which a resumed run is another run, and their values.
    pub(crate) fn settings(&self) -> BTreeMap<String, String> {
        let args = &self.args;
        let all = [
            ("--batch", args.batch.to_string()),
            ("--accumulate", args.accumulate.to_string()),
            ("--order", format!("{:?}", args.order).to_lowercase()),
            ("--seed", args.seed.to_string()),
            ("--image-size", self.data.train.image_size().to_string()),
            ("--normalize", format!("{:?}", args.normalize)),
            ("--wire", format!("{:?}", args.wire()).to_lowercase()),
            ("--sync-bn", args.sync_bn.to_string()),
            ("the number of training images", self.train_samples.to_string()),
        ];
        all.map(|(name, value)| (name.to_owned(), value)).into()
    }

    /// Flags that may change when a run is resumed, though it will then not be the same.
    pub(crate) fn tunable(&self) -> BTreeMap<String, String> {
        let args = &self.args;
        let all = [
            ("the number of steps", self.steps.to_string()),
            ("--lr", args.lr.to_string()),
            ("--momentum", args.momentum.to_string()),
            ("--weight-decay", args.weight_decay.to_string()),
        ];
        all.map(|(name, value)| (name.to_owned(), value)).into()
    }

    fn check_batch(&self) -> Result<()> {
        let side = self.data.train.image_size().div_ceil(SHRINK);
        let ranks = if self.args.sync_bn { self.world } else { 1 };
        if self.args.batch() * side * side * ranks < 2 {
            let size = self.data.train.image_size();
            return Err(Failure::Usage(format!(
                "--batch 1 with images of {size} pixels: BatchNorm needs 2 values of a channel, use --batch 2 or more, \
                 or larger images"
            )));
        }
        Ok(())
    }
}

/// The first `wanted` of `there` images.
fn part(flag: &str, wanted: Option<u64>, there: usize, what: &str) -> Result<usize> {
    match wanted {
        Some(wanted) if wanted > there as u64 => {
            Err(Failure::Usage(format!("{flag} {wanted}: there are {there} {what} images")))
        }
        Some(wanted) => Ok(wanted as usize),
        None => Ok(there),
    }
}

/// Refuses a folder with checkpoints: a new run's and an old run's in one folder could be mixed up by a later `--resume`.
fn check_unused(dir: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
    let is_checkpoint = |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(b"step-");
    match entries.flatten().find(is_checkpoint) {
        Some(entry) => Err(Failure::Usage(format!(
            "--checkpoint {}: holds {} of an earlier run; add --resume to continue it, or choose another folder",
            dir.display(),
            entry.file_name().display()
        ))),
        None => Ok(()),
    }
}
