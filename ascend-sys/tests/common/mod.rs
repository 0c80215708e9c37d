//! Stand-in libraries, compiled once a test binary from our own C source and copied for each test, so that no two tests
//! share a library's state.
#![allow(dead_code, reason = "each test binary uses its part")]
#![expect(unsafe_code, reason = "calls the stand-ins' own control functions")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use tempfile::TempDir;

/// The parts of the stand-in, by file name.
pub(crate) const PARTS: [(&str, &str); 5] = [
    ("libascendcl.so", "ACL"),
    ("libacl_rt.so", "ACL"),
    ("libhccl.so", "HCCL"),
    ("libhcomm.so", "HCOMM"),
    ("libpreload.so", "PRELOAD"),
];

/// A folder with copies of some of the stand-in libraries.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn empty() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn with(names: &[&str]) -> Self {
        let folder = Self::empty();
        names.iter().for_each(|name| folder.add(name));
        folder
    }

    pub(crate) fn complete() -> Self {
        Self::with(&["libascendcl.so", "libhccl.so", "libhcomm.so"])
    }

    pub(crate) fn add(&self, name: &str) {
        let (_, part) = PARTS.iter().find(|(known, _)| *known == name).unwrap();
        fs::copy(built().join(part), self.file(name)).unwrap();
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// A control function of one of the libraries, which must be open already.
    pub(crate) fn control<F: Copy>(&self, library: &str, name: &str) -> F {
        // SAFETY: a stand-in of ours, whose initialisers do nothing.
        let library = unsafe { libloading::Library::new(self.file(library)) }.unwrap();
        // SAFETY: `F` is the type of the function in `stand_in.c`, as the caller wrote it.
        let found = *unsafe { library.get::<F>(name) }.unwrap();
        std::mem::forget(library);
        found
    }
}

fn built() -> &'static Path {
    static BUILT: OnceLock<TempDir> = OnceLock::new();
    BUILT.get_or_init(build).path()
}

/// A C compiler is a stated requirement of the tests.
fn build() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand_in/stand_in.c");
    for part in ["ACL", "HCCL", "HCOMM", "PRELOAD"] {
        let status = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
            .args(["-shared", "-fPIC", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"])
            .args([format!("-DPART_{part}"), format!("-DPART={part}"), "-o".into()])
            .arg(dir.path().join(part))
            .arg(&source)
            .status()
            .expect("the tests need a C compiler: install one or name it in CC");
        assert!(status.success(), "cc failed on part {part}");
    }
    dir
}
