//! The HCCL backend: ranks with an Ascend NPU each, through the vendor's libraries as `ascend-sys` loads them.
//!
//! ```text
//! lane ──> control (CPU engine)     who is there: compares the calls, sees deaths and aborts
//!      ──> worker ──> launch        the thread that makes the vendor's calls, and may be given up
//!                 ──> detour        what HCCL lacks, built from what it has
//!      ──> watch                  when a wait for that thread ends: peers, deadline, aborts
//! chip, error, staging, npu         tables, error texts, host memory on its way, memory of the device
//! init, table                       how a communicator is made: root info, rank table, all devices of a process
//! ```
//!
//! - HCCL compares the ranks' arguments only when it builds links, and releases nobody when a rank dies. So every
//!   communicator has a group of the CPU engine beside it, its control channel: ranks meet there for the first call of
//!   each kind, dtype, operation, count and root, for every message, barrier, V call and call of nothing, and with
//!   `HCCL_CHECK=1` for every call. A rank that waits there is answered by ranks that already wait in HCCL.
//! - Calls that may block are made on a thread of their own. When the deadline passes, a peer is lost or the group is
//!   aborted, the stream is aborted; if that does not end the call within [`worker::GRACE`], the thread, the stream and
//!   the memory it may write are given up: leaked, never freed.
//! - HCCL sees memory of the device only. Host memory is touched by the calling side alone and travels through a buffer
//!   and a block of the device that are kept from call to call.

mod chip;
mod detour;
mod error;
mod init;
mod lane;
mod launch;
mod npu;
mod staging;
mod table;
mod watch;
mod worker;

pub(crate) use init::{process, single, threads};
pub(crate) use npu::NpuBlock;
pub(crate) use table::RankTable;
