//! The seam between the typed layer and the engines that move bytes.
//!
//! Above it everything is typed and checked; below it there are bytes, a count, a [`DType`] and an [`OpKind`]. One
//! [`Backend`] is one group of ranks as this rank sees it: one ordered queue.
//!
//! The contract, one law of `tests/conformance` for each line:
//!
//! - Calls of one rank start in the order in which they were given, and the ranks' n-th collectives belong together.
//! - Every call carries a fingerprint; when two ranks' calls differ, both get [`ErrorKind::Mismatch`] before any memory
//!   is written.
//! - A result has the same bits on every rank that gets it.
//! - A call that returns `Ok` leaves nobody reading or writing the memory it was given.
//! - A call that fails leaves nobody writing plain memory; heap memory that a stopped peer may still reach is reported by
//!   [`Failure::reachable`], and the caller must retire it.
//! - A lost peer, an abort or a passed deadline ends every call that needs it, with the first cause; from then on every
//!   call returns that cause.
//! - A count of 0 is a call like any other: ranks meet, nothing is written.
//! - Nothing is written outside the memory given.
//!
//! [`ErrorKind::Mismatch`]: crate::ErrorKind::Mismatch

use crate::device::Device;
use crate::element::DType;
use crate::error::{Error, Result};
use crate::reduce::OpKind;
use std::sync::Arc;
use std::time::Duration;

pub(crate) mod cpu;
#[cfg(all(target_os = "linux", not(hccl_portable)))]
pub(crate) mod hccl;
pub(crate) mod queue;

/// What a call does. Codes travel in fingerprints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Kind {
    Barrier,
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    AllGatherV,
    ReduceScatter,
    ReduceScatterV,
    Scatter,
    Gather,
    AllToAll,
    AllToAllV,
    Send,
    Recv,
    BatchSendRecv,
}

impl Kind {
    /// Every kind, in the order of their codes.
    pub(crate) const ALL: [Kind; 15] = [
        Kind::Barrier,
        Kind::AllReduce,
        Kind::Reduce,
        Kind::Broadcast,
        Kind::AllGather,
        Kind::AllGatherV,
        Kind::ReduceScatter,
        Kind::ReduceScatterV,
        Kind::Scatter,
        Kind::Gather,
        Kind::AllToAll,
        Kind::AllToAllV,
        Kind::Send,
        Kind::Recv,
        Kind::BatchSendRecv,
    ];

    /// The public name of the call.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Kind::Barrier => "barrier",
            Kind::AllReduce => "all_reduce",
            Kind::Reduce => "reduce",
            Kind::Broadcast => "broadcast",
            Kind::AllGather => "all_gather",
            Kind::AllGatherV => "all_gather_v",
            Kind::ReduceScatter => "reduce_scatter",
            Kind::ReduceScatterV => "reduce_scatter_v",
            Kind::Scatter => "scatter",
            Kind::Gather => "gather",
            Kind::AllToAll => "all_to_all",
            Kind::AllToAllV => "all_to_all_v",
            Kind::Send => "send",
            Kind::Recv => "recv",
            Kind::BatchSendRecv => "batch_send_recv",
        }
    }
}

/// Where memory lives, as far as peers are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// Ordinary memory of this process: peers in other processes never map it.
    Private,
    /// A [`DeviceBuffer`](crate::DeviceBuffer) of the shared heap: `offset` bytes into arena `arena` of this process.
    Heap { arena: u32, offset: u64 },
    /// Memory of this NPU: its address means nothing to the host.
    #[cfg_attr(
        not(all(target_os = "linux", not(hccl_portable))),
        allow(dead_code, reason = "made where there is a backend for NPUs")
    )]
    Npu { device: u32 },
}

/// A run of bytes lent to a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// First byte; dangling when `bytes` is 0.
    pub(crate) ptr: *mut u8,
    /// Length in bytes.
    pub(crate) bytes: usize,
    /// Where it lives.
    pub(crate) home: Home,
}

impl Memory {
    /// No memory: for the side of a call that this rank does not have.
    pub(crate) const NONE: Memory =
        Memory { ptr: std::ptr::NonNull::dangling().as_ptr(), bytes: 0, home: Home::Private };
}

/// A block of elements inside a buffer: `(first element, elements)`.
pub(crate) type Extent = (u64, u64);

/// One message of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    /// True for a send, false for a receive.
    pub(crate) sends: bool,
    /// The other side.
    pub(crate) peer: u32,
    /// Element type.
    pub(crate) dtype: DType,
    /// Elements.
    pub(crate) count: u64,
    /// The memory sent from or received into.
    pub(crate) memory: Memory,
}

/// One call of one rank, with everything erased but bytes.
///
/// | kind | `count` | `send` holds | `recv` holds | `root` |
/// | --- | --- | --- | --- | --- |
/// | `Barrier` | 0 | none | none | 0 |
/// | `AllReduce` | elements | `count` | `count` | 0, or the digest of a fused call's lengths |
/// | `Reduce` | elements | `count` | `count` on the root, else none | root |
/// | `Broadcast` | elements | `count` on the root, else none | `count` off the root, else none | root |
/// | `AllGather` | elements a rank | `count` | `count * n` | 0 |
/// | `AllGatherV` | sum of all | own part | sum of all; `recv_parts[r]` is rank r's | 0 |
/// | `ReduceScatter` | elements a rank | `count * n` | `count` | 0 |
/// | `ReduceScatterV` | sum of all | sum of all; `send_parts[r]` goes to rank r | own part | 0 |
/// | `Scatter` | elements a rank | `count * n` on the root, else none | `count` | root |
/// | `Gather` | elements a rank | `count` | `count * n` on the root, else none | root |
/// | `AllToAll` | elements a pair | `count * n` | `count * n` | 0 |
/// | `AllToAllV` | 0 | `send_parts[r]` goes to r | `recv_parts[r]` comes from r | 0 |
/// | `Send`, `Recv` | elements | `count` / none | none / `count` | the peer |
/// | `BatchSendRecv` | 0 | none | none; `messages` | 0 |
///
/// In place means that `send` and `recv` are the same bytes (`AllReduce`, `Reduce`), or that `send` is this rank's part
/// of `recv` (`AllGather`, `AllGatherV`, `Gather`), or `recv` this rank's part of `send` (`ReduceScatter`,
/// `ReduceScatterV`, `Scatter`). They overlap in no other way; `AllToAll` is never in place.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) kind: Kind,
    pub(crate) dtype: DType,
    pub(crate) op: Option<OpKind>,
    pub(crate) root: u32,
    pub(crate) count: u64,
    pub(crate) send: Memory,
    pub(crate) recv: Memory,
    pub(crate) send_parts: Box<[Extent]>,
    pub(crate) recv_parts: Box<[Extent]>,
    pub(crate) messages: Box<[Message]>,
}

impl Call {
    /// A call of this kind on no memory; the fields that matter are filled in by the caller.
    pub(crate) fn new(kind: Kind, dtype: DType) -> Call {
        Call {
            kind,
            dtype,
            op: None,
            root: 0,
            count: 0,
            send: Memory::NONE,
            recv: Memory::NONE,
            send_parts: Box::default(),
            recv_parts: Box::default(),
            messages: Box::default(),
        }
    }
}

// SAFETY: a call only names memory; whoever gives it away promises (contract of `Backend::submit`) that the memory may
// be used from the thread that runs the call.
#[expect(unsafe_code, reason = "raw pointers in a call that moves to the progress thread")]
unsafe impl Send for Call {}

/// How a failed call left the caller's memory.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// True when a stopped or dying peer may still write the heap memory of this call: retire it.
    pub(crate) reachable: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure { error, reachable: false }
    }
}

/// The number of a submitted call; tickets of one backend finish in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(pub(crate) u64);

/// How a backend does an operation on a dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Support {
    /// As a whole.
    Native,
    /// By a detour that costs time, not exactness.
    #[cfg_attr(
        not(all(target_os = "linux", not(hccl_portable))),
        allow(dead_code, reason = "the CPU engine does everything natively")
    )]
    Emulated,
    /// Not at all, for this reason.
    #[allow(dead_code, reason = "both engines do everything, if by a detour; the next may not")]
    Refused(&'static str),
}

/// One group of ranks as this rank sees it. The module page is the contract.
pub(crate) trait Backend: Send + Sync {
    /// This rank's number in the group.
    fn rank(&self) -> usize;

    /// Ranks in the group.
    fn size(&self) -> usize;

    /// The name of the engine, as `cpu`.
    fn name(&self) -> &'static str;

    /// Where its buffers live. Calls name memory of this device or plain memory of the host, checked above the seam.
    fn device(&self) -> Device;

    /// How this backend does `op` on `dtype`; `None` asks for moving without reducing.
    fn support(&self, dtype: DType, op: Option<OpKind>) -> Support;

    /// Does one call and returns when it is finished. Waits for earlier submitted calls first.
    ///
    /// # Safety
    /// The memory that `call` names is valid as its table says, and until this returns no one else writes it, and no
    /// one else reads what the call writes.
    #[expect(unsafe_code, reason = "the caller vouches for the memory")]
    unsafe fn run(&self, call: Call) -> Result<(), Failure>;

    /// Queues one call and returns at once.
    ///
    /// # Safety
    /// As for [`run`](Backend::run), until [`wait`](Backend::wait) or [`is_ready`](Backend::is_ready) says that the
    /// ticket is finished, whatever happens to the ticket.
    #[expect(unsafe_code, reason = "the caller vouches for the memory")]
    unsafe fn submit(&self, call: Call) -> Result<Ticket>;

    /// Waits until the ticket is finished: `Some(result)`, or `None` when `timeout` passed first. A ticket may be asked
    /// for any number of times.
    fn wait(&self, ticket: Ticket, timeout: Option<Duration>) -> Option<Result<(), Failure>>;

    /// True when the ticket is finished, well or badly.
    fn is_ready(&self, ticket: Ticket) -> bool;

    /// Fails the group on every rank, at once, from any thread.
    fn abort(&self);

    /// A new group of the members (ranks of this group, in the order of their new ranks), which must contain this rank.
    /// Every rank of the new group makes the same call; ranks of this group outside `members` make it with their own
    /// members or not at all. `tag` tells groups made one after the other apart and is the same on all members.
    fn group(&self, members: &[usize], tag: u64) -> Result<Arc<dyn Backend>>;

    /// Waits for queued calls, tells the peers that this rank leaves, and frees what the group holds. Calls after the
    /// first do nothing. Never waits past the deadlines of the queued calls.
    fn close(&self) -> Result<()>;

    /// The error that failed the group, if it failed.
    fn failure(&self) -> Option<Error>;
}
