//! What can end a run before its end, and the exit code that tells the launcher whose failure it was.

use std::io;
use std::path::PathBuf;

use hccl_candle::sampler::SamplerError;

use crate::data::DataError;
use crate::report::FileError;

/// `Result` with [`Failure`].
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Exit code for flags and files that cannot be right, as clap has it.
const USAGE: u8 = 2;
/// Exit code of a rank that failed only because another one did: see [`hccl::launch`].
const KNOCK_ON: u8 = 75;

/// Why a run ended before its end. The messages name flag, file or rank.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Flags that do not fit each other, the data or the launcher.
    #[error("{0}")]
    Usage(String),
    /// The images.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A result file.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file of `--init`.
    #[error("--init {}: {problem}", path.display())]
    Init {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A checkpoint that was made with other flags.
    #[error("checkpoint {}: {} (hint: resume with the flags of that run, or start anew in an empty folder)",
        path.display(), differences.join("; "))]
    Settings {
        /// The checkpoint.
        path: PathBuf,
        /// Each flag with its value there and here.
        differences: Vec<String>,
    },
    /// The loss is infinite or not a number.
    #[error("the loss of step {step} is {loss} (hint: lower --lr)")]
    NotFinite {
        /// The step, counted from 1.
        step: u64,
        /// The loss.
        loss: f64,
    },
    /// Ranks.
    #[error(transparent)]
    Hccl(#[from] hccl::Error),
    /// Training.
    #[error(transparent)]
    Train(#[from] hccl_candle::Error),
    /// Standard output, such as a closed pipe.
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
    /// The file through which `--compare` gets its figures.
    #[error("--compare: {0}")]
    Compare(io::Error),
}

impl From<candle_core::Error> for Failure {
    fn from(error: candle_core::Error) -> Self {
        Failure::Train(error.into())
    }
}

impl From<SamplerError> for Failure {
    fn from(error: SamplerError) -> Self {
        Failure::Usage(error.to_string())
    }
}

impl Failure {
    /// The exit code of a process that ends with this.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::Usage(_) | Failure::Data(_) | Failure::File(_) | Failure::Init { .. } => USAGE,
            Failure::Settings { .. } => USAGE,
            Failure::Hccl(error) => hccl::launch::exit_code(error),
            Failure::Train(error) => match error.as_hccl() {
                Some(error) => hccl::launch::exit_code(error),
                None => 1,
            },
            Failure::NotFinite { .. } | Failure::Output(_) | Failure::Compare(_) => 1,
        }
    }

    /// What rank `rank` says and its exit code. Of an error that all ranks meet alike rank 0 tells, once.
    pub(crate) fn verdict(&self, rank: usize) -> (Option<String>, u8) {
        if rank > 0 && self.is_everywhere() {
            return (None, KNOCK_ON);
        }
        (Some(self.to_string()), self.code())
    }

    fn is_everywhere(&self) -> bool {
        use hccl_candle::Error::{Drift, Rank0, TornCheckpoint, WrongCheckpoint};
        match self {
            Failure::Settings { .. } | Failure::NotFinite { .. } => true,
            Failure::Train(error) => {
                matches!(error, Drift { .. } | Rank0(_) | TornCheckpoint { .. } | WrongCheckpoint { .. })
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_0_tells_what_all_ranks_meet() {
        let all = Failure::NotFinite { step: 3, loss: f64::NAN };
        assert_eq!(all.verdict(1), (None, KNOCK_ON));
        assert_eq!(all.verdict(0), (Some("the loss of step 3 is NaN (hint: lower --lr)".into()), 1));
        let one = Failure::Usage("--ranks 9".into());
        assert_eq!(one.verdict(1), (Some("--ranks 9".into()), USAGE));
    }
}
