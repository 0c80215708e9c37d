//! What can end a run before its end, and the exit code that tells the launcher whose failure it was.

use std::io;
use std::path::{Path, PathBuf};

use hccl::ErrorKind;

/// `Result` with [`Failure`].
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Exit code for flags and files that cannot be right, as clap has it.
const USAGE: u8 = 2;
/// Exit code of a rank that failed only because another one did: see [`hccl::launch`].
const KNOCK_ON: u8 = 75;

/// Why a run ended before its end. The messages name flag, file, tensor or rank.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Flags that do not fit each other, the model or the launcher.
    #[error("{0}")]
    Usage(String),
    /// A file of the model that is not as it must be.
    #[error("{}: {problem}", path.display())]
    Model {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The model could not be fetched.
    #[error("--fetch: {0}")]
    Fetch(String),
    /// Ranks.
    #[error(transparent)]
    Hccl(#[from] hccl::Error),
    /// A stage of the model failed on this rank.
    #[error("rank {rank}, layers {first} to {last}: {problem}")]
    Stage {
        /// The rank.
        rank: usize,
        /// Its first layer, counted from 0.
        first: usize,
        /// Its last layer.
        last: usize,
        /// What went wrong.
        problem: String,
    },
    /// No token can be chosen.
    #[error("the logits of prompt {prompt} at token {token} are not numbers (hint: are the weights damaged?)")]
    NotFinite {
        /// The prompt, counted from 0.
        prompt: usize,
        /// The generated token, counted from 0.
        token: usize,
    },
    /// Standard output, such as a closed pipe.
    #[error("cannot write the output: {0}")]
    Output(io::Error),
}

impl Failure {
    /// A file of the model that is wrong.
    pub(crate) fn model(path: impl AsRef<Path>, problem: impl ToString) -> Self {
        Failure::Model { path: path.as_ref().to_owned(), problem: problem.to_string() }
    }

    /// The exit code of a process that ends with this.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::Usage(_) | Failure::Model { .. } | Failure::Fetch(_) => USAGE,
            Failure::Hccl(error) => hccl::launch::exit_code(error),
            Failure::Stage { .. } | Failure::NotFinite { .. } | Failure::Output(_) => 1,
        }
    }

    /// What rank `rank` says and its exit code. Of an error that all ranks meet alike rank 0 tells, once.
    pub(crate) fn verdict(&self, rank: usize) -> (Option<String>, u8) {
        let everywhere = matches!(self, Failure::Usage(_) | Failure::Model { .. } | Failure::Fetch(_));
        // A pipeline brings a stage's error to every rank.
        let elsewhere = match self {
            Failure::Hccl(error) => matches!(error.kind(), ErrorKind::Rank { rank: failed, .. } if *failed != rank),
            _ => false,
        };
        if rank > 0 && everywhere || elsewhere {
            return (None, KNOCK_ON);
        }
        (Some(self.to_string()), self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_0_tells_what_all_ranks_meet() {
        let all = Failure::Usage("--ranks 9".into());
        assert_eq!(all.verdict(1), (None, KNOCK_ON));
        assert_eq!(all.verdict(0), (Some("--ranks 9".into()), USAGE));
        let of_1 = Failure::from(hccl::Error::rank_failed(1, "no"));
        assert_eq!(of_1.verdict(0), (None, KNOCK_ON));
        assert_eq!(of_1.verdict(1).1, 1);
        let one = Failure::Stage { rank: 2, first: 4, last: 7, problem: "no".into() };
        assert_eq!(one.verdict(2), (Some("rank 2, layers 4 to 7: no".into()), 1));
    }
}
