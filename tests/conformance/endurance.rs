//! A million calls: the same results, and not a byte, file or thread more than at the start.
#![cfg(target_os = "linux")]

use crate::support::{processes, test_name, threads, wait_until};
use hccl::Result;
use hccl::prelude::*;

/// What a process holds: resident memory in KiB, open files, threads.
#[derive(Clone, Copy, Debug)]
struct Held {
    memory: usize,
    files: usize,
    threads: usize,
}

impl Held {
    fn now() -> Held {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let number = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        let files = std::fs::read_dir("/proc/self/fd").unwrap().count();
        Held { memory: number("VmRSS:"), files, threads: number("Threads:") }
    }

    /// Checks that no more is held now than when this was taken; threads that are ending, and connections of a peer that
    /// is being handed memory, get time to end.
    fn is_flat(self, what: &str) {
        wait_until(&format!("{what}: threads and files are back to {self:?}"), || {
            let now = Held::now();
            now.threads <= self.threads && now.files <= self.files
        });
        let now = Held::now();
        // One leaked word a call would be 8 MiB, one leaked page a group much more.
        assert!(now.memory <= self.memory + 2048, "{what}: {self:?} became {now:?}");
    }
}

fn tiny_calls(comm: &Communicator, calls: u64) -> Result<()> {
    let (rank, n) = (comm.rank().index() as u64, comm.size() as u64);
    for i in 0..calls {
        let mut x = [i * n + rank];
        comm.all_reduce(&mut x, Sum)?;
        assert_eq!(x[0], i * n * n + n * (n - 1) / 2);
    }
    Ok(())
}

/// In a process of its own, so that nothing else runs in it.
#[test]
fn a_million_tiny_calls_threads() {
    let name = test_name(module_path!(), "a_million_tiny_calls_threads");
    processes(&name, 1, |_| {
        threads(2, |comm| {
            tiny_calls(comm, 2000)?;
            // One rank looks while the others wait: all are threads of one process.
            let before = (comm.rank().index() == 0).then(Held::now);
            tiny_calls(comm, 1_000_000)?;
            if let Some(before) = before {
                before.is_flat("a million calls");
            }
            comm.barrier()
        });
        Ok(())
    });
}

/// One of everything that might keep something: staged and direct, queued and detached, refused.
fn mixed_calls(comm: &Communicator, rounds: usize, device: &mut DeviceBuffer<f32>) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    let (next, last) = (comm.peer((rank + 1) % n)?, comm.peer((rank + n - 1) % n)?);
    let mut plain = vec![1_f32; 1500];
    let mut all = vec![0_f32; 3 * n];
    for round in 0..rounds {
        let root = comm.root(round % n)?;
        let queued = comm.all_reduce_async(std::mem::take(&mut plain), Avg)?;
        drop(comm.barrier_async()?);
        comm.all_reduce(device, Max)?;
        comm.broadcast(device, root)?;
        plain = queued.wait()?;
        comm.reduce(&mut plain[..1200], Min, root)?;
        comm.all_gather(&plain[..3], &mut all)?;
        comm.batch_send_recv(|batch| {
            batch.send(&plain[..700], next)?;
            batch.recv(device, last)
        })?;
        assert!(comm.all_gather(&plain[..2], &mut all).is_err_and(|error| error.is_recoverable()));
    }
    Ok(())
}

fn groups(comm: &Communicator, rounds: usize) -> Result<()> {
    let rank = comm.rank().index();
    for round in 0..rounds {
        let group = comm.split(Some((round % 2 * rank) as u64), 0)?.expect("all have a colour");
        let mut x = vec![1_u8; 5000];
        group.all_reduce(&mut x, Sum)?;
        drop(comm.upload(&[1_u64; 4000])?);
        let op = match group.all_reduce_async(x, Max) {
            Ok(op) => op,
            Err(_) if round % 3 == 2 => continue, // the other rank has aborted already
            Err(refused) => return Err(refused.into()),
        };
        match round % 3 {
            0 => drop(op),
            1 => drop(op.wait()?),
            _ => {
                group.abort_handle().abort();
                let _ = op.wait();
            }
        }
    }
    Ok(())
}

#[test]
fn a_hundred_thousand_mixed_calls_processes() {
    let name = test_name(module_path!(), "a_hundred_thousand_mixed_calls_processes");
    processes(&name, 2, |comm| {
        let mut device = comm.zeros::<f32>(700)?;
        mixed_calls(comm, 200, &mut device)?;
        groups(comm, 60)?;
        comm.barrier()?;
        let before = Held::now();
        mixed_calls(comm, 10_000, &mut device)?;
        before.is_flat("mixed calls");
        groups(comm, 600)?;
        before.is_flat("groups");
        comm.barrier()
    });
}
