//! Which of several failed ranks was the first cause, and how it is told.

use std::fmt::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use super::KNOCK_ON;
use super::output::Tail;

/// How a rank ended.
///
/// ```
/// use hccl::launch::Exit;
/// assert_eq!(Exit::Signal(9).to_string(), "killed by SIGKILL (signal 9)");
/// assert_eq!(Exit::Code(101).to_string(), "panicked (exit code 101)");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// With this exit code.
    Code(u8),
    /// By this signal.
    Signal(i32),
}

impl Exit {
    pub(crate) fn of(status: ExitStatus) -> Exit {
        match (status.code(), status.signal()) {
            (Some(code), _) => Exit::Code(code as u8),
            (None, Some(signal)) => Exit::Signal(signal),
            // A reaped process has one or the other.
            (None, None) => Exit::Code(1),
        }
    }

    /// The exit code as a shell gives it: the code, or 128 and the signal.
    ///
    /// ```
    /// use hccl::launch::Exit;
    /// assert_eq!((Exit::Code(7).code(), Exit::Signal(15).code()), (7, 143));
    /// ```
    pub fn code(self) -> u8 {
        match self {
            Exit::Code(code) => code,
            Exit::Signal(signal) => 128u8.saturating_add(signal as u8),
        }
    }

    pub(crate) fn is_success(self) -> bool {
        self == Exit::Code(0)
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Exit::Code(101) => f.write_str("panicked (exit code 101)"),
            Exit::Code(KNOCK_ON) => write!(f, "lost a peer (exit code {KNOCK_ON})"),
            Exit::Code(code) => write!(f, "exit code {code}"),
            Exit::Signal(signal) => write!(f, "killed by {} (signal {signal})", signal_name(signal)),
        }
    }
}

/// What the launcher had done when a rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing.
    Running,
    /// Asked every rank to end.
    Asked,
    /// Sent SIGKILL to every rank.
    Killed,
}

/// A rank that ended; kept in the order of ending.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) rank: usize,
    pub(crate) exit: Exit,
    pub(crate) phase: Phase,
}

impl Ended {
    /// How likely this is the first cause, 0 the most; `None` when it is not, or surely a consequence of the stop.
    fn weight(&self) -> Option<u8> {
        match (self.phase, self.exit) {
            (_, Exit::Code(0)) => None,
            // A process of many GiB is seen dead by its peers long before it can be reaped: it may come last.
            (Phase::Running, Exit::Signal(_)) | (Phase::Asked, Exit::Signal(libc::SIGKILL)) => Some(0),
            (Phase::Running, Exit::Code(101)) => Some(1),
            (Phase::Running, Exit::Code(KNOCK_ON)) => Some(4),
            (Phase::Running, Exit::Code(_)) => Some(2),
            // The same with a core dump to write first.
            (Phase::Asked, Exit::Signal(signal)) if is_crash(signal) => Some(3),
            (Phase::Asked | Phase::Killed, _) => None,
        }
    }

    /// A failure that is not known to be another rank's.
    pub(crate) fn is_own_failure(&self) -> bool {
        self.weight().is_some_and(|weight| weight < 4)
    }
}

fn is_crash(signal: i32) -> bool {
    use libc::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    [SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP].contains(&signal)
}

/// The first cause among `ended`.
pub(crate) fn first_cause(ended: &[Ended]) -> Option<Ended> {
    let weighed = ended.iter().filter_map(|ended| ended.weight().map(|weight| (weight, ended)));
    weighed.min_by_key(|(weight, _)| *weight).map(|(_, ended)| *ended)
}

/// The text that ends a failed run: knock-on exits, the last words of the first rank, and last of all what it died of.
pub(crate) fn report(cause: Ended, ended: &[Ended], ranks: usize, tail: Option<&Tail>) -> String {
    let mut text = String::new();
    let others: Vec<&Ended> = ended.iter().filter(|other| other.rank != cause.rank).collect();
    let knock_on: Vec<String> = grouped(&others);
    if !knock_on.is_empty() {
        let _ = writeln!(text, "hccl: knock-on exits: {}", knock_on.join("; "));
    }
    for line in tail.into_iter().flatten() {
        let _ = writeln!(text, "hccl: rank {} said: {}", cause.rank, String::from_utf8_lossy(line));
    }
    let hint = match cause.exit {
        Exit::Signal(libc::SIGKILL) => " (hint: somebody sent kill -9, or the kernel ran out of memory: see dmesg)",
        Exit::Code(KNOCK_ON) => " (hint: every failed rank says so; the lost one ended with success too early)",
        _ => "",
    };
    let _ = writeln!(text, "hccl: rank {} of {ranks} failed first: {}{hint}", cause.rank, cause.exit);
    text
}

/// `rank 0: exit code 1`, `ranks 2, 3: stopped by the launcher`: ranks that ended alike, together.
fn grouped(ended: &[&Ended]) -> Vec<String> {
    let how = |ended: &Ended| match (ended.phase, ended.exit) {
        (_, exit) if exit.is_success() => None,
        (Phase::Running, exit) => Some(exit.to_string()),
        (Phase::Asked | Phase::Killed, Exit::Signal(_)) => Some("stopped by the launcher".to_owned()),
        (Phase::Asked | Phase::Killed, exit) => Some(format!("{exit} when asked to stop")),
    };
    let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
    for (text, rank) in ended.iter().filter_map(|ended| Some((how(ended)?, ended.rank))) {
        match groups.iter_mut().find(|group| group.0 == text) {
            Some(group) => group.1.push(rank),
            None => groups.push((text, vec![rank])),
        }
    }
    let line = |(text, mut ranks): (String, Vec<usize>)| {
        ranks.sort_unstable();
        let plural = if ranks.len() == 1 { "" } else { "s" };
        let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
        format!("rank{plural} {}: {text}", ranks.join(", "))
    };
    groups.into_iter().map(line).collect()
}

/// `SIGKILL` for 9.
pub(crate) fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGSYS => "SIGSYS",
        _ => "a signal",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(rank: usize, exit: Exit, phase: Phase) -> Ended {
        Ended { rank, exit, phase }
    }

    #[test]
    fn the_first_cause_is_not_the_first_reaped() {
        use Exit::{Code, Signal};
        use Phase::{Asked, Killed, Running};
        let cases = [
            (vec![(0, Code(75), Running), (1, Signal(9), Running)], 1),
            (vec![(0, Code(1), Running), (1, Signal(9), Asked)], 1),
            (vec![(0, Code(1), Running), (1, Signal(9), Killed)], 0),
            (vec![(0, Code(1), Running), (1, Code(101), Running)], 1),
            (vec![(0, Code(75), Running), (1, Code(2), Running)], 1),
            (vec![(0, Code(75), Running), (1, Signal(11), Asked)], 1),
            (vec![(0, Code(3), Running), (1, Signal(11), Asked)], 0),
            (vec![(0, Code(75), Running), (1, Signal(15), Asked)], 0),
            (vec![(2, Code(3), Running), (1, Code(4), Running)], 2),
            (vec![(2, Code(0), Running), (1, Code(75), Running)], 1),
        ];
        for (case, first) in cases {
            let all: Vec<Ended> = case.iter().map(|(rank, exit, phase)| ended(*rank, *exit, *phase)).collect();
            assert_eq!(first_cause(&all).map(|cause| cause.rank), Some(first), "{case:?}");
        }
        assert!(first_cause(&[ended(0, Code(0), Running), ended(1, Signal(15), Asked)]).is_none());
    }

    #[test]
    fn the_report_ends_with_the_first_cause() {
        let all = [
            ended(1, Exit::Code(75), Phase::Running),
            ended(2, Exit::Signal(9), Phase::Running),
            ended(4, Exit::Signal(15), Phase::Asked),
            ended(3, Exit::Signal(9), Phase::Killed),
            ended(0, Exit::Code(0), Phase::Running),
        ];
        let tail = Tail::from([b"loss is NaN".to_vec()]);
        let text = report(all[1], &all, 5, Some(&tail));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "hccl: knock-on exits: rank 1: lost a peer (exit code 75); ranks 3, 4: stopped by the launcher"
        );
        assert_eq!(lines[1], "hccl: rank 2 said: loss is NaN");
        assert!(lines[2].starts_with("hccl: rank 2 of 5 failed first: killed by SIGKILL (signal 9)"), "{text}");
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        assert_eq!((Exit::Code(7).code(), Exit::Signal(9).code(), Exit::Signal(64).code()), (7, 137, 192));
    }
}
