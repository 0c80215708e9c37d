//! An order by hand comes to its end without buffers.
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
    struct Net = Front => Back;
    schedule = one_f_one_b(microbatches = 2);
    order {
        rank 0 { F0, send F0, F1, send F1, recv B0, B0, recv B1, B1 }
        rank 1 { recv F0, F0, B0, recv F1, send B0, F1, B1, send B1 }
    }
}

fn main() -> hccl::Result<()> {
    assert!(Net::plan(2)?.timeline().makespan() > 0);
    Ok(())
}
