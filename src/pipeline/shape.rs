//! Shapes as types: which dimensions a payload has, and which of them are the same length.

use crate::error::{Error, Result};
use std::fmt;

/// Most dimensions of a payload.
pub const MOST_DIMS: usize = 8;

/// Declares a dimension: a name that stands for one length.
///
/// `dim!(pub Batch)` is bound anew for each microbatch by what enters the first stage; wherever `Batch` stands in the
/// pipeline, that microbatch must have the same length there. `dim!(pub Hidden = 64)` is 64 everywhere.
///
/// ```
/// use hccl::pipeline::Act;
/// hccl::dim!(Batch);
/// hccl::dim!(Hidden = 2);
/// let h = Act::<f32, (Batch, Hidden)>::new([3, 2], vec![0.0; 6])?;
/// assert_eq!(h.dims(), [3, 2]);
/// let refused = Act::<f32, (Batch, Hidden)>::new([2, 3], vec![0.0; 6]).unwrap_err();
/// assert!(refused.to_string().contains("[2, 3] does not fit (Batch, Hidden = 2)"), "{refused}");
/// # Ok::<(), hccl::Error>(())
/// ```
#[macro_export]
macro_rules! dim {
    ($(#[$meta:meta])* $vis:vis $name:ident $(= $len:expr)?) => {
        $(#[$meta])*
        #[doc = concat!("The dimension `", stringify!($name), "` of a pipeline's payloads.")]
        #[allow(dead_code)]
        #[derive(Clone, Copy, Debug)]
        $vis struct $name;

        impl $crate::pipeline::Dim for $name {
            const SPEC: $crate::pipeline::DimSpec =
                $crate::pipeline::DimSpec::named(::core::stringify!($name)) $(.fixed($len))?;
        }
    };
}

/// One dimension of a [`Shape`]: made by [`dim!`](crate::dim), or [`Dyn`], or [`Fixed`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a dimension",
    label = "not a dimension of a payload",
    note = "declare it with `hccl::dim!({Self})`, or use `Fixed<N>` for a constant and `Dyn` for any length"
)]
pub trait Dim: 'static {
    /// Its name and, if it has one, its fixed length.
    const SPEC: DimSpec;
}

/// A dimension of any length, checked nowhere.
#[derive(Clone, Copy, Debug)]
pub struct Dyn;

/// A dimension of length `N`.
#[derive(Clone, Copy, Debug)]
pub struct Fixed<const N: usize>;

impl Dim for Dyn {
    const SPEC: DimSpec = DimSpec { name: None, len: None };
}

impl<const N: usize> Dim for Fixed<N> {
    const SPEC: DimSpec = DimSpec { name: None, len: Some(N) };
}

/// What is known of a [`Dim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DimSpec {
    name: Option<&'static str>,
    len: Option<usize>,
}

impl DimSpec {
    /// A dimension of this name.
    pub const fn named(name: &'static str) -> Self {
        DimSpec { name: Some(name), len: None }
    }

    /// The same with a fixed length.
    #[must_use]
    pub const fn fixed(self, len: usize) -> Self {
        DimSpec { len: Some(len), ..self }
    }

    /// Its name, when it must have one length throughout a microbatch.
    pub(super) fn symbol(self) -> Option<&'static str> {
        self.name.filter(|_| self.len.is_none())
    }
}

impl fmt::Display for DimSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.name, self.len) {
            (Some(name), Some(len)) => write!(f, "{name} = {len}"),
            (Some(name), None) => f.write_str(name),
            (None, Some(len)) => write!(f, "{len}"),
            (None, None) => f.write_str("_"),
        }
    }
}

/// The dimensions of a payload, outermost first: a tuple of up to six [`Dim`]s. Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a shape",
    label = "not a tuple of dimensions",
    note = "write a tuple such as `(Batch, Hidden)`, of dimensions declared with `hccl::dim!`; `(Batch,)` for one"
)]
pub trait Shape: sealed::Sealed + 'static {
    /// The dimensions.
    const DIMS: &'static [DimSpec];
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! shapes {
    ($(($($dim:ident),*))*) => { $(
        impl<$($dim: Dim),*> sealed::Sealed for ($($dim,)*) {}
        impl<$($dim: Dim),*> Shape for ($($dim,)*) {
            const DIMS: &'static [DimSpec] = &[$($dim::SPEC),*];
        }
    )* };
}

shapes! { () (A) (A, B) (A, B, C) (A, B, C, D) (A, B, C, D, E) (A, B, C, D, E, F) }

/// `(Batch, Hidden = 64)`.
pub(super) struct Specs<'a>(pub(super) &'a [DimSpec]);

impl fmt::Display for Specs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for (i, spec) in self.0.iter().enumerate() {
            write!(f, "{}{spec}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str(")")
    }
}

/// The lengths of a payload's dimensions.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Dims {
    rank: usize,
    of: [usize; MOST_DIMS],
}

impl Dims {
    /// These lengths.
    ///
    /// # Errors
    /// `InvalidArgument` for more than [`MOST_DIMS`].
    pub fn new(lengths: &[usize]) -> Result<Self> {
        let mut dims = Dims { rank: lengths.len(), ..Dims::default() };
        match dims.of.get_mut(..lengths.len()) {
            Some(of) => of.copy_from_slice(lengths),
            None => {
                let problem = format!("{} dimensions are more than the {MOST_DIMS} of a payload", lengths.len());
                return Err(Error::invalid(problem));
            }
        }
        Ok(dims)
    }

    /// The lengths.
    pub fn as_slice(&self) -> &[usize] {
        &self.of[..self.rank]
    }

    /// Their product, the number of elements; `None` when it overflows.
    pub fn elements(&self) -> Option<usize> {
        self.as_slice().iter().try_fold(1usize, |product, &len| product.checked_mul(len))
    }
}

impl fmt::Debug for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

/// Whether `dims` can be of a shape at all: its rank and fixed lengths.
pub(super) fn fits(dims: Dims, specs: &'static [DimSpec]) -> bool {
    let lengths = dims.as_slice();
    lengths.len() == specs.len() && lengths.iter().zip(specs).all(|(&is, spec)| spec.len.is_none_or(|len| len == is))
}

/// Every name of a pipeline's shapes that stands for one length a microbatch.
#[derive(Clone, Debug, Default)]
pub(super) struct Symbols(Vec<&'static str>);

impl Symbols {
    pub(super) fn add(&mut self, specs: &'static [DimSpec]) {
        for name in specs.iter().filter_map(|spec| spec.symbol()) {
            if !self.0.contains(&name) {
                self.0.push(name);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Compares `dims` with the shape and with what its names are bound to, and binds the names that are free.
    pub(super) fn bind(&self, dims: Dims, specs: &'static [DimSpec], bound: &mut Bound) -> Result<(), String> {
        let misfit = |bound: &Bound| {
            let lengths = Lengths(&self.0, bound);
            format!("a payload of dimensions {dims:?} where {}{lengths} is needed", Specs(specs))
        };
        if !fits(dims, specs) {
            return Err(misfit(bound));
        }
        for (&len, spec) in dims.as_slice().iter().zip(specs) {
            let index = spec.symbol().and_then(|name| self.0.iter().position(|&known| known == name));
            let Some(place) = index.and_then(|index| bound.0.get_mut(index)) else { continue };
            match *place {
                Bound::FREE => *place = len as u64,
                other if other == len as u64 => {}
                _ => return Err(misfit(bound)),
            }
        }
        Ok(())
    }
}

/// The lengths that the names of a pipeline have in one microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bound(pub(super) [u64; MOST_DIMS]);

impl Bound {
    const FREE: u64 = u64::MAX;
    pub(super) const NOTHING: Bound = Bound([Bound::FREE; MOST_DIMS]);
}

/// ` with Batch = 4, Seq = 8`.
struct Lengths<'a>(&'a [&'static str], &'a Bound);

impl fmt::Display for Lengths<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = self.0.iter().zip(self.1.0).filter(|&(_, len)| len != Bound::FREE);
        for (i, (name, len)) in bound.enumerate() {
            write!(f, "{} {name} = {len}", if i == 0 { " with" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::dim!(Batch);
    crate::dim!(Seq);
    crate::dim!(Hidden = 4);

    fn dims(lengths: &[usize]) -> Dims {
        Dims::new(lengths).unwrap()
    }

    #[test]
    fn names_are_bound_once_a_microbatch() {
        let mut symbols = Symbols::default();
        symbols.add(<(Batch, Seq)>::DIMS);
        symbols.add(<(Batch, Seq, Hidden)>::DIMS);
        assert_eq!(symbols.len(), 2);
        let mut bound = Bound::NOTHING;
        symbols.bind(dims(&[3, 8]), <(Batch, Seq)>::DIMS, &mut bound).unwrap();
        symbols.bind(dims(&[3, 8, 4]), <(Batch, Seq, Hidden)>::DIMS, &mut bound).unwrap();
        let error = symbols.bind(dims(&[3, 7, 4]), <(Batch, Seq, Hidden)>::DIMS, &mut bound).unwrap_err();
        assert_eq!(
            error,
            "a payload of dimensions [3, 7, 4] where (Batch, Seq, Hidden = 4) with Batch = 3, Seq = 8 is needed"
        );
        symbols.bind(dims(&[2, 7]), <(Batch, Seq)>::DIMS, &mut Bound::NOTHING.clone()).unwrap();
    }

    #[test]
    fn fixed_lengths_and_ranks_are_compared() {
        assert!(fits(dims(&[1, 4]), <(Dyn, Hidden)>::DIMS));
        assert!(!fits(dims(&[1, 5]), <(Dyn, Hidden)>::DIMS));
        assert!(!fits(dims(&[4]), <(Dyn, Hidden)>::DIMS));
        assert!(fits(dims(&[5]), <(Fixed<5>,)>::DIMS));
        assert_eq!(Specs(<(Dyn, Hidden, Fixed<5>, Batch)>::DIMS).to_string(), "(_, Hidden = 4, 5, Batch)");
    }

    #[test]
    fn counts_do_not_overflow() {
        assert_eq!(dims(&[usize::MAX, 2]).elements(), None);
        assert_eq!(dims(&[]).elements(), Some(1));
        assert!(Dims::new(&[1; 9]).is_err());
    }
}
