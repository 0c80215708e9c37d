//! Flat memory in one of the wire's dtypes, and its all-reduce.

use crate::error::{Error, Result};
use crate::storage::{self, Elem, Visit, VisitMut};
use candle_core::{DType, Tensor, WithDType};
use half::{bf16, f16};
use hccl::{Avg, Axis, Communicator, DeviceBuffer, Pending, ReduceOp, Sum};

/// What travels.
pub(super) trait Wired: hccl::Float {
    fn of(x: f64) -> Self;
    fn of_f32(x: f32) -> Self;
    fn back(self) -> f64;
    fn back_f32(self) -> f32;
}

macro_rules! wired {
    ($($t:ty: $x:ident, $of:expr, $of_f32:expr, $back:expr, $back_f32:expr;)*) => { $(
        impl Wired for $t {
            fn of($x: f64) -> Self { $of }
            fn of_f32($x: f32) -> Self { $of_f32 }
            fn back(self) -> f64 { let $x = self; $back }
            fn back_f32(self) -> f32 { let $x = self; $back_f32 }
        }
    )* };
}

wired! {
    f16: x, f16::from_f64(x), f16::from_f32(x), x.to_f64(), x.to_f32();
    bf16: x, bf16::from_f64(x), bf16::from_f32(x), x.to_f64(), x.to_f32();
    f32: x, x as f32, x, f64::from(x), x;
    f64: x, x, f64::from(x), x, x as f32;
}

/// Memory of a bucket, reused every step.
#[derive(Debug)]
pub(super) enum Flat {
    F16(Room<f16>),
    Bf16(Room<bf16>),
    F32(Room<f32>),
    F64(Room<f64>),
}

/// Elements that the processor writes and reads, and a collective reduces.
#[derive(Debug)]
pub(super) enum Room<W: hccl::Element> {
    /// Memory that the peers reach.
    Shared(DeviceBuffer<W>),
    /// Memory of the host: candle has no tensors on an NPU, so the library carries the elements to the NPU and back.
    Staged(Vec<W>),
}

impl<W: Wired> Room<W> {
    fn zeros<A: Axis>(comm: &Communicator<A>, len: usize) -> Result<Room<W>> {
        Ok(match comm.device() {
            hccl::Device::Cpu => Room::Shared(comm.zeros(len)?),
            _ => Room::Staged(vec![W::of(0.0); len]),
        })
    }

    fn elements(&self) -> Option<&[W]> {
        match self {
            Room::Shared(buf) => buf.as_slice(),
            Room::Staged(elements) => Some(elements),
        }
    }

    fn elements_mut(&mut self) -> Option<&mut [W]> {
        match self {
            Room::Shared(buf) => buf.as_mut_slice(),
            Room::Staged(elements) => Some(elements),
        }
    }

    fn len(&self) -> usize {
        self.elements().map_or(0, <[W]>::len)
    }

    fn start<A: Axis, Op: ReduceOp<W>>(self, comm: &Communicator<A>, op: Op) -> Result<Moving<W>> {
        Ok(match self {
            Room::Shared(buf) => Moving::Shared(comm.all_reduce_async(buf, op).map_err(hccl::Error::from)?),
            Room::Staged(buf) => Moving::Staged(comm.all_reduce_async(buf, op).map_err(hccl::Error::from)?),
        })
    }
}

/// A [`Room`] while it is reduced.
pub(super) enum Moving<W: hccl::Element> {
    Shared(Pending<DeviceBuffer<W>>),
    Staged(Pending<Vec<W>>),
}

impl<W: Wired> Moving<W> {
    fn wait(self) -> Result<Room<W>> {
        Ok(match self {
            Moving::Shared(op) => Room::Shared(op.wait().map_err(hccl::Error::from)?),
            Moving::Staged(op) => Room::Staged(op.wait().map_err(hccl::Error::from)?),
        })
    }
}

/// A bucket's memory on its way.
pub(super) enum InFlight {
    F16(Moving<f16>),
    Bf16(Moving<bf16>),
    F32(Moving<f32>),
    F64(Moving<f64>),
}

macro_rules! each {
    ($flat:expr, $buf:ident => $body:expr) => {
        match $flat {
            Flat::F16($buf) => $body,
            Flat::Bf16($buf) => $body,
            Flat::F32($buf) => $body,
            Flat::F64($buf) => $body,
        }
    };
}

impl Flat {
    pub(super) fn zeros<A: Axis>(comm: &Communicator<A>, dtype: DType, len: usize) -> Result<Flat> {
        Ok(match dtype {
            DType::F16 => Flat::F16(Room::zeros(comm, len)?),
            DType::BF16 => Flat::Bf16(Room::zeros(comm, len)?),
            DType::F32 => Flat::F32(Room::zeros(comm, len)?),
            DType::F64 => Flat::F64(Room::zeros(comm, len)?),
            dtype => return Err(Error::Dtype { op: "bucket", dtype }),
        })
    }

    /// Writes a gradient, or zeros for none, into the elements from `start`.
    pub(super) fn fill(&mut self, start: usize, len: usize, gradient: Option<&Tensor>) -> Result<()> {
        each!(self, buf => {
            let part = window(buf.elements_mut(), start, len)?;
            match gradient {
                Some(gradient) => storage::read("sync", gradient, Fill(part)),
                None => {
                    part.fill(Wired::of(0.0));
                    Ok(())
                }
            }
        })
    }

    /// Writes the elements from `start`, divided by `divisor`, into a gradient.
    pub(super) fn drain(&self, start: usize, len: usize, divisor: f64, gradient: &Tensor) -> Result<()> {
        each!(self, buf => {
            let part = buf.elements().and_then(|all| all.get(start..start + len)).ok_or_else(out_of_reach)?;
            storage::write("sync", gradient, Drain(part, divisor))
        })
    }

    /// Starts the reduction: a sum, or for halves, whose sum might not fit, a mean.
    pub(super) fn start<A: Axis>(self, comm: &Communicator<A>) -> Result<InFlight> {
        Ok(match self {
            Flat::F16(buf) => InFlight::F16(buf.start(comm, Avg)?),
            Flat::Bf16(buf) => InFlight::Bf16(buf.start(comm, Avg)?),
            Flat::F32(buf) => InFlight::F32(buf.start(comm, Sum)?),
            Flat::F64(buf) => InFlight::F64(buf.start(comm, Sum)?),
        })
    }

    /// What a weighted sum over `ranks` ranks must be divided by to be a mean.
    pub(super) fn divisor(&self, total_weight: f64, ranks: usize) -> f64 {
        match self {
            Flat::F16(_) | Flat::Bf16(_) => total_weight / ranks as f64,
            Flat::F32(_) | Flat::F64(_) => total_weight,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Flat::F16(buf) => buf.len() * 2,
            Flat::Bf16(buf) => buf.len() * 2,
            Flat::F32(buf) => buf.len() * 4,
            Flat::F64(buf) => buf.len() * 8,
        }
    }
}

impl InFlight {
    pub(super) fn wait(self) -> Result<Flat> {
        Ok(match self {
            InFlight::F16(op) => Flat::F16(op.wait()?),
            InFlight::Bf16(op) => Flat::Bf16(op.wait()?),
            InFlight::F32(op) => Flat::F32(op.wait()?),
            InFlight::F64(op) => Flat::F64(op.wait()?),
        })
    }
}

/// Part of host memory.
fn window<W>(all: Option<&mut [W]>, start: usize, len: usize) -> Result<&mut [W]> {
    let part = all.and_then(|all| all.get_mut(start..start + len));
    part.ok_or_else(out_of_reach)
}

fn out_of_reach() -> Error {
    Error::invalid("the memory of a bucket is not in reach of the processor")
}

struct Fill<'a, W>(&'a mut [W]);

impl<W: Wired> Visit for Fill<'_, W> {
    type Out = ();

    fn visit<T: Elem>(self, values: &[T]) -> Result<()> {
        if <T as WithDType>::DTYPE == DType::F32 {
            self.0.iter_mut().zip(values).for_each(|(to, x)| *to = W::of_f32(x.to_f64() as f32));
        } else {
            self.0.iter_mut().zip(values).for_each(|(to, x)| *to = W::of(x.to_f64()));
        }
        Ok(())
    }
}

struct Drain<'a, W>(&'a [W], f64);

impl<W: Wired> VisitMut for Drain<'_, W> {
    type Out = ();

    fn visit<T: Elem>(self, values: &mut [T]) -> Result<()> {
        let divisor = self.1;
        if <T as WithDType>::DTYPE == DType::F64 {
            let mean = |x: f64| if divisor == 1.0 { x } else { x / divisor };
            values.iter_mut().zip(self.0).for_each(|(to, x)| *to = T::from_f64(mean(x.back())));
        } else {
            let divisor = divisor as f32;
            let mean = |x: f32| if divisor == 1.0 { x } else { x / divisor };
            values.iter_mut().zip(self.0).for_each(|(to, x)| *to = T::from_f64(f64::from(mean(x.back_f32()))));
        }
        Ok(())
    }
}

/// Gradients are kept in f64 for F64 parameters and in f32 for all others.
pub(crate) fn gradient_dtype(parameter: DType) -> DType {
    match parameter {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}
