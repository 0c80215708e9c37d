//! One call on the worker's thread: its host memory to the device, HCCL's call, and back.
//!
//! | ours | HCCL's |
//! | --- | --- |
//! | barrier | `HcclBarrier` after the meeting on the control channel; the meeting alone where it is missing |
//! | all_reduce, reduce, reduce_scatter | the same, or a [detour](super::detour) |
//! | reduce_scatter_v | `HcclReduceScatterV` where chip and library have it, else a detour |
//! | broadcast, all_gather, scatter, all_to_all, all_to_all_v, send, recv | the same |
//! | all_gather_v | `HcclAllGatherV`, else `HcclAlltoAllV` that gives every rank the same block |
//! | gather | `HcclAlltoAllV` with blocks for the root alone |
//! | batch_send_recv | `HcclBatchSendRecv`, else `HcclSend` and `HcclRecv` in one order that all ranks share |
//!
//! In place: what the documents forbid (V calls, all-to-all) or say nothing about (scatter, gather) goes through a block
//! of ours; all_reduce, all_gather and reduce_scatter are given to HCCL as they are, as its own users do.
#![expect(unsafe_code, reason = "hands addresses of the device to the vendor's library")]

use super::chip::{Way, data_type};
use super::worker::{Keep, Station, Trouble};
use crate::backend::{Call, Extent, Home, Kind, Memory, Message};
use ascend_sys::result::{acl, hccl};
use ascend_sys::sys::{AclrtMemcpyKind, HcclComm, HcclReduceOp, HcclSendRecvItem, HcclSendRecvType};
use std::ffi::c_void;
use std::ops::Range;

/// What one call needs on the worker's thread.
pub(super) struct Task {
    /// Its memory is the device's, or a place in the layout of [`Staging`](super::staging::Staging).
    pub(super) call: Call,
    /// The host's side of the layout, at least `total` bytes long.
    pub(super) buffer: Vec<u8>,
    pub(super) up: usize,
    pub(super) total: usize,
    pub(super) down: Vec<Range<usize>>,
}

/// Counts and displacements as HCCL takes them.
struct Blocks {
    counts: Vec<u64>,
    starts: Vec<u64>,
}

impl Blocks {
    fn of(parts: &[Extent]) -> Blocks {
        let (starts, counts) = parts.iter().copied().unzip();
        Blocks { counts, starts }
    }
}

fn address<T>(values: &[T]) -> *const c_void {
    values.as_ptr().cast()
}

impl Station {
    /// Does a call to its end and gives the buffer back, with what is copied to the host in it.
    pub(super) fn run(&mut self, mut task: Task) -> (Result<(), Trouble>, Vec<u8>) {
        let done = self.perform(&mut task);
        let quiet = match &done {
            // What was enqueued before the call that failed still runs, and so may what failed.
            Err(Trouble::Said(_)) => self.settle(),
            _ => Ok(()),
        };
        let stuck = matches!(quiet, Err(Trouble::Stuck));
        (if stuck { Err(Trouble::Stuck) } else { done }, task.buffer)
    }

    fn perform(&mut self, task: &mut Task) -> Result<(), Trouble> {
        self.context().enter()?;
        let Task { call, buffer, up, total, down } = task;
        let base = if *total > 0 { self.block(Keep::Stage, *total)? } else { std::ptr::null_mut() };
        let place = |memory: &Memory| match memory.home {
            Home::Private if memory.bytes > 0 => {
                Memory { ptr: base.cast::<u8>().wrapping_add(memory.ptr as usize), ..*memory }
            }
            _ => *memory,
        };
        (call.send, call.recv) = (place(&call.send), place(&call.recv));
        let messages = call.messages.iter().map(|message| Message { memory: place(&message.memory), ..*message });
        call.messages = messages.collect();
        self.to_device(base, &buffer[..*up])?;
        if self.size == 1 { self.alone(call) } else { self.dispatch(call) }?;
        self.finish()?;
        for range in down {
            self.to_host(base.wrapping_byte_add(range.start), &mut buffer[range.clone()])?;
        }
        Ok(())
    }

    /// A group of one has no communicator: what is sent is what is received.
    fn alone(&self, call: &Call) -> Result<(), Trouble> {
        let (send, recv) = (&call.send, &call.recv);
        let bytes = send.bytes.min(recv.bytes);
        if send.ptr == recv.ptr {
            return Ok(());
        }
        self.copy(send.ptr.cast(), recv.ptr.cast(), bytes)
    }

    fn dispatch(&mut self, call: &Call) -> Result<(), Trouble> {
        let Some(comm) = self.comm.as_ref().map(|comm| comm.raw()) else { return Ok(()) };
        match call.op.map(|op| (op, self.chip.way(call.kind, call.dtype, op))) {
            Some((_, Way::Native(op))) if self.has(call.kind) => self.reduce(call, op, comm),
            Some((_, Way::Scaled)) if self.has(call.kind) => self.average(call, comm),
            Some((op, _)) => self.reduce_on_host(call, op),
            None => self.move_elements(call, comm),
        }
    }

    /// Whether the library has the call of this kind; those of the oldest are not asked for.
    fn has(&self, kind: Kind) -> bool {
        let table = &self.libs.hccl;
        match kind {
            Kind::ReduceScatterV => table.HcclReduceScatterV().is_ok(),
            Kind::AllGatherV => table.HcclAllGatherV().is_ok() && self.chip.gathers_parts(),
            Kind::Reduce => table.HcclReduce().is_ok(),
            Kind::BatchSendRecv => table.HcclBatchSendRecv().is_ok(),
            Kind::Barrier => table.HcclBarrier().is_ok() && self.chip.lacks(Kind::Broadcast).is_none(),
            Kind::AllToAll => table.HcclAlltoAll().is_ok(),
            _ => true,
        }
    }

    /// A reduction by one call of HCCL, without waiting for it.
    pub(super) fn reduce(&mut self, call: &Call, op: HcclReduceOp, comm: HcclComm) -> Result<(), Trouble> {
        let (libs, stream, dtype) = (self.libs, self.stream(), data_type(call.dtype));
        let (send, mut recv): (*mut c_void, *mut c_void) = (call.send.ptr.cast(), call.recv.ptr.cast());
        let count = call.count;
        if call.kind == Kind::Reduce && call.recv.bytes == 0 {
            // HCCL may use the receive buffer of every rank; this rank's own must stay as it is.
            recv = self.block(Keep::Scratch, call.send.bytes)?;
        } else if call.recv.bytes == 0 {
            recv = self.or_spare(&call.recv, 1)?;
        }
        let blocks = Blocks::of(&call.send_parts);
        let (counts, starts) = (address(&blocks.counts), address(&blocks.starts));
        let mine = (call.recv.bytes / call.dtype.size()) as u64;
        // SAFETY (every block here): addresses of the device, valid for what the table of `Call` says until the stream is
        // finished, for which `run` waits; handles are the station's own. Count arrays are read during the call and live
        // longer.
        let done = match call.kind {
            // SAFETY: as above.
            Kind::AllReduce => unsafe { hccl::all_reduce(libs, send, recv, count, dtype, op, comm, stream) },
            // SAFETY: as above.
            Kind::Reduce => unsafe { hccl::reduce(libs, send, recv, count, dtype, op, call.root, comm, stream) },
            // SAFETY: as above.
            Kind::ReduceScatter => unsafe { hccl::reduce_scatter(libs, send, recv, count, dtype, op, comm, stream) },
            // SAFETY: as above.
            _ => unsafe { hccl::reduce_scatter_v(libs, send, counts, starts, recv, mine, dtype, op, comm, stream) },
        };
        Ok(done?)
    }

    fn move_elements(&mut self, call: &Call, comm: HcclComm) -> Result<(), Trouble> {
        let (libs, stream, dtype) = (self.libs, self.stream(), self.chip.moved_as(call.dtype));
        let (count, root) = (call.count, call.root);
        let (send, recv): (*mut c_void, *mut c_void) = (call.send.ptr.cast(), call.recv.ptr.cast());
        let here = root == self.rank;
        // SAFETY (every block here): as in `reduce`.
        let done = match call.kind {
            Kind::Barrier if !self.has(Kind::Barrier) => Ok(()),
            // SAFETY: as above.
            Kind::Barrier => unsafe { hccl::barrier(libs, comm, stream) },
            Kind::Broadcast => {
                let buf = if here { send } else { recv };
                // SAFETY: as above.
                unsafe { hccl::broadcast(libs, buf, count, dtype, root, comm, stream) }
            }
            // SAFETY: as above.
            Kind::AllGather => unsafe { hccl::all_gather(libs, send, recv, count, dtype, comm, stream) },
            Kind::AllGatherV => return self.all_gather_v(call, comm),
            Kind::Scatter => return self.scatter(call, comm),
            Kind::Gather => return self.gather(call),
            Kind::AllToAll if self.has(Kind::AllToAll) => {
                // SAFETY: as above.
                unsafe { hccl::all_to_all(libs, send, count, dtype, recv, count, dtype, comm, stream) }
            }
            Kind::AllToAll => {
                let parts: Vec<Extent> = (0..u64::from(self.size)).map(|rank| (rank * count, count)).collect();
                return self.exchange(call, &call.send, &parts, &call.recv, &parts);
            }
            Kind::AllToAllV => {
                return self.exchange(call, &call.send, &call.send_parts, &call.recv, &call.recv_parts);
            }
            // SAFETY: as above.
            Kind::Send => unsafe { hccl::send(libs, send, count, dtype, root, comm, stream) },
            // SAFETY: as above.
            Kind::Recv => unsafe { hccl::recv(libs, recv, count, dtype, root, comm, stream) },
            _ => return self.batch(call, comm),
        };
        Ok(done?)
    }

    fn all_gather_v(&mut self, call: &Call, comm: HcclComm) -> Result<(), Trouble> {
        let mut send = call.send;
        if overlap(&call.send, &call.recv) {
            let aside = self.block(Keep::Scratch, send.bytes)?;
            self.copy(send.ptr.cast(), aside, send.bytes)?;
            send.ptr = aside.cast();
        }
        let own = (call.send.bytes / call.dtype.size()) as u64;
        if !self.has(Kind::AllGatherV) {
            return self.exchange(call, &send, &vec![(0, own); self.size as usize], &call.recv, &call.recv_parts);
        }
        let (libs, stream, dtype) = (self.libs, self.stream(), self.chip.moved_as(call.dtype));
        let blocks = Blocks::of(&call.recv_parts);
        let (counts, starts) = (address(&blocks.counts), address(&blocks.starts));
        let send = self.or_spare(&send, 0)?;
        let recv = self.or_spare(&call.recv, 1)?;
        // SAFETY: as in `reduce`.
        Ok(unsafe { hccl::all_gather_v(libs, send, own, recv, counts, starts, dtype, comm, stream) }?)
    }

    fn scatter(&mut self, call: &Call, comm: HcclComm) -> Result<(), Trouble> {
        let (libs, stream, dtype) = (self.libs, self.stream(), self.chip.moved_as(call.dtype));
        let send = if call.root == self.rank { call.send.ptr.cast() } else { std::ptr::null_mut() };
        let in_place = overlap(&call.send, &call.recv);
        let recv = if in_place { self.block(Keep::Scratch, call.recv.bytes)? } else { call.recv.ptr.cast() };
        // SAFETY: as in `reduce`.
        unsafe { hccl::scatter(libs, send, recv, call.count, dtype, call.root, comm, stream) }?;
        if in_place {
            // What comes back is what the root's own part holds already, but the copy keeps one rule for all.
            self.copy(recv, call.recv.ptr.cast(), call.recv.bytes)?;
        }
        Ok(())
    }

    /// HCCL has no gather: every rank gives the root a block, and nobody else anything.
    fn gather(&mut self, call: &Call) -> Result<(), Trouble> {
        let ranks = 0..u64::from(self.size);
        let (root, here) = (u64::from(call.root), call.root == self.rank);
        let in_place = overlap(&call.send, &call.recv);
        let give = |rank: u64| if rank == root && !(here && in_place) { (0, call.count) } else { (0, 0) };
        let take = |rank: u64| match here {
            true if rank == root && in_place => (0, 0),
            true => (rank * call.count, call.count),
            false => (0, 0),
        };
        let gives: Vec<Extent> = ranks.clone().map(give).collect();
        let takes: Vec<Extent> = ranks.map(take).collect();
        let send = if here && in_place { Memory::NONE } else { call.send };
        self.exchange(call, &send, &gives, &call.recv, &takes)
    }

    /// Messages of a batch. Those of nothing have met on the control channel and need no more.
    fn batch(&mut self, call: &Call, comm: HcclComm) -> Result<(), Trouble> {
        let messages: Vec<&Message> = call.messages.iter().filter(|message| message.count > 0).collect();
        if messages.is_empty() {
            return Ok(());
        }
        let (libs, stream) = (self.libs, self.stream());
        if !self.has(Kind::BatchSendRecv) {
            return self.one_by_one(messages, comm);
        }
        let item = |message: &&Message| HcclSendRecvItem {
            kind: if message.sends { HcclSendRecvType::SEND } else { HcclSendRecvType::RECV },
            buf: message.memory.ptr.cast(),
            count: message.count,
            data_type: self.chip.moved_as(message.dtype),
            remote_rank: message.peer,
        };
        let mut items: Vec<HcclSendRecvItem> = messages.iter().map(item).collect();
        // SAFETY: as in `reduce`; the items are read during the call.
        Ok(unsafe { hccl::batch_send_recv(libs, items.as_mut_ptr(), items.len() as u32, comm, stream) }?)
    }

    /// Messages in an order of which every rank follows its part, so that no circle of waiting ranks can form.
    fn one_by_one(&self, mut messages: Vec<&Message>, comm: HcclComm) -> Result<(), Trouble> {
        let (libs, stream, me) = (self.libs, self.stream(), self.rank);
        // The sort is stable, and messages of one pair and direction match in the order given.
        messages.sort_by_key(|message| {
            let (from, to) = if message.sends { (me, message.peer) } else { (message.peer, me) };
            (from.min(to), from.max(to), from > to)
        });
        for message in messages {
            let Message { sends, peer, dtype, count, memory } = *message;
            let (ptr, dtype): (*mut c_void, _) = (memory.ptr.cast(), self.chip.moved_as(dtype));
            let call = if sends { hccl::send } else { hccl::recv };
            // SAFETY: as in `reduce`.
            unsafe { call(libs, ptr, count, dtype, peer, comm, stream) }?;
        }
        Ok(())
    }

    /// Gives every rank a part of `send` and takes a part of `recv` from each, as the bits are.
    pub(super) fn exchange(
        &mut self,
        call: &Call,
        send: &Memory,
        gives: &[Extent],
        recv: &Memory,
        takes: &[Extent],
    ) -> Result<(), Trouble> {
        let (libs, stream, dtype) = (self.libs, self.stream(), self.chip.moved_as(call.dtype));
        let Some(comm) = self.comm.as_ref().map(|comm| comm.raw()) else { return Ok(()) };
        let (gives, takes) = (Blocks::of(gives), Blocks::of(takes));
        let (send, recv) = (self.or_spare(send, 0)?, self.or_spare(recv, 1)?);
        let (gives_n, gives_at) = (address(&gives.counts), address(&gives.starts));
        let (takes_n, takes_at) = (address(&takes.counts), address(&takes.starts));
        // SAFETY: as in `reduce`.
        let done = unsafe {
            hccl::all_to_all_v(libs, send, gives_n, gives_at, dtype, recv, takes_n, takes_at, dtype, comm, stream)
        };
        Ok(done?)
    }

    /// The address of memory that may be none: HCCL takes no null, and no address twice.
    fn or_spare(&mut self, memory: &Memory, which: usize) -> Result<*mut c_void, Trouble> {
        if memory.bytes > 0 {
            return Ok(memory.ptr.cast());
        }
        Ok(self.block(Keep::Scratch, 1)?.wrapping_byte_add(512 * (1 + which)))
    }

    /// Copies within the device, in the stream's order.
    pub(super) fn copy(&self, from: *const c_void, to: *mut c_void, bytes: usize) -> Result<(), Trouble> {
        if bytes == 0 || from == to.cast_const() {
            return Ok(());
        }
        let (libs, stream, kind) = (self.libs, self.stream(), AclrtMemcpyKind::DEVICE_TO_DEVICE);
        // SAFETY: addresses of the device valid for so many bytes until the stream is finished.
        Ok(unsafe { acl::memcpy_async(libs, to, bytes, from, bytes, kind, stream) }?)
    }

    /// Copies to the device, and returns once it is there.
    pub(super) fn to_device(&self, to: *mut c_void, bytes: &[u8]) -> Result<(), Trouble> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (from, len, kind) = (address(bytes), bytes.len(), AclrtMemcpyKind::HOST_TO_DEVICE);
        // SAFETY: the device's memory has room for them.
        Ok(unsafe { acl::memcpy(self.libs, to, len, from, len, kind) }?)
    }

    /// Copies to the host, and returns once it is there. The stream must be finished.
    pub(super) fn to_host(&self, from: *const c_void, bytes: &mut [u8]) -> Result<(), Trouble> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (to, len, kind) = (bytes.as_mut_ptr().cast(), bytes.len(), AclrtMemcpyKind::DEVICE_TO_HOST);
        // SAFETY: the device's memory has so many bytes.
        Ok(unsafe { acl::memcpy(self.libs, to, len, from, len, kind) }?)
    }
}

fn overlap(a: &Memory, b: &Memory) -> bool {
    let (a_from, b_from) = (a.ptr as usize, b.ptr as usize);
    a.bytes > 0 && b.bytes > 0 && a_from < b_from + b.bytes && b_from < a_from + a.bytes
}
