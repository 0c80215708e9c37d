//! Where the ranks' memory is: what a rank publishes, and the address at which this rank reaches it.
//!
//! | ranks are | heap memory | plain memory |
//! | --- | --- | --- |
//! | threads | its address | its address |
//! | processes | arena and offset, mapped at first use | staged: the owner copies pieces into a block of its heap |

use crate::backend::cpu::group::Group;
use crate::backend::{Home, Memory};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::SharedMemory;
use std::sync::Arc;

/// An address as it stands in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Arena of the owner's heap; without meaning when the ranks are threads.
    pub(crate) arena: u32,
    /// Offset in the arena, or the address itself when the ranks are threads.
    pub(crate) offset: u64,
}

impl Place {
    /// How peers reach `memory`, or `None` when they cannot.
    pub(crate) fn of(memory: &Memory, threads: bool) -> Option<Place> {
        if threads {
            return Some(Place { arena: 0, offset: memory.ptr as u64 });
        }
        match memory.home {
            Home::Heap { arena, offset } => Some(Place { arena, offset }),
            _ if memory.bytes == 0 => Some(Place { arena: 0, offset: 0 }),
            Home::Private | Home::Npu { .. } => None,
        }
    }
}

/// The arenas of the peers that this rank has mapped.
pub(crate) struct Memories {
    group: Arc<Group>,
    /// Per rank, in the order of first use.
    mapped: Vec<Vec<(u32, Arc<SharedMemory>)>>,
}

impl Memories {
    pub(crate) fn new(group: Arc<Group>) -> Memories {
        let mapped = (0..group.size).map(|_| Vec::new()).collect();
        Memories { group, mapped }
    }

    /// The address of `bytes` bytes of `rank`.
    ///
    /// # Errors
    /// When the place lies outside the arena, or the arena cannot be mapped.
    pub(crate) fn resolve(&mut self, rank: usize, place: Place, bytes: usize) -> Result<*mut u8> {
        if self.group.threads {
            return Ok(place.offset as *mut u8);
        }
        if bytes == 0 {
            return Ok(Memory::NONE.ptr);
        }
        let memory = self.arena(rank, place.arena)?;
        let end = usize::try_from(place.offset).ok().and_then(|offset| offset.checked_add(bytes));
        if end.is_none_or(|end| end > memory.bytes()) {
            let problem = format!("rank {rank} named memory outside its arena {}", place.arena);
            return Err(Error::new(ErrorKind::Rendezvous { problem }));
        }
        Ok(memory.ptr().as_ptr().wrapping_add(place.offset as usize))
    }

    fn arena(&mut self, rank: usize, arena: u32) -> Result<&SharedMemory> {
        let found = self.mapped[rank].iter().position(|(index, _)| *index == arena);
        let index = match found {
            Some(index) => index,
            None => {
                let memory = self.map(rank, arena)?;
                self.mapped[rank].push((arena, memory));
                self.mapped[rank].len() - 1
            }
        };
        Ok(&self.mapped[rank][index].1)
    }

    #[cfg(all(target_os = "linux", not(hccl_portable)))]
    #[cold]
    fn map(&self, rank: usize, arena: u32) -> Result<Arc<SharedMemory>> {
        if rank == self.group.rank {
            let own = crate::backend::cpu::heap::arena(arena);
            return own.ok_or_else(|| Error::invalid(format!("this process has no arena {arena}")));
        }
        self.fetch(rank, arena)
    }

    /// Asks `rank` for an arena until it answers, is lost, or the deadline has passed.
    #[cfg(all(target_os = "linux", not(hccl_portable)))]
    fn fetch(&self, rank: usize, arena: u32) -> Result<Arc<SharedMemory>> {
        use crate::backend::cpu::handover::{Answer, ask_for_arena};
        use crate::error::Loss;
        use std::time::{Duration, Instant};

        let (group, start) = (&*self.group, Instant::now());
        let mut patience = Duration::from_millis(250);
        loop {
            let left = group.deadline().saturating_sub(start.elapsed()).max(Duration::from_millis(1));
            match ask_for_arena(group.process(rank), arena, patience.min(left))? {
                Answer::Here(memory) => return Ok(Arc::new(memory)),
                Answer::NotHere => {
                    let problem = format!("rank {rank} named arena {arena}, which it does not have");
                    return Err(Error::new(ErrorKind::Rendezvous { problem }));
                }
                Answer::Gone => {
                    let how = group.lost(rank).unwrap_or(Loss::Died);
                    return Err(Error::new(ErrorKind::PeerLost { peer: rank, how }));
                }
                Answer::Late => {}
            }
            let lost = || group.lost(rank).map(|how| Error::new(ErrorKind::PeerLost { peer: rank, how }));
            if let Some(cause) = group.cause().or_else(lost) {
                return Err(cause);
            }
            if start.elapsed() >= group.deadline() {
                return Err(Error::new(ErrorKind::Timeout { late: vec![rank], after: start.elapsed() }));
            }
            patience = (2 * patience).min(Duration::from_secs(1));
        }
    }

    #[cfg(not(all(target_os = "linux", not(hccl_portable))))]
    fn map(&self, _rank: usize, arena: u32) -> Result<Arc<SharedMemory>> {
        let own = crate::backend::cpu::heap::arena(arena);
        own.ok_or_else(|| Error::invalid(format!("this process has no arena {arena}")))
    }
}
