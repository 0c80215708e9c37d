//! Every interleaving of the engine's three delicate protocols, in small copies of them: run by loom.
//!
//! Each model names its SYNC POINT, at which the engine has the same loads, stores and fences in the same order. A model
//! can fail: without one of its fences loom finds the interleaving, which the last test of each pair shows.

use loom::sync::Arc;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
use loom::thread;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// SYNC POINT sleepers (`Group::ring`, `Group::sleep`): whoever goes to sleep without seeing what is published is rung.
fn sleepers(fenced: bool) {
    let fence = move || {
        if fenced {
            fence(SeqCst)
        }
    };
    loom::model(move || {
        let shared = Arc::new((AtomicU64::new(0), AtomicU32::new(0), AtomicU32::new(0)));
        let sleeper = shared.clone();
        let sleeper = thread::spawn(move || {
            let (published, sleepers, bell) = &*sleeper;
            let before = bell.load(Acquire);
            sleepers.fetch_add(1, Relaxed);
            fence();
            // The kernel lets nobody sleep whose bell was rung since.
            published.load(Acquire) == 0 && bell.load(SeqCst) == before
        });
        let (published, sleepers, bell) = &*shared;
        published.store(1, Release);
        fence();
        let rings = sleepers.load(Relaxed) != 0;
        if rings {
            bell.fetch_add(1, Release);
        }
        let sleeps = sleeper.join().unwrap();
        assert!(rings || !sleeps, "sleeps and is not rung");
    });
}

/// SYNC POINT visits (`Group::visit`, `Group::quiesce`): once a rank that has learnt of a failure, here from another rank,
/// has seen no visitor, its memory is its own, and what it writes there stays.
fn visits(fenced: bool) {
    let fence = move || {
        if fenced {
            fence(SeqCst)
        }
    };
    loom::model(move || {
        let shared = Arc::new((AtomicU32::new(0), AtomicU32::new(0), AtomicU64::new(0)));
        let visitor = shared.clone();
        let visitor = thread::spawn(move || {
            let (visiting, failed, memory) = &*visitor;
            visiting.store(1, Relaxed);
            fence();
            if failed.load(Relaxed) == 0 {
                memory.store(1, Relaxed); // the work of a visit
            }
            visiting.store(0, Release);
        });
        let failing = shared.clone();
        let failing = thread::spawn(move || {
            let _ = failing.1.compare_exchange(0, 1, AcqRel, Relaxed);
        });
        let (visiting, failed, memory) = &*shared;
        let learnt = failed.load(Relaxed) != 0;
        if learnt {
            fence();
            while visiting.load(Acquire) != 0 {
                thread::yield_now();
            }
            memory.store(2, Relaxed);
        }
        visitor.join().unwrap();
        failing.join().unwrap();
        assert!(!learnt || memory.load(Relaxed) == 2, "written by a visitor that was not seen");
    });
}

/// SYNC POINT requests (`Engine::ask`, `Engine::compare_message`): a sender that reads a word of the next request sees that
/// its own message was taken.
fn requests(fenced: bool) {
    loom::model(move || {
        let shared = Arc::new((AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)));
        let receiver = shared.clone();
        let receiver = thread::spawn(move || {
            let (count, posted, done) = &*receiver;
            for number in 1..=2 {
                if fenced {
                    fence(Release);
                }
                count.store(10 + number, Relaxed);
                posted.store(number, Release);
                if number == 1 {
                    done.store(1, Release); // the message was there
                }
            }
        });
        let (count, posted, done) = &*shared;
        if posted.load(Acquire) >= 1 && count.load(Relaxed) != 11 {
            if fenced {
                fence(Acquire);
            }
            assert!(done.load(Relaxed) >= 1, "took the next request for its own");
        }
        receiver.join().unwrap();
    });
}

/// True when loom finds an interleaving in which the model breaks.
fn breaks(model: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(model)).is_err()
}

#[test]
fn nobody_sleeps_through_what_was_published() {
    sleepers(true);
}

#[test]
fn sleepers_need_their_fences() {
    assert!(breaks(|| sleepers(false)));
}

#[test]
fn nobody_visits_memory_that_was_given_back() {
    visits(true);
}

#[test]
fn visits_need_their_fences() {
    assert!(breaks(|| visits(false)));
}

#[test]
fn no_sender_takes_the_next_request_for_its_own() {
    requests(true);
}

#[test]
fn requests_need_their_fences() {
    assert!(breaks(|| requests(false)));
}
