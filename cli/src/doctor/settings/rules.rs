//! What a setting takes. Each check tells, for a text that is not allowed, what is.

use std::net::IpAddr;
use std::path::Path;

use super::super::ascend::Chip;

/// A rule for the text of a setting.
#[derive(Clone, Copy)]
pub(super) enum Rule {
    /// Any text.
    Free,
    /// Any text that is not empty.
    Filled,
    /// A whole number in a range.
    Whole(u64, u64),
    /// A number in a range.
    Number(f64, f64),
    /// A multiple of the first, up to the second.
    Multiple(u64, u64),
    /// 0 or 1.
    Switch,
    OneOf(&'static [&'static str]),
    Ip,
    /// Ports and ranges of ports with commas between, or `auto`.
    Ports,
    /// Numbers of devices with commas between, each once.
    Devices,
    /// `name:number` with commas between, each in a range.
    Fields(&'static [(&'static str, u64, u64)]),
    /// Module names with commas between, perhaps negated as a whole.
    Modules(&'static [&'static str]),
    /// At most so many bytes.
    Short(usize),
    /// An existing file.
    File,
    /// An existing folder, absolute.
    Folder,
    /// Algorithms by level, perhaps by operation.
    Algorithms,
    /// Seconds of [`exec_timeout`].
    Exec,
    /// A mode of [`expansion_modes`].
    Expansion,
}

const ALGORITHMS: &[&str] = &["NA", "ring", "H-D_R", "NHR", "NHR_V1", "NB", "AHC", "pipeline", "pairwise", "fullmesh"];
const OPERATORS: &[&str] = &["allgather", "reducescatter", "allreduce", "broadcast", "reduce", "scatter", "alltoall"];

impl Rule {
    /// Whether the text is allowed; else what is.
    pub(super) fn check(self, text: &str) -> Result<(), String> {
        let (allowed, what) = self.judge(text.trim());
        if allowed { Ok(()) } else { Err(what) }
    }

    fn judge(self, text: &str) -> (bool, String) {
        let whole = |min: u64, max: u64| text.parse::<u64>().is_ok_and(|n| (min..=max).contains(&n));
        match self {
            Rule::Free => (true, String::new()),
            Rule::Filled => (!text.is_empty(), "a text that is not empty".to_owned()),
            Rule::Whole(min, u64::MAX) => (whole(min, u64::MAX), format!("a whole number of at least {min}")),
            Rule::Whole(min, max) => (whole(min, max), format!("a whole number from {min} to {max}")),
            Rule::Number(min, max) => {
                let fits = text.parse::<f64>().is_ok_and(|n| (min..=max).contains(&n));
                (fits, format!("a number from {min} to {max}"))
            }
            Rule::Multiple(of, max) => {
                let fits = text.parse::<u64>().is_ok_and(|n| n <= max && n.is_multiple_of(of));
                (fits, format!("a multiple of {of} up to {max}"))
            }
            Rule::Switch => (matches!(text, "0" | "1"), "0 or 1".to_owned()),
            Rule::OneOf(texts) => (texts.contains(&text), format!("one of {}", texts.join(", "))),
            Rule::Ip => (text.parse::<IpAddr>().is_ok(), "an address of this host, as 192.0.2.1".to_owned()),
            Rule::Ports => (ports(text), "ports such as 60000,60050-60100, or auto".to_owned()),
            Rule::Devices => (devices(text), "numbers of devices with commas between, each once".to_owned()),
            Rule::Fields(fields) => (in_fields(fields, text), field_ranges(fields)),
            Rule::Modules(names) => {
                let fits = text.trim_start_matches('^').split(',').all(|name| names.contains(&name));
                (fits, format!("{} with commas between, without blanks", names.join(",")))
            }
            Rule::Short(max) => (text.len() <= max, format!("at most {max} characters")),
            Rule::File => (Path::new(text).is_file(), "the path of an existing file".to_owned()),
            Rule::Folder => {
                let path = Path::new(text);
                (path.is_absolute() && path.is_dir(), "the absolute path of an existing folder".to_owned())
            }
            Rule::Algorithms => {
                let wanted =
                    "level0:NA;level1:<algorithm>;level2:<algorithm>, perhaps as <operator>=... with / between";
                (algorithms(text), format!("{wanted}, with algorithms {}", ALGORITHMS.join(" ")))
            }
            Rule::Exec => (whole(0, i32::MAX as u64), "whole seconds".to_owned()),
            Rule::Expansion => (!text.is_empty(), "a mode of the chip".to_owned()),
        }
    }
}

/// `HCCL_EXEC_TIMEOUT`, which differs between chips.
pub(super) fn exec_timeout(chip: Option<Chip>, text: &str) -> Result<(), String> {
    match chip {
        Some(Chip::A1 | Chip::Duo) => {
            let fits = text.trim().parse::<u64>().is_ok_and(|n| (1..=17_340).contains(&n));
            if fits { Ok(()) } else { Err("1 to 17340 s, best a multiple of 68".to_owned()) }
        }
        _ => Rule::Number(0.0, f64::from(i32::MAX)).check(text),
    }
}

/// `HCCL_OP_EXPANSION_MODE`, which differs between chips.
pub(super) fn expansion_modes(chip: Option<Chip>, text: &str) -> Result<(), String> {
    let modes: &'static [&'static str] = match chip {
        Some(Chip::A2) => &["HOST", "HOST_TS", "AI_CPU", "AIV"],
        Some(Chip::A3) => &["AI_CPU", "AICPU_CacheDisable", "AIV"],
        Some(Chip::A5) => &["AICPU_TS", "AI_CPU", "AICPU_CacheDisable", "AIV", "CCU_MS", "CCU_SCHED"],
        _ => &["HOST", "HOST_TS", "AI_CPU", "AICPU_TS", "AICPU_CacheDisable", "AIV", "CCU_MS", "CCU_SCHED"],
    };
    Rule::OneOf(modes).check(text)
}

fn ports(text: &str) -> bool {
    let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
    let part = |part: &str| match part.split_once('-') {
        Some((first, last)) => port(first).zip(port(last)).is_some_and(|(first, last)| first <= last),
        None => port(part).is_some(),
    };
    text == "auto" || text.split(',').all(part)
}

fn devices(text: &str) -> bool {
    let mut numbers: Vec<_> = text.split(',').map(|part| part.trim().parse::<u32>()).collect();
    let given = numbers.len();
    numbers.sort_by_key(|number| number.clone().unwrap_or(u32::MAX));
    numbers.dedup();
    numbers.len() == given && numbers.iter().all(Result::is_ok)
}

fn in_fields(fields: &[(&str, u64, u64)], text: &str) -> bool {
    text.split(',').all(|part| {
        let Some((name, value)) = part.split_once(':') else { return false };
        let field = fields.iter().find(|(known, ..)| *known == name.trim());
        field.zip(value.trim().parse::<u64>().ok()).is_some_and(|((_, min, max), n)| (*min..=*max).contains(&n))
    })
}

fn field_ranges(fields: &[(&str, u64, u64)]) -> String {
    let ranges: Vec<_> = fields.iter().map(|(name, min, max)| format!("{name}:{min}..{max}")).collect();
    format!("{} with commas between", ranges.join(","))
}

fn algorithms(text: &str) -> bool {
    let levels = |text: &str| {
        text.split(';').all(|part| {
            part.split_once(':').is_some_and(|(level, algorithm)| {
                matches!(level.trim(), "level0" | "level1" | "level2") && ALGORITHMS.contains(&algorithm.trim())
            })
        })
    };
    text.split('/').all(|part| match part.split_once('=') {
        Some((operator, rest)) => (OPERATORS.contains(&operator.trim()) || operator == "others") && levels(rest),
        None => levels(part),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_lets_its_own_texts_through() {
        let (retry, modules) = (Rule::Fields(&[("MaxCnt", 1, 10)]), Rule::Modules(&["ALG", "TASK"]));
        for (rule, good, bad) in [
            (Rule::Whole(1, 7), vec!["1", " 7 "], vec!["0", "8", "-1", "1.5", ""]),
            (Rule::Number(0.0, 1.0), vec!["0", "0.5"], vec!["1.1", "nan", "x"]),
            (Rule::Multiple(4, 255), vec!["0", "252"], vec!["255", "2", "256"]),
            (Rule::Switch, vec!["0", "1"], vec!["2", "true"]),
            (Rule::Ip, vec!["10.0.0.1", "::1"], vec!["10.0.0", "host"]),
            (Rule::Ports, vec!["auto", "1", "5-9,12"], vec!["9-5", "0", "70000", "a-b", ""]),
            (Rule::Devices, vec!["0", "3, 1"], vec!["0,0", "a", ""]),
            (retry, vec!["MaxCnt:3"], vec!["MaxCnt:11", "MaxCnt", "Other:1"]),
            (modules, vec!["ALG", "^ALG,TASK"], vec!["ALG, TASK", ""]),
            (
                Rule::Algorithms,
                vec!["level0:NA;level1:ring", "allreduce=level1:NHR/allgather=level0:NA;level1:H-D_R"],
                vec!["level3:ring", "level1:fast", "sum=level1:ring", "ring"],
            ),
        ] {
            good.iter().for_each(|text| assert!(rule.check(text).is_ok(), "{text:?}"));
            bad.iter().for_each(|text| assert!(rule.check(text).is_err_and(|why| !why.is_empty()), "{text:?}"));
        }
    }

    #[test]
    fn chips_differ() {
        assert!(exec_timeout(Some(Chip::A2), "0").is_ok() && exec_timeout(Some(Chip::A1), "0").is_err());
        assert!(exec_timeout(Some(Chip::A1), "17341").is_err() && exec_timeout(None, "17341").is_ok());
        assert!(expansion_modes(Some(Chip::A2), "HOST").is_ok() && expansion_modes(Some(Chip::A3), "HOST").is_err());
        assert!(expansion_modes(Some(Chip::A5), "CCU_MS").is_ok() && expansion_modes(None, "WARP").is_err());
    }
}
