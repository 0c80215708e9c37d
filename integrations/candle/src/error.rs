//! Errors of the integration: hccl's, candle's, and its own, which name the parameter, file or dtype at fault.
//!
//! ```
//! use hccl_candle::Error;
//! let err = Error::Mismatch { what: "parameters", detail: "rank 1 has no `fc.bias`".into() };
//! assert!(err.to_string().contains("fc.bias"));
//! ```

use candle_core::DType;
use std::path::{Path, PathBuf};

/// `Result` with [`Error`].
///
/// ```
/// use candle_core::{Device, Tensor};
/// fn summed(comm: &hccl::Communicator, value: f32) -> hccl_candle::Result<f32> {
///     let mut x = Tensor::new(&[value], &Device::Cpu)?.to_vec1::<f32>()?; // candle's errors
///     comm.all_reduce(&mut x, hccl::Sum)?; // and hccl's
///     Ok(x[0])
/// }
/// assert_eq!(hccl_candle::local(2, |comm| summed(&comm, comm.rank().index() as f32 + 1.0))?, [3.0; 2]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What failed, where, and what to do about it.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use hccl_candle::{Error, TensorCollectives};
/// let err = hccl_candle::local(2, |comm| {
///     let rank = comm.rank().index() as u32;
///     comm.all_reduce_tensor(&Tensor::new(&[rank], &Device::Cpu)?, hccl::Avg)
/// })
/// .unwrap_err();
/// assert!(matches!(err, Error::IntegerAverage { dtype: DType::U32, .. }), "{err}");
/// # Ok::<(), hccl_candle::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A collective failed; the text names rank, operation and peer.
    #[error("{0}")]
    Hccl(#[from] hccl::Error),

    /// candle refused an operation.
    #[error("candle: {0}")]
    Candle(#[source] candle_core::Error),

    /// The dtype does not travel.
    #[error(
        "{op}: candle's {dtype:?} is not a collective element (hint: U8, U32, I16, I32, I64, BF16, F16, F32 and F64 \
         travel; convert with `to_dtype`)"
    )]
    Dtype {
        /// The call.
        op: &'static str,
        /// The dtype that was given.
        dtype: DType,
    },

    /// An average of integers was asked for.
    #[error("{op}: {dtype:?} cannot be averaged (hint: use Sum and divide where the result is used)")]
    IntegerAverage {
        /// The call.
        op: &'static str,
        /// The dtype that was given.
        dtype: DType,
    },

    /// The tensor is not in the memory of the processor.
    #[error(
        "{op}: the tensor is on {device} (hint: collectives take CPU tensors; move it with `to_device(&Device::Cpu)`)"
    )]
    Device {
        /// The call.
        op: &'static str,
        /// Where the tensor is.
        device: String,
    },

    /// The tensor's shape does not fit the call.
    #[error("{op}: {problem}")]
    Shape {
        /// The call.
        op: &'static str,
        /// What does not fit, and what would.
        problem: String,
    },

    /// A message and its receiver disagree; both sides get this error and the communicator stays good.
    #[error("{op}: the message is {message}, the receiver takes {expected}")]
    Message {
        /// The call.
        op: &'static str,
        /// What was sent, as `F32[2, 3]`.
        message: String,
        /// What the receiver takes.
        expected: String,
    },

    /// Ranks differ in something that must be equal.
    #[error("the ranks differ in their {what}: {detail}")]
    Mismatch {
        /// What must be equal.
        what: &'static str,
        /// The first difference and the sides.
        detail: String,
    },

    /// Replicas hold different values.
    #[error(
        "replicas have drifted apart: rank(s) {ranks:?} differ from the others, first in `{parameter}` (hint: \
         something changed weights outside the optimizer, or memory is faulty; resume from a checkpoint)"
    )]
    Drift {
        /// The minority: ranks whose checksum differs from the most frequent one.
        ranks: Vec<usize>,
        /// The first parameter or buffer, by name, that differs.
        parameter: String,
    },

    /// A parameter got no gradient, and the policy is [`Unused::Error`](crate::data_parallel::Unused::Error).
    #[error(
        "parameter `{parameter}` has no gradient on rank(s) {ranks:?}; {others} more are without (hint: choose \
         Unused::Zero or Unused::Skip if that is meant)"
    )]
    NoGradient {
        /// The first such parameter, by name.
        parameter: String,
        /// Where it has none.
        ranks: Vec<usize>,
        /// How many other parameters lack a gradient somewhere.
        others: usize,
    },

    /// An option or argument that can never be right.
    #[error("{0}")]
    Invalid(String),

    /// A checkpoint does not belong to this run.
    #[error("checkpoint {}: {}", path.display(), problems.join("; "))]
    WrongCheckpoint {
        /// The checkpoint.
        path: PathBuf,
        /// Everything that differs.
        problems: Vec<String>,
    },

    /// A checkpoint is torn, truncated or changed.
    #[error("checkpoint {}: {problem} (hint: it was cut short or changed; use an older one)", path.display())]
    TornCheckpoint {
        /// The checkpoint.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },

    /// The system refused a file.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },

    /// A sampler was refused.
    #[error("{0}")]
    Sampler(#[from] crate::sampler::SamplerError),

    /// Rank 0 failed at something that it does for all.
    #[error("rank 0: {0}")]
    Rank0(String),
}

impl Error {
    /// An error of the file system.
    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_path_buf();
        move |source| Error::Io { path, action, source }
    }

    /// An argument that can never be right.
    pub(crate) fn invalid(problem: impl Into<String>) -> Error {
        Error::Invalid(problem.into())
    }

    /// The error of the collective underneath, when there is one.
    ///
    /// ```
    /// let err = hccl_candle::local(2, |comm| match comm.rank().index() {
    ///     0 => Ok(()), // leaves early
    ///     _ => Ok(comm.barrier()?),
    /// })
    /// .unwrap_err();
    /// assert!(err.as_hccl().is_some_and(|err| err.is_peer_lost() && err.peer() == Some(0)));
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn as_hccl(&self) -> Option<&hccl::Error> {
        match self {
            Error::Hccl(error) => Some(error),
            _ => None,
        }
    }
}

/// The buffer that the refusal gave back is dropped.
///
/// ```
/// fn started(comm: &hccl::Communicator) -> hccl_candle::Result<Vec<i64>> {
///     Ok(comm.all_reduce_async(vec![1i64], hccl::Sum)?.wait()?) // two kinds of errors of hccl's
/// }
/// assert_eq!(hccl_candle::local(2, |comm| started(&comm))?, [[2]; 2]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
impl<B> From<hccl::Refused<B>> for Error {
    fn from(refused: hccl::Refused<B>) -> Self {
        Error::Hccl(refused.into())
    }
}

/// The buffer that the failure gave back, if it did, is dropped.
impl<B> From<hccl::Failed<B>> for Error {
    fn from(failed: hccl::Failed<B>) -> Self {
        Error::Hccl(failed.into())
    }
}

impl From<hccl::pipeline::PlanError> for Error {
    fn from(error: hccl::pipeline::PlanError) -> Self {
        Error::Hccl(error.into())
    }
}

/// For the places where candle calls us and wants its own error.
///
/// Our error travels inside and comes out again when candle's error is turned into [`Error`], by `?` for example: a peer
/// that is lost inside a model's forward or backward pass is still [`Error::Hccl`].
///
/// ```
/// use hccl_candle::Error;
/// let lost = Error::from(hccl::Error::rank_failed(1, "out of samples"));
/// let inside = candle_core::Error::from(lost).context("layer 3");
/// assert!(inside.to_string().contains("out of samples"));
/// assert!(Error::from(inside).as_hccl().is_some());
/// ```
impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Candle(error) => error,
            // Of candle's variants only this one keeps an error, and prints it, as it is; what it is called matters to
            // nobody, as candle never looks into it.
            other => candle_core::Error::Cuda(Box::new(other)),
        }
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        carried(error).unwrap_or_else(Error::Candle)
    }
}

/// The error of ours inside an error of candle's, below whatever candle put around it; or candle's own, unchanged.
fn carried(error: candle_core::Error) -> Result<Error, candle_core::Error> {
    use candle_core::Error as Candle;
    match error {
        Candle::Cuda(inner) => inner.downcast().map(|own| *own).map_err(Candle::Cuda),
        Candle::Context { inner, context } => carried(*inner).map_err(|inner| inner.context(context)),
        Candle::WithPath { inner, path } => carried(*inner).map_err(|inner| inner.with_path(path)),
        Candle::WithBacktrace { inner, backtrace } => {
            carried(*inner).map_err(|inner| Candle::WithBacktrace { inner: Box::new(inner), backtrace })
        }
        other => Err(other),
    }
}
