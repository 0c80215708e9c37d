//! Pipelines on real ranks: every schedule makes the right numbers, and what fails on one rank ends all of them.

use super::*;
use crate::error::{Error, ErrorKind, Result};
use crate::{Communicator, Mesh, Pp};
use std::time::{Duration, Instant};

crate::dim!(Batch);
crate::dim!(Seq);

type X = Act<f64, (Batch, Fixed<2>)>;

/// `x -> a x + b`, in whole numbers, so that every order of adding gives the same bits.
struct Affine {
    a: f64,
    b: f64,
    grad_a: f64,
    grad_b: f64,
}

impl Affine {
    /// A different map for each stage, none of which lets numbers grow much.
    fn new(stage: usize) -> Self {
        let a = [1.0, -1.0, 2.0, -1.0][stage % 4];
        Affine { a, b: stage as f64 + 1.0, grad_a: 0.0, grad_b: 0.0 }
    }
}

fn dot(x: &X, y: &X) -> f64 {
    x.data().iter().zip(y.data()).map(|(x, y)| x * y).sum()
}

impl Train for Affine {
    type In = X;
    type Out = X;
    type Saved = X;

    fn forward(&mut self, pass: Pass, x: X) -> StageResult<(X, X)> {
        assert!(pass.starts && pass.round == 0);
        Ok((x.clone().map(|x| self.a * x + self.b), x))
    }

    fn backward(&mut self, x: X, grad: X) -> StageResult<X> {
        let (input, queued) = self.backward_input(x, grad)?;
        self.backward_weight(queued)?;
        Ok(input)
    }
}

impl SplitTrain for Affine {
    type Queued = (X, X);

    fn backward_input(&mut self, x: X, grad: X) -> StageResult<(X, (X, X))> {
        Ok((grad.clone().map(|g| g * self.a), (x, grad)))
    }

    fn backward_weight(&mut self, (x, grad): (X, X)) -> StageResult<()> {
        self.grad_a += dot(&x, &grad);
        self.grad_b += grad.data().iter().sum::<f64>();
        Ok(())
    }
}

/// The input of a microbatch of a step: the last one is shorter, and steps differ.
fn input(step: usize, microbatch: usize, count: usize) -> X {
    let batch = if microbatch + 1 == count { 1 } else { 3 + step };
    let data = (0..2 * batch).map(|i| ((i * 7 + microbatch * 3 + step) % 5) as f64 - 2.0).collect();
    Act::new([batch, 2], data).unwrap()
}

/// The loss is the sum of the outputs, each times its own number.
fn loss(microbatch: usize, y: &X) -> (f64, X) {
    let mut grad = y.clone();
    grad.data_mut().iter_mut().enumerate().for_each(|(i, g)| *g = ((i + microbatch) % 3) as f64 + 1.0);
    (dot(y, &grad), grad)
}

/// One process: losses, and the gradients of each stage.
fn serial(stages: usize, step: usize, count: usize) -> (Vec<f64>, Vec<(f64, f64)>) {
    let mut all: Vec<Affine> = (0..stages).map(Affine::new).collect();
    let pass = Pass { microbatch: 0, round: 0, starts: true };
    let mut losses = Vec::new();
    for microbatch in 0..count {
        let (mut x, mut saved) = (input(step, microbatch, count), Vec::new());
        for stage in &mut all {
            let (y, keep) = Train::forward(stage, pass, x).unwrap();
            saved.push(keep);
            x = y;
        }
        let (value, mut grad) = loss(microbatch, &x);
        losses.push(value);
        for stage in all.iter_mut().rev() {
            grad = stage.backward(saved.pop().unwrap(), grad).unwrap();
        }
    }
    (losses, all.iter().map(|stage| (stage.grad_a, stage.grad_b)).collect())
}

fn train_once(comm: &Communicator, schedule: Schedule, count: usize) -> Result<()> {
    let plan = Plan::new(schedule, comm.size(), count, Costs::default())?;
    let stages = plan.stages();
    let start = train(comm, plan).split_stage(|at| Ok(Affine::new(at.index())));
    let mut pipe = (1..stages).fold(start, |pipe, _| pipe.split_stage(|at| Ok(Affine::new(at.index())))).build()?;
    for step in 0..2 {
        let losses =
            pipe.step(|microbatch| Ok(input(step, microbatch, count)), |microbatch, y| Ok(loss(microbatch, &y)))?;
        let (expected, grads) = serial(stages, step, count);
        assert_eq!(losses.as_slice(), expected, "{schedule} on {} ranks, {count} microbatches", comm.size());
        for (index, stage) in pipe.stages_mut::<Affine>() {
            let (grad_a, grad_b) = (std::mem::take(&mut stage.grad_a), std::mem::take(&mut stage.grad_b));
            assert_eq!((grad_a, grad_b), grads[index], "{schedule}, stage {index}, {count} microbatches");
        }
    }
    Ok(())
}

/// Every schedule that trains, on up to 8 ranks, with up to 4 microbatches a rank; on two steps of different lengths.
fn every_size(ranks: usize) {
    let schedules =
        [Schedule::GPipe, Schedule::OneFOneB, Schedule::Interleaved { chunks: 2 }, Schedule::ZbH1, Schedule::ZbV];
    crate::local(ranks, |comm| {
        for schedule in schedules {
            let whole = matches!(schedule, Schedule::Interleaved { .. });
            for count in (1..=4 * ranks).filter(|count| !whole || count % ranks == 0) {
                train_once(&comm, schedule, count)?;
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn two_and_three_ranks_train_as_one() {
    every_size(1);
    every_size(2);
    every_size(3);
}

#[test]
fn four_and_five_ranks_train_as_one() {
    every_size(4);
    every_size(5);
}

#[test]
fn six_ranks_train_as_one() {
    every_size(6);
}

#[test]
fn seven_and_eight_ranks_train_as_one() {
    every_size(7);
    every_size(8);
}

#[test]
fn zero_bubble_schedules_run_with_whole_backward_passes() {
    crate::local(3, |comm| {
        let plan = Plan::new(Schedule::ZbH1, 3, 6, Costs::default())?;
        let mut pipe = train(&comm, plan).stages(3, |at| Ok(Affine::new(at.index()))).build()?;
        let losses = pipe.step(|m| Ok(input(0, m, 6)), |m, y| Ok(loss(m, &y)))?;
        assert_eq!(losses.as_slice(), serial(3, 0, 6).0);
        Ok(())
    })
    .unwrap();
}

#[test]
fn two_pipelines_side_by_side_on_a_mesh() {
    let sums = crate::local(4, |world| {
        let mesh = Mesh::new(&world, (Pp(2), crate::Dp(2)))?;
        let copy = mesh.group::<crate::Dp>().rank().index();
        let plan = Plan::new(Schedule::OneFOneB, 2, 3, Costs::default())?;
        let mut pipe = train(mesh.group::<Pp>(), plan).stages(2, |at| Ok(Affine::new(at.index()))).build()?;
        Ok(pipe.step(|m| Ok(input(copy, m, 3)), |m, y| Ok(loss(m, &y)))?.sum())
    })
    .unwrap();
    let expected = [0, 1].map(|copy| serial(2, copy, 3).0.iter().sum::<f64>());
    assert_eq!(sums, [expected[0], expected[1], expected[0], expected[1]]);
}

/// Forward passes, token ids first: the element type changes on the way.
struct Embed;
struct Count {
    seen: Vec<usize>,
}

type Ids = Act<u32, (Batch, Seq)>;
type Hidden = Act<f32, (Batch, Seq, Fixed<3>)>;

impl Stage for Embed {
    type In = Ids;
    type Out = Hidden;

    fn forward(&mut self, _: Pass, ids: Ids) -> StageResult<Hidden> {
        let [batch, seq] = *ids.dims() else { return Err("two dimensions".into()) };
        let data = ids.data().iter().flat_map(|&id| [id as f32, 1.0, -(id as f32)]).collect();
        Ok(Act::new([batch, seq, 3], data)?)
    }
}

impl Stage for Count {
    type In = Hidden;
    type Out = Hidden;

    fn forward(&mut self, pass: Pass, h: Hidden) -> StageResult<Hidden> {
        self.seen.push(pass.microbatch);
        Ok(h.map(|h| h + 1.0))
    }
}

#[test]
fn microbatches_flow_through_and_drain() {
    for (ranks, count) in [(2, 1), (2, 5), (4, 3), (5, 20), (8, 9)] {
        crate::local(ranks, |comm| {
            let plan = Plan::new(Schedule::ForwardOnly(Flow::FillDrain), ranks, count, Costs::default())?;
            let build = infer(&comm, plan).stage(|_| Ok(Embed)).stages(ranks - 1, |_| Ok(Count { seen: vec![] }));
            let mut pipe = build.build()?;
            for step in 0..3 {
                // 200 bytes and more travel behind their header, less inside.
                let ids = |m: usize| vec![(m + step) as u32; (m + 1) * (1 + step * 5)];
                let mut results = Vec::new();
                pipe.run(
                    |m| Ok(Act::new([m + 1, 1 + step * 5], ids(m))?),
                    |m, h| {
                        results.push((m, h));
                        Ok(())
                    },
                )?;
                if comm.rank().index() == ranks - 1 {
                    assert_eq!(results.len(), count);
                }
                for (m, h) in results {
                    let more = (ranks - 1) as f32;
                    let expected = ids(m).into_iter().flat_map(|id| [id as f32 + more, 1.0 + more, more - id as f32]);
                    assert_eq!(h.data(), expected.collect::<Vec<_>>());
                    assert_eq!(h.dims(), [m + 1, 1 + step * 5, 3]);
                }
            }
            for (_, stage) in pipe.stages_mut::<Count>() {
                assert_eq!(stage.seen, (0..3 * count).map(|i| i % count).collect::<Vec<_>>());
            }
            Ok(())
        })
        .unwrap();
    }
}

/// Adds its number to what it has seen of a sequence: a cache.
struct Sum {
    seen: Vec<Vec<u32>>,
}

type Token = Act<u32, (Fixed<1>,)>;
type Window = Act<u32, (Seq,)>;

impl Stage for Sum {
    type In = Window;
    type Out = Window;

    fn forward(&mut self, pass: Pass, x: Window) -> StageResult<Window> {
        let seen = &mut self.seen[pass.microbatch];
        if pass.starts {
            seen.clear();
        }
        seen.extend(x.data());
        let all: u32 = seen.iter().sum();
        Ok(x.map(|x| x + all % 7))
    }

    fn release(&mut self, slot: usize) {
        self.seen[slot].clear();
    }
}

/// The sequence after `prompt`, one token at a time, until one is a multiple of 5 or there are `most`.
fn generate(stages: usize, prompt: &[u32], most: usize) -> Vec<u32> {
    let mut all: Vec<Sum> = (0..stages).map(|_| Sum { seen: vec![vec![]] }).collect();
    let (mut tokens, mut x) = (Vec::new(), prompt.to_vec());
    while tokens.len() < most && tokens.last().is_none_or(|token| token % 5 != 0) {
        let pass = Pass { microbatch: 0, round: 0, starts: tokens.is_empty() };
        let mut h = Act::new([x.len()], x).unwrap();
        for stage in &mut all {
            h = stage.forward(pass, h).unwrap();
        }
        let token = h.data().last().unwrap() % 100;
        tokens.push(token);
        x = vec![token];
    }
    tokens
}

fn prompt(n: usize) -> Vec<u32> {
    (0..=n % 4).map(|i| (n * 13 + i * 3 + 1) as u32).collect()
}

/// Generates `prompts` sequences in `slots` slots; a slot that ends takes the next prompt.
fn ring(comm: &Communicator, slots: usize, prompts: usize, most: usize) -> Result<Vec<Vec<u32>>> {
    let ranks = comm.size();
    // The longest a slot can take: all prompts of one slot, a round to see the last token, and one to spare.
    let rounds = prompts.div_ceil(slots) * (most + 1) + most + 2;
    let plan = Plan::new(Schedule::ForwardOnly(Flow::Ring { rounds }), ranks, slots, Costs::default())?;
    let stages = |_: &At<'_, Sum>| Ok(Sum { seen: vec![vec![]; slots] });
    let mut pipe = infer(comm, plan).stages(ranks, stages).build_ring::<Token>()?;
    let mut done = vec![Vec::new(); prompts];
    let (mut next, mut in_slot, mut made) = (0, vec![None; slots], vec![0; slots]);
    pipe.run(
        |slot, reply| {
            let (token, ends) = match &reply {
                Reply::Free => (None, true),
                Reply::Next(token) => (Some(token.data()[0]), false),
                Reply::End(token) => (Some(token.data()[0]), true),
            };
            if let (Some(token), Some(sequence)) = (token, in_slot[slot]) {
                let sequence: &mut Vec<u32> = &mut done[sequence];
                sequence.push(token);
            }
            if let (false, Some(token)) = (ends, token) {
                return Ok(Turn::Next(Act::new([1], vec![token])?));
            }
            in_slot[slot] = (next < prompts).then_some(next);
            let Some(sequence) = in_slot[slot] else { return Ok(Turn::Idle) };
            next += 1;
            let prompt = prompt(sequence);
            Ok(Turn::Start(Act::new([prompt.len()], prompt)?))
        },
        |pass, h| {
            made[pass.microbatch] = if pass.starts { 1 } else { made[pass.microbatch] + 1 };
            let token = h.data().last().copied().unwrap_or(0) % 100;
            let back = Act::new([1], vec![token])?;
            Ok(if token % 5 == 0 || made[pass.microbatch] == most { Said::End(back) } else { Said::Next(back) })
        },
    )?;
    for (_, stage) in pipe.stages_mut::<Sum>() {
        assert!(stage.seen.iter().all(Vec::is_empty), "every slot was released");
    }
    Ok(done)
}

#[test]
fn a_ring_generates_what_one_process_does() {
    for ranks in [1, 2, 3, 4, 6] {
        for slots in [1, 2, 4, 9] {
            let (prompts, most) = (2 * slots + 1, 6);
            let all = crate::local(ranks, |comm| ring(&comm, slots, prompts, most)).unwrap();
            for (n, tokens) in all[0].iter().enumerate() {
                assert_eq!(*tokens, generate(ranks, &prompt(n), most), "{ranks} ranks, {slots} slots, prompt {n}");
            }
        }
    }
}

#[test]
fn a_slot_without_a_sequence_cannot_go_on() {
    let error = crate::local(2, |comm| {
        let plan = Plan::new(Schedule::ForwardOnly(Flow::Ring { rounds: 2 }), 2, 1, Costs::default())?;
        let mut pipe = infer(&comm, plan).stages(2, |_| Ok(Sum { seen: vec![vec![]] })).build_ring::<Token>()?;
        pipe.run(|_, _| Ok(Turn::Next(Act::new([1], vec![1])?)), |_, _| Err("never".into()))
    })
    .unwrap_err();
    assert!(error.to_string().contains("slot 0 holds no sequence to go on with"), "{error}");
}

/// A stage that fails as it is told.
struct Faulty {
    how: fn(usize) -> StageResult<()>,
}

impl Train for Faulty {
    type In = X;
    type Out = X;
    type Saved = ();

    fn forward(&mut self, pass: Pass, x: X) -> StageResult<(X, ())> {
        (self.how)(pass.microbatch)?;
        Ok((x, ()))
    }

    fn backward(&mut self, (): (), grad: X) -> StageResult<X> {
        Ok(grad)
    }
}

fn fails_everywhere(ranks: usize, at: usize, how: fn(usize) -> StageResult<()>) -> Vec<Error> {
    let begin = Instant::now();
    let results = crate::local_results(ranks, |comm| {
        let plan = Plan::new(Schedule::OneFOneB, ranks, 6, Costs::default())?;
        let make = |stage: &At<'_, Faulty>| Ok(Faulty { how: if stage.index() == at { how } else { |_| Ok(()) } });
        let mut pipe = train(&comm, plan).stages(ranks, make).build()?;
        let error = pipe.step(|m| Ok(input(0, m, 6)), |m, y| Ok(loss(m, &y))).unwrap_err();
        let again = pipe.step(|m| Ok(input(0, m, 6)), |m, y| Ok(loss(m, &y))).unwrap_err();
        assert_eq!(error.to_string(), again.to_string());
        Err::<(), Error>(error)
    })
    .unwrap();
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    results.into_iter().map(Result::unwrap_err).collect()
}

#[test]
fn an_error_of_a_stage_is_named_on_every_rank() {
    for at in 0..4 {
        for error in fails_everywhere(4, at, |m| if m == 3 { Err("no such file".into()) } else { Ok(()) }) {
            let expected = format!("rank {at} failed: forward of microbatch 3 on stage {at} (Faulty): no such file");
            assert!(error.to_string().contains(&expected), "{error}");
            assert!(matches!(error.kind(), ErrorKind::Rank { rank, .. } if *rank == at), "{error:?}");
        }
    }
}

#[test]
fn a_panic_of_a_stage_is_named_on_every_rank() {
    for error in fails_everywhere(3, 1, |m| if m == 2 { panic!("index out of bounds") } else { Ok(()) }) {
        let expected = "rank 1 failed: forward of microbatch 2 on stage 1 (Faulty): panicked: index out of bounds";
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn two_failures_at_once_end_all_ranks() {
    let errors = crate::local_results(4, |comm| {
        let plan = Plan::new(Schedule::OneFOneB, 4, 4, Costs::default())?;
        let barrier = comm.duplicate()?;
        let mut pipe = train(&comm, plan).stages(4, |_| Ok(Faulty { how: |_| Ok(()) })).build()?;
        let odd = comm.rank().index() % 3 == 0;
        barrier.barrier()?;
        pipe.step(
            |_| if odd { Err("no input".into()) } else { Ok(input(0, 0, 4)) },
            |m, y| if odd { Err("no target".into()) } else { Ok(loss(m, &y)) },
        )
    })
    .unwrap();
    for error in errors {
        assert!(error.unwrap_err().to_string().contains("rank 0 failed: forward of microbatch 0 on stage 0"));
    }
}

#[test]
fn a_rank_that_runs_another_step_is_refused() {
    let errors = crate::local_results(3, |comm| {
        let plan = Plan::new(Schedule::OneFOneB, 3, 2, Costs::default())?;
        let mut pipe = train(&comm, plan).stages(3, |_| Ok(Faulty { how: |_| Ok(()) })).build()?;
        pipe.engine.steps += u64::from(comm.rank().index() == 1);
        pipe.step(|m| Ok(input(0, m, 2)), |m, y| Ok(loss(m, &y)))
    })
    .unwrap();
    let texts: Vec<String> = errors.into_iter().map(|error| error.unwrap_err().to_string()).collect();
    for text in &texts {
        assert!(text.contains("called send(the activation of microbatch 0 over edge"), "{texts:#?}");
        assert!(text.contains("this rank called recv(the activation of microbatch 0 over edge"), "{texts:#?}");
    }
}

/// Makes one row more than it was given.
struct Longer;

impl Stage for Longer {
    type In = X;
    type Out = X;

    fn forward(&mut self, pass: Pass, x: X) -> StageResult<X> {
        let rows = x.dims()[0] + usize::from(pass.microbatch == 1);
        Ok(Act::new([rows, 2], vec![0.0; 2 * rows])?)
    }
}

#[test]
fn a_wrong_length_is_an_error_of_its_maker() {
    let error = crate::local(3, |comm| {
        let plan = Plan::new(Schedule::ForwardOnly(Flow::FillDrain), 3, 3, Costs::default())?;
        let mut pipe = infer(&comm, plan).stages(3, |_| Ok(Longer)).build()?;
        pipe.run(|_| Ok(Act::new([4, 2], vec![1.0; 8])?), |_, _| Err("a result".into()))
    });
    let text = error.unwrap_err().to_string();
    let expected = "rank 0 failed: forward of microbatch 1 on stage 0 (Longer): made a payload of dimensions [5, 2] \
                    where (Batch, 2) with Batch = 4 is needed";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn a_gradient_of_other_dimensions_is_refused() {
    let error = crate::local(2, |comm| {
        let plan = Plan::new(Schedule::GPipe, 2, 1, Costs::default())?;
        let mut pipe = train(&comm, plan).stages(2, |at| Ok(Affine::new(at.index()))).build()?;
        pipe.step(|m| Ok(input(0, m, 2)), |_, _| Ok((0.0, Act::new([1, 2], vec![1.0; 2])?)))
    });
    let text = error.unwrap_err().to_string();
    assert!(text.contains("the gradient of its output has dimensions [1, 2], must have [3, 2]"), "{text}");
}

/// f32 stages, for gradients on a narrow wire.
struct Pass32;

impl Train for Pass32 {
    type In = Act<f32, (Batch,)>;
    type Out = Self::In;
    type Saved = ();

    fn forward(&mut self, _: Pass, x: Self::In) -> StageResult<(Self::Out, ())> {
        Ok((x, ()))
    }

    fn backward(&mut self, (): (), grad: Self::In) -> StageResult<Self::In> {
        GRADS.with_borrow_mut(|grads| grads.push(grad.data().to_vec()));
        Ok(grad)
    }
}

thread_local! {
    static GRADS: std::cell::RefCell<Vec<Vec<f32>>> = const { std::cell::RefCell::new(Vec::new()) };
}

#[test]
fn gradients_travel_in_the_dtype_asked_for() {
    // 1 + 2^-8 has one bit more than bf16, 1 + 2^-11 one more than f16; halves round to even.
    let exact = [1.0 + 2f32.powi(-8), 1.0 + 2f32.powi(-11), 3.5, -70_000.0];
    let expected = |wire| match wire {
        Wire::F32 => exact,
        Wire::BF16 => [1.0, 1.0, 3.5, -70_144.0],
        Wire::F16 => [exact[0], 1.0, 3.5, f32::NEG_INFINITY],
    };
    for wire in [Wire::F32, Wire::BF16, Wire::F16] {
        for copies in [1, 40] {
            let seen = crate::local(2, |comm| {
                let plan = Plan::new(Schedule::GPipe, 2, 1, Costs::default())?;
                let mut pipe = train(&comm, plan).grad_wire(wire).stages(2, |_| Ok(Pass32)).build()?;
                let n = 4 * copies;
                pipe.step(
                    |_| Ok(Act::new([n], vec![0.0; n])?),
                    |_, _| Ok((0.0, Act::new([n], exact.repeat(copies))?)),
                )?;
                Ok(GRADS.take())
            });
            assert_eq!(seen.unwrap(), [vec![expected(wire).repeat(copies)], vec![exact.repeat(copies)]]);
        }
    }
}

#[test]
fn a_stage_that_cannot_be_made_is_named_on_every_rank() {
    for result in crate::local_results(3, |comm| {
        let plan = Plan::new(Schedule::GPipe, 3, 1, Costs::default())?;
        let make = |at: &At<'_, Affine>| match at.index() {
            2 => Err("no weights".into()),
            index => Ok(Affine::new(index)),
        };
        train(&comm, plan).stages(3, make).build().map(|_| ())
    })
    .unwrap()
    {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("rank 2 failed: making stage 2 (Affine): no weights"), "{text}");
    }
}

#[test]
fn ranks_with_different_pipelines_do_not_start() {
    let errors = crate::local_results(2, |comm| {
        let count = 2 + comm.rank().index();
        let plan = Plan::new(Schedule::GPipe, 2, count, Costs::default())?;
        train(&comm, plan).stages(2, |at| Ok(Affine::new(at.index()))).build().map(|_| ())
    })
    .unwrap();
    let text = errors[0].as_ref().unwrap_err().to_string();
    assert!(text.contains("rank 1 called pipeline(gpipe of 3 microbatches on 2 ranks"), "{text}");
    assert!(text.contains("this rank called pipeline(gpipe of 2 microbatches on 2 ranks"), "{text}");
}

#[test]
fn stages_must_fit_the_ranks() {
    for (ranks, schedule, stages, expected) in [
        (2, Schedule::GPipe, 3, "3 stages do not fit 2 ranks: gpipe on 2 ranks has 2 stages, 1 a rank"),
        (2, Schedule::ZbV, 3, "3 stages do not fit 2 ranks: zb_v on 2 ranks has 4 stages, 2 a rank"),
    ] {
        let error = crate::local(ranks, |comm| {
            let plan = Plan::new(schedule, ranks, 4, Costs::default())?;
            train(&comm, plan).stages(stages, |at| Ok(Affine::new(at.index()))).build().map(|_| ())
        });
        let text = error.unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
    }
    let error = crate::local(2, |comm| {
        let plan = Plan::new(Schedule::ForwardOnly(Flow::FillDrain), 2, 4, Costs::default())?;
        train(&comm, plan).stages(2, |at| Ok(Affine::new(at.index()))).build().map(|_| ())
    });
    let text = error.unwrap_err().to_string();
    assert!(text.contains("a pipeline that trains cannot follow the schedule fill_drain"), "{text}");
}

#[test]
fn a_trace_has_every_rank_on_one_time_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    crate::local(3, |comm| {
        let plan = Plan::new(Schedule::OneFOneB, 3, 4, Costs::default())?;
        let mut pipe = train(&comm, plan).trace(&path).stages(3, |at| Ok(Affine::new(at.index()))).build()?;
        pipe.step(|m| Ok(input(0, m, 4)), |m, y| Ok(loss(m, &y)))?;
        pipe.finish()
    })
    .unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    assert_eq!(text.matches("\"thread_name\"").count(), 3);
    assert_eq!(text.matches("\"cat\":\"compute\"").count(), 3 * 4 * 2);
    let time = |line: &str, key: &str| -> f64 {
        let rest = line.split(key).nth(1).unwrap();
        rest.split([',', '}']).next().unwrap().parse().unwrap()
    };
    // What is made on one rank is used after that on the next one, although their clocks are a second apart.
    let find = |rank: usize, what: &str| {
        let line = text.lines().find(|line| line.contains(&format!("\"tid\":{rank},")) && line.contains(what));
        let line = line.unwrap_or_else(|| panic!("{what} of rank {rank} in {text}"));
        (time(line, "\"ts\":"), time(line, "\"dur\":"))
    };
    for rank in 0..2 {
        let (made, used) = (find(rank, "F0 Affine"), find(rank + 1, "F0 Affine"));
        let late = used.0 - made.0 - made.1;
        assert!((-1e5..9e5).contains(&late), "rank {rank}: {late} microseconds between {made:?} and {used:?}");
    }
}
