//! Messages between two ranks: send, recv, and batches of both.
//!
//! A mailbox has one outbox and one inbox for each direction between two ranks. The sender posts what it offers, the
//! receiver what it asks for; when both stand there under the same number they are compared, and the receiver takes the
//! data:
//!
//! | data | how it travels |
//! | --- | --- |
//! | up to `MAIL_INLINE` bytes | inside the outbox |
//! | memory that the receiver reaches | copied once, by the receiver |
//! | the same, from [`SHARED`] bytes on, when the sender reaches the receiver's too | copied once, half by each side |
//! | plain memory of another process | through a ring of chunks in the sender's heap (the bounce block) |
//!
//! A send is complete when the receiver has everything: it never completes unmatched.
#![expect(unsafe_code, reason = "moves bytes between ranks")]

use crate::backend::cpu::engine::{Engine, mismatch};
use crate::backend::cpu::heap::Block;
use crate::backend::cpu::kernel::{self, Hint};
use crate::backend::cpu::memory::Place;
use crate::backend::cpu::segment::{MAIL_INLINE, Mail};
use crate::backend::cpu::wait::{Claim, On};
use crate::backend::{Call, Home, Kind, Memory, Message};
use crate::element::DType;
use crate::error::Result;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::fence;

/// Bytes of one visit to the sender's memory.
const VISIT: usize = 256 << 10;
/// Chunks of a bounce block.
const RING: u64 = 4;
/// From this many bytes on, both sides copy: half the time for one more exchange of a cache line.
const SHARED: usize = 32 << 10;
/// Flag of `Inbox::what`: the sender reaches the memory asked for.
const REACHABLE: u64 = 1 << 8;

/// How the data of a message travels; codes stand in `Outbox::what`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Way {
    Inline = 1,
    Direct = 2,
    Bounce = 3,
}

/// One message under way.
struct Transfer {
    message: Message,
    number: u64,
    state: State,
    bounce: Option<Block>,
    /// Chunks filled or taken so far.
    chunks: u64,
    /// The message travels as [`Way::Direct`], and this side has copied its half.
    direct: bool,
    half_done: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not posted: an earlier message of the batch uses the mailbox.
    Queued,
    Posted,
    /// Both sides stand there and agree.
    Matched,
    Done,
}

impl Transfer {
    fn bytes(&self) -> usize {
        self.message.memory.bytes
    }

    fn uses_same_mailbox(&self, other: &Transfer) -> bool {
        self.message.peer == other.message.peer && self.message.sends == other.message.sends
    }
}

impl Engine {
    /// send, recv and batch_send_recv.
    pub(super) fn messages(&mut self, call: &Call) -> Result<()> {
        let one = |sends, memory| [Message { sends, peer: call.root, dtype: call.dtype, count: call.count, memory }];
        match call.kind {
            Kind::Send => self.transfer(&one(true, call.send)),
            Kind::Recv => self.transfer(&one(false, call.recv)),
            _ => self.transfer(&call.messages),
        }
    }

    fn transfer(&mut self, messages: &[Message]) -> Result<()> {
        self.plan(messages);
        let start = |message: &Message| Transfer {
            message: *message,
            number: 0,
            state: State::Queued,
            bounce: None,
            chunks: 0,
            direct: false,
            half_done: false,
        };
        // One message, the usual case, needs no list on the heap.
        if let [message] = messages {
            return self.carry(&mut [start(message)]);
        }
        self.carry(&mut messages.iter().map(start).collect::<Vec<_>>())
    }

    /// Says which messages this call will post, also those that queue behind others for now: a rank that waits for one
    /// of them is not waiting in a circle.
    fn plan(&self, messages: &[Message]) {
        let (me, segment) = (self.group.rank, &self.group.segment);
        for message in messages {
            let peer = message.peer as usize;
            let planned = match message.sends {
                true => &segment.mail(me, peer).outbox.planned,
                false => &segment.mail(peer, me).inbox.planned,
            };
            planned.store(planned.load(Relaxed) + 1, Relaxed);
        }
    }

    /// Moves all transfers to their end.
    fn carry(&mut self, transfers: &mut [Transfer]) -> Result<()> {
        loop {
            let mut moved = false;
            for i in 0..transfers.len() {
                let (before, rest) = transfers.split_at_mut(i);
                let transfer = &mut rest[0];
                let free = || before.iter().all(|b| b.state == State::Done || !b.uses_same_mailbox(transfer));
                if transfer.state == State::Queued && free() {
                    self.post(transfer)?;
                    moved = true;
                }
                moved |= self.advance(transfer)?;
            }
            if transfers.iter().all(|transfer| transfer.state == State::Done) {
                return Ok(());
            }
            if !moved {
                let group = &self.group;
                let ready = || transfers.iter().any(|transfer| self.can_advance(transfer));
                group.wait(self.eager, ready, |found| {
                    transfers.iter().filter_map(|transfer| self.claim(transfer)).for_each(&mut *found);
                })?;
            }
        }
    }

    /// The mailbox of a transfer.
    fn mail(&self, transfer: &Transfer) -> &Mail {
        let (me, peer) = (self.group.rank, transfer.message.peer as usize);
        if transfer.message.sends { self.group.segment.mail(me, peer) } else { self.group.segment.mail(peer, me) }
    }

    fn post(&mut self, transfer: &mut Transfer) -> Result<()> {
        let peer = transfer.message.peer as usize;
        let count = if transfer.message.sends { &mut self.sent[peer] } else { &mut self.received[peer] };
        *count += 1;
        transfer.number = *count;
        if transfer.message.sends {
            self.offer(transfer)?
        } else {
            self.ask(transfer)
        }
        transfer.state = State::Posted;
        self.group.ring();
        Ok(())
    }

    fn ask(&self, transfer: &Transfer) {
        let inbox = &self.mail(transfer).inbox;
        // SYNC POINT requests: pairs with the fence in `compare_message`. A sender that still looks at the last request
        // and reads a word of this one sees `done` of the last.
        fence(Release);
        let place = Place::of(&transfer.message.memory, self.group.threads);
        let reach = place.map_or(0, |place| REACHABLE | (u64::from(place.arena) << 32));
        inbox.what.store(transfer.message.dtype as u64 | reach, Relaxed);
        inbox.place.store(place.map_or(0, |place| place.offset), Relaxed);
        inbox.count.store(transfer.message.count, Relaxed);
        inbox.taken.store(0, Relaxed);
        inbox.posted.store(transfer.number, Release);
    }

    fn offer(&mut self, transfer: &mut Transfer) -> Result<()> {
        let bytes = transfer.bytes();
        let (way, place) = match Place::of(&transfer.message.memory, self.group.threads) {
            _ if bytes <= MAIL_INLINE => (Way::Inline, Place { arena: 0, offset: 0 }),
            Some(place) => (Way::Direct, place),
            None => (Way::Bounce, self.bounce(transfer)?),
        };
        transfer.direct = way == Way::Direct;
        let outbox = &self.mail(transfer).outbox;
        if way == Way::Inline {
            self.copy_local(transfer.message.memory.ptr, outbox.inline.as_ptr().cast_mut().cast(), bytes);
        }
        let what = transfer.message.dtype as u64 | ((way as u64) << 8) | (u64::from(place.arena) << 32);
        outbox.what.store(what, Relaxed);
        outbox.count.store(transfer.message.count, Relaxed);
        outbox.place.store(place.offset, Relaxed);
        outbox.filled.store(0, Relaxed);
        outbox.posted.store(transfer.number, Release);
        Ok(())
    }

    fn bounce(&self, transfer: &mut Transfer) -> Result<Place> {
        let block = Block::scratch(RING as usize * self.group.stage())?;
        let Home::Heap { arena, offset } = block.home() else { return Ok(Place { arena: 0, offset: 0 }) };
        transfer.bounce = Some(block);
        Ok(Place { arena, offset })
    }

    /// True when the peer's side stands in the mailbox.
    fn is_matched(&self, transfer: &Transfer) -> bool {
        let mail = self.mail(transfer);
        let posted = if transfer.message.sends { &mail.inbox.posted } else { &mail.outbox.posted };
        posted.load(Acquire) >= transfer.number
    }

    fn can_advance(&self, transfer: &Transfer) -> bool {
        let mail = self.mail(transfer);
        match transfer.state {
            State::Queued | State::Done => false,
            State::Posted => self.is_matched(transfer),
            State::Matched if transfer.message.sends => {
                mail.inbox.done.load(Acquire) >= transfer.number || self.may_fill(transfer, mail)
            }
            State::Matched => mail.outbox.filled.load(Acquire) > transfer.chunks,
        }
    }

    fn claim(&self, transfer: &Transfer) -> Option<Claim> {
        let on = match (transfer.state, transfer.message.sends) {
            (State::Queued | State::Done, _) => return None,
            (State::Posted, true) => On::Request,
            (State::Posted, false) => On::Offer,
            (State::Matched, _) => On::Progress,
        };
        let missing = !self.can_advance(transfer);
        missing.then_some(Claim { on, peer: transfer.message.peer as usize, target: transfer.number })
    }

    /// Goes as far as the peer allows; true when anything happened.
    fn advance(&mut self, transfer: &mut Transfer) -> Result<bool> {
        if matches!(transfer.state, State::Queued | State::Done) || !self.can_advance(transfer) {
            return Ok(false);
        }
        if transfer.state == State::Posted {
            self.compare_message(transfer)?;
            transfer.state = State::Matched;
        }
        if transfer.message.sends {
            self.advance_send(transfer)?
        } else {
            self.advance_recv(transfer)?
        }
        Ok(true)
    }

    fn compare_message(&self, transfer: &Transfer) -> Result<()> {
        let mail = self.mail(transfer);
        let (what, count) = if transfer.message.sends {
            (mail.inbox.what.load(Relaxed), mail.inbox.count.load(Relaxed))
        } else {
            (mail.outbox.what.load(Relaxed), mail.outbox.count.load(Relaxed))
        };
        let message = &transfer.message;
        if what as u8 == message.dtype as u8 && count == message.count {
            return Ok(());
        }
        // SYNC POINT requests: the receiver may have taken this message and asked for the next before we looked.
        fence(Acquire);
        if message.sends && mail.inbox.done.load(Relaxed) >= transfer.number {
            return Ok(());
        }
        let (me, peer) = (self.group.rank, message.peer as usize);
        let text = |sends, dtype: Option<DType>, count, other| {
            let dtype = dtype.map_or("an unknown dtype", DType::name);
            if sends {
                format!("send({dtype} x {count}, to {other})")
            } else {
                format!("recv({dtype} x {count}, from {other})")
            }
        };
        let ours = text(message.sends, Some(message.dtype), message.count, peer);
        let theirs = text(!message.sends, DType::from_code(what as u8), count, me);
        Err(mismatch(peer, ours, theirs))
    }

    /// The next chunk: where it starts and how long it is.
    fn chunk(&self, transfer: &Transfer) -> (usize, usize) {
        let start = transfer.chunks as usize * self.group.stage();
        (start, transfer.bytes().saturating_sub(start).min(self.group.stage()))
    }

    /// True when a chunk is left and the ring has room for it.
    fn may_fill(&self, transfer: &Transfer, mail: &Mail) -> bool {
        let taken = mail.inbox.taken.load(Acquire);
        transfer.bounce.is_some() && self.chunk(transfer).1 > 0 && transfer.chunks < taken.saturating_add(RING)
    }

    /// The first byte of the half that the sender copies, at a multiple of a page.
    fn half(bytes: usize) -> usize {
        (bytes / 2).next_multiple_of(4096)
    }

    /// Writes the sender's half of a large message, if the receiver offers its memory for that.
    fn give_half(&mut self, transfer: &mut Transfer) -> Result<()> {
        let bytes = transfer.bytes();
        if !transfer.direct || transfer.half_done || bytes < SHARED {
            return Ok(());
        }
        let peer = transfer.message.peer as usize;
        let group = self.group.clone();
        let mail = group.segment.mail(group.rank, peer);
        let (what, offset) = (mail.inbox.what.load(Relaxed), mail.inbox.place.load(Relaxed));
        // SYNC POINT requests: what was read belongs to this message unless it is finished, which it cannot be before
        // this half is there.
        fence(Acquire);
        if mail.inbox.done.load(Relaxed) >= transfer.number || what & REACHABLE == 0 {
            return Ok(());
        }
        let target = self.memories.resolve(peer, Place { arena: (what >> 32) as u32, offset }, bytes)?;
        let half = Self::half(bytes);
        let source = transfer.message.memory.ptr.cast_const();
        self.take(source.wrapping_add(half), target.wrapping_add(half), bytes - half)?;
        transfer.half_done = true;
        mail.outbox.filled.store(1, Release);
        group.ring();
        Ok(())
    }

    fn advance_send(&mut self, transfer: &mut Transfer) -> Result<()> {
        self.give_half(transfer)?;
        let mail = self.mail(transfer);
        while self.may_fill(transfer, mail) {
            let (start, bytes) = self.chunk(transfer);
            let Some(bounce) = &transfer.bounce else { return Ok(()) };
            let slot = (transfer.chunks % RING) as usize * self.group.stage();
            let source = transfer.message.memory.ptr.wrapping_add(start);
            self.copy_local(source, bounce.ptr().as_ptr().wrapping_add(slot), bytes);
            transfer.chunks += 1;
            mail.outbox.filled.store(transfer.chunks, Release);
            self.group.ring();
        }
        if mail.inbox.done.load(Acquire) >= transfer.number {
            transfer.state = State::Done;
            transfer.bounce = None;
        }
        Ok(())
    }

    fn advance_recv(&mut self, transfer: &mut Transfer) -> Result<()> {
        let peer = transfer.message.peer as usize;
        let group = self.group.clone();
        let mail = group.segment.mail(peer, group.rank);
        let what = mail.outbox.what.load(Relaxed);
        let place = Place { arena: (what >> 32) as u32, offset: mail.outbox.place.load(Relaxed) };
        let Memory { ptr: target, bytes, .. } = transfer.message.memory;
        match (what >> 8) as u8 {
            code if code == Way::Direct as u8 => {
                let shared = bytes >= SHARED && Place::of(&transfer.message.memory, group.threads).is_some();
                if !transfer.half_done {
                    let source = self.memories.resolve(peer, place, bytes)?.cast_const();
                    self.take(source, target, if shared { Self::half(bytes) } else { bytes })?;
                    transfer.half_done = true;
                }
                if shared && mail.outbox.filled.load(Acquire) == 0 {
                    return Ok(());
                }
            }
            code if code == Way::Bounce as u8 => {
                let ring = RING as usize * group.stage();
                let source = self.memories.resolve(peer, place, ring)?.cast_const();
                while transfer.chunks < mail.outbox.filled.load(Acquire) {
                    let (start, bytes) = self.chunk(transfer);
                    let slot = (transfer.chunks % RING) as usize * group.stage();
                    self.take(source.wrapping_add(slot), target.wrapping_add(start), bytes)?;
                    transfer.chunks += 1;
                    mail.inbox.taken.store(transfer.chunks, Release);
                    group.ring();
                }
                if self.chunk(transfer).1 > 0 {
                    return Ok(());
                }
            }
            _ => self.copy_local(mail.outbox.inline.as_ptr().cast(), target, bytes.min(MAIL_INLINE)),
        }
        mail.inbox.done.store(transfer.number, Release);
        transfer.state = State::Done;
        group.ring();
        Ok(())
    }

    /// Copies between the two sides' memory in short visits.
    fn take(&self, source: *const u8, target: *mut u8, bytes: usize) -> Result<()> {
        for offset in (0..bytes).step_by(VISIT) {
            let (from, to, length) =
                (source.wrapping_add(offset), target.wrapping_add(offset), VISIT.min(bytes - offset));
            self.group.visit(|| {
                // SAFETY: the other side's memory was checked by `resolve` (or is an address of this process whose owner
                // waits), this side's is ours by the call's contract; the halves of a shared copy do not overlap.
                unsafe { kernel::copy(from, to, length, Hint::Cached) }
            })?;
        }
        Ok(())
    }
}
