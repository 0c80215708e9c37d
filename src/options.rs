//! How long to wait.

use std::time::Duration;

/// Deadlines of a communicator.
#[derive(Clone, Debug)]
#[allow(unreachable_pub)]
pub struct Options {
    /// How long ranks may take to find each other. Default 120 s, `HCCL_CONNECT_TIMEOUT`.
    pub(crate) connect_timeout: Duration,
    /// How long one call may take. Default 300 s, `HCCL_EXEC_TIMEOUT`.
    pub(crate) exec_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options { connect_timeout: Duration::from_secs(120), exec_timeout: Duration::from_secs(300) }
    }
}
