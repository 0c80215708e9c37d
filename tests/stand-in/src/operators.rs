//! HCCL's operators: checks on the host, then work on the stream.
#![expect(unsafe_code, reason = "exported functions")]

use std::sync::Arc;

use hccl::{Communicator, Result as Done};

use crate::abi::{Array, Failure, Result, exports, hccl_code, para};
use crate::chip::Family;
use crate::comm::{COMMS, Comm, own_device};
use crate::group::{self, Work, submit};
use crate::handles::Handle;
use crate::memory::{Span, span};
use crate::messages::Message;
use crate::run::{Reduction, apart, enqueue, pack, read, unpack, write};
use crate::settings::settings;
use crate::stream::{STREAMS, Stream};

/// The most elements of a call.
const MAX_COUNT: u64 = 0x7_FFFF_FFFF;

/// A call on its communicator and stream.
#[derive(Clone)]
struct Call {
    name: &'static str,
    comm: Arc<Comm>,
    stream: Arc<Stream>,
}

/// The communicator of a call: alive, and of this thread's device.
pub(crate) fn comm_of(name: &str, handle: Handle) -> Result<Arc<Comm>> {
    if handle == 0 {
        return Err(Failure::new(hccl_code::PTR, format!("EI0003: {name}: the communicator is null")));
    }
    let comm = COMMS.get(handle).ok_or_else(|| para(format!("{name}: there is no such communicator")))?;
    let device = own_device()?;
    if device != comm.device {
        let text = format!("{name}: the communicator is of device {}, this thread on {device}", comm.device);
        return Err(para(text));
    }
    Ok(comm)
}

impl Call {
    fn new(name: &'static str, comm: Handle, stream: Handle) -> Result<Call> {
        if stream == 0 {
            return Err(Failure::new(hccl_code::PTR, format!("EI0003: {name}: the stream is null")));
        }
        let comm = comm_of(name, comm)?;
        let stream = STREAMS.get(stream).ok_or_else(|| para(format!("{name}: there is no such stream")))?;
        if stream.device != comm.device {
            return Err(para(format!("{name}: the stream is of device {}, not {}", stream.device, comm.device)));
        }
        if comm.vector_only && comm.size == 1 {
            let text = format!("EI0003: {name}: one rank is not supported where only vector cores may be used");
            return Err(Failure::new(hccl_code::NOT_SUPPORT, text));
        }
        Ok(Call { name, comm, stream })
    }

    fn family(&self) -> Family {
        settings().family
    }

    fn ranks(&self) -> u64 {
        self.comm.size.into()
    }

    /// Checks how many elements there are.
    fn count(&self, count: u64) -> Result<u64> {
        match count {
            0..=MAX_COUNT => Ok(count),
            _ => Err(para(format!("{}: a count of {count} is more than {MAX_COUNT}", self.name))),
        }
    }

    fn rank(&self, what: &str, rank: u32) -> Result<u32> {
        match rank < self.comm.size {
            true => Ok(rank),
            false => Err(para(format!("{}: {what} {rank} of {} ranks", self.name, self.comm.size))),
        }
    }

    /// Live memory of the communicator's device.
    fn span(&self, what: &str, address: usize, elements: u64, size: usize) -> Result<Span> {
        if address == 0 && elements > 0 {
            return Err(Failure::new(hccl_code::PTR, format!("EI0003: {}: {what} is null", self.name)));
        }
        let bytes = usize::try_from(elements).ok().and_then(|elements| elements.checked_mul(size));
        let bytes = bytes.ok_or_else(|| para(format!("{}: {what} has too many bytes", self.name)))?;
        let span = span(address, bytes).map_err(|why| para(format!("{}: {what}: {why}", self.name)))?;
        if span.device().is_some_and(|device| device != self.comm.device) {
            return Err(para(format!("{}: {what} is memory of another device", self.name)));
        }
        Ok(span)
    }

    /// As [`span`](Call::span), aligned to the element, which reducing needs.
    fn aligned(&self, what: &str, address: usize, elements: u64, size: usize) -> Result<Span> {
        let span = self.span(what, address, elements, size)?;
        match span.is_aligned_to(size) {
            true => Ok(span),
            false => Err(para(format!("{}: {what} is not aligned to its elements", self.name))),
        }
    }

    /// Two buffers that must not be the same.
    fn differ(&self, send: usize, recv: usize) -> Result<()> {
        match send == recv && send != 0 {
            true => Err(para(format!("{}: sendBuf and recvBuf must differ", self.name))),
            false => Ok(()),
        }
    }

    /// An amount and a place for each rank, and the elements they reach to.
    fn parts(&self, counts: Array<u64>, displs: Array<u64>) -> Result<(Vec<(usize, usize)>, u64)> {
        let n = self.comm.size as usize;
        let all: Vec<_> = counts.read(n)?.into_iter().zip(displs.read(n)?).collect();
        let mut end = 0u64;
        for (count, displ) in &all {
            let reach = self.count(*count)?.checked_add(*displ).ok_or_else(|| para("a displacement overflows"))?;
            // A part of no elements reaches nowhere.
            end = if *count > 0 { end.max(reach) } else { end };
        }
        Ok((all.into_iter().map(|(count, displ)| (count as usize, displ as usize)).collect(), end))
    }

    /// Meets the ranks at the first call of this kind, then enqueues.
    fn collective(
        self,
        arguments: String,
        spans: Vec<Span>,
        work: impl FnOnce(&Communicator) -> Done<()> + Send + 'static,
    ) -> Result<()> {
        submit(Work::Collective(Box::new(move || {
            self.comm.meet(self.name, &arguments)?;
            enqueue(&self.comm, &self.stream, self.name, spans, work)
        })))
    }

    fn reduction(self, arguments: String, work: Reduction, kind: i32, by: i32) -> Result<()> {
        let spans = work.spans();
        self.collective(arguments, spans, move |world| work.run(world, kind, by))
    }

    fn message(self, sends: bool, buf: usize, count: u64, kind: i32, peer: u32) -> Result<()> {
        let message = self.one(sends, buf, count, kind, peer)?;
        submit(Work::Messages(self.name, self.comm, self.stream, vec![message]))
    }

    fn one(&self, sends: bool, buf: usize, count: u64, kind: i32, peer: u32) -> Result<Message> {
        let size = self.family().moves(self.name, kind)?;
        let (count, peer) = (self.count(count)?, self.rank("peer", peer)?);
        Ok(Message { sends, peer, count, kind, span: self.span("buf", buf, count, size)? })
    }
}

/// Parts in elements as parts in bytes.
fn in_bytes(parts: &[(usize, usize)], size: usize) -> Vec<(usize, usize)> {
    parts.iter().map(|(count, start)| (count * size, start * size)).collect()
}

fn counts(parts: &[(usize, usize)]) -> Vec<usize> {
    parts.iter().map(|part| part.0).collect()
}

exports! {
    fn HcclAllReduce(send: usize, recv: usize, count: u64, kind: i32, by: i32, comm: Handle, stream: Handle) {
        let call = Call::new("HcclAllReduce", comm, stream)?;
        let (size, count) = (call.family().reduces(call.name, kind, by)?, call.count(count)?);
        let send = call.aligned("sendBuf", send, count, size)?;
        let recv = call.aligned("recvBuf", recv, count, size)?;
        if count == 0 {
            return Ok(());
        }
        let arguments = format!("count {count}, type {kind}, op {by}");
        call.reduction(arguments, Reduction::All { send, recv }, kind, by)
    }

    fn HcclReduce(send: usize, recv: usize, count: u64, kind: i32, by: i32, root: u32, comm: Handle, stream: Handle) {
        let call = Call::new("HcclReduce", comm, stream)?;
        let (size, count) = (call.family().reduces(call.name, kind, by)?, call.count(count)?);
        let root = call.rank("root", root)?;
        let send = call.aligned("sendBuf", send, count, size)?;
        let own = root == call.comm.rank;
        let recv = if own { Some(call.aligned("recvBuf", recv, count, size)?) } else { None };
        if count == 0 {
            return Ok(());
        }
        let arguments = format!("count {count}, type {kind}, op {by}, root {root}");
        call.reduction(arguments, Reduction::Root { send, recv, root }, kind, by)
    }

    fn HcclReduceScatter(send: usize, recv: usize, count: u64, kind: i32, by: i32, comm: Handle, stream: Handle) {
        let call = Call::new("HcclReduceScatter", comm, stream)?;
        let (size, count) = (call.family().reduces(call.name, kind, by)?, call.count(count)?);
        let send = call.aligned("sendBuf", send, count * call.ranks(), size)?;
        let recv = call.aligned("recvBuf", recv, count, size)?;
        let arguments = format!("count {count}, type {kind}, op {by}");
        call.reduction(arguments, Reduction::Scatter { send, recv }, kind, by)
    }

    fn HcclReduceScatterV(send: usize, counts: Array<u64>, displs: Array<u64>, recv: usize, count: u64, kind: i32,
        by: i32, comm: Handle, stream: Handle) {
        let call = Call::new("HcclReduceScatterV", comm, stream)?;
        let (size, count) = (call.family().reduces(call.name, kind, by)?, call.count(count)?);
        call.differ(send, recv)?;
        let (parts, end) = call.parts(counts, displs)?;
        if parts[call.comm.rank as usize].0 as u64 != count {
            return Err(para(format!("HcclReduceScatterV: recvCount {count} is not this rank's of sendCounts")));
        }
        let send = call.aligned("sendBuf", send, end, size)?;
        let recv = call.aligned("recvBuf", recv, count, size)?;
        let arguments = format!("counts {:?}, type {kind}, op {by}", self::counts(&parts));
        call.reduction(arguments, Reduction::ScatterV { send, parts, recv }, kind, by)
    }

    fn HcclBroadcast(buf: usize, count: u64, kind: i32, root: u32, comm: Handle, stream: Handle) {
        let call = Call::new("HcclBroadcast", comm, stream)?;
        let (size, count) = (call.family().moves(call.name, kind)?, call.count(count)?);
        let root = call.rank("root", root)?;
        let buf = call.span("buf", buf, count, size)?;
        if count == 0 {
            return Ok(());
        }
        let arguments = format!("count {count}, type {kind}, root {root}");
        call.collective(arguments, vec![buf.clone()], move |world| {
            world.broadcast(write::<u8>(&buf), world.root(root as usize)?)
        })
    }

    fn HcclScatter(send: usize, recv: usize, count: u64, kind: i32, root: u32, comm: Handle, stream: Handle) {
        let call = Call::new("HcclScatter", comm, stream)?;
        let (size, count) = (call.family().moves(call.name, kind)?, call.count(count)?);
        let root = call.rank("root", root)?;
        let own = root == call.comm.rank;
        let send = if own { Some(call.span("sendBuf", send, count * call.ranks(), size)?) } else { None };
        let recv = call.span("recvBuf", recv, count, size)?;
        let arguments = format!("count {count}, type {kind}, root {root}");
        let spans = send.iter().chain([&recv]).cloned().collect();
        call.collective(arguments, spans, move |world| {
            let all = send.as_ref().map(|send| apart::<u8>(send, &recv));
            world.scatter(all.as_deref(), write::<u8>(&recv), world.root(root as usize)?)
        })
    }

    fn HcclAllGather(send: usize, recv: usize, count: u64, kind: i32, comm: Handle, stream: Handle) {
        let call = Call::new("HcclAllGather", comm, stream)?;
        let (size, count) = (call.family().moves(call.name, kind)?, call.count(count)?);
        let send = call.span("sendBuf", send, count, size)?;
        let recv = call.span("recvBuf", recv, count * call.ranks(), size)?;
        call.collective(format!("count {count}, type {kind}"), vec![send.clone(), recv.clone()], move |world| {
            world.all_gather(&*apart::<u8>(&send, &recv), write::<u8>(&recv))
        })
    }

    fn HcclAllGatherV(send: usize, count: u64, recv: usize, counts: Array<u64>, displs: Array<u64>, kind: i32,
        comm: Handle, stream: Handle) {
        let call = Call::new("HcclAllGatherV", comm, stream)?;
        let (size, count) = (call.family().moves(call.name, kind)?, call.count(count)?);
        call.differ(send, recv)?;
        let (parts, end) = call.parts(counts, displs)?;
        if parts[call.comm.rank as usize].0 as u64 != count {
            return Err(para(format!("HcclAllGatherV: sendCount {count} is not this rank's of recvCounts")));
        }
        let send = call.span("sendBuf", send, count, size)?;
        let recv = call.span("recvBuf", recv, end, size)?;
        let arguments = format!("counts {:?}, type {kind}", self::counts(&parts));
        let parts = in_bytes(&parts, size);
        call.collective(arguments, vec![send.clone(), recv.clone()], move |world| {
            let mut all = vec![0; self::counts(&parts).iter().sum()];
            world.all_gather_v(&*apart::<u8>(&send, &recv), &mut all, &self::counts(&parts))?;
            unpack(&all, &parts, write::<u8>(&recv));
            Ok(())
        })
    }

    fn HcclAlltoAll(send: usize, send_count: u64, send_kind: i32, recv: usize, recv_count: u64, recv_kind: i32,
        comm: Handle, stream: Handle) {
        let call = Call::new("HcclAlltoAll", comm, stream)?;
        let (size, count) = (call.family().moves(call.name, send_kind)?, call.count(send_count)?);
        if (send_count, send_kind) != (recv_count, recv_kind) {
            return Err(para("HcclAlltoAll: counts or types of the two sides differ"));
        }
        call.differ(send, recv)?;
        let send = call.span("sendBuf", send, count * call.ranks(), size)?;
        let recv = call.span("recvBuf", recv, count * call.ranks(), size)?;
        call.collective(format!("count {count}, type {send_kind}"), vec![send.clone(), recv.clone()], move |world| {
            world.all_to_all(&*apart::<u8>(&send, &recv), write::<u8>(&recv))
        })
    }

    fn HcclAlltoAllV(send: usize, send_counts: Array<u64>, send_displs: Array<u64>, send_kind: i32, recv: usize,
        recv_counts: Array<u64>, recv_displs: Array<u64>, recv_kind: i32, comm: Handle, stream: Handle) {
        let call = Call::new("HcclAlltoAllV", comm, stream)?;
        let (sends, recvs) = (call.parts(send_counts, send_displs)?, call.parts(recv_counts, recv_displs)?);
        all_to_all_v(call, (send, send_kind, sends), (recv, recv_kind, recvs), String::new())
    }

    fn HcclAlltoAllVC(send: usize, matrix: Array<u64>, send_kind: i32, recv: usize, recv_kind: i32, comm: Handle,
        stream: Handle) {
        let call = Call::new("HcclAlltoAllVC", comm, stream)?;
        let (n, rank) = (call.comm.size as usize, call.comm.rank as usize);
        let matrix = matrix.read(n * n)?;
        let packed = |counts: Vec<u64>| {
            let mut end = 0;
            let mut parts = Vec::new();
            for count in counts {
                parts.push((call.count(count)? as usize, end as usize));
                end += count;
            }
            Ok((parts, end))
        };
        let sends = packed(matrix[rank * n..(rank + 1) * n].to_vec())?;
        let recvs = packed(matrix.iter().skip(rank).step_by(n).copied().collect())?;
        all_to_all_v(call, (send, send_kind, sends), (recv, recv_kind, recvs), format!("matrix {matrix:?}, "))
    }

    fn HcclBarrier(comm: Handle, stream: Handle) {
        let call = Call::new("HcclBarrier", comm, stream)?;
        call.family().has(call.name)?;
        call.collective(String::new(), Vec::new(), Communicator::barrier)
    }

    fn HcclSend(buf: usize, count: u64, kind: i32, peer: u32, comm: Handle, stream: Handle) {
        Call::new("HcclSend", comm, stream)?.message(true, buf, count, kind, peer)
    }

    fn HcclRecv(buf: usize, count: u64, kind: i32, peer: u32, comm: Handle, stream: Handle) {
        Call::new("HcclRecv", comm, stream)?.message(false, buf, count, kind, peer)
    }

    fn HcclBatchSendRecv(items: Array<Item>, n: u32, comm: Handle, stream: Handle) {
        let call = Call::new("HcclBatchSendRecv", comm, stream)?;
        if group::is_open() {
            return Err(para("HcclBatchSendRecv is not allowed in a group"));
        }
        if n == 0 {
            return Err(para("HcclBatchSendRecv of no messages"));
        }
        let message = |item: Item| match item.direction {
            0 | 1 => call.one(item.direction == 0, item.buf, item.count, item.kind, item.peer),
            other => Err(para(format!("HcclBatchSendRecv: {other} is neither send nor receive"))),
        };
        let messages = items.read(n as usize)?.into_iter().map(message).collect::<Result<Vec<_>>>()?;
        submit(Work::Messages(call.name, Arc::clone(&call.comm), Arc::clone(&call.stream), messages))
    }
}

/// `HcclSendRecvItem`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Item {
    direction: i32,
    buf: usize,
    count: u64,
    kind: i32,
    peer: u32,
}

const _: () = assert!(size_of::<Item>() == 32);

/// A buffer, its type, and its parts with the elements they reach to.
type Cut = (usize, i32, (Vec<(usize, usize)>, u64));

fn all_to_all_v(call: Call, send: Cut, recv: Cut, arguments: String) -> Result<()> {
    let (send, send_kind, (sends, send_end)) = send;
    let (recv, recv_kind, (recvs, recv_end)) = recv;
    let size = call.family().moves(call.name, send_kind)?;
    if send_kind != recv_kind {
        return Err(para(format!("{}: types of the two sides differ", call.name)));
    }
    call.differ(send, recv)?;
    let send = call.span("sendBuf", send, send_end, size)?;
    let recv = call.span("recvBuf", recv, recv_end, size)?;
    let (sends, recvs) = (in_bytes(&sends, size), in_bytes(&recvs, size));
    call.collective(format!("{arguments}type {send_kind}"), vec![send.clone(), recv.clone()], move |world| {
        let packed = pack(read::<u8>(&send), &sends);
        let mut all = vec![0u8; counts(&recvs).iter().sum()];
        world.all_to_all_v(&packed, &counts(&sends), &mut all, &counts(&recvs))?;
        unpack(&all, &recvs, write::<u8>(&recv));
        Ok(())
    })
}
