//! A stage has a forward pass.
#![allow(dead_code)]
use hccl::pipeline::{Act, Dyn, StageResult};

type X = Act<f32, (Dyn,)>;

struct Own;

#[hccl::stage]
impl Own {
    fn forward(&self, x: X) -> StageResult<X> {
        Ok(x)
    }
}

fn main() {
    assert_eq!(size_of::<Own>(), 0);
}
