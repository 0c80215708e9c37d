//! Interleaving takes a multiple of the ranks in microbatches.
#![allow(dead_code)]
use hccl::pipeline::{Act, Dyn, StageResult};

type X = Act<u32, (Dyn,)>;

struct Front;
struct Back;

#[hccl::stage]
impl Front {
    fn forward(&self, x: X) -> StageResult<(X, ())> {
        Ok((x, ()))
    }

    fn backward(&self, (): (), grad: hccl::pipeline::NoGrad) -> StageResult<hccl::pipeline::NoGrad> {
        Ok(grad)
    }
}

#[hccl::stage]
impl Back {
    fn forward(&self, x: X) -> StageResult<(X, ())> {
        Ok((x, ()))
    }

    fn backward(&self, (): (), grad: hccl::pipeline::NoGrad) -> StageResult<hccl::pipeline::NoGrad> {
        Ok(grad)
    }
}

hccl::pipeline! {
    struct Net = Front * 4 => Back * 4;
    schedule = interleaved(2, microbatches = 8);
}

fn main() -> hccl::Result<()> {
    assert!(Net::plan(2)?.timeline().makespan() > 0);
    Ok(())
}
