//! How long to wait: the deadlines of a communicator and the variables that set them.
//!
//! | builder method | variable | default | bounds |
//! | --- | --- | --- | --- |
//! | [`connect_timeout`] | `HCCL_CONNECT_TIMEOUT` | 120 s | how long ranks may take to find each other |
//! | [`exec_timeout`] | `HCCL_EXEC_TIMEOUT` | 300 s | how long one call may take |
//!
//! `HCCL_TIMEOUT` sets both. Methods win over variables, and the two variables over `HCCL_TIMEOUT`. Values are seconds,
//! whole or decimal, from 0.001 to 604800 (a week); anything else is refused.
//!
//! ```
//! use std::time::Duration;
//! let (short, never) = (Duration::from_millis(1500), Duration::ZERO);
//! let comm = hccl::Communicator::builder().exec_timeout(short).from_env()?;
//! assert_eq!(comm.exec_timeout(), short);
//! let refused = hccl::Communicator::builder().exec_timeout(never).from_env().unwrap_err();
//! assert!(refused.to_string().contains("0.001 to 604800"));
//! # Ok::<(), hccl::Error>(())
//! ```
//!
//! [`connect_timeout`]: crate::Builder::connect_timeout
//! [`exec_timeout`]: crate::Builder::exec_timeout

use crate::error::{Error, ErrorKind, Result};
use std::time::Duration;

/// The least and the greatest deadline, in seconds.
const RANGE: (f64, f64) = (0.001, 604_800.0);

const RANGE_HINT: &str = "give seconds from 0.001 to 604800";

/// Deadlines of a communicator.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// How long ranks may take to find each other. Default 120 s, `HCCL_CONNECT_TIMEOUT`.
    pub(crate) connect_timeout: Duration,
    /// How long one call may take. Default 300 s, `HCCL_EXEC_TIMEOUT`.
    pub(crate) exec_timeout: Duration,
    /// Whose deadlines these are, for libraries that read the variables themselves.
    #[cfg_attr(
        not(all(target_os = "linux", not(hccl_portable))),
        allow(dead_code, reason = "those libraries are used on Linux only")
    )]
    pub(crate) origin: Origin,
}

/// Where deadlines come from.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(
    not(all(target_os = "linux", not(hccl_portable))),
    allow(dead_code, reason = "asked by the backend for NPUs")
)]
pub(crate) struct Origin {
    /// `connect_timeout` was called.
    pub(crate) connect_given: bool,
    /// `exec_timeout` was called.
    pub(crate) exec_given: bool,
    /// `HCCL_EXEC_TIMEOUT` holds.
    pub(crate) exec_from_env: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            connect_timeout: Duration::from_secs(120),
            exec_timeout: Duration::from_secs(300),
            origin: Origin::default(),
        }
    }
}

impl Options {
    /// Deadlines as given, else as the environment says, else the defaults. Logs what holds.
    pub(crate) fn resolve(connect: Option<Duration>, exec: Option<Duration>) -> Result<Options> {
        let variable = |name: &str| std::env::var_os(name).map(|text| text.to_string_lossy().into_owned());
        let options = Options::resolve_with(connect, exec, variable)?;
        tracing::debug!(
            connect_timeout_s = options.connect_timeout.as_secs_f64(),
            exec_timeout_s = options.exec_timeout.as_secs_f64(),
            "deadlines"
        );
        Ok(options)
    }

    fn resolve_with(
        connect: Option<Duration>,
        exec: Option<Duration>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Options> {
        let read = |name| variable(name).map(|text| parse(name, &text)).transpose();
        let default = Options::default();
        // A variable that is not needed is not looked at: it may hold what only HCCL itself understands.
        let nearest = |what, value, name| match given(what, value)? {
            Some(value) => Ok(Some(value)),
            None => read(name),
        };
        let (connect_given, exec_given) = (connect.is_some(), exec.is_some());
        let connect = nearest("connect_timeout", connect, "HCCL_CONNECT_TIMEOUT")?;
        let exec = nearest("exec_timeout", exec, "HCCL_EXEC_TIMEOUT")?;
        let origin = Origin { connect_given, exec_given, exec_from_env: !exec_given && exec.is_some() };
        let both = if connect.is_some() && exec.is_some() { None } else { read("HCCL_TIMEOUT")? };
        Ok(Options {
            connect_timeout: connect.or(both).unwrap_or(default.connect_timeout),
            exec_timeout: exec.or(both).unwrap_or(default.exec_timeout),
            origin,
        })
    }
}

fn in_range(seconds: f64) -> bool {
    (RANGE.0..=RANGE.1).contains(&seconds)
}

fn given(what: &str, value: Option<Duration>) -> Result<Option<Duration>> {
    match value {
        Some(value) if !in_range(value.as_secs_f64()) => {
            Err(Error::invalid(format!("{what} of {} s is out of range", value.as_secs_f64())).hint(RANGE_HINT))
        }
        value => Ok(value),
    }
}

fn parse(name: &str, text: &str) -> Result<Duration> {
    match text.trim().parse::<f64>() {
        Ok(seconds) if in_range(seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => {
            let problem = format!("is {text:?}, which is not a number of seconds in range");
            Err(Error::new(ErrorKind::Environment { variable: name.to_owned(), problem }).hint(RANGE_HINT))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(connect: Option<f64>, vars: &[(&str, &str)]) -> Result<(f64, f64)> {
        let variable = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        let options = Options::resolve_with(connect.map(Duration::from_secs_f64), None, variable)?;
        Ok((options.connect_timeout.as_secs_f64(), options.exec_timeout.as_secs_f64()))
    }

    #[test]
    fn the_nearest_source_wins() {
        assert_eq!(resolve(None, &[]).unwrap(), (120.0, 300.0));
        assert_eq!(resolve(None, &[("HCCL_TIMEOUT", "7")]).unwrap(), (7.0, 7.0));
        assert_eq!(resolve(None, &[("HCCL_TIMEOUT", "7"), ("HCCL_EXEC_TIMEOUT", " 0.5 ")]).unwrap(), (7.0, 0.5));
        assert_eq!(resolve(Some(2.0), &[("HCCL_CONNECT_TIMEOUT", "9")]).unwrap(), (2.0, 300.0));
        assert_eq!(resolve(Some(2.0), &[("HCCL_CONNECT_TIMEOUT", "never")]).unwrap(), (2.0, 300.0), "not looked at");
    }

    #[test]
    fn bad_values_are_refused_with_the_range() {
        for text in ["0", "-1", "", "abc", "inf", "nan", "1e9"] {
            let error = resolve(None, &[("HCCL_EXEC_TIMEOUT", text)]).unwrap_err().to_string();
            assert!(error.contains("HCCL_EXEC_TIMEOUT") && error.contains("0.001 to 604800"), "{error}");
        }
        let error = resolve(Some(0.0), &[]).unwrap_err().to_string();
        assert!(error.contains("connect_timeout") && error.contains("604800"), "{error}");
    }
}
