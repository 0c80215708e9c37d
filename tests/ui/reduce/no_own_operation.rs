//! Every backend must know the operation.
#![allow(dead_code, unused_imports)]
use hccl::prelude::*;

#[derive(Clone, Copy)]
struct AbsMax;

impl ReduceOp<f32> for AbsMax {
    const KIND: hccl::OpKind = hccl::OpKind::Max;
}

fn main() -> hccl::Result<()> {
    let _ = AbsMax;
    hccl::local(2, |comm| comm.all_reduce(&mut [-1f32].map(f32::abs), Max))?;
    Ok(())
}
