//! Which network interface ranks would meet over.

use std::fs;
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::path::Path;

use super::report::Report;

const AREA: &str = "Network";

/// HCCL's host ports: so many from the base on.
const PORTS: u16 = 32;

/// Looks at the interfaces and at the variables that choose among them.
pub(super) fn look(report: &mut Report, variable: &dyn Fn(&str) -> Option<String>) {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let interfaces = interfaces(Path::new("/sys/class/net"));
    let names = interfaces.join(", ");
    let filter = set("HCCL_SOCKET_IFNAME").filter(|_| report.ascend);
    // Only HCCL looks at these two.
    if let Some(ip) = set("HCCL_IF_IP").filter(|_| report.ascend) {
        return address(report, &ip, &names);
    }
    match choose(&interfaces, filter.as_deref()) {
        Some("lo") => report.note(AREA, "interface", "lo: ranks of this host only"),
        Some(name) => {
            let why = filter.map_or_else(|| "by name".to_owned(), |filter| format!("HCCL_SOCKET_IFNAME={filter}"));
            report.ok(AREA, "interface", format!("{name} ({why}; there are {names})"));
        }
        None => {
            let filter = filter.unwrap_or_default();
            let text = format!("HCCL_SOCKET_IFNAME={filter} chooses none of {names}");
            report.problem(AREA, "interface", text, "name one of them, as HCCL_SOCKET_IFNAME==eth0, or unset it");
        }
    }
    if report.ascend {
        ports(report, set("HCCL_IF_BASE_PORT").and_then(|port| port.parse().ok()).unwrap_or(60000));
    }
}

/// Interfaces that are up, sorted by name; `lo` too.
fn interfaces(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    let up = |path: &Path| {
        // Interfaces without carrier detection, as `lo`, are in state unknown.
        fs::read_to_string(path.join("operstate")).is_ok_and(|state| matches!(state.trim(), "up" | "unknown"))
    };
    let names = entries.filter(|entry| up(&entry.path())).filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// The interface that HCCL takes: the first that the filter lets through, else the first by name, with docker's and `lo`
/// last.
fn choose<'a>(names: &'a [String], filter: Option<&str>) -> Option<&'a str> {
    let last = |name: &str| (name == "lo", name.starts_with("docker"));
    let Some(filter) = filter else {
        return names.iter().map(String::as_str).min_by_key(|name| last(name));
    };
    let (not, filter) = filter.strip_prefix('^').map_or((false, filter), |rest| (true, rest));
    let (exact, filter) = filter.strip_prefix('=').map_or((false, filter), |rest| (true, rest));
    let hit = |name: &str, part: &str| if exact { name == part } else { name.starts_with(part) };
    if not {
        return names.iter().map(String::as_str).find(|name| !filter.split(',').any(|part| hit(name, part.trim())));
    }
    filter.split(',').find_map(|part| names.iter().map(String::as_str).find(|name| hit(name, part.trim())))
}

fn address(report: &mut Report, ip: &str, names: &str) {
    // What is no address is a problem among the settings already.
    let Ok(parsed) = ip.parse::<IpAddr>() else { return };
    match UdpSocket::bind((parsed, 0)) {
        Ok(_) => report.ok(AREA, "interface", format!("that of {ip} (HCCL_IF_IP; there are {names})")),
        Err(error) => {
            let text = format!("HCCL_IF_IP={ip} is no address of this host: {error}");
            report.problem(AREA, "interface", text, "give an address of this host (ip addr), or unset it");
        }
    }
}

fn ports(report: &mut Report, base: u16) {
    let last = base.saturating_add(PORTS - 1);
    let taken = |port: &u16| TcpListener::bind(("0.0.0.0", *port)).is_err();
    let taken: Vec<_> = (base..=last).filter(taken).map(|port| port.to_string()).collect();
    match taken.len() {
        0 => report.ok(AREA, "ports", format!("{base} to {last} are free")),
        n if n < usize::from(PORTS) => {
            report.note(AREA, "ports", format!("of {base} to {last} these are taken: {}", taken.join(", ")));
        }
        _ => {
            let remedy = "end what holds them, or set HCCL_IF_BASE_PORT or HCCL_HOST_SOCKET_PORT_RANGE";
            report.problem(AREA, "ports", format!("{base} to {last} are all taken"), remedy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_choose_as_documented() {
        let names: Vec<String> = ["docker0", "ens1", "eth0", "eth01", "lo"].map(str::to_owned).into();
        for (filter, chosen) in [
            (None, Some("ens1")),
            (Some("eth"), Some("eth0")),
            (Some("=eth01"), Some("eth01")),
            (Some("^e"), Some("docker0")),
            (Some("^=docker0,ens1"), Some("eth0")),
            (Some("bond,ens"), Some("ens1")),
            (Some("ib"), None),
        ] {
            assert_eq!(choose(&names, filter), chosen, "{filter:?}");
        }
        assert_eq!(choose(&names[..1], None), Some("docker0"));
        assert_eq!(choose(&["lo".to_owned()], None), Some("lo"));
    }

    #[test]
    fn an_address_must_be_this_hosts() {
        let mut report = Report::new();
        report.ascend = true;
        look(&mut report, &|name| (name == "HCCL_IF_IP").then(|| "127.0.0.1".to_owned()));
        assert!(report.is_healthy(), "{report}");
        look(&mut report, &|name| (name == "HCCL_IF_IP").then(|| "192.0.2.77".to_owned()));
        assert!(!report.is_healthy() && report.to_string().contains("ip addr"), "{report}");
    }
}
