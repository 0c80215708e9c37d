//! A stage stands once in a pipeline, or under two names.
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
    struct Net = Lower: Front => Upper: Front;
    schedule = gpipe(microbatches = 2);
}

fn main() -> hccl::Result<()> {
    assert!(Net::plan(2)?.timeline().makespan() > 0);
    Ok(())
}
