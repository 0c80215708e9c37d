//! Only the library knows which bytes every backend understands.
#![allow(dead_code, unused_imports)]
use hccl::prelude::*;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Meters(f32);

impl Element for Meters {
    const DTYPE: hccl::DType = hccl::DType::F32;
}

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let mut way = [Meters(1.5)].map(|m| m.0);
        comm.all_reduce(&mut way, Sum)
    })?;
    Ok(())
}
