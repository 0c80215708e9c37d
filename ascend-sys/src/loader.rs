//! Finding and opening the libraries.
//!
//! ```text
//! HCCL_ASCEND_LIB_DIR set:  only that folder
//! otherwise, in this order: $ASCEND_HOME_PATH, $ASCEND_TOOLKIT_HOME, the entries of $LD_LIBRARY_PATH,
//!                           $HOME/Ascend/ascend-toolkit/latest, /usr/local/Ascend/cann,
//!                           /usr/local/Ascend/ascend-toolkit/latest
//! AscendCL:                 libascendcl.so, then libacl_rt.so
//! HCCL:                     libhccl.so, then libhcomm.so (split off in CANN 8.5)
//! ```
//!
//! - Entries that are not absolute are refused, so the working directory is never searched.
//! - A library file that anybody may write to is refused, and so is one in such a folder.
//! - The first folder that has a usable library of a family is the only one used for that family: installs do not mix.
//! - A function is looked up in the process first (what is preloaded with `LD_PRELOAD` wins), then in the files. With
//!   `HCCL_ASCEND_LIB_DIR` only in the files.
//! - What the libraries themselves depend on is the dynamic linker's to find, by its rules: on a real installation source
//!   the toolkit's `set_env.sh`.
//! - Libraries stay open for the life of the process: they start threads that must not lose their code.

#![expect(unsafe_code, reason = "opening a library runs its initialisers")]

mod search;

use std::{
    collections::BTreeSet,
    ffi::{CStr, c_void},
    fmt, io,
    path::{Path, PathBuf},
    ptr::NonNull,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use libloading::Library;

pub use search::{OVERRIDE_VARIABLE, Refused, Search};

use crate::{
    install::Installed,
    result::Error,
    sys::{AclTable, Address, HcclTable, Origin},
};

/// The libraries of this process, looked for [from the environment](Search::from_env) at the first call.
///
/// # Errors
/// When AscendCL or HCCL is not installed where it was looked for. The answer, good or bad, stays the same for the life
/// of the process.
pub fn libraries() -> Result<&'static Libraries, &'static LoadError> {
    let found = found();
    found.error.as_ref().map_or(Ok(&found.libraries), Err)
}

/// As [`libraries`], for programs that look into an incomplete installation: of a family that is missing, every function
/// is.
#[must_use]
pub fn partial_libraries() -> &'static Libraries {
    &found().libraries
}

struct Found {
    libraries: Libraries,
    error: Option<LoadError>,
}

fn found() -> &'static Found {
    static FOUND: OnceLock<Found> = OnceLock::new();
    FOUND.get_or_init(|| {
        // SAFETY: the environment decides which code runs in a process, as it does with every library it links.
        unsafe { find(&Search::from_env()) }
    })
}

/// # Safety
/// As [`Libraries::open`].
unsafe fn find(search: &Search) -> Found {
    // SAFETY: the caller's. AscendCL first: HCCL's libraries need it.
    let acl = unsafe { open_acl(search) };
    // SAFETY: the caller's.
    let hccl = unsafe { open_hccl(search) };
    let missing: Vec<_> = [acl.as_ref().err(), hccl.as_ref().err()].into_iter().flatten().cloned().collect();
    let error = (!missing.is_empty()).then_some(LoadError { missing });
    let libraries = Libraries { acl: acl.unwrap_or_default(), hccl: hccl.unwrap_or_default(), ..Libraries::default() };
    Found { libraries, error }
}

/// AscendCL and HCCL, each a table of optional functions.
#[derive(Debug, Default)]
pub struct Libraries {
    /// AscendCL's functions.
    pub acl: AclTable,
    /// HCCL's functions.
    pub hccl: HcclTable,
    drop_errors: Mutex<Vec<Error>>,
    building: Mutex<BTreeSet<i32>>,
}

/// More errors than this are not kept: a program that never asks must not grow.
const KEPT_DROP_ERRORS: usize = 64;

impl Libraries {
    /// Opens both families. For a search other than the environment's; see [`libraries`] for the usual way.
    ///
    /// # Errors
    /// When a family has no usable library in the places searched.
    ///
    /// # Safety
    /// Files under the libraries' names in the folders searched implement AscendCL and HCCL: opening them runs their
    /// code, and safe functions of this crate call into them.
    pub unsafe fn open(search: &Search) -> Result<Self, LoadError> {
        // SAFETY: the caller's.
        let Found { libraries, error } = unsafe { find(search) };
        error.map_or(Ok(libraries), Err)
    }

    /// The errors met while guards were dropped, oldest first, at most 64; they are handed out once.
    pub fn take_drop_errors(&self) -> Vec<Error> {
        std::mem::take(&mut self.kept_errors())
    }

    pub(crate) fn keep_drop_error(&self, error: Error) {
        let mut kept = self.kept_errors();
        if kept.len() < KEPT_DROP_ERRORS {
            kept.push(error);
        }
    }

    /// Claims a device for building a communicator: HCCL forbids two threads to do so on one device at once. `None`
    /// when it is claimed.
    pub(crate) fn claim_device(&self, device: i32) -> Option<DeviceClaim<'_>> {
        let free = self.claimed_devices().insert(device);
        free.then(|| DeviceClaim { libs: self, device })
    }

    fn claimed_devices(&self) -> MutexGuard<'_, BTreeSet<i32>> {
        // As with the errors: the set is whole after every change.
        self.building.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept_errors(&self) -> MutexGuard<'_, Vec<Error>> {
        // A list of errors is whole after every push, so a panic elsewhere does not spoil it.
        self.drop_errors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A device on which this thread builds a communicator.
pub(crate) struct DeviceClaim<'a> {
    libs: &'a Libraries,
    device: i32,
}

impl Drop for DeviceClaim<'_> {
    fn drop(&mut self) {
        self.libs.claimed_devices().remove(&self.device);
    }
}

/// Opens AscendCL alone.
///
/// # Errors
/// When no usable library is in the places searched.
///
/// # Safety
/// As [`Libraries::open`].
pub unsafe fn open_acl(search: &Search) -> Result<AclTable, MissingLibrary> {
    // SAFETY: the caller\'s.
    let opened = unsafe { open_family("AscendCL", &["libascendcl.so", "libacl_rt.so"], search) }?;
    // SAFETY: `lookup` gives addresses of the names asked for in libraries that are never closed.
    Ok(unsafe { AclTable::load(opened.origin.clone(), &mut |name| opened.lookup(name)) })
}

/// Opens HCCL alone. Open AscendCL first: on a real installation HCCL's libraries need it.
///
/// # Errors
/// When no usable library is in the places searched.
///
/// # Safety
/// As [`Libraries::open`].
pub unsafe fn open_hccl(search: &Search) -> Result<HcclTable, MissingLibrary> {
    // SAFETY: the caller\'s.
    let opened = unsafe { open_family("HCCL", &["libhccl.so", "libhcomm.so"], search) }?;
    // SAFETY: `lookup` gives addresses of the names asked for in libraries that are never closed.
    Ok(unsafe { HcclTable::load(opened.origin.clone(), &mut |name| opened.lookup(name)) })
}

/// One or both families of libraries are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// What is missing, with everything that was tried.
    pub missing: Vec<MissingLibrary>,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, missing) in self.missing.iter().enumerate() {
            write!(f, "{}{missing}", if i == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl std::error::Error for LoadError {}

/// No library of a family could be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingLibrary {
    /// `AscendCL` or `HCCL`.
    pub family: &'static str,
    /// The file names that would have done.
    pub names: &'static [&'static str],
    /// Every file tried, in order.
    pub tried: Vec<Tried>,
    /// Entries of the environment that were not searched.
    pub refused: Vec<Refused>,
}

impl fmt::Display for MissingLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}) was not found", self.family, self.names.join(" or "))?;
        let mut absent: Vec<_> =
            self.tried.iter().filter(|t| t.why == Unusable::Absent).filter_map(|t| t.path.parent()).collect();
        absent.dedup();
        if self.tried.is_empty() {
            f.write_str(": no folder to search")?;
        }
        for (i, dir) in absent.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { ": not in " } else { ", " }, dir.display())?;
        }
        for tried in self.tried.iter().filter(|tried| tried.why != Unusable::Absent) {
            write!(f, "; {tried}")?;
        }
        for refused in &self.refused {
            write!(f, "; {refused}")?;
        }
        write!(f, " (install CANN and source its set_env.sh, or set {OVERRIDE_VARIABLE} to the libraries' folder)")
    }
}

impl std::error::Error for MissingLibrary {}

/// A file that was tried and not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// The file.
    pub path: PathBuf,
    /// Why it was not used.
    pub why: Unusable,
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.why {
            Unusable::Absent => write!(f, "{path}: no such file"),
            Unusable::Unreadable(error) => write!(f, "{path}: {error}"),
            Unusable::NotAFile => write!(f, "{path}: not a regular file"),
            Unusable::WorldWritable(what) => {
                write!(f, "{path}: refused, anybody may write to {} (chmod o-w it)", what.display())
            }
            Unusable::NotLoadable(error) => write!(f, "{path}: {error}"),
        }
    }
}

/// Why a library file was not used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unusable {
    /// There is no such file.
    Absent,
    /// The file cannot be looked at, with the system's words.
    Unreadable(String),
    /// There is something else under that name.
    NotAFile,
    /// Anybody may write to the file or its folder, which is named.
    WorldWritable(PathBuf),
    /// The dynamic linker refuses it, with its words.
    NotLoadable(String),
}

/// The open libraries of a family.
struct Opened {
    origin: Origin,
    process: Option<Library>,
    libraries: Vec<Library>,
}

impl Opened {
    fn lookup(&self, name: &CStr) -> Option<Address> {
        self.process.iter().chain(&self.libraries).find_map(|library| symbol(library, name))
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // The tables keep addresses inside the libraries, so these are never closed.
        self.libraries.drain(..).for_each(std::mem::forget);
    }
}

fn symbol(library: &Library, name: &CStr) -> Option<Address> {
    // SAFETY: the symbol is taken as an untyped address and not used here.
    let found = unsafe { library.get::<*mut c_void>(name) };
    NonNull::new(*found.ok()?)
}

/// # Safety
/// As [`Libraries::open`].
unsafe fn open_family(
    family: &'static str,
    names: &'static [&'static str],
    search: &Search,
) -> Result<Opened, MissingLibrary> {
    let mut tried = Vec::new();
    for dir in search.dirs() {
        let before = tried.len();
        let mut opened = Opened { origin: Origin::default(), process: None, libraries: Vec::new() };
        for name in names {
            let path = dir.join(name);
            // SAFETY: the caller's.
            match unsafe { open_file(&path) } {
                Ok(library) => {
                    opened.libraries.push(library);
                    opened.origin.files.push(path);
                }
                Err(why) => tried.push(Tried { path, why }),
            }
        }
        if !opened.libraries.is_empty() {
            opened.process = if search.process_first() { this_process() } else { None };
            let failed = tried[before..].iter().filter(|tried| tried.why != Unusable::Absent);
            opened.origin.unusable = failed.map(ToString::to_string).collect();
            let installed = Installed::beside(dir);
            opened.origin.version = installed.toolkit.or(installed.hccl);
            return Ok(opened);
        }
    }
    Err(MissingLibrary { family, names, tried, refused: search.refused().to_vec() })
}

/// # Safety
/// As [`Libraries::open`].
unsafe fn open_file(path: &Path) -> Result<Library, Unusable> {
    check_file(path)?;
    // SAFETY: the caller's; and the file is at an absolute path that only its owner or group may change.
    unsafe { Library::new(path) }.map_err(|error| Unusable::NotLoadable(reason(&error, path)))
}

/// The linker's words, without the wrapping of the loading crate and without the path that is said anyway.
fn reason(error: &libloading::Error, path: &Path) -> String {
    let words = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    let without = words.strip_prefix(&format!("{}: ", path.display())).map(str::to_owned);
    without.unwrap_or(words)
}

fn check_file(path: &Path) -> Result<(), Unusable> {
    let real = path.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Unusable::Absent,
        _ => Unusable::Unreadable(error.to_string()),
    })?;
    let meta = real.metadata().map_err(|error| Unusable::Unreadable(error.to_string()))?;
    if !meta.is_file() {
        return Err(Unusable::NotAFile);
    }
    let folders = [path.parent(), real.parent()].into_iter().flatten();
    for place in [real.as_path()].into_iter().chain(folders) {
        if world_writable(place).map_err(|error| Unusable::Unreadable(error.to_string()))? {
            return Err(Unusable::WorldWritable(place.to_owned()));
        }
    }
    Ok(())
}

/// Whether anybody may replace what is there; a sticky folder lets nobody replace another's files.
#[cfg(unix)]
fn world_writable(place: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    const WRITABLE: u32 = 0o002;
    const STICKY: u32 = 0o1000;
    let meta = place.metadata()?;
    Ok(meta.mode() & WRITABLE != 0 && !(meta.is_dir() && meta.mode() & STICKY != 0))
}

#[cfg(not(unix))]
fn world_writable(_: &Path) -> io::Result<bool> {
    Ok(false)
}

#[cfg(unix)]
fn this_process() -> Option<Library> {
    Some(libloading::os::unix::Library::this().into())
}

#[cfg(not(unix))]
fn this_process() -> Option<Library> {
    None
}
