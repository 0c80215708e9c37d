//! Programs that must not compile, each with a twin that does: `tests/ui/<area>/no_*.rs` and `ok_*.rs`.
//!
//! On the pinned compiler the whole message is compared with the `.stderr` beside the case, because what it tells the
//! user to write instead is part of the API. Other compilers word messages differently: there each case must fail with
//! the same error code. `HCCL_UI=codes` asks for that on the pinned compiler too. `TRYBUILD=overwrite cargo test --test
//! ui` writes the messages anew.

#![expect(clippy::print_stdout, reason = "counts cases on a line of their own")]

#[path = "support/ui.rs"]
mod ui;

use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn misuse_does_not_compile() {
    if ui::compares_messages() {
        trybuild::TestCases::new().compile_fail("tests/ui/*/no_*.rs");
    } else {
        ui::fail_with_their_codes(&["hccl"]);
    }
}

#[test]
fn the_twins_compile_and_run() {
    let mut failed = Vec::new();
    for case in ui::cases("ok_") {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(case.file_stem().expect("a stem"));
        let compiled = ui::compile(&case, &["hccl"]).arg("-o").arg(&program).output().expect("rustc runs");
        let text = String::from_utf8_lossy(&compiled.stderr).into_owned();
        if !compiled.status.success() || !text.is_empty() {
            failed.push(format!("{} does not compile without a warning:\n{text}", case.display()));
            continue;
        }
        let ran = Command::new(&program).output().expect("the program starts");
        if !ran.status.success() {
            failed.push(format!("{} fails:\n{}", case.display(), String::from_utf8_lossy(&ran.stderr)));
        }
        fs::remove_file(&program).expect("the program can be removed");
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn every_case_has_a_twin_that_differs_in_one_hunk_of_at_most_three_lines() {
    ui::check_twins(50);
}

#[test]
fn every_message_belongs_to_a_case_and_every_case_has_one() {
    ui::check_messages();
}
