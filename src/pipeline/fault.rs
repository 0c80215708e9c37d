//! The groups of a pipeline, and how a failure of one rank's stage reaches the others with its text.
//!
//! Messages travel over one group. The rank whose stage fails aborts it, so that nobody waits on, and tells each other
//! rank why over a second group, which nothing else uses.

use crate::communicator::Communicator;
use crate::error::{Error, ErrorKind, Result};
use crate::group::Axis;
use crate::pending::Pending;
use std::time::Duration;

/// How long a rank tries to say or to hear why a step failed.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of the text that is told; longer ones are cut.
const TEXT: usize = 600;

/// Why a step ended.
#[derive(Debug)]
pub(super) enum Failure {
    /// This rank's own doing: its stage, its input, or a message that it refused.
    Own(Error),
    /// The group: another rank failed, or is gone, or late.
    Link(Error),
}

/// The groups of a pipeline as this rank sees them.
pub(super) struct Links<A: Axis> {
    pub(super) comm: Communicator<A>,
    side: Communicator<A>,
    /// What every further call returns.
    failed: Option<Error>,
}

impl<A: Axis> Links<A> {
    /// Every rank calls it.
    pub(super) fn new(comm: &Communicator<A>) -> Result<Self> {
        Ok(Links { comm: comm.duplicate()?, side: comm.duplicate()?, failed: None })
    }

    /// The error of an earlier step.
    pub(super) fn usable(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Ends the step on every rank when it failed on this one, and says why: with the text of the rank that failed first.
    pub(super) fn settle<T>(&mut self, op: &'static str, result: Result<T, Failure>) -> Result<T> {
        let failure = match result {
            Ok(value) => return Ok(value),
            Err(failure) => failure,
        };
        let (rank, size) = (self.comm.rank().index(), self.comm.size());
        self.comm.abort_handle().abort();
        let first = match self.comm.failure().map(|cause| cause.kind().clone()) {
            Some(ErrorKind::Aborted { by }) => Some(by),
            _ => None,
        };
        let error = match failure {
            Failure::Own(error) => {
                if first == Some(rank) {
                    self.tell(&text(&error));
                } else if let Some(by) = first {
                    // Both failed; the other one waits for its text to be taken.
                    self.hear(by);
                }
                error
            }
            Failure::Link(error) => match first.filter(|&by| by != rank).and_then(|by| Some((by, self.hear(by)?))) {
                Some((by, text)) => Error::rank_failed(by, text),
                None => error,
            },
        };
        let error = error.at(op, rank, size);
        self.failed = Some(error.clone());
        Err(error)
    }

    fn tell(&self, text: &[u8; TEXT]) {
        let sends = self.side.peers().map(|peer| (text.to_vec(), peer)).collect();
        let Ok(pending) = self.side.batch_send_recv_async::<Vec<u8>, Vec<u8>>(sends, Vec::new()) else { return };
        self.patiently(pending);
    }

    fn hear(&self, by: usize) -> Option<String> {
        let pending = self.side.recv_async(vec![0u8; TEXT], self.side.peer(by).ok()?).ok()?;
        let heard = self.patiently(pending)?;
        let end = heard.iter().position(|&byte| byte == 0).unwrap_or(heard.len());
        Some(String::from_utf8_lossy(&heard[..end]).into_owned())
    }

    /// What a call gave back, if it came to its end before patience did.
    fn patiently<B: crate::flight::InFlight>(&self, pending: Pending<B>) -> Option<B> {
        if !pending.wait_timeout(PATIENCE) {
            self.side.abort_handle().abort();
        }
        pending.wait().ok()
    }
}

/// The error as the other ranks will tell it: without who and where, which they know.
fn text(error: &Error) -> [u8; TEXT] {
    let mut text = match error.kind() {
        ErrorKind::Rank { message, .. } => message.clone(),
        kind => kind.to_string(),
    };
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    let mut end = text.len().min(TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut bytes = [0; TEXT];
    bytes[..end].copy_from_slice(&text.as_bytes()[..end]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters() {
        let error = Error::rank_failed(0, "é".repeat(400));
        let cut = text(&error);
        assert!(std::str::from_utf8(&cut).is_ok());
        assert_eq!(cut[TEXT - 1], "é".as_bytes()[1]);
    }
}
