//! The effective settings: HCCL's variables and this library's own.

mod rules;

use super::ascend::Chip;
use super::report::Report;
use rules::{Rule, exec_timeout, expansion_modes};

const AREA: &str = "Settings";

/// A variable of HCCL: its default and what it takes.
struct Setting(&'static str, &'static str, Rule);

/// HCCL's variables in the order of their documentation. Defaults are words where they are no value.
const SETTINGS: &[Setting] = &[
    Setting("HCCL_CONNECT_TIMEOUT", "120", Rule::Whole(120, 7200)),
    Setting("HCCL_EXEC_TIMEOUT", "1836", Rule::Exec),
    Setting("HCCL_IF_IP", "unset", Rule::Ip),
    Setting("HCCL_SOCKET_IFNAME", "unset", Rule::Free),
    Setting("HCCL_SOCKET_FAMILY", "AF_INET", Rule::OneOf(&["AF_INET", "AF_INET6"])),
    Setting("HCCL_IF_BASE_PORT", "60000", Rule::Whole(1024, 65520)),
    Setting("HCCL_HOST_SOCKET_PORT_RANGE", "unset", Rule::Ports),
    Setting("HCCL_NPU_SOCKET_PORT_RANGE", "16666", Rule::Ports),
    Setting("HCCL_BUFFSIZE", "200", Rule::Whole(1, u32::MAX as u64)),
    Setting("HCCL_ALGO", "automatic", Rule::Algorithms),
    Setting("HCCL_DETERMINISTIC", "false", Rule::OneOf(&["false", "true", "strict"])),
    Setting("HCCL_OP_EXPANSION_MODE", "the chip's", Rule::Expansion),
    Setting("HCCL_OP_RETRY_ENABLE", "L1:0,L2:0", Rule::Fields(&[("L0", 0, 1), ("L1", 0, 1), ("L2", 0, 1)])),
    Setting(
        "HCCL_OP_RETRY_PARAMS",
        "MaxCnt:1,HoldTime:5000,IntervalTime:1000",
        Rule::Fields(&[("MaxCnt", 1, 10), ("HoldTime", 0, 60000), ("IntervalTime", 0, 60000)]),
    ),
    Setting("HCCL_WHITELIST_DISABLE", "1", Rule::Switch),
    Setting("HCCL_WHITELIST_FILE", "unset", Rule::File),
    Setting("HCCL_INTRA_PCIE_ENABLE", "1", Rule::Switch),
    Setting("HCCL_INTRA_ROCE_ENABLE", "0", Rule::Switch),
    Setting("HCCL_INTER_HCCS_DISABLE", "FALSE", Rule::OneOf(&["FALSE", "TRUE", "false", "true"])),
    Setting("HCCL_LOGIC_SUPERPOD_ID", "the physical id", Rule::Short(127)),
    Setting("HCCL_RDMA_TC", "132", Rule::Multiple(4, 255)),
    Setting("HCCL_RDMA_SL", "4", Rule::Whole(0, 7)),
    Setting("HCCL_RDMA_TIMEOUT", "20", Rule::Whole(5, 24)),
    Setting("HCCL_RDMA_RETRY_CNT", "7", Rule::Whole(1, 7)),
    Setting("HCCL_RDMA_QPS_PER_CONNECTION", "1", Rule::Whole(1, 32)),
    Setting("HCCL_MULTI_QP_THRESHOLD", "512", Rule::Whole(1, 8192)),
    Setting("HCCL_RDMA_QP_PORT_CONFIG_PATH", "unset", Rule::File),
    Setting("HCCL_RDMA_PCIE_DIRECT_POST_NOSTRICT", "FALSE", Rule::OneOf(&["FALSE", "TRUE", "false", "true"])),
    Setting("HCCL_ALG_MULTIPLE_DIMENSION_SPLIT_RATIO", "0.5", Rule::Number(0.0, 1.0)),
    Setting("HCCL_DFS_CONFIG", "as documented", Rule::Free),
    Setting("HCCL_DIAGNOSE_ENABLE", "0", Rule::Switch),
    Setting("HCCL_ENTRY_LOG_ENABLE", "0", Rule::Switch),
    Setting("HCCL_DEBUG_CONFIG", "unset", Rule::Modules(&["ALG", "TASK", "RESOURCE"])),
];

/// This library's own variables. Timeouts are also HCCL's, with other ranges.
const OWN: &[Setting] = &[
    Setting("HCCL_TIMEOUT", "unset", Rule::Number(0.001, 604_800.0)),
    Setting("HCCL_CHECK", "0", Rule::Switch),
    Setting("HCCL_ASCEND_LIB_DIR", "unset", Rule::Folder),
    Setting("HCCL_RANK", "unset", Rule::Whole(0, 65_535)),
    Setting("HCCL_WORLD_SIZE", "unset", Rule::Whole(1, 65_536)),
    Setting("HCCL_LOCAL_RANK", "unset", Rule::Whole(0, 65_535)),
    Setting("HCCL_LOCAL_WORLD_SIZE", "unset", Rule::Whole(1, 65_536)),
    Setting("HCCL_JOB_ID", "unset", Rule::Filled),
    Setting("HCCL_GENERATION", "0", Rule::Whole(0, u64::MAX)),
    Setting("HCCL_STAGE_BYTES", "automatic", Rule::Whole(1, u64::MAX)),
];

/// Variables of the runtime below HCCL.
const RUNTIME: &[Setting] = &[
    Setting("ASCEND_RT_VISIBLE_DEVICES", "all", Rule::Devices),
    Setting("ASCEND_DEVICE_ID", "unset", Rule::Whole(0, 1023)),
    Setting("ASCEND_GLOBAL_LOG_LEVEL", "3", Rule::Whole(0, 4)),
    Setting("ASCEND_SLOG_PRINT_TO_STDOUT", "0", Rule::Switch),
    Setting("RANK_TABLE_FILE", "unset", Rule::File),
];

/// Defaults that are worth a line: they bound waiting and memory.
const SHOWN: [&str; 3] = ["HCCL_CONNECT_TIMEOUT", "HCCL_EXEC_TIMEOUT", "HCCL_BUFFSIZE"];

/// The CPU engine's own range of the two timeouts, in seconds.
const ENGINE: Rule = Rule::Number(0.001, 604_800.0);

/// Variables of others that begin alike.
const FOREIGN: [&str; 5] =
    ["HCCL_TEST_", "HCCL_STAND_IN_", "HCCL_ASYNC_ERROR_HANDLING", "HCCL_EVENT_TIMEOUT", "HCCL_DESYNC_DEBUG"];

/// Looks at the variables of this environment.
pub(super) fn look(report: &mut Report, chip: Option<Chip>, vars: &[(String, String)]) {
    let value = |name: &str| vars.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    for setting in SETTINGS {
        let timeout = matches!(setting.0, "HCCL_CONNECT_TIMEOUT" | "HCCL_EXEC_TIMEOUT");
        match value(setting.0) {
            Some(text) if timeout && !report.ascend => judge(report, setting.0, text, ENGINE.check(text)),
            Some(text) if !report.ascend => report.note(AREA, setting.0, format!("{text}, which only HCCL looks at")),
            Some(text) => {
                let checked = match setting.2 {
                    Rule::Exec => exec_timeout(chip, text),
                    Rule::Expansion => expansion_modes(chip, text),
                    _ => setting.2.check(text),
                };
                judge(report, setting.0, text, checked);
            }
            None => default(report, setting),
        }
    }
    if report.ascend {
        report.ok(AREA, "others", "at their defaults, which --json lists");
    }
    for setting in OWN.iter().chain(if report.ascend { RUNTIME } else { &[] }) {
        if let Some(text) = value(setting.0) {
            judge(report, setting.0, text, setting.2.check(text));
        }
    }
    together(report, &value);
    vars.iter().for_each(|(name, _)| unknown(report, name));
    if !report.ascend {
        let given = |name, default: &str| value(name).or(value("HCCL_TIMEOUT")).unwrap_or(default).to_owned();
        let (connect, exec) = (given("HCCL_CONNECT_TIMEOUT", "120"), given("HCCL_EXEC_TIMEOUT", "300"));
        report.ok(AREA, "timeouts", format!("ranks meet within {connect} s, a call ends within {exec} s"));
    }
}

fn default(report: &mut Report, setting: &Setting) {
    let text = format!("{} (default)", setting.1);
    if !report.ascend {
        return;
    }
    if SHOWN.contains(&setting.0) { report.ok(AREA, setting.0, text) } else { report.quiet(AREA, setting.0, text) }
}

fn judge(report: &mut Report, name: &str, text: &str, checked: Result<(), String>) {
    match checked {
        Ok(()) => report.ok(AREA, name, text),
        Err(allowed) => report.problem(AREA, name, format!("is {text:?}"), format!("set it to {allowed}, or unset it")),
    }
}

/// Settings that do not go together.
fn together<'a>(report: &mut Report, value: &impl Fn(&str) -> Option<&'a str>) {
    if value("HCCL_INTRA_PCIE_ENABLE") == Some("1") && value("HCCL_INTRA_ROCE_ENABLE") == Some("1") {
        let text = "HCCL_INTRA_PCIE_ENABLE and HCCL_INTRA_ROCE_ENABLE are both 1";
        report.problem(AREA, "links inside a host", text, "set one of them to 0");
    }
    if value("HCCL_RANK").is_some() != value("HCCL_WORLD_SIZE").is_some() {
        let text = "of HCCL_RANK and HCCL_WORLD_SIZE one is set and one is not";
        report.problem(AREA, "ranks", text, "set both, as hccl run does, or none");
    }
    let number = |name, default: f64| value(name).map_or(Some(default), |text| text.trim().parse::<f64>().ok());
    let exec = if report.ascend { 1836.0 } else { 300.0 };
    if let (Some(connect), Some(exec)) = (number("HCCL_CONNECT_TIMEOUT", 120.0), number("HCCL_EXEC_TIMEOUT", exec))
        && report.ascend
        && exec > 0.0
        && connect >= exec
    {
        let text = format!("ranks may take {connect} s to meet, but an operation only {exec} s");
        report.problem(AREA, "timeouts", text, "make HCCL_CONNECT_TIMEOUT less than HCCL_EXEC_TIMEOUT");
    }
}

/// A variable that looks like one of HCCL's and is none.
fn unknown(report: &mut Report, name: &str) {
    let known = || SETTINGS.iter().chain(OWN).map(|setting| setting.0);
    let foreign = FOREIGN.iter().any(|prefix| name.starts_with(prefix));
    if !name.starts_with("HCCL_") || foreign || known().any(|other| other == name) {
        return;
    }
    match known().map(|other| (distance(name, other), other)).min() {
        Some((1..=3, close)) => {
            let text = format!("is set, but there is no such variable: {close} is meant?");
            report.problem(AREA, name, text, format!("rename it to {close}, or unset it"));
        }
        _ => report.note(AREA, name, "is set, and not known here"),
    }
}

/// How many letters must be added, removed or changed.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looked(ascend: bool, chip: Option<Chip>, vars: &[(&str, &str)]) -> (bool, String) {
        let mut report = Report::new();
        report.ascend = ascend;
        let vars: Vec<_> = vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        look(&mut report, chip, &vars);
        (report.is_healthy(), report.to_string())
    }

    #[test]
    fn defaults_are_themselves_allowed() {
        for setting in SETTINGS.iter().chain(OWN).chain(RUNTIME) {
            let words =
                ["unset", "all", "automatic", "the chip's", "the physical id", "as documented"].contains(&setting.1);
            assert!(words || setting.2.check(setting.1).is_ok(), "{}: {}", setting.0, setting.1);
        }
        let (healthy, text) = looked(true, Some(Chip::A2), &[]);
        assert!(healthy && text.contains("HCCL_BUFFSIZE: 200 (default)"), "{text}");
        assert!(!text.contains("HCCL_ALGO"), "an uninteresting line: {text}");
    }

    #[test]
    fn bad_values_and_misspelt_names_are_problems_with_a_remedy() {
        for (vars, wanted) in [
            (&[("HCCL_CONNECT_TIMEOUT", "5")][..], "120 to 7200"),
            (&[("HCCL_RDMA_TC", "130")], "multiple of 4"),
            (&[("HCCL_INTRA_PCIE_ENABLE", "1"), ("HCCL_INTRA_ROCE_ENABLE", "1")], "one of them to 0"),
            (&[("HCCL_CONNECT_TIMEOUT", "600"), ("HCCL_EXEC_TIMEOUT", "68")], "less than HCCL_EXEC_TIMEOUT"),
            (&[("HCCL_RANK", "0")], "set both"),
            (&[("ASCEND_RT_VISIBLE_DEVICES", "0,0")], "each once"),
            (&[("HCCL_SOCKET_IFNAMES", "eth0")], "rename it to HCCL_SOCKET_IFNAME"),
        ] {
            let (healthy, text) = looked(true, Some(Chip::A2), vars);
            assert!(!healthy && text.contains(wanted), "{vars:?}: {text}");
        }
        let (healthy, text) = looked(true, None, &[("HCCL_SOMETHING_NEW", "1"), ("HCCL_TEST_USE_DEVS", "0")]);
        assert!(healthy && text.contains("HCCL_SOMETHING_NEW: is set") && !text.contains("TEST"), "{text}");
    }

    #[test]
    fn without_ascend_the_engines_own_ranges_hold() {
        assert!(looked(false, None, &[("HCCL_EXEC_TIMEOUT", "0.5"), ("HCCL_CONNECT_TIMEOUT", "600")]).0);
        let (healthy, text) = looked(false, None, &[("HCCL_EXEC_TIMEOUT", "0")]);
        assert!(!healthy && text.contains("0.001 to 604800"), "{text}");
        assert!(looked(false, None, &[("HCCL_BUFFSIZE", "none")]).0, "nobody reads it");
        assert!(looked(true, Some(Chip::A2), &[("HCCL_EXEC_TIMEOUT", "0")]).0, "HCCL waits for ever then");
    }
}
