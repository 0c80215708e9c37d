//! Checks a call before anything is submitted, and erases it. Compiled once, not per element type.

use crate::backend::{Call, Extent, Kind, Message};
use crate::element::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::group::{GroupId, Member, wrong_group};
use crate::memory::{Read, Write, part};
use crate::reduce::OpKind;
use std::marker::PhantomData;

/// Where a call is made: this rank in its group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) group: GroupId,
    pub(crate) axis: &'static str,
}

/// A call that may be given to a backend. It names memory lent for `'a` and none else.
#[derive(Debug)]
pub(crate) struct Checked<'a> {
    pub(crate) call: Call,
    lent: PhantomData<&'a mut ()>,
}

/// A message of a batch, on memory lent for `'a`.
#[derive(Debug)]
pub(crate) struct CheckedMessage<'a> {
    message: Message,
    lent: PhantomData<&'a mut ()>,
}

fn checked<'a>(call: Call) -> Result<Checked<'a>> {
    Ok(Checked { call, lent: PhantomData })
}

impl Place {
    fn n(&self) -> usize {
        self.size as usize
    }

    /// Says where an error happened.
    #[cold]
    pub(crate) fn at(&self, kind: Kind, error: Error) -> Error {
        error.at(kind.name(), self.rank as usize, self.n())
    }

    #[cold]
    fn fail<T>(&self, kind: Kind, error: ErrorKind) -> Result<T> {
        Err(self.at(kind, Error::new(error)))
    }

    #[cold]
    fn invalid<T>(&self, kind: Kind, problem: String, hint: &'static str) -> Result<T> {
        Err(self.at(kind, Error::invalid(problem).hint(hint)))
    }

    fn length(&self, kind: Kind, what: &'static str, actual: usize, expected: usize) -> Result<()> {
        if actual == expected { Ok(()) } else { self.fail(kind, ErrorKind::Length { what, expected, actual }) }
    }

    /// `len * n` elements, as a length.
    fn times_n(&self, kind: Kind, len: usize) -> Result<usize> {
        match len.checked_mul(self.n()) {
            Some(total) => Ok(total),
            None => self.invalid(
                kind,
                format!("{len} elements for each of {} ranks are more than memory can address", self.size),
                "lengths are in elements",
            ),
        }
    }

    /// `len / n` elements, which must be whole.
    fn share(&self, kind: Kind, what: &'static str, len: usize) -> Result<usize> {
        if len.is_multiple_of(self.n()) {
            return Ok(len / self.n());
        }
        self.invalid(
            kind,
            format!("{what} has {len} elements, which do not divide among {} ranks", self.size),
            "pad the buffer, or use the _v call with one count a rank",
        )
    }

    /// Extents of a buffer cut by counts, one a rank, and their sum.
    fn parts(&self, kind: Kind, what: &'static str, counts: &[usize]) -> Result<(Box<[Extent]>, usize)> {
        self.length(kind, what, counts.len(), self.n())?;
        let mut total = 0usize;
        let mut parts = Vec::with_capacity(counts.len());
        for &count in counts {
            parts.push((total as u64, count as u64));
            match total.checked_add(count) {
                Some(sum) => total = sum,
                None => {
                    return self.invalid(
                        kind,
                        format!("{what} add up to more than memory can address"),
                        "counts are in elements",
                    );
                }
            }
        }
        Ok((parts.into(), total))
    }

    /// The number of a member of this group.
    fn member(&self, kind: Kind, member: Member) -> Result<u32> {
        if member.group == self.group {
            return Ok(member.index);
        }
        Err(self.at(kind, wrong_group(member, self.group, self.axis)))
    }

    /// The number of another rank of this group.
    fn other(&self, kind: Kind, peer: Member) -> Result<u32> {
        let index = self.member(kind, peer)?;
        if index != self.rank {
            return Ok(index);
        }
        self.invalid(kind, format!("rank {index} cannot exchange messages with itself"), "copy the elements instead")
    }

    /// The root's number, and whether this rank is it.
    fn root(&self, kind: Kind, root: Member) -> Result<(u32, bool)> {
        let index = self.member(kind, root)?;
        Ok((index, index == self.rank))
    }

    /// The buffer that only the root must give.
    fn on_root<T>(&self, kind: Kind, what: &'static str, given: Option<T>) -> Result<T> {
        match given {
            Some(given) => Ok(given),
            None => self.invalid(
                kind,
                format!("rank {} is the root and gave no {what} buffer", self.rank),
                "give Some(buffer) on the root, None or Some elsewhere",
            ),
        }
    }

    pub(crate) fn barrier(&self) -> Checked<'static> {
        Checked { call: Call::new(Kind::Barrier, DType::U8), lent: PhantomData }
    }

    pub(crate) fn all_reduce<'a>(&self, buf: Write<'a>, op: OpKind) -> Result<Checked<'a>> {
        let mut call = Call::new(Kind::AllReduce, buf.dtype);
        call.op = Some(op);
        call.count = buf.len as u64;
        call.send = buf.memory;
        call.recv = buf.memory;
        checked(call)
    }

    pub(crate) fn all_reduce_into<'a>(&self, send: Read<'a>, recv: Write<'a>, op: OpKind) -> Result<Checked<'a>> {
        self.length(Kind::AllReduce, "recv", recv.len, send.len)?;
        let mut call = Call::new(Kind::AllReduce, send.dtype);
        call.op = Some(op);
        call.count = send.len as u64;
        call.send = send.memory;
        call.recv = recv.memory;
        checked(call)
    }

    pub(crate) fn reduce<'a>(&self, buf: Write<'a>, op: OpKind, root: Member) -> Result<Checked<'a>> {
        let (root, here) = self.root(Kind::Reduce, root)?;
        let mut call = Call::new(Kind::Reduce, buf.dtype);
        call.op = Some(op);
        call.root = root;
        call.count = buf.len as u64;
        call.send = buf.memory;
        if here {
            call.recv = buf.memory;
        }
        checked(call)
    }

    pub(crate) fn reduce_into<'a>(
        &self,
        send: Read<'a>,
        recv: Option<Write<'a>>,
        op: OpKind,
        root: Member,
    ) -> Result<Checked<'a>> {
        let (root, here) = self.root(Kind::Reduce, root)?;
        let mut call = Call::new(Kind::Reduce, send.dtype);
        call.op = Some(op);
        call.root = root;
        call.count = send.len as u64;
        call.send = send.memory;
        if here {
            let recv = self.on_root(Kind::Reduce, "receive", recv)?;
            self.length(Kind::Reduce, "recv", recv.len, send.len)?;
            call.recv = recv.memory;
        }
        checked(call)
    }

    pub(crate) fn broadcast<'a>(&self, buf: Write<'a>, root: Member) -> Result<Checked<'a>> {
        let (root, here) = self.root(Kind::Broadcast, root)?;
        let mut call = Call::new(Kind::Broadcast, buf.dtype);
        call.root = root;
        call.count = buf.len as u64;
        *(if here { &mut call.send } else { &mut call.recv }) = buf.memory;
        checked(call)
    }

    pub(crate) fn all_gather<'a>(&self, send: Read<'a>, recv: Write<'a>) -> Result<Checked<'a>> {
        self.length(Kind::AllGather, "recv", recv.len, self.times_n(Kind::AllGather, send.len)?)?;
        let mut call = Call::new(Kind::AllGather, send.dtype);
        call.count = send.len as u64;
        call.send = send.memory;
        call.recv = recv.memory;
        checked(call)
    }

    pub(crate) fn all_gather_in_place<'a>(&self, buf: Write<'a>) -> Result<Checked<'a>> {
        let share = self.share(Kind::AllGather, "the buffer", buf.len)?;
        let mut call = Call::new(Kind::AllGather, buf.dtype);
        call.count = share as u64;
        let bytes = share * buf.dtype.size();
        call.send = part(buf.memory, bytes * self.rank as usize, bytes);
        call.recv = buf.memory;
        checked(call)
    }

    pub(crate) fn all_gather_v<'a>(&self, send: Read<'a>, recv: Write<'a>, counts: &[usize]) -> Result<Checked<'a>> {
        let (parts, total) = self.parts(Kind::AllGatherV, "counts", counts)?;
        self.length(Kind::AllGatherV, "send", send.len, counts[self.rank as usize])?;
        self.length(Kind::AllGatherV, "recv", recv.len, total)?;
        let mut call = Call::new(Kind::AllGatherV, send.dtype);
        call.count = total as u64;
        call.send = send.memory;
        call.recv = recv.memory;
        call.recv_parts = parts;
        checked(call)
    }

    pub(crate) fn reduce_scatter<'a>(&self, send: Read<'a>, recv: Write<'a>, op: OpKind) -> Result<Checked<'a>> {
        self.length(Kind::ReduceScatter, "send", send.len, self.times_n(Kind::ReduceScatter, recv.len)?)?;
        let mut call = Call::new(Kind::ReduceScatter, send.dtype);
        call.op = Some(op);
        call.count = recv.len as u64;
        call.send = send.memory;
        call.recv = recv.memory;
        checked(call)
    }

    pub(crate) fn reduce_scatter_in_place<'a>(&self, buf: Write<'a>, op: OpKind) -> Result<Checked<'a>> {
        let share = self.share(Kind::ReduceScatter, "the buffer", buf.len)?;
        let mut call = Call::new(Kind::ReduceScatter, buf.dtype);
        call.op = Some(op);
        call.count = share as u64;
        let bytes = share * buf.dtype.size();
        call.send = buf.memory;
        call.recv = part(buf.memory, bytes * self.rank as usize, bytes);
        checked(call)
    }

    pub(crate) fn reduce_scatter_v<'a>(
        &self,
        send: Read<'a>,
        recv: Write<'a>,
        counts: &[usize],
        op: OpKind,
    ) -> Result<Checked<'a>> {
        let (parts, total) = self.parts(Kind::ReduceScatterV, "counts", counts)?;
        self.length(Kind::ReduceScatterV, "send", send.len, total)?;
        self.length(Kind::ReduceScatterV, "recv", recv.len, counts[self.rank as usize])?;
        let mut call = Call::new(Kind::ReduceScatterV, send.dtype);
        call.op = Some(op);
        call.count = total as u64;
        call.send = send.memory;
        call.recv = recv.memory;
        call.send_parts = parts;
        checked(call)
    }

    pub(crate) fn scatter<'a>(&self, send: Option<Read<'a>>, recv: Write<'a>, root: Member) -> Result<Checked<'a>> {
        let (root, here) = self.root(Kind::Scatter, root)?;
        let mut call = Call::new(Kind::Scatter, recv.dtype);
        call.root = root;
        call.count = recv.len as u64;
        call.recv = recv.memory;
        if here {
            let send = self.on_root(Kind::Scatter, "send", send)?;
            self.length(Kind::Scatter, "send", send.len, self.times_n(Kind::Scatter, recv.len)?)?;
            call.send = send.memory;
        }
        checked(call)
    }

    pub(crate) fn gather<'a>(&self, send: Read<'a>, recv: Option<Write<'a>>, root: Member) -> Result<Checked<'a>> {
        let (root, here) = self.root(Kind::Gather, root)?;
        let mut call = Call::new(Kind::Gather, send.dtype);
        call.root = root;
        call.count = send.len as u64;
        call.send = send.memory;
        if here {
            let recv = self.on_root(Kind::Gather, "receive", recv)?;
            self.length(Kind::Gather, "recv", recv.len, self.times_n(Kind::Gather, send.len)?)?;
            call.recv = recv.memory;
        }
        checked(call)
    }

    pub(crate) fn all_to_all<'a>(&self, send: Read<'a>, recv: Write<'a>) -> Result<Checked<'a>> {
        let share = self.share(Kind::AllToAll, "send", send.len)?;
        self.length(Kind::AllToAll, "recv", recv.len, send.len)?;
        let mut call = Call::new(Kind::AllToAll, send.dtype);
        call.count = share as u64;
        call.send = send.memory;
        call.recv = recv.memory;
        checked(call)
    }

    pub(crate) fn all_to_all_v<'a>(
        &self,
        send: Read<'a>,
        send_counts: &[usize],
        recv: Write<'a>,
        recv_counts: &[usize],
    ) -> Result<Checked<'a>> {
        let kind = Kind::AllToAllV;
        let (send_parts, sent) = self.parts(kind, "send_counts", send_counts)?;
        let (recv_parts, received) = self.parts(kind, "recv_counts", recv_counts)?;
        self.length(kind, "send", send.len, sent)?;
        self.length(kind, "recv", recv.len, received)?;
        let own = self.rank as usize;
        if send_counts[own] != recv_counts[own] {
            let (sent, received) = (send_counts[own], recv_counts[own]);
            return self.invalid(
                kind,
                format!("rank {own} sends itself {sent} elements and receives {received} from itself"),
                "send_counts and recv_counts of one rank to itself must be equal",
            );
        }
        let mut call = Call::new(kind, send.dtype);
        call.send = send.memory;
        call.recv = recv.memory;
        call.send_parts = send_parts;
        call.recv_parts = recv_parts;
        checked(call)
    }

    pub(crate) fn send<'a>(&self, buf: Read<'a>, peer: Member) -> Result<Checked<'a>> {
        let mut call = Call::new(Kind::Send, buf.dtype);
        call.root = self.other(Kind::Send, peer)?;
        call.count = buf.len as u64;
        call.send = buf.memory;
        checked(call)
    }

    pub(crate) fn recv<'a>(&self, buf: Write<'a>, peer: Member) -> Result<Checked<'a>> {
        let mut call = Call::new(Kind::Recv, buf.dtype);
        call.root = self.other(Kind::Recv, peer)?;
        call.count = buf.len as u64;
        call.recv = buf.memory;
        checked(call)
    }

    pub(crate) fn batched_send<'a>(&self, buf: Read<'a>, peer: Member) -> Result<CheckedMessage<'a>> {
        let peer = self.other(Kind::BatchSendRecv, peer)?;
        let Read { memory, len, dtype, .. } = buf;
        let message = Message { sends: true, peer, dtype, count: len as u64, memory };
        Ok(CheckedMessage { message, lent: PhantomData })
    }

    pub(crate) fn batched_recv<'a>(&self, buf: Write<'a>, peer: Member) -> Result<CheckedMessage<'a>> {
        let peer = self.other(Kind::BatchSendRecv, peer)?;
        let Write { memory, len, dtype, .. } = buf;
        let message = Message { sends: false, peer, dtype, count: len as u64, memory };
        Ok(CheckedMessage { message, lent: PhantomData })
    }

    pub(crate) fn batch<'a>(&self, messages: impl IntoIterator<Item = CheckedMessage<'a>>) -> Checked<'a> {
        let mut call = Call::new(Kind::BatchSendRecv, DType::U8);
        call.messages = messages.into_iter().map(|checked| checked.message).collect();
        Checked { call, lent: PhantomData }
    }
}
