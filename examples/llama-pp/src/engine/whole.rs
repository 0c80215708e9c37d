//! Each rank goes through all layers, with all heads or, tensor-parallel, with its share of them.
//!
//! ```text
//! rank 0   step --+- q k v  attend  o --+--> sum --+- gate up  down --+--> sum --> ... --> logits 0..a --+--> token
//! rank 1          +- q k v  attend  o --+--> sum --+- gate up  down --+--> sum --> ... --> logits a..b --+
//! ```
//!
//! Two all-reduces a layer. The embedding is on every rank, the head is split by vocabulary, and rank 0 gathers the
//! logits and chooses; the token reaches the others with the next step.

use hccl::{Communicator, Sum};

use super::{Part, Ranks};
use crate::failure::Result;
use crate::generate::{Driver, Limits, Listener, Request};
use crate::job::Job;
use crate::step::Step;

/// See the module.
pub(super) struct Whole<'a> {
    part: Part,
    comm: &'a Communicator,
    /// Most segments of a step.
    segments: usize,
    vocab: usize,
    /// Of this rank, and of all.
    logits: (Vec<f32>, Vec<f32>),
}

impl<'a> Whole<'a> {
    pub(super) fn new(part: Part, comm: &'a Communicator, job: &Job) -> Self {
        Whole { part, comm, segments: job.slots, vocab: job.config.vocab, logits: Default::default() }
    }

    fn is_alone(&self) -> bool {
        self.comm.size() == 1
    }

    /// Tells the other ranks of a step; one without segments says that there is no more.
    fn announce(&self, step: &Step, tokens: &[u32]) -> Result<()> {
        if self.is_alone() {
            return Ok(());
        }
        let root = self.comm.root(0)?;
        let mut words = step.encode();
        words.resize(Step::words(self.segments), 0);
        self.comm.broadcast(&mut words, root)?;
        if !tokens.is_empty() {
            self.comm.broadcast(&mut tokens.to_vec(), root)?;
        }
        Ok(())
    }

    /// Computes all logits of the step, on rank 0; part of them elsewhere.
    fn pass(&mut self, step: &Step, tokens: &[u32]) -> Result<()> {
        let mut hidden = Vec::new();
        self.part.embed(tokens, &mut hidden)?;
        let comm = self.comm;
        match self.is_alone() {
            true => self.part.blocks(step, &mut hidden, &mut |_| Ok(()))?,
            false => self.part.blocks(step, &mut hidden, &mut |part| Ok(comm.all_reduce(part, Sum)?))?,
        }
        self.part.logits(step, &hidden, &mut self.logits.0)?;
        if self.is_alone() { Ok(()) } else { self.gather(step) }
    }

    fn gather(&mut self, step: &Step) -> Result<()> {
        let rows = step.segments.iter().filter(|segment| segment.choose).count();
        let (mine, logits) = (&self.logits.0, &mut self.logits.1);
        logits.clear();
        if rows == 0 {
            return Ok(());
        }
        // The last ranks may have fewer tokens: all send as many.
        let (ranks, width) = (self.comm.size(), self.vocab.div_ceil(self.comm.size()));
        let mut padded = vec![f32::NEG_INFINITY; rows * width];
        if self.part.width() > 0 {
            for (row, logits) in padded.chunks_exact_mut(width).zip(mine.chunks_exact(self.part.width())) {
                row[..logits.len()].copy_from_slice(logits);
            }
        }
        let root = self.comm.root(0)?;
        let mut all = vec![0f32; if self.comm.is_root(root) { ranks * rows * width } else { 0 }];
        self.comm.gather(&padded, self.comm.is_root(root).then_some(&mut all), root)?;
        logits.reserve(if all.is_empty() { 0 } else { rows * self.vocab });
        for row in 0..if all.is_empty() { 0 } else { rows } {
            let of_rank =
                |rank: usize| &all[(rank * rows + row) * width..][..width.min(self.vocab.saturating_sub(rank * width))];
            (0..ranks).for_each(|rank| logits.extend_from_slice(of_rank(rank)));
        }
        Ok(())
    }
}

impl Ranks for Whole<'_> {
    fn generate(&mut self, requests: &[Request], limits: Limits<'_>, listener: &mut dyn Listener) -> Result<()> {
        let mut driver = Driver::new(requests, limits, 1, listener);
        while let Some((step, tokens)) = driver.next(0)? {
            self.announce(&step, &tokens)?;
            self.pass(&step, &tokens)?;
            let logits = if self.is_alone() { &self.logits.0 } else { &self.logits.1 };
            driver.apply(0, &self.part.choose(&step, logits)?)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.announce(&Step::default(), &[])
    }

    fn serve(&mut self) -> Result<()> {
        loop {
            let mut words = vec![0u32; Step::words(self.segments)];
            self.comm.broadcast(&mut words, self.comm.root(0)?)?;
            let (step, _) = Step::decode(&words);
            if step.segments.is_empty() {
                return Ok(());
            }
            let mut tokens = vec![0u32; step.rows()];
            self.comm.broadcast(&mut tokens, self.comm.root(0)?)?;
            self.pass(&step, &tokens)?;
        }
    }

    fn bytes(&self) -> usize {
        self.part.bytes()
    }
}
