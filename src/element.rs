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
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a collective element",
    label = "ranks exchange numbers, not `{Self}`",
    note = "elements are i8 u8 i16 u16 i32 u32 i64 u64 f16 bf16 f32 f64 (`hccl::element`)",
    note = "send other data as bytes: `broadcast_bytes`, `all_gather_bytes`, or a `u8` buffer"
)]
pub trait Element: sealed::Sealed + Copy + Default + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// The run-time name of the type.
    const DTYPE: DType;
}

/// An element that can be reduced with [`Sum`](crate::Sum), [`Prod`](crate::Prod), [`Min`](crate::Min) and
/// [`Max`](crate::Max). Integers wrap on overflow.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be reduced",
    label = "a reduction needs a number",
    note = "numbers are i8 u8 i16 u16 i32 u32 i64 u64 f16 bf16 f32 f64 (`hccl::element`)"
)]
pub trait Numeric: Element + num_traits::Num {}

/// A number that can be averaged: [`Avg`](crate::Avg) is for these only.
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
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum DType {
            $(#[doc = concat!("`", $name, "`, ", stringify!($bytes), " byte(s)")] $dtype,)*
        }

        impl DType {
            /// Every dtype, in the order of their codes.
            pub const ALL: &'static [DType] = &[$(DType::$dtype),*];

            /// Bytes of one element.
            pub const fn size(self) -> usize {
                match self { $(DType::$dtype => $bytes,)* }
            }

            /// The Rust name of the type, as `f32`.
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
