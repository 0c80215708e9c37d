//! Throughput of a run, and how it reaches the program that compares runs.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};
use crate::job::Job;
use crate::report::Row;

/// Adds up steps. The first one is left out of the figures where there are more: it also allocates.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    steps: u64,
    images: f64,
    step_ms: f64,
    sync_ms: f64,
}

impl Meter {
    /// Counts a step.
    pub(crate) fn add(&mut self, row: &Row) {
        if self.steps == 1 {
            *self = Meter { steps: 1, ..Meter::default() };
        }
        self.steps += 1;
        self.images += row.images_per_s * row.step_ms / 1e3;
        self.step_ms += row.step_ms;
        self.sync_ms += row.sync_ms;
    }

    /// Share of the time spent waiting for synchronisation, 0 to 1.
    pub(crate) fn sync_share(&self) -> f64 {
        if self.step_ms > 0.0 { self.sync_ms / self.step_ms } else { 0.0 }
    }

    /// The figures so far.
    pub(crate) fn speed(&self) -> Measured {
        let counted = if self.steps > 1 { self.steps - 1 } else { self.steps };
        let images_per_s = if self.step_ms > 0.0 { self.images / self.step_ms * 1e3 } else { 0.0 };
        let threads = candle_core::utils::get_num_threads();
        Measured { images_per_s, step_ms: self.step_ms / counted.max(1) as f64, sync_share: self.sync_share(), threads }
    }
}

/// The figures of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Measured {
    /// Images of all ranks a second.
    pub(crate) images_per_s: f64,
    /// Mean duration of a step, in milliseconds.
    pub(crate) step_ms: f64,
    /// Share of the time spent waiting for synchronisation, 0 to 1.
    pub(crate) sync_share: f64,
    /// Threads of computation of a rank.
    pub(crate) threads: usize,
}

impl Measured {
    /// Writes the figures for the program that started this one, if it asks for them.
    ///
    /// # Errors
    /// [`Failure::Compare`].
    pub(crate) fn send(&self, job: &Job) -> Result<()> {
        let Some(path) = &job.args.speed_file else { return Ok(()) };
        let Measured { images_per_s, step_ms, sync_share, threads } = self;
        let text = format!("{images_per_s:?} {step_ms:?} {sync_share:?} {threads}");
        let write = |path: &Path| fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes());
        write(path).map_err(Failure::Compare)
    }

    fn parse(text: &str) -> Option<Measured> {
        let mut words = text.split(' ');
        let mut number = || words.next()?.parse().ok();
        let (images_per_s, step_ms, sync_share) = (number()?, number()?, number()?);
        Some(Measured { images_per_s, step_ms, sync_share, threads: words.next()?.parse().ok()? })
    }
}

/// A file without a name, to which a child process can write.
#[derive(Debug)]
pub(crate) struct Mailbox(File);

impl Mailbox {
    /// An empty one.
    ///
    /// # Errors
    /// [`Failure::Compare`].
    pub(crate) fn new() -> Result<Mailbox> {
        Ok(Mailbox(tempfile::tempfile().map_err(Failure::Compare)?))
    }

    /// Where the child finds it, while this process lives.
    #[cfg(unix)]
    pub(crate) fn path(&self) -> PathBuf {
        use std::os::fd::AsRawFd;
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()).into()
    }

    /// What the child wrote.
    ///
    /// # Errors
    /// [`Failure::Compare`] when it wrote nothing that can be read.
    pub(crate) fn read(mut self) -> Result<Measured> {
        let mut text = String::new();
        self.0.rewind().and_then(|()| self.0.read_to_string(&mut text)).map_err(Failure::Compare)?;
        let missing = || Failure::Compare(std::io::Error::other("a run did not tell its figures"));
        Measured::parse(&text).ok_or_else(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_is_left_out() {
        let row =
            |step, step_ms| Row { step, loss: 1.0, grad_norm: 1.0, images_per_s: 8e3 / step_ms, step_ms, sync_ms: 5.0 };
        let mut meter = Meter::default();
        assert_eq!(meter.speed().images_per_s, 0.0);
        meter.add(&row(1, 1000.0));
        assert_eq!((meter.speed().images_per_s, meter.speed().step_ms), (8.0, 1000.0));
        meter.add(&row(2, 100.0));
        meter.add(&row(3, 60.0));
        let speed = meter.speed();
        assert!((speed.images_per_s - 100.0).abs() < 1e-9 && (speed.step_ms - 80.0).abs() < 1e-9, "{speed:?}");
        assert!((speed.sync_share - 10.0 / 160.0).abs() < 1e-12);
    }

    #[test]
    fn figures_pass_through_a_mailbox() {
        let mailbox = Mailbox::new().unwrap();
        let measured = Measured { images_per_s: 1.0 / 3.0, step_ms: 7.5, sync_share: 0.1, threads: 3 };
        let text = format!("{:?} {:?} {:?} {}", measured.images_per_s, measured.step_ms, measured.sync_share, 3);
        fs::OpenOptions::new().write(true).open(mailbox.path()).unwrap().write_all(text.as_bytes()).unwrap();
        assert_eq!(mailbox.read().unwrap(), measured);
        assert!(Mailbox::new().unwrap().read().is_err());
    }
}
