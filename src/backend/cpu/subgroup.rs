//! Making groups: a leader makes the segment, the others find it under a key that all members compute.

use crate::backend::cpu::group::Group;
use crate::backend::cpu::segment::{Segment, Status};
use crate::error::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Segments of groups that are being made by leaders in this process, by key.
static OFFERED: Mutex<Option<HashMap<u64, Arc<Segment>>>> = Mutex::new(None);
static OFFERED_NEW: Condvar = Condvar::new();

fn offered() -> MutexGuard<'static, Option<HashMap<u64, Arc<Segment>>>> {
    OFFERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The segment that a leader in this process offers under `key`.
pub(crate) fn find(key: u64) -> Option<Arc<Segment>> {
    offered().as_ref()?.get(&key).cloned()
}

/// Offers a segment until dropped.
struct Offer(u64);

impl Offer {
    fn new(key: u64, segment: Arc<Segment>) -> Offer {
        offered().get_or_insert_default().insert(key, segment);
        OFFERED_NEW.notify_all();
        Offer(key)
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        if let Some(map) = offered().as_mut() {
            map.remove(&self.0);
        }
    }
}

/// A new group of `members` of `parent`, this rank among them. Errors count ranks as the parent does.
pub(crate) fn make(parent: &Arc<Group>, members: &[usize], tag: u64) -> Result<Group> {
    let Some(rank) = members.iter().position(|member| *member == parent.rank) else {
        return Err(Error::invalid(format!("rank {} is not in its own group {members:?}", parent.rank)));
    };
    let made = match parent.cause() {
        Some(cause) => Err(cause),
        // The other members wait for this rank: when it gives up, they hear of it through the parent.
        None => gather(parent, members, rank, tag).map_err(|error| parent.fail(error)),
    };
    made.map_err(|error| error.at("group", parent.rank, parent.size))
}

/// Brings the members together; this rank is the new group's `rank`.
fn gather(parent: &Group, members: &[usize], rank: usize, tag: u64) -> Result<Group> {
    let key = key(parent.id(), members, tag);
    let started = Instant::now();
    let mut offer = None;
    let segment = if rank == 0 {
        let segment = Arc::new(Segment::create(members.len(), key, parent.stage(), parent.may_spin())?);
        offer = Some(Offer::new(key, segment.clone()));
        segment
    } else {
        look_for(parent, members, key, started)?
    };
    let lives = parent.lives.of(members);
    let group = Group::join(segment, rank, parent.threads, &parent.options, lives);
    let joined = wait_until_joined(&group, parent, members, started);
    drop(offer);
    if joined.is_err() {
        group.leave();
    }
    joined.map(|()| group)
}

/// Waits for the leader's segment.
fn look_for(parent: &Group, members: &[usize], key: u64, started: Instant) -> Result<Arc<Segment>> {
    let leader = members[0];
    loop {
        if let Some(segment) = fetch(parent, leader, key, members.len())? {
            return Ok(segment);
        }
        let lost = || parent.lost(leader).map(|how| Error::new(ErrorKind::PeerLost { peer: leader, how }));
        if let Some(cause) = parent.cause().or_else(lost) {
            return Err(cause);
        }
        check_time(parent, started, || vec![leader])?;
        if parent.threads {
            let nap = Duration::from_millis(5);
            drop(OFFERED_NEW.wait_timeout(offered(), nap));
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn check_time(parent: &Group, started: Instant, late: impl Fn() -> Vec<usize>) -> Result<()> {
    let after = started.elapsed();
    if after <= parent.options.connect_timeout {
        return Ok(());
    }
    let hint = "every member must make the same group, in the same order of calls";
    Err(Error::new(ErrorKind::Timeout { late: late(), after }).hint(hint))
}

fn fetch(parent: &Group, leader: usize, key: u64, size: usize) -> Result<Option<Arc<Segment>>> {
    #[cfg(all(target_os = "linux", not(hccl_portable)))]
    if !parent.threads {
        use crate::backend::cpu::handover::{Answer, ask_for_segment};
        let patience = parent.options.connect_timeout.min(Duration::from_millis(500));
        // A leader that is gone or stopped shows in its life or by the deadline: the caller looks at both.
        return match ask_for_segment(parent.process(leader), key, patience)? {
            Answer::Here(memory) => Ok(Some(Arc::new(Segment::adopt(memory, size)?))),
            Answer::NotHere | Answer::Gone | Answer::Late => Ok(None),
        };
    }
    let _ = (parent, leader, size);
    Ok(find(key))
}

/// Waits until all members have joined.
fn wait_until_joined(group: &Group, parent: &Group, members: &[usize], started: Instant) -> Result<()> {
    let absent = |p: &usize| group.segment.cell(*p).life.0.status.load(Ordering::Acquire) == Status::Absent as u32;
    loop {
        let late: Vec<usize> = (0..group.size).filter(absent).collect();
        if late.is_empty() {
            return Ok(());
        }
        if let Some(cause) = parent.cause() {
            return Err(cause);
        }
        // One that has left the parent can have joined just before, so it is looked at again.
        let lost = late.iter().find_map(|p| Some((*p, parent.lost(members[*p])?))).filter(|(p, _)| absent(p));
        if let Some((p, how)) = lost {
            return Err(Error::new(ErrorKind::PeerLost { peer: members[p], how }));
        }
        check_time(parent, started, || late.iter().map(|p| members[*p]).collect())?;
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A number that all members compute and no other group of this parent has.
fn key(parent: u64, members: &[usize], tag: u64) -> u64 {
    let mut hash = mix(parent ^ mix(tag));
    for member in members {
        hash = mix(hash ^ (*member as u64 + 1));
    }
    hash
}

/// The finalizer of splitmix64 (Steele, Lea, Flood 2014).
pub(crate) fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
