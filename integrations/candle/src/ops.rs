//! Collectives that candle can differentiate.
//!
//! | forward | backward of the gradient |
//! | --- | --- |
//! | [`all_reduce`] with `Sum` (`Avg`) | all_reduce with `Sum` (`Avg`) |
//! | [`all_gather`] | reduce_scatter with `Sum` |
//! | [`reduce_scatter`] with `Sum` (`Avg`) | all_gather (times 1/n) |
//! | [`broadcast`] | sum of all ranks' gradients on the root, zeros elsewhere |
//!
//! The convention is that of one program on n ranks (SPMD): what is differentiated is the **sum of the losses of all
//! ranks**. So a loss that every rank computes alike counts n times: average gradients, or divide the loss, where that is
//! not meant. Consequences:
//!
//! - Every rank builds the same graph and calls `backward` on it; the backward collectives then meet in the same order.
//!   A rank whose loss does not depend on a collective's result makes the others wait until their deadline.
//! - Gradients of the results are taken as they come: they differ between ranks where losses do.
//!
//! A communicator is one queue of one thread, and candle's operations must be `Send` and `Sync`: [`SharedComm`] puts it
//! behind a lock.
//!
//! ```
//! use candle_core::{Device, Var};
//! use hccl_candle::ops::{self, SharedComm};
//!
//! let grads = hccl_candle::local(2, |comm| {
//!     let scale = comm.rank().index() as f64 + 1.0;
//!     let comm = SharedComm::new(comm);
//!     let x = Var::new(&[1f32, 2.0], &Device::Cpu)?;
//!     let y = ops::all_reduce(&comm, &x, hccl::Sum)?;            // y = x0 + x1 on both ranks
//!     let grads = y.affine(scale, 0.0)?.sum_all()?.backward()?;  // the losses are y and 2 y
//!     Ok(grads.get(&x).map(|g| g.to_vec1::<f32>()).transpose()?)
//! })?;
//! assert_eq!(grads, [Some(vec![3.0, 3.0]), Some(vec![3.0, 3.0])]);
//! # Ok::<(), hccl_candle::Error>(())
//! ```

use crate::error::{Error, Result};
use crate::nn::StatsReduce;
use crate::storage;
use crate::tensor::TensorCollectives;
use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor};
use hccl::{Avg, Axis, Communicator, OpKind, Root, Sum, World};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// A communicator that operations in a graph hold on to: clones are the same queue, behind a lock.
///
/// Use from two threads at once keeps memory safe, not the order of calls: that must stay the same on all ranks.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use hccl_candle::{SharedComm, ops};
/// /// A layer that holds its communicator.
/// struct Slices(SharedComm, Var);
/// impl Slices {
///     fn forward(&self, x: &Tensor) -> hccl_candle::Result<Tensor> {
///         ops::all_reduce(&self.0, &(x * self.1.as_tensor())?, hccl::Sum)
///     }
/// }
/// let out = hccl_candle::local(2, |comm| {
///     let weight = Var::new(&[comm.rank().index() as f32 + 1.0], &Device::Cpu)?;
///     let layer = Slices(SharedComm::new(comm), weight);
///     Ok(layer.forward(&Tensor::new(&[2f32], &Device::Cpu)?)?.to_vec1::<f32>()?)
/// })?;
/// assert_eq!(out, [[6.0]; 2]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
pub struct SharedComm<A: Axis = World>(Arc<Queue<A>>);

struct Queue<A: Axis> {
    comm: Mutex<Communicator<A>>,
    /// The thread that has `comm`, which must not wait for it.
    holder: Mutex<Option<ThreadId>>,
}

/// The communicator of a [`SharedComm`], for this thread alone until dropped; made by [`SharedComm::lock`].
///
/// ```
/// use hccl_candle::ops::{Locked, SharedComm};
/// fn logged(comm: Locked<'_>, loss: f32) -> hccl_candle::Result<f32> {
///     let mut mean = [loss];
///     comm.all_reduce(&mut mean, hccl::Avg)?;
///     Ok(mean[0])
/// }
/// let out = hccl_candle::local(2, |comm| {
///     let loss = comm.rank().index() as f32;
///     logged(SharedComm::new(comm).lock(), loss)
/// })?;
/// assert_eq!(out, [0.5; 2]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
pub struct Locked<'a, A: Axis = World> {
    comm: MutexGuard<'a, Communicator<A>>,
    holder: &'a Mutex<Option<ThreadId>>,
}

impl<A: Axis> Deref for Locked<'_, A> {
    type Target = Communicator<A>;

    fn deref(&self) -> &Communicator<A> {
        &self.comm
    }
}

impl<A: Axis> Drop for Locked<'_, A> {
    fn drop(&mut self) {
        // Before `comm` is given up, so that the next holder's name is not wiped out.
        *unpoisoned(self.holder) = None;
    }
}

/// A panic of another holder is no reason to stop: the communicator's own state says whether it is still good.
fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<A: Axis> SharedComm<A> {
    /// Takes the communicator.
    ///
    /// ```
    /// use hccl_candle::SharedComm;
    /// let out = hccl_candle::local(2, |comm| {
    ///     let comm = SharedComm::new(comm);
    ///     let same_queue = comm.clone();
    ///     let size = comm.lock().size();
    ///     Ok((size, same_queue.lock().rank().index()))
    /// })?;
    /// assert_eq!(out, [(2, 0), (2, 1)]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn new(comm: Communicator<A>) -> Self {
        SharedComm(Arc::new(Queue { comm: Mutex::new(comm), holder: Mutex::new(None) }))
    }

    /// The communicator, until the guard is dropped. Other threads wait meanwhile; on this thread the operations of this
    /// module are errors, as they need the communicator themselves.
    ///
    /// A panic of another holder is ignored: the communicator's own state says whether it is still good.
    ///
    /// ```
    /// use hccl_candle::SharedComm;
    /// let out = hccl_candle::local(2, |comm| {
    ///     let comm = SharedComm::new(comm);
    ///     let mut x = [comm.lock().rank().index() as i32 + 1];
    ///     comm.lock().all_reduce(&mut x, hccl::Sum)?; // outside the graph
    ///     Ok(x[0])
    /// })?;
    /// assert_eq!(out, [3, 3]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Panics
    /// When this thread has it already: it would wait for itself for ever.
    #[track_caller]
    pub fn lock(&self) -> Locked<'_, A> {
        match self.hold("lock") {
            Ok(locked) => locked,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`lock`](Self::lock), with an error where that panics.
    fn hold(&self, op: &'static str) -> Result<Locked<'_, A>> {
        let Queue { comm, holder } = &*self.0;
        let this = std::thread::current().id();
        if *unpoisoned(holder) == Some(this) {
            return Err(Error::invalid(format!(
                "{op}: this thread has locked the SharedComm already (hint: let the guard of `SharedComm::lock` go first, \
                 with `drop` or at the end of a block; a guard made inside an expression goes at its end)"
            )));
        }
        let comm = unpoisoned(comm);
        *unpoisoned(holder) = Some(this);
        Ok(Locked { comm, holder })
    }
}

/// Statistics of synchronised BatchNorm over this group. Give the layers a communicator of their own
/// ([`Communicator::duplicate`]): gradients may travel on the other at the same time.
///
/// ```
/// use hccl_candle::nn::StatsReduce;
/// use hccl_candle::ops::SharedComm;
/// let sums = hccl_candle::local(2, |comm| {
///     let mut values = [comm.rank().index() as f64, 10.0];
///     SharedComm::new(comm).all_reduce_sum(&mut values)?;
///     Ok(values)
/// })?;
/// assert_eq!(sums, [[1.0, 20.0]; 2]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
impl<A: Axis> StatsReduce for SharedComm<A> {
    fn all_reduce_sum(&self, values: &mut [f64]) -> candle_core::Result<()> {
        Ok(self.hold("all_reduce")?.all_reduce(values, Sum).map_err(Error::from)?)
    }
}

impl<A: Axis> Clone for SharedComm<A> {
    fn clone(&self) -> Self {
        SharedComm(self.0.clone())
    }
}

impl<A: Axis> std::fmt::Debug for SharedComm<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedComm")
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for hccl::Sum {}
    impl Sealed for hccl::Avg {}
}

/// Operations with an adjoint: [`Sum`] and [`Avg`].
///
/// ```
/// use candle_core::{Device, Tensor};
/// use hccl_candle::ops::{self, Linear, SharedComm};
/// fn join<Op: Linear>(comm: &SharedComm, x: &Tensor, op: Op) -> hccl_candle::Result<f32> {
///     Ok(ops::all_reduce(comm, x, op)?.to_scalar()?)
/// }
/// let out = hccl_candle::local(2, |comm| {
///     let x = Tensor::new(comm.rank().index() as f32, &Device::Cpu)?;
///     let comm = SharedComm::new(comm);
///     Ok((join(&comm, &x, hccl::Sum)?, join(&comm, &x, hccl::Avg)?))
/// })?;
/// assert_eq!(out, [(1.0, 0.5); 2]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no gradient across ranks",
    label = "not differentiable",
    note = "differentiable reductions are `Sum` and `Avg`",
    note = "outside a graph, `TensorCollectives` reduces with every operation"
)]
pub trait Linear: sealed::Sealed + Copy + Send + Sync + 'static {
    /// The run-time name.
    const KIND: OpKind;
}

impl Linear for Sum {
    const KIND: OpKind = OpKind::Sum;
}

impl Linear for Avg {
    const KIND: OpKind = OpKind::Avg;
}

/// Reduces over all ranks; every rank gets the same bits, in fresh memory.
///
/// ```
/// use candle_core::{Device, Var};
/// use hccl_candle::ops::{self, SharedComm};
/// let out = hccl_candle::local(2, |comm| {
///     let x = Var::new(comm.rank().index() as f32 + 1.0, &Device::Cpu)?;
///     let y = ops::all_reduce(&SharedComm::new(comm), &x, hccl::Sum)?;
///     let grads = y.sqr()?.backward()?; // 2 y of each rank's loss
///     Ok((y.to_scalar::<f32>()?, grads.get(&x).map(|grad| grad.to_scalar::<f32>()).transpose()?))
/// })?;
/// assert_eq!(out, [(3.0, Some(12.0)); 2]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
///
/// # Errors
/// Those of [`TensorCollectives::all_reduce_tensor`].
pub fn all_reduce<A: Axis, Op: Linear>(comm: &SharedComm<A>, x: &Tensor, _: Op) -> Result<Tensor> {
    apply(x, comm, Kind::AllReduce(Op::KIND))
}

/// All ranks' tensors along the first axis: `[d, …]` gives `[n * d, …]`.
///
/// ```
/// use candle_core::{Device, Var};
/// use hccl_candle::ops::{self, SharedComm};
/// let out = hccl_candle::local(2, |comm| {
///     let x = Var::new(&[comm.rank().index() as f32 + 1.0], &Device::Cpu)?;
///     let y = ops::all_gather(&SharedComm::new(comm), &x)?;
///     let grads = y.sqr()?.sum_all()?.backward()?;
///     Ok((y.to_vec1::<f32>()?, grads.get(&x).map(|grad| grad.to_vec1::<f32>()).transpose()?))
/// })?;
/// assert_eq!(out, [(vec![1.0, 2.0], Some(vec![4.0])), (vec![1.0, 2.0], Some(vec![8.0]))]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
///
/// # Errors
/// Those of [`TensorCollectives::all_gather_tensor`].
pub fn all_gather<A: Axis>(comm: &SharedComm<A>, x: &Tensor) -> Result<Tensor> {
    apply(x, comm, Kind::AllGather)
}

/// Reduces over all ranks and leaves rank r with the r-th part of the first axis: `[n * d, …]` gives `[d, …]`.
///
/// ```
/// use candle_core::{Device, Var};
/// use hccl_candle::ops::{self, SharedComm};
/// let out = hccl_candle::local(2, |comm| {
///     let x = Var::new(&[comm.rank().index() as f32, 10.0], &Device::Cpu)?;
///     let y = ops::reduce_scatter(&SharedComm::new(comm), &x, hccl::Sum)?;
///     let grads = y.sqr()?.sum_all()?.backward()?;
///     Ok((y.to_vec1::<f32>()?, grads.get(&x).map(|grad| grad.to_vec1::<f32>()).transpose()?))
/// })?;
/// assert_eq!(out, [(vec![1.0], Some(vec![2.0, 40.0])), (vec![20.0], Some(vec![2.0, 40.0]))]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
///
/// # Errors
/// Those of [`TensorCollectives::reduce_scatter_tensor`].
pub fn reduce_scatter<A: Axis, Op: Linear>(comm: &SharedComm<A>, x: &Tensor, _: Op) -> Result<Tensor> {
    apply(x, comm, Kind::ReduceScatter(Op::KIND))
}

/// The root's values on every rank. `x` gives shape and dtype elsewhere, and its gradient there is zero.
///
/// ```
/// use candle_core::{Device, Var};
/// use hccl_candle::ops::{self, SharedComm};
/// let out = hccl_candle::local(2, |comm| {
///     let (x, root) = (Var::new(comm.rank().index() as f32 + 3.0, &Device::Cpu)?, comm.root(1)?);
///     let y = ops::broadcast(&SharedComm::new(comm), &x, root)?;
///     let grads = y.backward()?;
///     Ok((y.to_scalar::<f32>()?, grads.get(&x).map(|grad| grad.to_scalar::<f32>()).transpose()?))
/// })?;
/// assert_eq!(out, [(4.0, Some(0.0)), (4.0, Some(2.0))]); // the root has both ranks' gradients
/// # Ok::<(), hccl_candle::Error>(())
/// ```
///
/// # Errors
/// Those of [`TensorCollectives::broadcast_tensor`].
pub fn broadcast<A: Axis>(comm: &SharedComm<A>, x: &Tensor, root: Root<A>) -> Result<Tensor> {
    apply(x, comm, Kind::Broadcast(root))
}

fn apply<A: Axis>(x: &Tensor, comm: &SharedComm<A>, kind: Kind<A>) -> Result<Tensor> {
    let name = kind.name();
    storage::check_device(name, x)?;
    storage::check_dtype(name, x.dtype())?;
    Ok(x.apply_op1(Collective { comm: comm.clone(), kind })?)
}

/// What the forward pass does.
enum Kind<A: Axis> {
    AllReduce(OpKind),
    AllGather,
    ReduceScatter(OpKind),
    Broadcast(Root<A>),
}

impl<A: Axis> Clone for Kind<A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A: Axis> Copy for Kind<A> {}

impl<A: Axis> Kind<A> {
    fn name(self) -> &'static str {
        match self {
            Kind::AllReduce(_) => "all_reduce",
            Kind::AllGather => "all_gather",
            Kind::ReduceScatter(_) => "reduce_scatter",
            Kind::Broadcast(_) => "broadcast",
        }
    }

    /// The collective itself, on a tensor that nobody else has.
    fn run(self, comm: &Communicator<A>, x: Tensor) -> Result<Tensor> {
        match self {
            Kind::AllReduce(OpKind::Avg) => comm.all_reduce_tensor(&x, Avg)?,
            Kind::AllReduce(_) => comm.all_reduce_tensor(&x, Sum)?,
            Kind::Broadcast(root) => comm.broadcast_tensor(&x, root)?,
            Kind::AllGather => return comm.all_gather_tensor(&x),
            Kind::ReduceScatter(OpKind::Avg) => return comm.reduce_scatter_tensor(&x, Avg),
            Kind::ReduceScatter(_) => return comm.reduce_scatter_tensor(&x, Sum),
        }
        Ok(x)
    }

    /// The adjoint, on a gradient that nobody else has.
    fn adjoint(self, comm: &Communicator<A>, grad: Tensor) -> Result<Tensor> {
        match self {
            Kind::AllReduce(op) => Kind::AllReduce(op).run(comm, grad),
            Kind::AllGather => Kind::ReduceScatter(OpKind::Sum).run(comm, grad),
            Kind::ReduceScatter(op) => {
                let all = comm.all_gather_tensor(&grad)?;
                Ok(if op == OpKind::Avg { all.affine(1.0 / comm.size() as f64, 0.0)? } else { all })
            }
            Kind::Broadcast(root) => {
                // A sum on every rank where one on the root would do: the same bits, and one kind of call to go wrong.
                comm.all_reduce_tensor(&grad, Sum)?;
                if comm.rank().index() == root.index() { Ok(grad) } else { Ok(grad.zeros_like()?) }
            }
        }
    }
}

struct Collective<A: Axis> {
    comm: SharedComm<A>,
    kind: Kind<A>,
}

impl<A: Axis> CustomOp1 for Collective<A> {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let x = storage::copy(self.name(), storage, layout)?;
        let y = self.kind.run(&*self.comm.hold(self.name())?, x)?;
        let shape = y.shape().clone();
        Ok((storage::take(self.name(), &y)?, shape))
    }

    fn bwd(&self, arg: &Tensor, _: &Tensor, grad: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let grad = self.kind.adjoint(&*self.comm.hold(self.name())?, grad.force_contiguous()?)?;
        // A scalar was gathered as `[1]`.
        Ok(Some(grad.reshape(arg.shape())?))
    }
}
