//! candle's tensors on the edges of a pipeline: [`TensorAct`].

use crate::error::{Error, Result};
use crate::storage::check_device;
use candle_core::{DType, Device, Storage, Tensor, Var, WithDType};
use half::{bf16, f16};
use hccl::pipeline::{Dims, NoGrad, Payload, Shape, StageResult};
use std::fmt;
use std::marker::PhantomData;

mod sealed {
    pub trait Sealed {}
}

/// An element of both worlds, and the gradient of a payload of them. Sealed.
#[diagnostic::on_unimplemented(
    message = "tensors of `{Self}` do not travel between stages",
    note = "u8, u32, i16, i32, i64, f16, bf16, f32 and f64 do"
)]
pub trait Scalar: hccl::Element + WithDType + sealed::Sealed {
    /// f32 for f16, bf16 and f32; f64 for f64; none for integers.
    type Grad<S: Shape>: Gradient;
}

/// A gradient that a stage of tensors makes and takes. Sealed.
pub trait Gradient: Payload + sealed::Sealed {
    /// Of these dimensions; zeros, or none at all, when there is no tensor.
    #[doc(hidden)]
    fn from_gradient(tensor: Option<Tensor>, dims: &[usize]) -> StageResult<Self>;

    /// `None` where there is no gradient.
    #[doc(hidden)]
    fn into_gradient(self) -> Option<Tensor>;
}

/// A payload that is a tensor: [`TensorAct`]. Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tensor",
    note = "stages of candle's models take and make `TensorAct<T, Shape>`, such as `TensorAct<f32, (Batch, Dyn)>`"
)]
pub trait TensorPayload: Payload<Grad: Gradient> + sealed::Sealed {
    /// The tensor as a payload, outside any graph.
    #[doc(hidden)]
    fn from_tensor(tensor: Tensor) -> Result<Self>;

    /// The tensor, outside any graph.
    #[doc(hidden)]
    fn into_tensor(self) -> Tensor;

    /// The tensor as a variable of its own, if it can have a gradient.
    #[doc(hidden)]
    fn into_leaf(self) -> candle_core::Result<Leaf>;
}

/// The start of a graph.
#[doc(hidden)]
pub enum Leaf {
    /// Gets a gradient.
    Var(Var),
    /// Gets none.
    Plain(Tensor),
}

/// A CPU tensor that travels over an edge of a pipeline, with elements `T` and dimensions `S`.
///
/// A contiguous tensor is sent from its own memory, and what is received becomes a tensor in the memory that it was
/// received into: neither is copied. A strided one is made contiguous first.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use hccl::pipeline::Dyn;
/// use hccl_candle::pipeline::TensorAct;
///
/// hccl::dim!(Batch);
/// let x = TensorAct::<f32, (Batch, Dyn)>::new(Tensor::zeros((3, 4), DType::F32, &Device::Cpu)?)?;
/// assert_eq!(x.tensor().dims(), [3, 4]);
///
/// let refused = TensorAct::<f32, (Batch,)>::new(x.tensor()).unwrap_err();
/// assert!(refused.to_string().contains("[3, 4] has 2 dimensions, must have 1"), "{refused}");
/// # Ok::<(), hccl_candle::Error>(())
/// ```
pub struct TensorAct<T: Scalar, S: Shape> {
    /// Invariant: (1) contiguous, on the CPU, of `T`, with as many dimensions as `S`. (2) Without a graph.
    tensor: Tensor,
    shape: PhantomData<fn() -> (T, S)>,
}

impl<T: Scalar, S: Shape> TensorAct<T, S> {
    /// The tensor as a payload; its graph, if it has one, stays behind. Lengths of dimensions are compared when it enters
    /// a pipeline.
    ///
    /// # Errors
    /// Another dtype, another number of dimensions, a tensor that is not on the CPU.
    pub fn new(tensor: Tensor) -> Result<Self> {
        const OP: &str = "TensorAct::new";
        check_device(OP, &tensor)?;
        let wrong = |problem: String| Err(Error::Shape { op: OP, problem });
        if tensor.dtype() != <T as WithDType>::DTYPE {
            let (is, must) = (tensor.dtype(), <T as WithDType>::DTYPE);
            return wrong(format!("the tensor is {is:?}, must be {must:?} (hint: `to_dtype(DType::{must:?})`)"));
        }
        if tensor.dims().len() != S::DIMS.len() {
            let (dims, is, must) = (tensor.dims(), tensor.dims().len(), S::DIMS.len());
            return wrong(format!("{dims:?} has {is} dimensions, must have {must}"));
        }
        Ok(TensorAct { tensor: tensor.detach().contiguous()?, shape: PhantomData })
    }

    /// The tensor, in the same memory and outside any graph.
    pub fn tensor(&self) -> Tensor {
        self.tensor.detach()
    }
}

impl<T: Scalar, S: Shape> fmt::Debug for TensorAct<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorAct({:?}{:?})", self.tensor.dtype(), self.tensor.dims())
    }
}

/// As `Act`, without giving memory back: candle does not say who else holds a tensor's memory.
impl<T: Scalar, S: Shape> Payload for TensorAct<T, S> {
    type Elem = T;
    type Shape = S;
    type Grad = T::Grad<S>;

    fn dims(&self) -> Dims {
        // (1): no shape has more dimensions than `Dims` holds.
        Dims::new(self.tensor.dims()).unwrap_or_default()
    }

    fn read(&self, f: &mut dyn FnMut(&[T])) -> StageResult<()> {
        let (storage, layout) = self.tensor.storage_and_layout();
        let (Storage::Cpu(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets()) else {
            return Err("a payload that is not contiguous on the CPU; this is an error of the library".into());
        };
        f(&storage.as_slice::<T>()?[start..end]);
        Ok(())
    }

    fn build(dims: Dims, elements: Vec<T>) -> StageResult<Self> {
        // A variable, as a tensor of its own cannot become one later without a copy.
        let tensor = Var::from_vec(elements, dims.as_slice(), &Device::Cpu)?.into_inner();
        Ok(TensorAct { tensor, shape: PhantomData })
    }
}

impl<T: Scalar, S: Shape> sealed::Sealed for TensorAct<T, S> {}

impl<T: Scalar, S: Shape> TensorPayload for TensorAct<T, S> {
    fn from_tensor(tensor: Tensor) -> Result<Self> {
        TensorAct::new(tensor)
    }

    fn into_tensor(self) -> Tensor {
        self.tensor.detach()
    }

    fn into_leaf(self) -> candle_core::Result<Leaf> {
        Ok(match <T as WithDType>::DTYPE.is_float() {
            // Copies what was not received: its memory is that of another graph.
            true => Leaf::Var(Var::from_tensor(&self.tensor)?),
            false => Leaf::Plain(self.tensor.detach()),
        })
    }
}

impl sealed::Sealed for NoGrad {}

impl Gradient for NoGrad {
    fn from_gradient(_: Option<Tensor>, _: &[usize]) -> StageResult<Self> {
        Ok(NoGrad)
    }

    fn into_gradient(self) -> Option<Tensor> {
        None
    }
}

macro_rules! gradients {
    ($($t:ty: $dtype:ident;)*) => { $(
        impl<S: Shape> Gradient for TensorAct<$t, S> {
            fn from_gradient(tensor: Option<Tensor>, dims: &[usize]) -> StageResult<Self> {
                let tensor = match tensor {
                    Some(tensor) => tensor.detach().to_dtype(DType::$dtype)?,
                    None => Tensor::zeros(dims, DType::$dtype, &Device::Cpu)?,
                };
                Ok(TensorAct::new(tensor)?)
            }

            fn into_gradient(self) -> Option<Tensor> {
                Some(self.tensor.detach())
            }
        }
    )* };
}

gradients! { f32: F32; f64: F64; }

macro_rules! scalars {
    ($($t:ty => $grad:ty;)*) => { $(
        impl sealed::Sealed for $t {}

        impl Scalar for $t {
            type Grad<S: Shape> = $grad;
        }
    )* };
}

scalars! {
    u8 => NoGrad; u32 => NoGrad; i16 => NoGrad; i32 => NoGrad; i64 => NoGrad;
    f16 => TensorAct<f32, S>; bf16 => TensorAct<f32, S>; f32 => TensorAct<f32, S>; f64 => TensorAct<f64, S>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use hccl::pipeline::Dyn;

    type X = TensorAct<f32, (Dyn, Dyn)>;

    /// Where a tensor's memory begins.
    fn address(x: &X) -> usize {
        let mut address = 0;
        x.read(&mut |values| address = values.as_ptr() as usize).unwrap();
        address
    }

    #[test]
    fn nothing_is_copied_on_the_way_in_and_out() {
        let values: Vec<f32> = (0..6).map(|i| i as f32).collect();
        let memory = values.as_ptr() as usize;
        let x = X::build(Dims::new(&[2, 3]).unwrap(), values).unwrap();
        assert_eq!(address(&x), memory, "received");
        assert_eq!(address(&X::new(x.tensor()).unwrap()), memory, "sent");
        let Leaf::Var(leaf) = x.into_leaf().unwrap() else { panic!("f32 has a gradient") };
        assert_eq!(address(&X::new(leaf.as_tensor().clone()).unwrap()), memory, "the start of a graph");
    }

    #[test]
    fn views_are_read_where_they_are_and_strided_ones_row_major() {
        let base = Tensor::arange(0f32, 12.0, &Device::Cpu).unwrap().reshape((4, 3)).unwrap();
        let read = |tensor: Tensor| {
            let mut all = Vec::new();
            X::new(tensor).unwrap().read(&mut |values| all.extend_from_slice(values)).unwrap();
            all
        };
        assert_eq!(read(base.narrow(0, 1, 2).unwrap()), [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        assert_eq!(read(base.t().unwrap().narrow(0, 1, 1).unwrap()), [1.0, 4.0, 7.0, 10.0]);
    }

    #[test]
    fn other_dtypes_are_refused() {
        let refused = X::new(Tensor::zeros((2, 3), DType::F64, &Device::Cpu).unwrap()).unwrap_err();
        assert!(refused.to_string().contains("is F64, must be F32"), "{refused}");
    }

    #[test]
    fn a_variable_that_is_not_received_is_not_shared() {
        let var = Var::new(&[[1f32, 2.0]], &Device::Cpu).unwrap();
        let Leaf::Var(leaf) = X::new(var.as_tensor().clone()).unwrap().into_leaf().unwrap() else { panic!() };
        assert_ne!(leaf.id(), var.id());
    }
}
