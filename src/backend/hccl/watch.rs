//! When to stop waiting for a worker.

use super::error::silent;
use crate::backend::Call;
use crate::backend::cpu::group::Group;
use crate::error::{Error, ErrorKind};
use std::time::{Duration, Instant};

/// How long the part of a peer that was lost may still be on its way.
const LINGER: Duration = Duration::from_millis(300);
/// How long a collective may take on this rank after another has finished it and failed the group.
const FINISHING: Duration = Duration::from_secs(2);

/// Whose loss ends a wait.
pub(super) enum Needs<'a> {
    /// Every rank's.
    All,
    /// That of a rank which has not finished this collective.
    Place(u64),
    /// That of the other ends of these messages.
    Ends(&'a Call),
}

/// When to stop waiting for a worker.
pub(super) struct Watch<'a> {
    group: &'a Group,
    deadline: Duration,
    start: Instant,
    lost: Option<(Instant, Error)>,
    /// Since when the group is known to have failed.
    failed: Option<Instant>,
    /// Who else is needed.
    needs: Needs<'a>,
    /// Asked at every look: another reason to stop.
    other: Box<dyn FnMut() -> Option<Error> + 'a>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(group: &'a Group, deadline: Duration) -> Watch<'a> {
        Watch {
            group,
            deadline,
            start: Instant::now(),
            lost: None,
            failed: None,
            needs: Needs::All,
            other: Box::new(|| None),
        }
    }

    /// Waits for these ranks only.
    pub(super) fn needing(mut self, needs: Needs<'a>) -> Watch<'a> {
        self.needs = needs;
        self
    }

    /// Looks for another reason too.
    pub(super) fn and(mut self, other: impl FnMut() -> Option<Error> + 'a) -> Watch<'a> {
        self.other = Box::new(other);
        self
    }

    /// How long it has been.
    pub(super) fn waited(&self) -> Duration {
        self.start.elapsed()
    }

    /// How long a group that has failed may still finish this call: a rank may fail it right after its own part of a
    /// call that the others are about to finish, which is a success.
    fn patience_after_failure(&self) -> Duration {
        let mut others = (0..self.group.size).filter(|peer| *peer != self.group.rank);
        match self.needs {
            Needs::Place(place) if others.any(|peer| self.group.finished(peer) >= place) => FINISHING,
            Needs::Ends(_) => LINGER,
            _ => Duration::ZERO,
        }
    }

    pub(super) fn look(&mut self, device: u32) -> Option<Error> {
        if let Some(cause) = self.group.cause()
            && self.failed.get_or_insert_with(Instant::now).elapsed() >= self.patience_after_failure()
        {
            return Some(cause);
        }
        if let Some(error) = (self.other)() {
            return Some(error);
        }
        if self.lost.is_none() {
            let others = (0..self.group.size).filter(|peer| *peer != self.group.rank);
            let lost = others.filter_map(|peer| Some((peer, self.group.lost(peer)?)));
            let mut lost = lost.filter(|(peer, _)| match &self.needs {
                Needs::All => true,
                Needs::Place(place) => self.group.finished(*peer) < *place,
                Needs::Ends(call) => {
                    call.root as usize == *peer && call.messages.is_empty()
                        || call.messages.iter().any(|message| message.peer as usize == *peer)
                }
            });
            self.lost = lost.next().map(|(peer, how)| (Instant::now(), Error::new(ErrorKind::PeerLost { peer, how })));
        }
        // Of a message only its ends know: what a peer did before it went arrives soon, if it did.
        if let Some((since, error)) = &self.lost
            && since.elapsed() > LINGER
        {
            return Some(error.clone());
        }
        let waited = self.waited();
        (waited > self.deadline).then(|| silent(device, "the operation did not end", waited))
    }
}
