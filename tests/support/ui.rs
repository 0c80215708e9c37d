//! Programs that must not compile: comparing messages, or only error codes, and the pairing with twins that do.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The release whose messages the `.stderr` files hold.
const PINNED: &str = "1.95.0";

/// The `.rs` and `.stderr` files below `tests/ui` of the package, sorted.
pub(crate) fn files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ui")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("tests/ui is there") {
            let path = entry.expect("an entry of tests/ui").path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    files
}

pub(crate) fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).expect("a UTF-8 name")
}

pub(crate) fn cases(prefix: &str) -> Vec<PathBuf> {
    files().into_iter().filter(|path| name(path).starts_with(prefix) && name(path).ends_with(".rs")).collect()
}

fn rustc() -> Command {
    Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
}

/// True when whole messages are to be compared: on the pinned compiler, unless `HCCL_UI=codes`.
pub(crate) fn compares_messages() -> bool {
    let output = rustc().arg("-vV").output().expect("rustc runs");
    let pinned = String::from_utf8_lossy(&output.stdout).lines().any(|line| line == format!("release: {PINNED}"));
    pinned && std::env::var("HCCL_UI").as_deref() != Ok("codes")
}

/// Checks that every `no_` case fails with the first error code of its `.stderr`, whatever the words around it.
pub(crate) fn fail_with_their_codes(crates: &[&str]) {
    let mut failed = Vec::new();
    for case in cases("no_") {
        let expected = first_error(&fs::read_to_string(case.with_extension("stderr")).expect("a .stderr"));
        let mut rustc = compile(&case, crates);
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

/// The compiler on one case, with the libraries that cargo built for this test. Quicker than a cargo run for each case.
pub(crate) fn compile(case: &Path, crates: &[&str]) -> Command {
    let deps = std::env::current_exe().expect("this test has a path").parent().expect("a folder").to_owned();
    let mut rustc = rustc();
    rustc.args(["--edition", "2024", "--crate-type", "bin"]);
    rustc.arg("-L").arg(format!("dependency={}", deps.display()));
    for library in crates {
        rustc.arg("--extern").arg(format!("{library}={}", built(&deps, library).display()));
    }
    rustc.arg(case);
    rustc
}

/// `error[E0277]` of the first error that has a code; `None` for lints and lifetime errors, which have none.
fn first_error(stderr: &str) -> Option<String> {
    let first = stderr.lines().find(|line| line.starts_with("error"))?;
    first.starts_with("error[").then(|| first.split_inclusive(']').next().unwrap_or_default().to_owned())
}

/// The library that cargo built last for a crate.
fn built(deps: &Path, library: &str) -> PathBuf {
    let start = format!("lib{library}-");
    let fits = |path: &PathBuf| name(path).starts_with(&start) && name(path).ends_with(".rlib");
    let libraries = fs::read_dir(deps).expect("cargo's deps").map(|file| file.expect("an entry of deps").path());
    let newest = libraries
        .filter(fits)
        .max_by_key(|path| fs::metadata(path).and_then(|data| data.modified()).expect("a time of change"));
    newest.expect("cargo builds the library before its tests")
}

/// The lines in which two texts differ, when they differ in one place only: between a common head and a common tail.
fn hunk<'a>(a: &'a str, b: &'a str) -> (Vec<&'a str>, Vec<&'a str>) {
    let (a, b): (Vec<&str>, Vec<&str>) = (a.lines().collect(), b.lines().collect());
    let head = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    let tail = a[head..].iter().rev().zip(b[head..].iter().rev()).take_while(|(a, b)| a == b).count();
    (a[head..a.len() - tail].to_vec(), b[head..b.len() - tail].to_vec())
}

/// Every `no_` case has an `ok_` twin that differs in one hunk of at most three lines; there are `at_least` pairs.
pub(crate) fn check_twins(at_least: usize) {
    let (no, ok) = (cases("no_"), cases("ok_"));
    assert!(no.len() >= at_least, "{} cases are left of {at_least}", no.len());
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

/// Every `.stderr` belongs to a case, and every `no_` case has one.
pub(crate) fn check_messages() {
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
