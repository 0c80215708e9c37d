//! Gradients of a network like ResNet-50, in buckets: the same bits on NPUs and on the CPU engine.

use crate::support::cells::mix;
use crate::{Case, npus};
use hccl::prelude::*;
use hccl::{Builder, Result};

/// Parameters of the layers of a ResNet-50 with an eighth of the channels, in order: stem, four stages, head.
fn layers() -> Vec<usize> {
    let mut layers = vec![3 * 8 * 49, 8, 8];
    let mut input = 8;
    for (blocks, width) in [(3, 8), (4, 16), (6, 32), (3, 64)] {
        for block in 0..blocks {
            let output = 4 * width;
            layers.extend([
                input * width,
                width,
                width,
                9 * width * width,
                width,
                width,
                width * output,
                output,
                output,
            ]);
            if block == 0 {
                layers.extend([input * output, output, output]);
            }
            input = output;
        }
    }
    layers.extend([input * 1000, 1000]);
    layers
}

/// Layers from the last to the first, as a backward pass meets them, in buckets of at least `least` elements.
fn buckets(least: usize) -> Vec<usize> {
    let mut buckets = vec![0];
    for layer in layers().into_iter().rev() {
        match buckets.last_mut() {
            Some(bucket) if *bucket < least => *bucket += layer,
            _ => buckets.push(layer),
        }
    }
    buckets
}

/// A gradient of rank `rank`: numbers of very different sizes and both signs.
fn gradient(bucket: usize, len: usize, rank: usize) -> Vec<f32> {
    let number = |i: usize| {
        let bits = mix(((bucket * 31 + rank) * 1_000_003 + i) as u64);
        let size = 2_f32.powi((bits >> 40) as i32 % 24 - 20);
        ((bits >> 8) as u16 as f32 - 32_768.0) * size / 32_768.0
    };
    (0..len).map(number).collect()
}

/// All buckets averaged over the ranks, all in flight at once; the bits of rank 0, which all ranks have.
fn averaged(builder: Builder, ranks: usize) -> Vec<Vec<u32>> {
    let all = builder.local(ranks, |comm| {
        let rank = comm.rank().index();
        let start =
            |(bucket, len): (usize, usize)| Ok(comm.all_reduce_async(comm.upload(&gradient(bucket, len, rank))?, Avg)?);
        let running = buckets(60_000).into_iter().enumerate().map(start).collect::<Result<Vec<_>>>()?;
        let bits = |op: Pending<DeviceBuffer<f32>>| {
            Ok(op.wait()?.to_vec()?.into_iter().map(f32::to_bits).collect::<Vec<u32>>())
        };
        running.into_iter().map(bits).collect::<Result<Vec<_>>>()
    });
    let mut all = all.unwrap();
    assert!(all.windows(2).all(|two| two[0] == two[1]), "all ranks have the same bits");
    all.swap_remove(0)
}

#[test]
fn buckets_of_a_resnet_have_the_bits_of_the_cpu_engine() {
    Case::new(module_path!(), "buckets_of_a_resnet_have_the_bits_of_the_cpu_engine").run(|| {
        for ranks in [2, 3] {
            let cpu = averaged(Communicator::builder(), ranks);
            assert_eq!(averaged(npus(200), ranks), cpu, "{ranks} ranks");
        }
    });
}

/// The same by sums of halves, as for a wire of 16 bits.
#[test]
fn halves_have_the_bits_of_the_cpu_engine() {
    Case::new(module_path!(), "halves_have_the_bits_of_the_cpu_engine").run(|| {
        let reduced = |builder: Builder| {
            builder.local(3, |comm| {
                let own: Vec<_> =
                    gradient(7, 5003, comm.rank().index()).into_iter().map(half::bf16::from_f32).collect();
                let (mut sum, mut average) = (comm.upload(&own)?, own);
                comm.all_reduce(&mut sum, Sum)?;
                comm.all_reduce(&mut average, Avg)?;
                Ok((sum.to_vec()?, average))
            })
        };
        assert_eq!(reduced(npus(200)).unwrap(), reduced(Communicator::builder()).unwrap());
    });
}
