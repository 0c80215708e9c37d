//! Weights out of nothing: each value follows from the seed, the name of its tensor and its place, so that every rank
//! makes its own part of the same model.

use std::ops::Range;
use std::path::PathBuf;

use super::{Source, tensors};
use crate::config::Config;
use crate::failure::Result;
use crate::matrix::Dtype;

/// Random weights of a shape.
pub(crate) struct Random {
    tensors: std::collections::HashMap<String, Vec<usize>>,
    seed: u64,
}

impl Random {
    /// Weights that follow from `seed`.
    pub(crate) fn new(config: &Config, seed: u64) -> Random {
        Random { tensors: tensors(config).into_iter().collect(), seed }
    }
}

impl Source for Random {
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.tensors.get(name).cloned()
    }

    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn read(&self, name: &str, rows: Range<usize>, out: &mut Vec<f32>) -> Result<()> {
        let shape = self.tensors.get(name).map_or(&[][..], |shape| &shape[..]);
        let [_, width] = *shape else {
            // A norm: all ones leave the scale as it is.
            out.resize(out.len() + rows.len(), 1.0);
            return Ok(());
        };
        // Uniform, with the deviation that keeps the scale of what passes through.
        let scale = (3.0 / width as f32).sqrt() / 32768.0;
        let base = splitmix(self.seed ^ hash(name));
        for row in rows {
            fill(base, (row * width) as u64, scale, width, out);
        }
        Ok(())
    }

    fn path(&self) -> PathBuf {
        "random weights".into()
    }
}

/// `width` values from place `first` on, four of each random word.
fn fill(base: u64, first: u64, scale: f32, width: usize, out: &mut Vec<f32>) {
    let start = out.len();
    out.resize(start + width, 0.0);
    let row = base.wrapping_add(splitmix(first));
    for (word, values) in out[start..].chunks_mut(4).enumerate() {
        let bits = splitmix(row.wrapping_add(word as u64));
        for (place, value) in values.iter_mut().enumerate() {
            *value = f32::from((bits >> (16 * place)) as u16 as i16) * scale;
        }
    }
}

/// The mixing function of SplitMix64.
pub(crate) fn splitmix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// FNV-1a.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::RandomConfig;

    #[test]
    fn a_part_of_a_tensor_is_that_part() {
        let random = Random::new(&Config::random(RandomConfig::Tiny), 3);
        let name = "model.layers.1.mlp.down_proj.weight";
        let (mut all, mut part) = (Vec::new(), Vec::new());
        random.read(name, 0..64, &mut all).unwrap();
        random.read(name, 10..12, &mut part).unwrap();
        assert_eq!(part, all[10 * 176..12 * 176]);
        let mean = all.iter().sum::<f32>() / all.len() as f32;
        let deviation = (all.iter().map(|w| w * w).sum::<f32>() / all.len() as f32).sqrt();
        assert!(mean.abs() < 2e-3 && (deviation * 176f32.sqrt() - 1.0).abs() < 0.02, "{mean} {deviation}");
    }

    #[test]
    fn tensors_and_seeds_differ() {
        let read = |seed, name: &str| {
            let mut out = Vec::new();
            Random::new(&Config::random(RandomConfig::Tiny), seed).read(name, 0..1, &mut out).unwrap();
            out
        };
        let one = read(0, "model.layers.0.mlp.up_proj.weight");
        assert_ne!(one, read(0, "model.layers.0.mlp.gate_proj.weight"));
        assert_ne!(one, read(1, "model.layers.0.mlp.up_proj.weight"));
        assert_eq!(read(0, "model.norm.weight"), [1.0]);
    }
}
