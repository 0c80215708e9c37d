//! One step of a plan on this rank: computing, sending and receiving, in the order of the plan.

use super::chunk::{Chunk, Ends};
use super::fault::{Failure, Links};
use super::header::{Header, WORDS, inline, inline_mut, mismatch};
use super::lane::AnyLane;
use super::shape::{Bound, Dims, Symbols};
use super::stage::{BoxError, Pass, StageResult};
use super::trace::Tracer;
use crate::element::DType;
use crate::error::{Error, Result};
use crate::group::{Axis, Peer};
use crate::local::message;
use hccl_plan::{Action, Channel, Direction, Flow, Message, Phase, Plan, Schedule, Work};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What stands outside the pipeline: what enters the first stage and what becomes of the last one's results. Each runs
/// on the rank that holds the stage.
pub(super) trait Outside {
    /// Puts the input of `unit` on the first lane.
    fn feed(&mut self, lanes: &mut Lanes, symbols: &Symbols, unit: usize) -> StageResult<()>;

    /// Takes the result of `unit` off the last lane.
    fn drain(&mut self, lanes: &mut Lanes, symbols: &Symbols, unit: usize) -> StageResult<()>;

    /// Numbers that the rank of the last stage knows, and every rank gets at the end of the step.
    fn results(&mut self) -> &mut [f64] {
        &mut []
    }
}

/// Every lane of the pipeline. Those that do not touch this rank's stages stay empty.
pub(super) struct Lanes {
    /// Forward lanes, `stages + 1` with both ends; then as many backward ones; then that of the ring, if there is one.
    all: Vec<Box<dyn AnyLane>>,
    stages: usize,
}

impl Lanes {
    pub(super) fn new(
        forward: Vec<Box<dyn AnyLane>>,
        backward: Vec<Box<dyn AnyLane>>,
        ring: Option<Box<dyn AnyLane>>,
    ) -> Self {
        let stages = forward.len() - 1;
        Lanes { all: forward.into_iter().chain(backward).chain(ring).collect(), stages }
    }

    /// The lane into stage `index`; that of index `stages` leads out of the last one.
    pub(super) fn forward(&mut self, index: usize) -> &mut dyn AnyLane {
        &mut *self.all[index]
    }

    /// The lane out of stage `index`, towards the first one.
    pub(super) fn backward(&mut self, index: usize) -> &mut dyn AnyLane {
        let first = self.stages + 1;
        &mut *self.all[first + index]
    }

    /// The lane from the last stage to the first.
    pub(super) fn ring(&mut self) -> StageResult<&mut dyn AnyLane> {
        let index = 2 * self.stages + 2;
        self.all.get_mut(index).map(|lane| &mut **lane).ok_or_else(|| "this pipeline is no ring".into())
    }

    /// The lane into the first stage and that of results.
    pub(super) fn last(&self) -> usize {
        self.stages
    }

    fn index(&self, channel: Channel) -> usize {
        match channel.direction {
            Direction::Forward if channel.edge + 1 == self.stages => 2 * self.stages + 2,
            Direction::Forward => channel.edge + 1,
            Direction::Backward => self.stages + 1 + channel.edge + 1,
        }
    }

    fn two(&mut self, a: usize, b: usize) -> Result<[&mut dyn AnyLane; 2], Failure> {
        match self.all.get_disjoint_mut([a, b]) {
            Ok([a, b]) => Ok([&mut **a, &mut **b]),
            Err(_) => Err(Failure::Own(Error::invalid(format!("there are no two lanes {a} and {b}")))),
        }
    }

    fn clear(&mut self) {
        self.all.iter_mut().for_each(|lane| lane.clear());
    }
}

/// A pipeline on this rank.
pub(super) struct Engine<A: Axis> {
    pub(super) links: Links<A>,
    pub(super) plan: Plan,
    /// Of the plan and the table of stages.
    pub(super) digest: u64,
    pub(super) steps: u64,
    /// One a stage; `None` where another rank holds it.
    pub(super) chunks: Vec<Option<Box<dyn Chunk>>>,
    pub(super) names: Vec<&'static str>,
    pub(super) lanes: Lanes,
    pub(super) symbols: Symbols,
    pub(super) tracer: Option<Tracer>,
}

impl<A: Axis> Engine<A> {
    /// Runs the plan once. No rank returns before the last one is done, so that all of them see a failure.
    pub(super) fn step(&mut self, op: &'static str, outside: &mut dyn Outside) -> Result<()> {
        self.links.usable()?;
        let done = self.act(outside).and_then(|()| self.share(outside.results()).map_err(Failure::Link));
        self.steps += 1;
        self.lanes.clear();
        self.chunks.iter_mut().flatten().for_each(|chunk| chunk.clear());
        self.links.settle(op, done)
    }

    fn share(&self, results: &mut [f64]) -> Result<()> {
        let comm = &self.links.comm;
        if results.is_empty() {
            return comm.barrier();
        }
        comm.broadcast(results, comm.root(self.plan.rank_of(self.plan.stages() - 1))?)
    }

    /// Stage `index`, when this rank holds it and it is an `S`.
    pub(super) fn stage_mut<S: 'static>(&mut self, index: usize) -> Option<&mut S> {
        self.chunks.get_mut(index)?.as_mut()?.stage().downcast_mut()
    }

    /// Every stage of type `S` on this rank, with its number.
    pub(super) fn stages_mut<S: 'static>(&mut self) -> impl Iterator<Item = (usize, &mut S)> {
        let chunks = self.chunks.iter_mut().enumerate();
        chunks.filter_map(|(index, chunk)| Some((index, chunk.as_mut()?.stage().downcast_mut()?)))
    }

    /// Writes the trace and leaves.
    pub(super) fn finish(mut self) -> Result<()> {
        self.links.usable()?;
        let Some(tracer) = self.tracer.take() else { return Ok(()) };
        let (rank, size) = (self.rank(), self.links.comm.size());
        tracer.write(&self.links.comm, &self.names).map_err(|error| error.at("pipeline trace", rank, size))
    }

    pub(super) fn rank(&self) -> usize {
        self.links.comm.rank().index()
    }

    fn act(&mut self, outside: &mut dyn Outside) -> Result<(), Failure> {
        let rank = self.rank();
        for position in 0..self.plan.actions(rank).len() {
            let action = self.plan.actions(rank)[position];
            let begin = self.now();
            let met = match action {
                Action::Compute(work) => self.compute(work, outside).map(|()| begin)?,
                Action::Send(message) => self.send(message)?,
                Action::Recv(message) => self.recv(message)?,
                Action::Exchange { send, recv } => self.exchange(send, recv)?,
            };
            if let Some(tracer) = &mut self.tracer {
                tracer.record(self.steps, action, begin, met);
            }
        }
        Ok(())
    }

    /// Nanoseconds on this rank's clock, 0 when nobody wants to know.
    fn now(&self) -> u64 {
        self.tracer.as_ref().map_or(0, Tracer::now)
    }

    fn is_ring(&self) -> bool {
        matches!(self.plan.schedule(), Schedule::ForwardOnly(Flow::Ring { .. }))
    }

    /// Where an error of this rank's own comes from.
    fn own(&self, work: Work, error: BoxError) -> Failure {
        let Work { phase, stage, microbatch } = work;
        let phase = match phase {
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::BackwardInput => "backward (input)",
            Phase::BackwardWeight => "backward (weights)",
        };
        let name = self.names.get(stage).copied().unwrap_or_default();
        let what = match self.is_ring() {
            true => {
                let slots = self.plan.microbatches();
                format!("slot {} in round {}", microbatch % slots, microbatch / slots)
            }
            false => format!("microbatch {microbatch}"),
        };
        let what = format!("{phase} of {what} on stage {stage} ({name})");
        Failure::Own(Error::rank_failed(self.rank(), what).boxed_source(error))
    }

    fn compute(&mut self, work: Work, outside: &mut dyn Outside) -> Result<(), Failure> {
        // What a panicking stage leaves behind is not used: the step ends, and with it the pipeline.
        let caught = catch_unwind(AssertUnwindSafe(|| match work.phase {
            Phase::Forward => self.forward(work, outside),
            Phase::Backward => self.backward(work, false),
            Phase::BackwardInput => self.backward(work, true),
            Phase::BackwardWeight => self.chunk(work.stage)?.backward_weight(work.microbatch),
        }));
        let done = caught.unwrap_or_else(|panic| Err(format!("panicked: {}", message(&*panic)).into()));
        done.map_err(|error| self.own(work, error))
    }

    fn chunk(&mut self, stage: usize) -> StageResult<&mut dyn Chunk> {
        match self.chunks.get_mut(stage) {
            Some(Some(chunk)) => Ok(&mut **chunk),
            _ => Err("the stage is not on this rank; this is an error of the library".into()),
        }
    }

    fn forward(&mut self, work: Work, outside: &mut dyn Outside) -> StageResult<()> {
        let Work { stage, microbatch: unit, .. } = work;
        if stage == 0 {
            outside.feed(&mut self.lanes, &self.symbols, unit)?;
        }
        let flags = self.lanes.forward(stage).flags(unit).unwrap_or_default();
        let slots = self.plan.microbatches();
        if flags.idle {
            self.lanes.forward(stage).sent(unit);
            self.lanes.forward(stage + 1).put_idle(unit);
            self.chunk(stage)?.release(unit % slots);
        } else {
            let pass = Pass { microbatch: unit % slots, round: unit / slots, starts: flags.starts };
            self.on_chunk(stage, (stage, stage + 1), |chunk, ends| chunk.forward(pass, unit, ends))?;
        }
        if stage == self.lanes.last() - 1 {
            outside.drain(&mut self.lanes, &self.symbols, unit)?;
        }
        Ok(())
    }

    fn backward(&mut self, work: Work, split: bool) -> StageResult<()> {
        let Work { stage, microbatch: unit, .. } = work;
        let first = self.lanes.last() + 1;
        self.on_chunk(stage, (first + stage + 1, first + stage), |chunk, ends| chunk.backward(unit, split, ends))?;
        if stage == 0 {
            self.lanes.backward(0).sent(unit);
        }
        Ok(())
    }

    /// Calls `f` with a stage and the lanes of these indices on both sides of it.
    fn on_chunk(
        &mut self,
        stage: usize,
        (from, to): (usize, usize),
        f: impl FnOnce(&mut dyn Chunk, &mut Ends<'_>) -> StageResult<()>,
    ) -> StageResult<()> {
        let (Some(Some(chunk)), Ok([from, to])) =
            (self.chunks.get_mut(stage), self.lanes.all.get_disjoint_mut([from, to]))
        else {
            return Err("the stage is not on this rank; this is an error of the library".into());
        };
        f(&mut **chunk, &mut Ends { from: &mut **from, to: &mut **to, symbols: &self.symbols })
    }

    /// The other end of a channel.
    fn peer(&self, message: Message, sends: bool) -> Result<Peer<A>, Failure> {
        let (from, to) = self.plan.ends(message.channel);
        self.links.comm.peer(if sends { to } else { from }).map_err(Failure::Own)
    }

    /// What is known of a message before its packet is looked at.
    fn expected(&self, message: Message, dtype: DType) -> Header {
        let (dims, bound, flags) = (Dims::default(), Bound::NOTHING, Default::default());
        Header { plan: self.digest, step: self.steps, message, dtype, dims, bytes: 0, bound, flags }
    }

    /// The header of the packet that leaves now, with a small payload inside.
    fn announce(&mut self, message: Message, words: &mut [u64; WORDS]) -> Result<Header, Failure> {
        let blank = self.expected(message, DType::U8);
        let index = self.lanes.index(message.channel);
        let lane = &mut *self.lanes.all[index];
        let Some(header) = lane.announce(blank) else {
            return Err(Failure::Own(Error::invalid(format!("{message} was never made"))));
        };
        header.encode(words);
        if !header.is_followed() {
            let unit = message.microbatch;
            let copy = lane.read(unit, &mut |bytes| inline_mut(words)[..bytes.len()].copy_from_slice(bytes));
            copy.map_err(|error| self.refused(message, error))?;
        }
        Ok(header)
    }

    /// An error in packing or unpacking a message.
    fn refused(&self, message: Message, error: BoxError) -> Failure {
        Failure::Own(Error::rank_failed(self.rank(), format!("{message} could not be moved")).boxed_source(error))
    }

    /// Compares what came with what should have come.
    fn verify(&mut self, message: Message, peer: usize, words: &[u64; WORDS]) -> Result<Header, Failure> {
        let index = self.lanes.index(message.channel);
        let expected = self.expected(message, self.lanes.all[index].dtype());
        let got = Header::decode(words);
        match got {
            Some(header) if header.is(&expected) => Ok(header),
            got => {
                let (rank, size) = (self.rank(), self.links.comm.size());
                Err(Failure::Own(mismatch(peer, got.as_ref(), &expected).at("pipeline", rank, size)))
            }
        }
    }

    /// Sends, and gives the time at which the receiver was there.
    fn send(&mut self, message: Message) -> Result<u64, Failure> {
        let peer = self.peer(message, true)?;
        let mut words = [0; WORDS];
        let header = self.announce(message, &mut words)?;
        self.links.comm.send(&words, peer).map_err(Failure::Link)?;
        let met = self.now();
        let index = self.lanes.index(message.channel);
        if header.is_followed() {
            let (lane, comm) = (&mut self.lanes.all[index], &self.links.comm);
            let mut sent = Ok(());
            let read = lane.read(message.microbatch, &mut |bytes| sent = comm.send(bytes, peer));
            read.map_err(|error| self.refused(message, error))?;
            sent.map_err(Failure::Link)?;
        }
        self.lanes.all[index].sent(message.microbatch);
        Ok(met)
    }

    fn recv(&mut self, message: Message) -> Result<u64, Failure> {
        let peer = self.peer(message, false)?;
        let mut words = [0; WORDS];
        self.links.comm.recv(&mut words, peer).map_err(Failure::Link)?;
        let met = self.now();
        let header = self.verify(message, peer.index(), &words)?;
        let index = self.lanes.index(message.channel);
        let (lane, comm) = (&mut self.lanes.all[index], &self.links.comm);
        let mut received = Ok(());
        let opened = lane.open(&header, &self.symbols).map(|room| match header.is_followed() {
            true => received = comm.recv(room, peer),
            false => room.copy_from_slice(&inline(&words)[..room.len()]),
        });
        let closed = opened.and_then(|()| if received.is_ok() { lane.close(&header) } else { Ok(()) });
        closed.map_err(|error| self.refused(message, error))?;
        received.map_err(Failure::Link).map(|()| met)
    }

    fn exchange(&mut self, send: Message, recv: Message) -> Result<u64, Failure> {
        let peer = self.peer(send, true)?;
        let (mut ours, mut theirs) = ([0; WORDS], [0; WORDS]);
        let out = self.announce(send, &mut ours)?;
        let headers = self.links.comm.batch_send_recv(|batch| {
            batch.send(&ours, peer)?;
            batch.recv(&mut theirs, peer)
        });
        headers.map_err(Failure::Link)?;
        let met = self.now();
        let header = self.verify(recv, peer.index(), &theirs)?;
        let (send_index, recv_index) = (self.lanes.index(send.channel), self.lanes.index(recv.channel));
        let [out_lane, in_lane] = self.lanes.two(send_index, recv_index)?;
        let comm = &self.links.comm;
        let mut moved = Ok(());
        let swapped = in_lane.open(&header, &self.symbols).and_then(|room| {
            if !header.is_followed() {
                room.copy_from_slice(&inline(&theirs)[..room.len()]);
            }
            match (out.is_followed(), header.is_followed()) {
                (false, false) => Ok(()),
                (false, true) => {
                    moved = comm.recv(room, peer);
                    Ok(())
                }
                (true, false) => out_lane.read(send.microbatch, &mut |bytes| moved = comm.send(bytes, peer)),
                (true, true) => out_lane.read(send.microbatch, &mut |bytes| {
                    let room = &mut *room;
                    moved = comm.batch_send_recv(|batch| {
                        batch.send(bytes, peer)?;
                        batch.recv(room, peer)
                    });
                }),
            }
        });
        out_lane.sent(send.microbatch);
        let closed = swapped.and_then(|()| if moved.is_ok() { in_lane.close(&header) } else { Ok(()) });
        closed.map_err(|error| self.refused(recv, error))?;
        moved.map_err(Failure::Link).map(|()| met)
    }
}

/// What every kind of pipeline has.
macro_rules! common {
    ($name:ident<$($p:ident),*>) => {
        impl<A: Axis, $($p: Payload),*> $name<A, $($p),*> {
            pub(super) fn new(engine: $crate::pipeline::run::Engine<A>) -> Self {
                $name { engine, ends: PhantomData }
            }

            /// The plan that it follows.
            pub fn plan(&self) -> &Plan {
                &self.engine.plan
            }

            /// Stage `index`, when this rank holds it and it is an `S`.
            pub fn stage_mut<S: 'static>(&mut self, index: usize) -> Option<&mut S> {
                self.engine.stage_mut(index)
            }

            /// Every stage of type `S` on this rank, with its number.
            pub fn stages_mut<S: 'static>(&mut self) -> impl Iterator<Item = (usize, &mut S)> {
                self.engine.stages_mut()
            }

            /// Ends the pipeline and writes the trace, if one was asked for. Every rank calls it.
            ///
            /// # Errors
            /// `Resource` when the trace cannot be written, on rank 0; what fails the group.
            pub fn finish(self) -> Result<()> {
                self.engine.finish()
            }
        }
    };
}

pub(super) use common;
