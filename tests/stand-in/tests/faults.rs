//! Each fault, and that nothing stays alive after it.
#![cfg(target_os = "linux")]
#![expect(unsafe_code, reason = "enqueues work on buffers of the tests")]

mod support;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use ascend_sys::result::{acl, hccl};
use ascend_sys::safe::{Comm, DeviceMemory, RootInfoComm, Stream};
use ascend_sys::sys::{AclError, HcclDataType as Type, HcclReduceOp as Op, HcclResult};
use support::{Rank, case};

const SHORT: &[(&str, &str)] = &[("HCCL_CONNECT_TIMEOUT", "20"), ("HCCL_EXEC_TIMEOUT", "20")];

fn sum(rank: &Rank, buf: &DeviceMemory) -> ascend_sys::Result<()> {
    let (ptr, count) = (buf.as_ptr(), (buf.len() / 4) as u64);
    // SAFETY: the buffer outlives the stream's work, which the callers wait for or abort.
    unsafe { hccl::all_reduce(rank.libs, ptr, ptr, count, Type::FP32, Op::SUM, rank.comm.raw(), rank.stream().raw()) }
}

#[test]
fn any_call_returns_any_code() {
    case(SHORT).run(|world| {
        world.threads(1, |rank| {
            let buf = rank.upload(&[1f32; 4]);
            for code in (1..=24).chain([1041, 77]) {
                world.faults(&format!("HcclAllReduce=return:{code}"));
                let error = sum(&rank, &buf).unwrap_err();
                assert!(error.is_hccl(HcclResult(code)) && !error.reports().is_empty(), "{error}");
            }
            world.faults("aclrtMalloc@2#0=return:207018; HcclAllReduce@1#7=return:4");
            sum(&rank, &buf).unwrap();
            let _first = rank.upload(&[1f32]);
            let error = DeviceMemory::new(&rank.context, 4).unwrap_err();
            assert!(error.is_acl(AclError::RT_DEVICE_OOM), "{error}");
            let _third = rank.upload(&[1f32]);
            rank.stream().synchronize().unwrap();
        });
    });
}

#[test]
fn initialising_fails_on_demand() {
    case(&[("HCCL_STAND_IN_FAULTS", "HcclCommInitRootInfo=return:9;aclrtCreateStream@2=return:207001")]).run(|world| {
        let context = world.context(0);
        let info = Comm::root_info(&context).unwrap();
        let how = RootInfoComm { ranks: 1, rank: 0, info: &info, config: None };
        let error = Comm::from_root_info(Stream::new(&context).unwrap(), how).unwrap_err();
        assert!(error.is_hccl(HcclResult::E_TIMEOUT) && error.reports()[0].code == "EI0006", "{error}");
        assert!(Stream::new(&context).unwrap_err().is_acl(AclError::RT_MEMORY_ALLOCATION));
    });
}

#[test]
fn work_fails_or_stalls_on_its_stream() {
    case(SHORT).run(|world| {
        world.threads(1, |rank| {
            let buf = rank.upload(&[1f32; 4]);
            world.faults("HcclAllReduce@1=fail:507048;HcclAllReduce@3=stall");
            sum(&rank, &buf).unwrap();
            let error = rank.stream().synchronize().unwrap_err();
            assert!(error.is_acl(AclError::RT_FFTS_PLUS_TIMEOUT) && error.reports()[0].code == "EI0002", "{error}");
            sum(&rank, &buf).unwrap();
            rank.stream().synchronize().unwrap();
            sum(&rank, &buf).unwrap();
            assert!(!rank.stream().synchronize_for(Duration::from_millis(20)).unwrap());
            // A busy communicator is not destroyed.
            // SAFETY: refused.
            let error = unsafe { hccl::comm_destroy(rank.libs, rank.comm.raw()) }.unwrap_err();
            assert!(error.is_hccl(HcclResult::E_AGAIN), "{error}");
            rank.stream().abort().unwrap();
            let error = rank.stream().synchronize().unwrap_err();
            assert!(error.is_acl(AclError::STREAM_ABORT), "{error}");
        });
    });
}

#[test]
fn a_call_never_returns() {
    case(SHORT).leaks().run(|world| {
        let (done, returned) = mpsc::channel();
        world.faults("HcclAllReduce=hang");
        let own = world.clone();
        std::thread::spawn(move || {
            own.threads(1, |rank| {
                let buf = rank.upload(&[1f32; 4]);
                let _ = done.send("enqueues");
                let _ = sum(&rank, &buf);
                let _ = done.send("returned");
            });
        });
        assert_eq!(returned.recv_timeout(Duration::from_secs(20)), Ok("enqueues"));
        assert!(returned.recv_timeout(Duration::from_millis(200)).is_err());
        // What the hung call holds is counted: a device, a stream, memory, a communicator.
        assert_eq!(world.live(), [1, 0, 1, 0, 1, 0, 1]);
    });
}

#[test]
fn a_rank_that_dies_releases_nobody_before_the_deadline() {
    let env =
        [("HCCL_CONNECT_TIMEOUT", "20"), ("HCCL_EXEC_TIMEOUT", "1"), ("HCCL_STAND_IN_FAULTS", "HcclAllReduce@2#1=die")];
    case(&env).processes(2).killed(1).run(|world| {
        let rank = world.process(2);
        let buf = rank.upload(&[1f32; 4]);
        sum(&rank, &buf).unwrap();
        assert_eq!(rank.download::<f32>(&buf), [2.0; 4]);
        let started = Instant::now();
        sum(&rank, &buf).unwrap();
        let error = rank.stream().synchronize().unwrap_err();
        assert!(error.is_acl(AclError::RT_FFTS_PLUS_TIMEOUT) && error.reports()[0].code == "EI0002", "{error}");
        assert!(started.elapsed() >= Duration::from_millis(900), "released after {:?}", started.elapsed());
    });
}

#[test]
fn ranks_that_do_not_come_are_named() {
    case(&[("HCCL_CONNECT_TIMEOUT", "0.3")]).run(|world| {
        let context = world.context(0);
        let info = Comm::root_info(&context).unwrap();
        let how = |rank| RootInfoComm { ranks: 3, rank, info: &info, config: None };
        let error = Comm::from_root_info(Stream::new(&context).unwrap(), how(0)).unwrap_err();
        assert!(error.is_hccl(HcclResult::E_TIMEOUT) && error.reports()[0].code == "EI0015", "{error}");
        assert!(error.to_string().contains("[1, 2]"), "{error}");
        let error = Comm::from_root_info(Stream::new(&context).unwrap(), how(1)).unwrap_err();
        assert!(error.is_hccl(HcclResult::E_TIMEOUT) && error.reports()[0].code == "EI0006", "{error}");
    });
}

#[test]
fn destroying_ends_a_first_call_that_waits() {
    case(SHORT).run(|world| {
        let (raw, waiting) = mpsc::channel();
        let own = world.clone();
        let stopper = std::thread::spawn(move || {
            let comm: usize = waiting.recv_timeout(Duration::from_secs(20)).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            let _context = own.context(0);
            let comm = ascend_sys::sys::HcclComm(comm as *mut _);
            // SAFETY: alive; its owner expects to find it destroyed.
            unsafe { hccl::comm_destroy(own.libs, comm) }.unwrap();
        });
        world.threads(2, |rank| {
            if rank.rank == 1 {
                return;
            }
            let buf = rank.upload(&[1f32; 4]);
            raw.send(rank.comm.raw().0 as usize).unwrap();
            let error = sum(&rank, &buf).unwrap_err();
            assert!(error.to_string().contains("external request"), "{error}");
        });
        stopper.join().unwrap();
        // The guard of rank 0 found nothing left to destroy.
        assert_eq!(world.libs.take_drop_errors().len(), 1);
    });
}

#[test]
fn an_abort_of_all_the_devices_work_ends_a_collective() {
    case(SHORT).run(|world| {
        world.threads(2, |rank| {
            let buf = rank.upload(&[1f32; 4]);
            sum(&rank, &buf).unwrap();
            rank.stream().synchronize().unwrap();
            if rank.rank == 0 {
                sum(&rank, &buf).unwrap();
                acl::abort_device_tasks(rank.libs, 0, 1000).unwrap();
                let error = rank.stream().synchronize().unwrap_err();
                assert!(error.is_acl(AclError::DEVICE_TASK_ABORT), "{error}");
            }
        });
        world.libs.take_drop_errors();
    });
}

#[test]
fn leaks_are_counted() {
    case(SHORT).leaks().run(|world| {
        let context = world.context(1);
        std::mem::forget(DeviceMemory::new(&context, 100).unwrap());
        assert_eq!(world.live(), [1, 0, 0, 0, 1, 0, 0]);
        drop(context);
    });
}
