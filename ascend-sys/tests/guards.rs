//! Calling through the tables and the guards, against the stand-ins.
#![cfg(target_os = "linux")]
#![expect(unsafe_code, reason = "enqueues work with buffers of the tests")]

mod common;

use std::{
    ffi::{c_char, c_int, c_void},
    time::Duration,
};

use ascend_sys::{
    Error, ErrorKind, Libraries, Search,
    result::{acl, hccl},
    safe::{Comm, Context, Device, DeviceMemory, Event, RankTableComm, RootInfoComm, Stream},
    sys::{
        AclCannPackageName, AclError, AclrtMemAttr, AclrtStream, ConfigVersion, HcclComm, HcclCommConfig,
        HcclCommStatePhase, HcclConfig, HcclDataType, HcclReduceOp, HcclResult, HcclRootInfo, HcclSendRecvItem,
        HcclSendRecvType,
    },
};
use common::Folder;

struct World {
    folder: Folder,
    libs: &'static Libraries,
}

impl World {
    fn new() -> Self {
        let folder = Folder::complete();
        // SAFETY: the folder holds our stand-ins.
        let libs = unsafe { Libraries::open(&Search::in_dir(folder.path())) }.unwrap();
        Self { folder, libs: Box::leak(Box::new(libs)) }
    }

    fn number(&self, library: &str, name: &str) -> c_int {
        let call: unsafe extern "C" fn() -> c_int = self.folder.control(library, name);
        // SAFETY: takes nothing.
        unsafe { call() }
    }

    fn set(&self, library: &str, name: &str, value: c_int) {
        let call: unsafe extern "C" fn(c_int) = self.folder.control(library, name);
        // SAFETY: takes a number.
        unsafe { call(value) }
    }

    fn say(&self, text: &'static std::ffi::CStr) {
        let call: unsafe extern "C" fn(*const c_char) = self.folder.control("libascendcl.so", "stand_in_say");
        // SAFETY: the text lives for ever.
        unsafe { call(text.as_ptr()) }
    }

    fn fail(&self, symbol: &'static std::ffi::CStr, code: c_int) {
        let call: unsafe extern "C" fn(*const c_char, c_int) = self.folder.control("libascendcl.so", "stand_in_fail");
        // SAFETY: the name lives for ever.
        unsafe { call(symbol.as_ptr(), code) }
    }

    fn seen(&self, i: c_int) -> u64 {
        let call: unsafe extern "C" fn(c_int) -> u64 = self.folder.control("libhccl.so", "stand_in_seen");
        // SAFETY: takes a number.
        unsafe { call(i) }
    }

    fn live(&self) -> (c_int, c_int, c_int) {
        (
            self.number("libascendcl.so", "stand_in_live"),
            self.number("libascendcl.so", "stand_in_devices_set"),
            self.number("libhcomm.so", "stand_in_comms"),
        )
    }

    fn context(&self) -> Context {
        Device::open(self.libs, 1).unwrap().default_context()
    }

    fn comm(&self, context: &Context) -> Comm {
        let info = Comm::root_info(context).unwrap();
        let how = RootInfoComm { ranks: 3, rank: 2, info: &info, config: None };
        Comm::from_root_info(Stream::new(context).unwrap(), how).unwrap()
    }
}

#[test]
fn guards_give_everything_back_in_any_order() {
    let world = World::new();
    let device = Device::open(world.libs, 0).unwrap();
    let context = Context::create(&device).unwrap();
    let stream = Stream::new(&context).unwrap();
    let (first, second) = (Event::new(&context).unwrap(), Event::new(&context).unwrap());
    first.record(&stream).unwrap();
    second.record(&stream).unwrap();
    second.record(&stream).unwrap();
    assert_eq!(first.elapsed_ms(&second).unwrap(), 2.5);
    assert!(second.is_complete().unwrap() && stream.is_idle().unwrap());
    let memory = DeviceMemory::new(&context, 10).unwrap();
    let comm = world.comm(&context);
    assert_eq!(world.live(), (6, 1, 1));
    drop(device);
    drop(context);
    drop(comm);
    drop(first);
    drop(memory);
    assert_eq!(world.live(), (3, 1, 0));
    stream.wait(&second).unwrap();
    drop(second);
    assert_eq!(world.live(), (3, 1, 0), "an event stays until its stream has passed it");
    assert!(stream.synchronize_for(Duration::from_millis(5)).unwrap());
    assert_eq!(world.live(), (2, 1, 0));
    drop(stream);
    assert_eq!(world.live(), (0, 0, 0));
    assert_eq!(world.libs.take_drop_errors(), []);
}

#[test]
fn a_device_can_be_opened_again_and_a_wrong_one_is_explained() {
    let world = World::new();
    for _ in 0..2 {
        let device = Device::open(world.libs, 1).unwrap();
        assert_eq!(acl::current_device(world.libs).unwrap(), 1);
        drop(device);
        assert_eq!(world.live(), (0, 0, 0));
    }
    let error = Device::open(world.libs, 7).unwrap_err();
    assert!(error.is_acl(AclError::RT_INVALID_DEVICE_ID));
    let text = error.to_string();
    assert!(text.starts_with("aclrtSetDevice failed: ACL_ERROR_RT_INVALID_DEVICEID (107001)"), "{text}");
    assert!(text.contains("ASCEND_RT_VISIBLE_DEVICES"), "{text}");
}

#[test]
fn a_device_that_could_not_be_opened_fully_is_unbound_again() {
    let world = World::new();
    world.fail(c"aclrtGetCurrentContext", 507010);
    assert!(Device::open(world.libs, 1).unwrap_err().is_acl(AclError::RT_LOST_HEARTBEAT));
    assert_eq!(world.live(), (0, 0, 0));
}

#[test]
fn guards_of_two_libraries_do_not_meet() {
    let (one, two) = (World::new(), World::new());
    let (ours, theirs) = (one.context(), two.context());
    let (stream, event) = (Stream::new(&ours).unwrap(), Event::new(&theirs).unwrap());
    for refused in [stream.wait(&event), event.record(&stream)] {
        assert!(refused.unwrap_err().to_string().contains("two different openings"));
    }
    assert!(Event::new(&ours).unwrap().elapsed_ms(&event).is_err());
    let config = HcclCommConfig::new(ConfigVersion::V9);
    let comm = one.comm(&ours);
    assert!(comm.create_sub(Stream::new(&theirs).unwrap(), None, &config).is_err());
    let other = Device::open(one.libs, 0).unwrap().default_context();
    let error = comm.create_sub(Stream::new(&other).unwrap(), None, &config).unwrap_err();
    assert!(error.to_string().contains("the stream is of device 0, the communicator of 1"), "{error}");
}

#[test]
fn memory_holds_what_is_written_and_refuses_what_is_outside() {
    let world = World::new();
    let context = world.context();
    let mut memory = DeviceMemory::new(&context, 8).unwrap();
    memory.fill(9).unwrap();
    memory.write(3, &[1, 2, 4]).unwrap();
    let mut back = [0; 6];
    memory.read(1, &mut back).unwrap();
    assert_eq!(back, [9, 9, 1, 2, 4, 9]);
    for (offset, len) in [(8, 1), (0, 9), (usize::MAX, 2)] {
        let error = memory.write(offset, &vec![0; len]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Argument(_)), "{error}");
    }
    memory.write(8, &[]).unwrap();
    let mut none = DeviceMemory::new(&context, 0).unwrap();
    none.fill(1).unwrap();
    assert!(none.is_empty() && none.as_ptr().is_null());
    let error = DeviceMemory::new(&context, 1 << 41).unwrap_err();
    assert!(error.is_acl(AclError::RT_MEMORY_ALLOCATION) && error.to_string().contains("HCCL_BUFFSIZE"), "{error}");
}

#[test]
fn numbers_and_structures_cross_the_interface() {
    let world = World::new();
    let libs = world.libs;
    assert_eq!(acl::api_version(libs).unwrap(), (1, 17, 5));
    assert_eq!(acl::device_count(libs).unwrap(), 2);
    assert_eq!(acl::soc_name(libs).unwrap().as_deref(), Some("Ascend910B1"));
    assert_eq!(acl::mem_info(libs, AclrtMemAttr::HBM).unwrap(), (1001, 2001));
    assert_eq!(acl::package_version(libs, AclCannPackageName::HCCL).unwrap(), "7.7.T17");
    hccl::set_config(libs, HcclConfig::DETERMINISTIC, 2).unwrap();
    assert_eq!(hccl::get_config(libs, HcclConfig::DETERMINISTIC).unwrap(), 2);
    assert!(hccl::group_is_open(libs).unwrap());
    assert_eq!(hccl::config_version(libs), ConfigVersion::V9);
    assert_eq!(hccl::error_string(libs, HcclResult(77)), None);
}

#[test]
fn operators_get_every_argument_in_its_place() {
    let world = World::new();
    let context = world.context();
    let comm = world.comm(&context);
    let (raw, queue) = (comm.raw(), comm.stream().raw());
    let (send, mut recv) = ([1.5f32, -2.25, 8.0], [0f32; 3]);
    let (from, into): (*mut c_void, *mut c_void) = (send.as_ptr().cast_mut().cast(), recv.as_mut_ptr().cast());
    // SAFETY: both buffers have three elements; the stand-in is done when it returns.
    unsafe { hccl::all_reduce(world.libs, from, into, 3, HcclDataType::FP32, HcclReduceOp::MIN, raw, queue) }.unwrap();
    assert_eq!(recv, send);
    assert_eq!([0, 1, 2, 3].map(|i| world.seen(i)), [3, 3, raw.0 as u64, queue.0 as u64]);
    // SAFETY: refused before it is looked at.
    let refused =
        unsafe { hccl::all_reduce(world.libs, from, into, 3, HcclDataType::UINT8, HcclReduceOp::SUM, raw, queue) };
    assert!(refused.unwrap_err().is_hccl(HcclResult::E_NOT_SUPPORT));

    let arrays: [[u64; 2]; 4] = [[1, 11], [2, 22], [3, 33], [4, 44]];
    let [counts, displs, rcounts, rdispls] = [0, 1, 2, 3].map(|i| arrays[i].as_ptr().cast::<c_void>());
    let (st, rt) = (HcclDataType::INT64, HcclDataType::UINT16);
    // SAFETY: the arrays have two entries, which is what the stand-in reads.
    unsafe { hccl::all_to_all_v(world.libs, from, counts, displs, st, into, rcounts, rdispls, rt, raw, queue) }
        .unwrap();
    let seen = [0, 1, 2, 3, 4, 5, 6, 7].map(|i| world.seen(i));
    assert_eq!(seen, [11, 22, 33, 44, 5, 8, raw.0 as u64, queue.0 as u64]);
}

#[test]
fn entries_of_a_batch_have_the_layout_of_the_interface() {
    let world = World::new();
    let item = |kind, buf: usize, count, data_type, remote_rank| HcclSendRecvItem {
        kind,
        buf: buf as *mut c_void,
        count,
        data_type,
        remote_rank,
    };
    let mut items = [
        item(HcclSendRecvType::SEND, 0x1_0000_0010, 1 << 34, HcclDataType::BFP16, 6),
        item(HcclSendRecvType::RECV, 0x20, 21, HcclDataType::INT8, u32::MAX),
    ];
    // SAFETY: the stand-in reads the two entries and nothing they point to.
    unsafe { hccl::batch_send_recv(world.libs, items.as_mut_ptr(), 2, HcclComm::NULL, AclrtStream::NULL) }.unwrap();
    let seen = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(|i| world.seen(i));
    assert_eq!(seen, [0, 0x1_0000_0010, 1 << 34, 11, 6, 1, 0x20, 21, 0, u64::from(u32::MAX)]);
}

#[test]
fn a_configuration_arrives_as_the_c_side_declares_it() {
    let world = World::new();
    let context = world.context();
    assert_eq!(world.number("libhcomm.so", "stand_in_config_layout"), 1);
    let mut config = HcclCommConfig::new(hccl::config_version(world.libs));
    config.set_buffer_size(64).unwrap();
    config.set_exec_timeout(61).unwrap();
    config.set_comm_name("trainers").unwrap();
    config.set_algo("level0:NA;level1:ring").unwrap();
    config.set_job_id(1 << 40).unwrap();
    let info = Comm::root_info(&context).unwrap();
    let how = RootInfoComm { ranks: 2, rank: 1, info: &info, config: Some(&config) };
    let comm = Comm::from_root_info(Stream::new(&context).unwrap(), how).unwrap();
    assert_eq!((comm.rank().unwrap(), comm.size().unwrap(), comm.name().unwrap().as_str()), (1, 2, "trainers"));
    assert_eq!(comm.async_error().unwrap(), HcclResult::E_REMOTE);
    let same: unsafe extern "C" fn(u32, i32, *const c_char, *const c_char, u64) -> c_int =
        world.folder.control("libhcomm.so", "stand_in_config_is");
    // SAFETY: two numbers, two texts, a number.
    let same = unsafe { same(64, 61, c"trainers".as_ptr(), c"level0:NA;level1:ring".as_ptr(), 1 << 40) };
    assert_eq!(same, 1);
}

#[test]
fn root_info_is_carried_byte_by_byte() {
    let world = World::new();
    let context = world.context();
    let info = Comm::root_info(&context).unwrap();
    assert!(info.as_bytes().iter().enumerate().all(|(i, byte)| *byte == (i * 7) as u8));
    let mut carried = *info.as_bytes();
    assert_eq!(HcclRootInfo::from(carried), info);
    carried[4107] ^= 1;
    let spoilt = HcclRootInfo::from(carried);
    let how = RootInfoComm { ranks: 2, rank: 0, info: &spoilt, config: None };
    let error = Comm::from_root_info(Stream::new(&context).unwrap(), how).unwrap_err();
    assert!(error.is_hccl(HcclResult::E_PARA), "{error}");
    let how = RootInfoComm { ranks: 2, rank: 2, info: &info, config: None };
    let error = Comm::from_root_info(Stream::new(&context).unwrap(), how).unwrap_err();
    assert!(error.to_string().contains("rank 2 of 2 ranks"), "{error}");
}

#[test]
fn an_error_carries_the_librarys_words_explained_and_reads_them_once() {
    let world = World::new();
    let context = world.context();
    world.say(c"[PID: 7] EI0004: The rank table is invalid. path /no/such/table.json\n EI4321: more");
    let table = RankTableComm { path: c"/no/such/table.json", rank: 0, config: None };
    let error = Comm::from_rank_table(Stream::new(&context).unwrap(), table).unwrap_err();
    assert_eq!((error.symbol(), error.kind()), ("HcclCommInitClusterInfo", &ErrorKind::Hccl(HcclResult(10))));
    let codes: Vec<&str> = error.reports().iter().map(|report| report.code.as_str()).collect();
    assert_eq!(codes, ["EI0004", "EI4321"]);
    assert!(error.text().unwrap().starts_with("[PID: 7]"));
    let text = error.to_string();
    for part in ["HCCL_E_OPEN_FILE_FAILURE (10)", "EI0004: The rank table is invalid", "remedy: check the path"] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    let again = Comm::from_rank_table(Stream::new(&context).unwrap(), table).unwrap_err();
    assert_eq!(again.text(), None);
    world.say(c"only words");
    let plain = Comm::from_rank_table(Stream::new(&context).unwrap(), table).unwrap_err();
    assert!(plain.to_string().ends_with("the library says: only words"), "{plain}");
}

#[test]
fn a_function_the_library_lacks_is_an_error_before_any_call() {
    let world = World::new();
    let context = world.context();
    let comm = world.comm(&context);
    let error: Error = comm.barrier().unwrap_err();
    assert!(error.is_missing());
    assert_eq!(error.symbol(), "HcclBarrier");
    assert!(error.to_string().contains("libhccl.so and "), "{error}");
}

#[test]
fn an_error_in_drop_is_kept_and_handed_out_once() {
    let world = World::new();
    let context = world.context();
    let stream = Stream::new(&context).unwrap();
    world.fail(c"aclrtDestroyStream", 507010);
    drop(stream);
    let errors = world.libs.take_drop_errors();
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].symbol(), "aclrtDestroyStream");
    assert!(errors[0].is_acl(AclError::RT_LOST_HEARTBEAT));
    assert_eq!(world.libs.take_drop_errors(), []);
}

#[test]
fn drop_errors_do_not_pile_up_without_bound() {
    let world = World::new();
    let context = world.context();
    world.fail(c"aclrtDestroyStream", 507010);
    (0..100).for_each(|_| drop(Stream::new(&context).unwrap()));
    assert_eq!(world.libs.take_drop_errors().len(), 64);
}

#[test]
fn a_communicator_at_work_is_leaked_rather_than_freed_under_its_work() {
    let world = World::new();
    let context = world.context();
    let comm = world.comm(&context);
    comm.set_destroy_wait(Duration::from_millis(1));
    world.set("libascendcl.so", "stand_in_stuck", 1);
    drop(comm);
    let errors = world.libs.take_drop_errors();
    assert!(errors[0].to_string().contains("still running after 1ms"), "{errors:?}");
    drop(context);
    assert_eq!(world.live(), (1, 1, 1), "stream, device and communicator stay");
    assert_eq!(world.libs.take_drop_errors(), []);
}

#[test]
fn work_that_failed_does_not_keep_a_communicator_from_being_destroyed() {
    let world = World::new();
    let context = world.context();
    let comm = world.comm(&context);
    world.fail(c"aclrtSynchronizeStreamWithTimeout", 507048);
    world.say(c"EI0002: The wait execution of the Notify register times out. Reason: rank 1");
    let error = comm.destroy().unwrap_err();
    assert!(error.is_acl(AclError::RT_FFTS_PLUS_TIMEOUT));
    assert_eq!(error.reports()[0].code, "EI0002");
    assert_eq!(world.live(), (0, 1, 0));
}

#[test]
fn a_timed_out_operation_is_not_taken_for_a_wait_that_was_too_short() {
    let world = World::new();
    let context = world.context();
    let stream = Stream::new(&context).unwrap();
    world.set("libascendcl.so", "stand_in_stuck", 1);
    world.say(c"EE1002: Stream synchronize timeout");
    assert!(!stream.synchronize_for(Duration::from_nanos(1)).unwrap());
    world.say(c"EI0002: notify wait of rank 3");
    assert!(stream.synchronize_for(Duration::from_nanos(1)).unwrap_err().reports()[0].code == "EI0002");
}

#[test]
fn a_busy_communicator_is_reported_and_left_alone() {
    let world = World::new();
    let context = world.context();
    let comm = world.comm(&context);
    world.set("libhcomm.so", "stand_in_destroy_code", 20);
    assert!(comm.destroy().unwrap_err().is_hccl(HcclResult::E_AGAIN));
    assert_eq!(world.live(), (1, 1, 1));
}

#[test]
fn parts_of_a_communicator_are_destroyed_before_it() {
    let world = World::new();
    let context = world.context();
    let comm = world.comm(&context);
    let config = HcclCommConfig::new(hccl::config_version(world.libs));
    let stream = || Stream::new(&context).unwrap();
    assert!(comm.create_sub(stream(), None, &config).unwrap().is_none());
    let member = hccl::SubComm { id: 4, rank_ids: &[2, 0], rank: 0 };
    let sub = comm.create_sub(stream(), Some(member), &config).unwrap().unwrap();
    assert_eq!((sub.size().unwrap(), sub.rank().unwrap(), sub.name().unwrap().as_str()), (2, 0, "2"));
    let nested = sub.create_sub(stream(), Some(member), &config).unwrap_err();
    assert!(matches!(nested.kind(), ErrorKind::Argument(_)), "{nested}");
    assert!(comm.destroy().unwrap_err().to_string().contains("sub-communicators are alive"));
    assert_eq!(world.number("libhcomm.so", "stand_in_comms"), 2);
    sub.destroy().unwrap();
    assert_eq!(world.number("libhcomm.so", "stand_in_comms"), 0);
}

#[test]
fn all_devices_of_a_process_at_once() {
    let world = World::new();
    let context = world.context();
    // SAFETY: no other thread builds with these libraries.
    let comms = unsafe { hccl::comm_init_all(world.libs, &[1, 0]) }.unwrap();
    let names: Vec<String> = comms
        .into_iter()
        // SAFETY: just made, and owned by nobody else.
        .map(|raw| unsafe { Comm::from_raw(Stream::new(&context).unwrap(), raw) }.name().unwrap())
        .collect();
    assert_eq!(names, ["1", "0"]);
    assert_eq!(world.number("libhcomm.so", "stand_in_comms"), 0);
    for (devices, says) in [(&[][..], "empty"), (&[3, 1, 3], "device 3 is listed twice")] {
        // SAFETY: as above.
        let error = unsafe { hccl::comm_init_all(world.libs, devices) }.unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn a_callback_is_called_with_its_phase_and_arguments() {
    unsafe extern "C" fn on_state(_: HcclComm, phase: HcclCommStatePhase, args: *mut c_void) -> HcclResult {
        // SAFETY: the argument registered below, which is alive.
        unsafe { args.cast::<HcclCommStatePhase>().write(phase) };
        HcclResult::SUCCESS
    }
    let world = World::new();
    let mut seen = HcclCommStatePhase::INVALID;
    let register = world.libs.hccl.HcclCommRegCommStateCallback().unwrap();
    // SAFETY: the stand-in calls back at once and keeps nothing.
    let code = unsafe { register(c"test".as_ptr(), Some(on_state), (&raw mut seen).cast()) };
    assert_eq!((code, seen), (HcclResult::SUCCESS, HcclCommStatePhase::RESUME_POST));
}
