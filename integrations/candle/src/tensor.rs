//! Collectives on candle tensors, of any layout and of every dtype that travels.
//!
//! ```text
//! tensor                      memory the collective works on
//! contiguous (also a view)    the tensor's own: nothing is copied
//! strided                     a row-major copy, written back when the call succeeded
//! broadcast (stride 0)        refused where it would be written
//! ```
//!
//! - Calls that return nothing change the tensor's own memory: clones and views of it see the result, and so does a
//!   graph that saved it. The tensor's lock is held until the ranks have met.
//! - U8, U32, I16, I32, I64, BF16, F16, F32 and F64 travel; every other dtype is refused by name. candle has no tensors
//!   on an NPU, and tensors on CUDA or Metal are refused.
//! - Shapes are not exchanged, lengths and dtypes are (by every call of hccl): ranks that pass equal lengths in different
//!   shapes get their own shape back. [`all_gather_tensor_v`](TensorCollectives::all_gather_tensor_v) and the messages
//!   do exchange shapes.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use hccl_candle::TensorCollectives;
//!
//! let sums = hccl_candle::local(2, |comm| {
//!     let t = Tensor::new(&[[1f32, 2.0], [3.0, 4.0]], &Device::Cpu)?.affine(comm.rank().index() as f64 + 1.0, 0.0)?;
//!     comm.all_reduce_tensor(&t.t()?, hccl::Sum)?;     // a transposed view: `t` itself is summed
//!     Ok(t.to_vec2::<f32>()?)
//! })?;
//! assert_eq!(sums[1], [[3.0, 6.0], [9.0, 12.0]]);
//! # Ok::<(), hccl_candle::Error>(())
//! ```

mod message;

pub use message::MAX_DIMS;

use crate::error::{Error, Result};
use crate::storage::{self, Elem, Visit, VisitMut};
use candle_core::{Device, Shape, Tensor};
use hccl::{Axis, Communicator, OpKind, Peer, ReduceOp, Root};

/// Collectives on tensors, for every [`Communicator`]. The [module page](self) says what is copied.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use hccl_candle::TensorCollectives;
/// let norms = hccl_candle::local(2, |comm| {
///     let x = Tensor::new(&[comm.rank().index() as f32 * 6.0, 4.0], &Device::Cpu)?;
///     comm.all_reduce_tensor(&x, hccl::Avg)?;
///     Ok(x.sqr()?.sum_all()?.sqrt()?.to_scalar::<f32>()?)
/// })?;
/// assert_eq!(norms, [5.0, 5.0]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
pub trait TensorCollectives<A: Axis> {
    /// Reduces over all ranks, in place; every rank gets the same bits.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use hccl_candle::TensorCollectives;
    /// let out = hccl_candle::local(2, |comm| {
    ///     let x = Tensor::new(&[[1f32, comm.rank().index() as f32]], &Device::Cpu)?;
    ///     comm.all_reduce_tensor(&x, hccl::Sum)?;
    ///     Ok(x.to_vec2::<f32>()?)
    /// })?;
    /// assert_eq!(out, [[[2.0, 1.0]]; 2]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// A dtype that does not travel, [`Avg`](hccl::Avg) of integers, a broadcast view, a tensor off the CPU; ranks that
    /// differ in length, dtype or operation; a lost peer.
    fn all_reduce_tensor<Op: ReduceOp<f32>>(&self, tensor: &Tensor, op: Op) -> Result<()>;

    /// The root's values into every rank's tensor, in place.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use hccl_candle::TensorCollectives;
    /// let out = hccl_candle::local(2, |comm| {
    ///     let weight = Tensor::new(&[comm.rank().index() as f32 + 3.0; 2], &Device::Cpu)?;
    ///     comm.broadcast_tensor(&weight, comm.root(1)?)?;
    ///     Ok(weight.to_vec1::<f32>()?)
    /// })?;
    /// assert_eq!(out, [[4.0; 2]; 2]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`all_reduce_tensor`](Self::all_reduce_tensor).
    fn broadcast_tensor(&self, tensor: &Tensor, root: Root<A>) -> Result<()>;

    /// All ranks' tensors, one after the other along the first axis: `[d, …]` on each of n ranks gives `[n * d, …]`.
    ///
    /// A scalar counts as `[1]`.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use hccl_candle::TensorCollectives;
    /// let out = hccl_candle::local(2, |comm| {
    ///     let own = Tensor::new(&[[comm.rank().index() as u32, 7]], &Device::Cpu)?;
    ///     Ok(comm.all_gather_tensor(&own)?.to_vec2::<u32>()?)
    /// })?;
    /// assert_eq!(out, [[[0, 7], [1, 7]]; 2]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// A dtype that does not travel, a tensor off the CPU; ranks that differ in length or dtype; a lost peer.
    fn all_gather_tensor(&self, tensor: &Tensor) -> Result<Tensor>;

    /// Like [`all_gather_tensor`](Self::all_gather_tensor) for tensors whose first axis differs between ranks, also by
    /// being 0 long. Exchanges the shapes first: one more small collective.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use hccl_candle::TensorCollectives;
    /// let out = hccl_candle::local(3, |comm| {
    ///     let rank = comm.rank().index();
    ///     let own = Tensor::full(rank as u32, (rank, 2), &Device::Cpu)?; // 0, 1 or 2 rows
    ///     Ok(comm.all_gather_tensor_v(&own)?.to_vec2::<u32>()?)
    /// })?;
    /// assert_eq!(out[0], [[1, 1], [2, 2], [2, 2]]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// On every rank, ranks whose dtype or later axes differ, named with both shapes; else as there.
    fn all_gather_tensor_v(&self, tensor: &Tensor) -> Result<Tensor>;

    /// Reduces over all ranks and leaves rank r with the r-th part of the first axis: `[n * d, …]` gives `[d, …]`.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use hccl_candle::TensorCollectives;
    /// let out = hccl_candle::local(2, |comm| {
    ///     let x = Tensor::new(&[[1f32, 2.0], [10.0, comm.rank().index() as f32]], &Device::Cpu)?;
    ///     Ok(comm.reduce_scatter_tensor(&x, hccl::Sum)?.to_vec2::<f32>()?)
    /// })?;
    /// assert_eq!(out, [[[2.0, 4.0]], [[20.0, 1.0]]]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// A first axis that the number of ranks does not divide; else as for
    /// [`all_reduce_tensor`](Self::all_reduce_tensor).
    fn reduce_scatter_tensor<Op: ReduceOp<f32>>(&self, tensor: &Tensor, op: Op) -> Result<Tensor>;

    /// Sends a tensor with its shape and dtype; returns when it was received.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use hccl_candle::TensorCollectives;
    /// let out = hccl_candle::local(2, |comm| {
    ///     let x = Tensor::new(&[[1f32, 2.0, 3.0]], &Device::Cpu)?;
    ///     match comm.rank().index() {
    ///         0 => comm.send_tensor(&x.t()?, comm.peer(1)?).map(|()| vec![]),
    ///         _ => Ok(comm.recv_tensor(comm.peer(0)?, 1 << 20)?.dims().to_vec()),
    ///     }
    /// })?;
    /// assert_eq!(out, [vec![], vec![3, 1]]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// More than [`MAX_DIMS`] axes; [`Error::Message`] when the receiver does not take it, before any value moves; else
    /// as for [`all_gather_tensor`](Self::all_gather_tensor).
    fn send_tensor(&self, tensor: &Tensor, to: Peer<A>) -> Result<()>;

    /// Receives a tensor of whatever shape and dtype, of at most `max_bytes` bytes, into fresh memory.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use hccl_candle::{Error, TensorCollectives};
    /// let results = hccl::local_results(2, |comm| {
    ///     let large = Tensor::zeros(1000, candle_core::DType::F64, &Device::Cpu)?;
    ///     match comm.rank().index() {
    ///         0 => comm.send_tensor(&large, comm.peer(1)?),
    ///         _ => comm.recv_tensor(comm.peer(0)?, 100).map(drop), // takes 100 bytes at most
    ///     }
    /// })?;
    /// assert!(results.iter().all(|result| matches!(result, Err(Error::Message { .. }))));
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Message`], on both sides, for a larger one; a lost peer; a peer that sends something else.
    fn recv_tensor(&self, from: Peer<A>, max_bytes: usize) -> Result<Tensor>;

    /// Receives into a tensor's own memory.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use hccl_candle::TensorCollectives;
    /// let out = hccl_candle::local(2, |comm| {
    ///     let x = Tensor::new(&[comm.rank().index() as f32 + 1.0; 2], &Device::Cpu)?;
    ///     match comm.rank().index() {
    ///         0 => comm.send_tensor(&x, comm.peer(1)?)?,
    ///         _ => comm.recv_tensor_into(&x, comm.peer(0)?)?, // the same memory for every microbatch
    ///     }
    ///     Ok(x.to_vec1::<f32>()?)
    /// })?;
    /// assert_eq!(out, [[1.0; 2]; 2]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Message`], on both sides, when shape or dtype differ from those of `tensor`; else as for
    /// [`recv_tensor`](Self::recv_tensor).
    fn recv_tensor_into(&self, tensor: &Tensor, from: Peer<A>) -> Result<()>;
}

impl<A: Axis> TensorCollectives<A> for Communicator<A> {
    fn all_reduce_tensor<Op: ReduceOp<f32>>(&self, tensor: &Tensor, op: Op) -> Result<()> {
        let op = storage::kind(op);
        check_average("all_reduce_tensor", tensor, op)?;
        storage::write("all_reduce_tensor", tensor, AllReduce { comm: self, op })
    }

    fn broadcast_tensor(&self, tensor: &Tensor, root: Root<A>) -> Result<()> {
        storage::write("broadcast_tensor", tensor, Broadcast { comm: self, root })
    }

    fn all_gather_tensor(&self, tensor: &Tensor) -> Result<Tensor> {
        let mut dims = at_least_one_axis(tensor);
        dims[0] *= self.size();
        storage::read("all_gather_tensor", tensor, AllGather { comm: self, dims })
    }

    fn all_gather_tensor_v(&self, tensor: &Tensor) -> Result<Tensor> {
        storage::check_device("all_gather_tensor_v", tensor)?;
        storage::check_dtype("all_gather_tensor_v", tensor.dtype())?;
        let dims = at_least_one_axis(tensor);
        let lengths = message::gather_lengths(self, tensor.dtype(), &dims)?;
        storage::read("all_gather_tensor_v", tensor, AllGatherV { comm: self, lengths, dims })
    }

    fn reduce_scatter_tensor<Op: ReduceOp<f32>>(&self, tensor: &Tensor, op: Op) -> Result<Tensor> {
        let (op, n) = (storage::kind(op), self.size());
        check_average("reduce_scatter_tensor", tensor, op)?;
        let mut dims = tensor.dims().to_vec();
        match dims.first_mut() {
            Some(first) if *first % n == 0 => *first /= n,
            _ => {
                let problem = format!("the first axis of {:?} is not a multiple of {n} ranks", tensor.dims());
                return Err(Error::Shape { op: "reduce_scatter_tensor", problem });
            }
        }
        storage::read("reduce_scatter_tensor", tensor, ReduceScatter { comm: self, op, dims })
    }

    fn send_tensor(&self, tensor: &Tensor, to: Peer<A>) -> Result<()> {
        message::send(self, tensor, to)
    }

    fn recv_tensor(&self, from: Peer<A>, max_bytes: usize) -> Result<Tensor> {
        message::recv(self, from, max_bytes)
    }

    fn recv_tensor_into(&self, tensor: &Tensor, from: Peer<A>) -> Result<()> {
        message::recv_into(self, tensor, from)
    }
}

/// The dims of a tensor, with a scalar as `[1]`.
fn at_least_one_axis(tensor: &Tensor) -> Vec<usize> {
    match tensor.dims() {
        [] => vec![1],
        dims => dims.to_vec(),
    }
}

/// Refuses an average of integers before anybody waits for this rank.
fn check_average(call: &'static str, tensor: &Tensor, op: OpKind) -> Result<()> {
    match op == OpKind::Avg && tensor.dtype().is_int() {
        true => Err(Error::IntegerAverage { op: call, dtype: tensor.dtype() }),
        false => Ok(()),
    }
}

/// Owned values as a tensor, without a copy.
fn tensor_of<T: Elem>(values: Vec<T>, dims: Vec<usize>) -> Result<Tensor> {
    Ok(Tensor::from_vec(values, Shape::from(dims), &Device::Cpu)?)
}

struct AllReduce<'a, A: Axis> {
    comm: &'a Communicator<A>,
    op: OpKind,
}

impl<A: Axis> VisitMut for AllReduce<'_, A> {
    type Out = ();

    fn visit<T: Elem>(self, values: &mut [T]) -> Result<()> {
        T::all_reduce(self.comm, values, self.op)
    }
}

struct Broadcast<'a, A: Axis> {
    comm: &'a Communicator<A>,
    root: Root<A>,
}

impl<A: Axis> VisitMut for Broadcast<'_, A> {
    type Out = ();

    fn visit<T: Elem>(self, values: &mut [T]) -> Result<()> {
        Ok(self.comm.broadcast(values, self.root)?)
    }
}

struct AllGather<'a, A: Axis> {
    comm: &'a Communicator<A>,
    dims: Vec<usize>,
}

impl<A: Axis> Visit for AllGather<'_, A> {
    type Out = Tensor;

    fn visit<T: Elem>(self, values: &[T]) -> Result<Tensor> {
        let mut all = vec![T::zero(); values.len() * self.comm.size()];
        self.comm.all_gather(values, &mut all)?;
        tensor_of(all, self.dims)
    }
}

struct AllGatherV<'a, A: Axis> {
    comm: &'a Communicator<A>,
    lengths: Vec<usize>,
    dims: Vec<usize>,
}

impl<A: Axis> Visit for AllGatherV<'_, A> {
    type Out = Tensor;

    fn visit<T: Elem>(mut self, values: &[T]) -> Result<Tensor> {
        let row: usize = self.dims[1..].iter().product();
        self.dims[0] = self.lengths.iter().sum();
        let counts: Vec<usize> = self.lengths.iter().map(|rows| rows * row).collect();
        let mut all = vec![T::zero(); counts.iter().sum()];
        self.comm.all_gather_v(values, &mut all, &counts)?;
        tensor_of(all, self.dims)
    }
}

struct ReduceScatter<'a, A: Axis> {
    comm: &'a Communicator<A>,
    op: OpKind,
    dims: Vec<usize>,
}

impl<A: Axis> Visit for ReduceScatter<'_, A> {
    type Out = Tensor;

    fn visit<T: Elem>(self, values: &[T]) -> Result<Tensor> {
        let mut part = vec![T::zero(); values.len() / self.comm.size()];
        T::reduce_scatter(self.comm, values, &mut part, self.op)?;
        tensor_of(part, self.dims)
    }
}
