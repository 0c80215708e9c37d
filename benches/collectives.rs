//! All-reduce and barrier over two threads, on buffers of the shared heap, and the gradients of a model one by one and
//! fused. `cargo bench -p hccl`.
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

/// Elements of the 161 gradients of a ResNet-50.
fn resnet50() -> Vec<usize> {
    let mut tensors = vec![64 * 3 * 49, 64, 64];
    let mut width = 64;
    for (stage, blocks) in [3, 4, 6, 3].into_iter().enumerate() {
        let planes = 64 << stage;
        for block in 0..blocks {
            let out = 4 * planes;
            tensors.extend([
                width * planes,
                planes,
                planes,
                planes * planes * 9,
                planes,
                planes,
                planes * out,
                out,
                out,
            ]);
            if block == 0 {
                tensors.extend([width * out, out, out]);
            }
            width = out;
        }
    }
    tensors.extend([2048 * 1000, 1000]);
    tensors
}

/// One step's gradients, in plain memory: one by one, and as fused calls.
fn gradients(c: &mut Criterion) {
    let lengths = resnet50();
    assert_eq!(lengths.len(), 161);
    let mut group = c.benchmark_group("gradients/resnet50/2 threads");
    group.sample_size(10);
    for (name, fused, most) in [
        ("all, one by one", false, usize::MAX),
        ("all, fused", true, usize::MAX),
        ("norms, one by one", false, 4096),
        ("norms, fused", true, 4096),
    ] {
        group.bench_function(name, |b| {
            b.iter_custom(|n| {
                let times = hccl::local(2, |comm| {
                    let chosen = lengths.iter().filter(|len| **len <= most);
                    let mut tensors: Vec<Vec<f32>> = chosen.map(|len| vec![1e-30; *len]).collect();
                    let mut step = || match fused {
                        true => comm.all_reduce_fused(&mut tensors.iter_mut().collect::<Vec<_>>(), Avg),
                        false => tensors.iter_mut().try_for_each(|tensor| comm.all_reduce(tensor, Avg)),
                    };
                    step()?;
                    comm.barrier()?;
                    let start = Instant::now();
                    for _ in 0..n {
                        step()?;
                    }
                    Ok(start.elapsed())
                });
                times.expect("two threads").into_iter().max().unwrap_or_default()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, all_reduce, gradients);
criterion_main!(benches);
