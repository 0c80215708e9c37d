//! What travels between stages: [`Payload`], and the plain one, [`Act`].

use super::shape::{Dims, Shape, Specs, fits};
use super::stage::StageResult;
use crate::element::{DType, Element};
use crate::error::{Error, Result};
use half::{bf16, f16};
use std::fmt;
use std::marker::PhantomData;

/// A tensor that travels over an edge of a pipeline: its element type and shape are known to the compiler, its lengths
/// travel with it.
///
/// [`Act`] is one. Implement it for the tensors of a framework to send and receive them without a copy on the way.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot travel between stages",
    label = "not a payload",
    note = "use `Act<T, Shape>`, such as `Act<f32, (Batch, Hidden)>`, or implement `hccl::pipeline::Payload`"
)]
pub trait Payload: Sized + 'static {
    /// The type of its elements.
    type Elem: Element;
    /// Its dimensions.
    type Shape: Shape;
    /// Its gradient: of the same dimensions, or [`NoGrad`].
    type Grad: Payload;

    /// The lengths of its dimensions.
    fn dims(&self) -> Dims;

    /// Calls `f` once with the elements, row-major and without gaps.
    ///
    /// # Errors
    /// Those of getting at the elements; then `f` was not called.
    fn read(&self, f: &mut dyn FnMut(&[Self::Elem])) -> StageResult<()>;

    /// The payload of these dimensions and elements. The pipeline has checked that they fit the shape and each other.
    ///
    /// # Errors
    /// What the framework says.
    fn build(dims: Dims, elements: Vec<Self::Elem>) -> StageResult<Self>;

    /// The memory, for the next payload that arrives, if this was its only owner.
    fn recycle(self) -> Option<Vec<Self::Elem>> {
        None
    }
}

/// The plain payload: elements of this process, row-major.
///
/// ```
/// use hccl::pipeline::Act;
/// hccl::dim!(Batch);
/// let x = Act::<f32, (Batch,)>::new([2], vec![1.0, 2.0])?;
/// let y = x.map(|x| x + 1.0);
/// assert_eq!(y.data(), [2.0, 3.0]);
/// # Ok::<(), hccl::Error>(())
/// ```
pub struct Act<T: Element, S: Shape> {
    dims: Dims,
    /// Invariant: as many as `dims` says.
    data: Vec<T>,
    shape: PhantomData<fn() -> S>,
}

impl<T: Element, S: Shape> Act<T, S> {
    /// Elements with these dimensions. Another number of dimensions than the shape's does not compile.
    ///
    /// # Errors
    /// `InvalidArgument` when a fixed dimension has another length, `Length` when the dimensions multiply to another
    /// number of elements.
    pub fn new<const R: usize>(dims: [usize; R], data: Vec<T>) -> Result<Self> {
        const { assert!(R == S::DIMS.len(), "as many lengths as the shape has dimensions") };
        Act::from_dims(Dims::new(&dims)?, data)
    }

    /// As [`new`](Self::new), with the dimensions of another payload.
    ///
    /// # Errors
    /// Those of [`new`](Self::new), and `InvalidArgument` when there are more or fewer dimensions.
    pub fn from_dims(dims: Dims, data: Vec<T>) -> Result<Self> {
        if !fits(dims, S::DIMS) {
            return Err(Error::invalid(format!("{dims:?} does not fit {}", Specs(S::DIMS))));
        }
        match dims.elements() {
            Some(expected) if expected == data.len() => Ok(Act { dims, data, shape: PhantomData }),
            expected => {
                let expected = expected.unwrap_or(usize::MAX);
                Err(Error::new(crate::ErrorKind::Length { what: "the data", expected, actual: data.len() }))
            }
        }
    }

    /// The lengths of the dimensions, outermost first.
    pub fn dims(&self) -> &[usize] {
        self.dims.as_slice()
    }

    /// The elements, row-major.
    pub fn data(&self) -> &[T] {
        &self.data
    }

    /// The elements, to be written.
    pub fn data_mut(&mut self) -> &mut [T] {
        &mut self.data
    }

    /// The elements, for good.
    pub fn into_data(self) -> Vec<T> {
        self.data
    }

    /// Each element changed by `f`, in the same memory.
    #[must_use]
    pub fn map(mut self, mut f: impl FnMut(T) -> T) -> Self {
        self.data.iter_mut().for_each(|x| *x = f(*x));
        self
    }
}

impl<T: Element, S: Shape> Clone for Act<T, S> {
    fn clone(&self) -> Self {
        Act { dims: self.dims, data: self.data.clone(), shape: PhantomData }
    }
}

impl<T: Element, S: Shape> PartialEq for Act<T, S> {
    fn eq(&self, other: &Self) -> bool {
        self.dims == other.dims && self.data == other.data
    }
}

impl<T: Element, S: Shape> fmt::Debug for Act<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Act<{}, {}>{:?}", T::DTYPE, Specs(S::DIMS), self.dims)
    }
}

macro_rules! acts {
    ($($t:ty => $grad:ty;)*) => { $(
        impl<S: Shape> Payload for Act<$t, S> {
            type Elem = $t;
            type Shape = S;
            type Grad = $grad;

            fn dims(&self) -> Dims {
                self.dims
            }

            fn read(&self, f: &mut dyn FnMut(&[$t])) -> StageResult<()> {
                f(&self.data);
                Ok(())
            }

            fn build(dims: Dims, elements: Vec<$t>) -> StageResult<Self> {
                Ok(Act::from_dims(dims, elements)?)
            }

            fn recycle(self) -> Option<Vec<$t>> {
                Some(self.data)
            }
        }
    )* };
}

acts! {
    i8 => NoGrad; u8 => NoGrad; i16 => NoGrad; u16 => NoGrad; i32 => NoGrad; u32 => NoGrad; i64 => NoGrad; u64 => NoGrad;
    f16 => Act<f32, S>; bf16 => Act<f32, S>; f32 => Act<f32, S>; f64 => Act<f64, S>;
}

/// The gradient of what has none, such as token ids. It travels as an empty message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoGrad;

impl Payload for NoGrad {
    type Elem = u8;
    type Shape = (super::shape::Fixed<0>,);
    type Grad = NoGrad;

    fn dims(&self) -> Dims {
        // One dimension of length 0 is within the most that a payload has.
        Dims::new(&[0]).unwrap_or_default()
    }

    fn read(&self, f: &mut dyn FnMut(&[u8])) -> StageResult<()> {
        f(&[]);
        Ok(())
    }

    fn build(_: Dims, _: Vec<u8>) -> StageResult<Self> {
        Ok(NoGrad)
    }
}

/// `Self` may return from the last stage to a first stage that takes `First`: both have elements of one type.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot return to a first stage that takes `{First}`",
    label = "has elements of another type",
    note = "what returns becomes the next input: give `feedback` the element type of the first stage's input"
)]
pub trait Returns<First: Payload>: Payload {}

impl<First: Payload, Back: Payload<Elem = First::Elem>> Returns<First> for Back {}

/// What f32 gradients become on their way to the previous stage; they arrive as f32 again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wire {
    /// As they are.
    #[default]
    F32,
    /// Rounded to bf16, to the nearest even: half the bytes, the range of f32.
    BF16,
    /// Rounded to f16, to the nearest even: half the bytes, infinite from 65520 on.
    F16,
}

impl Wire {
    pub(super) fn dtype(self) -> DType {
        match self {
            Wire::F32 => DType::F32,
            Wire::BF16 => DType::BF16,
            Wire::F16 => DType::F16,
        }
    }

    /// Rounds into `bits`, which is cleared first.
    pub(super) fn narrow(self, from: &[f32], bits: &mut Vec<u16>) {
        bits.clear();
        match self {
            Wire::F16 => bits.extend(from.iter().map(|&x| f16::from_f32(x).to_bits())),
            Wire::BF16 | Wire::F32 => bits.extend(from.iter().map(|&x| bf16::from_f32(x).to_bits())),
        }
    }

    /// The reverse; both have the same length.
    pub(super) fn widen(self, bits: &[u16], into: &mut [f32]) {
        for (x, &bits) in into.iter_mut().zip(bits) {
            *x = match self {
                Wire::F16 => f16::from_bits(bits).to_f32(),
                Wire::BF16 | Wire::F32 => bf16::from_bits(bits).to_f32(),
            };
        }
    }
}
