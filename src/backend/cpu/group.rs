//! One group as one rank sees it: who is in it, whether they live, and why it failed.
//!
//! ```text
//! Active ──fail, abort──> Failed(cause, rank) ──close──> Closed
//!    └───────────────────────close──────────────────────────┘
//! ```
//!
//! Failing is one-way: the first rank that swaps `Header::failed` from 0 names the cause for all. A failed group lets
//! nobody start a visit to another rank's memory; [`Group::quiesce`] waits for those that had started.

use crate::backend::cpu::life::Lives;
use crate::backend::cpu::segment::{CAUSE_RANKS, Segment, Status};
use crate::error::{Error, ErrorKind, Loss, Result};
use crate::options::Options;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Flag of `Header::failed`: aborted by the user of that rank, who leaves no cause in the cell.
const ABORTED: u32 = 1 << 31;
/// How long a failed call waits for a stopped peer to leave its memory before that memory is given up.
const GRACE: Duration = Duration::from_secs(1);

/// A process, as its peers name it.
#[cfg(all(target_os = "linux", not(hccl_portable)))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProcessId {
    pub(crate) pid: u32,
    pub(crate) nonce: u64,
}

/// See the module page.
pub(crate) struct Group {
    pub(crate) segment: Arc<Segment>,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// All ranks are threads of this process, which share addresses.
    pub(crate) threads: bool,
    pub(crate) options: Options,
    pub(crate) lives: Lives,
    /// Something is being made over the group, so that calls may take as long as joining it.
    pub(crate) joining: AtomicBool,
    /// Held while this rank writes its cause: its engine and a call that makes a group may fail at once.
    causing: Mutex<()>,
}

/// Codes of `Cause::code`.
mod code {
    pub(super) const LOST: u32 = 1;
    pub(super) const TIMEOUT: u32 = 2;
    pub(super) const MISMATCH: u32 = 3;
    pub(super) const DEADLOCK: u32 = 4;
    pub(super) const RESOURCE: u32 = 5;
}

impl Group {
    /// Joins: marks this rank active.
    pub(crate) fn join(segment: Arc<Segment>, rank: usize, threads: bool, options: &Options, lives: Lives) -> Group {
        let size = segment.size();
        segment.cell(rank).life.0.status.store(Status::Active as u32, Ordering::Release);
        Group {
            segment,
            rank,
            size,
            threads,
            options: options.clone(),
            lives,
            joining: AtomicBool::new(false),
            causing: Mutex::new(()),
        }
    }

    /// How long one call may take.
    pub(crate) fn deadline(&self) -> Duration {
        let Options { connect_timeout, exec_timeout, .. } = self.options;
        if self.joining.load(Ordering::Relaxed) { connect_timeout.max(exec_timeout) } else { exec_timeout }
    }

    /// The id of the group, the same on all ranks.
    pub(crate) fn id(&self) -> u64 {
        self.segment.header().id.load(Ordering::Relaxed)
    }

    /// The process of `rank`, when ranks are processes.
    #[cfg(all(target_os = "linux", not(hccl_portable)))]
    pub(crate) fn process(&self, rank: usize) -> ProcessId {
        self.lives.process(rank)
    }

    /// Bytes of one half of a staging block.
    pub(crate) fn stage(&self) -> usize {
        (self.segment.header().stage.load(Ordering::Relaxed) as usize).clamp(64, 1 << 30)
    }

    /// True when every rank has a core.
    pub(crate) fn may_spin(&self) -> bool {
        self.segment.header().spin.load(Ordering::Relaxed) != 0
    }

    /// True once the group has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.segment.header().failed.0.load(Ordering::Relaxed) != 0
    }

    /// Says that this rank has finished collective `place` of the engine that this group controls.
    #[cfg(all(target_os = "linux", not(hccl_portable)))]
    pub(crate) fn has_finished(&self, place: u64) {
        self.segment.cell(self.rank).place.0.store(place, Ordering::Release);
    }

    /// Collectives that `peer` has finished of the engine that this group controls. Read after [`lost`](Group::lost).
    #[cfg(all(target_os = "linux", not(hccl_portable)))]
    pub(crate) fn finished(&self, peer: usize) -> u64 {
        self.segment.cell(peer).place.0.load(Ordering::Acquire)
    }

    /// How `peer` was lost, if it was.
    pub(crate) fn lost(&self, peer: usize) -> Option<Loss> {
        if self.lives.died(peer) {
            return Some(Loss::Died);
        }
        let status = self.segment.cell(peer).life.0.status.load(Ordering::Acquire);
        if status == Status::Left as u32 {
            Some(Loss::Left)
        } else if status == Status::Panicked as u32 {
            Some(Loss::Panicked)
        } else {
            None
        }
    }

    /// Fails the group with `error`, unless it has failed already, and wakes everyone. Returns the error that this rank
    /// should report: its own if it is about this rank's own call, else the first cause.
    pub(crate) fn fail(&self, error: Error) -> Error {
        let causing = self.causing.lock().unwrap_or_else(PoisonError::into_inner);
        self.write_cause(&error);
        let failed = &self.segment.header().failed.0;
        let won = failed.compare_exchange(0, self.rank as u32 + 1, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        drop(causing);
        self.wake_everyone();
        let own = matches!(error.kind(), ErrorKind::Mismatch { .. } | ErrorKind::Deadlock { .. });
        if won || own { error } else { self.cause().unwrap_or(error) }
    }

    /// Fails the group at the wish of this rank's user, unless this rank has left; from any thread.
    pub(crate) fn abort(&self) {
        if self.segment.cell(self.rank).life.0.status.load(Ordering::Acquire) != Status::Active as u32 {
            return;
        }
        let mark = (self.rank as u32 + 1) | ABORTED;
        let _ = self.segment.header().failed.0.compare_exchange(0, mark, Ordering::SeqCst, Ordering::SeqCst);
        self.wake_everyone();
    }

    fn write_cause(&self, error: &Error) {
        // Once published it is not written again.
        if self.has_failed() {
            return;
        }
        let (code, value, ranks): (u32, u64, &[usize]) = match error.kind() {
            ErrorKind::PeerLost { peer, how } => (code::LOST, u64::from(*how as u32), &[*peer]),
            ErrorKind::Timeout { late, after } => (code::TIMEOUT, after.as_millis() as u64, late),
            ErrorKind::Mismatch { peer, .. } => (code::MISMATCH, 0, &[*peer]),
            ErrorKind::Deadlock { cycle } => (code::DEADLOCK, 0, cycle),
            ErrorKind::Rank { rank, .. } => (code::LOST, Loss::Panicked as u64, &[*rank]),
            _ => (code::RESOURCE, 0, &[]),
        };
        let cause = &self.segment.cell(self.rank).cause.0;
        cause.code.store(code, Ordering::Relaxed);
        cause.value.store(value, Ordering::Relaxed);
        cause.count.store(ranks.len().min(CAUSE_RANKS) as u32, Ordering::Relaxed);
        for (cell, rank) in cause.ranks.iter().zip(ranks) {
            cell.store(*rank as u16, Ordering::Relaxed);
        }
    }

    /// The first cause, if the group has failed.
    pub(crate) fn cause(&self) -> Option<Error> {
        let failed = self.segment.header().failed.0.load(Ordering::Acquire);
        let by = ((failed & !ABORTED).checked_sub(1)? as usize).min(self.size - 1);
        if failed & ABORTED != 0 {
            return Some(Error::new(ErrorKind::Aborted { by }));
        }
        let cause = &self.segment.cell(by).cause.0;
        let count = (cause.count.load(Ordering::Relaxed) as usize).min(CAUSE_RANKS);
        let ranks: Vec<usize> =
            cause.ranks[..count].iter().map(|r| (r.load(Ordering::Relaxed) as usize).min(self.size - 1)).collect();
        let value = cause.value.load(Ordering::Relaxed);
        let first = ranks.first().copied().unwrap_or(by);
        let error = Error::new(match cause.code.load(Ordering::Relaxed) {
            code::LOST => ErrorKind::PeerLost { peer: first, how: loss(value) },
            code::TIMEOUT => ErrorKind::Timeout { late: ranks, after: Duration::from_millis(value) },
            code::MISMATCH => ErrorKind::Mismatch {
                peer: by,
                ours: String::new(),
                theirs: format!("what does not fit the call of rank {first}"),
            },
            code::DEADLOCK => ErrorKind::Deadlock { cycle: ranks },
            _ => ErrorKind::Aborted { by },
        });
        Some(if by == self.rank { error } else { error.note(format!("first seen by rank {by}")) })
    }

    /// Marks this rank as gone. Nothing is sent after that.
    pub(crate) fn leave(&self) {
        let status = if std::thread::panicking() { Status::Panicked } else { Status::Left };
        self.segment.cell(self.rank).life.0.status.store(status as u32, Ordering::Release);
        self.wake_everyone();
    }

    /// Wakes ranks that sleep, after something was published. Costs one fence and one load when none does.
    pub(crate) fn ring(&self) {
        // SYNC POINT sleepers: pairs with the fence in `Group::sleep`. Either the sleeper sees what was published, or
        // we see the sleeper.
        fence(Ordering::SeqCst);
        if self.segment.header().sleepers.0.load(Ordering::Relaxed) != 0 {
            self.wake_everyone();
        }
    }

    #[cold]
    fn wake_everyone(&self) {
        for rank in 0..self.size {
            let bell = &self.segment.cell(rank).bell.0;
            bell.word.fetch_add(1, Ordering::Release);
            if rank != self.rank && bell.sleeping.load(Ordering::Relaxed) != 0 {
                crate::sys::wake_all(&bell.word);
            }
        }
    }

    /// Sleeps until rung, at most `time`, unless `ready` holds.
    pub(crate) fn sleep(&self, time: Duration, ready: impl FnOnce() -> bool) {
        let bell = &self.segment.cell(self.rank).bell.0;
        let sleepers = &self.segment.header().sleepers.0;
        let before = bell.word.load(Ordering::Acquire);
        bell.sleeping.store(1, Ordering::Relaxed);
        sleepers.fetch_add(1, Ordering::Relaxed);
        // SYNC POINT sleepers: pairs with the fence in `Group::ring`.
        fence(Ordering::SeqCst);
        if !ready() && !self.has_failed() {
            crate::sys::sleep_on(&bell.word, before, time);
        }
        sleepers.fetch_sub(1, Ordering::Relaxed);
        bell.sleeping.store(0, Ordering::Relaxed);
    }

    /// Does a short piece of work on other ranks' memory, unless the group has failed.
    pub(crate) fn visit(&self, work: impl FnOnce()) -> Result<()> {
        let visiting = &self.segment.cell(self.rank).visiting.0;
        // SYNC POINT visits: we announce, then look whether the group failed; who learns of a failure then looks for
        // visitors (`Group::quiesce`). A fence stands between the two on either side, so one of us sees the other.
        visiting.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.segment.header().failed.0.load(Ordering::Relaxed) != 0 {
            visiting.store(0, Ordering::Release);
            return Err(self.cause().unwrap_or_else(|| Error::new(ErrorKind::Closed)));
        }
        // Also when the work panics: the others wait for the end of the visit.
        let leave = Leave(visiting);
        work();
        drop(leave);
        Ok(())
    }

    /// After a failure: waits until no other rank is in a visit. True when one may still be: it is stopped or dying.
    ///
    /// Threads of this process cannot stop inside a visit, so for them this waits as long as it takes.
    pub(crate) fn quiesce(&self) -> bool {
        let patience = Instant::now() + GRACE;
        let mut reachable = false;
        // SYNC POINT visits: see `Group::visit`. The caller may have learnt of the failure by a relaxed load.
        fence(Ordering::SeqCst);
        for peer in (0..self.size).filter(|p| *p != self.rank) {
            while self.segment.cell(peer).visiting.0.load(Ordering::Acquire) != 0 {
                if !self.threads && (self.lives.died(peer) || Instant::now() > patience) {
                    reachable = true;
                    break;
                }
                crate::sys::yield_now();
            }
        }
        reachable
    }
}

/// Ends a visit when dropped.
struct Leave<'a>(&'a AtomicU32);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

fn loss(value: u64) -> Loss {
    match value {
        2 => Loss::Left,
        3 => Loss::Panicked,
        _ => Loss::Died,
    }
}
