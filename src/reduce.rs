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
///
/// ```
/// use hccl::{OpKind, ReduceOp};
/// /// What to divide by after this operation to get a mean.
/// fn divisor<Op: ReduceOp<f32>>(_: Op, ranks: usize) -> usize {
///     if Op::KIND == OpKind::Sum { ranks } else { 1 }
/// }
/// assert_eq!((divisor(hccl::Sum, 8), divisor(hccl::Avg, 8)), (8, 1));
/// ```
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
    ///
    /// ```
    /// let names: Vec<&str> = hccl::OpKind::ALL.iter().map(|op| op.name()).collect();
    /// assert_eq!(names, ["sum", "prod", "min", "max", "avg"]);
    /// ```
    pub const ALL: &'static [OpKind] = &[OpKind::Sum, OpKind::Prod, OpKind::Min, OpKind::Max, OpKind::Avg];

    /// The operation's name, as `sum`.
    ///
    /// ```
    /// let op = hccl::OpKind::Max;
    /// assert_eq!(format!("all_reduce({})", op.name()), "all_reduce(max)");
    /// ```
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
///
/// ```
/// use hccl::{Communicator, ReduceOp};
/// /// One number of every rank made into one, with any operation that fits the number.
/// fn join<Op: ReduceOp<u32>>(comm: &Communicator, own: u32, op: Op) -> hccl::Result<u32> {
///     let mut x = [own];
///     comm.all_reduce(&mut x, op)?;
///     Ok(x[0])
/// }
/// let out = hccl::local(3, |comm| {
///     let own = comm.rank().index() as u32 + 2;
///     Ok((join(&comm, own, hccl::Prod)?, join(&comm, own, hccl::Min)?))
/// })?;
/// assert_eq!(out, [(24, 2); 3]);
/// # Ok::<(), hccl::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a reduce operation on `{T}`",
    label = "not an operation on `{T}`",
    note = "operations are `Sum`, `Prod`, `Min`, `Max`, and `Avg` for f16, bf16, f32 and f64",
    note = "integers cannot be averaged: use `Sum` and divide where the result is used"
)]
pub trait ReduceOp<T>: sealed::Sealed + Copy + Send + 'static {
    /// The run-time name of the operation.
    ///
    /// ```
    /// use hccl::{Avg, OpKind, ReduceOp};
    /// assert_eq!(<Avg as ReduceOp<f32>>::KIND, OpKind::Avg);
    /// ```
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
    ///
    /// ```
    /// let out = hccl::local(3, |comm| {
    ///     let mut x = [comm.rank().index() as u8 + 1, 200];
    ///     comm.all_reduce(&mut x, hccl::Sum)?;
    ///     Ok(x)
    /// })?;
    /// assert_eq!(out, [[6, 88]; 3]); // 600 wraps
    /// # Ok::<(), hccl::Error>(())
    /// ```
    Sum: Numeric;
    /// The product over all ranks.
    ///
    /// ```
    /// let out = hccl::local(3, |comm| {
    ///     let mut x = [comm.rank().index() as f32 + 0.5];
    ///     comm.all_reduce(&mut x, hccl::Prod)?;
    ///     Ok(x[0])
    /// })?;
    /// assert_eq!(out, [1.875; 3]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    Prod: Numeric;
    /// The least value of all ranks; NaN if any rank has NaN.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let own = [[3.0, f32::NAN], [-1.0, 0.0]][comm.rank().index()];
    ///     let mut x = own;
    ///     comm.all_reduce(&mut x, hccl::Min)?;
    ///     Ok((x[0], x[1].is_nan()))
    /// })?;
    /// assert_eq!(out, [(-1.0, true); 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    Min: Numeric;
    /// The greatest value of all ranks; NaN if any rank has NaN.
    ///
    /// ```
    /// let out = hccl::local(3, |comm| {
    ///     let mut seconds = [[1.5f64, 9.0, 2.0][comm.rank().index()]];
    ///     comm.all_reduce(&mut seconds, hccl::Max)?; // the slowest rank's step
    ///     Ok(seconds[0])
    /// })?;
    /// assert_eq!(out, [9.0; 3]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    Max: Numeric;
    /// The mean over all ranks; floats only.
    ///
    /// ```
    /// use half::bf16;
    /// let out = hccl::local(4, |comm| {
    ///     let mut x = [bf16::from_f32(comm.rank().index() as f32)];
    ///     comm.all_reduce(&mut x, hccl::Avg)?;
    ///     Ok(x[0].to_f32())
    /// })?;
    /// assert_eq!(out, [1.5; 4]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    Avg: Float;
}
