//! `hccl doctor` over installations of stand-in libraries, and without any.
#![cfg(target_os = "linux")]

#[path = "../../tests/support/stand_in.rs"]
mod stand_in;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use stand_in::{NEW_NAMES, StandIn};

/// What the command said, and whether it found the machine healthy.
struct Said {
    healthy: bool,
    text: String,
}

impl Said {
    #[track_caller]
    fn has(&self, healthy: bool, parts: &[&str]) {
        assert_eq!(self.healthy, healthy, "{}", self.text);
        parts.iter().for_each(|part| assert!(self.text.contains(part), "{part:?} is not in\n{}", self.text));
    }
}

/// Runs it with these variables and no others of HCCL or Ascend.
fn doctor(args: &[&str], vars: &[(&str, &str)]) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hccl"));
    let foreign = |name: &str| name.starts_with("HCCL_") || name.starts_with("ASCEND_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| foreign(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    let home = tempfile::tempdir().unwrap();
    command.env_remove("LD_LIBRARY_PATH").env("HOME", home.path());
    let output = command.arg("doctor").args(args).envs(vars.iter().copied()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
    let code = output.status.code();
    assert!(code == Some(0) || code == Some(1), "{code:?}: {text}");
    Said { healthy: code == Some(0), text }
}

/// Runs it over an installation.
fn over(installed: &StandIn, vars: &[(&str, &str)]) -> Said {
    let root = installed.root().to_str().unwrap();
    doctor(&[], &[&[("ASCEND_HOME_PATH", root)], vars].concat())
}

#[test]
fn a_machine_without_ascend_is_healthy_and_its_engine_is_looked_at() {
    let said = doctor(&[], &[]);
    said.has(true, &["no Ascend here", "CPU engine: two ranks met", "memfd", "/dev/shm", "healthy: yes"]);
    let json: Value = serde_json::from_str(&doctor(&["--json"], &[]).text).unwrap();
    assert_eq!((&json["healthy"], &json["ascend"]), (&Value::Bool(true), &Value::Bool(false)));
    let findings = json["findings"].as_array().unwrap();
    assert!(findings.iter().any(|f| f["area"] == "Host" && f["name"] == "memory" && f["level"] == "ok"), "{json}");
}

#[test]
fn a_sound_installation_is_told_with_versions_and_devices() {
    let installed = StandIn::new();
    installed.install_files("9.0.0", "9.0.0");
    let vars = [("HCCL_STAND_IN_DEVICES", "2"), ("HCCL_STAND_IN_SOC", "Ascend910_9391"), ("HCCL_BUFFSIZE", "64")];
    let said = over(&installed, &vars);
    said.has(
        true,
        &[
            "CANN 9.0.0 and HCCL 9.0.0 belong together",
            "2 x Ascend910_9391",
            "device 1: 65536 of 65536 MB free",
            "driver: 25.2.0",
            "libascendcl.so",
            "HCCL_BUFFSIZE: 64\n",
            "HCCL_EXEC_TIMEOUT: 1836 (default)",
        ],
    );
}

#[test]
fn libraries_under_the_newer_names_are_found() {
    let installed = StandIn::with(NEW_NAMES, &[]);
    over(&installed, &[]).has(true, &["libacl_rt.so", "libhcomm.so", "8 x Ascend910B3"]);
}

#[test]
fn versions_that_do_not_match_are_a_problem() {
    let installed = StandIn::new();
    let vars = [("HCCL_STAND_IN_CANN", "8.5.0"), ("HCCL_STAND_IN_HCCL", "3.1.0")];
    over(&installed, &vars).has(false, &["CANN 8.5.0 and HCCL 3.1.0 do not belong together", "HCCL 3.5"]);
    let vars = [("HCCL_STAND_IN_CANN", "8.5.0"), ("HCCL_STAND_IN_HCCL", "3.5.1")];
    over(&installed, &vars).has(true, &["CANN 8.5.0 and HCCL 3.5.1 belong together"]);
    installed.install_files("8.1.RC1", "7.7.0.1.238");
    over(&installed, &vars).has(false, &["the loaded library is of CANN 8.5.0, the files beside it are of 8.1.RC1"]);
}

#[test]
fn missing_libraries_and_functions_are_problems() {
    let without = StandIn::with(&["libascendcl.so"], &[]);
    over(&without, &[]).has(false, &["HCCL (libhccl.so or libhcomm.so) was not found", "set_env.sh"]);
    let empty = tempfile::tempdir().unwrap();
    let said = doctor(&[], &[("ASCEND_HOME_PATH", empty.path().to_str().unwrap())]);
    said.has(false, &["AscendCL (libascendcl.so or libacl_rt.so) was not found"]);
    let old = StandIn::with(stand_in::OLD_NAMES, &["HcclGroupStart", "HcclAllReduce"]);
    over(&old, &[]).has(false, &["lack HcclAllReduce", "HcclGroupStart", "complete CANN"]);
}

#[test]
fn devices_that_do_not_work_are_problems() {
    let installed = StandIn::new();
    over(&installed, &[("HCCL_STAND_IN_DEVICES", "0")]).has(false, &["sees no device", "ASCEND_RT_VISIBLE_DEVICES"]);
    let fault = [("HCCL_STAND_IN_FAULTS", "aclrtSetDevice@2=return:507010")];
    over(&installed, &fault).has(false, &["device 1: aclrtSetDevice", "507010"]);
    over(&installed, &[("HCCL_STAND_IN_HBM_MB", "300")]).has(false, &["300 of 300 MB free", "HCCL_BUFFSIZE"]);
}

#[test]
fn settings_and_interfaces_are_checked() {
    let installed = StandIn::new();
    let vars = [("HCCL_CONNECT_TIMEOUT", "5"), ("HCCL_SOCKET_IFNAME", "=nosuch0"), ("HCCL_BUFSIZE", "10")];
    over(&installed, &vars).has(false, &["120 to 7200", "chooses none of", "rename it to HCCL_BUFFSIZE"]);
    doctor(&[], &[("HCCL_EXEC_TIMEOUT", "soon")]).has(false, &["0.001 to 604800"]);
}

#[test]
fn the_vendors_tool_is_asked_when_there_is_one() {
    let tools = tempfile::tempdir().unwrap();
    let tool = |script: &str| {
        let path = tools.path().join("npu-smi");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    let path = format!("{}:{}", tools.path().display(), std::env::var("PATH").unwrap());
    let installed = StandIn::new();
    tool("echo '| npu-smi 24.1  Version: 24.1 |'; echo '| 3  910B3 | Alarm | 99.1 41 0 / 0 |'");
    over(&installed, &[("PATH", &path)]).has(false, &["npu-smi: 24.1, 1 NPUs", "NPU 3 (910B3) reports Alarm"]);
    tool("echo dcmi module initialize failed; exit 255");
    over(&installed, &[("PATH", &path)]).has(false, &["dcmi module initialize failed", "lsmod"]);
    assert!(Path::new(&installed.lib_dir()).exists());
}
