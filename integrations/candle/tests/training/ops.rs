use crate::support::flat;
use candle_core::{DType, Device, Tensor, Var};
use hccl::{Avg, Communicator, Sum};
use hccl_candle::ops::{self, SharedComm};
use hccl_candle::{Result, local};

const ROWS: usize = 6;

/// What a rank computes of its input, before a loss of its own.
type Op = fn(&SharedComm, &Tensor) -> Result<Tensor>;

fn all_reduce_sum(comm: &SharedComm, x: &Tensor) -> Result<Tensor> {
    ops::all_reduce(comm, x, Sum)
}

fn all_reduce_avg(comm: &SharedComm, x: &Tensor) -> Result<Tensor> {
    ops::all_reduce(comm, x, Avg)
}

fn all_gather(comm: &SharedComm, x: &Tensor) -> Result<Tensor> {
    ops::all_gather(comm, x)
}

fn reduce_scatter_sum(comm: &SharedComm, x: &Tensor) -> Result<Tensor> {
    ops::reduce_scatter(comm, x, Sum)
}

fn reduce_scatter_avg(comm: &SharedComm, x: &Tensor) -> Result<Tensor> {
    ops::reduce_scatter(comm, x, Avg)
}

fn broadcast(comm: &SharedComm, x: &Tensor) -> Result<Tensor> {
    let root = comm.lock().root(1)?;
    ops::broadcast(comm, x, root)
}

/// The collective in the middle of a graph: what is differentiated is no variable, and the view is strided.
fn loss(comm: &SharedComm, op: Op, x: &Tensor, rank: usize) -> Result<Tensor> {
    let y = op(comm, &x.sqr()?.t()?.contiguous()?.t()?)?;
    let weights: Vec<f64> = (0..y.elem_count()).map(|i| (i + 1) as f64 * 0.3 + rank as f64).collect();
    let weights = Tensor::from_vec(weights, y.dims(), &Device::Cpu)?;
    Ok((y.sin()? * weights)?.sum_all()?)
}

fn input(rank: usize) -> Vec<f64> {
    (0..ROWS * 2).map(|i| 0.2 + 0.1 * i as f64 + 0.37 * rank as f64).collect()
}

fn gradient(comm: Communicator, op: Op) -> Result<Vec<f64>> {
    let rank = comm.rank().index();
    let comm = SharedComm::new(comm);
    let x = Var::from_vec(input(rank), (ROWS, 2), &Device::Cpu)?;
    let grads = loss(&comm, op, &x, rank)?.backward()?;
    flat(grads.get(&x).expect("a gradient"))
}

/// The sum over all ranks of their losses, with one element of one rank moved.
fn total(n: usize, op: Op, who: usize, at: usize, by: f64) -> f64 {
    let losses = local(n, |comm| {
        let rank = comm.rank().index();
        let mut values = input(rank);
        if rank == who {
            values[at] += by;
        }
        let x = Tensor::from_vec(values, (ROWS, 2), &Device::Cpu)?;
        Ok(loss(&SharedComm::new(comm), op, &x, rank)?.to_scalar::<f64>()?)
    });
    losses.unwrap().iter().sum()
}

fn check(op: Op) {
    for n in [2, 3] {
        let gradients = local(n, |comm| gradient(comm, op)).unwrap();
        for (rank, gradient) in gradients.iter().enumerate() {
            for at in [0, 3, ROWS * 2 - 1] {
                let step = 1e-6;
                let slope = (total(n, op, rank, at, step) - total(n, op, rank, at, -step)) / (2.0 * step);
                let found = gradient[at];
                assert!((found - slope).abs() < 1e-7, "{n} ranks, rank {rank}, element {at}: {found}, not {slope}");
            }
        }
    }
}

#[test]
fn all_reduce_is_differentiable() {
    check(all_reduce_sum);
    check(all_reduce_avg);
}

#[test]
fn all_gather_is_differentiable() {
    check(all_gather);
}

#[test]
fn reduce_scatter_is_differentiable() {
    check(reduce_scatter_sum);
    check(reduce_scatter_avg);
}

#[test]
fn broadcast_is_differentiable() {
    check(broadcast);
}

#[test]
fn a_scalar_is_gathered_and_differentiated() {
    let results = local(2, |comm| {
        let rank = comm.rank().index();
        let comm = SharedComm::new(comm);
        let x = Var::new(rank as f32 + 2.0, &Device::Cpu)?;
        let y = ops::all_gather(&comm, &x)?;
        let grads = (y.clone() * Tensor::new(&[10f32, 100.0], &Device::Cpu)?)?.sum_all()?.backward()?;
        let gradient = grads.get(&x).expect("a gradient");
        assert_eq!(gradient.rank(), 0);
        Ok((y.to_vec1::<f32>()?, gradient.to_scalar::<f32>()?))
    });
    assert_eq!(results.unwrap(), [(vec![2.0, 3.0], 20.0), (vec![2.0, 3.0], 200.0)]);
}

#[test]
fn the_input_keeps_its_values() {
    let results = local(2, |comm| {
        let x = Tensor::ones((2, 2), DType::F32, &Device::Cpu)?;
        let y = ops::all_reduce(&SharedComm::new(comm), &x, Sum)?;
        Ok((flat(&x)?, flat(&y)?))
    });
    assert_eq!(results.unwrap(), vec![(vec![1.0; 4], vec![2.0; 4]); 2]);
}

/// Whoever waited for itself would wait for ever.
#[test]
fn a_communicator_that_this_thread_holds_is_an_error_and_no_wait() {
    let errors = local(2, |comm| {
        let comm = SharedComm::new(comm);
        let x = Var::new(&[1f32], &Device::Cpu)?;
        let held = comm.lock();
        let error = ops::all_reduce(&comm.clone(), &x, Sum).unwrap_err().to_string();
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| comm.lock().size())).unwrap_err();
        held.barrier()?; // no call was half done
        drop(held);
        let y = ops::all_reduce(&comm, &x, Sum)?;
        assert_eq!(flat(&y)?, [2.0]);
        let held = comm.lock();
        let backward = y.backward().unwrap_err().to_string();
        drop(held);
        Ok([error, backward, panic.downcast_ref::<String>().cloned().unwrap_or_default()])
    })
    .unwrap();
    for (error, op) in errors.iter().flatten().zip(["all_reduce", "all_reduce", "lock"].iter().cycle()) {
        assert!(error.starts_with(&format!("{op}: this thread has locked the SharedComm already")), "{error}");
        assert!(error.contains("(hint: let the guard of `SharedComm::lock` go first"), "{error}");
    }
}

/// Other threads only wait their turn.
#[test]
fn a_communicator_that_another_thread_holds_is_waited_for() {
    let sums = local(2, |comm| {
        let comm = SharedComm::new(comm);
        let held = comm.lock();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| comm.lock().rank().index());
            std::thread::sleep(std::time::Duration::from_millis(20));
            held.barrier()?;
            drop(held);
            Ok(other.join().expect("a rank"))
        })
    });
    assert_eq!(sums.unwrap(), [0, 1]);
}
