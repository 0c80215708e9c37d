//! Programs that must not compile, each with a twin that does: `tests/ui/<area>/no_*.rs` and `ok_*.rs`.
//!
//! On the pinned compiler the whole message is compared with the `.stderr` beside the case, because what it tells the
//! user to write instead is part of the API. Other compilers word messages differently: there each case must fail with
//! the same error code. `HCCL_UI=codes` asks for that on the pinned compiler too. `TRYBUILD=overwrite cargo test --test
//! ui` writes the messages anew.

#![expect(clippy::print_stdout, reason = "counts cases on a line of their own")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The release whose messages the `.stderr` files hold.
const PINNED: &str = "1.95.0";

/// Cases that must be there; new ones only raise the number.
const AT_LEAST: usize = 30;

/// The `.rs` and `.stderr` files of all areas, sorted.
fn files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for area in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ui")).expect("tests/ui is there") {
        let area = area.expect("an entry of tests/ui").path();
        files.extend(fs::read_dir(&area).expect("an area").map(|file| file.expect("an entry of an area").path()));
    }
    files.sort();
    files
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).expect("a UTF-8 name")
}

fn cases(prefix: &str) -> Vec<PathBuf> {
    files().into_iter().filter(|path| name(path).starts_with(prefix) && name(path).ends_with(".rs")).collect()
}

fn rustc() -> Command {
    Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
}

fn is_pinned() -> bool {
    let output = rustc().arg("-vV").output().expect("rustc runs");
    String::from_utf8_lossy(&output.stdout).lines().any(|line| line == format!("release: {PINNED}"))
}

#[test]
fn misuse_does_not_compile() {
    if is_pinned() && std::env::var("HCCL_UI").as_deref() != Ok("codes") {
        trybuild::TestCases::new().compile_fail("tests/ui/*/no_*.rs");
    } else {
        fail_with_their_codes();
    }
}

#[test]
fn the_twins_compile_and_run() {
    let mut failed = Vec::new();
    for case in cases("ok_") {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(case.file_stem().expect("a stem"));
        let compiled = compile(&case).arg("-o").arg(&program).output().expect("rustc runs");
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

/// Checks that every `no_` case fails with the first error code of its `.stderr`, whatever the words around it.
fn fail_with_their_codes() {
    let mut failed = Vec::new();
    for case in cases("no_") {
        let expected = first_error(&fs::read_to_string(case.with_extension("stderr")).expect("a .stderr"));
        let mut rustc = compile(&case);
        rustc.args(["--emit", "metadata", "--out-dir", env!("CARGO_TARGET_TMPDIR")]);
        let output = rustc.output().expect("rustc runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let fits = !output.status.success() && expected.as_ref().is_none_or(|code| text.contains(code.as_str()));
        if !fits {
            failed.push(format!("{}: expected {expected:?}, rustc said:\n{text}", case.display()));
        }
    }
    let count = cases("no_").len();
    println!("ui: {count} cases fail with their error codes; messages are compared on rustc {PINNED} only");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// The compiler on one case, with the library that cargo built for this test. Quicker than a cargo run for each case.
fn compile(case: &Path) -> Command {
    let (library, dependencies) = built_library();
    let mut rustc = rustc();
    rustc.args(["--edition", "2024", "--crate-type", "bin"]);
    rustc.arg("-L").arg(format!("dependency={}", dependencies.display()));
    rustc.arg("--extern").arg(format!("hccl={}", library.display()));
    rustc.arg(case);
    rustc
}

/// `error[E0277]` of the first error that has a code; `None` for lints and lifetime errors, which have none.
fn first_error(stderr: &str) -> Option<String> {
    let first = stderr.lines().find(|line| line.starts_with("error"))?;
    first.starts_with("error[").then(|| first.split_inclusive(']').next().unwrap_or_default().to_owned())
}

/// The library that cargo built for this test, and the folder of its dependencies.
fn built_library() -> (PathBuf, PathBuf) {
    let deps = std::env::current_exe().expect("this test has a path").parent().expect("a folder").to_owned();
    let built = |path: &PathBuf| name(path).starts_with("libhccl-") && name(path).ends_with(".rlib");
    let libraries = fs::read_dir(&deps).expect("cargo's deps").map(|file| file.expect("an entry of deps").path());
    let newest = libraries
        .filter(built)
        .max_by_key(|path| fs::metadata(path).and_then(|data| data.modified()).expect("a time of change"));
    (newest.expect("cargo builds the library before its tests"), deps)
}

/// The lines in which two texts differ, when they differ in one place only: between a common head and a common tail.
fn hunk<'a>(a: &'a str, b: &'a str) -> (Vec<&'a str>, Vec<&'a str>) {
    let (a, b): (Vec<&str>, Vec<&str>) = (a.lines().collect(), b.lines().collect());
    let head = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    let tail = a[head..].iter().rev().zip(b[head..].iter().rev()).take_while(|(a, b)| a == b).count();
    (a[head..a.len() - tail].to_vec(), b[head..b.len() - tail].to_vec())
}

#[test]
fn every_case_has_a_twin_that_differs_in_one_hunk_of_at_most_three_lines() {
    let (no, ok) = (cases("no_"), cases("ok_"));
    assert!(no.len() >= AT_LEAST, "{} cases are left of {AT_LEAST}", no.len());
    assert_eq!(no.len(), ok.len(), "each no_ case has one ok_ twin and none is alone");
    for case in &no {
        let twin = case.with_file_name(name(case).replacen("no_", "ok_", 1));
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let (text, twin_text) = (read(case), read(&twin));
        let (ours, theirs) = hunk(&text, &twin_text);
        assert!(!ours.is_empty() || !theirs.is_empty(), "{} is the same as its twin", case.display());
        let lines = ours.len().max(theirs.len());
        assert!(lines <= 3, "{} and its twin differ in {lines} lines:\n{ours:#?}\n{theirs:#?}", case.display());
    }
}

#[test]
fn every_message_belongs_to_a_case_and_every_case_has_one() {
    for path in files() {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("stderr") => {
                assert!(name(&path).starts_with("no_"), "{} is not of a no_ case", path.display());
                assert!(path.with_extension("rs").exists(), "{} belongs to no case", path.display());
            }
            Some("rs") if name(&path).starts_with("no_") => {
                assert!(path.with_extension("stderr").exists(), "{} has no .stderr", path.display());
            }
            Some("rs") => assert!(name(&path).starts_with("ok_"), "{} is neither no_ nor ok_", path.display()),
            _ => panic!("{} does not belong here", path.display()),
        }
    }
}
