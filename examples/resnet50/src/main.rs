//! Data-parallel ResNet-50 on real images.
#![allow(dead_code)]

pub mod data;
pub mod plot;
pub mod report;

fn main() {}
