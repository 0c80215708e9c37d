//! The keeper: a thread that lives as long as the process and owns words that the kernel marks when it ends.
//!
//! Linux walks a thread's robust list when the thread ends, and sets `FUTEX_OWNER_DIED` in every word that holds the
//! thread's id (see `set_robust_list(2)` and the kernel's `robust-futexes` document). The list is handled before the
//! address space is freed, so a process with gigabytes of memory is seen to die as fast as a small one.
#![expect(unsafe_code, reason = "builds the list that the kernel walks")]

use crate::error::{Error, Result};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};

/// The distance from a link to its word, the same for every entry.
const WORD_OFFSET: isize = 8;

const _: () = {
    use crate::backend::cpu::segment::Life;
    assert!(offset_of!(Life, word) as isize - offset_of!(Life, next) as isize == WORD_OFFSET);
};

/// `struct robust_list_head` of the kernel.
///
/// Invariants: (1) `first` starts a chain of links that ends at `first`'s own address; each link stays mapped while it
/// is in the chain. (2) One store changes the chain, so that the kernel finds a whole one at any moment.
#[repr(C)]
struct Head {
    first: AtomicUsize,
    offset: isize,
    pending: AtomicUsize,
}

/// The thread's id and the address of its head, or why there is none.
static KEEPER: OnceLock<std::result::Result<(u32, &'static Head), rustix::io::Errno>> = OnceLock::new();
/// Held while the chain changes.
static CHAIN: Mutex<()> = Mutex::new(());

/// Puts the word 8 bytes behind `link` under watch. Both must stay mapped until [`unwatch`].
pub(crate) fn watch(link: &AtomicUsize, word: &AtomicU32) -> Result<()> {
    debug_assert_eq!(word as *const _ as isize - link as *const _ as isize, WORD_OFFSET);
    let (tid, head) = KEEPER
        .get_or_init(start)
        .map_err(|e| Error::resource("a thread that tells peers of this process's end (set_robust_list)", e))?;
    let _chain = CHAIN.lock().unwrap_or_else(PoisonError::into_inner);
    word.store(tid, Ordering::Release);
    link.store(head.first.load(Ordering::Relaxed), Ordering::Release);
    head.first.store(link as *const _ as usize, Ordering::Release);
    Ok(())
}

/// Takes a link out of the chain.
pub(crate) fn unwatch(link: &AtomicUsize) {
    let Some(Ok((_, head))) = KEEPER.get() else { return };
    if crate::sys::forked() {
        return; // the links stand in memory shared with the parent, whose chain they are
    }
    let _chain = CHAIN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut at = &head.first;
    let end = at as *const _ as usize;
    loop {
        let next = at.load(Ordering::Relaxed);
        if next == end {
            return;
        }
        if next == link as *const _ as usize {
            at.store(link.load(Ordering::Relaxed), Ordering::Release);
            return;
        }
        // SAFETY: (1), and the chain cannot change while the lock is held.
        at = unsafe { &*(next as *const AtomicUsize) };
    }
}

fn start() -> std::result::Result<(u32, &'static Head), rustix::io::Errno> {
    let head: &'static Head =
        Box::leak(Box::new(Head { first: AtomicUsize::new(0), offset: WORD_OFFSET, pending: AtomicUsize::new(0) }));
    head.first.store(&head.first as *const _ as usize, Ordering::Release);
    let (tell, told) = mpsc::channel();
    let keeper = std::thread::Builder::new().name("hccl-keeper".into()).stack_size(64 << 10);
    let body = move || {
        // The C library's own list of this thread is empty and stays so: the thread takes no robust mutex.
        // SAFETY: the head lives for ever and obeys (1) and (2).
        let failed = unsafe { libc::syscall(libc::SYS_set_robust_list, head as *const Head, size_of::<Head>()) } != 0;
        let id = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let _ = tell.send(if failed { Err(rustix::io::Errno::NOSYS) } else { Ok(id) });
        if !failed {
            loop {
                std::thread::park();
            }
        }
    };
    keeper.spawn(body).map_err(|_| rustix::io::Errno::AGAIN)?;
    let id = told.recv().unwrap_or(Err(rustix::io::Errno::AGAIN))?;
    Ok((id, head))
}
