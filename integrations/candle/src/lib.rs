//! candle on hccl: layers for training on CPU.

pub mod nn;
//! Placeholder

pub mod sampler;
