//! candle on hccl: layers for training on CPU.

pub mod nn;
