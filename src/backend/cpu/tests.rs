//! The engine at the seam, without the typed layer: what the conformance laws cannot see from above.
#![expect(unsafe_code, reason = "calls the seam")]

use super::*;
use crate::backend::{Call, Failure, Home, Kind, Memory, Message, Ticket};
use crate::element::{DType, Element};
use crate::error::{ErrorKind, Loss};
use crate::reduce::OpKind;
use std::time::Duration;

fn options(seconds: u64) -> Options {
    Options { exec_timeout: Duration::from_secs(seconds), ..Options::default() }
}

/// Runs `f` on `n` ranks and returns what each returned.
fn ranks<R: Send>(n: usize, options: &Options, f: impl Fn(&dyn Backend) -> R + Sync) -> Vec<R> {
    let backends = threads(n, options).unwrap();
    let f = &f;
    std::thread::scope(|scope| {
        let running: Vec<_> = backends.into_iter().map(|backend| scope.spawn(move || f(&*backend))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn memory<T>(values: &mut [T]) -> Memory {
    Memory { ptr: values.as_mut_ptr().cast(), bytes: size_of_val(values), home: Home::Private }
}

fn all_reduce<T: Element>(values: &mut [T], op: OpKind) -> Call {
    let mut call = Call::new(Kind::AllReduce, T::DTYPE);
    call.op = Some(op);
    call.count = values.len() as u64;
    call.send = memory(values);
    call.recv = call.send;
    call
}

fn message<T: Element>(kind: Kind, values: &mut [T], peer: u32) -> Call {
    let mut call = Call::new(kind, T::DTYPE);
    call.root = peer;
    call.count = values.len() as u64;
    if kind == Kind::Send {
        call.send = memory(values)
    } else {
        call.recv = memory(values)
    }
    call
}

/// Safe because the tests lend whole slices that outlive the call.
fn run(backend: &dyn Backend, call: Call) -> Result<(), Failure> {
    // SAFETY: see above.
    unsafe { backend.run(call) }
}

#[test]
fn sums_of_all_lengths() {
    for n in [1, 2, 3, 5] {
        for length in [0, 1, 7, 8, 9, 1023, 1024, 1025, 100_003] {
            ranks(n, &options(20), |backend| {
                let rank = backend.rank();
                let mut values: Vec<u64> = (0..length).map(|i| (i * n + rank) as u64).collect();
                run(backend, all_reduce(&mut values, OpKind::Sum)).unwrap();
                for (i, value) in values.iter().enumerate() {
                    assert_eq!(*value, (i * n * n + n * (n - 1) / 2) as u64, "{n} ranks, {length} elements, at {i}");
                }
            });
        }
    }
}

#[test]
fn a_different_call_is_an_error_on_both_sides() {
    let errors = ranks(3, &options(20), |backend| {
        let mut values = vec![0_f32; 4 + usize::from(backend.rank() == 1)];
        run(backend, all_reduce(&mut values, OpKind::Sum)).unwrap_err().error
    });
    for (rank, error) in errors.iter().enumerate() {
        assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("f32 x 5") && text.contains("f32 x 4"), "rank {rank}: {text}");
    }
}

#[test]
fn a_circle_of_sends_is_named() {
    let errors = ranks(3, &options(20), |backend| {
        let to = (backend.rank() as u32 + 1) % 3;
        run(backend, message(Kind::Send, &mut [1_i32], to)).unwrap_err().error
    });
    for error in errors {
        assert!(matches!(error.kind(), ErrorKind::Deadlock { cycle } if cycle.len() == 3), "{error}");
    }
}

/// A message that queues behind another to the same peer hides no circle.
#[test]
fn a_circle_through_a_batch_is_named() {
    let errors = ranks(2, &options(20), |backend| {
        let (mut a, mut b) = ([1_i32, 2], [3_i32]);
        let call = match backend.rank() {
            0 => {
                let send = |memory, count| Message { sends: true, peer: 1, dtype: DType::I32, count, memory };
                let mut call = Call::new(Kind::BatchSendRecv, DType::I32);
                call.messages = vec![send(memory(&mut a), 2), send(memory(&mut b), 1)].into();
                call
            }
            _ => message(Kind::Send, &mut a, 0),
        };
        run(backend, call).unwrap_err().error
    });
    assert!(errors.iter().all(|e| matches!(e.kind(), ErrorKind::Deadlock { cycle } if cycle.len() == 2)), "{errors:?}");
}

#[test]
fn a_send_against_a_collective_is_a_circle() {
    let errors = ranks(2, &options(20), |backend| {
        let mut value = [1_i32];
        let call = match backend.rank() {
            0 => all_reduce(&mut value, OpKind::Sum),
            _ => message(Kind::Recv, &mut value, 0),
        };
        run(backend, call).unwrap_err().error
    });
    assert!(errors.iter().all(|e| matches!(e.kind(), ErrorKind::Deadlock { .. })), "{errors:?}");
}

#[test]
fn messages_of_all_lengths_arrive() {
    for length in [0_usize, 1, 96, 97, 1000, 300_000] {
        ranks(2, &options(20), |backend| {
            for round in 0..3 {
                let mut values: Vec<u32> = (0..length).map(|i| (i * 7 + round) as u32).collect();
                let expected = values.clone();
                if backend.rank() == 0 {
                    run(backend, message(Kind::Send, &mut values, 1)).unwrap();
                } else {
                    values.fill(0);
                    run(backend, message(Kind::Recv, &mut values, 0)).unwrap();
                }
                assert_eq!(values, expected);
            }
        });
    }
}

#[test]
fn a_batch_goes_both_ways_and_keeps_its_order() {
    ranks(4, &options(20), |backend| {
        let (rank, n) = (backend.rank() as u32, 4);
        let (next, last) = ((rank + 1) % n, (rank + n - 1) % n);
        let mut out = [vec![rank; 1000], vec![rank + 100; 1000]];
        let mut into = [vec![0_u32; 1000], vec![0; 1000]];
        let mut messages = Vec::new();
        for (values, sends, peer) in
            out.iter_mut().map(|v| (v, true, next)).chain(into.iter_mut().map(|v| (v, false, last)))
        {
            let memory = memory(values.as_mut_slice());
            messages.push(Message { sends, peer, dtype: DType::U32, count: 1000, memory });
        }
        let mut call = Call::new(Kind::BatchSendRecv, DType::U32);
        call.messages = messages.into();
        run(backend, call).unwrap();
        assert!(into[0].iter().all(|v| *v == last) && into[1].iter().all(|v| *v == last + 100));
    });
}

#[test]
fn a_rank_that_leaves_is_named() {
    let errors = ranks(3, &options(20), |backend| {
        if backend.rank() == 2 {
            backend.close().unwrap();
            return None;
        }
        Some(run(backend, all_reduce(&mut [1_f32; 5000], OpKind::Sum)).unwrap_err().error)
    });
    for error in errors.into_iter().flatten() {
        assert_eq!(*error.kind(), ErrorKind::PeerLost { peer: 2, how: Loss::Left }, "{error}");
    }
}

/// Rank 0 waits for rank 1 and, by its own collective, for rank 2; both wait for rank 3, which alone is named.
#[test]
fn ranks_that_wait_themselves_are_not_late() {
    let short = Options { exec_timeout: Duration::from_millis(400), ..Options::default() };
    let errors = ranks(4, &short, |backend| {
        let mut value = [1_i32];
        let call = match backend.rank() {
            0 => all_reduce(&mut value, OpKind::Sum),
            3 => {
                while backend.failure().is_none() {
                    std::thread::yield_now();
                }
                all_reduce(&mut value, OpKind::Sum)
            }
            _ => message(Kind::Recv, &mut value, 3),
        };
        run(backend, call).unwrap_err().error
    });
    for error in errors {
        assert!(matches!(error.kind(), ErrorKind::Timeout { late, .. } if late == &[3]), "{error}");
    }
}

#[test]
fn a_late_rank_is_a_timeout_that_names_it() {
    let short = Options { exec_timeout: Duration::from_millis(200), ..Options::default() };
    let errors = ranks(3, &short, |backend| {
        if backend.rank() == 1 {
            while backend.failure().is_none() {
                std::thread::yield_now();
            }
        }
        run(backend, all_reduce(&mut [1_f32], OpKind::Sum)).unwrap_err().error
    });
    for error in errors {
        assert!(matches!(error.kind(), ErrorKind::Timeout { late, .. } if late == &[1]), "{error}");
    }
}

#[test]
fn an_abort_ends_everyone() {
    let start = std::time::Instant::now();
    // Nobody leaves before all have been told.
    let told = std::sync::Barrier::new(2);
    let errors = ranks(2, &options(20), |backend| {
        if backend.rank() == 1 {
            std::thread::sleep(Duration::from_millis(50)); // until rank 0 waits
            backend.abort();
        }
        let error = run(backend, all_reduce(&mut [1_f32], OpKind::Sum)).unwrap_err().error;
        told.wait();
        error
    });
    assert!(errors.iter().all(|e| *e.kind() == ErrorKind::Aborted { by: 1 }), "{errors:?}");
    // At once, not when the calls would have timed out.
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn queued_calls_keep_their_order_and_fail_with_the_first_cause() {
    ranks(2, &options(20), |backend| {
        let mut values: Vec<Vec<u64>> = (0..20).map(|i| vec![i; 100]).collect();
        let tickets: Vec<Ticket> = values
            .iter_mut()
            // SAFETY: the vectors outlive the wait below.
            .map(|v| unsafe { backend.submit(all_reduce(v, OpKind::Sum)) }.unwrap())
            .collect();
        for ticket in &tickets {
            backend.wait(*ticket, None).unwrap().unwrap();
            assert!(backend.is_ready(*ticket));
        }
        assert!(values.iter().enumerate().all(|(i, v)| v.iter().all(|x| *x == 2 * i as u64)));
        backend.abort();
        let error = run(backend, all_reduce(&mut [1_f32], OpKind::Sum)).unwrap_err().error;
        assert!(matches!(error.kind(), ErrorKind::Aborted { .. }), "{error}");
    });
}

#[test]
fn queued_calls_start_in_the_order_they_were_given() {
    let queued = std::sync::Barrier::new(2);
    ranks(2, &options(20), |backend| {
        let mut values: Vec<Vec<u64>> = (0..20).map(|i| vec![i; i as usize + 1]).collect();
        if backend.rank() == 1 {
            queued.wait();
            for values in &mut values {
                run(backend, all_reduce(values, OpKind::Sum)).unwrap();
            }
            return;
        }
        // SAFETY: the vectors outlive the wait below.
        let submit = |v: &mut Vec<u64>| unsafe { backend.submit(all_reduce(v, OpKind::Sum)) }.unwrap();
        let tickets: Vec<Ticket> = values.iter_mut().map(submit).collect();
        queued.wait();
        for ticket in tickets {
            backend.wait(ticket, None).unwrap().unwrap();
        }
        assert!(values.iter().enumerate().all(|(i, v)| v.iter().all(|x| *x == 2 * i as u64)));
    });
}

#[test]
fn groups_of_groups_work() {
    ranks(4, &options(20), |backend| {
        let rank = backend.rank();
        let members: Vec<usize> = (0..4).filter(|r| r % 2 == rank % 2).rev().collect();
        let group = backend.group(&members, 9).unwrap();
        assert_eq!((group.size(), members[group.rank()]), (2, rank));
        let mut sum = [rank as u64];
        run(&*group, all_reduce(&mut sum, OpKind::Sum)).unwrap();
        assert_eq!(sum[0], 2 + 2 * (rank as u64 % 2));
        let alone = group.group(&[group.rank()], 1).unwrap();
        run(&*alone, all_reduce(&mut sum, OpKind::Sum)).unwrap();
        group.close().unwrap();
        run(backend, all_reduce(&mut sum, OpKind::Sum)).unwrap();
        assert_eq!(sum[0], 2 * 2 + 2 * 4);
    });
}

#[test]
fn a_sender_that_looks_late_takes_no_later_request_for_its_own() {
    ranks(4, &options(20), |backend| {
        let other = backend.rank() as u32 ^ 1;
        for i in 0..20_000 {
            let mut values = vec![i as u16; i % 5];
            let kind = if backend.rank() % 2 == 0 { Kind::Send } else { Kind::Recv };
            run(backend, message(kind, &mut values, other)).unwrap();
            assert!(values.iter().all(|v| *v == i as u16));
        }
    });
}

#[test]
fn a_group_that_cannot_be_made_fails_its_parent_on_every_rank() {
    let short = Options { connect_timeout: Duration::from_millis(200), ..options(20) };
    let errors = ranks(3, &short, |backend| {
        let made = if backend.rank() == 1 {
            while backend.failure().is_none() {
                std::thread::yield_now();
            }
            backend.failure()
        } else {
            backend.group(&[0, 1, 2], 5).err()
        };
        (made.unwrap(), run(backend, all_reduce(&mut [1_f32], OpKind::Sum)).unwrap_err().error)
    });
    for (error, later) in errors {
        assert!(matches!(error.kind(), ErrorKind::Timeout { late, .. } if late == &[1]), "{error}");
        // The same time-out, not one of the later call.
        let first = |after: &Duration| *after < Duration::from_secs(10);
        assert!(matches!(later.kind(), ErrorKind::Timeout { late, after } if late == &[1] && first(after)), "{later}");
    }
}

#[test]
fn an_abort_and_a_leaver_end_the_making_of_a_group() {
    for leaves in [false, true] {
        let errors = ranks(3, &options(20), |backend| match backend.rank() {
            1 if leaves => backend.close().err(),
            1 => {
                backend.abort();
                None
            }
            _ => Some(backend.group(&[2, 1, 0], 5).err().unwrap()),
        });
        for error in errors.into_iter().flatten() {
            let expected = match leaves {
                true => ErrorKind::PeerLost { peer: 1, how: Loss::Left },
                false => ErrorKind::Aborted { by: 1 },
            };
            assert_eq!(*error.kind(), expected, "{error}");
        }
    }
}

#[test]
fn an_abort_after_leaving_changes_nothing() {
    ranks(3, &options(20), |backend| {
        run(backend, all_reduce(&mut [1_f32], OpKind::Sum)).unwrap();
        if backend.rank() == 2 {
            backend.close().unwrap();
            backend.abort();
            return;
        }
        let kind = if backend.rank() == 0 { Kind::Send } else { Kind::Recv };
        run(backend, message(kind, &mut [7_u8; 1000], 1 - backend.rank() as u32)).unwrap();
    });
}

#[test]
fn floats_are_added_in_rank_order_on_every_rank() {
    for length in [5, 5_000, 200_000] {
        let found = ranks(3, &options(20), |backend| {
            // Large, then its negative, then small: any other order loses the small one or keeps it.
            let large = [1e8_f32, -1e8, 1.0][backend.rank()];
            let mut values: Vec<f32> = (0..length).map(|i| large + (i % 7) as f32 * 8.0).collect();
            run(backend, all_reduce(&mut values, OpKind::Sum)).unwrap();
            values
        });
        let expected = |i: usize| {
            let at = (i % 7) as f32 * 8.0;
            ((1e8 + at) + (-1e8 + at)) + (1.0 + at)
        };
        for values in &found {
            assert!(values.iter().enumerate().all(|(i, v)| v.to_bits() == expected(i).to_bits()), "{length}");
        }
    }
}
