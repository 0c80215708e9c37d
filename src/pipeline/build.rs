//! Stages joined to a pipeline, and the ranks' agreement on it.

use super::chunk::{Chunk, Forward};
use super::fault::Links;
use super::infer::{Inference, Ring};
use super::lane::{AnyLane, Lane};
use super::payload::{Payload, Wire};
use super::run::{Engine, Lanes};
use super::shape::{MOST_DIMS, Shape, Specs, Symbols};
use super::stage::{At, BoxError, Grad, IntoChunk, Marker, SplitTrain, Stage, StageResult, Train, name_of};
use super::trace::Tracer;
use super::train::Trainer;
use crate::communicator::Communicator;
use crate::element::Element;
use crate::error::{Error, ErrorKind, Result};
use crate::group::Axis;
use crate::local::message;
use hccl_plan::{Flow, Plan, Schedule};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

/// The variable that names the file of a trace.
const TRACE: &str = "HCCL_TRACE";

/// What a pipeline is for: [`Training`] or [`Inferring`]. Sealed.
pub trait Mode: sealed::Sealed {}

/// Stages run forward and backward.
#[derive(Clone, Copy, Debug)]
pub enum Training {}

/// Stages run forward.
#[derive(Clone, Copy, Debug)]
pub enum Inferring {}

mod sealed {
    pub trait Sealed {}
}

impl sealed::Sealed for Training {}
impl sealed::Sealed for Inferring {}
impl Mode for Training {}
impl Mode for Inferring {}

/// Begins a pipeline that trains, over all ranks of `comm`; every rank makes the same calls.
pub fn train<A: Axis>(comm: &Communicator<A>, plan: Plan) -> Start<'_, A, Training> {
    Start { draft: Draft::new(comm, plan, true), mode: PhantomData }
}

/// Begins a pipeline that runs forward only, over all ranks of `comm`; every rank makes the same calls.
pub fn infer<A: Axis>(comm: &Communicator<A>, plan: Plan) -> Start<'_, A, Inferring> {
    Start { draft: Draft::new(comm, plan, false), mode: PhantomData }
}

/// A pipeline without stages; made by [`train`] and [`infer`].
#[must_use = "a pipeline is made by `build`"]
pub struct Start<'c, A: Axis, M: Mode> {
    draft: Draft<'c, A>,
    mode: PhantomData<M>,
}

/// A pipeline whose stages so far lead from `First` to `Last`.
#[must_use = "a pipeline is made by `build`"]
pub struct Builder<'c, A: Axis, M: Mode, First: Payload, Last: Payload> {
    draft: Draft<'c, A>,
    ends: Marker<(M, First, Last)>,
}

impl<'c, A: Axis, M: Mode> Start<'c, A, M> {
    /// The dtype of f32 gradients on their way; stages make and get f32.
    pub fn grad_wire(mut self, wire: Wire) -> Self {
        self.draft.wire = wire;
        self
    }

    /// Writes what ran to this file, as a trace for Perfetto, when the pipeline is
    /// [finished](Trainer::finish). Without it `HCCL_TRACE` names the file.
    pub fn trace(mut self, path: impl Into<PathBuf>) -> Self {
        self.draft.trace = Some(path.into());
        self
    }

    fn first<F: Payload, L: Payload>(mut self) -> Builder<'c, A, M, F, L> {
        self.draft.edge::<F>();
        Builder { draft: self.draft, ends: PhantomData }
    }
}

impl<'c, A: Axis> Start<'c, A, Training> {
    /// The first stage, made by `make` on the rank that holds it.
    pub fn stage<S: Train>(
        self,
        make: impl for<'p> FnOnce(&At<'p, S>) -> StageResult<S>,
    ) -> Builder<'c, A, Training, S::In, S::Out> {
        self.first::<S::In, S::In>().stage(make)
    }

    /// As [`stage`](Self::stage), with a backward pass in two parts.
    pub fn split_stage<S: SplitTrain>(
        self,
        make: impl for<'p> FnOnce(&At<'p, S>) -> StageResult<S>,
    ) -> Builder<'c, A, Training, S::In, S::Out> {
        self.first::<S::In, S::In>().split_stage(make)
    }

    /// The first `count` stages, all of one type.
    pub fn stages<S: Train<Out = <S as Train>::In>>(
        self,
        count: usize,
        make: impl for<'p> FnMut(&At<'p, S>) -> StageResult<S>,
    ) -> Builder<'c, A, Training, S::In, S::In> {
        self.first::<S::In, S::In>().stages(count, make)
    }
}

impl<'c, A: Axis> Start<'c, A, Inferring> {
    /// The first stage, made by `make` on the rank that holds it.
    pub fn stage<S: Stage>(
        self,
        make: impl for<'p> FnOnce(&At<'p, S>) -> StageResult<S>,
    ) -> Builder<'c, A, Inferring, S::In, S::Out> {
        self.first::<S::In, S::In>().stage(make)
    }

    /// The first `count` stages, all of one type.
    pub fn stages<S: Stage<Out = <S as Stage>::In>>(
        self,
        count: usize,
        make: impl for<'p> FnMut(&At<'p, S>) -> StageResult<S>,
    ) -> Builder<'c, A, Inferring, S::In, S::In> {
        self.first::<S::In, S::In>().stages(count, make)
    }
}

impl<'c, A: Axis, F: Payload, L: Payload> Builder<'c, A, Training, F, L> {
    /// The next stage, made by `make` on the rank that holds it. Its input is the output of the one before.
    pub fn stage<S: Train<In = L>>(
        self,
        make: impl for<'p> FnOnce(&At<'p, S>) -> StageResult<S>,
    ) -> Builder<'c, A, Training, F, S::Out> {
        self.add::<S, S::Out>(make, |stage| stage.into_chunk().0)
    }

    /// As [`stage`](Self::stage), with a backward pass in two parts, which `zb_h1` and `zb_v` run apart.
    pub fn split_stage<S: SplitTrain<In = L>>(
        self,
        make: impl for<'p> FnOnce(&At<'p, S>) -> StageResult<S>,
    ) -> Builder<'c, A, Training, F, S::Out> {
        self.add::<S, S::Out>(make, |stage| IntoChunk::split(stage).0)
    }

    /// `count` more stages of one type, whose input is like its output.
    pub fn stages<S: Train<In = L, Out = L>>(
        mut self,
        count: usize,
        mut make: impl for<'p> FnMut(&At<'p, S>) -> StageResult<S>,
    ) -> Self {
        for _ in 0..count {
            self = self.stage(&mut make);
        }
        self
    }

    /// Joins the ranks, once all of them have come here with the same stages and the same plan.
    ///
    /// # Errors
    /// On every rank the same: `Rank` when making a stage failed on a rank, `InvalidArgument` when there are more or
    /// fewer stages than the plan has or another number of ranks, `Mismatch` when the ranks' pipelines differ; those
    /// of [`all_gather`](Communicator::all_gather).
    pub fn build(self) -> Result<Trainer<A, F, L>> {
        let wrong = |schedule: Schedule| (!schedule.trains()).then_some("use `pipeline::infer`");
        Ok(Trainer::new(self.draft.join(wrong, None)?))
    }
}

impl<'c, A: Axis, F: Payload, L: Payload> Builder<'c, A, Inferring, F, L> {
    /// The next stage, made by `make` on the rank that holds it. Its input is the output of the one before.
    pub fn stage<S: Stage<In = L>>(
        self,
        make: impl for<'p> FnOnce(&At<'p, S>) -> StageResult<S>,
    ) -> Builder<'c, A, Inferring, F, S::Out> {
        self.add::<S, S::Out>(make, |stage| Box::new(Forward(stage)))
    }

    /// `count` more stages of one type, whose input is like its output.
    pub fn stages<S: Stage<In = L, Out = L>>(
        mut self,
        count: usize,
        mut make: impl for<'p> FnMut(&At<'p, S>) -> StageResult<S>,
    ) -> Self {
        for _ in 0..count {
            self = self.stage(&mut make);
        }
        self
    }

    /// Joins the ranks for passes that end at the last stage: [`Flow::FillDrain`].
    ///
    /// # Errors
    /// Those of a training pipeline's [`build`](Builder::build).
    pub fn build(self) -> Result<Inference<A, F, L>> {
        let wrong = |schedule| match schedule {
            Schedule::ForwardOnly(Flow::FillDrain) => None,
            Schedule::ForwardOnly(_) => Some("use `build_ring`"),
            _ => Some("use `pipeline::train`"),
        };
        Ok(Inference::new(self.draft.join(wrong, None)?))
    }

    /// Joins the ranks for a ring: [`Flow::Ring`]. `B` is what returns from the last stage to the first.
    ///
    /// # Errors
    /// Those of a training pipeline's [`build`](Builder::build).
    pub fn build_ring<B: Payload>(mut self) -> Result<Ring<A, F, L, B>> {
        let wrong = |schedule| match schedule {
            Schedule::ForwardOnly(Flow::Ring { .. }) => None,
            Schedule::ForwardOnly(_) => Some("use `build`"),
            _ => Some("use `pipeline::train`"),
        };
        self.draft.table.push(format!("feedback: {}", signature::<B>()));
        Ok(Ring::new(self.draft.join(wrong, Some(Box::new(Lane::<B>::new(Wire::F32))))?))
    }
}

impl<'c, A: Axis, M: Mode, F: Payload, L: Payload> Builder<'c, A, M, F, L> {
    fn add<S: 'static, Out: Payload>(
        mut self,
        make: impl for<'p> FnOnce(&At<'p, S>) -> StageResult<S>,
        wrap: impl FnOnce(S) -> Box<dyn Chunk>,
    ) -> Builder<'c, A, M, F, Out> {
        self.draft.table.push(format!(
            "stage {} {}: {} -> {}",
            self.draft.names.len(),
            name_of::<S>(),
            signature::<L>(),
            signature::<Out>()
        ));
        self.draft.stage(make, wrap);
        self.draft.edge::<Out>();
        Builder { draft: self.draft, ends: PhantomData }
    }
}

/// `f32 (Batch, Hidden = 4)`.
fn signature<P: Payload>() -> String {
    format!("{} {}", P::Elem::DTYPE, Specs(P::Shape::DIMS))
}

/// A pipeline that is being declared.
struct Draft<'c, A: Axis> {
    comm: &'c Communicator<A>,
    plan: Plan,
    trains: bool,
    wire: Wire,
    trace: Option<PathBuf>,
    chunks: Vec<Option<Box<dyn Chunk>>>,
    names: Vec<&'static str>,
    /// What the ranks compare.
    table: Vec<String>,
    forward: Vec<Box<dyn AnyLane>>,
    backward: Vec<Box<dyn AnyLane>>,
    symbols: Symbols,
    /// The first stage of this rank that could not be made.
    error: Option<(String, BoxError)>,
}

impl<'c, A: Axis> Draft<'c, A> {
    fn new(comm: &'c Communicator<A>, plan: Plan, trains: bool) -> Self {
        let schedule = format!("{} of {} microbatches on {} ranks", plan.schedule(), plan.microbatches(), plan.ranks());
        Draft {
            comm,
            trains,
            wire: Wire::default(),
            trace: std::env::var_os(TRACE).filter(|path| !path.is_empty()).map(PathBuf::from),
            chunks: Vec::new(),
            names: Vec::new(),
            table: vec![format!("{schedule}, plan {:016x}", plan.digest())],
            plan,
            forward: Vec::new(),
            backward: Vec::new(),
            symbols: Symbols::default(),
            error: None,
        }
    }

    fn edge<P: Payload>(&mut self) {
        self.symbols.add(P::Shape::DIMS);
        self.forward.push(Box::new(Lane::<P>::new(Wire::F32)));
        self.backward.push(Box::new(Lane::<Grad<P>>::new(self.wire)));
    }

    fn stage<S>(
        &mut self,
        make: impl for<'p> FnOnce(&At<'p, S>) -> StageResult<S>,
        wrap: impl FnOnce(S) -> Box<dyn Chunk>,
    ) {
        let (index, stages) = (self.names.len(), self.plan.stages());
        self.names.push(name_of::<S>());
        let ours = index < stages && self.plan.rank_of(index) == self.comm.rank().index();
        if !ours || self.error.is_some() {
            self.chunks.push(None);
            return;
        }
        // What a panic leaves behind is not used: the pipeline is not made.
        let caught = catch_unwind(AssertUnwindSafe(|| make(&At::new(index, stages))));
        match caught.unwrap_or_else(|panic| Err(format!("panicked: {}", message(&*panic)).into())) {
            Ok(stage) => self.chunks.push(Some(wrap(stage))),
            Err(error) => {
                self.error = Some((format!("making stage {index} ({})", name_of::<S>()), error));
                self.chunks.push(None);
            }
        }
    }

    /// What is wrong with the declaration, on every rank alike.
    fn problem(&self, wrong: impl Fn(Schedule) -> Option<&'static str>) -> Option<Error> {
        let Draft { plan, names, comm, .. } = self;
        if plan.ranks() != comm.size() || plan.stages() != names.len() {
            let each = plan.schedule().chunks();
            let problem = format!(
                "{} stages do not fit {} ranks: {} on {} ranks has {} stages, {each} a rank",
                names.len(),
                comm.size(),
                plan.schedule(),
                plan.ranks(),
                plan.stages(),
            );
            return Some(Error::invalid(problem).hint(format!(
                "with {each} stages a rank, {} stages need {} ranks; start as many, or plan for the ranks there are",
                names.len(),
                names.len().div_ceil(each)
            )));
        }
        if let Some(hint) = wrong(plan.schedule()) {
            let what = if self.trains { "trains" } else { "only runs forward" };
            let problem = format!("a pipeline that {what} cannot follow the schedule {}", plan.schedule());
            return Some(Error::invalid(problem).hint(hint));
        }
        (self.symbols.len() > MOST_DIMS).then(|| {
            let problem = format!("{} named dimensions are more than {MOST_DIMS}", self.symbols.len());
            Error::invalid(problem).hint("use `Dyn` where a length need not be compared between stages")
        })
    }

    /// Compares the pipeline with those of the other ranks, and makes it.
    fn join(
        mut self,
        wrong: impl Fn(Schedule) -> Option<&'static str>,
        ring: Option<Box<dyn AnyLane>>,
    ) -> Result<Engine<A>> {
        self.table.push(format!("gradients as {}", self.wire.dtype()));
        let (rank, size) = (self.comm.rank().index(), self.comm.size());
        let agreed = match self.problem(wrong) {
            Some(problem) => Err(problem),
            None => self.agree(),
        };
        let path = agreed.map_err(|error| error.at("pipeline", rank, size))?;
        let digest = self
            .table
            .iter()
            .flat_map(|line| line.bytes())
            .fold(self.plan.digest(), |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        // In tests every clock shows another time, as on different hosts.
        let ahead = Duration::from_secs(if cfg!(test) { rank as u64 } else { 0 });
        Ok(Engine {
            links: Links::new(self.comm)?,
            plan: self.plan,
            digest,
            steps: 0,
            chunks: self.chunks,
            names: self.names,
            lanes: Lanes::new(self.forward, self.backward, ring),
            symbols: self.symbols,
            tracer: path.map(|path| Tracer::new(path, ahead)),
        })
    }

    /// Gives the file of the trace, which one rank's word is enough for.
    fn agree(&mut self) -> Result<Option<PathBuf>> {
        let rank = self.comm.rank().index();
        let own = self.error.take().map(|(what, error)| Error::rank_failed(rank, what).boxed_source(error));
        let told = own.as_ref().map(told).unwrap_or_default();
        let path = self.trace.as_ref().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
        let record = [self.table.join("\n"), told, path].join("\0");
        let all = self.comm.all_gather_bytes(record.as_bytes())?;
        if let Some(error) = own {
            return Err(error);
        }
        let records: Vec<Vec<String>> =
            all.iter().map(|record| String::from_utf8_lossy(record).split('\0').map(str::to_owned).collect()).collect();
        let field = |rank: usize, n: usize| records[rank].get(n).map_or("", String::as_str);
        let ranks = 0..records.len();
        if let Some(failed) = ranks.clone().find(|&rank| !field(rank, 1).is_empty()) {
            return Err(Error::rank_failed(failed, field(failed, 1)));
        }
        for peer in ranks.clone() {
            compare(peer, field(rank, 0), field(peer, 0))?;
        }
        Ok(ranks.map(|rank| field(rank, 2)).find(|path| !path.is_empty()).map(PathBuf::from))
    }
}

/// The error as other ranks tell it.
fn told(error: &Error) -> String {
    let ErrorKind::Rank { message, .. } = error.kind() else { return error.to_string() };
    match std::error::Error::source(error) {
        Some(source) => format!("{message}: {source}"),
        None => message.clone(),
    }
}

fn compare(peer: usize, ours: &str, theirs: &str) -> Result<()> {
    if ours == theirs {
        return Ok(());
    }
    let nothing = "nothing more";
    let (mut a, mut b) = (ours.lines(), theirs.lines());
    let (ours, theirs) = loop {
        match (a.next(), b.next()) {
            (ours, theirs) if ours != theirs => break (ours.unwrap_or(nothing), theirs.unwrap_or(nothing)),
            (None, None) => break (nothing, nothing),
            _ => {}
        }
    };
    let (ours, theirs) = (format!("pipeline({ours})"), format!("pipeline({theirs})"));
    Err(Error::new(ErrorKind::Mismatch { peer, ours, theirs })
        .hint("every rank must declare the same stages and the same plan; start the same program on every rank"))
}
