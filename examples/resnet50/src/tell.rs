//! What rank 0 writes and prints; the other ranks are silent.

use crate::failure::{Failure, Result};
use crate::job::Job;
use crate::plot;
use crate::report::{CsvLog, Progress, Row, Summary, csv};

/// The environment variable by which this program tells its ranks how wide its terminal is.
pub(crate) const TERMINAL: &str = "RESNET50_TERMINAL";

/// The voice of a rank.
pub(crate) struct Teller<'a> {
    job: &'a Job,
    /// Of rank 0 only.
    voice: Option<Voice>,
}

struct Voice {
    progress: Progress,
    csv: Option<CsvLog>,
    /// For the plot.
    rows: Vec<Row>,
}

impl<'a> Teller<'a> {
    /// Opens what rank 0 writes; `done` steps lie behind a resumed run.
    ///
    /// # Errors
    /// [`Failure::File`].
    pub(crate) fn new(job: &'a Job, rank: usize, done: u64) -> Result<Self> {
        if rank > 0 {
            return Ok(Teller { job, voice: None });
        }
        let args = &job.args;
        let csv = match &args.csv {
            Some(path) if args.resume => Some(CsvLog::resume(path, done + 1)?),
            Some(path) => Some(CsvLog::create(path)?),
            None => None,
        };
        let rows = match (&args.csv, &args.plot) {
            (Some(path), Some(_)) => csv::read(path)?,
            _ => Vec::new(),
        };
        let columns = std::env::var(TERMINAL).ok().and_then(|columns| columns.parse().ok());
        let progress = match columns {
            Some(columns) => Progress::through_launcher(done, job.steps, columns),
            None => Progress::new(done, job.steps),
        };
        Ok(Teller { job, voice: Some(Voice { progress, csv, rows }) })
    }

    /// Says something.
    ///
    /// # Errors
    /// [`Failure::Output`].
    pub(crate) fn note(&mut self, text: &str) -> Result<()> {
        match &mut self.voice {
            Some(voice) => voice.progress.note(text).map_err(Failure::Output),
            None => Ok(()),
        }
    }

    /// Tells of a step.
    ///
    /// # Errors
    /// [`Failure::File`], [`Failure::Output`].
    pub(crate) fn row(&mut self, row: &Row) -> Result<()> {
        let Some(voice) = &mut self.voice else { return Ok(()) };
        if let Some(csv) = &mut voice.csv {
            csv.append(row)?;
        }
        if self.job.args.plot.is_some() {
            voice.rows.push(*row);
        }
        voice.progress.step(row.step, row).map_err(Failure::Output)
    }

    /// Draws the plot and says the last words.
    ///
    /// # Errors
    /// [`Failure::File`], [`Failure::Output`].
    pub(crate) fn finish(self, summary: Option<&Summary>) -> Result<()> {
        let Some(mut voice) = self.voice else { return Ok(()) };
        if let Some(path) = &self.job.args.plot {
            plot::write(path, &voice.rows)?;
        }
        if let Some(summary) = summary {
            voice.progress.note(&summary.to_string()).map_err(Failure::Output)?;
        }
        voice.progress.finish();
        Ok(())
    }
}
