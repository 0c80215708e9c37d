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

/// A new group of `members` of `parent`, this rank among them.
pub(crate) fn make(parent: &Arc<Group>, members: &[usize], tag: u64) -> Result<Group> {
    let Some(rank) = members.iter().position(|member| *member == parent.rank) else {
        return Err(Error::invalid(format!("rank {} is not in its own group {members:?}", parent.rank)));
    };
    if let Some(cause) = parent.cause() {
        return Err(cause.at("group", parent.rank, parent.size));
    }
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
    let joined = wait_until_joined(&group, started);
    drop(offer);
    joined.map_err(|error| {
        group.leave();
        error.at("group", group.rank, group.size)
    })?;
    Ok(group)
}

/// Waits for the leader's segment.
fn look_for(parent: &Group, members: &[usize], key: u64, started: Instant) -> Result<Arc<Segment>> {
    let leader = members[0];
    loop {
        if let Some(segment) = fetch(parent, leader, key, members.len())? {
            return Ok(segment);
        }
        if let Some(how) = parent.lost(leader) {
            return Err(Error::new(ErrorKind::PeerLost { peer: leader, how }).at("group", parent.rank, parent.size));
        }
        if started.elapsed() > parent.options.connect_timeout {
            let timeout = ErrorKind::Timeout { late: vec![leader], after: started.elapsed() };
            let hint = "every member must make the same group, in the same order of calls";
            return Err(Error::new(timeout).hint(hint).at("group", parent.rank, parent.size));
        }
        if parent.threads {
            let nap = Duration::from_millis(5);
            drop(OFFERED_NEW.wait_timeout(offered(), nap));
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn fetch(parent: &Group, leader: usize, key: u64, size: usize) -> Result<Option<Arc<Segment>>> {
    #[cfg(all(target_os = "linux", not(hccl_portable)))]
    if !parent.threads {
        let memory = crate::backend::cpu::handover::fetch_segment(parent.process(leader), key, &parent.options)?;
        return memory.map(|memory| Ok(Arc::new(Segment::adopt(memory, size)?))).transpose();
    }
    let _ = (parent, leader, size);
    Ok(find(key))
}

/// Waits until all members have joined.
fn wait_until_joined(group: &Group, started: Instant) -> Result<()> {
    let absent = |p: &usize| group.segment.cell(*p).life.0.status.load(Ordering::Acquire) == Status::Absent as u32;
    loop {
        let late: Vec<usize> = (0..group.size).filter(absent).collect();
        let Some(first) = late.first() else { return Ok(()) };
        if let Some(how) = late.iter().find_map(|p| group.lost(*p)) {
            return Err(Error::new(ErrorKind::PeerLost { peer: *first, how }));
        }
        let after = started.elapsed();
        if after > group.options.connect_timeout {
            let hint = "every member must make the same group, in the same order of calls";
            return Err(Error::new(ErrorKind::Timeout { late, after }).hint(hint));
        }
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
