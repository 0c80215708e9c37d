//! Devices and contexts, and which of them a thread is bound to.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex};

use crate::abi::{Failure, Result, acl_code};
use crate::counts::{self, Kind};
use crate::handles::{Handle, Handles, lock};
use crate::settings::settings;

/// A context: all that matters is its device.
pub(crate) struct Context {
    pub(crate) device: i32,
    pub(crate) default: bool,
}

pub(crate) static CONTEXTS: Handles<Context> = Handles::new();

/// The default context of each device, made at first use.
static DEFAULTS: LazyLock<Mutex<BTreeMap<i32, Handle>>> = LazyLock::new(Mutex::default);
/// How often each device is set.
static SET: LazyLock<Mutex<BTreeMap<i32, u64>>> = LazyLock::new(Mutex::default);

thread_local! {
    static CURRENT: Cell<Handle> = const { Cell::new(0) };
}

pub(crate) fn check(device: i32) -> Result<()> {
    match u32::try_from(device) {
        Ok(device) if device < settings().devices => Ok(()),
        _ => {
            let text = format!("EE1001: there is no device {device}, only {}", settings().devices);
            Err(Failure::new(acl_code::INVALID_DEVICE, text))
        }
    }
}

pub(crate) fn set(device: i32) -> Result<()> {
    check(device)?;
    *lock(&SET).entry(device).or_default() += 1;
    counts::more(Kind::Devices);
    let context =
        *lock(&DEFAULTS).entry(device).or_insert_with(|| CONTEXTS.add(Arc::new(Context { device, default: true })));
    CURRENT.set(context);
    Ok(())
}

/// Undoes one `set`, or all.
pub(crate) fn reset(device: i32, all: bool) -> Result<()> {
    check(device)?;
    let mut set = lock(&SET);
    let times = set.get_mut(&device).filter(|times| **times > 0);
    let Some(times) = times else {
        let text = format!("EE1001: device {device} is not set");
        return Err(Failure::new(acl_code::INVALID_DEVICE, text));
    };
    let undone = if all { *times } else { 1 };
    *times -= undone;
    (0..undone).for_each(|_| counts::less(Kind::Devices));
    drop(set);
    if current_id() == Some(device) {
        CURRENT.set(0);
    }
    Ok(())
}

/// This thread's context.
pub(crate) fn current() -> Result<(Handle, Arc<Context>)> {
    let handle = CURRENT.get();
    let context = CONTEXTS.get(handle);
    context.map(|context| (handle, context)).ok_or_else(|| {
        Failure::new(acl_code::CONTEXT_NULL, "EE1001: this thread has no context: set the device or a context first")
    })
}

/// This thread's device, if it is bound to one.
pub(crate) fn current_id() -> Option<i32> {
    CONTEXTS.get(CURRENT.get()).map(|context| context.device)
}

pub(crate) fn create_context(device: i32) -> Result<Handle> {
    check(device)?;
    let handle = CONTEXTS.add(Arc::new(Context { device, default: false }));
    counts::more(Kind::Contexts);
    CURRENT.set(handle);
    Ok(handle)
}

pub(crate) fn destroy_context(handle: Handle) -> Result<()> {
    match CONTEXTS.get(handle) {
        Some(context) if !context.default => {
            CONTEXTS.remove(handle);
            counts::less(Kind::Contexts);
            if CURRENT.get() == handle {
                CURRENT.set(0);
            }
            Ok(())
        }
        _ => Err(crate::abi::invalid("this context was not made by aclrtCreateContext")),
    }
}

pub(crate) fn enter(handle: Handle) -> Result<()> {
    match CONTEXTS.get(handle) {
        Some(_) => {
            CURRENT.set(handle);
            Ok(())
        }
        None => Err(crate::abi::invalid("there is no such context")),
    }
}
