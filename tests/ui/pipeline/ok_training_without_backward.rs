//! A stage is trained when it has a backward pass.
#![allow(dead_code)]
use hccl::pipeline::{Act, Dyn, StageResult};

type X = Act<f32, (Dyn,)>;

struct Only;

#[hccl::stage]
impl Only {
    fn forward(&self, x: X) -> StageResult<X> {
        Ok(x)
    }
}

hccl::pipeline! {
    struct Net = Only * 2;
    schedule = fill_drain(microbatches = 2);
}

fn main() -> hccl::Result<()> {
    assert!(Net::plan(2)?.timeline().makespan() > 0);
    Ok(())
}
