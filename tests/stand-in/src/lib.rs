//! A stand-in for AscendCL and HCCL: this project's own implementation of their documented C interface over the CPU
//! engine, for tests on machines without a device. It is a test artefact: never published, never installed, and built
//! under a name of its own; only a test's temporary folder gives it the vendor's file names.
//!
//! | part | what it does |
//! | --- | --- |
//! | `acl`, `device`, `stream`, `memory` | devices by number, streams that are threads, events, device memory that the host cannot touch |
//! | `control`, `comm`, `root` | communicators by root info, rank table or list of devices; the first call of each kind |
//! | `operators`, `run`, `chip` | collectives and messages, and what each chip supports |
//! | `fault`, `counts`, `settings` | faults on demand, what is alive, settings from the environment |
//!
//! Environment: `HCCL_STAND_IN_DEVICES` (8), `HCCL_STAND_IN_SOC` (`Ascend910B3`), `HCCL_STAND_IN_CANN` (`9.0.0`),
//! `HCCL_STAND_IN_HCCL` (as CANN), `HCCL_STAND_IN_DRIVER` (`25.2.0`), `HCCL_STAND_IN_HBM_MB` (65536),
//! `HCCL_STAND_IN_FAULTS` (see `fault`), `HCCL_STAND_IN_COUNTS` (see `counts`); `HCCL_CONNECT_TIMEOUT`,
//! `HCCL_EXEC_TIMEOUT` and `HCCL_BUFFSIZE` as documented, except that timeouts may be short and have fractions.
//!
//! Stricter than a device would be, so that mistakes show: device memory is not accessible by the host; every call
//! checks that the thread is bound to the communicator's device and that buffers are live memory of that device; a
//! configuration whose size does not belong to its version is refused; destroying a busy communicator is refused.
//!
//! Like the original: later calls of a kind are not compared, and a rank that died releases nobody before the deadline.
#![cfg(target_os = "linux")]

mod abi;
mod acl;
mod chip;
mod comm;
mod control;
mod counts;
mod device;
mod events;
mod fault;
mod group;
mod handles;
mod memory;
mod messages;
mod operators;
mod root;
mod run;
mod settings;
mod stream;
