//! One rank's part of a model, and how the ranks compute steps together.
//!
//! Rank 0 decides what is computed next and tells the others, who [serve](Ranks::serve).

mod whole;

use hccl::Communicator;

use crate::cli::{Fail, Parallel};
use crate::failure::{Failure, Result};
use crate::generate::{Limits, Listener, Request};
use crate::job::Job;
use crate::model::{Blocks, Embed, Head, Share, SumOverRanks};
use crate::pool::Pool;
use crate::ring::Ring;
use crate::sample::{self, Sampler};
use crate::step::{Segment, Step};
use whole::Whole;

/// A token chosen after a segment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Choice {
    /// The token.
    pub(crate) token: u32,
    /// The highest logits, of the first generated position and if asked for.
    pub(crate) best: Vec<(u32, f32)>,
}

/// All ranks, as one of them sees them.
pub(crate) trait Ranks {
    /// Generates all texts. Rank 0 calls it, as often as it likes, while the others serve.
    ///
    /// # Errors
    /// Those of this rank's stage, of the other ranks and of the listener.
    fn generate(&mut self, requests: &[Request], limits: Limits<'_>, listener: &mut dyn Listener) -> Result<()>;

    /// Rank 0 lets the other ranks go.
    ///
    /// # Errors
    /// Those of the other ranks.
    fn finish(&mut self) -> Result<()>;

    /// What every other rank does, until rank 0 lets it go.
    ///
    /// # Errors
    /// Those of this rank's stage and of the other ranks.
    fn serve(&mut self) -> Result<()>;

    /// Bytes of weights that this rank holds.
    fn bytes(&self) -> usize;
}

/// Reads this rank's part of the model and joins the other ranks. Collective.
///
/// # Errors
/// Those of the weights and of the other ranks.
pub(crate) fn join<'a>(job: &'a Job, comm: &'a Communicator) -> Result<Box<dyn Ranks + 'a>> {
    match job.parallel {
        Parallel::Pp if job.world > 1 => Ok(Box::new(Ring::join(job, comm)?)),
        _ => Ok(Box::new(Whole::new(Part::load(job, comm.rank().index())?, comm, job))),
    }
}

/// The stages that one rank has.
pub(crate) struct Part {
    rank: usize,
    embed: Option<Embed>,
    blocks: Blocks,
    head: Option<Head>,
    pool: Pool,
    chooser: Chooser,
    first: usize,
    last: usize,
    steps: u64,
    fail: Option<Fail>,
}

/// How the last stage chooses.
#[derive(Clone, Debug)]
pub(crate) struct Chooser {
    sampler: Sampler,
    vocab: usize,
    /// How many logits of first positions to tell of.
    logits: usize,
}

impl Part {
    /// Reads the stages of rank `rank`, and no others.
    ///
    /// # Errors
    /// Those of the weights; [`Failure::Usage`] when the system refuses threads.
    pub(crate) fn load(job: &Job, rank: usize) -> Result<Part> {
        let (config, source, dtype, world) = (&job.config, job.source(), job.dtype, job.world);
        let share = match job.parallel {
            Parallel::Tp => Share { part: rank, of: world },
            Parallel::Pp | Parallel::None => Share::WHOLE,
        };
        let layers = job.layers_of(rank);
        let (has_embed, has_head) = (layers.start == 0, layers.end == config.layers);
        let (first, last) = (layers.start, layers.end - 1);
        let embed = if has_embed { Some(Embed::load(source, config, dtype)?) } else { None };
        let blocks = Blocks::load(source, config, dtype, layers, share, job.slots)?;
        let head = if has_head { Some(Head::load(source, config, dtype, share, embed.as_ref())?) } else { None };
        let threads = job.threads();
        let pool =
            Pool::new(threads).map_err(|error| Failure::Usage(format!("--threads-per-rank {threads}: {error}")))?;
        Ok(Part { rank, embed, blocks, head, pool, chooser: job.chooser(), first, last, steps: 0, fail: job.args.fail })
    }

    /// Adds the vectors of these tokens to the end of `hidden`.
    pub(crate) fn embed(&self, tokens: &[u32], hidden: &mut Vec<f32>) -> Result<()> {
        match &self.embed {
            Some(embed) => {
                embed.forward(tokens, hidden);
                Ok(())
            }
            None => Err(self.failed("has no embedding")),
        }
    }

    /// Passes the step through this rank's layers, in place.
    pub(crate) fn blocks(&mut self, step: &Step, hidden: &mut [f32], sum: &mut SumOverRanks<'_>) -> Result<()> {
        self.steps += 1;
        match self.fail.filter(|fail| fail.rank == self.rank && self.steps == 3) {
            Some(Fail { panic: true, .. }) => panic!("the stage of rank {} panicked on purpose", self.rank),
            Some(Fail { panic: false, .. }) => return Err(self.failed("failed on purpose")),
            None => (),
        }
        self.blocks.forward(step, hidden, &mut self.pool, sum)
    }

    /// Writes this rank's logits of the rows after which a token is chosen.
    pub(crate) fn logits(&mut self, step: &Step, hidden: &[f32], logits: &mut Vec<f32>) -> Result<()> {
        match &self.head {
            Some(head) => {
                head.forward(step, hidden, &mut self.pool, logits);
                Ok(())
            }
            None => Err(self.failed("has no head")),
        }
    }

    /// Logits that this rank has of a row.
    pub(crate) fn width(&self) -> usize {
        self.head.as_ref().map_or(0, Head::width)
    }

    /// Chooses tokens out of all logits.
    pub(crate) fn choose(&self, step: &Step, logits: &[f32]) -> Result<Vec<Choice>> {
        self.chooser.choose(step, logits)
    }

    /// Bytes of weights that this rank holds.
    pub(crate) fn bytes(&self) -> usize {
        let embed = self.embed.as_ref();
        let head = self.head.as_ref().map_or(0, |head| head.bytes(embed));
        self.blocks.bytes() + head + embed.map_or(0, Embed::bytes)
    }

    fn failed(&self, problem: &str) -> Failure {
        Failure::Stage { rank: self.rank, first: self.first, last: self.last, problem: problem.into() }
    }
}

impl Chooser {
    /// Chooses with this sampler among `vocab` tokens, and tells of so many logits.
    pub(crate) fn new(sampler: Sampler, vocab: usize, logits: usize) -> Chooser {
        Chooser { sampler, vocab, logits: logits.min(vocab) }
    }

    fn choose(&self, step: &Step, logits: &[f32]) -> Result<Vec<Choice>> {
        let asked = step.segments.iter().filter(|segment| segment.choose);
        let choice = |(segment, logits): (&Segment, &[f32])| {
            let failed = Failure::NotFinite { prompt: segment.prompt, token: segment.made };
            let token = self.sampler.choose(logits, segment.prompt, segment.made).ok_or(failed)?;
            let told = if segment.made == 0 { self.logits } else { 0 };
            Ok(Choice { token, best: if told > 0 { sample::best(logits, told) } else { Vec::new() } })
        };
        asked.zip(logits.chunks_exact(self.vocab)).map(choice).collect()
    }
}
