//! The libraries, their versions, the devices.

use std::path::{Path, PathBuf};

use ascend_sys::install::Installed;
use ascend_sys::result::acl;
use ascend_sys::safe::Device;
use ascend_sys::sys::{AclCannPackageName, AclTable, AclrtDeviceStatus, AclrtMemAttr, HcclTable, Origin};
use ascend_sys::{Libraries, Search, loader};

use super::npu_smi::{self, Smi};
use super::report::Report;
use super::versions::{Pair, pair, same_release};

const AREA: &str = "Ascend";

/// Variables that say where a toolkit is meant to be.
const ROOTS: [&str; 3] = ["HCCL_ASCEND_LIB_DIR", "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"];

/// Functions without which no collective runs, whatever the version.
const NEEDED: [&str; 14] = [
    "aclInit",
    "aclrtSetDevice",
    "aclrtCreateStream",
    "aclrtSynchronizeStream",
    "aclrtMalloc",
    "aclrtFree",
    "aclrtMemcpy",
    "HcclGetRootInfo",
    "HcclCommInitRootInfo",
    "HcclCommDestroy",
    "HcclAllReduce",
    "HcclBroadcast",
    "HcclSend",
    "HcclRecv",
];

/// A family of chips, as far as settings depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chip {
    /// Ascend 910.
    A1,
    /// Ascend 910B.
    A2,
    /// Ascend 910_93.
    A3,
    /// Ascend 950.
    A5,
    /// Ascend 310P.
    Duo,
}

impl Chip {
    fn of(soc: &str) -> Option<Chip> {
        Some(match soc.strip_prefix("Ascend")? {
            name if name.starts_with("910B") => Chip::A2,
            name if name.starts_with("910_93") => Chip::A3,
            name if name.starts_with("950") || name.starts_with("910_95") => Chip::A5,
            name if name.starts_with("310P") => Chip::Duo,
            name if name.starts_with("910") => Chip::A1,
            _ => return None,
        })
    }
}

/// Looks; tells the chip when its name is known.
pub(super) fn look(report: &mut Report, variable: &dyn Fn(&str) -> Option<String>) -> Option<Chip> {
    let search = Search::from_env();
    for refused in search.refused() {
        report.problem(AREA, "search", refused.to_string(), format!("give {} absolute paths only", refused.variable));
    }
    let smi = npu_smi::run();
    // Opened once; what is missing stays missing for the life of the process.
    let opened = loader::libraries();
    let libs = loader::partial_libraries();
    report.ascend = [libs.acl.origin(), libs.hccl.origin()].iter().any(|origin| !origin.files.is_empty());
    let meant = ROOTS.iter().find(|name| variable(name).is_some_and(|value| !value.is_empty()));
    let driver = Path::new("/dev/davinci_manager").exists();
    if !report.ascend && meant.is_none() && smi.is_none() && !driver {
        // Each root also has a folder named after the architecture, which says nothing new.
        let arch = format!("{}-linux", std::env::consts::ARCH);
        let dirs = search.dirs().iter().filter(|dir| !dir.iter().any(|part| *part == *arch));
        let dirs: Vec<_> = dirs.map(|dir| dir.display().to_string()).collect();
        report.note(AREA, "libraries", format!("no Ascend here: no CANN in {}", dirs.join(", ")));
        return None;
    }
    if let Err(error) = opened {
        for missing in &error.missing {
            let remedy = "install CANN and source its set_env.sh, or correct the variables that name its folder";
            report.problem(AREA, "libraries", missing.to_string(), remedy);
        }
    }
    libraries(report, libs);
    let chip = if libs.acl.origin().files.is_empty() { None } else { devices(report, libs) };
    if report.ascend {
        versions(report, libs);
    }
    tool(report, smi);
    chip
}

fn libraries(report: &mut Report, libs: &Libraries) {
    for (family, origin) in [("AscendCL", libs.acl.origin()), ("HCCL", libs.hccl.origin())] {
        if !origin.files.is_empty() {
            report.ok(AREA, "libraries", format!("{family} from {origin}"));
        }
    }
    let missing = |there: bool, symbols: Vec<&'static str>| if there { symbols } else { Vec::new() };
    let acl: Vec<_> = libs.acl.missing().map(|symbol| symbol.name).collect();
    let hccl: Vec<_> = libs.hccl.missing().map(|symbol| symbol.name).collect();
    let known = AclTable::SYMBOLS.len() + HcclTable::SYMBOLS.len();
    let absent: Vec<_> = missing(!libs.acl.origin().files.is_empty(), acl)
        .into_iter()
        .chain(missing(!libs.hccl.origin().files.is_empty(), hccl))
        .collect();
    let (needed, others): (Vec<_>, Vec<_>) = absent.into_iter().partition(|name| NEEDED.contains(name));
    if !needed.is_empty() {
        let text = format!("the libraries lack {}, without which no collective runs", needed.join(", "));
        report.problem(AREA, "functions", text, "install a complete CANN of version 8.0 or later");
    }
    if !others.is_empty() {
        let text = format!("{} of {known} known functions are absent, as in some versions: ", others.len());
        report.note(AREA, "functions", text + &others.join(", "));
    }
}

fn dir_of(origin: &Origin) -> Option<PathBuf> {
    Some(origin.files.first()?.parent()?.to_path_buf())
}

fn versions(report: &mut Report, libs: &Libraries) {
    let dir = dir_of(libs.hccl.origin()).or_else(|| dir_of(libs.acl.origin()));
    let files = dir.as_deref().map(Installed::beside).unwrap_or_default();
    let told = |package| acl::package_version(libs, package).ok().filter(|version| !version.is_empty());
    let loaded = told(AclCannPackageName::CANN);
    let cann = loaded.clone().or_else(|| files.toolkit.clone());
    let hccl = told(AclCannPackageName::HCCL).or_else(|| files.hccl.clone());
    let known = |version: &Option<String>| version.clone().unwrap_or_else(|| "unknown".to_owned());
    if let (Some(loaded), Some(installed)) = (&loaded, &files.toolkit)
        && same_release(loaded, installed) != Pair::Fits
    {
        let text = format!("the loaded library is of CANN {loaded}, the files beside it are of {installed}");
        report.problem(
            AREA,
            "versions",
            text,
            "remove the other installation from LD_LIBRARY_PATH, or source one set_env.sh",
        );
    }
    if let (Some(hccl), Some(runtime)) = (&files.hccl, &files.runtime)
        && let Pair::Differs(why) = same_release(hccl, runtime)
    {
        let text = format!("the installed HCCL is {hccl}, the runtime {runtime}: {why}");
        report.problem(AREA, "versions", text, "install both from one package");
    }
    let both = format!("CANN {} and HCCL {}", known(&cann), known(&hccl));
    match (&cann, &hccl) {
        (Some(c), Some(h)) => match pair(c, h) {
            Pair::Fits => report.ok(AREA, "versions", format!("{both} belong together")),
            Pair::Differs(why) => {
                let remedy = format!("{why}: install CANN and HCCL of one release on every host");
                report.problem(AREA, "versions", format!("{both} do not belong together"), remedy);
            }
            Pair::Unknown => report.note(AREA, "versions", format!("{both}: whether they match is not known")),
        },
        _ => report.note(AREA, "versions", both),
    }
    match told(AclCannPackageName::DRIVER) {
        Some(driver) => report.ok(AREA, "driver", driver),
        None => report.note(AREA, "driver", "its version is not told by this CANN"),
    }
    if let Ok((major, minor, patch)) = acl::api_version(libs) {
        report.ok(AREA, "interface", format!("AscendCL {major}.{minor}.{patch}"));
    }
}

const NO_DEVICE: &str = "see npu-smi info and ASCEND_RT_VISIBLE_DEVICES, start the container with its devices, and be in the driver's group";

fn devices(report: &mut Report, libs: &'static Libraries) -> Option<Chip> {
    if let Err(error) = acl::init(libs) {
        report.problem(AREA, "devices", error.to_string(), "correct what the text names, then try again");
        return None;
    }
    let soc = acl::soc_name(libs).ok().flatten();
    match acl::device_count(libs) {
        Ok(0) => report.problem(AREA, "devices", "AscendCL sees no device", NO_DEVICE),
        Ok(count) => {
            let name = soc.as_deref().unwrap_or("of unknown name");
            report.ok(AREA, "devices", format!("{count} x {name}"));
            (0..count as i32).for_each(|id| device(report, libs, id));
        }
        Err(error) => report.problem(AREA, "devices", error.to_string(), NO_DEVICE),
    }
    soc.as_deref().and_then(Chip::of)
}

/// One device: whether it works, and how much of its memory is free.
fn device(report: &mut Report, libs: &'static Libraries, id: i32) {
    let name = format!("device {id}");
    if let Ok(status) = acl::device_status(libs, id)
        && status != AclrtDeviceStatus::NORMAL
    {
        let remedy = "see the health column of npu-smi info, and have the device reset or replaced";
        return report.problem(AREA, name, format!("does not work ({status})"), remedy);
    }
    let opened = Device::open(libs, id).and_then(|device| device.default_context().enter().map(|()| device));
    let memory = match opened {
        Err(error) => return report.problem(AREA, name, error.to_string(), NO_DEVICE),
        // The device stays open while its memory is asked for.
        Ok(_device) => [AclrtMemAttr::HBM, AclrtMemAttr::DDR]
            .into_iter()
            .filter_map(|attr| acl::mem_info(libs, attr).ok())
            .find(|(_, total)| *total > 0),
    };
    let physical = acl::physical_device(libs, id).ok().filter(|physical| *physical != id);
    let physical = physical.map_or_else(String::new, |physical| format!(", physically {physical}"));
    let Some((free, total)) = memory else {
        return report.ok(AREA, name, format!("works{physical}"));
    };
    let text = format!("{} of {} MB free{physical}", free >> 20, total >> 20);
    // A communicator holds two buffers of 200 MB unless told otherwise.
    if free < 400 << 20 {
        let remedy =
            "end the processes that npu-smi info lists, or lower HCCL_BUFFSIZE: a communicator takes twice that";
        return report.problem(AREA, name, text, remedy);
    }
    report.ok(AREA, name, text);
}

fn tool(report: &mut Report, smi: Option<Result<Smi, String>>) {
    let smi = match smi {
        None => return report.note(AREA, "npu-smi", "not in PATH"),
        Some(Err(why)) => {
            let remedy = "see whether the driver is loaded (lsmod | grep drv) and its log";
            return report.problem(AREA, "npu-smi", why, remedy);
        }
        Some(Ok(smi)) => smi,
    };
    let version = smi.version.as_deref().unwrap_or("of unknown version");
    report.ok(AREA, "npu-smi", format!("{version}, {} NPUs", smi.npus.len()));
    for npu in smi.npus.iter().filter(|npu| npu.health != "OK") {
        let text = format!("NPU {} ({}) reports {}", npu.id, npu.name, npu.health);
        report.problem(AREA, "npu-smi", text, "see npu-smi info -t health -i ID, and take it out of service meanwhile");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chips_are_told_by_their_names() {
        for (name, chip) in [
            ("Ascend910B4-1", Some(Chip::A2)),
            ("Ascend910_9391", Some(Chip::A3)),
            ("Ascend910A", Some(Chip::A1)),
            ("Ascend910_95", Some(Chip::A5)),
            ("Ascend310P3", Some(Chip::Duo)),
            ("Other", None),
        ] {
            assert_eq!(Chip::of(name), chip, "{name}");
        }
    }
}
