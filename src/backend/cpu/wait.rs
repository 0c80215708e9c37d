//! The one way to wait: with a deadline, an eye on the peers, and in three gears.
//!
//! 1. Spin, while every rank has a core. 2. Give the time slice away a few times. 3. Sleep until rung, at most
//!    [`NAP`], and after each nap look whether the group failed, a needed peer is gone, the ranks wait for each other in
//!    a circle, or the deadline has passed.
//!
//! What is waited for wins over everything else: a finished exchange is a success even if the group failed since.

use crate::backend::cpu::group::Group;
use crate::error::{Error, ErrorKind, Result};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Longest sleep between two looks at the peers: a lost wake-up or a death is seen this late at most.
const NAP: Duration = Duration::from_millis(5);
/// Looks at the condition before the first yield, with a core for every rank.
const SPINS: u32 = 20_000;
/// The same with more ranks than cores, and for a progress thread, which must not take its own rank's core.
const FEW_SPINS: u32 = 50;
const YIELDS: u32 = 30;
/// How long ranks may look like a circle before it is searched for.
const SUSPICION: Duration = Duration::from_millis(40);
/// How long before a waiting rank says whom it waits for.
const WARNING: Duration = Duration::from_secs(10);

/// What a rank waits for at one peer. Codes stand in `Blocked::on`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum On {
    /// The peer's slot of collective `target`.
    Slot = 1,
    /// The peer's `target`-th meeting point.
    Arrive = 2,
    /// The peer offers message `target` to this rank.
    Offer = 3,
    /// The peer asks for message `target` of this rank.
    Request = 4,
    /// The peer goes on inside a call that both are in: it cannot be part of a circle.
    Progress = 5,
}

/// One thing that one rank waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) on: On,
    pub(crate) peer: usize,
    pub(crate) target: u64,
}

impl On {
    fn from_code(code: u32) -> Option<On> {
        [On::Slot, On::Arrive, On::Offer, On::Request, On::Progress].into_iter().find(|on| *on as u32 == code)
    }
}

impl Group {
    /// Waits until `ready`. `missing` names what is still missing, for the slow path. `eager` is false on a progress
    /// thread.
    pub(crate) fn wait(
        &self,
        eager: bool,
        mut ready: impl FnMut() -> bool,
        missing: impl Fn(&mut dyn FnMut(Claim)),
    ) -> Result<()> {
        let spins = if eager && self.may_spin() { SPINS } else { FEW_SPINS };
        for _ in 0..spins {
            if ready() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        for _ in 0..YIELDS {
            crate::sys::yield_now();
            if ready() {
                return Ok(());
            }
        }
        let waited = self.wait_long(&mut ready, &missing);
        self.unblock();
        waited
    }

    /// Waits until every other rank is `ready`; `claim` says what is missing at one that is not.
    pub(crate) fn wait_for_all(
        &self,
        eager: bool,
        ready: impl Fn(usize) -> bool,
        claim: impl Fn(usize) -> Claim,
    ) -> Result<()> {
        let mut next = 0;
        let all = || {
            while next < self.size && (next == self.rank || ready(next)) {
                next += 1;
            }
            next == self.size
        };
        self.wait(eager, all, |found| {
            (0..self.size).filter(|p| *p != self.rank && !ready(*p)).for_each(|p| found(claim(p)));
        })
    }

    #[cold]
    fn wait_long(&self, ready: &mut impl FnMut() -> bool, missing: &impl Fn(&mut dyn FnMut(Claim))) -> Result<()> {
        let start = Instant::now();
        let mut warned = false;
        loop {
            if ready() {
                return Ok(());
            }
            if let Some(cause) = self.cause() {
                return Err(cause);
            }
            self.look_at_peers(missing)?;
            let waited = start.elapsed();
            if waited > SUSPICION {
                self.look_for_circle()?;
            }
            if waited > WARNING && !warned {
                warned = true;
                let late = self.late(missing);
                tracing::warn!(rank = self.rank, ?late, "waiting for more than 10 s");
            }
            let deadline = self.deadline();
            if waited >= deadline {
                return self.time_out(waited, missing);
            }
            let left = deadline - waited;
            self.sleep(NAP.min(left), &mut *ready);
        }
    }

    /// Fails when a peer that is still needed is gone.
    fn look_at_peers(&self, missing: &impl Fn(&mut dyn FnMut(Claim))) -> Result<()> {
        let mut first = None;
        let mut lost = None;
        missing(&mut |claim| {
            first.get_or_insert(claim);
            if lost.is_none() {
                lost = self.lost(claim.peer).map(|how| (claim, how));
            }
        });
        if let Some((claim, how)) = lost {
            // The peer may have done its last part just before it went: look once more.
            std::sync::atomic::fence(Ordering::SeqCst);
            let mut still = false;
            missing(&mut |again| still |= again == claim);
            if still {
                return Err(self.fail(Error::new(ErrorKind::PeerLost { peer: claim.peer, how })));
            }
        }
        if let Some(claim) = first {
            self.block(claim);
        }
        Ok(())
    }

    fn time_out(&self, after: Duration, missing: &impl Fn(&mut dyn FnMut(Claim))) -> Result<()> {
        let late = self.late(missing);
        if late.is_empty() {
            return Ok(());
        }
        // Whole milliseconds, as the other ranks and later calls are told.
        let after = Duration::from_millis(after.as_millis() as u64);
        Err(self.fail(Error::new(ErrorKind::Timeout { late, after })))
    }

    /// Publishes what this rank waits for.
    fn block(&self, claim: Claim) {
        let blocked = &self.segment.cell(self.rank).blocked.0;
        let version = blocked.version.load(Ordering::Relaxed);
        let same = version % 2 == 1
            && blocked.on.load(Ordering::Relaxed) == claim.on as u32
            && blocked.peer.load(Ordering::Relaxed) == claim.peer as u32
            && blocked.target.load(Ordering::Relaxed) == claim.target;
        if same {
            return;
        }
        self.unblock();
        let version = blocked.version.load(Ordering::Relaxed);
        blocked.on.store(claim.on as u32, Ordering::Relaxed);
        blocked.peer.store(claim.peer as u32, Ordering::Relaxed);
        blocked.target.store(claim.target, Ordering::Relaxed);
        blocked.version.store(version + 1, Ordering::SeqCst);
    }

    fn unblock(&self) {
        let version = &self.segment.cell(self.rank).blocked.0.version;
        if version.load(Ordering::Relaxed) % 2 == 1 {
            version.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// What `rank` says it waits for, with the version under which it said so.
    fn claim_of(&self, rank: usize) -> Option<(u64, Claim)> {
        let blocked = &self.segment.cell(rank).blocked.0;
        let version = blocked.version.load(Ordering::SeqCst);
        let on = On::from_code(blocked.on.load(Ordering::Relaxed))?;
        let peer = blocked.peer.load(Ordering::Relaxed) as usize;
        let target = blocked.target.load(Ordering::Relaxed);
        let valid = version % 2 == 1 && peer < self.size;
        valid.then_some((version, Claim { on, peer, target }))
    }

    /// True when what `rank` waits for is there, read from the words themselves.
    fn is_met(&self, rank: usize, claim: Claim) -> bool {
        let segment = &self.segment;
        let Claim { on, peer, target } = claim;
        let word = match on {
            On::Slot => &segment.slot(peer, target).stamp,
            On::Arrive => &segment.cell(peer).arrive.0,
            On::Offer => &segment.mail(peer, rank).outbox.posted,
            On::Request => &segment.mail(rank, peer).inbox.posted,
            On::Progress => return false,
        };
        word.load(Ordering::SeqCst) >= target
    }

    /// True when what `rank` waits for is part of the call that its peer is in, and so no reason for a circle.
    fn is_promised(&self, rank: usize, claim: Claim) -> bool {
        let Claim { on, peer, target } = claim;
        match on {
            On::Slot | On::Arrive => false,
            On::Offer => self.segment.mail(peer, rank).outbox.planned.load(Ordering::SeqCst) >= target,
            On::Request => self.segment.mail(rank, peer).inbox.planned.load(Ordering::SeqCst) >= target,
            On::Progress => true,
        }
    }

    /// Who holds this rank up: of the ranks that it misses, and those that they wait for in turn, the ones that wait
    /// for nobody.
    fn late(&self, missing: &impl Fn(&mut dyn FnMut(Claim))) -> Vec<usize> {
        let mut direct = Vec::new();
        missing(&mut |claim| direct.push(claim.peer));
        let mut seen = vec![false; self.size];
        seen[self.rank] = true;
        let (mut open, mut late) = (direct.clone(), Vec::new());
        while let Some(rank) = open.pop() {
            if std::mem::replace(&mut seen[rank], true) {
                continue;
            }
            match self.claim_of(rank).filter(|(_, claim)| !self.is_met(rank, *claim)) {
                Some((_, claim)) => open.push(claim.peer),
                None => late.push(rank),
            }
        }
        // All wait: one of them stands still inside a call that others are in too.
        let mut late = if late.is_empty() { direct } else { late };
        late.sort_unstable();
        late.dedup();
        late
    }

    /// Follows who waits for whom; fails when the trail comes back here and every link still holds.
    ///
    /// No false alarm: a rank with an odd version ends no call until the version changes, and in the call that it is in
    /// it publishes no more than that call has promised. So when all links were unmet and unpromised at once with
    /// unchanged versions, none can ever be met.
    fn look_for_circle(&self) -> Result<()> {
        let mut trail: Vec<(usize, u64, Claim)> = Vec::new();
        let mut rank = self.rank;
        loop {
            let Some((version, claim)) = self.claim_of(rank) else { return Ok(()) };
            trail.push((rank, version, claim));
            rank = claim.peer;
            if rank == self.rank {
                break;
            }
            if trail.len() > self.size {
                return Ok(()); // a circle that this rank is not part of: its members report it
            }
        }
        let open = |rank: usize, claim: Claim| !self.is_met(rank, claim) && !self.is_promised(rank, claim);
        let unmet = trail.iter().all(|(rank, _, claim)| open(*rank, *claim));
        let unchanged = trail.iter().all(|(rank, version, claim)| self.claim_of(*rank) == Some((*version, *claim)));
        if unmet && unchanged {
            let cycle = trail.iter().map(|(rank, ..)| *rank).collect();
            return Err(self.fail(Error::new(ErrorKind::Deadlock { cycle })));
        }
        Ok(())
    }
}
