//! What the stand-in promises: results, what blocks and what does not, refusals.
#![cfg(target_os = "linux")]
#![expect(unsafe_code, reason = "enqueues work on buffers of the tests")]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, mpsc};
use std::time::Duration;

use ascend_sys::ErrorKind;
use ascend_sys::result::{acl, hccl};
use ascend_sys::safe::{Comm, DeviceMemory, Event, RankTableComm, RootInfoComm, Stream};
use ascend_sys::sys::{
    AclCannPackageName, AclError, ConfigVersion, HcclCommConfig, HcclDataType as Type, HcclReduceOp as Op, HcclResult,
    HcclSendRecvItem, HcclSendRecvType,
};
use support::{Rank, case};

const SHORT: &[(&str, &str)] = &[("HCCL_CONNECT_TIMEOUT", "20"), ("HCCL_EXEC_TIMEOUT", "20")];

/// Enqueues a sum of the whole buffer, in place.
fn sum(rank: &Rank, buf: &DeviceMemory) -> ascend_sys::Result<()> {
    let (ptr, count) = (buf.as_ptr(), (buf.len() / 4) as u64);
    // SAFETY: the buffer outlives the stream's work, which the callers wait for.
    unsafe { hccl::all_reduce(rank.libs, ptr, ptr, count, Type::FP32, Op::SUM, rank.comm.raw(), rank.stream().raw()) }
}

#[test]
fn every_collective_moves_what_it_should() {
    case(SHORT).run(|world| {
        let n = 3;
        world.threads(n, |rank| {
            let (me, size) = (rank.rank as i32, n as i32);
            let (libs, comm, stream) = (rank.libs, rank.comm.raw(), rank.stream().raw());
            let own: Vec<i32> = (0..6).map(|i| i * size + me).collect();
            let send = rank.upload(&own);
            let check = |what: &str, memory: &DeviceMemory, expected: Vec<i32>| {
                assert_eq!(rank.download::<i32>(memory), expected, "{what} on rank {me}");
            };
            let total = |i: i32| i * size * size + size * (size - 1) / 2;
            let i32s = Type::INT32;

            let recv = rank.upload(&[-1; 6]);
            // SAFETY: all buffers of this test live until the stream has been waited for.
            unsafe { hccl::all_reduce(libs, send.as_ptr(), recv.as_ptr(), 6, i32s, Op::SUM, comm, stream) }.unwrap();
            check("all_reduce", &recv, (0..6).map(total).collect());

            let recv = rank.upload(&[-1; 6]);
            // SAFETY: as above.
            unsafe { hccl::reduce(libs, send.as_ptr(), recv.as_ptr(), 6, i32s, Op::MAX, 1, comm, stream) }.unwrap();
            let expected = if me == 1 { (0..6).map(|i| i * size + 2).collect() } else { vec![-1; 6] };
            check("reduce", &recv, expected);

            let recv = rank.upload(&[-1; 2]);
            // SAFETY: as above.
            unsafe { hccl::reduce_scatter(libs, send.as_ptr(), recv.as_ptr(), 2, i32s, Op::SUM, comm, stream) }
                .unwrap();
            check("reduce_scatter", &recv, vec![total(2 * me), total(2 * me + 1)]);

            // Rank r gets r + 1 elements, from the end of the buffer to its beginning.
            let (counts, displs) = ([1u64, 2, 3], [5u64, 3, 0]);
            let mine = displs[me as usize] as i32..displs[me as usize] as i32 + me + 1;
            let recv = rank.upload(&vec![-1; me as usize + 1]);
            let (c, d) = (counts.as_ptr().cast(), displs.as_ptr().cast());
            let (from, to, count) = (send.as_ptr(), recv.as_ptr(), me as u64 + 1);
            // SAFETY: as above; the arrays live until the call returns.
            unsafe { hccl::reduce_scatter_v(libs, from, c, d, to, count, i32s, Op::SUM, comm, stream) }.unwrap();
            check("reduce_scatter_v", &recv, mine.map(total).collect());

            let recv = rank.upload(&[-1; 9]);
            // SAFETY: as above.
            unsafe { hccl::all_gather(libs, send.as_ptr(), recv.as_ptr(), 3, i32s, comm, stream) }.unwrap();
            check("all_gather", &recv, (0..size).flat_map(|r| (0..3).map(move |i| i * size + r)).collect());

            let recv = rank.upload(&[-1; 7]);
            // SAFETY: as above.
            unsafe { hccl::all_gather_v(libs, send.as_ptr(), count, recv.as_ptr(), c, d, i32s, comm, stream) }.unwrap();
            check("all_gather_v", &recv, vec![2, 5, 8, 1, 4, 0, -1]);

            let recv = rank.upload(&[-1; 2]);
            let all = rank.upload(&own);
            let from = if me == 2 { all.as_ptr() } else { std::ptr::null_mut() };
            // SAFETY: as above.
            unsafe { hccl::scatter(libs, from, recv.as_ptr(), 2, i32s, 2, comm, stream) }.unwrap();
            check("scatter", &recv, vec![6 * me + 2, 6 * me + 5]);

            let buf = rank.upload(&own);
            // SAFETY: as above.
            unsafe { hccl::broadcast(libs, buf.as_ptr(), 5, i32s, 1, comm, stream) }.unwrap();
            check("broadcast", &buf, vec![1, 4, 7, 10, 13, 15 + me]);

            let recv = rank.upload(&[-1; 6]);
            let (from, to) = (send.as_ptr(), recv.as_ptr());
            // SAFETY: as above.
            unsafe { hccl::all_to_all(libs, from, 2, i32s, to, 2, i32s, comm, stream) }.unwrap();
            let block = |r: i32| [6 * me + r, 6 * me + 3 + r];
            check("all_to_all", &recv, (0..size).flat_map(block).collect());

            // Rank i sends j + 1 elements to j, out of a buffer cut backwards; it gets i + 1 of each.
            let recv = rank.upload(&[-1; 9]);
            let theirs = [count; 3];
            let places = [0, count, 2 * count];
            let (tc, td) = (theirs.as_ptr().cast(), places.as_ptr().cast());
            let (from, to) = (send.as_ptr(), recv.as_ptr());
            // SAFETY: as above.
            unsafe { hccl::all_to_all_v(libs, from, c, d, i32s, to, tc, td, i32s, comm, stream) }.unwrap();
            let start = displs[me as usize] as i32;
            let mut expected: Vec<_> = (0..size).flat_map(|r| (0..=me).map(move |i| (start + i) * size + r)).collect();
            expected.resize(9, -1);
            check("all_to_all_v", &recv, expected);

            let matrix = [1u64, 2, 3, 0, 1, 2, 3, 0, 1];
            let recv = rank.upload(&[-1; 6]);
            let to = recv.as_ptr();
            // SAFETY: as above.
            unsafe { hccl::all_to_all_vc(libs, from, matrix.as_ptr().cast(), i32s, to, i32s, comm, stream) }.unwrap();
            let mut expected = Vec::new();
            for r in 0..3usize {
                let row = &matrix[3 * r..3 * r + 3];
                let skip: u64 = row[..me as usize].iter().sum();
                expected.extend((skip..skip + row[me as usize]).map(|i| i as i32 * size + r as i32));
            }
            expected.resize(6, -1);
            check("all_to_all_vc", &recv, expected);

            let (next, previous) = ((rank.rank + 1) % n, (rank.rank + n - 1) % n);
            let recv = rank.upload(&[-1; 2]);
            let item = |kind, buf, remote_rank| HcclSendRecvItem { kind, buf, count: 2, data_type: i32s, remote_rank };
            let (to_next, from_previous) = (HcclSendRecvType::SEND, HcclSendRecvType::RECV);
            let mut items = [item(to_next, send.as_ptr(), next), item(from_previous, recv.as_ptr(), previous)];
            // SAFETY: as above.
            unsafe { hccl::batch_send_recv(libs, items.as_mut_ptr(), 2, comm, stream) }.unwrap();
            check("batch_send_recv", &recv, vec![previous as i32, size + previous as i32]);

            // The same as a group of single calls, which would be a circle one by one.
            hccl::group_start(libs).unwrap();
            let recv = rank.upload(&[-1; 2]);
            // SAFETY: as above.
            unsafe { hccl::send(libs, send.as_ptr(), 2, i32s, next, comm, stream) }.unwrap();
            // SAFETY: as above.
            unsafe { hccl::recv(libs, recv.as_ptr(), 2, i32s, previous, comm, stream) }.unwrap();
            assert!(rank.stream().is_idle().unwrap(), "nothing starts before the group ends");
            // SAFETY: as above.
            unsafe { hccl::group_end(libs) }.unwrap();
            check("group", &recv, vec![previous as i32, size + previous as i32]);
            rank.comm.barrier().unwrap();
            rank.stream().synchronize().unwrap();
        });
    });
}

#[test]
fn the_first_call_of_a_kind_waits_on_the_host_and_later_ones_do_not() {
    case(SHORT).run(|world| {
        let (ready, first_returned) = (Barrier::new(2), AtomicBool::new(false));
        let (enqueued, arrived) = mpsc::channel::<()>();
        let arrived = std::sync::Mutex::new(Some(arrived));
        world.threads(2, |rank| {
            let buf = rank.upload(&[rank.rank as f32 + 1.0; 8]);
            ready.wait();
            if rank.rank == 0 {
                sum(&rank, &buf).unwrap();
                first_returned.store(true, Ordering::SeqCst);
                sum(&rank, &buf).unwrap();
                // Rank 1 makes its second call only after this one has returned.
                assert!(!rank.stream().is_idle().unwrap());
                let waits = rank.stream().synchronize_for(Duration::from_millis(20)).unwrap();
                assert!(!waits, "done without the other rank");
                enqueued.send(()).unwrap();
            } else {
                std::thread::sleep(Duration::from_millis(100));
                assert!(!first_returned.load(Ordering::SeqCst), "the first call returned without the other rank");
                sum(&rank, &buf).unwrap();
                arrived.lock().unwrap().take().unwrap().recv().unwrap();
                sum(&rank, &buf).unwrap();
            }
            assert_eq!(rank.download::<f32>(&buf), [6.0; 8]);
        });
    });
}

#[test]
fn events_order_streams_and_keep_time() {
    case(SHORT).run(|world| {
        world.threads(2, |rank| {
            let other = Stream::new(&rank.context).unwrap();
            let [start, end] = [(); 2].map(|()| Event::new(&rank.context).unwrap());
            let (buf, copy) = (rank.upload(&[rank.rank as f32 + 1.0; 4]), rank.upload(&[0f32; 4]));
            assert!(!end.is_complete().unwrap(), "not recorded yet");
            assert!(start.elapsed_ms(&end).is_err());
            start.record(rank.stream()).unwrap();
            sum(&rank, &buf).unwrap();
            sum(&rank, &buf).unwrap();
            end.record(rank.stream()).unwrap();
            other.wait(&end).unwrap();
            let kind = ascend_sys::sys::AclrtMemcpyKind::DEVICE_TO_DEVICE;
            let (to, from) = (copy.as_ptr(), buf.as_ptr());
            // SAFETY: both buffers live until the stream has been waited for.
            unsafe { acl::memcpy_async(rank.libs, to, 16, from, 16, kind, other.raw()) }.unwrap();
            other.synchronize().unwrap();
            assert!(end.is_complete().unwrap() && start.elapsed_ms(&end).unwrap() >= 0.0);
            assert_eq!(rank.download::<f32>(&copy), [6.0; 4]);
        });
    });
}

#[test]
fn arguments_are_compared_at_the_first_call_only() {
    case(&[("HCCL_CONNECT_TIMEOUT", "20"), ("HCCL_EXEC_TIMEOUT", "0.3")]).run(|world| {
        world.threads(2, |rank| {
            let buf = rank.upload(&[1f32; 8]);
            let (ptr, comm, stream) = (buf.as_ptr(), rank.comm.raw(), rank.stream().raw());
            let broadcast = |count: u64| {
                // SAFETY: the buffer lives until the stream has been waited for.
                unsafe { hccl::broadcast(rank.libs, ptr, count, Type::FP32, 0, comm, stream) }
            };
            let error = broadcast(4 + u64::from(rank.rank)).unwrap_err();
            assert!(error.is_hccl(HcclResult::E_PARA) && error.reports()[0].code == "EI0005", "{error}");
            assert!(error.to_string().contains("count 5"), "{error}");
            broadcast(4).unwrap();
            rank.stream().synchronize().unwrap();
            // Nobody looks any more: it hangs until the deadline.
            broadcast(4 + u64::from(rank.rank)).unwrap();
            let error = rank.stream().synchronize().unwrap_err();
            assert!(error.is_acl(AclError::RT_FFTS_PLUS_TIMEOUT) && error.reports()[0].code == "EI0002", "{error}");
        });
    });
}

#[test]
fn both_sending_first_waits_until_the_deadline() {
    case(&[("HCCL_CONNECT_TIMEOUT", "0.3"), ("HCCL_EXEC_TIMEOUT", "20")]).run(|world| {
        world.threads(2, |rank| {
            let buf = rank.upload(&[1f32; 8]);
            let (ptr, peer) = (buf.as_ptr(), 1 - rank.rank);
            let (comm, stream) = (rank.comm.raw(), rank.stream().raw());
            // SAFETY: the buffer lives until the call has failed.
            let error = unsafe { hccl::send(rank.libs, ptr, 8, Type::FP32, peer, comm, stream) }.unwrap_err();
            assert!(error.is_hccl(HcclResult::E_TIMEOUT) && error.reports()[0].code == "EI0006", "{error}");
        });
    });
}

#[test]
fn each_chip_refuses_what_it_lacks() {
    for (soc, kind, op, works) in [
        ("Ascend910B3", Type::BFP16, Op::SUM, true),
        ("Ascend910B3", Type::BFP16, Op::PROD, false),
        ("Ascend910B3", Type::FP64, Op::SUM, false),
        ("Ascend910B3", Type::UINT8, Op::MAX, false),
        ("Ascend910A", Type::BFP16, Op::SUM, false),
        ("Ascend910A", Type::INT64, Op::PROD, true),
        ("Ascend910_9391", Type::INT64, Op::MIN, true),
        ("Ascend950PR", Type::FP64, Op::SUM, true),
        ("Ascend310P3", Type::INT16, Op::SUM, true),
        ("Ascend310P3", Type::INT16, Op::MAX, false),
    ] {
        case(&[("HCCL_STAND_IN_SOC", soc)]).run(|world| {
            let soc = acl::soc_name(world.libs).unwrap().unwrap();
            world.threads(1, |rank| {
                let buf = rank.upload(&[0f64; 4]);
                let (ptr, comm, stream) = (buf.as_ptr(), rank.comm.raw(), rank.stream().raw());
                // SAFETY: the buffer lives until the stream has been waited for.
                let done = unsafe { hccl::all_reduce(rank.libs, ptr, ptr, 4, kind, op, comm, stream) };
                rank.stream().synchronize().unwrap();
                let refused = done.is_err_and(|error| error.is_hccl(HcclResult::E_NOT_SUPPORT));
                assert_eq!(refused, !works, "{soc} {kind:?} {op:?}");
                // SAFETY: as above.
                let done = unsafe { hccl::broadcast(rank.libs, ptr, 4, Type::INT8, 0, comm, stream) };
                assert_eq!(done.is_err(), soc.starts_with("Ascend310P"));
                rank.stream().synchronize().unwrap();
            });
        });
    }
}

#[test]
fn wrong_memory_is_refused() {
    case(SHORT).run(|world| {
        world.threads(2, |rank| {
            let buf = rank.upload(&[1f32; 8]);
            let mut host = [0f32; 8];
            let (comm, stream) = (rank.comm.raw(), rank.stream().raw());
            let reduce = |ptr: *mut std::ffi::c_void, count: u64, kind| {
                // SAFETY: refused before anything is enqueued.
                unsafe { hccl::all_reduce(rank.libs, ptr, ptr, count, kind, Op::SUM, comm, stream) }.unwrap_err()
            };
            let f32s = Type::FP32;
            let freed = rank.upload(&[1f32; 8]).as_ptr();
            for error in [
                reduce(host.as_mut_ptr().cast(), 8, f32s),
                reduce(freed, 8, f32s),
                reduce(buf.as_ptr(), 9, f32s),
                reduce(buf.as_ptr().wrapping_byte_add(1), 4, f32s),
                reduce(buf.as_ptr(), 1 << 35, Type::INT8),
            ] {
                assert!(error.is_hccl(HcclResult::E_PARA) && error.reports()[0].code == "EI0003", "{error}");
            }
            assert!(reduce(std::ptr::null_mut(), 1, f32s).is_hccl(HcclResult::E_PTR));
            let error = DeviceMemory::new(&rank.context, 1 << 40).unwrap_err();
            assert!(error.is_acl(AclError::RT_MEMORY_ALLOCATION), "{error}");
            let (free, total) = acl::mem_info(rank.libs, ascend_sys::sys::AclrtMemAttr::HBM).unwrap();
            // Two buffers of 200 MB belong to the communicator.
            assert!(total == 64 << 30 && free <= total - (400 << 20), "{free} of {total}");
        });
    });
}

#[test]
fn threads_must_be_bound_to_the_right_device() {
    case(SHORT).run(|world| {
        world.threads(2, |rank| {
            let buf = rank.upload(&[1f32; 8]);
            let other = world.context(2);
            other.enter().unwrap();
            let error = sum(&rank, &buf).unwrap_err();
            assert!(error.is_hccl(HcclResult::E_PARA) && error.to_string().contains("device"), "{error}");
            // SAFETY: the stream is alive.
            let error = unsafe { acl::synchronize_stream(rank.libs, rank.stream().raw()) }.unwrap_err();
            assert!(error.is_acl(AclError::RT_STREAM_CONTEXT), "{error}");
        });
    });
}

#[test]
fn sub_communicators_and_names() {
    case(SHORT).run(|world| {
        world.threads(3, |rank| {
            let config = HcclCommConfig::new(hccl::config_version(rank.libs));
            let stream = Stream::new(&rank.context).unwrap();
            let ids = [2, 0];
            let member = ids.iter().position(|id| *id == rank.rank);
            let member = member.map(|new| hccl::SubComm { id: 7, rank_ids: &ids, rank: new as u32 });
            let sub = rank.comm.create_sub(stream, member, &config).unwrap();
            assert_eq!(sub.is_some(), rank.rank != 1);
            let Some(sub) = sub else { return };
            assert_eq!((sub.rank().unwrap(), sub.size().unwrap()), (u32::from(rank.rank == 0), 2));
            let rank = Rank { comm: sub, ..rank };
            let buf = rank.upload(&[rank.rank as f32; 3]);
            sum(&rank, &buf).unwrap();
            assert_eq!(rank.download::<f32>(&buf), [2.0; 3]);
        });
        let info = Comm::root_info(&world.context(0)).unwrap();
        let mut config = HcclCommConfig::new(hccl::config_version(world.libs));
        config.set_comm_name("bench").unwrap();
        let rank = world.join(0, 0, 1, &info, Some(&config));
        assert_eq!(rank.comm.name().unwrap(), "bench");
        let info = Comm::root_info(&world.context(0)).unwrap();
        config.set_op_expansion_mode(4).unwrap();
        let rank = world.join(0, 0, 1, &info, Some(&config));
        let error = sum(&rank, &rank.upload(&[1f32])).unwrap_err();
        assert!(error.is_hccl(HcclResult::E_NOT_SUPPORT), "{error}");
    });
}

#[test]
fn a_rank_table_brings_processes_together_twice() {
    case(SHORT).processes(2).run(|world| {
        let path = world.dir.join("table.json");
        let draft = world.dir.join(format!("draft-{}", world.rank));
        let table = r#"{"version":"1.0","status":"completed","server_count":"1","server_list":[{"server_id":"a","device":[
            {"device_id":"0","rank_id":"0"},{"device_id":"1","rank_id":"1"}]}]}"#;
        std::fs::write(&draft, table).unwrap();
        std::fs::rename(&draft, &path).unwrap();
        let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let context = world.context(world.rank as i32);
        for _ in 0..2 {
            let stream = Stream::new(&context).unwrap();
            let how = RankTableComm { path: &path, rank: world.rank, config: None };
            let comm = Comm::from_rank_table(stream, how).unwrap();
            let rank = Rank { libs: world.libs, rank: world.rank, size: 2, comm, context: context.clone() };
            let buf = rank.upload(&[rank.rank as f32 + 1.0; 3]);
            sum(&rank, &buf).unwrap();
            assert_eq!(rank.download::<f32>(&buf), [3.0; 3]);
        }
        let stream = Stream::new(&context).unwrap();
        let how = RankTableComm { path: c"/no/such/table.json", rank: 0, config: None };
        let error = Comm::from_rank_table(stream, how).unwrap_err();
        assert!(error.is_hccl(HcclResult::E_OPEN_FILE_FAILURE) && error.reports()[0].code == "EI0004", "{error}");
    });
}

#[test]
fn old_versions_know_less() {
    for (cann, version) in [
        ("8.0.RC2", ConfigVersion::V1),
        ("8.0.0", ConfigVersion::V2),
        ("8.1.RC1", ConfigVersion::V5),
        ("8.3.RC1", ConfigVersion::V6),
        ("8.5.0", ConfigVersion::V8),
    ] {
        case(&[("HCCL_STAND_IN_CANN", cann), ("HCCL_STAND_IN_HCCL", "3.2")]).run(|world| {
            let told = acl::package_version(world.libs, AclCannPackageName::CANN).unwrap();
            assert_eq!(hccl::config_version(world.libs), version, "{told}");
            assert_eq!(acl::package_version(world.libs, AclCannPackageName::HCCL).unwrap(), "3.2");
            let info = Comm::root_info(&world.context(0)).unwrap();
            // A newer configuration than the library's is read as far as the library knows it.
            let mut config = HcclCommConfig::new(ConfigVersion::V9);
            config.set_exec_timeout(7).unwrap();
            world.join(0, 0, 1, &info, Some(&config));
        });
    }
}

#[test]
fn an_old_library_works_without_its_later_functions() {
    let old = case(&[("HCCL_STAND_IN_CANN", "8.1.RC1")]).without(support::stand_in::AFTER_CANN_8_1);
    old.run(|world| {
        let missing: Vec<_> = world.libs.hccl.missing().map(|symbol| symbol.name).collect();
        assert!(support::stand_in::AFTER_CANN_8_1.iter().all(|name| missing.contains(name)), "{missing:?}");
        assert!(hccl::group_start(world.libs).unwrap_err().is_missing());
        world.threads(2, |rank| {
            let buf = rank.upload(&[rank.rank as f32; 3]);
            sum(&rank, &buf).unwrap();
            assert_eq!(rank.download::<f32>(&buf), [1.0; 3]);
        });
    });
}

#[test]
fn variables_that_are_not_understood_are_named() {
    case(&[("HCCL_EXEC_TIMEOUT", "soon")]).run(|world| {
        let context = world.context(0);
        let info = Comm::root_info(&context).unwrap();
        let how = RootInfoComm { ranks: 1, rank: 0, info: &info, config: None };
        let error = Comm::from_root_info(Stream::new(&context).unwrap(), how).unwrap_err();
        assert!(error.is_hccl(HcclResult::E_PARA) && error.reports()[0].code == "EI0001", "{error}");
        assert!(error.to_string().contains("HCCL_EXEC_TIMEOUT"), "{error}");
    });
}

#[test]
fn what_only_exists_says_so() {
    case(SHORT).names(support::stand_in::NEW_NAMES).run(|world| {
        world.threads(1, |rank| {
            // SAFETY: the communicator is alive.
            let error = unsafe { hccl::comm_suspend(rank.libs, rank.comm.raw()) }.unwrap_err();
            assert!(error.is_hccl(HcclResult::E_NOT_SUPPORT), "{error}");
            assert!(matches!(
                rank.libs.hccl.HcclGetRootInfoScalable().unwrap_err().to_string(),
                text if text.contains("HcclGetRootInfoScalable")
            ));
            assert_eq!(rank.comm.async_error().unwrap(), HcclResult::SUCCESS);
            world.faults("CommAsyncError=return:21");
            assert_eq!(rank.comm.async_error().unwrap(), HcclResult::E_REMOTE);
        });
        let (context, mut info) = (world.context(0), Comm::root_info(&world.context(0)).unwrap());
        info.internal[4107] ^= 1;
        let how = RootInfoComm { ranks: 1, rank: 0, info: &info, config: None };
        let error = Comm::from_root_info(Stream::new(&context).unwrap(), how).unwrap_err();
        assert!(error.is_hccl(HcclResult::E_PARA) && error.to_string().contains("cut on its way"), "{error}");
    });
}

#[test]
fn missing_functions_are_named() {
    case(SHORT).without(&["HcclBarrier", "aclrtGetSocName"]).run(|world| {
        world.threads(1, |rank| {
            let error = rank.comm.barrier().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Missing(_)) && error.symbol() == "HcclBarrier", "{error}");
        });
        assert!(acl::soc_name(world.libs).unwrap_err().is_missing());
    });
}
