//! In-place updates of a parameter from its gradient: no temporaries, f32 arithmetic for half-precision parameters.

use crate::error::{Error, Result};
use crate::storage::{Elem, check_device};
use candle_core::{CpuStorage, InplaceOp2, Layout, Tensor};
use half::{bf16, f16};
use std::cell::RefCell;

/// What updates compute in.
pub(crate) trait Real: Elem {
    fn sqrt(self) -> Self;

    /// The slot's values, when they are of this type.
    fn of(slot: &mut Slot) -> Option<&mut Vec<Self>>;
}

impl Real for f32 {
    fn sqrt(self) -> Self {
        f32::sqrt(self)
    }

    fn of(slot: &mut Slot) -> Option<&mut Vec<f32>> {
        match slot {
            Slot::F32(values) => Some(values),
            Slot::F64(_) => None,
        }
    }
}

impl Real for f64 {
    fn sqrt(self) -> Self {
        f64::sqrt(self)
    }

    fn of(slot: &mut Slot) -> Option<&mut Vec<f64>> {
        match slot {
            Slot::F64(values) => Some(values),
            Slot::F32(_) => None,
        }
    }
}

/// Optimizer state of one parameter: as many values, f64 for an F64 parameter, else f32.
#[derive(Clone, Debug)]
pub(crate) enum Slot {
    F32(Vec<f32>),
    F64(Vec<f64>),
}

impl Slot {
    /// Zeros for a parameter.
    pub(crate) fn zeros(parameter: &Tensor) -> Slot {
        match parameter.dtype() {
            candle_core::DType::F64 => Slot::F64(vec![0.0; parameter.elem_count()]),
            _ => Slot::F32(vec![0.0; parameter.elem_count()]),
        }
    }

    /// The values as a tensor of the parameter's shape.
    pub(crate) fn to_tensor(&self, parameter: &Tensor) -> Result<Tensor> {
        Ok(match self {
            Slot::F32(values) => Tensor::from_slice(values, parameter.shape(), parameter.device())?,
            Slot::F64(values) => Tensor::from_slice(values, parameter.shape(), parameter.device())?,
        })
    }

    /// The values of a tensor that must have the parameter's shape and the dtype of its state.
    pub(crate) fn from_tensor(name: &str, tensor: &Tensor, parameter: &Tensor) -> Result<Slot> {
        let mut slot = Slot::zeros(parameter);
        let dtype = match slot {
            Slot::F32(_) => candle_core::DType::F32,
            Slot::F64(_) => candle_core::DType::F64,
        };
        if tensor.dims() != parameter.dims() || tensor.dtype() != dtype {
            return Err(Error::invalid(format!(
                "optimizer state `{name}` is {:?}{:?}, must be {dtype:?}{:?}",
                tensor.dtype(),
                tensor.dims(),
                parameter.dims()
            )));
        }
        match &mut slot {
            Slot::F32(values) => *values = tensor.flatten_all()?.to_vec1()?,
            Slot::F64(values) => *values = tensor.flatten_all()?.to_vec1()?,
        }
        Ok(slot)
    }
}

/// One update, whatever the precision.
pub(crate) trait Update {
    fn run<T: Real>(self, parameter: &mut [T], gradient: &[T]);
}

/// Runs an update on a tensor's own memory. F32 takes F32, F64 takes F64, F16 and BF16 take F32: they are widened, updated
/// and rounded once.
pub(crate) fn apply<U: Update>(op: &'static str, parameter: &Tensor, gradient: &Tensor, update: U) -> Result<()> {
    check_device(op, parameter)?;
    check_device(op, gradient)?;
    if parameter.dims() != gradient.dims() {
        let problem = format!("a gradient of {:?} for a parameter of {:?}", gradient.dims(), parameter.dims());
        return Err(Error::Shape { op, problem });
    }
    let call = Call { op, update: RefCell::new(Some(update)) };
    Ok(parameter.inplace_op2(gradient, &call)?)
}

struct Call<U> {
    op: &'static str,
    update: RefCell<Option<U>>,
}

impl<U: Update> InplaceOp2 for Call<U> {
    fn name(&self) -> &'static str {
        self.op
    }

    fn cpu_fwd(
        &self,
        parameter: &mut CpuStorage,
        layout: &Layout,
        gradient: &CpuStorage,
        gradient_layout: &Layout,
    ) -> candle_core::Result<()> {
        let (Some((a, b)), Some((c, d))) = (layout.contiguous_offsets(), gradient_layout.contiguous_offsets()) else {
            candle_core::bail!("{}: parameter and gradient must be contiguous", self.op)
        };
        let Some(update) = self.update.borrow_mut().take() else { return Ok(()) };
        match (parameter, gradient) {
            (CpuStorage::F32(p), CpuStorage::F32(g)) => update.run(&mut p[a..b], &g[c..d]),
            (CpuStorage::F64(p), CpuStorage::F64(g)) => update.run(&mut p[a..b], &g[c..d]),
            (CpuStorage::F16(p), CpuStorage::F32(g)) => {
                widened(&mut p[a..b], &g[c..d], update, f16::to_f32, f16::from_f32)
            }
            (CpuStorage::BF16(p), CpuStorage::F32(g)) => {
                widened(&mut p[a..b], &g[c..d], update, bf16::to_f32, bf16::from_f32)
            }
            (p, g) => {
                use candle_core::backend::BackendStorage;
                candle_core::bail!("{}: a gradient of {:?} for a parameter of {:?}", self.op, g.dtype(), p.dtype())
            }
        }
        Ok(())
    }
}

fn widened<H: Copy, U: Update>(
    parameter: &mut [H],
    gradient: &[f32],
    update: U,
    widen: fn(H) -> f32,
    round: fn(f32) -> H,
) {
    let mut wide: Vec<f32> = parameter.iter().map(|&x| widen(x)).collect();
    update.run(&mut wide, gradient);
    parameter.iter_mut().zip(wide).for_each(|(p, x)| *p = round(x));
}
