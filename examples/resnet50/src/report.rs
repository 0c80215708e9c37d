//! What a run tells: a row a step as CSV, a progress bar or plain lines, a summary, and the table of `--compare`.

pub mod csv;
pub mod file;
pub mod progress;
pub mod summary;

pub use csv::CsvLog;
pub use file::FileError;
pub use progress::Progress;
pub use summary::{Speed, Summary, speed_up_table};

/// One training step, over all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Number of the step.
    pub step: u64,
    /// Mean loss over the global batch.
    pub loss: f64,
    /// L2 norm of the synchronised gradient.
    pub grad_norm: f64,
    /// Images of all ranks a second.
    pub images_per_s: f64,
    /// Duration of the step, in milliseconds.
    pub step_ms: f64,
    /// Part of it spent waiting for synchronisation, in milliseconds.
    pub sync_ms: f64,
}

impl Row {
    /// Share of the step spent waiting for synchronisation, 0 to 1.
    pub fn sync_share(&self) -> f64 {
        if self.step_ms > 0.0 { self.sync_ms / self.step_ms } else { 0.0 }
    }
}
