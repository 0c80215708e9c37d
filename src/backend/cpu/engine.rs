//! One rank's engine: does one call at a time.
//!
//! ```text
//! publish the call ── wait for all ── compare ─┬─ tiny: read the slots
//!                                              └─ rounds: work ── meet ── copy out
//! ```
//!
//! The state here is the rank's alone; everything shared is in the [`Segment`](super::segment::Segment).

use crate::backend::cpu::fingerprint::Fingerprint;
use crate::backend::cpu::group::Group;
use crate::backend::cpu::heap::Block;
use crate::backend::cpu::memory::{Memories, Place};
use crate::backend::cpu::tuning::Tuning;
use crate::backend::cpu::wait::{Claim, On};
use crate::backend::{Call, Failure, Home, Kind, Memory};
use crate::error::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// See the module page.
pub(crate) struct Engine {
    pub(super) group: Arc<Group>,
    /// Number of the current collective.
    pub(super) number: u64,
    /// Meeting points passed.
    arrived: u64,
    /// Messages sent to and received from each rank.
    pub(super) sent: Box<[u64]>,
    pub(super) received: Box<[u64]>,
    /// Spinning is allowed: the caller's own thread runs the call.
    pub(super) eager: bool,
    pub(super) memories: Memories,
    /// Two halves through which plain memory travels between processes; made at first use.
    pub(super) stage: Option<Block>,
    /// Addresses of all ranks' memory in the current call.
    pub(super) views: Vec<View>,
    pub(super) sources: Vec<*const u8>,
    pub(super) outputs: Vec<*mut u8>,
    pub(super) tuning: Tuning,
}

// SAFETY: the pointers are scratch of one call; between calls they mean nothing.
#[expect(unsafe_code, reason = "scratch pointers")]
unsafe impl Send for Engine {}

/// One rank's memory in the current call, as this rank reaches it.
#[derive(Clone, Copy)]
pub(super) struct View {
    pub(super) send: *mut u8,
    pub(super) recv: *mut u8,
    /// The rank's staging block, when one of the two is staged.
    pub(super) stage: *mut u8,
    pub(super) send_staged: bool,
    pub(super) recv_staged: bool,
}

impl View {
    const NONE: View = View {
        send: std::ptr::null_mut(),
        recv: std::ptr::null_mut(),
        stage: std::ptr::null_mut(),
        send_staged: false,
        recv_staged: false,
    };
}

const SEND_STAGED: u64 = 1;
const RECV_STAGED: u64 = 2;

impl Engine {
    pub(crate) fn new(group: Arc<Group>) -> Engine {
        let size = group.size;
        Engine {
            number: 0,
            arrived: 0,
            sent: vec![0; size].into(),
            received: vec![0; size].into(),
            eager: true,
            memories: Memories::new(group.clone()),
            stage: None,
            views: vec![View::NONE; size],
            sources: Vec::with_capacity(size),
            outputs: Vec::with_capacity(size),
            tuning: Tuning::default(),
            group,
        }
    }

    /// Does one call to its end. After an error the group has failed.
    ///
    /// The memory that the call names must be as [`Backend::run`](crate::backend::Backend::run) demands.
    pub(crate) fn execute(&mut self, call: &Call, eager: bool) -> Result<(), Failure> {
        self.begin(call, eager)?;
        let done = match call.kind {
            Kind::Send | Kind::Recv | Kind::BatchSendRecv => self.messages(call),
            _ if self.group.size == 1 => self.alone(call),
            _ => self.collective(call),
        };
        done.map_err(|error| self.give_up(error, call))
    }

    /// Meets the other ranks for a call that another engine will do: waits, compares and fails as [`execute`] does, and
    /// moves nothing. The call names no memory; its messages name none either. `place` counts the collectives of that
    /// other engine, not all of which are rehearsed.
    ///
    /// [`execute`]: Engine::execute
    #[cfg(all(target_os = "linux", not(hccl_portable)))]
    pub(crate) fn rehearse(&mut self, call: &Call, place: u64, eager: bool) -> Result<(), Failure> {
        self.begin(call, eager)?;
        let done = match call.kind {
            Kind::Send | Kind::Recv | Kind::BatchSendRecv => self.messages(call),
            _ if self.group.size == 1 => Ok(()),
            _ => self.rehearsal(call, place),
        };
        done.map_err(|error| self.give_up(error, call))
    }

    /// True when another rank waits in [`rehearse`](Engine::rehearse) for collective `place` or an earlier one.
    #[cfg(all(target_os = "linux", not(hccl_portable)))]
    pub(crate) fn is_asked(&self, place: u64) -> bool {
        let next = self.number + 1;
        let asks = |peer: usize| {
            let slot = self.group.segment.slot(peer, next);
            slot.stamp.load(Ordering::Acquire) == next && slot.small[0].load(Ordering::Relaxed) <= place
        };
        (0..self.group.size).any(|peer| peer != self.group.rank && asks(peer))
    }

    #[cfg(all(target_os = "linux", not(hccl_portable)))]
    fn rehearsal(&mut self, call: &Call, place: u64) -> Result<()> {
        self.number += 1;
        self.publish_call(call);
        let slot = self.group.segment.slot(self.group.rank, self.number);
        slot.small[0].store(place, Ordering::Relaxed);
        slot.stamp.store(self.number, Ordering::Release);
        self.group.ring();
        self.wait_for_slots()?;
        let ours = Fingerprint::of(call);
        self.compare(ours, self.number)?;
        for peer in 0..self.group.size {
            let theirs = self.group.segment.slot(peer, self.number).small[0].load(Ordering::Relaxed);
            if theirs != place {
                let text = |place| format!("{} as its collective number {place}", ours.describe());
                return Err(mismatch(peer, text(place), text(theirs)));
            }
        }
        self.compare_tables(call)
    }

    /// What ends a call before anyone sees it.
    fn begin(&mut self, call: &Call, eager: bool) -> Result<(), Failure> {
        self.eager = eager;
        let (rank, size) = (self.group.rank, self.group.size);
        if crate::sys::forked() {
            return Err(Error::new(ErrorKind::Forked).at(call.kind.name(), rank, size).into());
        }
        if let Some(cause) = self.group.has_failed().then(|| self.group.cause()).flatten() {
            return Err(self.explain(cause, call, self.number + 1).at(call.kind.name(), rank, size).into());
        }
        Ok(())
    }

    /// Fails the group, and waits until nobody touches the caller's memory.
    #[cold]
    pub(super) fn give_up(&mut self, error: Error, call: &Call) -> Failure {
        let error = if self.group.has_failed() { error } else { self.group.fail(error) };
        let error = self.explain(error, call, self.number);
        let visited = self.group.quiesce();
        if visited && let Some(stage) = self.stage.take() {
            stage.retire();
        }
        // Reductions that every rank writes to all others put a peer's stores into our memory, and so do messages.
        let heap = |memory: &Memory| memory.bytes > 0 && memory.home != Home::Private;
        let written = match call.kind {
            Kind::AllReduce | Kind::Reduce | Kind::Recv => heap(&call.recv),
            Kind::BatchSendRecv => call.messages.iter().any(|message| !message.sends && heap(&message.memory)),
            _ => false,
        };
        let reachable = visited && written;
        Failure { error: error.at(call.kind.name(), self.group.rank, self.group.size), reachable }
    }

    /// A mismatch that other ranks saw first is told in terms of this rank's own call, the `number`-th collective.
    fn explain(&self, error: Error, call: &Call, number: u64) -> Error {
        let message = matches!(call.kind, Kind::Send | Kind::Recv | Kind::BatchSendRecv);
        if message || !matches!(error.kind(), ErrorKind::Mismatch { .. }) {
            return error;
        }
        // The others' slots still hold their calls.
        self.compare(Fingerprint::of(call), number).err().unwrap_or(error)
    }

    fn collective(&mut self, call: &Call) -> Result<()> {
        self.number += 1;
        let inline = call.inline_bytes(self.group.rank, self.group.size);
        match inline {
            Some(bytes) => self.publish_inline(call, bytes),
            None => self.publish_places(call)?,
        }
        self.group.ring();
        self.wait_for_slots()?;
        self.compare(Fingerprint::of(call), self.number)?;
        match inline {
            Some(_) if call.kind == Kind::AllGatherV || call.kind == Kind::ReduceScatterV => {
                self.compare_tables(call)?;
                self.finish_inline(call)
            }
            Some(_) => self.finish_inline(call),
            None => {
                self.compare_tables(call)?;
                self.view_all(call)?;
                match call.kind {
                    Kind::AllReduce | Kind::Reduce => self.reduce_rounds(call),
                    Kind::ReduceScatter | Kind::ReduceScatterV => self.reduce_scatter_rounds(call),
                    _ => self.exchange_rounds(call),
                }
            }
        }
    }

    fn wait_for_slots(&self) -> Result<()> {
        let (group, number) = (&*self.group, self.number);
        let there = |p: usize| group.segment.slot(p, number).stamp.load(Ordering::Acquire) >= number;
        group.wait_for_all(self.eager, there, |peer| Claim { on: On::Slot, peer, target: number })
    }

    /// Meets all ranks: returns when each has come to this point of the call.
    pub(super) fn meet(&mut self) -> Result<()> {
        self.arrived += 1;
        let (group, target) = (&*self.group, self.arrived);
        group.segment.cell(group.rank).arrive.0.store(target, Ordering::Release);
        group.ring();
        let there = |p: usize| group.segment.cell(p).arrive.0.load(Ordering::Acquire) >= target;
        group.wait_for_all(self.eager, there, |peer| Claim { on: On::Arrive, peer, target })
    }

    /// Compares this rank's call with all that are published under `number`.
    fn compare(&self, ours: Fingerprint, number: u64) -> Result<()> {
        for peer in (0..self.group.size).filter(|p| *p != self.group.rank) {
            let slot = self.group.segment.slot(peer, number);
            if slot.stamp.load(Ordering::Acquire) != number {
                continue;
            }
            let theirs =
                Fingerprint { call: slot.call.load(Ordering::Relaxed), count: slot.count.load(Ordering::Relaxed) };
            if theirs != ours {
                return Err(mismatch(peer, ours.describe(), theirs.describe()));
            }
        }
        Ok(())
    }

    /// Writes everything but the stamp.
    fn publish_call(&self, call: &Call) {
        let slot = self.group.segment.slot(self.group.rank, self.number);
        let ours = Fingerprint::of(call);
        slot.call.store(ours.call, Ordering::Relaxed);
        slot.count.store(ours.count, Ordering::Relaxed);
        self.publish_table(call);
    }

    fn publish_inline(&self, call: &Call, bytes: usize) {
        self.publish_call(call);
        let data = self.group.segment.slot_data(self.group.rank, self.number, bytes);
        self.copy_local(call.send.ptr, data, bytes);
        self.group.segment.slot(self.group.rank, self.number).stamp.store(self.number, Ordering::Release);
    }

    fn publish_places(&mut self, call: &Call) -> Result<()> {
        self.publish_call(call);
        let threads = self.group.threads;
        let (send, recv) = (Place::of(&call.send, threads), Place::of(&call.recv, threads));
        let recv = if call.foreign_writes() { recv } else { recv.or(Some(Place { arena: 0, offset: 0 })) };
        let mut flags = 0;
        let mut stage = Place { arena: 0, offset: 0 };
        if send.is_none() || recv.is_none() {
            flags |= if send.is_none() { SEND_STAGED } else { 0 };
            flags |= if recv.is_none() { RECV_STAGED } else { 0 };
            stage = self.own_stage()?;
            if send.is_none() {
                self.stage_in(call, 0);
            }
        }
        let none = Place { arena: 0, offset: 0 };
        let (send, recv) = (send.unwrap_or(none), recv.unwrap_or(none));
        let slot = self.group.segment.slot(self.group.rank, self.number);
        slot.place.store(flags | (u64::from(send.arena) << 8) | (u64::from(recv.arena) << 32), Ordering::Relaxed);
        for (word, value) in slot.small.iter().zip([send.offset, recv.offset, stage.offset, u64::from(stage.arena)]) {
            word.store(value, Ordering::Relaxed);
        }
        slot.stamp.store(self.number, Ordering::Release);
        Ok(())
    }

    fn own_stage(&mut self) -> Result<Place> {
        if self.stage.is_none() {
            self.stage = Some(Block::scratch(2 * self.group.stage())?);
        }
        match self.stage.as_ref().map(Block::home) {
            Some(Home::Heap { arena, offset }) => Ok(Place { arena, offset }),
            _ => Err(Error::new(ErrorKind::Closed)),
        }
    }

    /// Finds the addresses of everyone's memory.
    fn view_all(&mut self, call: &Call) -> Result<()> {
        for rank in 0..self.group.size {
            self.views[rank] = if rank == self.group.rank { self.own_view(call) } else { self.view(call, rank)? };
        }
        Ok(())
    }

    fn own_view(&self, call: &Call) -> View {
        let threads = self.group.threads;
        View {
            send: call.send.ptr,
            recv: call.recv.ptr,
            stage: self.stage.as_ref().map_or(std::ptr::null_mut(), |stage| stage.ptr().as_ptr()),
            send_staged: Place::of(&call.send, threads).is_none(),
            recv_staged: call.foreign_writes() && Place::of(&call.recv, threads).is_none(),
        }
    }

    fn view(&mut self, call: &Call, rank: usize) -> Result<View> {
        let group = self.group.clone();
        let slot = group.segment.slot(rank, self.number);
        let place = slot.place.load(Ordering::Relaxed);
        let [send, recv, stage, stage_arena] = std::array::from_fn(|i| slot.small[i].load(Ordering::Relaxed));
        let (send_staged, recv_staged) = (place & SEND_STAGED != 0, place & RECV_STAGED != 0);
        let mut view = View { send_staged, recv_staged, ..View::NONE };
        let (send_bytes, recv_bytes) = self.peer_bytes(call, rank);
        if !send_staged {
            let at = Place { arena: (place >> 8) as u32 & 0xff_ffff, offset: send };
            view.send = self.memories.resolve(rank, at, send_bytes)?;
        }
        if !recv_staged && call.foreign_writes() {
            let at = Place { arena: (place >> 32) as u32 & 0xff_ffff, offset: recv };
            view.recv = self.memories.resolve(rank, at, recv_bytes)?;
        }
        if send_staged || recv_staged {
            let at = Place { arena: stage_arena as u32, offset: stage };
            view.stage = self.memories.resolve(rank, at, 2 * group.stage())?;
        }
        Ok(view)
    }
}

/// Two ranks do not mean the same call.
pub(super) fn mismatch(peer: usize, ours: String, theirs: String) -> Error {
    Error::new(ErrorKind::Mismatch { peer, ours, theirs })
}
