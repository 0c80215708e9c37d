//! Grouped calls: those between `HcclGroupStart` and `HcclGroupEnd` of a thread start together.

use std::cell::RefCell;
use std::sync::Arc;

use crate::abi::{Result, para};
use crate::comm::Comm;
use crate::messages::{self, Message};
use crate::stream::Stream;

/// A call that has been checked.
pub(crate) enum Work {
    Messages(&'static str, Arc<Comm>, Arc<Stream>, Vec<Message>),
    Collective(Box<dyn FnOnce() -> Result<()>>),
}

thread_local! {
    /// How deep groups are nested, and what they hold.
    static OPEN: RefCell<(u32, Vec<Work>)> = const { RefCell::new((0, Vec::new())) };
}

pub(crate) fn is_open() -> bool {
    OPEN.with_borrow(|open| open.0 > 0)
}

/// Starts the call, or keeps it for the end of the group.
pub(crate) fn submit(work: Work) -> Result<()> {
    if is_open() {
        OPEN.with_borrow_mut(|open| open.1.push(work));
        return Ok(());
    }
    go(work)
}

fn go(work: Work) -> Result<()> {
    match work {
        Work::Messages(name, comm, stream, messages) => messages::go(name, &comm, &stream, messages),
        Work::Collective(start) => start(),
    }
}

pub(crate) fn start() {
    OPEN.with_borrow_mut(|open| open.0 += 1);
}

pub(crate) fn end() -> Result<()> {
    let works = OPEN.with_borrow_mut(|open| {
        open.0 = open.0.checked_sub(1).ok_or_else(|| para("HcclGroupEnd without HcclGroupStart"))?;
        Ok(if open.0 == 0 { std::mem::take(&mut open.1) } else { Vec::new() })
    })?;
    let messages = works.iter().filter(|work| matches!(work, Work::Messages(..))).count();
    if messages > 0 && messages < works.len() {
        return Err(para("a group holds messages and collectives"));
    }
    merged(works).into_iter().try_for_each(go)
}

/// The messages of one communicator on one stream become one batch.
fn merged(works: Vec<Work>) -> Vec<Work> {
    let mut result: Vec<Work> = Vec::new();
    for work in works {
        let Work::Messages(_, comm, stream, messages) = work else {
            result.push(work);
            continue;
        };
        let same = result.iter_mut().find_map(|other| match other {
            Work::Messages(_, c, s, list) if Arc::ptr_eq(c, &comm) && Arc::ptr_eq(s, &stream) => Some(list),
            _ => None,
        });
        match same {
            Some(list) => list.extend(messages),
            None => result.push(Work::Messages("HcclGroupEnd", comm, stream, messages)),
        }
    }
    result
}
