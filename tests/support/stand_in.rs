//! The stand-in libraries under the vendor's names, in a temporary folder shaped like an installed toolkit.
//!
//! The package `hccl-stand-in` is built once, into `stand-in` beside the profile's folder; a test binary shares it with
//! all others. Each [`StandIn`] has a copy of its own, so that no two share state, and all names in it are one file, so
//! that they do. Include this file with `#[path]`; it needs the crate `tempfile`.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

/// File names as of CANN up to 8.3.
pub(crate) const OLD_NAMES: &[&str] = &["libascendcl.so", "libhccl.so"];
/// File names as of CANN 8.5, without the older ones.
pub(crate) const NEW_NAMES: &[&str] = &["libacl_rt.so", "libhcomm.so"];

/// Functions that CANN 8.1 does not have yet.
pub(crate) const AFTER_CANN_8_1: &[&str] = &[
    "HcclAlltoAllVC",
    "HcclCommGetHandleWithName",
    "HcclCommGetStatus",
    "HcclCommRegCommStateCallback",
    "HcclCommSymWinDeregister",
    "HcclCommSymWinGet",
    "HcclCommSymWinRegister",
    "HcclCommWorkingDevNicSet",
    "HcclConfigGetInfo",
    "HcclGroupEnd",
    "HcclGroupStart",
    "HcclGroupStatusGet",
];

/// An installed toolkit, as far as its libraries and version files go.
pub(crate) struct StandIn(TempDir);

impl StandIn {
    /// Whole libraries under the older names.
    pub(crate) fn new() -> StandIn {
        StandIn::with(OLD_NAMES, &[])
    }

    /// Libraries under these names, which lack these functions.
    pub(crate) fn with(names: &[&str], without: &[&str]) -> StandIn {
        let folder = StandIn(tempfile::tempdir().unwrap());
        fs::create_dir(folder.lib_dir()).unwrap();
        let mut library = fs::read(built()).unwrap();
        without.iter().for_each(|function| hide(&mut library, function));
        let (first, others) = names.split_first().unwrap();
        fs::write(folder.lib_dir().join(first), library).unwrap();
        for name in others {
            fs::hard_link(folder.lib_dir().join(first), folder.lib_dir().join(name)).unwrap();
        }
        folder
    }

    /// What `ASCEND_HOME_PATH` names.
    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    /// Where the libraries are.
    pub(crate) fn lib_dir(&self) -> PathBuf {
        self.root().join("lib64")
    }

    /// The variables by which a child process finds these libraries and no others.
    pub(crate) fn env(&self) -> Vec<(&'static str, OsString)> {
        vec![("ASCEND_HOME_PATH", self.root().into()), ("HCCL_ASCEND_LIB_DIR", self.lib_dir().into())]
    }

    /// Writes the version files of an installed toolkit: CANN's version and HCCL's own.
    pub(crate) fn install_files(&self, cann: &str, hccl: &str) {
        let arch = self.root().join(format!("{}-linux", std::env::consts::ARCH));
        fs::create_dir_all(&arch).unwrap();
        let info = format!("package_name=Ascend-cann-toolkit\nversion={cann}\narch={}\n", std::env::consts::ARCH);
        fs::write(arch.join("ascend_toolkit_install.info"), info).unwrap();
        fs::create_dir_all(self.root().join("hccl")).unwrap();
        fs::write(self.root().join("hccl/version.info"), format!("Version={hccl}\nversion_dir={cann}\n")).unwrap();
    }
}

/// Makes the dynamic linker find no function of this name: its entry in the table of names is spoilt.
fn hide(library: &mut [u8], function: &str) {
    let entry = [b"\0", function.as_bytes(), b"\0"].concat();
    // The linker's table comes before all other data.
    let at = library.windows(entry.len()).position(|window| window == entry);
    let at = at.unwrap_or_else(|| panic!("the stand-in exports no {function}"));
    library[at + 1] = b'_';
}

/// The shared object, built at the first use by any test.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(build)
}

fn build() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let deps = exe.ancestors().find(|dir| dir.ends_with("deps")).expect("a test binary lies in a folder deps");
    let target = deps.ancestors().nth(2).unwrap().join("stand-in");
    fs::create_dir_all(&target).unwrap();
    // Test binaries run side by side: one builds, the others find it done.
    let lock = File::create(target.join("build.lock")).unwrap();
    lock.lock().unwrap();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--quiet", "--locked", "-p", "hccl-stand-in", "--message-format", "json", "--target-dir"])
        .arg(&target)
        .arg("--manifest-path")
        .arg(workspace().join("Cargo.toml"))
        .output()
        .expect("cargo builds the stand-in libraries");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "building the stand-in: {said}{}", String::from_utf8_lossy(&output.stderr));
    let path = said.split('"').find(|word| word.ends_with("libhccl_stand_in.so"));
    path.unwrap_or_else(|| panic!("cargo names no shared object: {said}")).into()
}

/// The folder that holds the stand-in's package.
fn workspace() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().find(|dir| dir.join("tests/stand-in/Cargo.toml").exists()).expect("the workspace's root")
}
