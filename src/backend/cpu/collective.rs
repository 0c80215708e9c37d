//! The collectives: how the data moves once all ranks have shown the same call.
//!
//! Large data moves in rounds. When every rank can reach every other's memory there is one round over everything;
//! when some memory is staged, a round is as much as half a staging block holds, and the halves alternate:
//!
//! ```text
//! stage_in 0 │ publish, wait │ work 0  stage_in 1 │ meet │ copy_out 0  work 1  stage_in 2 │ meet │ …
//! ```
//!
//! | kind | work of one rank |
//! | --- | --- |
//! | all_reduce, reduce | reduce its share of the window out of all ranks' memory, write it to all who get it |
//! | reduce_scatter | reduce its part out of all ranks' memory |
//! | the others | copy its parts out of the other ranks' memory |
#![expect(unsafe_code, reason = "moves bytes between ranks")]

use crate::backend::cpu::engine::{Engine, View, mismatch};
use crate::backend::cpu::kernel::{self, Hint};
use crate::backend::cpu::shape::share;
use crate::backend::cpu::tuning::Choice;
use crate::backend::{Call, Extent, Kind};
use crate::error::Result;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Bytes of one visit to other ranks' memory: what a failing rank waits for at most.
const VISIT: usize = 256 << 10;

/// The elements `from..to` of every part that one round moves.
#[derive(Clone, Copy)]
struct Window {
    round: usize,
    from: usize,
    to: usize,
    /// Elements of a full window: the distance of pieces in a staging half.
    step: usize,
}

impl Window {
    /// The part's elements that lie in the window: `(first inside the part, how many)`.
    fn cut(&self, part: Extent) -> (usize, usize) {
        let end = self.to.min(part.1 as usize);
        (self.from, end.saturating_sub(self.from))
    }
}

impl Engine {
    /// Copies inside this rank's own memory, or between it and its slot.
    pub(super) fn copy_local(&self, from: *const u8, to: *mut u8, bytes: usize) {
        self.copy_hinted(from, to, bytes, Hint::Cached);
    }

    fn copy_hinted(&self, from: *const u8, to: *mut u8, bytes: usize, hint: Hint) {
        if bytes > 0 && from != to.cast_const() {
            // SAFETY: both are valid for `bytes` bytes by the call's contract, and in-place parts are equal or disjoint.
            unsafe { kernel::copy(from, to, bytes, hint) };
        }
    }

    /// The whole of a collective in a group of one.
    pub(super) fn alone(&mut self, call: &Call) -> Result<()> {
        let (from, _) = call.send_part(0);
        let (to, elements) = if call.foreign_writes() { (0, call.count) } else { call.recv_part(0, 0) };
        let width = call.width();
        let source = call.send.ptr.wrapping_add(from as usize * width);
        self.copy_local(source, call.recv.ptr.wrapping_add(to as usize * width), elements as usize * width);
        Ok(())
    }

    /// Bytes of `rank`'s send and recv that this rank may touch.
    pub(super) fn peer_bytes(&self, call: &Call, rank: usize) -> (usize, usize) {
        let width = call.width();
        let size = self.group.size;
        let send = match call.kind {
            _ if !call.is_source(rank) => 0,
            Kind::AllToAllV => self.table_end(rank),
            Kind::ReduceScatter | Kind::Scatter | Kind::AllToAll => call.count.saturating_mul(size as u64),
            Kind::AllGatherV => call.recv_parts[rank].1,
            _ => call.count,
        };
        let recv = if call.is_sink(rank) { call.count as usize } else { 0 };
        ((send as usize).saturating_mul(width), recv.saturating_mul(width))
    }

    /// One past the last element of its send that `rank` names in its table.
    fn table_end(&self, rank: usize) -> u64 {
        let end = |peer| {
            let row = self.group.segment.row(rank, self.number, peer);
            row.send_start.load(Ordering::Relaxed).saturating_add(row.send_count.load(Ordering::Relaxed))
        };
        (0..self.group.size).map(end).max().unwrap_or(0)
    }

    /// Publishes the counts of a V call.
    pub(super) fn publish_table(&self, call: &Call) {
        if !matches!(call.kind, Kind::AllGatherV | Kind::ReduceScatterV | Kind::AllToAllV) {
            return;
        }
        for peer in 0..self.group.size {
            let row = self.group.segment.row(self.group.rank, self.number, peer);
            let (start, count) = call.send_parts.get(peer).copied().unwrap_or((0, 0));
            row.send_start.store(start, Ordering::Relaxed);
            row.send_count.store(count, Ordering::Relaxed);
            row.recv_count.store(call.recv_parts.get(peer).map_or(0, |part| part.1), Ordering::Relaxed);
        }
    }

    /// Compares the counts of a V call: pairwise for all_to_all_v, else all with all.
    pub(super) fn compare_tables(&self, call: &Call) -> Result<()> {
        let (size, me) = (self.group.size, self.group.rank);
        let load = |rank, peer| {
            let row = self.group.segment.row(rank, self.number, peer);
            (row.send_count.load(Ordering::Relaxed), row.recv_count.load(Ordering::Relaxed))
        };
        let name = call.kind.name();
        for rank in 0..size {
            for peer in 0..size {
                let (sends, expects) = load(rank, peer);
                match call.kind {
                    Kind::AllToAllV if sends != load(peer, rank).1 => {
                        let sent = format!("{name}({sends} to rank {peer})");
                        let expected = format!("{name}({} from rank {rank})", load(peer, rank).1);
                        return Err(match me {
                            _ if me == rank => mismatch(peer, sent, expected),
                            _ if me == peer => mismatch(rank, expected, sent),
                            _ => mismatch(rank, String::new(), format!("{sent}, which called {expected}")),
                        });
                    }
                    Kind::AllGatherV | Kind::ReduceScatterV if (sends, expects) != load(me, peer) => {
                        let (s, e) = load(me, peer);
                        let ours = format!("{name}(counts[{peer}] = {})", s.max(e));
                        return Err(mismatch(rank, ours, format!("{name}(counts[{peer}] = {})", sends.max(expects))));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Ends a call whose data stands in the slots.
    pub(super) fn finish_inline(&mut self, call: &Call) -> Result<()> {
        let (size, me, width) = (self.group.size, self.group.rank, call.width());
        let data = |engine: &Engine, rank| {
            engine.group.segment.slot_data(rank, engine.number, call.published(rank, size)).cast_const()
        };
        if call.op.is_some() {
            let (start, count) = match call.kind {
                Kind::ReduceScatter | Kind::ReduceScatterV => call.send_part(me),
                Kind::Reduce if !call.is_sink(me) => return Ok(()),
                _ => (0, call.count),
            };
            self.sources.clear();
            for rank in 0..size {
                let source = data(self, rank).wrapping_add(start as usize * width);
                self.sources.push(source);
            }
            self.outputs.clear();
            self.outputs.push(call.recv.ptr);
            self.reduce(call, count as usize, Hint::Cached);
            return Ok(());
        }
        for rank in 0..size {
            let (to, count) = call.recv_part(rank, me);
            let piece = if call.pieces(size) > 1 { me } else { 0 };
            let from = if call.pieces(size) > 1 { piece * call.count as usize } else { 0 };
            let source = data(self, rank).wrapping_add(from * width);
            self.copy_local(source, call.recv.ptr.wrapping_add(to as usize * width), count as usize * width);
        }
        Ok(())
    }

    /// Reduces `elements` elements of `self.sources` into `self.outputs`.
    fn reduce(&self, call: &Call, elements: usize, hint: Hint) {
        let Some(op) = call.op else { return };
        if elements > 0 {
            let (sources, outputs) = (&self.sources[..], &self.outputs[..]);
            // SAFETY: all are valid for `elements` elements by the contract of the calls that all ranks made with equal
            // fingerprints; outputs equal sources or are disjoint from them, and no rank writes another's share.
            unsafe { kernel::reduce_chunk(call.dtype, op, sources, outputs, elements, self.group.size, hint) };
        }
    }

    /// Elements of a full window; everything when nothing is staged.
    fn step(&self, call: &Call) -> usize {
        let staged = (0..self.group.size).any(|rank| {
            let view = &self.views[rank];
            (call.is_source(rank) && view.send_staged) || (call.is_sink(rank) && view.recv_staged)
        });
        if staged { self.staged_step(call) } else { usize::MAX }
    }

    /// Elements of one piece in half a staging block.
    fn staged_step(&self, call: &Call) -> usize {
        (self.group.stage() / (call.width() * call.pieces(self.group.size))).max(1)
    }

    /// Copies this rank's part of round `round` into its staging block.
    pub(super) fn stage_in(&self, call: &Call, round: usize) {
        let Some(stage) = &self.stage else { return };
        let (step, width) = (self.staged_step(call), call.width());
        let window = Window { round, from: round * step, to: (round + 1) * step, step };
        let (me, size) = (self.group.rank, self.group.size);
        for piece in (0..call.pieces(size)).filter(|piece| call.pieces(size) == 1 || *piece != me) {
            let part = call.send_part(piece);
            let (first, count) = window.cut(part);
            let source = call.send.ptr.wrapping_add((part.0 as usize + first) * width);
            let at = self.staged(stage.ptr().as_ptr(), window, piece, width);
            if call.foreign_writes() {
                self.copy_but_share(source, at, count, width);
            } else {
                self.copy_local(source, at, count * width);
            }
        }
    }

    /// Copies the `elements` elements of a window, but for this rank's share, which it reads and writes in place.
    fn copy_but_share(&self, from: *const u8, to: *mut u8, elements: usize, width: usize) {
        let (share, end) = share(elements, self.group.size, self.group.rank, width);
        self.copy_local(from, to, share * width);
        self.copy_local(from.wrapping_add(end * width), to.wrapping_add(end * width), (elements - end) * width);
    }

    /// The memory of `rank` as this rank uses it: its own is never staged for itself.
    fn reach(&self, rank: usize) -> View {
        let view = self.views[rank];
        let own = rank == self.group.rank;
        View { send_staged: view.send_staged && !own, recv_staged: view.recv_staged && !own, ..view }
    }

    /// Where a window's piece stands in a staging block.
    fn staged(&self, stage: *mut u8, window: Window, piece: usize, width: usize) -> *mut u8 {
        stage.wrapping_add((window.round % 2) * self.group.stage() + piece * window.step * width)
    }

    /// The first byte of a window's piece in the memory of a rank that sends it; `start` is the part's first element.
    fn source(&self, view: &View, window: Window, piece: usize, start: usize, width: usize) -> *const u8 {
        if view.send_staged {
            self.staged(view.stage, window, piece, width)
        } else {
            view.send.wrapping_add((start + window.from) * width)
        }
    }

    /// Runs `work` for every window up to `longest`, meeting after each.
    fn rounds(
        &mut self,
        call: &Call,
        longest: usize,
        choice: Choice,
        mut work: impl FnMut(&mut Self, Window) -> Result<()>,
        mut copy_out: impl FnMut(&Self, Window),
    ) -> Result<()> {
        let step = self.step(call);
        let rounds = longest.div_ceil(step).max(1);
        for round in 0..rounds {
            let from = round.saturating_mul(step);
            let window = Window { round, from, to: from.saturating_add(step).min(longest), step };
            // What is staged takes many rounds, and its time is not that of the stores.
            let start = (choice.is_trial && rounds == 1).then(Instant::now);
            work(self, window)?;
            if let Some(start) = start {
                self.tuning.note(choice, start.elapsed());
            }
            if round + 1 < rounds && self.views[self.group.rank].send_staged {
                self.stage_in(call, round + 1);
            }
            self.meet()?;
            copy_out(self, window);
        }
        Ok(())
    }

    /// How to write results of `bytes` bytes a rank: possibly around the cache, unless one lands where it was read from.
    fn choose(&self, call: &Call, bytes: usize) -> Choice {
        let reduces = call.op.is_some();
        let apart = |view: &View| !view.recv_staged && (view.send_staged || view.send != view.recv);
        let apart = (0..self.group.size).all(|rank| !call.is_sink(rank) || apart(&self.views[rank]));
        if apart { self.tuning.choose(reduces, bytes) } else { Choice::CACHED }
    }

    /// all_reduce and reduce.
    pub(super) fn reduce_rounds(&mut self, call: &Call) -> Result<()> {
        let (me, size, width) = (self.group.rank, self.group.size, call.width());
        let choice = self.choose(call, (call.count as usize).saturating_mul(width));
        let work = |engine: &mut Engine, window: Window| {
            let (from, to) = share(window.to - window.from, size, me, width);
            for first in (from..to).step_by(VISIT / width) {
                let offset = first * width;
                engine.sources.clear();
                engine.outputs.clear();
                for rank in 0..size {
                    let view = engine.reach(rank);
                    let source = engine.source(&view, window, 0, 0, width).wrapping_add(offset);
                    engine.sources.push(source);
                    if call.is_sink(rank) {
                        let output = engine.output(&view, window, width).wrapping_add(offset);
                        engine.outputs.push(output);
                    }
                }
                let elements = (to - first).min(VISIT / width);
                engine.group.visit(|| engine.reduce(call, elements, choice.hint))?;
            }
            Ok(())
        };
        let copy_out = |engine: &Engine, window: Window| {
            let view = engine.views[me];
            if call.is_sink(me) && view.recv_staged {
                let to = call.recv.ptr.wrapping_add(window.from * width);
                let from = engine.output(&view, window, width);
                engine.copy_but_share(from, to, window.to - window.from, width);
            }
        };
        self.rounds(call, call.count as usize, choice, work, copy_out)
    }

    /// Where the result of a window goes in the memory of a rank that gets it.
    fn output(&self, view: &View, window: Window, width: usize) -> *mut u8 {
        if view.recv_staged {
            self.staged(view.stage, window, 0, width)
        } else {
            view.recv.wrapping_add(window.from * width)
        }
    }

    /// reduce_scatter and reduce_scatter_v.
    pub(super) fn reduce_scatter_rounds(&mut self, call: &Call) -> Result<()> {
        let (me, size, width) = (self.group.rank, self.group.size, call.width());
        let part = call.send_part(me);
        let longest = (0..size).map(|piece| call.send_part(piece).1).max().unwrap_or(0) as usize;
        let in_place = call.send.ptr.wrapping_add(part.0 as usize * width) == call.recv.ptr;
        let choice = if in_place { Choice::CACHED } else { self.choose(call, longest.saturating_mul(width * size)) };
        let work = |engine: &mut Engine, window: Window| {
            let (from, count) = window.cut(part);
            for first in (0..count).step_by(VISIT / width) {
                engine.sources.clear();
                for rank in 0..size {
                    let view = engine.reach(rank);
                    let source = engine.source(&view, window, me, part.0 as usize, width);
                    engine.sources.push(source.wrapping_add(first * width));
                }
                engine.outputs.clear();
                engine.outputs.push(call.recv.ptr.wrapping_add((from + first) * width));
                let elements = (count - first).min(VISIT / width);
                engine.group.visit(|| engine.reduce(call, elements, choice.hint))?;
            }
            Ok(())
        };
        self.rounds(call, longest, choice, work, |_, _| {})
    }

    /// Everything that moves without reducing.
    pub(super) fn exchange_rounds(&mut self, call: &Call) -> Result<()> {
        let (me, size) = (self.group.rank, self.group.size);
        let longest = self.longest_part(call);
        let choice = self.choose(call, call.recv.bytes);
        let work = |engine: &mut Engine, window: Window| {
            // Each rank starts with its right neighbour, so that not all read the same memory at once.
            (0..size).map(|i| (me + i) % size).try_for_each(|rank| engine.pull(call, window, rank, choice.hint))
        };
        self.rounds(call, longest, choice, work, |_, _| {})
    }

    /// Copies a window of what `rank` has for this rank.
    fn pull(&self, call: &Call, window: Window, rank: usize, hint: Hint) -> Result<()> {
        let (me, size, width) = (self.group.rank, self.group.size, call.width());
        let part = call.recv_part(rank, me);
        let (from, count) = window.cut(part);
        let start = match call.kind {
            Kind::AllToAllV => {
                self.group.segment.row(rank, self.number, me).send_start.load(Ordering::Relaxed) as usize
            }
            _ if call.pieces(size) > 1 => me * call.count as usize,
            _ => 0,
        };
        let piece = if call.pieces(size) > 1 { me } else { 0 };
        let source = self.source(&self.reach(rank), window, piece, start, width);
        let target = call.recv.ptr.wrapping_add((part.0 as usize + from) * width);
        let bytes = count * width;
        for offset in (0..bytes).step_by(VISIT) {
            let (source, target) = (source.wrapping_add(offset), target.wrapping_add(offset));
            self.group.visit(|| self.copy_hinted(source, target, (bytes - offset).min(VISIT), hint))?;
        }
        Ok(())
    }

    /// Elements of the longest part that any rank moves; the same on all ranks.
    fn longest_part(&self, call: &Call) -> usize {
        let size = self.group.size;
        let longest = match call.kind {
            Kind::AllGatherV => call.recv_parts.iter().map(|part| part.1).max(),
            Kind::AllToAllV => (0..size * size)
                .map(|i| {
                    let row = self.group.segment.row(i / size, self.number, i % size);
                    row.send_count.load(Ordering::Relaxed)
                })
                .max(),
            _ => Some(call.count),
        };
        longest.unwrap_or(0) as usize
    }
}
