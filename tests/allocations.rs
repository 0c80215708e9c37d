//! In the steady state a blocking call allocates nothing: not in the typed layer, not in the engine.
#![expect(unsafe_code, reason = "an allocator that counts")]

use hccl::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations of all ranks in ten runs of `work`, after two that may make what is kept.
fn allocations(comm: &Communicator, mut work: impl FnMut() -> hccl::Result<()>) -> hccl::Result<u64> {
    for _ in 0..2 {
        work()?;
    }
    comm.barrier()?;
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    comm.barrier()?;
    for _ in 0..10 {
        work()?;
    }
    comm.barrier()?;
    let after = ALLOCATIONS.load(Ordering::SeqCst);
    // Nobody goes on, and allocates, before all have looked.
    comm.barrier()?;
    Ok(after - before)
}

#[test]
fn blocking_calls_allocate_nothing() {
    hccl::local(2, |comm| {
        let (me, root) = (comm.rank().index(), comm.root(1)?);
        let peer = comm.peer(1 - me)?;
        for len in [2, 900, 40_000, 300_000] {
            let (mut a, mut b) = (comm.zeros::<f32>(len)?, comm.zeros::<f32>(2 * len)?);
            let (mut c, mut d) = (vec![me as f32; len], vec![0f32; 2 * len]);
            let count = allocations(&comm, || {
                comm.all_reduce(&mut a, Sum)?;
                comm.all_reduce(&mut c, Avg)?;
                comm.all_gather(&a, &mut b)?;
                comm.reduce_scatter(&d, &mut a, Max)?;
                comm.all_to_all(&d, &mut b)?;
                comm.broadcast(&mut d, root)?;
                comm.reduce(&mut c, Min, root)?;
                comm.gather(&c, Some(&mut d), root)?;
                comm.scatter(Some(&d), &mut c, root)?;
                if me == 0 {
                    comm.send(&b, peer)?
                } else {
                    comm.recv(&mut b, peer)?
                }
                comm.all_reduce_fused(&mut [&mut c, &mut d], Sum)?;
                comm.barrier()
            })?;
            assert_eq!(count, 0, "{len} elements");
        }
        Ok(())
    })
    .unwrap();
}
