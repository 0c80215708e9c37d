//! What was found, as lines or as JSON.
//!
//! ```text
//! Ascend
//!   ok       libraries: AscendCL from /usr/local/Ascend/cann/lib64/libascendcl.so
//!   problem  versions: CANN 8.5.0 and HCCL 3.1 do not belong together
//!            -> install both from one package
//! healthy: no, 1 problem
//! ```

use std::fmt;

use serde_json::json;

/// Everything that was found.
pub(super) struct Report {
    findings: Vec<Finding>,
    /// Whether Ascend's libraries were found.
    pub(super) ascend: bool,
}

/// One thing that was looked at.
pub(super) struct Finding {
    area: &'static str,
    name: String,
    level: Level,
    text: String,
    remedy: Option<String>,
    /// Left out of the lines: an uninteresting one of many.
    quiet: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Ok,
    Note,
    Problem,
}

impl Level {
    const fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Problem => "problem",
        }
    }
}

impl Report {
    pub(super) fn new() -> Report {
        Report { findings: Vec::new(), ascend: false }
    }

    /// What is as it should be.
    pub(super) fn ok(&mut self, area: &'static str, name: impl Into<String>, text: impl Into<String>) {
        self.add(area, name.into(), Level::Ok, text.into(), None);
    }

    /// What is as it should be, and stands in the JSON only.
    pub(super) fn quiet(&mut self, area: &'static str, name: impl Into<String>, text: impl Into<String>) {
        self.ok(area, name, text);
        if let Some(last) = self.findings.last_mut() {
            last.quiet = true;
        }
    }

    /// What is worth knowing.
    pub(super) fn note(&mut self, area: &'static str, name: impl Into<String>, text: impl Into<String>) {
        self.add(area, name.into(), Level::Note, text.into(), None);
    }

    /// What keeps collectives from working, and what to do about it.
    pub(super) fn problem(
        &mut self,
        area: &'static str,
        name: impl Into<String>,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.add(area, name.into(), Level::Problem, text.into(), Some(remedy.into()));
    }

    fn add(&mut self, area: &'static str, name: String, level: Level, text: String, remedy: Option<String>) {
        self.findings.push(Finding { area, name, level, text, remedy, quiet: false });
    }

    fn problems(&self) -> usize {
        self.findings.iter().filter(|finding| finding.level == Level::Problem).count()
    }

    pub(super) fn is_healthy(&self) -> bool {
        self.problems() == 0
    }

    pub(super) fn to_json(&self) -> String {
        let findings: Vec<_> = self
            .findings
            .iter()
            .map(|f| {
                let level = f.level.name();
                json!({ "area": f.area, "name": f.name, "level": level, "text": f.text, "remedy": f.remedy })
            })
            .collect();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "healthy": self.is_healthy(),
            "ascend": self.ascend,
            "findings": findings,
        })
        .to_string()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut area = "";
        for finding in self.findings.iter().filter(|finding| !finding.quiet) {
            if finding.area != area {
                area = finding.area;
                writeln!(f, "{area}")?;
            }
            writeln!(f, "  {:<8} {}: {}", finding.level.name(), finding.name, finding.text)?;
            if let Some(remedy) = &finding.remedy {
                writeln!(f, "  {:<8} -> {remedy}", "")?;
            }
        }
        match self.problems() {
            0 => writeln!(f, "healthy: yes"),
            1 => writeln!(f, "healthy: no, 1 problem"),
            n => writeln!(f, "healthy: no, {n} problems"),
        }
    }
}
