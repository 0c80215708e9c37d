//! Room for the pipes of many ranks: two descriptors a rank.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that the launcher and its program hold beside the pipes of ranks, at most as we guess.
const OTHERS: u64 = 128;

/// Raises the soft limit of open files as far as `ranks` ranks need it and the hard limit lets it; dropping restores it.
pub(crate) struct Room {
    before: Option<Rlimit>,
}

impl Room {
    pub(crate) fn for_ranks(ranks: usize) -> Room {
        let before = getrlimit(Resource::Nofile);
        let need = 2 * ranks as u64 + OTHERS;
        let current = before.maximum.map_or(need, |maximum| need.min(maximum));
        let short = before.current.is_some_and(|limit| limit < current);
        let raised = Rlimit { current: Some(current), maximum: before.maximum };
        // Where the limit stays, the rank that meets it names it.
        let done = short && setrlimit(Resource::Nofile, raised).is_ok();
        Room { before: done.then_some(before) }
    }

    /// The limit that ranks shall have: the one from before.
    pub(crate) fn of_ranks(&self) -> Option<Rlimit> {
        self.before
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // Lowering a soft limit is always allowed.
            let _ = setrlimit(Resource::Nofile, before);
        }
    }
}
