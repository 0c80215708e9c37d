//! The stages of a model: [`Embed`], [`Blocks`] and [`Head`], plain structs with plain functions.
//!
//! ```text
//! tokens --> Embed --> Blocks (layers 0..a) --> Blocks (layers a..b) --> ... --> Head --> logits
//!                        |  each keeps its keys and values by slot                |  of the rows to choose after
//! ```
//!
//! A stage knows nothing of ranks. What a pipeline cuts is which layers a [`Blocks`] has; what tensor parallelism cuts
//! is the [`Share`] of heads and columns, and it needs sums over ranks after attention and feed-forward, for which
//! [`Blocks::forward`] calls `sum`. Activations are f32.

mod attention;
mod rope;

use std::ops::Range;
use std::sync::Arc;

use crate::config::Config;
use crate::failure::{Failure, Result};
use crate::matrix::{Dtype, Matrix, Piece};
use crate::pool::Pool;
use crate::step::Step;
use crate::weights::{self, EMBEDDING, HEAD, NORM, Source, layer};
use attention::{Attention, Kv};
use rope::Rope;

/// Adds up vectors over the ranks that share each layer.
pub(crate) type SumOverRanks<'a> = dyn FnMut(&mut [f32]) -> Result<()> + 'a;

/// The part of each layer that a rank has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Which, counted from 0.
    pub(crate) part: usize,
    /// Of so many.
    pub(crate) of: usize,
}

impl Share {
    /// All of it.
    pub(crate) const WHOLE: Share = Share { part: 0, of: 1 };

    /// This part of `count`, which divides.
    fn of(self, count: usize) -> Range<usize> {
        let each = count / self.of;
        self.part * each..(self.part + 1) * each
    }

    /// This part of `count`, which need not divide: the last parts may have less.
    pub(crate) fn at_most(self, count: usize) -> Range<usize> {
        let each = count.div_ceil(self.of);
        (self.part * each).min(count)..((self.part + 1) * each).min(count)
    }
}

/// The first stage: tokens to vectors.
pub(crate) struct Embed {
    table: Arc<Matrix>,
}

impl Embed {
    /// Reads the embedding.
    ///
    /// # Errors
    /// Those of the source.
    pub(crate) fn load(source: &dyn Source, config: &Config, dtype: Dtype) -> Result<Embed> {
        let piece = Piece { name: EMBEDDING.into(), rows: 0..config.vocab, cols: 0..config.hidden };
        Ok(Embed { table: Arc::new(Matrix::load(source, dtype, &[piece])?) })
    }

    /// Adds the vectors of `tokens`, which are below the vocabulary's size, to the end of `hidden`.
    pub(crate) fn forward(&self, tokens: &[u32], hidden: &mut Vec<f32>) {
        hidden.reserve(tokens.len() * self.table.cols());
        tokens.iter().for_each(|token| self.table.widen_row(*token as usize, hidden));
    }

    /// Bytes of weights.
    pub(crate) fn bytes(&self) -> usize {
        self.table.bytes()
    }
}

/// Some of the decoder layers.
pub(crate) struct Blocks {
    layers: Vec<Layer>,
    attention: Attention,
    rope: Rope,
    /// Of each slot, each layer.
    caches: Vec<Vec<Kv>>,
    hidden: usize,
    intermediate: usize,
    eps: f32,
    scratch: Scratch,
}

struct Layer {
    input_norm: Vec<f32>,
    /// Queries, keys and values, one below the other.
    qkv: Matrix,
    output: Matrix,
    middle_norm: Vec<f32>,
    /// Gate and up, one below the other.
    gate_up: Matrix,
    down: Matrix,
}

/// Memory that every pass uses again.
#[derive(Default)]
struct Scratch {
    normed: Vec<f32>,
    wide: Vec<f32>,
    narrow: Vec<f32>,
    out: Vec<f32>,
}

impl Blocks {
    /// Reads this share of these layers, for texts in `slots` slots.
    ///
    /// # Errors
    /// Those of the source.
    pub(crate) fn load(
        source: &dyn Source,
        config: &Config,
        dtype: Dtype,
        layers: Range<usize>,
        share: Share,
        slots: usize,
    ) -> Result<Blocks> {
        let layers: Vec<Layer> =
            layers.map(|number| Layer::load(source, config, dtype, number, share)).collect::<Result<_>>()?;
        let caches = (0..slots).map(|_| layers.iter().map(|_| Kv::default()).collect()).collect();
        let attention = Attention::new(config.heads / share.of, config.kv_heads / share.of, config.head_dim);
        Ok(Blocks {
            layers,
            attention,
            rope: Rope::new(config),
            caches,
            hidden: config.hidden,
            intermediate: config.intermediate / share.of,
            eps: config.eps,
            scratch: Scratch::default(),
        })
    }

    /// Passes `hidden`, a vector for each row of the step, through the layers, in place.
    ///
    /// # Errors
    /// Those of `sum`.
    pub(crate) fn forward(
        &mut self,
        step: &Step,
        hidden: &mut [f32],
        pool: &mut Pool,
        sum: &mut SumOverRanks<'_>,
    ) -> Result<()> {
        let rows = step.rows();
        debug_assert_eq!(hidden.len(), rows * self.hidden);
        let rope = self.rope.of(step);
        for segment in step.segments.iter().filter(|segment| segment.start == 0) {
            let room = segment.room * self.attention.kv_width();
            self.caches[segment.slot].iter_mut().for_each(|kv| kv.restart(room));
        }
        let Scratch { normed, wide, narrow, out } = &mut self.scratch;
        for (number, layer) in self.layers.iter().enumerate() {
            rms_norm(hidden, &layer.input_norm, self.eps, normed);
            layer.qkv.product(0..layer.qkv.rows(), normed, rows, wide, pool);
            self.attention.forward(step, number, wide, &rope, &mut self.caches, narrow, pool);
            layer.output.product(0..self.hidden, narrow, rows, out, pool);
            sum(out)?;
            add(hidden, out);
            rms_norm(hidden, &layer.middle_norm, self.eps, normed);
            layer.gate_up.product(0..layer.gate_up.rows(), normed, rows, wide, pool);
            gate(wide, self.intermediate, narrow);
            layer.down.product(0..self.hidden, narrow, rows, out, pool);
            sum(out)?;
            add(hidden, out);
        }
        Ok(())
    }

    /// Bytes of weights.
    pub(crate) fn bytes(&self) -> usize {
        let of = |l: &Layer| l.qkv.bytes() + l.output.bytes() + l.gate_up.bytes() + l.down.bytes() + 8 * self.hidden;
        self.layers.iter().map(of).sum()
    }
}

impl Layer {
    fn load(source: &dyn Source, config: &Config, dtype: Dtype, number: usize, share: Share) -> Result<Layer> {
        let (hidden, dim) = (config.hidden, config.head_dim);
        let scaled = |range: Range<usize>| range.start * dim..range.end * dim;
        let q = scaled(share.of(config.heads));
        let kv = scaled(share.of(config.kv_heads));
        let middle = share.of(config.intermediate);
        let piece = |name: &str, rows: &Range<usize>, cols: &Range<usize>| Piece {
            name: layer(number, name),
            rows: rows.clone(),
            cols: cols.clone(),
        };
        let all = 0..hidden;
        let load = |pieces: &[Piece]| Matrix::load(source, dtype, pieces);
        Ok(Layer {
            input_norm: weights::vector(source, &layer(number, "input_layernorm"))?,
            qkv: load(&[
                piece("self_attn.q_proj", &q, &all),
                piece("self_attn.k_proj", &kv, &all),
                piece("self_attn.v_proj", &kv, &all),
            ])?,
            output: load(&[piece("self_attn.o_proj", &all, &q)])?,
            middle_norm: weights::vector(source, &layer(number, "post_attention_layernorm"))?,
            gate_up: load(&[piece("mlp.gate_proj", &middle, &all), piece("mlp.up_proj", &middle, &all)])?,
            down: load(&[piece("mlp.down_proj", &all, &middle)])?,
        })
    }
}

/// The last stage: vectors to logits, of this share of the vocabulary.
pub(crate) struct Head {
    norm: Vec<f32>,
    table: Arc<Matrix>,
    /// Rows of `table` that are this share.
    rows: Range<usize>,
    eps: f32,
}

impl Head {
    /// Reads the head, or shares the memory of `embed` where the model does.
    ///
    /// # Errors
    /// Those of the source.
    pub(crate) fn load(
        source: &dyn Source,
        config: &Config,
        dtype: Dtype,
        share: Share,
        embed: Option<&Embed>,
    ) -> Result<Head> {
        let mine = share.at_most(config.vocab);
        let norm = weights::vector(source, NORM)?;
        let (table, rows) = match embed.filter(|_| config.tied) {
            Some(embed) => (Arc::clone(&embed.table), mine),
            None => {
                let name = if config.tied { EMBEDDING } else { HEAD };
                let piece = Piece { name: name.into(), rows: mine.clone(), cols: 0..config.hidden };
                (Arc::new(Matrix::load(source, dtype, &[piece])?), 0..mine.len())
            }
        };
        Ok(Head { norm, table, rows, eps: config.eps })
    }

    /// Writes the logits after the last row of each segment that asks for a choice, one after the other.
    pub(crate) fn forward(&self, step: &Step, hidden: &[f32], pool: &mut Pool, logits: &mut Vec<f32>) {
        let width = self.table.cols();
        let mut last = Vec::new();
        let mut row = 0;
        for segment in &step.segments {
            row += segment.rows;
            if segment.choose {
                last.extend_from_slice(&hidden[(row - 1) * width..row * width]);
            }
        }
        let mut normed = Vec::new();
        rms_norm(&last, &self.norm, self.eps, &mut normed);
        match last.len() / width {
            0 => logits.clear(),
            rows => self.table.product(self.rows.clone(), &normed, rows, logits, pool),
        }
    }

    /// How many logits of each row this share has.
    pub(crate) fn width(&self) -> usize {
        self.rows.len()
    }

    /// Bytes of weights that are not the embedding's too.
    pub(crate) fn bytes(&self, embed: Option<&Embed>) -> usize {
        let shared = embed.is_some_and(|embed| Arc::ptr_eq(&embed.table, &self.table));
        if shared { 0 } else { self.table.bytes() }
    }
}

/// Each row scaled to a mean square of 1, then by `weight`.
fn rms_norm(rows: &[f32], weight: &[f32], eps: f32, out: &mut Vec<f32>) {
    out.clear();
    for row in rows.chunks_exact(weight.len()) {
        let square = row.iter().map(|x| x * x).sum::<f32>() / weight.len() as f32;
        let scale = 1.0 / (square + eps).sqrt();
        out.extend(row.iter().zip(weight).map(|(x, w)| x * scale * w));
    }
}

fn add(sum: &mut [f32], more: &[f32]) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}

/// silu(gate) * up, of rows that hold both.
fn gate(rows: &[f32], width: usize, out: &mut Vec<f32>) {
    out.clear();
    for row in rows.chunks_exact(2 * width) {
        let (gate, up) = row.split_at(width);
        out.extend(gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u));
    }
}

/// Checks that each rank of `ranks` can have a share of each layer.
///
/// # Errors
/// [`Failure::Usage`] naming what does not divide.
pub(crate) fn check_share(config: &Config, ranks: usize) -> Result<()> {
    let Config { heads, kv_heads, intermediate, .. } = *config;
    if !heads.is_multiple_of(ranks) || !kv_heads.is_multiple_of(ranks) {
        let fitting: Vec<String> = (1..=kv_heads)
            .filter(|n| heads.is_multiple_of(*n) && kv_heads.is_multiple_of(*n) && intermediate.is_multiple_of(*n))
            .map(|n| n.to_string())
            .collect();
        let problem = format!(
            "--parallel tp: {heads} heads and {kv_heads} kv heads do not divide over {ranks} ranks (hint: --ranks {}, \
             or --parallel pp)",
            fitting.join(" or ")
        );
        return Err(Failure::Usage(problem));
    }
    if !intermediate.is_multiple_of(ranks) {
        let problem = format!("--parallel tp: feed-forward width {intermediate} does not divide over {ranks} ranks");
        return Err(Failure::Usage(problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::RandomConfig;

    #[test]
    fn shares_that_do_not_divide_are_refused_with_all_numbers() {
        let config = Config { heads: 9, kv_heads: 3, intermediate: 1536, ..Config::random(RandomConfig::Tiny) };
        assert!(check_share(&config, 3).is_ok());
        let text = check_share(&config, 2).unwrap_err().to_string();
        assert!(text.contains("9 heads and 3 kv heads do not divide over 2 ranks"), "{text}");
        assert!(text.contains("--ranks 1 or 3"), "{text}");
    }

    #[test]
    fn shares_of_a_vocabulary_cover_it() {
        for (count, of) in [(512, 3), (7, 4), (5, 4), (2, 3)] {
            let all: Vec<usize> = (0..of).flat_map(|part| Share { part, of }.at_most(count)).collect();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_norm_has_mean_square_one() {
        let mut out = Vec::new();
        rms_norm(&[3.0, -4.0, 0.0, 0.5], &[1.0, 2.0], 0.0, &mut out);
        let scale = 1.0 / 12.5f32.sqrt();
        assert_eq!(out[..2], [3.0 * scale, -4.0 * scale * 2.0]);
    }
}
