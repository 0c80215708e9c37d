//! Settings from the environment, read once.

use std::env;
use std::sync::OnceLock;
use std::time::Duration;

use crate::chip::Family;

pub(crate) struct Settings {
    pub(crate) devices: u32,
    pub(crate) soc: String,
    pub(crate) family: Family,
    pub(crate) cann: String,
    pub(crate) hccl: String,
    pub(crate) driver: String,
    /// Bytes of a device's memory.
    pub(crate) memory: u64,
    /// How long ranks may take to meet, at initialisation and at the first call of a kind.
    pub(crate) connect_timeout: Duration,
    /// How long an operation may wait for its peers; none waits for ever.
    pub(crate) exec_timeout: Option<Duration>,
    /// MB of each of a communicator's two buffers.
    pub(crate) buffer_mb: u64,
    /// The first variable of HCCL that is not understood.
    pub(crate) refused: Option<String>,
}

pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let text = |name: &str, default: &str| env::var(name).unwrap_or_else(|_| default.to_owned());
        let number = |name: &str, default: u64| env::var(name).ok().and_then(|t| t.parse().ok()).unwrap_or(default);
        let soc = text("HCCL_STAND_IN_SOC", "Ascend910B3");
        let (connect, exec, buffer) = (seconds("HCCL_CONNECT_TIMEOUT"), seconds("HCCL_EXEC_TIMEOUT"), megabytes());
        let refused = [connect.as_ref().err(), exec.as_ref().err(), buffer.as_ref().err()];
        let refused = refused.into_iter().flatten().next().cloned();
        let cann = text("HCCL_STAND_IN_CANN", "9.0.0");
        Settings {
            devices: number("HCCL_STAND_IN_DEVICES", 8) as u32,
            family: Family::of(&soc),
            soc,
            hccl: text("HCCL_STAND_IN_HCCL", &cann),
            cann,
            driver: text("HCCL_STAND_IN_DRIVER", "25.2.0"),
            memory: number("HCCL_STAND_IN_HBM_MB", 65_536) << 20,
            refused,
            connect_timeout: connect.ok().flatten().unwrap_or(Duration::from_secs(120)),
            exec_timeout: wait(exec.ok().flatten().unwrap_or(Duration::from_secs(1836))),
            buffer_mb: buffer.ok().flatten().unwrap_or(200),
        }
    })
}

/// Zero waits for ever.
pub(crate) fn wait(timeout: Duration) -> Option<Duration> {
    (!timeout.is_zero()).then_some(timeout)
}

fn seconds(name: &str) -> Result<Option<Duration>, String> {
    let Ok(text) = env::var(name) else { return Ok(None) };
    let seconds = text.trim().parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.map(Some).ok_or_else(|| format!("{name} is {text:?}, which is no number of seconds"))
}

fn megabytes() -> Result<Option<u64>, String> {
    let Ok(text) = env::var("HCCL_BUFFSIZE") else { return Ok(None) };
    let megabytes = text.trim().parse().ok().filter(|mb| *mb > 0);
    megabytes.map(Some).ok_or_else(|| format!("HCCL_BUFFSIZE is {text:?}, which is no number of MB"))
}

impl Settings {
    /// The version of `HcclCommConfig` this library reads, its size, and what `HcclGetCommConfigCapability` returns.
    pub(crate) fn config(&self) -> (u32, usize, u32) {
        // Up to which release, then what.
        let known = [
            ((8, 0, 3), (1, 32, 2)),
            ((8, 1, 0), (2, 160, 3)),
            ((8, 3, 0), (5, 300, 5)),
            ((8, 5, 0), (6, 312, 7)),
            ((9, 0, 0), (8, 2104, 11)),
            ((9, 2, 0), (10, 2240, 12)),
        ];
        let own = release(&self.cann);
        known.iter().find(|(before, _)| own < *before).map_or((11, 2248, 12), |(_, config)| *config)
    }
}

/// Sizes of `HcclCommConfig` by version.
pub(crate) fn config_size(version: u32) -> Option<usize> {
    let sizes = [(1, 32), (2, 160), (5, 300), (6, 312), (8, 2104), (9, 2232), (10, 2240), (11, 2248)];
    sizes.iter().find(|(known, _)| *known == version).map(|(_, size)| *size)
}

/// Major, minor and release candidate; a release without candidate counts as its ninth.
pub(crate) fn release(version: &str) -> (u32, u32, u32) {
    let mut parts = version.split('.');
    let mut number = || parts.next().and_then(|part| part.parse().ok()).unwrap_or(0);
    let (major, minor) = (number(), number());
    let candidate = version.to_ascii_uppercase().split("RC").nth(1).and_then(|n| n.parse().ok());
    // 8.1 and later are asked for as a whole: their candidates count as the release.
    let third = candidate.unwrap_or(9);
    (major, minor, third)
}
