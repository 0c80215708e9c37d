//! The types that collectives move: [`Element`], those they reduce: [`Numeric`], and those they average: [`Float`].
//!
//! | Rust type | [`DType`] | bytes | [`Numeric`] | [`Float`] |
//! | --- | --- | --- | --- | --- |
//! | `i8`, `u8` | `I8`, `U8` | 1 | yes | |
//! | `i16`, `u16` | `I16`, `U16` | 2 | yes | |
//! | `i32`, `u32` | `I32`, `U32` | 4 | yes | |
//! | `i64`, `u64` | `I64`, `U64` | 8 | yes | |
//! | [`half::f16`], [`half::bf16`] | `F16`, `BF16` | 2 | yes | yes |
//! | `f32`, `f64` | `F32`, `F64` | 4, 8 | yes | yes |
//!
//! The traits are sealed: a type whose bytes no backend understands cannot become an element.
//!
//! ```
//! use hccl::{DType, Element};
//! assert_eq!(<half::bf16 as Element>::DTYPE, DType::BF16);
//! assert_eq!(DType::BF16.size(), 2);
//! assert_eq!("f32".parse::<DType>().unwrap(), DType::F32);
//! ```

use half::{bf16, f16};
use std::fmt;
use std::str::FromStr;

mod sealed {
    #[diagnostic::on_unimplemented(
        message = "`{Self}` cannot become a collective element",
        label = "not one of the library's element types",
        note = "every backend must know the bytes of an element, so that the list is fixed: `hccl::element`",
        note = "exchange the numbers inside `{Self}`, as a slice of f32, or its bytes, as a slice of u8"
    )]
    pub trait Sealed {}
}

/// A plain number that every backend can move between ranks. Sealed; the module page lists all of them.
///
/// ```
/// use hccl::{Communicator, Element};
/// /// What every rank has, in rank order.
/// fn everyone<T: Element>(comm: &Communicator, own: T) -> hccl::Result<Vec<T>> {
///     let mut all = vec![T::default(); comm.size()];
///     comm.all_gather(&[own], &mut all)?;
///     Ok(all)
/// }
/// assert_eq!(hccl::local(2, |comm| everyone(&comm, comm.rank().index() as u16 + 7))?, [[7, 8]; 2]);
/// # Ok::<(), hccl::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a collective element",
    label = "ranks exchange numbers, not `{Self}`",
    note = "elements are i8 u8 i16 u16 i32 u32 i64 u64 f16 bf16 f32 f64 (`hccl::element`)",
    note = "send other data as bytes: `broadcast_bytes`, `all_gather_bytes`, or a `u8` buffer"
)]
pub trait Element: sealed::Sealed + Copy + Default + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// The run-time name of the type.
    ///
    /// ```
    /// use hccl::Element;
    /// fn header<T: Element>(elements: &[T]) -> String {
    ///     format!("{} x {}", elements.len(), T::DTYPE)
    /// }
    /// assert_eq!(header(&[0i64; 3]), "3 x i64");
    /// ```
    const DTYPE: DType;
}

/// An element that can be reduced with [`Sum`](crate::Sum), [`Prod`](crate::Prod), [`Min`](crate::Min) and
/// [`Max`](crate::Max). Integers wrap on overflow.
///
/// ```
/// use hccl::{Communicator, Numeric, Sum};
/// /// The sum over all elements of all ranks.
/// fn total<T: Numeric>(comm: &Communicator, own: &[T]) -> hccl::Result<T> {
///     let mut sum = [own.iter().fold(T::zero(), |sum, &x| sum + x)];
///     comm.all_reduce(&mut sum, Sum)?;
///     Ok(sum[0])
/// }
/// assert_eq!(hccl::local(2, |comm| total(&comm, &[comm.rank().index() as i32, 4]))?, [9, 9]);
/// # Ok::<(), hccl::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be reduced",
    label = "a reduction needs a number",
    note = "numbers are i8 u8 i16 u16 i32 u32 i64 u64 f16 bf16 f32 f64 (`hccl::element`)"
)]
pub trait Numeric: Element + num_traits::Num {}

/// A number that can be averaged: [`Avg`](crate::Avg) is for these only.
///
/// ```
/// use hccl::{Avg, Communicator, Float};
/// /// The norm of the average of the ranks' gradients.
/// fn norm<T: Float>(comm: &Communicator, mut grads: Vec<T>) -> hccl::Result<T> {
///     comm.all_reduce(&mut grads, Avg)?;
///     Ok(grads.iter().fold(T::zero(), |sum, &g| sum + g * g).sqrt())
/// }
/// assert_eq!(hccl::local(2, |comm| norm(&comm, vec![comm.rank().index() as f64 * 6.0, 4.0]))?, [5.0; 2]);
/// # Ok::<(), hccl::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be averaged",
    label = "an average of integers is not an integer",
    note = "use `Sum` and divide where the result is used, or convert the buffer to f32",
    note = "f16, bf16, f32 and f64 can be averaged"
)]
pub trait Float: Numeric + num_traits::Float {}

macro_rules! elements {
    ($($t:ty => $dtype:ident, $name:literal, $bytes:literal;)*) => {
        /// The run-time name of an [`Element`] type.
        ///
        /// ```
        /// use hccl::DType;
        /// /// Bytes that a message of this type and length moves.
        /// fn bytes(dtype: DType, len: usize) -> usize {
        ///     dtype.size() * len
        /// }
        /// assert_eq!((bytes(DType::F16, 10), bytes(DType::I64, 10)), (20, 80));
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum DType {
            $(#[doc = concat!("`", $name, "`, ", stringify!($bytes), " byte(s)")] $dtype,)*
        }

        impl DType {
            /// Every dtype, in the order of their codes.
            ///
            /// ```
            /// let wide: Vec<&str> = hccl::DType::ALL.iter().filter(|d| d.size() == 8).map(|d| d.name()).collect();
            /// assert_eq!(wide, ["i64", "u64", "f64"]);
            /// ```
            pub const ALL: &'static [DType] = &[$(DType::$dtype),*];

            /// Bytes of one element.
            ///
            /// ```
            /// assert_eq!(hccl::DType::BF16.size() * 1024, 2048);
            /// ```
            pub const fn size(self) -> usize {
                match self { $(DType::$dtype => $bytes,)* }
            }

            /// The Rust name of the type, as `f32`.
            ///
            /// ```
            /// assert_eq!(hccl::DType::BF16.name(), std::any::type_name::<half::bf16>().rsplit("::").next().unwrap());
            /// ```
            pub const fn name(self) -> &'static str {
                match self { $(DType::$dtype => $name,)* }
            }
        }

        $(
            impl sealed::Sealed for $t {}
            impl Element for $t { const DTYPE: DType = DType::$dtype; }
            impl Numeric for $t {}
            const _: () = assert!(size_of::<$t>() == DType::$dtype.size(), "size of the element and of its dtype differ");
        )*
    };
}

elements! {
    i8 => I8, "i8", 1;
    u8 => U8, "u8", 1;
    i16 => I16, "i16", 2;
    u16 => U16, "u16", 2;
    i32 => I32, "i32", 4;
    u32 => U32, "u32", 4;
    i64 => I64, "i64", 8;
    u64 => U64, "u64", 8;
    f16 => F16, "f16", 2;
    bf16 => BF16, "bf16", 2;
    f32 => F32, "f32", 4;
    f64 => F64, "f64", 8;
}

impl Float for f16 {}
impl Float for bf16 {}
impl Float for f32 {}
impl Float for f64 {}

impl DType {
    /// True for the types that can be averaged.
    ///
    /// ```
    /// use hccl::{DType, OpKind};
    /// /// The operation that joins gradients of this type.
    /// fn join(dtype: DType) -> OpKind {
    ///     if dtype.is_float() { OpKind::Avg } else { OpKind::Sum }
    /// }
    /// assert_eq!((join(DType::F16), join(DType::U8)), (OpKind::Avg, OpKind::Sum));
    /// ```
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }

    /// The dtype with this code, as it crossed shared memory or a wire.
    pub(crate) fn from_code(code: u8) -> Option<DType> {
        DType::ALL.get(code as usize).copied()
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text is not the name of a [`DType`].
///
/// ```
/// use hccl::element::UnknownDType;
/// let unknown = "float32".parse::<hccl::DType>().unwrap_err();
/// assert_eq!(unknown, UnknownDType("float32".to_owned()));
/// assert!(unknown.to_string().contains("f16 bf16 f32 f64"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown dtype {0:?} (known: i8 u8 i16 u16 i32 u32 i64 u64 f16 bf16 f32 f64)")]
pub struct UnknownDType(pub String);

impl FromStr for DType {
    type Err = UnknownDType;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        DType::ALL.iter().copied().find(|d| d.name() == text).ok_or_else(|| UnknownDType(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_round_trip() {
        for (code, &dtype) in DType::ALL.iter().enumerate() {
            assert_eq!(DType::from_code(code as u8), Some(dtype));
            assert_eq!(dtype as u8 as usize, code);
            assert_eq!(dtype.name().parse(), Ok(dtype));
        }
        assert_eq!(DType::from_code(DType::ALL.len() as u8), None);
        assert_eq!("bool".parse::<DType>(), Err(UnknownDType("bool".into())));
    }
}
