//! Finding and opening libraries: what is tried, what is refused, and what the errors say.
#![cfg(target_os = "linux")]
#![expect(unsafe_code, reason = "calls a loaded function directly")]

mod common;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use ascend_sys::{
    Libraries, LoadError, Search,
    loader::{self, MissingLibrary, OVERRIDE_VARIABLE, Unusable},
    result::hccl,
    sys::{AclTable, HcclResult, HcclTable},
};
use common::Folder;

fn open(search: &Search) -> Result<Libraries, LoadError> {
    // SAFETY: the folders searched hold our stand-ins, files that are no libraries, or nothing.
    unsafe { Libraries::open(search) }
}

fn open_acl(search: &Search) -> Result<AclTable, MissingLibrary> {
    // SAFETY: as in `open`.
    unsafe { loader::open_acl(search) }
}

fn open_hccl(search: &Search) -> Result<HcclTable, MissingLibrary> {
    // SAFETY: as in `open`.
    unsafe { loader::open_hccl(search) }
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn search_in(dirs: &[&Path]) -> Search {
    let list = std::env::join_paths(dirs).unwrap();
    Search::from_variables(|name| (name == "LD_LIBRARY_PATH").then(|| list.clone()))
}

#[test]
fn nothing_installed_names_every_folder_both_families_and_the_way_out() {
    let folder = Folder::empty();
    let error = open(&search_in(&[folder.path()])).unwrap_err();
    assert_eq!(error.missing.len(), 2);
    let text = error.to_string();
    for part in [
        "AscendCL (libascendcl.so or libacl_rt.so) was not found",
        "HCCL (libhccl.so or libhcomm.so) was not found",
        folder.path().to_str().unwrap(),
        "/usr/local/Ascend/cann/lib64",
        "/usr/local/Ascend/ascend-toolkit/latest/lib64",
        "set_env.sh",
        OVERRIDE_VARIABLE,
    ] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    let tried: Vec<&PathBuf> = error.missing[0].tried.iter().map(|tried| &tried.path).collect();
    assert!(tried.contains(&&folder.file("libascendcl.so")) && tried.contains(&&folder.file("libacl_rt.so")));
}

#[test]
fn garbage_is_an_error_in_the_linkers_words() {
    let folder = Folder::empty();
    fs::write(folder.file("libhccl.so"), "no library ".repeat(99)).unwrap();
    fs::write(folder.file("libhcomm.so"), "").unwrap();
    let error = open_hccl(&Search::in_dir(folder.path())).unwrap_err();
    assert!(error.tried.iter().all(|tried| matches!(&tried.why, Unusable::NotLoadable(_))), "{error}");
    let text = error.to_string();
    assert!(text.contains("libhccl.so: invalid ELF header"), "{text}");
    assert!(text.contains("libhcomm.so: file too short"), "{text}");
}

#[test]
fn what_anybody_may_write_to_is_refused() {
    let folder = Folder::with(&["libhccl.so"]);
    let search = Search::in_dir(folder.path());
    mode(&folder.file("libhccl.so"), 0o757);
    let text = open_hccl(&search).unwrap_err().to_string();
    assert!(text.contains("libhccl.so: refused, anybody may write") && text.contains("chmod o-w"), "{text}");

    mode(&folder.file("libhccl.so"), 0o775);
    mode(folder.path(), 0o777);
    let error = open_hccl(&search).unwrap_err();
    assert_eq!(error.tried[0].why, Unusable::WorldWritable(folder.path().to_owned()));

    mode(folder.path(), 0o1777);
    open_hccl(&search).unwrap();
}

#[test]
fn a_link_is_judged_by_the_file_it_leads_to() {
    let (real, links) = (Folder::with(&["libhccl.so"]), Folder::empty());
    std::os::unix::fs::symlink(real.file("libhccl.so"), links.file("libhccl.so")).unwrap();
    std::os::unix::fs::symlink("/no/such/target", links.file("libhcomm.so")).unwrap();
    open_hccl(&Search::in_dir(links.path())).unwrap();
    mode(&real.file("libhccl.so"), 0o666);
    let error = open_hccl(&Search::in_dir(links.path())).unwrap_err();
    assert_eq!(error.tried[0].why, Unusable::WorldWritable(real.file("libhccl.so").canonicalize().unwrap()));
    assert_eq!(error.tried[1].why, Unusable::Absent);
}

#[test]
fn a_folder_under_a_librarys_name_is_refused() {
    let folder = Folder::empty();
    fs::create_dir(folder.file("libascendcl.so")).unwrap();
    let error = open_acl(&Search::in_dir(folder.path())).unwrap_err();
    assert_eq!(error.tried[0].why, Unusable::NotAFile);
    assert!(error.to_string().contains("libascendcl.so: not a regular file"), "{error}");
}

#[test]
fn a_relative_override_is_refused_and_nothing_else_is_searched() {
    let error = open_hccl(&Search::in_dir("libs")).unwrap_err();
    assert!(error.tried.is_empty());
    let text = error.to_string();
    assert!(text.contains("HCCL_ASCEND_LIB_DIR entry \"libs\": refused, not an absolute path"), "{text}");
    assert!(text.contains("no folder to search"), "{text}");
}

#[test]
fn either_name_of_a_family_will_do() {
    let folder = Folder::with(&["libacl_rt.so", "libhcomm.so"]);
    let libs = open(&Search::in_dir(folder.path())).unwrap();
    assert_eq!(libs.acl.origin().files, [folder.file("libacl_rt.so")]);
    assert_eq!(hccl::error_string(&libs, HcclResult::E_TIMEOUT).as_deref(), Some("timeout of HCOMM"));
}

#[test]
fn a_function_in_both_libraries_is_taken_from_the_first() {
    let folder = Folder::complete();
    let table = open_hccl(&Search::in_dir(folder.path())).unwrap();
    assert_eq!(table.origin().files, [folder.file("libhccl.so"), folder.file("libhcomm.so")]);
    let call = table.HcclGetErrorString().unwrap();
    // SAFETY: the function takes a number and returns a string.
    let text = unsafe { call(HcclResult::E_TIMEOUT) };
    // SAFETY: a literal of the stand-in.
    assert_eq!(unsafe { std::ffi::CStr::from_ptr(text) }, c"timeout of HCCL");
}

#[test]
fn two_installations_are_never_mixed() {
    let (old, new) = (Folder::with(&["libhccl.so"]), Folder::with(&["libhccl.so", "libhcomm.so"]));
    let table = open_hccl(&search_in(&[old.path(), new.path()])).unwrap();
    assert_eq!(table.origin().files, [old.file("libhccl.so")]);
    assert!(table.HcclAllReduce().is_ok() && table.HcclGetRootInfo().is_err());
}

#[test]
fn a_missing_function_is_an_error_naming_it_the_library_and_the_version() {
    let folder = Folder::with(&["libhccl.so"]);
    fs::write(folder.file("libhcomm.so"), "no library ".repeat(99)).unwrap();
    let libs = folder.path().join("lib64");
    fs::create_dir(&libs).unwrap();
    for name in ["libhccl.so", "libhcomm.so"] {
        fs::rename(folder.file(name), libs.join(name)).unwrap();
    }
    fs::write(folder.file("ascend_toolkit_install.info"), "version=8.1.RC1\n").unwrap();
    let table = open_hccl(&Search::in_dir(&libs)).unwrap();
    let missing = table.HcclGroupStart().unwrap_err();
    assert_eq!(missing.symbol.name, "HcclGroupStart");
    let text = missing.to_string();
    for part in ["HcclGroupStart is not in ", "lib64/libhccl.so", "version 8.1.RC1", "CANN 9.0.0", "invalid ELF header"]
    {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    let names: Vec<&str> = table.missing().map(|symbol| symbol.name).collect();
    assert!(names.contains(&"HcclGroupStart") && !names.contains(&"HcclAllReduce"), "{names:?}");
}

/// The global answer comes from the environment, so the test runs itself again as a child with another one.
fn again(test: &str, variables: &[(&str, &Path)]) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([test, "--exact", "--test-threads=1"]).env("ASCEND_TEST_CHILD", test);
    for variable in ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", OVERRIDE_VARIABLE] {
        child.env_remove(variable);
    }
    child.envs(variables.iter().copied());
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn is_child(test: &str) -> bool {
    std::env::var_os("ASCEND_TEST_CHILD").is_some_and(|name| name == test)
}

#[test]
fn the_process_asks_the_environment_once() {
    const NAME: &str = "the_process_asks_the_environment_once";
    if !is_child(NAME) {
        let folder = Folder::complete();
        return again(NAME, &[(OVERRIDE_VARIABLE, folder.path())]);
    }
    let libs = ascend_sys::libraries().unwrap();
    assert!(std::ptr::eq(libs, ascend_sys::libraries().unwrap()));
    assert_eq!(hccl::error_string(libs, HcclResult::E_TIMEOUT).as_deref(), Some("timeout of HCCL"));
}

#[test]
fn a_preloaded_function_wins_over_the_installed_one() {
    const NAME: &str = "a_preloaded_function_wins_over_the_installed_one";
    if !is_child(NAME) {
        let (home, preload) = (Folder::empty(), Folder::with(&["libpreload.so"]));
        let (libs, lib64) = (Folder::complete(), home.path().join("lib64"));
        std::os::unix::fs::symlink(libs.path(), lib64).unwrap();
        return again(NAME, &[("ASCEND_HOME_PATH", home.path()), ("LD_PRELOAD", &preload.file("libpreload.so"))]);
    }
    let libs = ascend_sys::libraries().unwrap();
    assert_eq!(hccl::error_string(libs, HcclResult::E_TIMEOUT).as_deref(), Some("timeout of PRELOAD"));
    assert!(libs.hccl.HcclAllReduce().is_ok());
}

#[test]
fn without_libraries_the_process_gets_an_error_each_time_and_no_panic() {
    const NAME: &str = "without_libraries_the_process_gets_an_error_each_time_and_no_panic";
    if !is_child(NAME) {
        let folder = Folder::empty();
        return again(NAME, &[(OVERRIDE_VARIABLE, folder.path())]);
    }
    let error = ascend_sys::libraries().unwrap_err();
    assert_eq!(ascend_sys::libraries().unwrap_err(), error);
    assert!(error.to_string().contains(&std::env::var(OVERRIDE_VARIABLE).unwrap()), "{error}");
}

#[test]
fn an_incomplete_installation_can_be_looked_into() {
    const NAME: &str = "an_incomplete_installation_can_be_looked_into";
    if !is_child(NAME) {
        let folder = Folder::with(&["libascendcl.so"]);
        return again(NAME, &[(OVERRIDE_VARIABLE, folder.path())]);
    }
    let error = ascend_sys::libraries().unwrap_err();
    assert_eq!(error.missing.iter().map(|missing| missing.family).collect::<Vec<_>>(), ["HCCL"]);
    let libs = loader::partial_libraries();
    assert_eq!(ascend_sys::result::acl::device_count(libs).unwrap(), 2);
    let missing = libs.hccl.HcclAllReduce().unwrap_err().to_string();
    assert!(missing.contains("HcclAllReduce is missing: no library"), "{missing}");
}
