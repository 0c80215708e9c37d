//! What ran, and when: a trace for Perfetto and `chrome://tracing`, all ranks on one time line.
//!
//! Each rank notes when it came to an action, when its peer was there, and when it was done, on a clock of its own. At the
//! end rank 0 asks every rank for its clock a few times; the answer that took least time tells how the clocks differ.

use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::group::Axis;
use hccl_plan::{Action, Channel, Direction, Message, Phase, Work};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Most events that a rank keeps; later ones are counted, not kept.
const MOST_EVENTS: usize = 1 << 20;
/// How often rank 0 asks for a clock.
const ASKED: usize = 16;
/// Words of an event between ranks.
const WORDS: usize = 8;

/// This rank's part of a trace.
pub(super) struct Tracer {
    path: PathBuf,
    epoch: Instant,
    events: Vec<Event>,
    dropped: u64,
}

#[derive(Clone, Copy)]
struct Event {
    step: u64,
    action: Action,
    begin: u64,
    /// When the peer was there.
    met: u64,
    end: u64,
}

impl Tracer {
    /// A clock that shows `ahead` now; ranks of different hosts have different ones.
    pub(super) fn new(path: PathBuf, ahead: Duration) -> Self {
        let now = Instant::now();
        Tracer { path, epoch: now.checked_sub(ahead).unwrap_or(now), events: Vec::new(), dropped: 0 }
    }

    /// Nanoseconds on this rank's clock.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(super) fn record(&mut self, step: u64, action: Action, begin: u64, met: u64) {
        if self.events.len() >= MOST_EVENTS {
            self.dropped += 1;
            return;
        }
        let end = self.now();
        self.events.push(Event { step, action, begin, met, end });
    }

    /// Gathers the events of all ranks and writes them on rank 0. Every rank calls it.
    pub(super) fn write<A: Axis>(&self, comm: &Communicator<A>, names: &[&str]) -> Result<()> {
        let behind = self.align(comm)?;
        let words: Vec<u64> = self.events.iter().flat_map(|event| encode(event, behind)).collect();
        let all = comm.all_gather_bytes(super::bytes::of(&words))?;
        let dropped = comm.all_gather_bytes(&self.dropped.to_ne_bytes())?;
        let written = match comm.rank().index() {
            0 => json(&all, &dropped, names).and_then(|text| save(&self.path, &text)),
            _ => Ok(()),
        };
        // The other ranks return when the file is there.
        comm.barrier()?;
        written
    }

    /// How far this clock is behind that of rank 0, in nanoseconds.
    fn align<A: Axis>(&self, comm: &Communicator<A>) -> Result<i64> {
        if comm.rank().index() != 0 {
            let (zero, mut behind) = (comm.peer(0)?, [0i64]);
            for _ in 0..ASKED {
                comm.recv(&mut [0u64], zero)?;
                comm.send(&[self.now()], zero)?;
            }
            comm.recv(&mut behind, zero)?;
            return Ok(behind[0]);
        }
        for peer in comm.peers() {
            let mut best = (u64::MAX, 0i64);
            for _ in 0..ASKED {
                let asked = self.now();
                comm.send(&[asked], peer)?;
                let mut theirs = [0u64];
                comm.recv(&mut theirs, peer)?;
                let took = self.now() - asked;
                // Their clock was read about in the middle.
                best = best.min((took, (asked + took / 2).cast_signed() - theirs[0].cast_signed()));
            }
            comm.send(&[best.1], peer)?;
        }
        Ok(0)
    }
}

fn encode(event: &Event, behind: i64) -> [u64; WORDS] {
    let on_time_line = |time: u64| time.saturating_add_signed(behind);
    let [send, recv, work] = match event.action {
        Action::Compute(work) => [0, 0, pack_work(work)],
        Action::Send(message) => [pack(message), 0, 0],
        Action::Recv(message) => [0, pack(message), 0],
        Action::Exchange { send, recv } => [pack(send), pack(recv), 0],
    };
    [event.step, on_time_line(event.begin), on_time_line(event.met), on_time_line(event.end), send, recv, work, 0]
}

/// A message in a word that is never 0. A plan has less than 2^19 edges and units (`PlanError::MOST_WORK`).
fn pack(message: Message) -> u64 {
    let Message { channel, microbatch } = message;
    1 | u64::from(channel.direction == Direction::Backward) << 1
        | (channel.edge as u64) << 2
        | (microbatch as u64) << 32
}

fn unpack(word: u64) -> Option<Message> {
    let direction = if word & 2 == 0 { Direction::Forward } else { Direction::Backward };
    let channel = Channel { edge: (word as u32 >> 2) as usize, direction };
    (word != 0).then_some(Message { channel, microbatch: (word >> 32) as usize })
}

const PHASES: [Phase; 4] = [Phase::Forward, Phase::Backward, Phase::BackwardInput, Phase::BackwardWeight];

fn pack_work(work: Work) -> u64 {
    let phase = PHASES.iter().position(|&phase| phase == work.phase).unwrap_or(0) as u64;
    1 | phase << 1 | (work.stage as u64) << 3 | (work.microbatch as u64) << 32
}

fn unpack_work(word: u64) -> Option<Work> {
    let phase = PHASES[(word >> 1 & 3) as usize];
    (word != 0).then_some(Work { phase, stage: (word as u32 >> 3) as usize, microbatch: (word >> 32) as usize })
}

/// The trace in the format that both viewers read: one thread a rank, times in microseconds.
fn json(ranks: &[Vec<u8>], dropped: &[Vec<u8>], names: &[&str]) -> Result<String> {
    let mut text = String::from("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
    let start = ranks.iter().flat_map(|events| decode(events)).map(|[_, begin, ..]| begin).min().unwrap_or(0);
    for (rank, events) in ranks.iter().enumerate() {
        let lost = dropped.get(rank).and_then(|bytes| bytes.as_slice().try_into().ok()).map_or(0, u64::from_ne_bytes);
        let note = if lost == 0 { String::new() } else { format!(" ({lost} events too many)") };
        let comma = if rank == 0 { "" } else { ",\n" };
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            r#"{comma}{{"name":"thread_name","ph":"M","pid":0,"tid":{rank},"args":{{"name":"rank {rank}{note}"}}}}"#
        );
        for words in decode(events) {
            event(&mut text, rank, words, start, names);
        }
    }
    text.push_str("\n]}\n");
    Ok(text)
}

fn decode(bytes: &[u8]) -> impl Iterator<Item = [u64; WORDS]> + '_ {
    bytes.chunks_exact(WORDS * 8).map(|event| {
        let mut words = [0; WORDS];
        super::bytes::of_mut(&mut words).copy_from_slice(event);
        words
    })
}

fn event(text: &mut String, rank: usize, words: [u64; WORDS], start: u64, names: &[&str]) {
    let [step, begin, met, end, send, recv, work, _] = words;
    let mut span = |name: &str, category: &str, from: u64, to: u64| {
        let (at, lasts) = (from.saturating_sub(start) as f64 / 1e3, to.saturating_sub(from) as f64 / 1e3);
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            ",\n{{\"name\":\"{}\",\"cat\":\"{category}\",\"ph\":\"X\",\"pid\":0,\"tid\":{rank},\"ts\":{at:.3},\
             \"dur\":{lasts:.3},\"args\":{{\"step\":{step}}}}}",
            escape(name)
        );
    };
    if let Some(work) = unpack_work(work) {
        let name = names.get(work.stage).copied().unwrap_or_default();
        return span(&format!("{} {name}: {work}", letter(work)), "compute", begin, end);
    }
    let what = match (unpack(send), unpack(recv)) {
        (Some(send), Some(recv)) => format!("send {send} and receive {recv}"),
        (Some(send), None) => format!("send {send}"),
        (None, Some(recv)) => format!("receive {recv}"),
        (None, None) => return,
    };
    span(&format!("waits to {what}"), "wait", begin, met);
    span(&what, "transfer", met, end);
}

fn letter(work: Work) -> String {
    let phase = match work.phase {
        Phase::Forward => 'F',
        Phase::Backward | Phase::BackwardInput => 'B',
        Phase::BackwardWeight => 'W',
    };
    format!("{phase}{}", work.microbatch)
}

fn escape(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut escaped, c| {
        match c {
            '"' => escaped.push_str("\\\""),
            '\\' => escaped.push_str("\\\\"),
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
        escaped
    })
}

/// Writes beside the file and renames, so that nobody ever sees half a trace.
fn save(path: &Path, text: &str) -> Result<()> {
    let beside = path.with_extension(format!("{}.partial", std::process::id()));
    let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
    written.map_err(|error| {
        let _ = std::fs::remove_file(&beside);
        Error::resource(format!("to write the trace {}", path.display()), error)
            .hint("HCCL_TRACE or the builder's `trace` names a file in a folder that exists and is writable")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_the_wire() {
        for direction in [Direction::Forward, Direction::Backward] {
            let message = Message { channel: Channel { edge: 300, direction }, microbatch: 70_000 };
            assert_eq!(unpack(pack(message)), Some(message));
        }
        for phase in PHASES {
            let work = Work { phase, stage: 511, microbatch: 99_999 };
            assert_eq!(unpack_work(pack_work(work)), Some(work));
        }
        assert_eq!((unpack(0), unpack_work(0)), (None, None));
    }

    #[test]
    fn names_are_escaped() {
        assert_eq!(escape("a\"b\\c\n"), "a\\\"b\\\\c ");
    }
}
