//! Lanes that panic: nobody waits for them in vain.
#![expect(unsafe_code, reason = "calls the seam, with calls that name no memory")]

use super::*;
use crate::backend::cpu::engine::Engine;
use crate::backend::cpu::{Facts, thread_groups};
use crate::error::Loss;
use crate::options::Options;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Far above what any of these tests takes, far below the deadline of a call.
const SOON: Duration = Duration::from_secs(20);

/// An engine that panics at its n-th call, and from then on at whatever it is asked.
struct Bomb {
    engine: Engine,
    group: Arc<Group>,
    calls: usize,
    panics_at: usize,
    /// Panics on its way out, too.
    twice: bool,
    /// A call starts when something comes from here, or when nothing can come any more.
    gate: Receiver<()>,
    _alive: Arc<()>,
}

impl Lane for Bomb {
    type Side = Facts;

    fn execute(&mut self, call: &Call, eager: bool) -> Result<(), Failure> {
        let _ = self.gate.recv();
        self.calls += 1;
        if self.calls == self.panics_at {
            // Mid-visit, as an engine would: the others must not wait for the end of the visit.
            self.group.visit(|| panic!("a bug of call {}", self.calls))?;
        }
        assert!(self.calls < self.panics_at, "a lane that panicked was asked again");
        self.engine.execute(call, eager)
    }

    fn give_up(&mut self, error: Error, call: &Call) -> Failure {
        assert!(!self.twice, "no way out");
        Lane::give_up(&mut self.engine, error, call)
    }

    fn end(&mut self) -> Result<()> {
        assert!(!self.twice, "no way to end");
        Ok(())
    }
}

struct Pair {
    bomb: Ordered<Bomb>,
    peer: Ordered<Engine>,
    gate: Sender<()>,
    alive: Arc<()>,
}

/// Rank 0 panics in its call number `panics_at`; rank 1 is an ordinary one.
fn pair(panics_at: usize, twice: bool) -> Pair {
    let options = Options { exec_timeout: Duration::from_secs(300), ..Options::default() };
    let mut groups = thread_groups(2, &options).unwrap().into_iter().map(Arc::new);
    let (group, other) = (groups.next().unwrap(), groups.next().unwrap());
    let (gate, opens) = channel();
    let alive = Arc::new(());
    let engine = Engine::new(group.clone());
    let (of, token) = (group.clone(), alive.clone());
    let lane = Bomb { engine, group: of, calls: 0, panics_at, twice, gate: opens, _alive: token };
    let peer = Ordered::new(other.clone(), Engine::new(other), Facts);
    Pair { bomb: Ordered::new(group, lane, Facts), peer, gate, alive }
}

fn barrier() -> Call {
    Call::new(Kind::Barrier, DType::U8)
}

fn submit<L: Lane>(backend: &Ordered<L>) -> Result<Ticket> {
    // SAFETY: a barrier names no memory.
    unsafe { backend.submit(barrier()) }
}

fn run<L: Lane>(backend: &Ordered<L>) -> Result<(), Failure> {
    // SAFETY: a barrier names no memory.
    unsafe { backend.run(barrier()) }
}

fn ended<L: Lane>(backend: &Ordered<L>, ticket: Ticket) -> Result<(), Error> {
    let result = backend.wait(ticket, Some(SOON)).expect("a waiter was left waiting");
    result.map_err(|failure| failure.error)
}

fn assert_tells_of_the_panic(error: &Error) {
    assert!(matches!(error.kind(), ErrorKind::Rank { rank: 0, .. }), "{error}");
    let text = error.to_string();
    assert!(text.starts_with("barrier on rank 0 of 2: rank 0 failed: hccl itself panicked: a bug of call"), "{text}");
    assert!(text.contains("(hint: a bug of hccl, please report it; make a new communicator"), "{text}");
    assert!(!error.is_recoverable() && !error.is_knock_on());
}

#[test]
fn a_panic_of_the_progress_thread_ends_all_who_wait() {
    let Pair { bomb, peer, gate, alive } = pair(2, false);
    let tickets: Vec<Ticket> = (0..4).map(|_| submit(&bomb).unwrap()).collect();
    let theirs: Vec<Ticket> = (0..2).map(|_| submit(&peer).unwrap()).collect();
    // All four are queued before the first starts, and one thread waits already.
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| ended(&bomb, tickets[3]));
        drop(gate);
        ended(&bomb, tickets[0]).unwrap();
        for ticket in &tickets[1..] {
            assert_tells_of_the_panic(&ended(&bomb, *ticket).unwrap_err());
        }
        assert_tells_of_the_panic(&waits.join().unwrap().unwrap_err());
    });
    assert_tells_of_the_panic(&submit(&bomb).unwrap_err());
    assert_tells_of_the_panic(&run(&bomb).unwrap_err().error);
    assert_tells_of_the_panic(&bomb.failure().unwrap());
    ended(&peer, theirs[0]).unwrap();
    let lost = ended(&peer, theirs[1]).unwrap_err();
    assert!(matches!(lost.kind(), ErrorKind::PeerLost { peer: 0, how: Loss::Panicked }), "{lost}");
    assert_tells_of_the_panic(&bomb.close().unwrap_err());
    drop((bomb, peer));
    assert_gone(&alive);
}

/// The progress thread has ended once it lets go of the lane.
fn assert_gone(alive: &Arc<()>) {
    let start = Instant::now();
    while Arc::strong_count(alive) > 1 {
        assert!(start.elapsed() < SOON, "the progress thread stays");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_panic_on_the_callers_own_thread_is_an_error_too() {
    let Pair { bomb, peer, gate, .. } = pair(1, false);
    drop(gate);
    assert_tells_of_the_panic(&run(&bomb).unwrap_err().error);
    assert_tells_of_the_panic(&run(&bomb).unwrap_err().error);
    assert!(run(&peer).unwrap_err().error.is_peer_lost());
}

#[test]
fn a_panic_on_the_way_out_leaves_nobody_waiting() {
    let Pair { bomb, peer, gate, alive } = pair(1, true);
    drop(gate);
    let failure = run(&bomb).unwrap_err();
    assert_tells_of_the_panic(&failure.error);
    assert!(failure.reachable, "memory that nobody vouches for");
    assert!(run(&peer).unwrap_err().error.is_peer_lost());
    drop(bomb);
    assert_gone(&alive);
}
