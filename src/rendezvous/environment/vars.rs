//! Looking variables up, and saying what is wrong with them.

use crate::{Error, ErrorKind, Result};

/// The variables of a process.
pub(super) struct Vars<'a> {
    pub(super) var: &'a dyn Fn(&str) -> Option<String>,
}

impl Vars<'_> {
    pub(super) fn text(&self, name: &str) -> Option<String> {
        (self.var)(name)
    }

    pub(super) fn is_set(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    /// The text of `name`, which must not be empty.
    pub(super) fn filled(&self, name: &str) -> Result<Option<String>> {
        match self.text(name) {
            Some(text) if text.is_empty() => {
                Err(error(name, "is empty").hint(format!("give {name} a value, or unset it")))
            }
            text => Ok(text),
        }
    }

    /// The number in `name`, from `min` to `max`; `bound` is the variable that sets `max`.
    pub(super) fn number(&self, name: &str, min: u64, max: u64, bound: Option<(&str, u64)>) -> Result<Option<u64>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let wanted = match (bound, max) {
            (Some((other, value)), _) => format!("a whole number from {min} to {max} ({other} is {value})"),
            (None, u64::MAX) => format!("a whole number of at least {min}"),
            (None, _) => format!("a whole number from {min} to {max}"),
        };
        match text.parse::<u64>() {
            Ok(number) if (min..=max).contains(&number) => Ok(Some(number)),
            _ => Err(error(name, format!("is {text:?}; it must be {wanted}"))),
        }
    }
}

pub(super) fn error(variable: &str, problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::Environment { variable: variable.to_owned(), problem: problem.into() })
}

pub(super) fn missing(variable: &str, set: &str) -> Error {
    error(variable, format!("is missing although {set} is set"))
        .hint(format!("set {variable} too, or unset {set} to run alone"))
}

pub(super) fn several_hosts(variable: &str, vars: &Vars<'_>, size: (&str, u64)) -> Error {
    let value = vars.text(variable).unwrap_or_default();
    let what = format!("a job on several hosts ({variable} is {value}, {} is {})", size.0, size.1);
    Error::new(ErrorKind::Unsupported { what }).hint("start all ranks on one host: ranks of one host only for now")
}
