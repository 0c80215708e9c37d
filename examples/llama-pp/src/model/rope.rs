//! The rotary embedding: pairs of values turned by an angle that grows with the position.

use std::f32::consts::PI;

use crate::config::{Config, RopeScaling};
use crate::step::Step;

/// Angles of one position.
pub(super) struct Rope {
    frequencies: Vec<f32>,
}

/// Cosines and sines of the rows of a step.
pub(super) struct Angles {
    half: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Rope {
    /// The frequencies of a model.
    pub(super) fn new(config: &Config) -> Rope {
        let plain =
            (0..config.head_dim).step_by(2).map(|i| 1.0 / config.rope_theta.powf(i as f32 / config.head_dim as f32));
        let frequencies = plain.enumerate().map(|(place, f)| scaled(&config.rope_scaling, place, f)).collect();
        Rope { frequencies }
    }

    /// What the rows of a step are turned by.
    pub(super) fn of(&self, step: &Step) -> Angles {
        let half = self.frequencies.len();
        let (mut cos, mut sin) = (Vec::with_capacity(step.rows() * half), Vec::with_capacity(step.rows() * half));
        for segment in &step.segments {
            for position in segment.start..segment.start + segment.rows {
                for frequency in &self.frequencies {
                    let angle = position as f32 * frequency;
                    cos.push(angle.cos());
                    sin.push(angle.sin());
                }
            }
        }
        Angles { half, cos, sin }
    }
}

fn scaled(scaling: &RopeScaling, place: usize, frequency: f32) -> f32 {
    match scaling {
        RopeScaling::None => frequency,
        RopeScaling::Linear(factor) => frequency / factor,
        RopeScaling::Factors(factors) => frequency / factors.get(place).copied().unwrap_or(1.0),
        RopeScaling::Llama3 { factor, low, high, original } => {
            let wavelength = 2.0 * PI / frequency;
            if wavelength < original / high {
                frequency
            } else if wavelength > original / low {
                frequency / factor
            } else {
                let smooth = (original / wavelength - low) / (high - low);
                (1.0 - smooth) * frequency / factor + smooth * frequency
            }
        }
    }
}

impl Angles {
    /// Turns the heads in `heads`, all of row `row`: value i with value i + half.
    pub(super) fn turn(&self, row: usize, heads: &mut [f32]) {
        let cos = &self.cos[row * self.half..][..self.half];
        let sin = &self.sin[row * self.half..][..self.half];
        for head in heads.chunks_exact_mut(2 * self.half) {
            let (first, second) = head.split_at_mut(self.half);
            for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::RandomConfig;
    use crate::step::Segment;

    #[test]
    fn a_turn_keeps_lengths_and_position_0_stands_still() {
        let rope = Rope::new(&Config { head_dim: 4, ..Config::random(RandomConfig::Tiny) });
        let segment = Segment { slot: 0, start: 0, rows: 3, room: 3, prompt: 0, made: 0, choose: true };
        let angles = rope.of(&Step { segments: vec![segment] });
        let mut head = [3.0, 1.0, 4.0, 2.0];
        angles.turn(0, &mut head);
        assert_eq!(head, [3.0, 1.0, 4.0, 2.0]);
        angles.turn(2, &mut head);
        let (cos, sin) = (2f32.cos(), 2f32.sin());
        assert!((head[0] - (3.0 * cos - 4.0 * sin)).abs() < 1e-6 && (head[2] - (4.0 * cos + 3.0 * sin)).abs() < 1e-6);
    }

    #[test]
    fn llama3_keeps_high_frequencies_and_divides_low_ones() {
        let scaling = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };
        assert_eq!(scaled(&scaling, 0, 1.0), 1.0);
        assert_eq!(scaled(&scaling, 0, 1e-5), 1e-5 / 8.0);
        let between = scaled(&scaling, 0, 2.0 * PI / 4000.0);
        assert!(between < 2.0 * PI / 4000.0 && between > 2.0 * PI / 32000.0);
    }
}
