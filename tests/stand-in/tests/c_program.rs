//! A program in C, compiled against declarations of its own, over the stand-in libraries.
#![cfg(target_os = "linux")]

#[path = "../../support/stand_in.rs"]
mod stand_in;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use stand_in::StandIn;

/// The compiled program and the libraries it is linked with.
struct Program {
    libraries: StandIn,
    dir: tempfile::TempDir,
}

impl Program {
    fn new() -> Program {
        let (libraries, dir) = (StandIn::new(), tempfile::tempdir().unwrap());
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/program.c");
        let output = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
            .arg(dir.path().join("program"))
            .arg(source)
            .arg("-L")
            .arg(libraries.lib_dir())
            .args(["-lhccl", "-lascendcl"])
            .output()
            .expect("the tests need a C compiler: install one or name it in CC");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Program { libraries, dir }
    }

    fn counts(&self) -> PathBuf {
        let dir = self.dir.path().join("counts");
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn start(&self, args: &[&str]) -> Child {
        let mut command = Command::new(self.dir.path().join("program"));
        command.args(args).env("LD_LIBRARY_PATH", self.libraries.lib_dir());
        command.env("HCCL_CONNECT_TIMEOUT", "20").env("HCCL_EXEC_TIMEOUT", "20");
        command.env("HCCL_STAND_IN_COUNTS", self.counts());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// Waits for the program, which ends by itself: all its waits have deadlines. Returns what it printed.
    fn finish(&self, child: Child) -> String {
        let counts = self.counts().join(child.id().to_string());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        let counts = fs::read_to_string(counts).unwrap();
        assert!(counts.lines().all(|line| line.ends_with(" 0")), "left alive:\n{counts}");
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn two_devices_of_one_process_by_root_info() {
    let program = Program::new();
    program.finish(program.start(&["threads"]));
}

#[test]
fn two_devices_of_one_process_at_once() {
    let program = Program::new();
    program.finish(program.start(&["all"]));
}

#[test]
fn two_unrelated_processes_by_root_info() {
    let program = Program::new();
    let file = program.dir.path().join("root-info");
    let file = file.to_str().unwrap();
    let ranks = [program.start(&["rank", "1", file]), program.start(&["rank", "0", file])];
    ranks.into_iter().for_each(|rank| drop(program.finish(rank)));
}

#[test]
fn devices_and_chip_are_as_documented() {
    let program = Program::new();
    assert_eq!(program.finish(program.start(&["count"])), "8 Ascend910B3\n");
}
