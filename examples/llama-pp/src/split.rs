//! Which layers each rank of a pipeline gets.

use std::ops::Range;

use crate::config::Config;
use crate::failure::{Failure, Result};

/// Weights that the pass through one layer reads, and through the head.
pub(crate) fn costs(config: &Config) -> (u64, u64) {
    let (hidden, dim) = (config.hidden as u64, config.head_dim as u64);
    let attention = hidden * dim * 2 * (config.heads + config.kv_heads) as u64;
    let feed_forward = 3 * hidden * config.intermediate as u64;
    (attention + feed_forward, hidden * config.vocab as u64)
}

/// Contiguous layers for each of `ranks` ranks, such that the slowest is as fast as can be. The time of a stage is
/// taken to be that of reading its weights, and the last rank has the head too; a row of the embedding costs nothing.
///
/// # Errors
/// [`Failure::Usage`] when there are more ranks than layers.
pub(crate) fn layers(config: &Config, ranks: usize) -> Result<Vec<Range<usize>>> {
    if ranks > config.layers {
        let problem = format!(
            "--ranks {ranks}: the model has {} layers, and each rank of a pipeline needs one (hint: at most --ranks {})",
            config.layers, config.layers
        );
        return Err(Failure::Usage(problem));
    }
    let (layer, head) = costs(config);
    let others = ranks - 1;
    let slowest = |last: usize| {
        let most = if others == 0 { 0 } else { (config.layers - last).div_ceil(others) };
        (most as u64 * layer).max(last as u64 * layer + head)
    };
    let choices = if others == 0 { config.layers..=config.layers } else { 1..=config.layers - others };
    let last = choices.min_by_key(|last| slowest(*last)).unwrap_or(config.layers);
    let rest = config.layers - last;
    let mut start = 0;
    let mut ranges = Vec::with_capacity(ranks);
    for rank in 0..others {
        let count = rest / others + usize::from(rank < rest % others);
        ranges.push(start..start + count);
        start += count;
    }
    ranges.push(start..config.layers);
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::RandomConfig;

    #[test]
    fn every_layer_belongs_to_one_rank_and_no_rank_is_empty() {
        for layers_of in 1..12 {
            let config = Config { layers: layers_of, ..Config::random(RandomConfig::Tiny) };
            for ranks in 1..=layers_of {
                let ranges = layers(&config, ranks).unwrap();
                assert!(ranges.len() == ranks && ranges.iter().all(|range| !range.is_empty()), "{ranges:?}");
                assert_eq!(ranges.into_iter().flatten().collect::<Vec<_>>(), (0..layers_of).collect::<Vec<_>>());
            }
            let text = layers(&config, layers_of + 1).unwrap_err().to_string();
            assert!(text.contains(&format!("--ranks {}: the model has {layers_of} layers", layers_of + 1)), "{text}");
        }
    }

    #[test]
    fn a_large_head_counts_as_layers() {
        // SmolLM2-135M: the head reads as much as eight layers.
        let config = Config {
            hidden: 576,
            intermediate: 1536,
            layers: 30,
            heads: 9,
            kv_heads: 3,
            head_dim: 64,
            vocab: 49_152,
            ..Config::random(RandomConfig::Tiny)
        };
        assert_eq!(layers(&config, 2).unwrap(), [0..19, 19..30]);
        assert_eq!(layers(&config, 1).unwrap().first(), Some(&(0..30)));
    }
}
