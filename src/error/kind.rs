//! The machine-readable part of an error, its text and its remedy.

use std::fmt;
use std::time::Duration;

/// How a peer was lost.
///
/// ```
/// use hccl::{ErrorKind, Loss};
/// let results = hccl::local_results(2, |comm| {
///     assert!(comm.rank().index() != 1, "rank 1 has no data");
///     comm.barrier()
/// })?;
/// let err: &hccl::Error = results[0].as_ref().unwrap_err();
/// assert!(matches!(err.kind(), ErrorKind::PeerLost { peer: 1, how: Loss::Panicked }), "{err}");
/// # Ok::<(), hccl::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum Loss {
    /// Its process ended: killed, crashed, or exited without closing its communicator.
    Died = 1,
    /// It dropped or closed its communicator while others still needed it.
    Left = 2,
    /// Its thread panicked.
    Panicked = 3,
}

/// The machine-readable part of an [`Error`](super::Error).
///
/// ```
/// use hccl::{Error, ErrorKind};
/// /// Whether a new communicator of the ranks that are left may help.
/// fn may_restart(err: &Error) -> bool {
///     matches!(err.kind(), ErrorKind::PeerLost { .. } | ErrorKind::Timeout { .. } | ErrorKind::Aborted { .. })
/// }
/// let leaves = |comm: hccl::Communicator| if comm.rank().index() == 1 { Ok(()) } else { comm.barrier() };
/// assert!(may_restart(&hccl::local(2, leaves).unwrap_err()));
/// assert!(!may_restart(&hccl::local(0, leaves).unwrap_err()));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A rank that this call needs is gone.
    PeerLost {
        /// The lost rank, in the group of the failed call.
        peer: usize,
        /// How it was lost.
        how: Loss,
    },
    /// The deadline passed; the named ranks are alive and had not arrived.
    Timeout {
        /// Ranks that had not arrived, in the group of the failed call; empty where a device waited, which cannot tell.
        late: Vec<usize>,
        /// How long this rank waited.
        after: Duration,
    },
    /// Two ranks made different calls.
    Mismatch {
        /// The rank whose call differs from this rank's.
        peer: usize,
        /// This rank's call; empty when two other ranks differ from each other.
        ours: String,
        /// The peer's call.
        theirs: String,
    },
    /// Ranks wait for each other in a circle: none can go on.
    Deadlock {
        /// The circle, each waiting for the next and the last for the first.
        cycle: Vec<usize>,
    },
    /// A buffer has the wrong number of elements.
    Length {
        /// Which argument.
        what: &'static str,
        /// Elements it must have.
        expected: usize,
        /// Elements it has.
        actual: usize,
    },
    /// A rank, root or peer outside the group.
    NoSuchRank {
        /// The number given.
        rank: usize,
        /// Size of the group.
        size: usize,
    },
    /// A peer or root of another group.
    WrongGroup {
        /// Name of the group the value belongs to.
        theirs: String,
        /// Name of the group of the call.
        ours: String,
    },
    /// A rank aborted the group.
    Aborted {
        /// The rank that called abort.
        by: usize,
    },
    /// The system refused memory, a file descriptor, a thread or a socket.
    Resource {
        /// What was asked for.
        what: String,
    },
    /// The environment variables do not describe a rank.
    Environment {
        /// The variable at fault.
        variable: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The ranks of a job did not find each other.
    Rendezvous {
        /// What went wrong.
        problem: String,
    },
    /// No backend here does this.
    Unsupported {
        /// What was asked for.
        what: String,
    },
    /// A device's own library failed a call.
    Vendor {
        /// The library's function.
        call: &'static str,
        /// What it returned.
        code: i32,
        /// The device.
        device: crate::Device,
    },
    /// An argument that can never be right.
    InvalidArgument {
        /// What is wrong with it.
        problem: String,
    },
    /// The communicator is used in a forked child.
    Forked,
    /// The communicator was closed.
    Closed,
    /// A rank failed by itself: its code's error or panic, or a panic of this crate, as text.
    Rank {
        /// The rank that failed.
        rank: usize,
        /// Its message.
        message: String,
    },
}

impl ErrorKind {
    /// The remedy that fits this kind when the place of the error knows no better one.
    pub(super) fn default_hint(&self) -> Option<&'static str> {
        Some(match self {
            ErrorKind::PeerLost { how: Loss::Died, .. } => {
                "look at that rank's own output for its last error; start a new communicator to go on"
            }
            ErrorKind::PeerLost { how: Loss::Left, .. } => {
                "every rank must make the same calls; that rank dropped its communicator early, often after an error of its own"
            }
            ErrorKind::PeerLost { how: Loss::Panicked, .. } => "the panic message of that rank says why",
            ErrorKind::Timeout { .. } => {
                "see what the late ranks are doing; raise HCCL_EXEC_TIMEOUT if they only need longer"
            }
            ErrorKind::Mismatch { .. } => "every rank must make the same call with the same length, in the same order",
            ErrorKind::Deadlock { .. } => {
                "a send completes only when it is received: use batch_send_recv, or order the calls"
            }
            ErrorKind::Length { .. } => "lengths are in elements",
            ErrorKind::NoSuchRank { .. } => "ranks count from 0",
            ErrorKind::WrongGroup { .. } => "take peers and roots from the communicator that makes the call",
            ErrorKind::Aborted { .. } => "start a new communicator to go on",
            ErrorKind::Forked => "start ranks as new processes, or make the communicator after the fork",
            ErrorKind::Closed => "make a new communicator",
            _ => return None,
        })
    }
}

struct Ranks<'a>(&'a [usize]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, rank) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { ", " };
            write!(f, "{separator}{rank}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorKind::PeerLost { peer, how: Loss::Died } => write!(f, "rank {peer} died"),
            ErrorKind::PeerLost { peer, how: Loss::Left } => write!(f, "rank {peer} left the group"),
            ErrorKind::PeerLost { peer, how: Loss::Panicked } => write!(f, "rank {peer} panicked"),
            ErrorKind::Timeout { late, after } if late.is_empty() => write!(f, "waited {:.1} s", after.as_secs_f64()),
            ErrorKind::Timeout { late, after } => {
                write!(f, "waited {:.1} s for rank {}", after.as_secs_f64(), Ranks(late))
            }
            ErrorKind::Mismatch { peer, ours, theirs } if ours.is_empty() => write!(f, "rank {peer} called {theirs}"),
            ErrorKind::Mismatch { peer, ours, theirs } => {
                write!(f, "rank {peer} called {theirs}, this rank called {ours}")
            }
            ErrorKind::Deadlock { cycle } => write!(f, "ranks {} wait for each other in a circle", Ranks(cycle)),
            ErrorKind::Length { what, expected, actual } => {
                write!(f, "{what} has {actual} elements, must have {expected}")
            }
            ErrorKind::NoSuchRank { rank, size } => write!(f, "there is no rank {rank} in a group of {size}"),
            ErrorKind::WrongGroup { theirs, ours } => write!(f, "a rank of group {theirs} was given to group {ours}"),
            ErrorKind::Aborted { by } => write!(f, "rank {by} aborted the group"),
            ErrorKind::Resource { what } => write!(f, "the system refused {what}"),
            ErrorKind::Environment { variable, problem } => write!(f, "environment variable {variable} {problem}"),
            ErrorKind::Rendezvous { problem } => write!(f, "the ranks did not find each other: {problem}"),
            ErrorKind::Unsupported { what } => write!(f, "{what} is not supported"),
            ErrorKind::Vendor { call, code, device } => write!(f, "{call} returned {code} on {device}"),
            ErrorKind::InvalidArgument { problem } => f.write_str(problem),
            ErrorKind::Forked => f.write_str("the communicator was made before this process forked"),
            ErrorKind::Closed => f.write_str("the communicator is closed"),
            ErrorKind::Rank { rank, message } => write!(f, "rank {rank} failed: {message}"),
        }
    }
}
