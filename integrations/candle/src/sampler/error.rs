//! Why a sampler was refused.

/// Why a sampler could not be made or restored.
///
/// ```
/// use hccl_candle::sampler::{Sampler, SamplerError};
/// let err = Sampler::new(3, 0, 4, 1).unwrap_err();
/// assert_eq!(err, SamplerError::MoreRanksThanSamples { world: 4, samples: 3 });
/// assert!(err.to_string().contains("start at most 3 ranks"));
///
/// fn batches(samples: usize) -> hccl_candle::Result<usize> {
///     Ok(Sampler::new(samples, 0, 2, 4)?.steps_per_epoch()) // among other calls of this crate
/// }
/// assert_eq!(batches(10)?, 2);
/// assert!(batches(1).is_err_and(|err| matches!(err, hccl_candle::Error::Sampler(_))));
/// # Ok::<(), hccl_candle::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplerError {
    /// The batch size is 0.
    #[error("batch size is 0: every rank needs at least 1 sample a step")]
    ZeroBatch,
    /// There are no samples.
    #[error("the data set has no samples")]
    NoSamples,
    /// The rank is not one of the world's.
    #[error("rank {rank} is not in a world of {world} (ranks count from 0)")]
    Rank {
        /// The rank given.
        rank: usize,
        /// The number of ranks given.
        world: usize,
    },
    /// Training with more ranks than samples would give some ranks nothing but copies.
    #[error("more ranks than samples: {world} ranks, {samples} samples (start at most {samples} ranks)")]
    MoreRanksThanSamples {
        /// The number of ranks.
        world: usize,
        /// The number of samples.
        samples: usize,
    },
    /// `world * batch` does not fit into a `usize`.
    #[error("a global batch of {world} ranks x {batch} samples is too large")]
    GlobalBatch {
        /// The number of ranks.
        world: usize,
        /// Samples a rank and step.
        batch: usize,
    },
    /// [`Remainder::Drop`](super::Remainder::Drop) would leave an epoch without a step.
    #[error("{samples} samples do not fill one global batch of {global}, and dropping it would leave no step")]
    NothingLeft {
        /// The number of samples.
        samples: usize,
        /// Samples of one global batch.
        global: usize,
    },
    /// A saved state belongs to another run.
    #[error("the saved data position has {field} {saved}, this run has {field} {current}")]
    Differs {
        /// What differs.
        field: &'static str,
        /// Its value in the saved state.
        saved: String,
        /// Its value in this sampler.
        current: String,
    },
    /// A position past the end of an epoch.
    #[error("data position: step {step} is past the end of an epoch of {steps} steps")]
    Step {
        /// The step asked for.
        step: usize,
        /// Steps of an epoch.
        steps: usize,
    },
}
