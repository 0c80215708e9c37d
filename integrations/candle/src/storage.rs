//! candle's memory as slices: the one place that looks inside `CpuStorage`.
//!
//! Nothing here calls back into candle while it holds a guard of a tensor.

use crate::error::{Error, Result};
use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Storage, Tensor, WithDType};
use half::{bf16, f16};
use hccl::{Avg, Axis, Communicator, Max, Min, OpKind, Prod, ReduceOp, Sum};
use std::cell::RefCell;

/// An element of both worlds, with its reductions behind a run-time [`OpKind`].
pub(crate) trait Elem: hccl::Numeric + WithDType {
    /// Sums, … over all ranks, in place.
    fn all_reduce<A: Axis>(comm: &Communicator<A>, buf: &mut [Self], op: OpKind) -> Result<()>;

    /// Reduces and leaves this rank's part.
    fn reduce_scatter<A: Axis>(comm: &Communicator<A>, send: &[Self], recv: &mut [Self], op: OpKind) -> Result<()>;

    /// The bits of the value, for digests.
    fn bits(self) -> u64;
}

macro_rules! elements {
    ($($t:ty, $bits:expr; $($avg:ident)?;)*) => { $(
        impl Elem for $t {
            fn all_reduce<A: Axis>(comm: &Communicator<A>, buf: &mut [Self], op: OpKind) -> Result<()> {
                match op {
                    OpKind::Sum => comm.all_reduce(buf, Sum)?,
                    OpKind::Prod => comm.all_reduce(buf, Prod)?,
                    OpKind::Min => comm.all_reduce(buf, Min)?,
                    OpKind::Max => comm.all_reduce(buf, Max)?,
                    $(OpKind::$avg => comm.all_reduce(buf, $avg)?,)?
                    _ => return Err(Error::IntegerAverage { op: "all_reduce", dtype: <$t as WithDType>::DTYPE }),
                }
                Ok(())
            }

            fn reduce_scatter<A: Axis>(
                comm: &Communicator<A>,
                send: &[Self],
                recv: &mut [Self],
                op: OpKind,
            ) -> Result<()> {
                match op {
                    OpKind::Sum => comm.reduce_scatter(send, recv, Sum)?,
                    OpKind::Prod => comm.reduce_scatter(send, recv, Prod)?,
                    OpKind::Min => comm.reduce_scatter(send, recv, Min)?,
                    OpKind::Max => comm.reduce_scatter(send, recv, Max)?,
                    $(OpKind::$avg => comm.reduce_scatter(send, recv, $avg)?,)?
                    _ => return Err(Error::IntegerAverage { op: "reduce_scatter", dtype: <$t as WithDType>::DTYPE }),
                }
                Ok(())
            }

            fn bits(self) -> u64 {
                #[allow(clippy::redundant_closure_call, reason = "one table for all types")]
                ($bits)(self)
            }
        }
    )* };
}

elements! {
    u8, |x: u8| u64::from(x); ;
    u32, |x: u32| u64::from(x); ;
    i16, |x: i16| x as u16 as u64; ;
    i32, |x: i32| x as u32 as u64; ;
    i64, |x: i64| x as u64; ;
    bf16, |x: bf16| u64::from(x.to_bits()); Avg;
    f16, |x: f16| u64::from(x.to_bits()); Avg;
    f32, |x: f32| u64::from(x.to_bits()); Avg;
    f64, |x: f64| x.to_bits(); Avg;
}

/// The run-time name of an operation type.
pub(crate) fn kind<Op: ReduceOp<f32>>(_: Op) -> OpKind {
    <Op as ReduceOp<f32>>::KIND
}

/// Work on a slice whose element type is known only at run time.
pub(crate) trait Visit {
    type Out;
    fn visit<T: Elem>(self, values: &[T]) -> Result<Self::Out>;
}

/// Like [`Visit`], writing.
pub(crate) trait VisitMut {
    type Out;
    fn visit<T: Elem>(self, values: &mut [T]) -> Result<Self::Out>;
}

/// Refuses tensors that are not in the memory of the processor.
pub(crate) fn check_device(op: &'static str, tensor: &Tensor) -> Result<()> {
    match tensor.device().is_cpu() {
        true => Ok(()),
        false => Err(Error::Device { op, device: format!("{:?}", tensor.device().location()) }),
    }
}

/// Refuses dtypes that do not travel.
pub(crate) fn check_dtype(op: &'static str, dtype: DType) -> Result<()> {
    match dtype {
        DType::U8
        | DType::U32
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::BF16
        | DType::F16
        | DType::F32
        | DType::F64 => Ok(()),
        dtype => Err(Error::Dtype { op, dtype }),
    }
}

/// Reads a tensor as one slice in row-major order, without a copy when it is contiguous.
pub(crate) fn read<V: Visit>(op: &'static str, tensor: &Tensor, visitor: V) -> Result<V::Out> {
    check_device(op, tensor)?;
    check_dtype(op, tensor.dtype())?;
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        return Err(Error::Device { op, device: format!("{:?}", tensor.device().location()) });
    };
    match layout.contiguous_offsets() {
        Some((start, end)) => whole(op, storage, Part { start, end, visitor }),
        None => Err(Error::Shape { op, problem: "the tensor is not contiguous".into() }),
    }
}

/// Shows a visitor a part only.
struct Part<V> {
    start: usize,
    end: usize,
    visitor: V,
}

impl<V: Visit> Visit for Part<V> {
    type Out = V::Out;

    fn visit<T: Elem>(self, values: &[T]) -> Result<V::Out> {
        self.visitor.visit(&values[self.start..self.end])
    }
}

/// Reads all of a storage.
fn whole<V: Visit>(op: &'static str, storage: &CpuStorage, visitor: V) -> Result<V::Out> {
    match storage {
        CpuStorage::U8(v) => visitor.visit(v),
        CpuStorage::U32(v) => visitor.visit(v),
        CpuStorage::I16(v) => visitor.visit(v),
        CpuStorage::I32(v) => visitor.visit(v),
        CpuStorage::I64(v) => visitor.visit(v),
        CpuStorage::BF16(v) => visitor.visit(v),
        CpuStorage::F16(v) => visitor.visit(v),
        CpuStorage::F32(v) => visitor.visit(v),
        CpuStorage::F64(v) => visitor.visit(v),
        other => Err(Error::Dtype { op, dtype: candle_core::backend::BackendStorage::dtype(other) }),
    }
}

/// Changes a tensor's own memory: in place when it is contiguous, else through a copy that is written back.
///
/// The tensor's lock is held meanwhile: the visitor must not touch the tensor. Layouts in which one element stands at
/// several places (broadcast views) are refused.
pub(crate) fn write<V: VisitMut>(op: &'static str, tensor: &Tensor, visitor: V) -> Result<V::Out> {
    check_device(op, tensor)?;
    check_dtype(op, tensor.dtype())?;
    if tensor.layout().has_internal_overlap() {
        let problem =
            "a broadcast view has one element at several places and cannot be written (hint: call `contiguous`)";
        return Err(Error::Shape { op, problem: problem.into() });
    }
    let call = InPlace { op, state: RefCell::new(Visitor::Waits(visitor)) };
    tensor.inplace_op1(&call)?;
    match call.state.into_inner() {
        Visitor::Done(out) => out,
        Visitor::Waits(_) | Visitor::Works => {
            Err(Error::Shape { op, problem: "candle did not run the operation".into() })
        }
    }
}

/// Where a visitor is: candle lends an operation by shared reference, and it runs once.
enum Visitor<V: VisitMut> {
    Waits(V),
    Works,
    Done(Result<V::Out>),
}

struct InPlace<V: VisitMut> {
    op: &'static str,
    state: RefCell<Visitor<V>>,
}

impl<V: VisitMut> InplaceOp1 for InPlace<V> {
    fn name(&self) -> &'static str {
        self.op
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        if let Visitor::Waits(visitor) = self.state.replace(Visitor::Works) {
            let out = visit_mut(self.op, storage, layout, visitor);
            self.state.replace(Visitor::Done(out));
        }
        Ok(())
    }
}

fn visit_mut<V: VisitMut>(op: &'static str, storage: &mut CpuStorage, layout: &Layout, visitor: V) -> Result<V::Out> {
    match storage {
        CpuStorage::U8(v) => lend(v, layout, visitor),
        CpuStorage::U32(v) => lend(v, layout, visitor),
        CpuStorage::I16(v) => lend(v, layout, visitor),
        CpuStorage::I32(v) => lend(v, layout, visitor),
        CpuStorage::I64(v) => lend(v, layout, visitor),
        CpuStorage::BF16(v) => lend(v, layout, visitor),
        CpuStorage::F16(v) => lend(v, layout, visitor),
        CpuStorage::F32(v) => lend(v, layout, visitor),
        CpuStorage::F64(v) => lend(v, layout, visitor),
        other => Err(Error::Dtype { op, dtype: candle_core::backend::BackendStorage::dtype(other) }),
    }
}

/// Lends the elements of a layout in row-major order; strided ones through a copy, written back only on success.
fn lend<T: Elem, V: VisitMut>(values: &mut [T], layout: &Layout, visitor: V) -> Result<V::Out> {
    if let Some((start, end)) = layout.contiguous_offsets() {
        return visitor.visit(&mut values[start..end]);
    }
    let places = Places::of(layout);
    let mut copy: Vec<T> = places.clone().map(|at| values[at]).collect();
    let out = visitor.visit(&mut copy)?;
    for (at, value) in places.zip(copy) {
        values[at] = value;
    }
    Ok(out)
}

/// The places of a strided layout's elements in row-major order.
#[derive(Clone)]
struct Places<'a> {
    layout: &'a Layout,
    index: Vec<usize>,
    at: usize,
    left: usize,
}

impl<'a> Places<'a> {
    fn of(layout: &'a Layout) -> Self {
        let index = vec![0; layout.dims().len()];
        Places { layout, index, at: layout.start_offset(), left: layout.shape().elem_count() }
    }
}

impl Iterator for Places<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let here = self.at;
        let (dims, stride) = (self.layout.dims(), self.layout.stride());
        for axis in (0..dims.len()).rev() {
            self.index[axis] += 1;
            self.at += stride[axis];
            if self.index[axis] < dims[axis] {
                break;
            }
            self.at -= stride[axis] * dims[axis];
            self.index[axis] = 0;
        }
        Some(here)
    }
}

/// A tensor of its own with the elements of a layout, in row-major order.
pub(crate) fn copy(op: &'static str, storage: &CpuStorage, layout: &Layout) -> Result<Tensor> {
    struct Copy<'a>(&'a Layout);
    impl Visit for Copy<'_> {
        type Out = Tensor;

        fn visit<T: Elem>(self, values: &[T]) -> Result<Tensor> {
            let copy: Vec<T> = match self.0.contiguous_offsets() {
                Some((start, end)) => values[start..end].to_vec(),
                None => Places::of(self.0).map(|at| values[at]).collect(),
            };
            Ok(Tensor::from_vec(copy, self.0.shape(), &Device::Cpu)?)
        }
    }
    whole(op, storage, Copy(layout))
}

/// Moves the memory out of a contiguous tensor that nobody else will use again.
pub(crate) fn take(op: &'static str, tensor: &Tensor) -> Result<CpuStorage> {
    struct Take(RefCell<Option<CpuStorage>>);
    impl InplaceOp1 for Take {
        fn name(&self) -> &'static str {
            "take"
        }

        fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
            let empty = CpuStorage::U8(Vec::new());
            *self.0.borrow_mut() = Some(std::mem::replace(storage, empty));
            Ok(())
        }
    }
    let taken = Take(RefCell::new(None));
    tensor.inplace_op1(&taken)?;
    let taken = taken.0.into_inner();
    taken.ok_or_else(|| Error::Shape { op, problem: "candle did not run the operation".into() })
}
