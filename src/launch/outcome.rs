//! What a launch came to.

use super::output::{self, Target};
use super::supervise::Watched;
use super::verdict::{self, Exit};

/// How a run ended. What went wrong has been printed on stderr.
///
/// ```
/// use hccl::launch::{Exit, Launch};
/// let outcome = Launch::new("sh").args(["-c", "[ $HCCL_RANK = 0 ] || kill -9 $$"]).ranks(2).run()?;
/// assert_eq!((outcome.failed_rank(), outcome.failure()), (Some(1), Some(Exit::Signal(9))));
/// # Ok::<(), hccl::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    failed: Option<(usize, Exit)>,
    signal: Option<i32>,
}

impl Outcome {
    pub(super) fn of(watched: Watched, ranks: usize) -> Outcome {
        let Watched { ended, signal, tails } = watched;
        let cause = if signal.is_some() { None } else { verdict::first_cause(&ended) };
        let text = match (signal, cause) {
            (Some(signal), _) => format!("hccl: ended by {}: all ranks are gone\n", verdict::signal_name(signal)),
            (None, Some(cause)) => verdict::report(cause, &ended, ranks, tails.get(cause.rank)),
            (None, None) => String::new(),
        };
        // With stderr gone there is nobody to tell; the exit code still says it.
        let _ = output::write(Target::Err, text.as_bytes());
        Outcome { failed: cause.map(|cause| (cause.rank, cause.exit)), signal }
    }

    /// The exit code for the launcher: 0 when all ranks succeeded; else that of the rank that failed first, 128 and
    /// the signal if one killed it; 130, 143 or 129 after SIGINT, SIGTERM or SIGHUP of the launcher.
    ///
    /// ```
    /// use hccl::launch::Launch;
    /// let code = |script| Ok::<_, hccl::Error>(Launch::new("sh").args(["-c", script]).run()?.code());
    /// assert_eq!([code("true")?, code("exit 3")?, code("kill -9 $$")?], [0, 3, 137]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn code(&self) -> u8 {
        match (self.signal, self.failed) {
            (Some(signal), _) => Exit::Signal(signal).code(),
            (None, Some((_, exit))) => exit.code(),
            (None, None) => 0,
        }
    }

    /// True when every rank ended with exit code 0.
    ///
    /// ```
    /// use hccl::launch::Launch;
    /// assert!(Launch::new("true").ranks(2).run()?.is_success());
    /// assert!(!Launch::new("false").ranks(2).run()?.is_success());
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn is_success(&self) -> bool {
        self.code() == 0
    }

    /// The rank that failed first.
    ///
    /// ```
    /// use hccl::launch::Launch;
    /// let outcome = Launch::new("sh").args(["-c", "test $HCCL_RANK -ne 2"]).ranks(4).run()?;
    /// assert_eq!(outcome.failed_rank(), Some(2));
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn failed_rank(&self) -> Option<usize> {
        self.failed.map(|(rank, _)| rank)
    }

    /// How the rank that failed first ended.
    ///
    /// ```
    /// use hccl::launch::{Exit, Launch};
    /// let outcome = Launch::new("sh").args(["-c", "exit 9"]).run()?;
    /// assert_eq!(outcome.failure(), Some(Exit::Code(9)));
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn failure(&self) -> Option<Exit> {
        self.failed.map(|(_, exit)| exit)
    }
}
