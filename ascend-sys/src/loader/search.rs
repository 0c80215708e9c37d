//! The folders to look in.

use std::{
    env,
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
};

/// The environment variable that names the one folder to look in: absolute, for tests and unusual installs.
pub const OVERRIDE_VARIABLE: &str = "HCCL_ASCEND_LIB_DIR";

/// Variables naming a toolkit's root, in the order asked.
const ROOT_VARIABLES: [&str; 2] = ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"];

/// Roots of a toolkit installed for everybody: CANN 9, then CANN 8.
const SYSTEM_ROOTS: [&str; 2] = ["/usr/local/Ascend/cann", "/usr/local/Ascend/ascend-toolkit/latest"];

/// Where to look for libraries: absolute folders in order, and what was refused on the way.
///
/// ```
/// use ascend_sys::Search;
/// let search = Search::from_variables(|name| match name {
///     "ASCEND_HOME_PATH" => Some("/opt/cann".into()),
///     "LD_LIBRARY_PATH" => Some("lib:/opt/lib".into()), // `lib` would be below the working directory
///     _ => None,
/// });
/// assert!(search.dirs()[0].starts_with("/opt/cann"));
/// assert!(search.dirs().iter().all(|dir| dir.is_absolute()));
/// assert_eq!(search.refused()[0].to_string(), "LD_LIBRARY_PATH entry \"lib\": refused, not an absolute path");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    dirs: Vec<PathBuf>,
    refused: Vec<Refused>,
    process_first: bool,
}

impl Search {
    /// The folders that the environment and the documented installations name.
    #[must_use]
    pub fn from_env() -> Self {
        Self::from_variables(|name| env::var_os(name))
    }

    /// As [`from_env`](Self::from_env), with the caller's variables instead of the environment's. Empty ones count as
    /// unset.
    #[must_use]
    pub fn from_variables(lookup: impl Fn(&str) -> Option<OsString>) -> Self {
        let value = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let mut search = Self { process_first: true, ..Self::default() };
        if let Some(dir) = value(OVERRIDE_VARIABLE) {
            search.process_first = false;
            search.add(OVERRIDE_VARIABLE, PathBuf::from(dir), |dir| vec![dir]);
            return search;
        }
        for name in ROOT_VARIABLES {
            if let Some(root) = value(name) {
                search.add(name, PathBuf::from(root), |root| lib_dirs(&root));
            }
        }
        for entry in value("LD_LIBRARY_PATH").iter().flat_map(env::split_paths) {
            search.add("LD_LIBRARY_PATH", entry, |dir| vec![dir]);
        }
        if let Some(home) = value("HOME") {
            search.add("HOME", PathBuf::from(home), |home| lib_dirs(&home.join("Ascend/ascend-toolkit/latest")));
        }
        search.push(SYSTEM_ROOTS.iter().flat_map(|root| lib_dirs(Path::new(root))));
        search
    }

    /// One folder and nothing else, as if [`OVERRIDE_VARIABLE`] named it.
    #[must_use]
    pub fn in_dir(dir: impl Into<PathBuf>) -> Self {
        let dir = dir.into().into_os_string();
        Self::from_variables(|name| (name == OVERRIDE_VARIABLE).then(|| dir.clone()))
    }

    /// The folders, in the order they are looked through, each once.
    #[must_use]
    pub fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    /// What was asked for and is not looked through.
    #[must_use]
    pub fn refused(&self) -> &[Refused] {
        &self.refused
    }

    /// Whether a function already in the process goes before the library's.
    #[must_use]
    pub fn process_first(&self) -> bool {
        self.process_first
    }

    fn add(&mut self, variable: &'static str, entry: PathBuf, dirs: impl FnOnce(PathBuf) -> Vec<PathBuf>) {
        if entry.is_absolute() {
            self.push(dirs(entry));
        } else {
            self.refused.push(Refused { variable, entry });
        }
    }

    fn push(&mut self, dirs: impl IntoIterator<Item = PathBuf>) {
        for dir in dirs {
            if !self.dirs.contains(&dir) {
                self.dirs.push(dir);
            }
        }
    }
}

/// An entry of a variable that is not an absolute path; an empty one would mean the working directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The variable.
    pub variable: &'static str,
    /// The entry.
    pub entry: PathBuf,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} entry {:?}: refused, not an absolute path", self.variable, self.entry)
    }
}

/// The folders of libraries below a toolkit's root.
fn lib_dirs(root: &Path) -> Vec<PathBuf> {
    vec![root.join("lib64"), root.join(format!("{}-linux/lib64", env::consts::ARCH))]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(variables: &[(&str, &str)]) -> Search {
        Search::from_variables(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn documented_places_in_order_each_once() {
        let found = search(&[
            ("ASCEND_HOME_PATH", "/a"),
            ("ASCEND_TOOLKIT_HOME", "/b"),
            ("LD_LIBRARY_PATH", "/c:/a/lib64:/d"),
            ("HOME", "/home/u"),
        ]);
        let dirs: Vec<&str> =
            found.dirs().iter().filter_map(|dir| dir.to_str()).filter(|dir| !dir.contains("-linux")).collect();
        assert_eq!(
            dirs,
            [
                "/a/lib64",
                "/b/lib64",
                "/c",
                "/d",
                "/home/u/Ascend/ascend-toolkit/latest/lib64",
                "/usr/local/Ascend/cann/lib64",
                "/usr/local/Ascend/ascend-toolkit/latest/lib64",
            ]
        );
        assert!(found.process_first() && found.refused().is_empty());
    }

    #[test]
    fn relative_and_empty_entries_are_refused_by_name() {
        let found = search(&[("ASCEND_HOME_PATH", "cann"), ("LD_LIBRARY_PATH", "/c::../d:"), ("HOME", ".")]);
        let refused: Vec<(&str, &str)> =
            found.refused().iter().map(|r| (r.variable, r.entry.to_str().unwrap())).collect();
        assert_eq!(
            refused,
            [
                ("ASCEND_HOME_PATH", "cann"),
                ("LD_LIBRARY_PATH", ""),
                ("LD_LIBRARY_PATH", "../d"),
                ("LD_LIBRARY_PATH", ""),
                ("HOME", ".")
            ]
        );
        assert!(found.dirs().iter().all(|dir| dir.is_absolute()));
    }

    #[test]
    fn the_override_stands_alone_even_when_it_is_refused() {
        let found = search(&[(OVERRIDE_VARIABLE, "/only"), ("ASCEND_HOME_PATH", "/a")]);
        assert_eq!(found.dirs(), [PathBuf::from("/only")]);
        assert!(!found.process_first());
        let bad = search(&[(OVERRIDE_VARIABLE, "only"), ("ASCEND_HOME_PATH", "/a")]);
        assert!(bad.dirs().is_empty());
        assert_eq!(bad.refused().len(), 1);
    }

    #[test]
    fn an_empty_variable_counts_as_unset() {
        assert_eq!(search(&[(OVERRIDE_VARIABLE, ""), ("LD_LIBRARY_PATH", "")]), search(&[]));
    }
}
