//! Reduce operations as types: [`Sum`], [`Prod`], [`Min`], [`Max`], and [`Avg`] for floats.
//!
//! A collective asks for `Op: ReduceOp<T>`, so an operation that the element type does not have is refused by the
//! compiler.
//!
//! The order is fixed on one host: `((r0 + r1) + r2) + …`, with f16 and bf16 accumulated in f32 and rounded once at the
//! end. All ranks get the same bits, however the data was cut into chunks, whichever rank came first, and whichever
//! SIMD instructions the processor has.
//!
//! | operation | element types | note |
//! | --- | --- | --- |
//! | [`Sum`], [`Prod`] | all | integers wrap |
//! | [`Min`], [`Max`] | all | a NaN on any rank wins (the first in rank order); −0 is less than +0 |
//! | [`Avg`] | f16, bf16, f32, f64 | the sum (f32 for halves), times 1/n, one rounding |
//!
//! ```
//! use hccl::{Avg, Max};
//! let out = hccl::local(4, |comm| {
//!     let mut x = [comm.rank().index() as f32];
//!     let mut y = x;
//!     comm.all_reduce(&mut x, Avg)?;
//!     comm.all_reduce(&mut y, Max)?;
//!     Ok((x[0], y[0]))
//! })?;
//! assert_eq!(out, vec![(1.5, 3.0); 4]);
//! # Ok::<(), hccl::Error>(())
//! ```

use crate::element::{Float, Numeric};
use std::fmt;

/// The run-time name of a reduce operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum OpKind {
    /// [`Sum`]
    Sum,
    /// [`Prod`]
    Prod,
    /// [`Min`]
    Min,
    /// [`Max`]
    Max,
    /// [`Avg`]
    Avg,
}

impl OpKind {
    /// Every operation, in the order of their codes.
    pub const ALL: &'static [OpKind] = &[OpKind::Sum, OpKind::Prod, OpKind::Min, OpKind::Max, OpKind::Avg];

    /// The operation's name, as `sum`.
    pub const fn name(self) -> &'static str {
        match self {
            OpKind::Sum => "sum",
            OpKind::Prod => "prod",
            OpKind::Min => "min",
            OpKind::Max => "max",
            OpKind::Avg => "avg",
        }
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    #[diagnostic::on_unimplemented(
        message = "`{Self}` cannot become a reduce operation",
        label = "not one of the library's operations",
        note = "every backend must know an operation: they are `Sum`, `Prod`, `Min`, `Max` and `Avg`",
        note = "for another one, gather the elements with `all_gather` and reduce them in your own code"
    )]
    pub trait Sealed {}
}

/// A reduce operation on elements of type `T`.
///
/// Bounds are met by the element type: [`Sum`], [`Prod`], [`Min`], [`Max`] ask for [`Numeric`], [`Avg`] for [`Float`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a reduce operation on `{T}`",
    label = "not an operation on `{T}`",
    note = "operations are `Sum`, `Prod`, `Min`, `Max`, and `Avg` for f16, bf16, f32 and f64",
    note = "integers cannot be averaged: use `Sum` and divide where the result is used"
)]
pub trait ReduceOp<T>: sealed::Sealed + Copy + Send + 'static {
    /// The run-time name of the operation.
    const KIND: OpKind;
}

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident: $bound:ident;)*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name;
        impl sealed::Sealed for $name {}
        impl<T: $bound> ReduceOp<T> for $name { const KIND: OpKind = OpKind::$name; }
    )* };
}

operations! {
    /// The sum over all ranks.
    Sum: Numeric;
    /// The product over all ranks.
    Prod: Numeric;
    /// The least value of all ranks; NaN if any rank has NaN.
    Min: Numeric;
    /// The greatest value of all ranks; NaN if any rank has NaN.
    Max: Numeric;
    /// The mean over all ranks; floats only.
    Avg: Float;
}
