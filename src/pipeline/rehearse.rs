//! A plan run with stages that sleep: how long it takes against what it promises.

use super::build::{infer, train};
use super::infer::{Reply, Said, Turn};
use super::payload::Act;
use super::shape::Fixed;
use super::stage::{Pass, SplitTrain, StageResult, Train};
use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::group::Axis;
use crate::reduce::Max;
use hccl_plan::{Costs, Flow, Plan, Schedule};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// What a plan promises and what it took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rehearsal {
    /// The makespan of the plan's timeline.
    pub predicted: Duration,
    /// The time of one step, on the rank that took longest.
    pub measured: Duration,
}

impl Rehearsal {
    /// How much longer it took than predicted, as a share: 0.05 is 5 %.
    pub fn excess(&self) -> f64 {
        self.measured.as_secs_f64() / self.predicted.as_secs_f64().max(f64::MIN_POSITIVE) - 1.0
    }
}

/// Runs `plan` once over the ranks of `comm`, with stages that sleep `tick` for each tick of its costs. Sleeping ranks need no
/// core: the waiting and the messages are real, the work is not.
///
/// ```
/// use hccl::pipeline::{Costs, Plan, Schedule, rehearse};
/// use std::time::Duration;
/// let plan = Plan::new(Schedule::OneFOneB, 2, 2, Costs::default())?;
/// let ranks = hccl::local(2, |comm| rehearse(&comm, plan.clone(), Duration::from_millis(2)))?;
/// assert_eq!(ranks[0].predicted, Duration::from_millis(18)); // 2 microbatches of 3 ticks, 3 more to fill and drain
/// assert!(ranks[0].measured >= ranks[0].predicted);
/// assert_eq!(ranks[0], ranks[1]);
/// # Ok::<(), hccl::Error>(())
/// ```
///
/// # Errors
/// `InvalidArgument` when the plan is for another number of ranks or counts transfers, which cannot be slept; what fails
/// the group.
pub fn rehearse<A: Axis>(comm: &Communicator<A>, plan: Plan, tick: Duration) -> Result<Rehearsal> {
    if plan.costs().transfer != 0 {
        return Err(Error::invalid("a rehearsal cannot sleep through transfers").hint("plan with transfer = 0"));
    }
    let ticks = u32::try_from(plan.timeline().makespan()).unwrap_or(u32::MAX);
    let predicted = tick.saturating_mul(ticks);
    let mut took = [u64::try_from(once(comm, plan, tick)?.as_nanos()).unwrap_or(u64::MAX)];
    comm.all_reduce(&mut took, Max)?;
    Ok(Rehearsal { predicted, measured: Duration::from_nanos(took[0]) })
}

/// One step, from when all ranks are ready.
fn once<A: Axis>(comm: &Communicator<A>, plan: Plan, tick: Duration) -> Result<Duration> {
    let (stages, costs) = (plan.stages(), plan.costs());
    let packet = || -> StageResult<Packet> { Ok(Act::new([1], vec![1.0])?) };
    let timed = |step: &mut dyn FnMut() -> Result<()>| {
        comm.barrier()?;
        let begin = Instant::now();
        step()?;
        Ok(begin.elapsed())
    };
    match plan.schedule() {
        Schedule::ForwardOnly(Flow::FillDrain) => {
            let mut pipe = infer(comm, plan).stages(stages, |_| Ok(Asleep { costs, tick })).build()?;
            timed(&mut || pipe.run(|_| packet(), |_, _| Ok(())))
        }
        Schedule::ForwardOnly(_) => {
            let mut pipe = infer(comm, plan).stages(stages, |_| Ok(Asleep { costs, tick })).build_ring::<Packet>()?;
            let enter = |_: usize, reply: Reply<Packet>| -> StageResult<Turn<Packet>> {
                match reply {
                    Reply::Free | Reply::End(_) => Ok(Turn::Start(packet()?)),
                    Reply::Next(back) => Ok(Turn::Next(back)),
                }
            };
            timed(&mut || pipe.run(enter, |_, out| Ok(Said::Next(out))))
        }
        _ => {
            let mut pipe = train(comm, plan).stages(stages, |_| Ok(Asleep { costs, tick })).build()?;
            timed(&mut || pipe.step(|_| packet(), |_, out| Ok((0.0, out))).map(|_| ()))
        }
    }
}

type Packet = Act<f32, (Fixed<1>,)>;

/// Works by sleeping.
struct Asleep {
    costs: Costs,
    tick: Duration,
}

impl Asleep {
    fn work(&self, ticks: u32) {
        sleep(self.tick.saturating_mul(ticks));
    }
}

impl Train for Asleep {
    type In = Packet;
    type Out = Packet;
    type Saved = ();

    fn forward(&mut self, _: Pass, x: Packet) -> StageResult<(Packet, ())> {
        self.work(self.costs.forward);
        Ok((x, ()))
    }

    fn backward(&mut self, (): (), grad: Packet) -> StageResult<Packet> {
        self.work(self.costs.backward.saturating_add(self.costs.weight));
        Ok(grad)
    }

    fn into_chunk(self) -> super::IntoChunk {
        super::IntoChunk::split(self)
    }
}

impl SplitTrain for Asleep {
    type Queued = ();

    fn backward_input(&mut self, (): (), grad: Packet) -> StageResult<(Packet, ())> {
        self.work(self.costs.backward);
        Ok((grad, ()))
    }

    fn backward_weight(&mut self, (): ()) -> StageResult<()> {
        self.work(self.costs.weight);
        Ok(())
    }
}
