//! The typed layer above a backend that does nothing but record, and ends calls when the test says so.

use super::{Communicator, next_world};
use crate::backend::{Backend, Call, Failure, Home, Kind, Support, Ticket};
use crate::element::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::group::World;
use crate::options::Options;
use crate::reduce::{Max, OpKind, Sum};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What the backend was asked, and how its calls end.
#[derive(Default)]
struct Record {
    calls: Vec<Call>,
    /// Calls with a smaller ticket are finished.
    finished: u64,
    /// When set, calls wait for `release`.
    held: bool,
    /// Ends the next finished call badly.
    failure: Option<Failure>,
    aborted: bool,
    closed: bool,
}

struct Fake {
    rank: usize,
    size: usize,
    record: Mutex<Record>,
}

impl Fake {
    fn record(&self) -> std::sync::MutexGuard<'_, Record> {
        self.record.lock().unwrap()
    }

    fn last(&self) -> Call {
        self.record().calls.pop().expect("a call")
    }

    fn hold(&self) {
        self.record().held = true;
    }

    fn release(&self) {
        let mut record = self.record();
        record.held = false;
        record.finished = record.calls.len() as u64;
    }

    fn fail_next(&self, reachable: bool) {
        self.record().failure = Some(Failure { error: Error::new(ErrorKind::Aborted { by: 1 }), reachable });
    }
}

#[expect(unsafe_code, reason = "implements the seam")]
impl Backend for Fake {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn name(&self) -> &'static str {
        "fake"
    }

    fn device(&self) -> crate::Device {
        crate::Device::Cpu
    }

    fn support(&self, dtype: DType, op: Option<OpKind>) -> Support {
        match (dtype, op) {
            (DType::U64, Some(OpKind::Prod)) => Support::Refused("use i64"),
            _ => Support::Native,
        }
    }

    unsafe fn run(&self, call: Call) -> Result<(), Failure> {
        let mut record = self.record();
        record.calls.push(call);
        record.failure.take().map_or(Ok(()), Err)
    }

    unsafe fn submit(&self, call: Call) -> Result<Ticket> {
        let mut record = self.record();
        record.calls.push(call);
        if !record.held {
            record.finished = record.calls.len() as u64;
        }
        Ok(Ticket(record.calls.len() as u64 - 1))
    }

    fn wait(&self, ticket: Ticket, timeout: Option<Duration>) -> Option<Result<(), Failure>> {
        let mut record = self.record();
        if ticket.0 >= record.finished {
            if timeout == Some(Duration::ZERO) {
                return None;
            }
            record.finished = ticket.0 + 1;
        }
        Some(record.failure.take().map_or(Ok(()), Err))
    }

    fn is_ready(&self, ticket: Ticket) -> bool {
        ticket.0 < self.record().finished
    }

    fn abort(&self) {
        self.record().aborted = true;
    }

    fn group(&self, members: &[usize], _: u64) -> Result<Arc<dyn Backend>> {
        let rank = members.iter().position(|&member| member == self.rank).expect("a member");
        Ok(Arc::new(Fake { rank, size: members.len(), record: Mutex::default() }))
    }

    fn close(&self) -> Result<()> {
        self.record().closed = true;
        self.release();
        Ok(())
    }

    fn failure(&self) -> Option<Error> {
        None
    }
}

fn fake(rank: usize, size: usize) -> (Arc<Fake>, Communicator) {
    let fake = Arc::new(Fake { rank, size, record: Mutex::default() });
    let backend: Arc<dyn Backend> = fake.clone();
    let comm = Communicator::<World>::wrap(backend, next_world(), Options::default()).unwrap();
    (fake, comm)
}

#[test]
fn calls_are_erased_as_the_table_says() {
    let (fake, comm) = fake(2, 4);
    let (root, far) = (comm.root(2).unwrap(), comm.root(0).unwrap());
    let mut x = [1i32, 2, 3, 4, 5, 6, 7, 8];
    let at = x.as_mut_ptr().cast::<u8>();

    comm.all_reduce(&mut x, Sum).unwrap();
    let call = fake.last();
    assert_eq!((call.kind, call.op, call.count), (Kind::AllReduce, Some(OpKind::Sum), 8));
    assert_eq!((call.dtype, call.send.ptr, call.recv.ptr, call.recv.bytes), (DType::I32, at, at, 32));

    comm.reduce(&mut x, Max, far).unwrap();
    let call = fake.last();
    assert_eq!((call.root, call.send.bytes, call.recv.bytes), (0, 32, 0));
    comm.reduce(&mut x, Max, root).unwrap();
    let call = fake.last();
    assert_eq!((call.root, call.send.ptr, call.recv.ptr), (2, at, at));

    comm.broadcast(&mut x, root).unwrap();
    let call = fake.last();
    assert_eq!((call.send.bytes, call.recv.bytes), (32, 0));
    comm.broadcast(&mut x, far).unwrap();
    let call = fake.last();
    assert_eq!((call.send.bytes, call.recv.bytes), (0, 32));

    comm.all_gather_in_place(&mut x).unwrap();
    let call = fake.last();
    assert_eq!((call.count, call.send.ptr, call.send.bytes, call.recv.ptr), (2, at.wrapping_add(16), 8, at));
    comm.reduce_scatter_in_place(&mut x, Sum).unwrap();
    let call = fake.last();
    assert_eq!((call.count, call.recv.ptr, call.recv.bytes, call.send.ptr), (2, at.wrapping_add(16), 8, at));

    comm.all_gather_v(&[7i32], &mut x[..6], &[0, 3, 1, 2]).unwrap();
    let call = fake.last();
    assert_eq!((call.count, &*call.recv_parts), (6, &[(0, 0), (0, 3), (3, 1), (4, 2)][..]));

    comm.scatter(None::<&[i32]>, &mut x[..2], far).unwrap();
    assert_eq!((fake.last().send.bytes, fake.record().calls.len()), (0, 0));
    comm.gather(&[1i32, 2], Some(&mut x), root).unwrap();
    let call = fake.last();
    assert_eq!((call.count, call.recv.bytes), (2, 32));

    comm.send(&x, comm.peer(3).unwrap()).unwrap();
    let call = fake.last();
    assert_eq!((call.kind, call.root, call.count, call.recv.bytes), (Kind::Send, 3, 8, 0));
    let y = [1u8];
    comm.batch_send_recv(|batch| {
        batch.recv(&mut x, comm.peer(0)?)?;
        batch.send(&y, comm.peer(1)?)
    })
    .unwrap();
    let messages = fake.last().messages;
    assert_eq!((messages[0].sends, messages[0].peer, messages[0].dtype, messages[0].count), (false, 0, DType::I32, 8));
    assert_eq!((messages[1].sends, messages[1].peer, messages[1].dtype, messages[1].count), (true, 1, DType::U8, 1));
}

#[test]
fn wrong_arguments_are_refused_before_the_backend_sees_them() {
    let (fake, comm) = fake(2, 4);
    let (root, far) = (comm.root(2).unwrap(), comm.root(0).unwrap());
    let (seven, mut other) = ([1f32; 7], [0f32; 8]);
    let length = |result: Result<()>, expected: usize, actual: usize| {
        let error = result.unwrap_err();
        assert!(
            matches!(*error.kind(), ErrorKind::Length { expected: e, actual: a, .. } if (e, a) == (expected, actual)),
            "{error}"
        );
        assert!(error.is_recoverable() && error.to_string().contains("on rank 2 of 4"), "{error}");
    };
    length(comm.all_reduce_into(&seven, &mut other, Sum), 7, 8);
    length(comm.all_gather(&seven, &mut other), 28, 8);
    length(comm.reduce_scatter(&seven, &mut other, Sum), 32, 7);
    length(comm.all_gather_v(&seven, &mut other, &[1, 2, 3]), 4, 3);
    length(comm.all_gather_v(&seven, &mut other, &[0, 1, 2, 3]), 2, 7);
    length(comm.all_gather_v(&seven, &mut other, &[0, 0, 7, 0]), 7, 8);
    length(comm.reduce_scatter_v(&seven, &mut other, &[0, 0, 7, 0], Sum), 7, 8);
    length(comm.scatter(Some(&seven), &mut other, root), 32, 7);
    length(comm.gather(&seven, Some(&mut other), root), 28, 8);
    length(comm.reduce_into(&seven, Some(&mut other), Sum, root), 7, 8);
    length(comm.all_to_all(&other.clone(), &mut [0f32; 4]), 8, 4);
    length(comm.all_to_all_v(&seven, &[1, 2, 3, 1], &mut other, &[1, 2, 3, 4]), 10, 8);
    let invalid = |result: Result<()>, words: &str| {
        let error = result.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    invalid(comm.all_gather_in_place(&mut [0u8; 6]), "6 elements, which do not divide among 4 ranks");
    invalid(comm.reduce_scatter_in_place(&mut [0u8; 6], Sum), "do not divide");
    invalid(comm.all_to_all(&seven, &mut other), "do not divide");
    invalid(comm.all_gather_v(&seven, &mut other, &[usize::MAX, 1, 0, 0]), "more than memory can address");
    invalid(comm.scatter(None::<&[f32]>, &mut other, root), "gave no send buffer");
    invalid(comm.gather(&seven, None::<&mut [f32]>, root), "gave no receive buffer");
    invalid(comm.send(&seven, comm.peer(2).unwrap()), "rank 2 cannot exchange messages with itself");
    invalid(comm.batch_send_recv(|b| b.recv(&mut other, comm.peer(2)?)), "with itself");
    invalid(
        comm.all_to_all_v(&[1u8; 4], &[1, 1, 1, 1], &mut [0; 5], &[1, 1, 2, 1]),
        "sends itself 1 elements and receives 2",
    );
    assert!(matches!(comm.peer(4).unwrap_err().kind(), ErrorKind::NoSuchRank { rank: 4, size: 4 }));
    assert!(matches!(comm.root(usize::MAX).unwrap_err().kind(), ErrorKind::NoSuchRank { .. }));
    let pair = comm.group(&[2, 0]).unwrap();
    let error = pair.broadcast(&mut other, far).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WrongGroup { .. }) && error.is_recoverable(), "{error}");
    assert_eq!(fake.record().calls.len(), 0);
}

#[test]
fn an_operation_that_the_backend_refuses_is_named() {
    let (fake, comm) = fake(0, 2);
    let error = comm.all_reduce(&mut [1u64], crate::Prod).unwrap_err();
    assert!(
        error.to_string().contains("prod of u64 on the fake backend") && error.to_string().contains("use i64"),
        "{error}"
    );
    assert_eq!(fake.record().calls.len(), 0);
    comm.all_reduce(&mut [1u64], Sum).unwrap();
}

#[test]
fn the_lists_of_members_are_checked() {
    let (_fake, comm) = fake(2, 4);
    for (members, words) in
        [(&[2, 4][..], "no rank 4"), (&[2, 1, 2], "rank 2 is twice"), (&[0, 1], "in which it is not")]
    {
        let error = comm.group(members).unwrap_err().to_string();
        assert!(error.starts_with("group on rank 2 of 4") && error.contains(words), "{error}");
    }
    let ids: Vec<_> = (0..3).map(|_| comm.group(&[3, 2]).unwrap().queue.place.group).collect();
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
    assert_eq!(comm.group(&[3, 2]).unwrap().rank().index(), 1);
}

#[test]
fn a_refused_call_gives_its_buffer_back_unchanged() {
    let (_fake, comm) = fake(0, 2);
    let vec = vec![1f32, 2.0, 3.0];
    let address = vec.as_ptr();
    let refused = comm.all_gather_async(vec, vec![0f32; 5]).unwrap_err();
    assert!(matches!(refused.error.kind(), ErrorKind::Length { expected: 6, actual: 5, .. }));
    assert_eq!((refused.buf.0.as_ptr(), refused.buf.1.len()), (address, 5));
}

#[test]
fn a_failed_wait_gives_the_buffer_back_and_retires_what_peers_may_reach() {
    for reachable in [false, true] {
        let (fake, comm) = fake(0, 2);
        let buf = comm.upload(&[1i16, 2]).unwrap();
        let address = buf.as_slice().unwrap().as_ptr();
        let op = comm.all_reduce_async(buf, Sum).unwrap();
        fake.fail_next(reachable);
        let failed = op.wait().unwrap_err();
        assert_eq!(failed.buf.as_slice().unwrap().as_ptr() != address, reachable);
        assert_eq!(failed.error.to_string().contains("fresh memory"), reachable, "{}", failed.error);
        assert!(failed.error.to_string().starts_with("all_reduce on rank 0 of 2"), "{}", failed.error);
    }
}

#[test]
fn a_failed_blocking_call_retires_device_memory_only() {
    let (fake, comm) = fake(0, 2);
    let (mut buf, mut plain) = (comm.upload(&[1u8, 2, 3]).unwrap(), [4u8]);
    let before = buf.as_slice().unwrap().as_ptr();
    fake.fail_next(true);
    comm.all_reduce(&mut buf, Sum).unwrap_err();
    assert_ne!(buf.as_slice().unwrap().as_ptr(), before);
    assert!(matches!(fake.last().recv.home, Home::Heap { .. }));
    fake.fail_next(true);
    comm.all_reduce(&mut plain, Sum).unwrap_err();
    assert_eq!((plain, fake.last().recv.home), ([4], Home::Private));
    let before = buf.as_slice().unwrap().as_ptr();
    fake.fail_next(true);
    comm.batch_send_recv(|batch| batch.recv(&mut buf, comm.peer(1)?)).unwrap_err();
    assert_ne!(buf.as_slice().unwrap().as_ptr(), before);
}

#[test]
fn a_dropped_pending_keeps_its_buffer_until_the_call_is_finished() {
    let (fake, comm) = fake(0, 2);
    fake.hold();
    let op = comm.all_reduce_async(vec![5u32; 1000], Sum).unwrap();
    assert!(!op.is_ready());
    drop(op);
    let memory = fake.record().calls[0].recv;
    let adrift = comm.queue.adrift_len();
    assert_eq!(adrift, 1, "the vector of {} bytes is still there", memory.bytes);
    comm.barrier().unwrap();
    assert_eq!(comm.queue.adrift_len(), 1, "not finished yet");
    fake.release();
    comm.barrier().unwrap();
    assert_eq!(comm.queue.adrift_len(), 0);
    drop(comm.all_reduce_async(vec![1u32], Sum).unwrap());
    assert_eq!(comm.queue.adrift_len(), 0, "finished calls need no keeping");
    assert!(!fake.record().closed);
    drop(comm);
    assert!(fake.record().closed);
}

#[test]
fn a_pending_outlives_its_communicator() {
    let (_fake, comm) = fake(0, 2);
    let op = comm.broadcast_async(vec![3u8], comm.root(0).unwrap()).unwrap();
    assert!(op.wait_timeout(Duration::from_secs(1)));
    comm.close().unwrap();
    assert_eq!(op.wait().unwrap(), [3]);
}

#[test]
fn a_scope_waits_for_all_its_calls_also_after_an_error_or_a_panic() {
    let (fake, comm) = fake(0, 2);
    let (mut x, mut y) = ([1f32; 2], [2i8; 3]);
    fake.hold();
    let result = comm.scope(|s| {
        s.all_reduce(&mut x, Sum)?;
        s.all_reduce(&mut y, Sum)?;
        Err::<(), _>(Error::rank_failed(0, "own error"))
    });
    assert!(result.unwrap_err().to_string().contains("own error"));
    assert_eq!(fake.record().finished, 2);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        comm.scope(|s| -> Result<()> {
            let _forgotten = ManuallyDrop::new(s.all_reduce(&mut x, Sum)?);
            panic!("in the closure")
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(fake.record().finished, 3);
}

#[test]
fn a_scope_reports_failures_that_nobody_waited_for() {
    let (fake, comm) = fake(0, 2);
    let mut buf = comm.upload(&[1u8, 2]).unwrap();
    let before = buf.as_slice().unwrap().as_ptr();
    fake.hold();
    let error = comm.scope(|s| {
        s.all_reduce(&mut buf, Sum)?;
        fake.fail_next(true);
        Ok(())
    });
    assert!(matches!(error.unwrap_err().kind(), ErrorKind::Aborted { by: 1 }));
    assert_ne!(buf.as_slice().unwrap().as_ptr(), before, "retired");
    let value = comm.scope(|s| {
        let op = s.all_reduce(&mut buf, Sum)?;
        fake.fail_next(false);
        assert!(op.wait().is_err());
        Ok(7)
    });
    assert_eq!(value.unwrap(), 7, "an error that a handle told of is not reported again");
}

#[test]
fn a_handle_gives_the_buffer_back_within_the_scope() {
    let (_fake, comm) = fake(0, 2);
    let mut x = vec![1f64; 4];
    let sum = comm
        .scope(|s| {
            let op = s.all_reduce(&mut x, Sum)?;
            let x = op.wait()?;
            x[0] = 5.0;
            s.barrier()?.wait()?;
            let again = s.all_reduce(x, Sum)?.wait()?;
            Ok(again.iter().sum::<f64>())
        })
        .unwrap();
    assert_eq!((sum, x[0]), (8.0, 5.0));
}

#[test]
fn swapped_batches_are_refused() {
    let ((one, small), (_two, large)) = (fake(0, 2), fake(0, 9));
    let x = [1u8];
    let mut inner = Ok(());
    let outer = small.batch_send_recv(|a| {
        inner = large.batch_send_recv(|b| {
            b.send(&x, large.peer(8)?)?;
            std::mem::swap(a, b);
            Ok(())
        });
        Ok(())
    });
    for result in [inner, outer] {
        assert!(result.unwrap_err().to_string().contains("for another communicator"));
    }
    assert_eq!(one.record().calls.len(), 0);
}

#[cfg(all(target_os = "linux", not(hccl_portable)))]
#[test]
fn ranks_join_by_name_again_and_again_and_say_what_is_wrong() {
    let job = format!("join-test-{}", std::process::id());
    for round in 0..2u64 {
        std::thread::scope(|scope| {
            for rank in 0..3 {
                let job = &job;
                scope.spawn(move || {
                    let comm = Communicator::builder().join(job, rank, 3).unwrap();
                    let mut all = [0; 3];
                    comm.all_gather(&[rank as u64 * 3 + round], &mut all).unwrap();
                    assert_eq!(all, [round, 3 + round, 6 + round]);
                });
            }
        });
    }
    for (name, rank, size) in [("", 0, 1), (job.as_str(), 2, 2), (job.as_str(), 0, 0)] {
        let error = Communicator::builder().join(name, rank, size).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
    }
    let short = Communicator::builder().connect_timeout(Duration::from_millis(50));
    let error = short.join(&job, 0, 2).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Timeout { late, .. } if late == &[1]), "{error}");
}
