//! Reading what `npu-smi info` prints. Its columns move between versions, so rows are split at bars and blanks.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than the tool takes on a healthy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the tool said.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Smi {
    /// The driver's version, as the banner has it.
    pub(super) version: Option<String>,
    /// Number, name and health of each NPU.
    pub(super) npus: Vec<Npu>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Npu {
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) health: String,
}

/// Runs the tool; `None` when there is none.
pub(super) fn run() -> Option<Result<Smi, String>> {
    let mut command = Command::new("npu-smi");
    command.arg("info").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => return Some(Err(format!("cannot be started: {error}"))),
    };
    let mut out = child.stdout.take()?;
    // The pipe is emptied meanwhile, so that a long answer does not block the tool.
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        out.read_to_end(&mut text).map(|_| String::from_utf8_lossy(&text).into_owned())
    });
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) => {
                // It may be stuck in the driver, where no signal reaches it: nobody waits for it any more.
                let _ = child.kill();
                return Some(Err(format!("did not answer within {} s", PATIENCE.as_secs())));
            }
            Err(error) => return Some(Err(error.to_string())),
        }
    };
    let text = reader.join().ok().and_then(Result::ok).unwrap_or_default();
    if !status.success() {
        let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
        return Some(Err(format!("failed ({status}): {}", line.trim())));
    }
    Some(Ok(parse(&text)))
}

fn parse(text: &str) -> Smi {
    let mut smi = Smi::default();
    for line in text.lines().map(str::trim) {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        if let Some((_, version)) = line.split_once("Version:") {
            smi.version = version.split_whitespace().next().map(str::to_owned);
        } else if let [who, health, ..] = cells[..]
            && let Some(npu) = npu(who, health)
        {
            smi.npus.push(npu);
        }
    }
    smi
}

/// The first row of a chip: `0 910B3 | OK | 101.8 43 0 / 0`. Its second row has a bus address where this has the health,
/// the process table has numbers.
fn npu(who: &str, health: &str) -> Option<Npu> {
    let mut words = who.split_whitespace();
    let (id, name) = (words.next()?.parse().ok()?, words.next()?);
    let is_word = health.chars().all(|c| c.is_ascii_alphabetic()) && !health.is_empty();
    is_word.then(|| Npu { id, name: name.to_owned(), health: health.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc3                 Version: 24.1.rc3                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 101.8       43                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3318 / 65536         |
+===========================+===============+====================================================+
| 7     910B3               | Alarm         | 99.1        41                0    / 0             |
| 0                         | 0000:42:00.0  | 0           0    / 0          3318 / 65536         |
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       0                 | 4711          | python                   | 2048                    |
| No running processes found in NPU 7                                                            |
";

    #[test]
    fn versions_and_health_are_found_wherever_the_columns_are() {
        let smi = parse(TEXT);
        assert_eq!(smi.version.as_deref(), Some("24.1.rc3"));
        let seen: Vec<_> = smi.npus.iter().map(|npu| (npu.id, npu.name.as_str(), npu.health.as_str())).collect();
        assert_eq!(seen, [(0, "910B3", "OK"), (7, "910B3", "Alarm")]);
        assert_eq!(parse("nothing | of | it"), Smi::default());
    }
}
