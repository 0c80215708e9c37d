//! Every fault of the libraries: a typed error, in time, and nothing left behind.

use crate::{Case, npus};
use hccl::prelude::*;
use hccl::{Device, ErrorKind, Loss, Result};
use std::time::{Duration, Instant};

/// The deadline of calls in these tests.
const SECONDS: u64 = 3;

/// What two ranks got from a call of theirs, and that it took no longer than the deadline and a second, with some time
/// for a machine that is busy with other tests.
fn pair(call: impl Fn(&Communicator) -> Result<()> + Sync) -> Vec<Result<()>> {
    npus(SECONDS)
        .local_results(2, |comm| {
            let start = Instant::now();
            let result = call(&comm);
            let limit = Duration::from_secs(SECONDS + 1) + Duration::from_millis(500);
            assert!(start.elapsed() < limit, "{:?}: {result:?}", start.elapsed());
            result
        })
        .unwrap()
}

fn sum(comm: &Communicator) -> Result<()> {
    let mut buf = comm.upload(&[1_f32; 8])?;
    comm.all_reduce(&mut buf, Sum)
}

/// A case whose waits inside the libraries are short.
fn case(test: &str, faults: &str) -> Case {
    Case::new(module_path!(), test).set("HCCL_CONNECT_TIMEOUT", "2").set("HCCL_STAND_IN_FAULTS", faults)
}

#[test]
fn any_code_of_an_operation() {
    let codes: Vec<i32> = (1..=24).chain([1041, 77]).collect();
    let fault = |(call, code): (usize, &i32)| format!("HcclAllReduce@{}#1=return:{code}", call + 1);
    let faults = codes.iter().enumerate().map(fault).collect::<Vec<_>>().join(";");
    case("any_code_of_an_operation", &faults).run(|| {
        for code in &codes {
            let [first, second] = pair(sum).try_into().unwrap();
            let (first, second) = (first.unwrap_err(), second.unwrap_err());
            let text = second.to_string();
            match second.kind() {
                ErrorKind::Vendor { call: "HcclAllReduce", code: told, device: Device::Npu(1) } => {
                    assert_eq!(told, code, "{text}");
                }
                ErrorKind::Timeout { .. } => assert!([9, 11, 19].contains(code), "{text}"),
                ErrorKind::Resource { .. } => assert!([3, 24].contains(code), "{text}"),
                _ => panic!("{code}: {text}"),
            }
            assert!(text.contains("all_reduce on rank 1 of 2") && text.contains("injected"), "{text}");
            assert!(text.contains("remedy: ") && text.contains("hint: "), "{text}");
            // Nothing of HCCL's tells the other rank: our control channel does.
            assert!(first.is_knock_on() || first.is_timeout(), "{first}");
        }
    });
}

#[test]
fn work_that_fails_on_the_stream() {
    let faults = "HcclAllReduce@1#0=fail:507048;HcclAllReduce@2#0=fail:507053;HcclAllReduce@3#0=fail:207018";
    case("work_that_fails_on_the_stream", faults).run(|| {
        let error = pair(sum).swap_remove(0).unwrap_err();
        assert!(error.is_timeout() && error.to_string().contains("EI0002"), "{error}");
        let error = pair(sum).swap_remove(0).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Vendor { code: 507_053, .. }), "{error}");
        let error = pair(sum).swap_remove(0).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Resource { .. }), "{error}");
    });
}

/// An operation that never ends is aborted on its stream, so that nothing is given up.
#[test]
fn work_that_stalls() {
    case("work_that_stalls", "HcclAllReduce#0=stall").run(|| {
        for result in pair(sum) {
            let error = result.unwrap_err();
            assert!(error.is_timeout(), "{error}");
            assert!(!error.to_string().contains("fresh memory"), "the stream was aborted: {error}");
        }
    });
}

/// A call that never returns holds a thread, a stream and the memory it may write, and nobody else.
#[test]
fn a_call_that_never_returns() {
    case("a_call_that_never_returns", "HcclAllReduce#0=hang").leaks().run(|| {
        let results = npus(SECONDS).local_results(2, |comm| -> Result<()> {
            let mut buf = comm.upload(&[1_f32, 2.0, 3.0])?;
            let mut part = buf.range_mut(1..2)?;
            let start = Instant::now();
            let error = comm.all_reduce(&mut part, Sum).unwrap_err();
            assert!(start.elapsed() < Duration::from_millis(SECONDS * 1000 + 1500), "{:?}", start.elapsed());
            assert!(error.is_timeout(), "{error}");
            assert_eq!(comm.barrier().unwrap_err().kind(), error.kind(), "the first cause, for good");
            let kept = buf.to_vec()?;
            assert_eq!((kept[0], kept[2]), (1.0, 3.0), "{error}");
            if comm.rank().index() == 0 {
                assert!(error.to_string().contains("fresh memory"), "{error}");
            }
            Ok(())
        });
        results.unwrap().into_iter().for_each(|result| result.unwrap());
        // The device of the stuck thread and the other one serve new worlds.
        Communicator::builder().device(Device::Npu(2)).local(2, |comm| sum(&comm)).unwrap();
    });
}

#[test]
fn initialising_fails() {
    let calls = [
        ("HcclGetRootInfo", 19),
        ("HcclCommInitRootInfoConfig", 9),
        ("HcclCommInitRootInfoConfig", 3),
        ("aclrtCreateStream", 207_001),
        ("aclrtSetDevice", 507_010),
    ];
    for (number, (call, code)) in calls.into_iter().enumerate() {
        let fault = format!("{call}#0=return:{code};{call}=return:{code}");
        let name = "initialising_fails";
        let case = case(name, &fault).set("TEST_CASE", number.to_string()).without(&["HcclCommInitAll"]);
        case.run(|| {
            let start = Instant::now();
            let error = npus(SECONDS).local(2, |comm| sum(&comm)).unwrap_err();
            let text = error.to_string();
            let number: usize = std::env::var("TEST_CASE").unwrap().parse().unwrap();
            let (call, code) = calls[number];
            assert!(start.elapsed() < Duration::from_secs(10), "{text}");
            assert!(text.contains(call) && text.contains(&code.to_string()), "{text}");
            match code {
                9 | 19 => assert!(error.is_timeout(), "{text}"),
                3 | 207_001 => assert!(matches!(error.kind(), ErrorKind::Resource { .. }), "{text}"),
                _ => assert!(matches!(error.kind(), ErrorKind::Vendor { .. }), "{text}"),
            }
        });
    }
}

#[test]
fn initialising_hangs() {
    let case = case("initialising_hangs", "HcclCommInitAll=hang").leaks();
    case.run(|| {
        let builder = npus(60).connect_timeout(Duration::from_secs(SECONDS));
        let start = Instant::now();
        let error = builder.local(2, |comm| sum(&comm)).unwrap_err();
        assert!(error.is_timeout() && start.elapsed() < Duration::from_secs(SECONDS + 2), "{error}");
    });
}

#[test]
fn memory_is_refused_or_hangs() {
    let faults = "aclrtMalloc@1=return:207001;aclrtMemcpy=hang";
    case("memory_is_refused_or_hangs", faults).set("HCCL_EXEC_TIMEOUT", "1").leaks().run(|| {
        let error = DeviceBuffer::<f32>::zeros(Device::Npu(3), 5).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Resource { what } if what.contains("NPU 3")), "{error}");
        let buf = DeviceBuffer::<f32>::zeros(Device::Npu(3), 5).unwrap();
        let start = Instant::now();
        let error = buf.to_vec().unwrap_err();
        assert!(error.is_timeout() && start.elapsed() < Duration::from_secs(3), "{error}");
        assert!(error.to_string().contains("aclrtMemcpy"), "{error}");
    });
}

/// HCCL would keep the survivors waiting until its deadline, 1836 s unless set.
#[test]
fn a_rank_that_dies() {
    let case = case("a_rank_that_dies", "HcclAllReduce@3#1=die");
    let judge = |rank: usize, end: &crate::support::End| {
        assert_eq!(end.status.success(), rank != 1, "rank {rank}: {}\n{}", end.status, end.output);
    };
    let body = |rank: usize| {
        let comm = Communicator::builder().device(Device::Npu(rank as u32)).from_env().unwrap();
        let mut buf = comm.upload(&[rank as f32; 1000]).unwrap();
        comm.all_reduce(&mut buf, Sum).unwrap();
        comm.all_reduce(&mut buf, Max).unwrap();
        let start = Instant::now();
        // Known to all ranks by now, so that they do not meet before it.
        let error = comm.all_reduce(&mut buf, Sum).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::PeerLost { peer: 1, how: Loss::Died }, "{error}");
        assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
        assert_eq!(comm.barrier().unwrap_err().kind(), error.kind());
        drop(comm);
        // A new world of the survivors works.
        let job = format!("survivors-{}", std::env::var("HCCL_JOB_ID").unwrap());
        let builder = Communicator::builder().device(Device::Npu(rank as u32));
        let comm = builder.join(&job, usize::from(rank == 2), 2).unwrap();
        let mut two = [1_u32];
        comm.all_reduce(&mut two, Sum).unwrap();
        assert_eq!(two, [2]);
    };
    case.ended(3, body, judge);
}
