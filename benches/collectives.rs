//! All-reduce and barrier over two threads, on buffers of the shared heap. `cargo bench -p hccl`.
#![allow(missing_docs, reason = "criterion's macros make public items")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use hccl::prelude::*;
use std::time::{Duration, Instant};

/// Time of `iterations` calls of `op` on two ranks, the longer of the two.
fn timed(
    iterations: u64,
    len: usize,
    op: impl Fn(&Communicator, &mut DeviceBuffer<f32>) -> hccl::Result<()> + Sync,
) -> Duration {
    let times = hccl::local(2, |comm| {
        let mut buf = comm.zeros::<f32>(len)?;
        for _ in 0..3 {
            op(&comm, &mut buf)?;
        }
        comm.barrier()?;
        let start = Instant::now();
        for _ in 0..iterations {
            op(&comm, &mut buf)?;
        }
        Ok(start.elapsed())
    });
    times.expect("two threads").into_iter().max().unwrap_or_default()
}

fn all_reduce(c: &mut Criterion) {
    let mut group = c.benchmark_group("all_reduce/f32/2 threads");
    for bytes in [8, 1 << 10, 16 << 10, 256 << 10, 1 << 20, 16 << 20] {
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_with_input(BenchmarkId::from_parameter(bytes), &bytes, |b, &bytes| {
            b.iter_custom(|n| timed(n, bytes / 4, |comm, buf| comm.all_reduce(buf, Sum)));
        });
    }
    group.finish();
    c.bench_function("barrier/2 threads", |b| b.iter_custom(|n| timed(n, 0, |comm, _| comm.barrier())));
}

criterion_group!(benches, all_reduce);
criterion_main!(benches);
