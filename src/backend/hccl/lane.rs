//! One rank's queue of calls on an NPU: meets the others, hands the call to the worker, watches over it.
#![expect(unsafe_code, reason = "copies the caller's memory, for which the caller vouches")]

use super::chip::Chip;
use super::error::convert;
use super::init::{self, Source};
use super::launch::Task;
use super::staging::Staging;
use super::watch::{Needs, Watch};
use super::worker::{Ended, RawComm, Trouble, Worker};
use crate::backend::cpu::engine::Engine;
use crate::backend::cpu::fingerprint::Fingerprint;
use crate::backend::cpu::group::Group;
use crate::backend::cpu::subgroup;
use crate::backend::queue::{Lane, Side};
use crate::backend::{Backend, Call, Failure, Home, Kind, Memory, Message, Support};
use crate::device::Device;
use crate::element::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::reduce::OpKind;
use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Calls that are remembered as compared; all ranks forget them at the same call.
const REMEMBERED: usize = 4096;
/// How long closing waits for the device, at most.
const CLOSING: Duration = Duration::from_secs(30);

/// See the module page.
pub(crate) struct Npu {
    pub(super) group: Arc<Group>,
    /// The control channel's engine.
    pub(super) control: Engine,
    pub(super) worker: Worker,
    pub(super) device: u32,
    /// How long one call may take.
    pub(super) deadline: Duration,
    /// Compare every call, not only the first of its like.
    pub(super) every: bool,
    /// Number of the current collective.
    pub(super) place: u64,
    /// Collectives that the ranks have compared.
    pub(super) known: HashSet<(u64, u64)>,
    /// The host's side of staged memory, kept from call to call.
    pub(super) buffer: Vec<u8>,
}

impl Lane for Npu {
    type Side = Facts;

    fn execute(&mut self, call: &Call, eager: bool) -> Result<(), Failure> {
        let message = matches!(call.kind, Kind::Send | Kind::Recv | Kind::BatchSendRecv);
        self.place += u64::from(!message);
        let met = self.must_meet(call);
        if met {
            self.control.rehearse(&without_memory(call), self.place, eager)?;
        } else {
            self.go_on(call.kind)?;
        }
        if !moves_nothing(call) {
            // A rank that met all others here, or one of a message, is asked by nobody.
            let needs = if message { Needs::Ends(call) } else { Needs::Place(self.place) };
            self.launch(call, needs, !met && !message)?;
        }
        if !message {
            self.group.has_finished(self.place);
        }
        Ok(())
    }

    fn give_up(&mut self, error: Error, call: &Call) -> Failure {
        // The host's side is a copy of the lane's own; a device may still be at work for the worker.
        let error = self.at(self.group.fail(error), call.kind);
        Failure { error, reachable: writes_device(call) }
    }

    fn end(&mut self) -> Result<()> {
        self.worker.end(self.deadline.min(CLOSING))
    }
}

impl Npu {
    /// Whether the ranks compare this call. All ranks decide alike, unless their calls differ.
    fn must_meet(&mut self, call: &Call) -> bool {
        let always = matches!(
            call.kind,
            Kind::Barrier
                | Kind::AllGatherV
                | Kind::ReduceScatterV
                | Kind::AllToAllV
                | Kind::Send
                | Kind::Recv
                | Kind::BatchSendRecv
        );
        if always || self.every || call.count == 0 {
            return true;
        }
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        let Fingerprint { call, count } = Fingerprint::of(call);
        self.known.insert((call, count))
    }

    /// What else ends a call before it starts; a meeting looks at the same.
    fn go_on(&self, kind: Kind) -> Result<()> {
        let error = if crate::sys::forked() { Some(Error::new(ErrorKind::Forked)) } else { self.group.cause() };
        error.map_or(Ok(()), |error| Err(self.at(error, kind)))
    }

    fn at(&self, error: Error, kind: Kind) -> Error {
        error.at(kind.name(), self.group.rank, self.group.size)
    }

    fn launch(&mut self, call: &Call, needs: Needs<'_>, may_be_asked: bool) -> Result<(), Failure> {
        let mut staged = copy(call);
        let staging = Staging::plan(&mut staged);
        let mut buffer = std::mem::take(&mut self.buffer);
        // SAFETY: the memory is valid by the contract of `Lane::execute`.
        unsafe { staging.fill(&mut buffer) };
        let task = Task { call: staged, buffer, up: staging.up, total: staging.total, down: staging.down() };
        let (control, place) = (&mut self.control, self.place);
        let rehearsal = without_memory(call);
        let mut watch = Watch::new(&self.group, self.deadline).needing(needs).and(move || {
            // Another rank waits for this call, or an earlier one, where this one saw no need to: they differ.
            let asked = may_be_asked && control.is_asked(place);
            asked.then(|| control.rehearse(&rehearsal, place, false).err())?.map(|failure| failure.error)
        });
        let ended = self.worker.ask(&mut watch, move |station| station.run(task));
        let waited = watch.waited();
        drop(watch);
        let (error, quiet) = match ended {
            Ended::Done((done, buffer)) => {
                self.buffer = buffer;
                match done {
                    Ok(()) => {
                        // SAFETY: as above; the worker is through with the buffer.
                        unsafe { staging.drain(&self.buffer) };
                        return Ok(());
                    }
                    Err(Trouble::Said(error)) => (convert(error, self.device, waited), true),
                    Err(Trouble::Stuck) => (super::error::silent(self.device, call.kind.name(), waited), false),
                }
            }
            Ended::Given { error, quiet } => (error, quiet),
        };
        let error = self.at(self.group.fail(error), call.kind);
        Err(Failure { error, reachable: !quiet && writes_device(call) })
    }
}

/// True when the device itself writes memory of the caller.
fn writes_device(call: &Call) -> bool {
    let written = |memory: &Memory| memory.bytes > 0 && matches!(memory.home, Home::Npu { .. });
    written(&call.recv) || call.messages.iter().any(|message| !message.sends && written(&message.memory))
}

/// Calls that are over once the ranks have met.
fn moves_nothing(call: &Call) -> bool {
    match call.kind {
        Kind::AllToAllV | Kind::Barrier => false,
        Kind::BatchSendRecv => call.messages.iter().all(|message| message.count == 0),
        _ => call.count == 0,
    }
}

fn copy(call: &Call) -> Call {
    let Call { kind, dtype, op, root, count, send, recv, .. } = *call;
    let (send_parts, recv_parts) = (call.send_parts.clone(), call.recv_parts.clone());
    Call { kind, dtype, op, root, count, send, recv, send_parts, recv_parts, messages: call.messages.clone() }
}

/// What the others must know of a call.
fn without_memory(call: &Call) -> Call {
    let mut bare = copy(call);
    (bare.send, bare.recv) = (Memory::NONE, Memory::NONE);
    bare.messages = bare.messages.iter().map(|message| Message { memory: Memory::NONE, ..*message }).collect();
    bare
}

/// What any thread may ask of a backend on an NPU.
pub(crate) struct Facts {
    pub(super) device: u32,
    pub(super) chip: Chip,
    /// The communicator, as long as the worker has it; none in a group of one.
    pub(super) comm: Option<Weak<RawComm>>,
}

impl Side for Facts {
    fn name(&self) -> &'static str {
        "hccl"
    }

    fn device(&self) -> Device {
        Device::Npu(self.device)
    }

    fn support(&self, dtype: DType, op: Option<OpKind>) -> Support {
        self.chip.support(dtype, op)
    }

    fn check(&self, call: &Call) -> Result<()> {
        match self.chip.lacks(call.kind) {
            Some(instead) => {
                let what = format!("{} with HCCL on {}", call.kind.name(), self.chip.name());
                Err(Error::new(ErrorKind::Unsupported { what }).hint(instead))
            }
            None => Ok(()),
        }
    }

    fn group(&self, parent: &Arc<Group>, members: &[usize], tag: u64) -> Result<Arc<dyn Backend>> {
        let group = subgroup::make(parent, members, tag)?;
        let ids = members.iter().map(|member| *member as u32).collect();
        let whole = self.comm.as_ref().and_then(Weak::upgrade);
        init::join(group, self.device, Source::Part { of: whole, ids })
    }
}
