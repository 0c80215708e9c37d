//! Placeholder

pub mod sampler;
