//! What a program sees of ranks on NPUs.

use crate::support::wait_until;
use crate::{Case, npus};
use hccl::prelude::*;
use hccl::{Device, ErrorKind, Result};
use std::time::{Duration, Instant};

#[test]
fn buffers_live_on_the_device_of_their_rank() {
    Case::new(module_path!(), "buffers_live_on_the_device_of_their_rank").run(|| {
        npus(60)
            .local(3, |comm| {
                let rank = comm.rank().index();
                assert_eq!(comm.device(), Device::Npu(rank as u32));
                let mut buf = comm.upload(&[rank as i32, 5, -7])?;
                assert_eq!((buf.device(), buf.as_slice(), buf.len()), (comm.device(), None, 3));
                let copy = buf.try_clone()?;
                buf.fill(9)?;
                buf.copy_from_slice(&[1, 2, rank as i32])?;
                assert!(buf.copy_from_slice(&[1]).is_err());
                assert_eq!((buf.to_vec()?, copy.to_vec()?), (vec![1, 2, rank as i32], vec![rank as i32, 5, -7]));
                assert!(comm.zeros::<f64>(0)?.to_vec()?.is_empty());
                comm.all_reduce(&mut buf.range_mut(1..)?, Sum)?;
                assert_eq!(buf.to_vec()?, [1, 6, 3]);
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn a_buffer_of_another_device_is_refused_by_name() {
    Case::new(module_path!(), "a_buffer_of_another_device_is_refused_by_name").run(|| {
        npus(60)
            .local(2, |comm| {
                let other = Device::Npu(1 - comm.rank().index() as u32);
                for (device, name) in [(other, other.to_string()), (Device::Cpu, "CPU".to_owned())] {
                    let mut buf = DeviceBuffer::from_slice(device, &[1_u8])?;
                    let error = comm.all_reduce(&mut buf, Sum).unwrap_err();
                    let text = error.to_string();
                    assert!(error.is_recoverable() && text.contains(&format!("on {name}")), "{text}");
                    assert!(text.contains(&format!("this communicator on {}", comm.device())), "{text}");
                    let back = comm.all_gather_async(vec![1_u8], DeviceBuffer::from_slice(device, &[0_u8; 2])?);
                    assert!(back.unwrap_err().error.is_recoverable());
                }
                sum(&comm)
            })
            .unwrap();
        let cpu = hccl::local(1, |comm| comm.all_reduce(&mut DeviceBuffer::from_slice(Device::Npu(0), &[1_u8])?, Sum));
        assert!(cpu.unwrap_err().to_string().contains("the buffer is on NPU 0, this communicator on CPU"));
    });
}

fn sum(comm: &Communicator) -> Result<()> {
    let mut x = [comm.rank().index() as u32 + 1];
    comm.all_reduce(&mut x, Sum)?;
    let n = comm.size() as u32;
    assert_eq!(x[0], n * (n + 1) / 2);
    Ok(())
}

#[test]
fn without_libraries_an_error_says_what_was_tried() {
    Case::new(module_path!(), "without_libraries_an_error_says_what_was_tried").without_libraries().run(|| {
        let errors = [
            npus(5).from_env().unwrap_err(),
            npus(5).init_all(2).unwrap_err(),
            DeviceBuffer::<f32>::zeros(Device::Npu(4), 1).unwrap_err(),
        ];
        for error in errors {
            let text = error.to_string();
            assert!(matches!(error.kind(), ErrorKind::Unsupported { .. }), "{text}");
            let parts = ["NPU", "libhccl.so", "libascendcl.so", "/nowhere/ascend/lib64", "hccl doctor"];
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
    });
}

#[test]
fn a_device_that_is_not_there() {
    Case::new(module_path!(), "a_device_that_is_not_there").set("HCCL_STAND_IN_DEVICES", "2").run(|| {
        let error = npus(5).init_all(3).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("NPU 2") && text.contains("ASCEND_RT_VISIBLE_DEVICES"), "{text}");
        npus(60).local(2, |comm| sum(&comm)).unwrap();
    });
}

#[test]
fn two_ranks_on_one_device_are_refused() {
    Case::new(module_path!(), "two_ranks_on_one_device_are_refused").ranks(2, |_| {
        let error = Communicator::builder().device(Device::Npu(1)).from_env().unwrap_err();
        let text = error.to_string();
        assert!(text.contains("physical NPU 1") || error.is_knock_on(), "{text}");
    });
}

#[test]
fn worlds_after_worlds() {
    Case::new(module_path!(), "worlds_after_worlds").run(|| {
        for round in 0..8 {
            let results = npus(60).local_results(2, |comm| {
                sum(&comm)?;
                match round % 4 {
                    0 => drop(comm),
                    1 => comm.close()?,
                    2 => {
                        comm.abort_handle().abort();
                        assert!(matches!(comm.barrier().unwrap_err().kind(), ErrorKind::Aborted { .. }));
                    }
                    _ => drop(comm.all_reduce_async(comm.zeros::<f32>(9000)?, Avg)?),
                }
                Ok::<(), hccl::Error>(())
            });
            // An abort may come while the other rank is still in its first call.
            let results = results.unwrap();
            assert!(round % 4 == 2 || results.iter().all(Result::is_ok), "{round}: {results:?}");
        }
    });
}

/// The others wait inside HCCL, which would not tell them.
#[test]
fn a_late_rank_ends_a_known_call_by_the_deadline() {
    Case::new(module_path!(), "a_late_rank_ends_a_known_call_by_the_deadline").run(|| {
        let start = Instant::now();
        npus(2)
            .local(3, |comm| {
                let mut buf = comm.upload(&[1_f32; 700])?;
                comm.all_reduce(&mut buf, Sum)?;
                if comm.rank().index() == 2 {
                    wait_until("the others have given up", || comm.failure().is_some());
                }
                let error = comm.all_reduce(&mut buf, Sum).unwrap_err();
                assert!(error.is_timeout(), "{error}");
                assert_eq!(comm.barrier().unwrap_err().kind(), error.kind());
                Ok(())
            })
            .unwrap();
        assert!(start.elapsed() < Duration::from_secs(20));
    });
}

/// A call that all ranks have made meets one that is new: the ranks that see no need to compare are asked to.
#[test]
fn a_known_call_against_a_new_one() {
    Case::new(module_path!(), "a_known_call_against_a_new_one").run(|| {
        npus(60)
            .local(3, |comm| {
                let mut buf = comm.upload(&[1_f32; 40])?;
                for _ in 0..3 {
                    comm.all_reduce(&mut buf, Sum)?;
                }
                let start = Instant::now();
                let error = match comm.rank().index() {
                    1 => comm.all_reduce(&mut buf.range_mut(..30)?, Sum).unwrap_err(),
                    _ => comm.all_reduce(&mut buf, Sum).unwrap_err(),
                };
                let text = error.to_string();
                assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{text}");
                assert!(text.contains("f32 x 30") && text.contains("f32 x 40"), "{text}");
                assert!(start.elapsed() < Duration::from_secs(30), "long before the deadline");
                Ok(())
            })
            .unwrap();
    });
}

/// Two known calls that differ show when every call is compared.
#[test]
fn two_known_calls_that_differ() {
    Case::new(module_path!(), "two_known_calls_that_differ").set("HCCL_CHECK", "1").run(|| {
        npus(60)
            .local(2, |comm| {
                let mut buf = comm.upload(&[1_f32; 40])?;
                comm.all_reduce(&mut buf, Sum)?;
                comm.all_reduce(&mut buf, Max)?;
                let result = match comm.rank().index() {
                    0 => comm.all_reduce(&mut buf, Max),
                    _ => comm.all_reduce(&mut buf, Sum),
                };
                assert!(matches!(result.unwrap_err().kind(), ErrorKind::Mismatch { .. }));
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn a_variable_that_is_neither_0_nor_1() {
    Case::new(module_path!(), "a_variable_that_is_neither_0_nor_1").set("HCCL_CHECK", "maybe").run(|| {
        let text = npus(5).init_all(1).unwrap_err().to_string();
        assert!(text.contains("HCCL_CHECK") && text.contains("0 or 1"), "{text}");
    });
}

/// Libraries of CANN 8.1, and one that lacks whatever can be missed.
#[test]
fn what_an_old_library_lacks_is_built() {
    let lacks: &[&[&str]] = &[
        &["HcclAlltoAllVC", "HcclCommGetHandleWithName", "HcclConfigGetInfo", "HcclGroupEnd", "HcclGroupStart"],
        &[
            "HcclAllGatherV",
            "HcclAlltoAll",
            "HcclBarrier",
            "HcclBatchSendRecv",
            "HcclCommInitAll",
            "HcclCommInitRootInfoConfig",
            "HcclCreateSubCommConfig",
            "HcclReduce",
            "HcclReduceScatterV",
        ],
    ];
    for lacks in lacks {
        Case::new(module_path!(), "what_an_old_library_lacks_is_built").without(lacks).run(|| {
            npus(60).local(3, |comm| one_of_each(&comm)).unwrap();
        });
    }
}

/// Chips whose tables differ; the results do not.
#[test]
fn every_chip_gives_the_same_results() {
    for soc in ["Ascend910A", "Ascend910B3", "Ascend910_9391", "Ascend950PR_9589"] {
        Case::new(module_path!(), "every_chip_gives_the_same_results").set("HCCL_STAND_IN_SOC", soc).run(|| {
            npus(60).local(3, |comm| one_of_each(&comm)).unwrap();
        });
    }
}

/// Every call once, with dtypes that take different ways.
fn one_of_each(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    let (next, last) = (comm.peer((rank + 1) % n)?, comm.peer((rank + n - 1) % n)?);
    let root = comm.root(1)?;
    let mut bytes = vec![rank as u8 + 250; 7];
    comm.all_reduce(&mut bytes, Sum)?;
    assert_eq!(bytes, [(3_u32 * 250 + 3) as u8; 7]);
    let mut product = comm.upload(&[rank as i16 + 2; 5])?;
    comm.all_reduce(&mut product, Prod)?;
    assert_eq!(product.to_vec()?, [24; 5]);
    let mut halves = [half::bf16::from_f32(rank as f32); 3];
    comm.all_reduce(&mut halves, Avg)?;
    assert_eq!(halves, [half::bf16::ONE; 3]);
    let mut doubles = comm.upload(&[rank as f64 - 1.0, 4.0])?;
    comm.reduce(&mut doubles, Min, root)?;
    assert_eq!(doubles.to_vec()?[0], if rank == 1 { -1.0 } else { rank as f64 - 1.0 });
    let counts = [2, 0, 3];
    let mut parts = vec![0_i32; 5];
    comm.all_gather_v(&vec![rank as i32; counts[rank]], &mut parts, &counts)?;
    assert_eq!(parts, [0, 0, 2, 2, 2]);
    let mut own = vec![0_f32; counts[rank]];
    comm.reduce_scatter_v(&[1.5, 2.5, 3.0, 4.0, 5.0], &mut own, &counts, Avg)?;
    assert_eq!(own, [&[1.5, 2.5][..], &[], &[3.0, 4.0, 5.0]][rank]);
    let mut all = vec![0_u64; n];
    comm.gather(&[rank as u64 * 3], comm.is_root(root).then_some(&mut all), root)?;
    assert_eq!(all, if rank == 1 { [0, 3, 6] } else { [0; 3] });
    let mut one = [0_u64];
    comm.scatter(comm.is_root(root).then_some(&all), &mut one, root)?;
    assert_eq!(one, [rank as u64 * 3]);
    let mut crossed = vec![0_u16; n];
    comm.all_to_all(&vec![rank as u16; n], &mut crossed)?;
    assert_eq!(crossed, [0, 1, 2]);
    let (mut got, sent) = ([0_i64; 4], [rank as i64; 4]);
    comm.batch_send_recv(|batch| {
        batch.send(&sent, next)?;
        batch.recv(&mut got, last)
    })?;
    assert_eq!(got, [last.index() as i64; 4]);
    comm.barrier()?;
    let half = comm.split(Some(u64::from(rank > 0)), 0)?.expect("all have a colour");
    sum_of(&half)?;
    let quarter = half.duplicate()?;
    drop(half);
    sum_of(&quarter)
}

fn sum_of(comm: &Communicator) -> Result<()> {
    let mut x = comm.upload(&[1_u32; 70])?;
    comm.all_reduce(&mut x, Sum)?;
    assert_eq!(x.to_vec()?, [comm.size() as u32; 70]);
    Ok(())
}

#[test]
fn what_a_chip_lacks_is_refused_with_an_alternative() {
    let case = Case::new(module_path!(), "what_a_chip_lacks_is_refused_with_an_alternative");
    case.set("HCCL_STAND_IN_SOC", "Ascend310P3").run(|| {
        npus(60)
            .local(2, |comm| {
                let root = comm.root(0)?;
                let other = comm.peer(1 - comm.rank().index())?;
                let errors = [
                    (comm.broadcast(&mut [1_u8], root).unwrap_err(), "all_gather"),
                    (comm.send(&[1_u8], other).unwrap_err(), "all_to_all_v"),
                    (comm.scatter(Some(&[1_u8, 2]), &mut [0_u8], root).unwrap_err(), "all_gather"),
                ];
                for (error, instead) in errors {
                    let text = error.to_string();
                    assert!(error.is_recoverable() && text.contains("Ascend 310P") && text.contains(instead), "{text}");
                }
                let mut x = [comm.rank().index() as f32];
                comm.reduce(&mut x, Avg, root)?;
                assert_eq!(x[0], if comm.rank().index() == 0 { 0.5 } else { 1.0 });
                comm.barrier()?;
                sum(&comm)
            })
            .unwrap();
    });
}

#[test]
fn a_world_by_rank_table() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table.json");
    let table = r#"{ "version": "1.0", "status": "completed", "server_count": "1", "server_list": [
      { "server_id": "a", "device": [ { "device_id": "3", "rank_id": "1" }, { "device_id": "5", "rank_id": "0" } ] } ] }"#;
    std::fs::write(&path, table).unwrap();
    let case = Case::new(module_path!(), "a_world_by_rank_table");
    case.set("RANK_TABLE_FILE", path.to_str().unwrap()).ranks(2, |rank| {
        let device = |number: u32| Communicator::builder().device(Device::Npu(number));
        let comm = device([5, 3][rank]).from_env().unwrap();
        assert_eq!((comm.rank().index(), comm.size()), (rank, 2));
        sum(&comm).unwrap();
        drop(comm);
        let again = device([5, 3][rank]).from_env().unwrap();
        sum(&again).unwrap();
    });
}

#[test]
fn a_rank_table_that_does_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table.json");
    std::fs::write(&path, "{ \"version\": \"1.0\",\n \"status\": \"completed\",\n \"server_count\": 1 }").unwrap();
    let case = Case::new(module_path!(), "a_rank_table_that_does_not_fit");
    case.set("RANK_TABLE_FILE", path.to_str().unwrap()).run(|| {
        let text = npus(5).from_env().unwrap_err().to_string();
        assert!(text.contains("table.json") && text.contains("line 1: the file has no server_list"), "{text}");
    });
}
