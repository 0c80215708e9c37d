//! Which token comes next.

use crate::weights::splitmix;

/// How tokens are chosen.
#[derive(Clone, Debug)]
pub(crate) struct Sampler {
    /// 0 takes the likeliest.
    pub(crate) temperature: f64,
    /// Only among so many.
    pub(crate) top_k: Option<usize>,
    /// Only among the likeliest that reach this together.
    pub(crate) top_p: f64,
    /// Decides what is random.
    pub(crate) seed: u64,
}

/// Highest first; equal ones in the order of their tokens.
fn order(a: &(u32, f32), b: &(u32, f32)) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// The `count` highest logits with their tokens, highest first.
pub(crate) fn best(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut all: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
    if count < all.len() {
        all.select_nth_unstable_by(count, order);
        all.truncate(count);
    }
    all.sort_unstable_by(order);
    all
}

impl Sampler {
    /// The token after these logits: the `made`-th of text `prompt`, which, with the seed, decides what is random, so
    /// that a text does not depend on what is generated beside it. `None` when logits are not numbers.
    pub(crate) fn choose(&self, logits: &[f32], prompt: usize, made: usize) -> Option<u32> {
        if logits.is_empty() || logits.iter().any(|logit| !logit.is_finite()) {
            return None;
        }
        if self.temperature == 0.0 {
            let first = |best: (u32, f32), next: (u32, f32)| if next.1 > best.1 { next } else { best };
            return (0..).zip(logits.iter().copied()).reduce(first).map(|(token, _)| token);
        }
        let all = best(logits, self.top_k.unwrap_or(logits.len()));
        let highest = f64::from(all.first()?.1);
        let weights: Vec<f64> = all.iter().map(|(_, l)| ((f64::from(*l) - highest) / self.temperature).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut kept = 0.0;
        let nucleus = weights.iter().take_while(|weight| {
            let before = kept;
            kept += **weight;
            before < self.top_p * total
        });
        let count = nucleus.count().max(1);
        let sum: f64 = weights[..count].iter().sum();
        let mut left = self.uniform(prompt, made) * sum;
        let at = weights[..count].iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        Some(all[at.unwrap_or(count - 1)].0)
    }

    /// From 0 to below 1.
    fn uniform(&self, prompt: usize, made: usize) -> f64 {
        let text = splitmix(self.seed ^ splitmix(prompt as u64));
        (splitmix(text ^ made as u64) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [0.0, 2.0, 1.0, 2.0, -3.0];

    fn sampler(temperature: f64) -> Sampler {
        Sampler { temperature, top_k: None, top_p: 1.0, seed: 5 }
    }

    fn counts(sampler: &Sampler) -> [usize; 5] {
        let mut counts = [0; 5];
        (0..4000).for_each(|made| counts[sampler.choose(&LOGITS, 1, made).unwrap() as usize] += 1);
        counts
    }

    #[test]
    fn greedy_takes_the_first_of_the_highest() {
        assert_eq!(sampler(0.0).choose(&LOGITS, 0, 0), Some(1));
        assert_eq!(best(&LOGITS, 3), [(1, 2.0), (3, 2.0), (2, 1.0)]);
        assert_eq!(best(&LOGITS, 9).len(), 5);
    }

    #[test]
    fn counts_follow_the_probabilities() {
        let counts = counts(&sampler(1.0));
        let total: f32 = LOGITS.iter().map(|l| l.exp()).sum();
        for (count, logit) in counts.iter().zip(LOGITS) {
            let expected = logit.exp() / total * 4000.0;
            assert!((*count as f32 - expected).abs() < 5.0 * expected.sqrt() + 3.0, "{counts:?}");
        }
    }

    #[test]
    fn top_k_and_top_p_leave_the_unlikely_out() {
        let two = counts(&Sampler { top_k: Some(2), ..sampler(1.0) });
        assert!(two[1] > 1500 && two[3] > 1500 && two[0] + two[2] + two[4] == 0, "{two:?}");
        let nucleus = counts(&Sampler { top_p: 0.5, ..sampler(1.0) });
        assert!(nucleus[0] + nucleus[2] + nucleus[4] == 0 && nucleus[3] > 0, "{nucleus:?}");
        let one = counts(&Sampler { top_p: 1e-9, ..sampler(5.0) });
        assert_eq!(one[1], 4000);
    }

    #[test]
    fn the_seed_decides() {
        let draw = |seed| -> Vec<u32> {
            let sampler = Sampler { seed, ..sampler(2.0) };
            (0..50).map(|made| sampler.choose(&LOGITS, 3, made).unwrap()).collect()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert_eq!(sampler(1.0).choose(&[1.0, f32::NAN], 0, 0), None);
    }
}
