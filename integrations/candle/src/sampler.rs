//! Distributed sampler: every rank works out alone which samples it takes, and together the ranks take them all.
//!
//! ```text
//! samples in this epoch's order   0 1 2 3 4 5 6 7 8 9 | samples 10, world 2, batch 2: global batches of 4
//! step 0   rank 0 [0 1]   rank 1 [2 3]
//! step 1   rank 0 [4 5]   rank 1 [6 7]
//! step 2   2 samples are left: Wrap   rank 0 [8 9] rank 1 [0 1]
//!                              Uneven rank 0 [8]   rank 1 [9]
//!                              Drop   there is no step 2
//! ```
//!
//! - Rank `r` takes places `r * batch .. (r + 1) * batch` of every whole global batch of `world * batch`.
//! - All ranks take the same number of steps, whatever the policy, so a collective a step never waits for a rank that
//!   has finished. Under [`Remainder::Uneven`] a rank's last share may be empty; it still takes the step.
//! - [`Order::Shuffled`] draws a fresh permutation each epoch from (seed, epoch) alone. The generator is written down
//!   here (SplitMix64 and Fisher-Yates) and will not change, so that a resumed run sees the same samples for ever.
//! - [`Sampler::state`] taken between two batches and restored elsewhere continues with the very next batch.
//!
//! ```
//! use hccl_candle::sampler::{Order, Sampler};
//!
//! let mut sampler = Sampler::new(10, 1, 2, 2)?.order(Order::Shuffled { seed: 7 });
//! assert_eq!(sampler.steps_per_epoch(), 3);
//! let first = sampler.next_batch();
//! assert_eq!((first.epoch, first.step, first.indices.len()), (0, 0, 2));
//!
//! let saved = sampler.state();
//! let expected = sampler.next_batch();
//! sampler.restore(&saved)?;
//! assert_eq!(sampler.next_batch(), expected);
//! # Ok::<(), hccl_candle::sampler::SamplerError>(())
//! ```

mod error;
mod shuffle;
#[cfg(test)]
mod tests;

pub use error::SamplerError;

use shuffle::SplitMix64;
use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// The order in which an epoch goes through the samples.
///
/// ```
/// use hccl_candle::sampler::{Order, Sampler};
/// let epoch = |order| {
///     let mut sampler = Sampler::new(8, 0, 1, 8)?.order(order);
///     Ok::<_, hccl_candle::sampler::SamplerError>(sampler.next_batch().indices)
/// };
/// let mut shuffled = epoch(Order::Shuffled { seed: 7 })?;
/// assert_ne!(shuffled, epoch(Order::Sequential)?);
/// shuffled.sort_unstable();
/// assert_eq!(shuffled, epoch(Order::Sequential)?);
/// # Ok::<(), hccl_candle::sampler::SamplerError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// As stored, the same in every epoch.
    Sequential,
    /// A permutation drawn anew for every epoch from this seed and the epoch's number. All ranks must use one seed.
    Shuffled {
        /// Any value; two seeds give unrelated permutations in all epochs.
        seed: u64,
    },
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sequential => f.write_str("sequential"),
            Self::Shuffled { seed } => write!(f, "shuffled with seed {seed}"),
        }
    }
}

/// What happens to the samples that do not fill the last global batch of an epoch.
///
/// ```
/// use hccl_candle::sampler::{Remainder, Sampler};
/// // Rank 1 of 2, one sample a step, of 5.
/// let epoch = |remainder| {
///     let mut sampler = Sampler::new(5, 1, 2, 1)?.remainder(remainder)?;
///     Ok::<_, hccl_candle::sampler::SamplerError>(sampler.epoch_batches().map(|b| b.indices).collect::<Vec<_>>())
/// };
/// assert_eq!(epoch(Remainder::Wrap)?, [vec![1], vec![3], vec![0]]);
/// assert_eq!(epoch(Remainder::Drop)?, [vec![1], vec![3]]);
/// assert_eq!(epoch(Remainder::Uneven)?, [vec![1], vec![3], vec![]]);
/// # Ok::<(), hccl_candle::sampler::SamplerError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Remainder {
    /// The batch is filled up from the start of the epoch's order: every rank has `batch` samples in every step, and a
    /// few samples count twice.
    Wrap,
    /// They are left out of this epoch (of another one's they may be part, when shuffled).
    Drop,
    /// They are shared out as evenly as they go, lower ranks first: every sample counts once, and ranks weigh their
    /// share by [`Batch::weight`].
    Uneven,
}

impl fmt::Display for Remainder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Wrap => "wrap",
            Self::Drop => "drop",
            Self::Uneven => "uneven",
        })
    }
}

/// One rank's part of one global batch.
///
/// ```
/// use hccl_candle::sampler::{Batch, Sampler};
/// let share = |rank| Sampler::new(8, rank, 2, 3).map(|mut sampler| sampler.next_batch());
/// assert_eq!(share(0)?.indices, [0, 1, 2]);
/// assert_eq!(share(1)?, Batch { epoch: 0, step: 0, indices: vec![3, 4, 5], global: 6 });
/// # Ok::<(), hccl_candle::sampler::SamplerError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Epoch, counted from 0.
    pub epoch: u64,
    /// Step within the epoch, counted from 0.
    pub step: usize,
    /// This rank's samples; empty only under [`Remainder::Uneven`] and in evaluation.
    pub indices: Vec<usize>,
    /// Samples of all ranks together in this step, never 0.
    pub global: usize,
}

impl Batch {
    /// This rank's share of the global batch, 0 to 1: the weight that makes the sum over ranks of `weight * local mean`
    /// the mean over the global batch.
    ///
    /// ```
    /// use hccl_candle::sampler::Sampler;
    /// let share = |rank| Sampler::evaluation(3, rank, 2, 2).map(|mut sampler| sampler.next_batch().weight());
    /// assert_eq!([share(0), share(1)], [Ok(2.0 / 3.0), Ok(1.0 / 3.0)]);
    /// ```
    pub fn weight(&self) -> f64 {
        self.indices.len() as f64 / self.global as f64
    }
}

/// Where a sampler stands and what it was made for; goes into a checkpoint. The same on every rank.
///
/// ```
/// use hccl_candle::sampler::Sampler;
/// let mut sampler = Sampler::new(10, 0, 2, 2)?;
/// sampler.next_batch();
/// let state = sampler.state();
/// assert_eq!((state.epoch, state.step, state.samples, state.world), (0, 1, 10, 2));
/// # Ok::<(), hccl_candle::sampler::SamplerError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplerState {
    /// Epoch of the next batch.
    pub epoch: u64,
    /// Step, within that epoch, of the next batch.
    pub step: usize,
    /// Samples of the data set.
    pub samples: usize,
    /// Number of ranks.
    pub world: usize,
    /// Samples a rank and step.
    pub batch: usize,
    /// Order of the samples.
    pub order: Order,
    /// Treatment of the last, incomplete batch.
    pub remainder: Remainder,
}

/// Hands one rank its batches, epoch after epoch; see the [module page](self).
///
/// ```
/// use hccl_candle::sampler::{Order, Sampler};
/// let mut all = Vec::new();
/// for rank in 0..2 {
///     let mut sampler = Sampler::new(4, rank, 2, 1)?.order(Order::Shuffled { seed: 3 });
///     all.extend(sampler.epoch_batches().flat_map(|batch| batch.indices));
/// }
/// all.sort_unstable();
/// assert_eq!(all, [0, 1, 2, 3]); // together the ranks have seen every sample once
/// # Ok::<(), hccl_candle::sampler::SamplerError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sampler {
    rank: usize,
    /// Position and shape. Invariant: `step < steps_per_epoch()`, which is at least 1.
    state: SamplerState,
    /// The order of epoch `state.epoch`; empty when sequential.
    permutation: Vec<usize>,
}

impl Sampler {
    /// A training sampler at the start of epoch 0: [`Order::Sequential`] and [`Remainder::Wrap`] until told otherwise.
    ///
    /// `batch` is the number of samples a rank and step, `samples` the size of the whole data set.
    ///
    /// ```
    /// use hccl_candle::sampler::Sampler;
    /// let mut sampler = Sampler::new(100, 2, 4, 8)?; // 100 samples, rank 2 of 4, 8 samples a step
    /// assert_eq!(sampler.next_batch().indices, [16, 17, 18, 19, 20, 21, 22, 23]);
    /// assert!(Sampler::new(100, 4, 4, 8).is_err());
    /// # Ok::<(), hccl_candle::sampler::SamplerError>(())
    /// ```
    ///
    /// # Errors
    /// [`SamplerError`] when `batch` or `samples` is 0, `rank` is not below `world`, or there are more ranks than samples.
    pub fn new(samples: usize, rank: usize, world: usize, batch: usize) -> Result<Self, SamplerError> {
        let sampler = Self::with(samples, rank, world, batch, Remainder::Wrap)?;
        if world > samples {
            return Err(SamplerError::MoreRanksThanSamples { world, samples });
        }
        Ok(sampler)
    }

    /// An evaluation sampler: in stored order, every sample exactly once over all ranks ([`Remainder::Uneven`]).
    ///
    /// More ranks than samples are allowed; some ranks then get only empty batches.
    ///
    /// ```
    /// use hccl_candle::sampler::Sampler;
    /// let mut counted = 0;
    /// for rank in 0..3 {
    ///     let mut sampler = Sampler::evaluation(10, rank, 3, 2)?;
    ///     counted += sampler.epoch_batches().map(|batch| batch.indices.len()).sum::<usize>();
    /// }
    /// assert_eq!(counted, 10); // every sample once
    /// # Ok::<(), hccl_candle::sampler::SamplerError>(())
    /// ```
    ///
    /// # Errors
    /// [`SamplerError`] when `batch` or `samples` is 0 or `rank` is not below `world`.
    pub fn evaluation(samples: usize, rank: usize, world: usize, batch: usize) -> Result<Self, SamplerError> {
        Self::with(samples, rank, world, batch, Remainder::Uneven)
    }

    /// The same sampler with another order, at the same position.
    ///
    /// ```
    /// use hccl_candle::sampler::{Order, Sampler};
    /// let mut sampler = Sampler::new(16, 0, 1, 16)?.order(Order::Shuffled { seed: 7 });
    /// assert_ne!(sampler.next_batch().indices, sampler.next_batch().indices); // each epoch has its own
    /// # Ok::<(), hccl_candle::sampler::SamplerError>(())
    /// ```
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.state.order = order;
        self.reshuffle();
        self
    }

    /// The same sampler with another treatment of the last batch, at the start of its epoch.
    ///
    /// ```
    /// use hccl_candle::sampler::{Remainder, Sampler};
    /// let sampler = Sampler::new(10, 0, 2, 2)?;
    /// assert_eq!((sampler.steps_per_epoch(), sampler.remainder(Remainder::Drop)?.steps_per_epoch()), (3, 2));
    /// assert!(Sampler::new(3, 0, 2, 2)?.remainder(Remainder::Drop).is_err());
    /// # Ok::<(), hccl_candle::sampler::SamplerError>(())
    /// ```
    ///
    /// # Errors
    /// [`SamplerError::NothingLeft`] when `Drop` would leave no step at all.
    pub fn remainder(mut self, remainder: Remainder) -> Result<Self, SamplerError> {
        self.state.remainder = remainder;
        self.state.step = 0;
        if self.steps_per_epoch() == 0 {
            return Err(SamplerError::NothingLeft { samples: self.state.samples, global: self.global_batch() });
        }
        Ok(self)
    }

    /// Steps of one epoch, the same on all ranks and at least 1.
    ///
    /// ```
    /// use hccl_candle::sampler::Sampler;
    /// let steps = |rank| Sampler::new(50_000, rank, 4, 64).map(|sampler| sampler.steps_per_epoch());
    /// assert_eq!([steps(0)?, steps(3)?], [196, 196]); // 195.3 global batches
    /// # Ok::<(), hccl_candle::sampler::SamplerError>(())
    /// ```
    pub fn steps_per_epoch(&self) -> usize {
        match self.state.remainder {
            Remainder::Drop => self.state.samples / self.global_batch(),
            Remainder::Wrap | Remainder::Uneven => self.state.samples.div_ceil(self.global_batch()),
        }
    }

    /// The next batch; after an epoch's last one the next epoch follows by itself, without end.
    ///
    /// ```
    /// use hccl_candle::sampler::Sampler;
    /// let mut sampler = Sampler::new(4, 1, 2, 1)?;
    /// let steps: Vec<_> = (0..3).map(|_| sampler.next_batch()).map(|b| (b.epoch, b.step, b.indices[0])).collect();
    /// assert_eq!(steps, [(0, 0, 1), (0, 1, 3), (1, 0, 1)]);
    /// # Ok::<(), hccl_candle::sampler::SamplerError>(())
    /// ```
    pub fn next_batch(&mut self) -> Batch {
        let SamplerState { epoch, step, .. } = self.state;
        let (places, global) = self.places(step);
        let indices = places.map(|place| self.sample(place)).collect();
        self.advance();
        Batch { epoch, step, indices, global }
    }

    /// The batches left in the current epoch; the sampler then stands at the start of the next one.
    ///
    /// ```
    /// use hccl_candle::sampler::Sampler;
    ///
    /// let mut sampler = Sampler::evaluation(5, 1, 3, 1)?;             // 5 samples over 3 ranks, one at a time
    /// let seen: Vec<_> = sampler.epoch_batches().map(|b| b.indices).collect();
    /// assert_eq!(seen, [vec![1], vec![4]]);                           // rank 0: [0], [3]; rank 2: [2], []
    /// # Ok::<(), hccl_candle::sampler::SamplerError>(())
    /// ```
    pub fn epoch_batches(&mut self) -> EpochBatches<'_> {
        let epoch = self.state.epoch;
        EpochBatches { sampler: self, epoch }
    }

    /// Position of the next batch, and what this sampler was made for.
    ///
    /// ```
    /// use hccl_candle::sampler::Sampler;
    /// let mut sampler = Sampler::new(4, 1, 2, 1)?;
    /// sampler.next_batch();
    /// assert_eq!((sampler.state().epoch, sampler.state().step), (0, 1)); // where the next one is
    /// # Ok::<(), hccl_candle::sampler::SamplerError>(())
    /// ```
    pub fn state(&self) -> SamplerState {
        self.state
    }

    /// Continues where `saved` was taken; the next batch is the one that would have followed there.
    ///
    /// ```
    /// use hccl_candle::sampler::Sampler;
    /// let mut sampler = Sampler::new(9, 0, 1, 2)?;
    /// sampler.next_batch();
    /// let saved = sampler.state();
    ///
    /// let mut resumed = Sampler::new(9, 0, 1, 2)?; // in a new process
    /// resumed.restore(&saved)?;
    /// assert_eq!(resumed.next_batch().indices, [2, 3]);
    /// assert!(Sampler::new(9, 0, 1, 3)?.restore(&saved).is_err()); // another batch size
    /// # Ok::<(), hccl_candle::sampler::SamplerError>(())
    /// ```
    ///
    /// # Errors
    /// [`SamplerError::Differs`] when `saved` comes from another number of samples or ranks, batch size, order, seed or
    /// remainder policy, and [`SamplerError::Step`] when its position is past the end. The sampler is then unchanged.
    pub fn restore(&mut self, saved: &SamplerState) -> Result<(), SamplerError> {
        let current = &self.state;
        same("samples", saved.samples, current.samples)?;
        same("world size", saved.world, current.world)?;
        same("batch size", saved.batch, current.batch)?;
        same("order", saved.order, current.order)?;
        same("remainder policy", saved.remainder, current.remainder)?;
        self.seek(saved.epoch, saved.step)
    }

    /// Moves to a position of choice.
    ///
    /// ```
    /// use hccl_candle::sampler::Sampler;
    /// let mut sampler = Sampler::new(9, 0, 1, 2)?;
    /// sampler.seek(3, 1)?;
    /// let batch = sampler.next_batch();
    /// assert_eq!((batch.epoch, batch.step, batch.indices), (3, 1, vec![2, 3]));
    /// assert!(sampler.seek(3, 5).is_err());
    /// # Ok::<(), hccl_candle::sampler::SamplerError>(())
    /// ```
    ///
    /// # Errors
    /// [`SamplerError::Step`] when `step` is not below [`steps_per_epoch`](Self::steps_per_epoch).
    pub fn seek(&mut self, epoch: u64, step: usize) -> Result<(), SamplerError> {
        let steps = self.steps_per_epoch();
        if step >= steps {
            return Err(SamplerError::Step { step, steps });
        }
        self.state.step = step;
        if self.state.epoch != epoch {
            self.state.epoch = epoch;
            self.reshuffle();
        }
        Ok(())
    }

    fn with(
        samples: usize,
        rank: usize,
        world: usize,
        batch: usize,
        remainder: Remainder,
    ) -> Result<Self, SamplerError> {
        if rank >= world {
            return Err(SamplerError::Rank { rank, world });
        }
        if batch == 0 {
            return Err(SamplerError::ZeroBatch);
        }
        if samples == 0 {
            return Err(SamplerError::NoSamples);
        }
        // A wrapped step's places run past the last sample by less than one global batch; that sum must fit.
        if world.checked_mul(batch).and_then(|global| global.checked_add(samples)).is_none() {
            return Err(SamplerError::GlobalBatch { world, batch });
        }
        let state = SamplerState { epoch: 0, step: 0, samples, world, batch, order: Order::Sequential, remainder };
        Ok(Self { rank, state, permutation: Vec::new() })
    }

    fn global_batch(&self) -> usize {
        self.state.world * self.state.batch
    }

    /// This rank's places of a step, which may run past the last sample when wrapping, and the global batch's size.
    fn places(&self, step: usize) -> (Range<usize>, usize) {
        let SamplerState { samples, world, batch, remainder, .. } = self.state;
        let global = self.global_batch();
        let start = step * global;
        let left = samples - start;
        if left >= global || remainder != Remainder::Uneven {
            let first = start + self.rank * batch;
            return (first..first + batch, global);
        }
        let (each, extra) = (left / world, left % world);
        let first = start + self.rank * each + self.rank.min(extra);
        let share = each + usize::from(self.rank < extra);
        (first..first + share, left)
    }

    fn sample(&self, place: usize) -> usize {
        let place = place % self.state.samples;
        self.permutation.get(place).copied().unwrap_or(place)
    }

    fn advance(&mut self) {
        self.state.step += 1;
        if self.state.step == self.steps_per_epoch() {
            self.state.step = 0;
            self.state.epoch = self.state.epoch.wrapping_add(1);
            self.reshuffle();
        }
    }

    fn reshuffle(&mut self) {
        self.permutation.clear();
        if let Order::Shuffled { seed } = self.state.order {
            self.permutation.extend(0..self.state.samples);
            SplitMix64::for_epoch(seed, self.state.epoch).shuffle(&mut self.permutation);
        }
    }
}

/// Iterator over the rest of an epoch, made by [`Sampler::epoch_batches`].
///
/// ```
/// use hccl_candle::sampler::{EpochBatches, Sampler};
/// let mut sampler = Sampler::new(9, 0, 1, 2)?;
/// sampler.next_batch();
/// let rest: EpochBatches<'_> = sampler.epoch_batches();
/// assert_eq!(rest.map(|batch| batch.step).collect::<Vec<_>>(), [1, 2, 3, 4]);
/// assert_eq!(sampler.state().epoch, 1);
/// # Ok::<(), hccl_candle::sampler::SamplerError>(())
/// ```
#[derive(Debug)]
pub struct EpochBatches<'a> {
    sampler: &'a mut Sampler,
    epoch: u64,
}

impl Iterator for EpochBatches<'_> {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        (self.sampler.state.epoch == self.epoch).then(|| self.sampler.next_batch())
    }
}

fn same<T: PartialEq + fmt::Display>(field: &'static str, saved: T, current: T) -> Result<(), SamplerError> {
    if saved == current {
        return Ok(());
    }
    Err(SamplerError::Differs { field, saved: saved.to_string(), current: current.to_string() })
}
