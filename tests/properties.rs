//! Random calls against plain, single-threaded definitions of what they do.
//!
//! A [`Step`] is one call that all ranks make, with everything that may vary: element type, operation, length, counts,
//! root, the kind of memory each rank lends. [`expected`] says what every rank must hold afterwards.

mod support;

use hccl::prelude::*;
use hccl::{OpKind, Result};
use proptest::collection::vec;
use proptest::prelude::*;
use support::cells::{Cell, cells, reduced, samples};
use support::guarded::{Guarded, Style, untouched};

/// What is called.
#[derive(Clone, Copy, Debug)]
enum What {
    AllReduce,
    AllReduceInto,
    Reduce,
    Broadcast,
    AllGather,
    AllGatherV,
    ReduceScatter,
    ReduceScatterV,
    Scatter,
    Gather,
    AllToAll,
    AllToAllV,
    Shift,
    QueuedAllReduce,
}

const WHATS: [What; 14] = [
    What::AllReduce,
    What::AllReduceInto,
    What::Reduce,
    What::Broadcast,
    What::AllGather,
    What::AllGatherV,
    What::ReduceScatter,
    What::ReduceScatterV,
    What::Scatter,
    What::Gather,
    What::AllToAll,
    What::AllToAllV,
    What::Shift,
    What::QueuedAllReduce,
];

/// One call of all ranks.
#[derive(Clone, Debug)]
struct Step {
    what: What,
    dtype: u8,
    op: usize,
    len: usize,
    /// Element `from * 6 + to`: what one rank gives another.
    counts: Vec<usize>,
    root: usize,
    /// Kinds of memory, by rank: for sending, then for receiving.
    styles: Vec<usize>,
}

fn steps(calls: usize) -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![4 => 0_usize..40, 3 => 40_usize..1500, 2 => 1500_usize..5000, 1 => 5000_usize..40_000];
    let count = prop_oneof![Just(0), 0_usize..9, 0_usize..400, Just(1100)];
    let step = (0..WHATS.len(), 0_u8..12, 0_usize..5, len, vec(count, 36), 0_usize..6, vec(0_usize..3, 12));
    let step = step.prop_map(|(what, dtype, op, len, counts, root, styles)| Step {
        what: WHATS[what],
        dtype,
        op,
        len,
        counts,
        root,
        styles,
    });
    vec(step, 1..=calls)
}

/// Runs `$call::<T>` for the step's element type.
macro_rules! typed {
    ($step:expr, $call:ident($($arg:expr),*)) => {
        match $step.dtype {
            0 => $call::<i8>($($arg),*),
            1 => $call::<u8>($($arg),*),
            2 => $call::<i16>($($arg),*),
            3 => $call::<u16>($($arg),*),
            4 => $call::<i32>($($arg),*),
            5 => $call::<u32>($($arg),*),
            6 => $call::<i64>($($arg),*),
            7 => $call::<u64>($($arg),*),
            8 => $call::<half::f16>($($arg),*),
            9 => $call::<half::bf16>($($arg),*),
            10 => $call::<f32>($($arg),*),
            _ => $call::<f64>($($arg),*),
        }
    };
}

/// Runs an expression with the step's operation, as `$name`; averages are tried by the laws of conformance.
macro_rules! operated {
    ($step:expr, $name:ident: $call:expr) => {
        match $step.op % 4 {
            0 => {
                let $name = Sum;
                $call
            }
            1 => {
                let $name = Prod;
                $call
            }
            2 => {
                let $name = Min;
                $call
            }
            _ => {
                let $name = Max;
                $call
            }
        }
    };
}

impl Step {
    fn op(&self) -> OpKind {
        OpKind::ALL[self.op % 4]
    }

    fn count(&self, from: usize, to: usize) -> usize {
        self.counts[from * 6 + to]
    }

    /// Elements that rank `rank` of `n` gives, and that it takes.
    fn lengths(&self, rank: usize, n: usize) -> (usize, usize) {
        let row = |rank: usize| (0..n).map(|to| self.count(rank, to)).sum::<usize>();
        let column = |rank: usize| (0..n).map(|from| self.count(from, rank)).sum::<usize>();
        match self.what {
            What::AllGather | What::Gather => (self.len, self.len * n),
            What::ReduceScatter | What::Scatter => (self.len * n, self.len),
            What::AllToAll => (self.len * n, self.len * n),
            What::AllGatherV => (self.count(0, rank), row(0)),
            What::ReduceScatterV => (row(0), self.count(0, rank)),
            What::AllToAllV => (row(rank), column(rank)),
            _ => (self.len, self.len),
        }
    }

    fn reduces(&self) -> bool {
        use What::{AllReduce, AllReduceInto, QueuedAllReduce, Reduce, ReduceScatter, ReduceScatterV};
        matches!(self.what, AllReduce | AllReduceInto | QueuedAllReduce | Reduce | ReduceScatter | ReduceScatterV)
    }

    /// What rank `rank` gives.
    fn input<T: Cell>(&self, rank: usize, n: usize) -> Vec<T> {
        let (len, _) = self.lengths(rank, n);
        if self.reduces() { samples(len, rank, n) } else { cells(len, rank, n) }
    }
}

/// What rank `rank` holds after the step: the plain definition of every call.
fn expected<T: Cell>(step: &Step, rank: usize, n: usize) -> Vec<T> {
    let root = step.root % n;
    let inputs: Vec<Vec<T>> = (0..n).map(|rank| step.input(rank, n)).collect();
    let (sent, taken) = step.lengths(rank, n);
    let sum = || reduced(step.op(), &inputs);
    let start = |from: usize| (0..rank).map(|to| step.count(from, to)).sum::<usize>();
    match step.what {
        What::AllReduce | What::AllReduceInto | What::QueuedAllReduce => sum(),
        What::Reduce if rank == root => sum(),
        What::Reduce => inputs[rank].clone(),
        What::Broadcast => inputs[root].clone(),
        What::Gather if rank != root => untouched(taken),
        What::AllGather | What::AllGatherV | What::Gather => inputs.concat(),
        What::ReduceScatter => sum()[rank * step.len..][..step.len].to_vec(),
        What::ReduceScatterV => sum()[start(0)..][..taken].to_vec(),
        What::Scatter => inputs[root][rank * step.len..][..step.len].to_vec(),
        What::AllToAll => inputs.iter().flat_map(|input| input[rank * step.len..][..step.len].to_vec()).collect(),
        What::AllToAllV => {
            let piece = |from: usize| inputs[from][start(from)..][..step.count(from, rank)].to_vec();
            (0..n).flat_map(piece).collect()
        }
        What::Shift => {
            assert_eq!(sent, taken);
            inputs[(rank + n - 1) % n].clone()
        }
    }
}

/// Makes the step's call on this rank and compares.
fn run<T: Cell>(step: &Step, comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    let root = comm.root(step.root % n)?;
    let here = comm.is_root(root);
    let input = step.input::<T>(rank, n);
    let (_, taken) = step.lengths(rank, n);
    let mut send = Guarded::new(comm, Style::ALL[step.styles[rank]], &input)?;
    let in_place = matches!(step.what, What::AllReduce | What::Reduce | What::Broadcast);
    let mut recv = Guarded::<T>::empty(comm, Style::ALL[step.styles[6 + rank]], taken)?;
    let counts = |of: fn(&Step, usize, usize) -> usize| (0..n).map(|r| of(step, rank, r)).collect::<Vec<usize>>();
    let same = counts(|step, _, r| step.count(0, r));
    let given = counts(|step, rank, r| step.count(rank, r));
    let asked = counts(|step, rank, r| step.count(r, rank));
    let (next, last) = (comm.peer((rank + 1) % n)?, comm.peer((rank + n - 1) % n)?);
    match step.what {
        What::AllReduce => operated!(step, op: lend!(send => buf: comm.all_reduce(buf, op)?)),
        What::Reduce => operated!(step, op: lend!(send => buf: comm.reduce(buf, op, root)?)),
        What::Broadcast => lend!(send => buf: comm.broadcast(buf, root)?),
        What::QueuedAllReduce => {
            let reduced = operated!(step, op: comm.all_reduce_async(input.clone(), op)?).wait()?;
            recv = Guarded::new(comm, Style::Plain, &reduced)?;
        }
        What::Shift if n == 1 => recv = Guarded::new(comm, Style::Plain, &input)?,
        _ => lend!(send => send: lend!(recv => recv: match step.what {
            What::AllReduceInto => operated!(step, op: comm.all_reduce_into(&*send, recv, op)?),
            What::AllGather => comm.all_gather(&*send, recv)?,
            What::AllGatherV => comm.all_gather_v(&*send, recv, &same)?,
            What::ReduceScatter => operated!(step, op: comm.reduce_scatter(&*send, recv, op)?),
            What::ReduceScatterV => operated!(step, op: comm.reduce_scatter_v(&*send, recv, &same, op)?),
            What::Scatter => comm.scatter(here.then_some(&*send), recv, root)?,
            What::Gather => comm.gather(&*send, here.then_some(recv), root)?,
            What::AllToAll => comm.all_to_all(&*send, recv)?,
            What::AllToAllV => comm.all_to_all_v(&*send, &given, recv, &asked)?,
            _ => comm.batch_send_recv(|batch| {
                batch.send(&*send, next)?;
                batch.recv(recv, last)
            })?,
        })),
    }
    let expected = expected::<T>(step, rank, n);
    let what = format!("{step:?} on rank {rank} of {n}");
    if in_place {
        send.expect(&expected, &what);
    } else {
        send.expect(&input, &what);
        recv.expect(&expected, &what);
    }
    Ok(())
}

fn run_all(steps: &[Step], comm: &Communicator) -> Result<()> {
    steps.iter().try_for_each(|step| typed!(step, run(step, comm)))
}

/// The same cases in every process and every run.
fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(120))]

    #[test]
    fn calls_do_what_they_say_threads(n in 1_usize..=6, steps in steps(6)) {
        let done = hccl::local(n, |comm| run_all(&steps, &comm));
        prop_assert!(done.is_ok(), "{}", done.unwrap_err());
    }

    /// all_gather after reduce_scatter is all_reduce; all_to_all twice is nothing; gather and scatter are inverse.
    #[test]
    fn algebra(n in 1_usize..=6, each in 0_usize..3000, seed in any::<u32>()) {
        let done = hccl::local(n, |comm| {
            let rank = comm.rank().index();
            let own: Vec<u32> = cells::<u32>(each * n, rank, n).into_iter().map(|x| x ^ seed).collect();
            let (mut whole, mut parts) = (own.clone(), own.clone());
            comm.all_reduce(&mut whole, Sum)?;
            comm.reduce_scatter_in_place(&mut parts, Sum)?;
            comm.all_gather_in_place(&mut parts)?;
            assert_eq!(whole, parts);
            let (mut once, mut twice) = (vec![0; own.len()], vec![0; own.len()]);
            comm.all_to_all(&own, &mut once)?;
            comm.all_to_all(&once, &mut twice)?;
            assert_eq!(twice, own);
            let root = comm.root(seed as usize % n)?;
            let (mut part, mut back) = (vec![0; each], vec![0; own.len()]);
            comm.scatter(Some(&own), &mut part, root)?;
            comm.gather(&part, Some(&mut back), root)?;
            if comm.is_root(root) {
                assert_eq!(back, own);
            }
            let (mut least, mut negated) = (own.clone(), own.iter().map(|x| !x).collect::<Vec<u32>>());
            comm.all_reduce(&mut least, Min)?;
            comm.all_reduce(&mut negated, Max)?;
            assert!(least.iter().zip(&negated).all(|(least, most)| *least == !most));
            Ok(())
        });
        prop_assert!(done.is_ok(), "{}", done.unwrap_err());
    }
}

/// Every process draws the same cases from the same seed.
#[cfg(target_os = "linux")]
#[test]
fn calls_do_what_they_say_processes() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
    for (n, stage) in [(2, "1024"), (3, "262144"), (5, "4096")] {
        support::processes_with("calls_do_what_they_say_processes", n, &[("HCCL_STAGE_BYTES", stage)], |comm| {
            let seed = [comm.size() as u8 + 40; 32];
            let mut runner = TestRunner::new_with_rng(config(1), TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
            for _ in 0..40 {
                run_all(&steps(6).new_tree(&mut runner).unwrap().current(), comm)?;
            }
            Ok(())
        });
    }
}
