//! Grouped-query attention over the keys and values that a slot has kept.

use std::cell::RefCell;
use std::sync::Mutex;

use crate::kernel::Isa;
use crate::model::rope::Angles;
use crate::pool::Pool;
use crate::step::Step;

/// Keys and values of one text in one layer: a row of all heads for each position.
#[derive(Default)]
pub(super) struct Kv {
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Kv {
    /// Forgets the text, and makes room for another one of so many values.
    pub(super) fn restart(&mut self, room: usize) {
        for rows in [&mut self.keys, &mut self.values] {
            rows.clear();
            if rows.capacity() > 2 * room {
                *rows = Vec::new();
            }
            rows.reserve_exact(room);
        }
    }
}

/// The heads of a rank.
pub(super) struct Attention {
    heads: usize,
    kv_heads: usize,
    dim: usize,
}

/// What a row attends to.
struct Row {
    slot: usize,
    /// Positions that it sees.
    len: usize,
}

thread_local! {
    static SCORES: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl Attention {
    /// `heads` query heads and `kv_heads` key and value heads of width `dim`.
    pub(super) fn new(heads: usize, kv_heads: usize, dim: usize) -> Attention {
        Attention { heads, kv_heads, dim }
    }

    /// Width of the keys of one position.
    pub(super) fn kv_width(&self) -> usize {
        self.kv_heads * self.dim
    }

    /// Turns queries and keys in `qkv`, keeps keys and values, and writes what each row has attended to.
    #[expect(clippy::too_many_arguments, reason = "a layer's whole state, borrowed apart")]
    pub(super) fn forward(
        &self,
        step: &Step,
        layer: usize,
        qkv: &mut [f32],
        angles: &Angles,
        caches: &mut [Vec<Kv>],
        out: &mut Vec<f32>,
        pool: &mut Pool,
    ) {
        let (q_width, kv_width) = (self.heads * self.dim, self.kv_width());
        let width = q_width + 2 * kv_width;
        let mut rows = Vec::with_capacity(step.rows());
        let mut all = qkv.chunks_exact_mut(width).enumerate();
        for segment in &step.segments {
            let kv = &mut caches[segment.slot][layer];
            debug_assert_eq!(kv.keys.len(), segment.start * kv_width, "slot {} lost its place", segment.slot);
            for (position, (row, values)) in (segment.start..).zip(all.by_ref().take(segment.rows)) {
                angles.turn(row, &mut values[..q_width + kv_width]);
                kv.keys.extend_from_slice(&values[q_width..][..kv_width]);
                kv.values.extend_from_slice(&values[q_width + kv_width..]);
                rows.push(Row { slot: segment.slot, len: position + 1 });
            }
        }
        out.clear();
        out.resize(rows.len() * q_width, 0.0);
        let group = q_width / self.kv_heads;
        let one = |task: usize, out: &mut [f32]| {
            let (row, head) = (task / self.kv_heads, task % self.kv_heads);
            let Row { slot, len } = rows[row];
            let queries = &qkv[row * width + head * group..][..group];
            self.attend(&caches[slot][layer], len, head, queries, out);
        };
        if pool.threads() == 1 {
            return out.chunks_exact_mut(group).enumerate().for_each(|(task, out)| one(task, out));
        }
        let parts: Vec<Mutex<&mut [f32]>> = out.chunks_exact_mut(group).map(Mutex::new).collect();
        pool.run(parts.len(), &|task| {
            // Each part is taken once: nobody else holds the lock, or has panicked with it.
            if let Ok(mut out) = parts[task].lock() {
                one(task, &mut out);
            }
        });
    }

    /// The queries of one key head over the first `len` positions.
    fn attend(&self, kv: &Kv, len: usize, head: usize, queries: &[f32], out: &mut [f32]) {
        let isa = Isa::best();
        let at = |position: usize| position * self.kv_width() + head * self.dim;
        let scale = 1.0 / (self.dim as f32).sqrt();
        SCORES.with_borrow_mut(|scores| {
            for (query, out) in queries.chunks_exact(self.dim).zip(out.chunks_exact_mut(self.dim)) {
                scores.clear();
                let mut position = 0;
                while position + 4 <= len {
                    let keys: [&[f32]; 4] = std::array::from_fn(|i| &kv.keys[at(position + i)..][..self.dim]);
                    scores.extend(isa.tile(keys, [query]).iter().map(|[score]| score * scale));
                    position += 4;
                }
                for position in position..len {
                    let [[score]] = isa.tile([&kv.keys[at(position)..][..self.dim]], [query]);
                    scores.push(score * scale);
                }
                softmax(scores);
                for (position, weight) in scores.iter().enumerate() {
                    isa.add_scaled(*weight, &kv.values[at(position)..][..self.dim], out);
                }
            }
        });
    }
}

fn softmax(scores: &mut [f32]) {
    let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        *score = (*score - highest).exp();
        sum += *score;
    }
    scores.iter_mut().for_each(|score| *score /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_keys_give_the_mean_of_the_values() {
        let attention = Attention::new(2, 1, 2);
        let kv = Kv { keys: vec![1.0; 12], values: (0..12).map(|i| i as f32).collect() };
        let mut out = [0f32; 4];
        attention.attend(&kv, 6, 0, &[0.3, 0.1, 5.0, 1.0], &mut out);
        assert!(out.iter().zip([5.0, 6.0, 5.0, 6.0]).all(|(a, b)| (a - b).abs() < 1e-5), "{out:?}");
        let mut first = [0f32; 4];
        attention.attend(&kv, 1, 0, &[0.3, 0.1, 5.0, 1.0], &mut first);
        assert_eq!(first, [0.0, 1.0, 0.0, 1.0]);
    }

    #[test]
    fn softmax_sums_to_one_and_stands_large_scores() {
        let mut scores = [1000.0, 999.0, -1000.0];
        softmax(&mut scores);
        assert!((scores.iter().sum::<f32>() - 1.0).abs() < 1e-6 && scores[0] > scores[1] && scores[2] == 0.0);
    }
}
