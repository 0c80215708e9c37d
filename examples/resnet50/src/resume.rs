//! Checkpoints of a run, and how it continues from one.

use std::collections::BTreeMap;

use hccl_candle::sampler::Sampler;
use hccl_candle::{Checkpoints, DataParallel, Progress, Sgd};

use crate::failure::{Failure, Result};
use crate::job::Job;

/// Writes and reads the checkpoints of a run.
pub(crate) struct Saver {
    checkpoints: Checkpoints,
    every: u64,
}

/// Where a resumed run stands.
pub(crate) struct Resumed {
    /// Steps taken.
    pub(crate) done: u64,
    /// What there is to say about it.
    pub(crate) notes: Vec<String>,
}

impl Saver {
    /// For `--checkpoint`, where it is given.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub(crate) fn open(job: &Job) -> Result<Option<Saver>> {
        let Some(dir) = &job.args.checkpoint else { return Ok(None) };
        Ok(Some(Saver { checkpoints: Checkpoints::open(dir)?, every: job.args.checkpoint_every }))
    }

    /// Whether a checkpoint is due after `done` of `steps` steps.
    pub(crate) fn is_due(&self, done: u64, steps: u64) -> bool {
        done.is_multiple_of(self.every) || done == steps
    }

    /// Writes a checkpoint. Collective.
    ///
    /// # Errors
    /// What rank 0 cannot write, on every rank; a lost peer.
    pub(crate) fn save(
        &self,
        job: &Job,
        replica: &DataParallel,
        sgd: &Sgd,
        sampler: &Sampler,
        done: u64,
    ) -> Result<()> {
        let at = sampler.state();
        let mut notes = job.settings();
        notes.append(&mut job.tunable());
        let progress = Progress { step: done, epoch: at.epoch, position: at.step as u64, random: Vec::new(), notes };
        self.checkpoints.save(replica, sgd, &progress)?;
        Ok(())
    }

    /// Takes over the newest whole checkpoint, or starts at step 0 when there is none. Collective.
    ///
    /// # Errors
    /// On every rank: a checkpoint of another model, another number of ranks or other flags, with all that differs; no
    /// checkpoint that is whole.
    pub(crate) fn resume(
        &self,
        job: &Job,
        replica: &mut DataParallel,
        sgd: &mut Sgd,
        sampler: &mut Sampler,
    ) -> Result<Resumed> {
        let Some(loaded) = self.checkpoints.load_latest(replica, sgd)? else {
            let note = format!("no checkpoint in {} yet: starting at step 0", self.checkpoints.dir().display());
            return Ok(Resumed { done: 0, notes: vec![note] });
        };
        let Progress { step, epoch, position, notes, .. } = loaded.progress;
        let differences = differences(&notes, &job.settings());
        if !differences.is_empty() {
            return Err(Failure::Settings { path: loaded.path, differences });
        }
        sampler.seek(epoch, usize::try_from(position).unwrap_or(usize::MAX))?;
        let mut notes: Vec<String> = differences_as_notes(&notes, job).into_iter().chain(loaded.skipped).collect();
        notes.push(format!("resumed after step {step} from {}", loaded.path.display()));
        Ok(Resumed { done: step, notes })
    }
}

fn differences(there: &BTreeMap<String, String>, here: &BTreeMap<String, String>) -> Vec<String> {
    let differs = |(name, value): (&String, &String)| match there.get(name) {
        Some(old) if old == value => None,
        old => Some(format!("{name} was {}, is {value}", old.map_or("unknown", String::as_str))),
    };
    here.iter().filter_map(differs).collect()
}

fn differences_as_notes(there: &BTreeMap<String, String>, job: &Job) -> Vec<String> {
    let changed = differences(there, &job.tunable());
    match changed.is_empty() {
        true => Vec::new(),
        false => vec![format!("not the same run any more: {}", changed.join("; "))],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_name_the_flag_and_both_values() {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let (there, here) = (map(&[("--batch", "32"), ("--seed", "1")]), map(&[("--batch", "16"), ("--seed", "1")]));
        assert_eq!(differences(&there, &here), ["--batch was 32, is 16"]);
        assert_eq!(differences(&map(&[]), &map(&[("--seed", "1")])), ["--seed was unknown, is 1"]);
    }
}
