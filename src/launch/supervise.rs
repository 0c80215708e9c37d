//! Watches started ranks until all have ended: the first failure and the signals of the launcher end the rest.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::output::{Output, Tail};
use super::sys::{Group, Signals};
use super::verdict::{Ended, Exit, Phase};
use crate::{Error, Result};

/// How long after the first failure other exits are awaited, so that the first cause is among them.
const SETTLE: Duration = Duration::from_millis(150);

/// The same while every failed rank says that it only lost a peer: a big process takes its time to die.
const SETTLE_KNOCK_ON: Duration = Duration::from_millis(500);

/// How long a stopped run waits for output that nobody takes.
const OUTPUT_AFTER_STOP: Duration = Duration::from_secs(1);

pub(crate) enum Event {
    Ended(usize, Exit),
    Signal(i32),
    Output(Vec<Tail>),
}

/// What a run came to.
pub(crate) struct Watched {
    pub(crate) ended: Vec<Ended>,
    /// The first signal that the launcher got, if it got one before a rank failed.
    pub(crate) signal: Option<i32>,
    /// Last lines by rank; empty when the output could not be finished.
    pub(crate) tails: Vec<Tail>,
}

/// Reports the end of `child` from a thread of its own.
pub(crate) fn await_child(rank: usize, mut child: Child, events: Sender<Event>) -> Result<()> {
    let wait = move || {
        let exit = child.wait().map_or(Exit::Code(1), Exit::of);
        // Nobody listens once the run has been given up.
        let _ = events.send(Event::Ended(rank, exit));
    };
    spawn("hccl-wait", wait).map(drop)
}

/// Copies the output of the ranks from a thread of its own.
pub(crate) fn copy_output(output: Output, events: Sender<Event>) -> Result<()> {
    let copy = move || {
        // Whatever happens here is told, as the end of the run waits for it. The output is not used again.
        let tails = catch_unwind(AssertUnwindSafe(|| output.run())).unwrap_or_default();
        let _ = events.send(Event::Output(tails));
    };
    spawn("hccl-output", copy).map(drop)
}

/// Reports signals, until [`Signals::wake`].
pub(crate) fn await_signals(signals: &Signals, events: Sender<Event>) -> Result<JoinHandle<()>> {
    use rustix::event::{PollFd, PollFlags, poll};
    let pipe = signals.readable();
    let watch = move || {
        loop {
            let mut bytes = [0u8; 16];
            // An interrupted poll is followed by an empty read.
            let _ = poll(&mut [PollFd::from_borrowed_fd(pipe, PollFlags::IN)], None);
            let count = rustix::io::read(pipe, &mut bytes).unwrap_or(0);
            for &byte in &bytes[..count] {
                if byte == 0 || events.send(Event::Signal(byte.into())).is_err() {
                    return;
                }
            }
        }
    };
    spawn("hccl-signals", watch)
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let thread = Builder::new().name(name.to_owned()).stack_size(256 * 1024).spawn(body);
    thread.map_err(|error| Error::resource("a thread that watches the ranks", error))
}

/// One run from the start of its last rank on.
pub(crate) struct Supervisor {
    pub(crate) group: Group,
    pub(crate) events: Receiver<Event>,
    pub(crate) grace: Duration,
    /// Dropped when the ranks have ended, which ends the copying of output.
    pub(crate) finish: OwnedFd,
}

struct State {
    ended: Vec<Ended>,
    phase: Phase,
    signal: Option<i32>,
    /// When the first rank failed.
    failed_at: Option<Instant>,
    /// When SIGKILL follows.
    kill_at: Option<Instant>,
    tails: Option<Vec<Tail>>,
}

impl Supervisor {
    /// Waits until `ranks` ranks have ended and their output has been copied. No process of the group is left.
    pub(crate) fn watch(self, ranks: usize) -> Watched {
        let mut state = State {
            ended: Vec::with_capacity(ranks),
            phase: Phase::Running,
            signal: None,
            failed_at: None,
            kill_at: None,
            tails: None,
        };
        while state.ended.len() < ranks {
            match self.next(state.deadline()) {
                Some(event) => self.act(&mut state, event),
                None => self.time_out(&mut state),
            }
        }
        let Supervisor { group, events, finish, .. } = self;
        drop(group);
        drop(finish);
        state.await_output(&events);
        Watched { ended: state.ended, signal: state.signal, tails: state.tails.unwrap_or_default() }
    }

    fn next(&self, deadline: Option<Instant>) -> Option<Event> {
        match deadline {
            None => self.events.recv().ok(),
            Some(deadline) => self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok(),
        }
    }

    fn act(&self, state: &mut State, event: Event) {
        match event {
            Event::Ended(rank, exit) => {
                state.ended.push(Ended { rank, exit, phase: state.phase });
                if !exit.is_success() && state.phase == Phase::Running {
                    state.failed_at.get_or_insert_with(Instant::now);
                }
            }
            Event::Signal(signal) => match state.phase {
                Phase::Running => {
                    state.signal = state.failed_at.is_none().then_some(signal);
                    self.ask(state, signal);
                }
                Phase::Asked | Phase::Killed => self.kill(state),
            },
            Event::Output(tails) => state.tails = Some(tails),
        }
    }

    fn time_out(&self, state: &mut State) {
        match state.phase {
            Phase::Running => self.ask(state, libc::SIGTERM),
            Phase::Asked | Phase::Killed => self.kill(state),
        }
    }

    fn ask(&self, state: &mut State, signal: i32) {
        state.phase = Phase::Asked;
        state.kill_at = Some(Instant::now() + self.grace);
        self.group.signal(signal);
        // A stopped process takes no other signal than SIGKILL before it goes on.
        self.group.signal(libc::SIGCONT);
    }

    fn kill(&self, state: &mut State) {
        state.phase = Phase::Killed;
        state.kill_at = None;
        self.group.signal(libc::SIGKILL);
    }
}

impl State {
    /// When something has to be done although nothing happened.
    fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Running => {
                let settle = if self.ended.iter().any(Ended::is_own_failure) { SETTLE } else { SETTLE_KNOCK_ON };
                self.failed_at.map(|failed| failed + settle)
            }
            Phase::Asked | Phase::Killed => self.kill_at,
        }
    }

    /// Waits for the rest of the output: as long as it is taken when all went well, until a signal or briefly otherwise.
    fn await_output(&mut self, events: &Receiver<Event>) {
        let stopped = self.phase != Phase::Running;
        let mut deadline = stopped.then(|| Instant::now() + OUTPUT_AFTER_STOP);
        while self.tails.is_none() {
            let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
            match events.recv_timeout(left) {
                Ok(Event::Output(tails)) => self.tails = Some(tails),
                Ok(Event::Signal(signal)) => {
                    self.signal = self.failed_at.is_none().then_some(signal);
                    deadline = Some(Instant::now());
                }
                Ok(Event::Ended(..)) => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}
