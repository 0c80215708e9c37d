//! Reading which version of CANN lies in a folder, from the files its installer leaves.
//!
//! A file that is absent or shaped otherwise is no error: the answer then lacks that part.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// What the files of an installed toolkit say about its versions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installed {
    /// CANN's version, such as `8.1.RC1`.
    pub toolkit: Option<String>,
    /// HCCL's own version, such as `7.7.0.1.238`.
    pub hccl: Option<String>,
    /// The runtime's own version.
    pub runtime: Option<String>,
}

impl Installed {
    /// Reads the files below a toolkit's root, such as `/usr/local/Ascend/ascend-toolkit/latest`.
    #[must_use]
    pub fn read(root: &Path) -> Self {
        let arch = root.join(format!("{}-linux", std::env::consts::ARCH));
        let info = [root, &arch].iter().find_map(|dir| value_in(&dir.join("ascend_toolkit_install.info"), "version"));
        let component = |name: &str, key: &str| value_in(&root.join(name).join("version.info"), key);
        Self {
            toolkit: info
                .or_else(|| running_version(&root.join("version.cfg")))
                .or_else(|| component("hccl", "version_dir"))
                .or_else(|| component("runtime", "version_dir")),
            hccl: component("hccl", "Version"),
            runtime: component("runtime", "Version"),
        }
    }

    /// Reads the files of the toolkit that a folder of libraries belongs to.
    #[must_use]
    pub fn beside(libraries: &Path) -> Self {
        let parents = libraries.ancestors().skip(1).take(2);
        parents.map(Self::read).find(|found| *found != Self::default()).unwrap_or_default()
    }
}

/// The value of `key=value` in a file of such lines, without quotes.
fn value_in(file: &Path, key: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| {
        let (name, value) = line.split_once('=')?;
        let value = value.trim().trim_matches('"');
        (name.trim() == key && !value.is_empty()).then(|| value.to_owned())
    })
}

/// The version behind the colon and the dash in `<component>_running_version=[1.80:CANN-1.80]`, HCCL's or the first.
fn running_version(file: &PathBuf) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let entries = text.lines().filter_map(|line| line.split_once("_running_version="));
    let mut versions = entries.filter_map(|(component, value)| {
        let value = value.trim().trim_start_matches('[').split(']').next()?;
        let named = value.rsplit(':').next()?;
        let number = named.rsplit_once('-').map_or(named, |(_, number)| number);
        (!number.is_empty()).then(|| (component == "hccl", number.to_owned()))
    });
    let first = versions.next()?;
    let hccl = if first.0 { None } else { versions.find(|(hccl, _)| *hccl) };
    Some(hccl.unwrap_or(first).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_each_kind_of_file() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Installed::read(root.path()), Installed::default());
        fs::write(
            root.path().join("version.cfg"),
            "# version: 1.0\nruntime_running_version=[7.7.0:CANN-8.0]\nhccl_running_version=[7.7.0:CANN-8.1]\n",
        )
        .unwrap();
        assert_eq!(Installed::read(root.path()).toolkit.as_deref(), Some("8.1"));
        fs::create_dir(root.path().join("hccl")).unwrap();
        fs::write(root.path().join("hccl/version.info"), "Version=7.7.0.1.238\nversion_dir=8.1.RC1\n").unwrap();
        assert_eq!(Installed::read(root.path()).hccl.as_deref(), Some("7.7.0.1.238"));
        let arch = root.path().join(format!("{}-linux", std::env::consts::ARCH));
        fs::create_dir_all(arch.join("lib64")).unwrap();
        fs::write(arch.join("ascend_toolkit_install.info"), "package_name=x\nversion=8.1.RC1\n").unwrap();
        assert_eq!(Installed::read(root.path()).toolkit.as_deref(), Some("8.1.RC1"));
        let beside = Installed::beside(&root.path().join("lib64"));
        assert_eq!((beside.toolkit.as_deref(), beside.hccl.as_deref()), (Some("8.1.RC1"), Some("7.7.0.1.238")));
    }

    #[test]
    fn broken_files_give_nothing() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("version.cfg"), "hccl_running_version=\n= \nnonsense").unwrap();
        fs::write(root.path().join("ascend_toolkit_install.info"), [0xff, 0xfe]).unwrap();
        assert_eq!(Installed::read(root.path()), Installed::default());
    }
}
