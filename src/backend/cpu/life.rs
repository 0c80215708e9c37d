//! Who is alive.
//!
//! A rank that is a process has a word in the control segment that the kernel marks when the process ends, however it
//! ends and however much memory it holds (a robust futex; a closed socket is seen only after the memory is freed). So a
//! look at a peer's life is one load. Ranks that are threads cannot die without unwinding: they say so themselves.

#[cfg(all(target_os = "linux", not(hccl_portable)))]
use crate::backend::cpu::segment::Segment;
#[cfg(all(target_os = "linux", not(hccl_portable)))]
use std::sync::Arc;

/// The life words of a group's ranks; they stand in the segment of the world that the group was made from.
#[derive(Clone)]
pub(crate) enum Lives {
    /// Threads of this process.
    Threads,
    /// Processes.
    #[cfg(all(target_os = "linux", not(hccl_portable)))]
    Processes {
        /// The world's segment.
        world: Arc<Segment>,
        /// World rank of each rank of the group.
        ranks: Arc<[usize]>,
        /// Keeps this process's own word under the kernel's watch.
        own: Arc<processes::Watched>,
    },
}

impl Lives {
    /// True when the process of `rank` has ended.
    #[inline]
    pub(crate) fn died(&self, rank: usize) -> bool {
        match self {
            Lives::Threads => {
                let _ = rank;
                false
            }
            #[cfg(all(target_os = "linux", not(hccl_portable)))]
            Lives::Processes { world, ranks, .. } => {
                let word = world.cell(ranks[rank]).life.0.word.load(std::sync::atomic::Ordering::Acquire);
                word & rustix::thread::futex::OWNER_DIED != 0
            }
        }
    }

    /// The process of `rank`; of threads, none.
    #[cfg(all(target_os = "linux", not(hccl_portable)))]
    pub(crate) fn process(&self, rank: usize) -> crate::backend::cpu::group::ProcessId {
        use std::sync::atomic::Ordering;
        let (pid, nonce) = match self {
            Lives::Threads => (0, 0),
            Lives::Processes { world, ranks, .. } => {
                let life = &world.cell(ranks[rank]).life.0;
                (life.pid.load(Ordering::Acquire), life.nonce.load(Ordering::Acquire))
            }
        };
        crate::backend::cpu::group::ProcessId { pid, nonce }
    }

    /// The lives of a group made of `members` of this one.
    pub(crate) fn of(&self, members: &[usize]) -> Lives {
        match self {
            Lives::Threads => {
                let _ = members;
                Lives::Threads
            }
            #[cfg(all(target_os = "linux", not(hccl_portable)))]
            Lives::Processes { world, ranks, own } => Lives::Processes {
                world: world.clone(),
                ranks: members.iter().map(|m| ranks[*m]).collect(),
                own: own.clone(),
            },
        }
    }
}

#[cfg(all(target_os = "linux", not(hccl_portable)))]
pub(crate) mod processes {
    use super::{Arc, Segment};
    use crate::backend::cpu::group::ProcessId;
    use crate::error::Result;
    use crate::sys::keeper;
    use std::sync::atomic::Ordering;

    /// This process's word in the world's segment, under the kernel's watch until drop.
    pub(crate) struct Watched {
        world: Arc<Segment>,
        rank: usize,
    }

    impl Watched {
        /// Puts the word of `rank` under watch, and says which process it is.
        pub(crate) fn start(world: Arc<Segment>, rank: usize, process: ProcessId) -> Result<Arc<Watched>> {
            let watched = Watched { world, rank };
            let life = &watched.world.cell(rank).life.0;
            life.pid.store(process.pid, Ordering::Release);
            life.nonce.store(process.nonce, Ordering::Release);
            keeper::watch(&life.next, &life.word)?;
            Ok(Arc::new(watched))
        }
    }

    impl Drop for Watched {
        fn drop(&mut self) {
            keeper::unwatch(&self.world.cell(self.rank).life.0.next);
        }
    }
}
