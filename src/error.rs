//! Errors that say which rank, which operation, what went wrong and what to do.
//!
//! ```text
//! all_reduce on rank 3 of 8: rank 5 called all_reduce(f32 x 1024, sum), this rank all_reduce(f32 x 1000, sum)
//!     (hint: every rank must make the same call with the same length)
//! ```
//!
//! [`Error::kind`] is for programs; the text is for people. After an error for which [`Error::is_recoverable`] is false,
//! the communicator is failed: every later call returns the same first cause, and a new communicator must be made.
//!
//! ```
//! use hccl::ErrorKind;
//! let err = hccl::local(2, |comm| {
//!     let mut buf = vec![0f32; 4 + comm.rank().index()];
//!     comm.all_reduce(&mut buf, hccl::Sum)
//! })
//! .unwrap_err();
//! assert!(matches!(err.kind(), ErrorKind::Mismatch { .. }));
//! assert!(err.to_string().contains("f32 x 5"));
//! ```

mod kind;
#[cfg(test)]
mod tests;

pub use kind::{ErrorKind, Loss};

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// `Result` with [`Error`].
///
/// ```
/// fn samples_of_a_rank(all: usize, ranks: usize) -> hccl::Result<usize> {
///     all.checked_div(ranks).ok_or_else(|| hccl::Error::rank_failed(0, "no ranks"))
/// }
/// assert_eq!(samples_of_a_rank(9, 2)?, 4);
/// assert!(samples_of_a_rank(9, 0).is_err());
/// # Ok::<(), hccl::Error>(())
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What failed, where, and what to do about it.
///
/// ```
/// let out = hccl::local(2, |comm| {
///     let err = comm.root(4 + comm.rank().index()).unwrap_err();
///     assert!(err.is_recoverable()); // the communicator is still good
///     comm.barrier()?;
///     Ok(err.to_string())
/// })?;
/// assert_eq!(out[1], "there is no rank 5 in a group of 2 (hint: ranks count from 0)");
/// # Ok::<(), hccl::Error>(())
/// ```
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    op: Option<&'static str>,
    rank: Option<(usize, usize)>,
    hint: Option<Cow<'static, str>>,
    note: Option<Cow<'static, str>>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of this kind, with the kind's own hint.
    pub(crate) fn new(kind: ErrorKind) -> Self {
        let hint = kind.default_hint().map(Cow::Borrowed);
        Error(Box::new(Inner { kind, op: None, rank: None, hint, note: None, source: None }))
    }

    /// Says which operation failed, unless an inner layer already said so.
    pub(crate) fn at(mut self, op: &'static str, rank: usize, world: usize) -> Self {
        self.0.op.get_or_insert(op);
        self.0.rank.get_or_insert((rank, world));
        self
    }

    /// Replaces the hint.
    pub(crate) fn hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Adds what became of the caller's memory.
    pub(crate) fn note(mut self, note: impl Into<Cow<'static, str>>) -> Self {
        self.0.note = Some(note.into());
        self
    }

    /// Adds the error underneath.
    pub(crate) fn source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// Adds the error underneath, of any type.
    pub(crate) fn boxed_source(mut self, source: Box<dyn std::error::Error + Send + Sync>) -> Self {
        self.0.source = Some(Arc::from(source));
        self
    }

    /// A refusal of the operating system.
    pub(crate) fn resource(what: impl Into<String>, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Error::new(ErrorKind::Resource { what: what.into() }).source(source)
    }

    /// An argument that can never be right.
    pub(crate) fn invalid(problem: impl Into<String>) -> Self {
        Error::new(ErrorKind::InvalidArgument { problem: problem.into() })
    }

    /// A failure of a rank's own code, for the closures of [`local`](crate::local()).
    ///
    /// ```
    /// use hccl::Error;
    /// let err = hccl::local(2, |comm| {
    ///     let loss = [1.5, f32::NAN][comm.rank().index()];
    ///     if loss.is_nan() {
    ///         return Err(Error::rank_failed(comm.rank().index(), "loss is NaN"));
    ///     }
    ///     comm.barrier()
    /// })
    /// .unwrap_err();
    /// assert_eq!(err.to_string(), "rank 1 failed: loss is NaN");
    /// ```
    pub fn rank_failed(rank: usize, message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Rank { rank, message: message.into() })
    }

    /// A panic of this crate's own code on a rank, caught where others wait for it.
    pub(crate) fn panicked(rank: usize, panic: &(dyn Any + Send)) -> Self {
        let message = format!("hccl itself panicked: {}", crate::local::message(panic));
        Error::rank_failed(rank, message).hint("a bug of hccl, please report it; make a new communicator to go on")
    }

    /// The machine-readable part.
    ///
    /// ```
    /// use hccl::ErrorKind;
    /// let out = hccl::local(2, |comm| {
    ///     let err = comm.all_gather(&[1u8], &mut vec![0; 5 + comm.rank().index()]).unwrap_err();
    ///     let ErrorKind::Length { expected, actual, .. } = *err.kind() else { return Err(err) };
    ///     Ok((expected, actual))
    /// })?;
    /// assert_eq!(out, [(2, 5), (2, 6)]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The operation that failed, as `all_reduce`.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let err = comm.all_gather(&[1u8], &mut [0; 5]).unwrap_err();
    ///     Ok((err.op(), err.rank()))
    /// })?;
    /// assert_eq!(out, [(Some("all_gather"), Some(0)), (Some("all_gather"), Some(1))]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn op(&self) -> Option<&'static str> {
        self.0.op
    }

    /// The rank on which it failed, in the group of the call.
    ///
    /// ```
    /// let err = hccl::local(3, |comm| {
    ///     let len = if comm.rank().index() == 2 { 7 } else { 1 };
    ///     comm.scatter(Some(&[1.0f32; 3]), &mut vec![0.0; len], comm.root(2)?)
    /// })
    /// .unwrap_err();
    /// assert_eq!(err.rank(), Some(2)); // only the root has a reason to complain
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn rank(&self) -> Option<usize> {
        self.0.rank.map(|(rank, _)| rank)
    }

    /// The peer at fault, when there is one.
    ///
    /// ```
    /// let err = hccl::local(3, |comm| if comm.rank().index() == 2 { Ok(()) } else { comm.barrier() }).unwrap_err();
    /// assert_eq!(err.peer(), Some(2));
    /// ```
    pub fn peer(&self) -> Option<usize> {
        match self.0.kind {
            ErrorKind::PeerLost { peer, .. } | ErrorKind::Mismatch { peer, .. } => Some(peer),
            ErrorKind::Aborted { by } => Some(by),
            ErrorKind::Rank { rank, .. } => Some(rank),
            _ => None,
        }
    }

    /// True when the communicator is still good: the call was refused before any peer saw it.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let mut all = vec![0; 3];
    ///     let sent = [comm.rank().index() as u8 + 5];
    ///     if comm.all_gather(&sent, &mut all).is_err_and(|err| err.is_recoverable()) {
    ///         all.truncate(2);
    ///         comm.all_gather(&sent, &mut all)?; // once more, with the right length
    ///     }
    ///     Ok(all)
    /// })?;
    /// assert_eq!(out, [[5, 6]; 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn is_recoverable(&self) -> bool {
        matches!(
            self.0.kind,
            ErrorKind::Length { .. }
                | ErrorKind::NoSuchRank { .. }
                | ErrorKind::WrongGroup { .. }
                | ErrorKind::Unsupported { .. }
                | ErrorKind::InvalidArgument { .. }
        )
    }

    /// True when a rank is gone.
    ///
    /// ```
    /// let err = hccl::local(2, |comm| if comm.rank().index() == 0 { Ok(()) } else { comm.barrier() }).unwrap_err();
    /// assert!(err.is_peer_lost() && !err.is_recoverable());
    /// ```
    pub fn is_peer_lost(&self) -> bool {
        matches!(self.0.kind, ErrorKind::PeerLost { .. })
    }

    /// True when a deadline passed.
    ///
    /// ```
    /// use std::{sync::Barrier, time::Duration};
    /// let shown = Barrier::new(2);
    /// let world = hccl::Communicator::builder().exec_timeout(Duration::from_millis(50));
    /// let err = world
    ///     .local(2, |comm| {
    ///         let result = if comm.rank().index() == 0 { comm.barrier() } else { Ok(()) };
    ///         shown.wait(); // until then rank 1 is alive, and late
    ///         result
    ///     })
    ///     .unwrap_err();
    /// assert!(err.is_timeout(), "{err}");
    /// ```
    pub fn is_timeout(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Timeout { .. })
    }

    /// True when the error only tells of another rank's failure: a launcher or [`local`](crate::local()) prefers the
    /// error that came first.
    ///
    /// ```
    /// let results = hccl::local_results(2, |comm| match comm.rank().index() {
    ///     0 => comm.barrier(),
    ///     rank => Err(hccl::Error::rank_failed(rank, "out of data")),
    /// })?;
    /// let knock_on: Vec<bool> = results.iter().map(|r| r.as_ref().is_err_and(hccl::Error::is_knock_on)).collect();
    /// assert_eq!(knock_on, [true, false]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn is_knock_on(&self) -> bool {
        matches!(self.0.kind, ErrorKind::PeerLost { .. } | ErrorKind::Aborted { .. })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        match (inner.op, inner.rank) {
            (Some(op), Some((rank, world))) => write!(f, "{op} on rank {rank} of {world}: ")?,
            (Some(op), None) => write!(f, "{op}: ")?,
            (None, _) => {}
        }
        write!(f, "{}", inner.kind)?;
        if let Some(source) = &inner.source {
            write!(f, ": {source}")?;
        }
        if let Some(note) = &inner.note {
            write!(f, "; {note}")?;
        }
        match &inner.hint {
            Some(hint) => write!(f, " (hint: {hint})"),
            None => Ok(()),
        }
    }
}

impl From<hccl_plan::PlanError> for Error {
    fn from(error: hccl_plan::PlanError) -> Self {
        Error::invalid("the pipeline cannot be planned").source(error)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}: {self})", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}
