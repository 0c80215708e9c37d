//! The test: each image once, over all ranks.

use candle_core::D;
use hccl::{Communicator, Sum};
use hccl_candle::nn::SegmentedModel;
use hccl_candle::sampler::Sampler;

use crate::data::Normalizer;
use crate::failure::Result;
use crate::job::Job;
use crate::model::ResNet50;

/// Test images whose class was found, and all test images. Collective; BatchNorm uses its running statistics.
///
/// # Errors
/// An image that cannot be read, those of candle, a lost peer.
pub(crate) fn run(job: &Job, comm: &Communicator, model: &ResNet50, normalizer: &Normalizer) -> Result<(usize, usize)> {
    let rank = comm.rank().index();
    let mut sampler = Sampler::evaluation(job.test_samples, rank, comm.size(), job.args.batch())?;
    let mut counts = [0u64; 2];
    for batch in sampler.epoch_batches().filter(|batch| !batch.indices.is_empty()) {
        let (images, labels) = job.data.test.batch(&batch.indices, normalizer, job.args.dtype())?;
        let found = model.forward_all(&images, false)?.detach().argmax(D::Minus1)?;
        let right = found.eq(&labels)?.to_vec1::<u8>()?;
        counts[0] += right.iter().map(|&right| u64::from(right)).sum::<u64>();
        counts[1] += right.len() as u64;
    }
    comm.all_reduce(&mut counts, Sum)?;
    Ok((counts[0] as usize, counts[1] as usize))
}
