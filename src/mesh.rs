//! Ranks laid out on named axes: [`Mesh`].
//!
//! ```text
//! Mesh::new(&world, (Dp(2), Tp(3)))        world ranks, row-major: the last axis varies fastest
//!
//!             Tp 0   1   2
//!       Dp 0     0   1   2      rank 1's Tp group: 0 1 2
//!          1     3   4   5      rank 1's Dp group: 1 4
//! ```
//!
//! - Axes are [`Dp`], [`Pp`] and [`Tp`]: one to three different ones, in any order. A single axis is `(Dp(4),)`.
//! - The extents multiply to the size of the world.
//! - Each rank is in one group an axis: the ranks that differ from it on that axis only. Its rank in that group is its
//!   coordinate.
//! - Asking for an axis that the mesh does not have, or giving a group to code for another axis, does not compile.
//!
//! ```
//! use hccl::{Dp, Mesh, Sum, Tp};
//! let out = hccl::local(6, |world| {
//!     let mesh = Mesh::new(&world, (Dp(2), Tp(3)))?;
//!     let mut x = [world.rank().index()].map(|rank| rank as i64);
//!     mesh.group::<Tp>().all_reduce(&mut x, Sum)?;
//!     Ok((mesh.group::<Dp>().rank().index(), x[0]))
//! })?;
//! assert_eq!(out, [(0, 3), (0, 3), (0, 3), (1, 12), (1, 12), (1, 12)]);
//! # Ok::<(), hccl::Error>(())
//! ```

use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::group::{Axis, Dp, Pp, Tp, World};
use std::fmt;

/// One group of this rank for each axis of `Axes`, a tuple such as `(Dp, Tp)`. The module page says more.
///
/// ```
/// use hccl::{Avg, Dp, HasAxis, Mesh, Sum, Tp};
/// /// One step of any model that is cut into slices and replicated, whatever other axes there are.
/// fn step<Axes: HasAxis<Dp> + HasAxis<Tp>>(mesh: &Mesh<Axes>, x: f32) -> hccl::Result<f32> {
///     let mut x = [x];
///     mesh.group::<Tp>().all_reduce(&mut x, Sum)?;
///     mesh.group::<Dp>().all_reduce(&mut x, Avg)?;
///     Ok(x[0])
/// }
/// let out = hccl::local(4, |world| step(&Mesh::new(&world, (Dp(2), Tp(2)))?, world.rank().index() as f32))?;
/// assert_eq!(out, [3.0; 4]); // the mean of 0 + 1 and 2 + 3
/// # Ok::<(), hccl::Error>(())
/// ```
pub struct Mesh<Axes> {
    axes: Axes,
    /// Invariant: (1) holds a group of every axis that `Axes` has.
    groups: Groups,
}

/// A tuple of one to three different axes, such as `(Dp, Tp)`. Sealed.
///
/// ```
/// use hccl::{Communicator, Dp, Mesh, MeshAxes, Pp};
/// fn describe<Axes: MeshAxes>(world: &Communicator, axes: Axes) -> hccl::Result<String> {
///     Ok(format!("rank {} of {:?}", world.rank(), Mesh::new(world, axes)?))
/// }
/// let out = hccl::local(2, |world| describe(&world, (Pp(1), Dp(2))))?;
/// assert_eq!(out[1], "rank 1 of Mesh((Pp(1), Dp(2)))");
/// # Ok::<(), hccl::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "a mesh cannot have the axes `{Self}`",
    label = "not a tuple of one to three different axes",
    note = "write a tuple of `Dp(n)`, `Pp(n)` and `Tp(n)`, each at most once, as `(Dp(2), Tp(4))` or `(Dp(2),)`"
)]
pub trait MeshAxes: sealed::Layout + Copy + fmt::Debug {}

/// A mesh with the axes `Self` has axis `A`. Sealed.
///
/// ```
/// use hccl::{HasAxis, Mesh, Pp, Tp};
/// /// The stage of this rank, on every mesh that has stages.
/// fn stage<Axes: HasAxis<Pp>>(mesh: &Mesh<Axes>) -> usize {
///     mesh.group().rank().index()
/// }
/// let out = hccl::local(4, |world| Ok(stage(&Mesh::new(&world, (Pp(2), Tp(2)))?)))?;
/// assert_eq!(out, [0, 0, 1, 1]);
/// # Ok::<(), hccl::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "a mesh with the axes `{Self}` has no axis `{A}`",
    label = "the mesh was made without this axis",
    note = "add the axis to `Mesh::new(&world, …)`, with extent 1 where it is not used"
)]
pub trait HasAxis<A: Axis>: sealed::Pick<A> {}

mod sealed {
    use super::Groups;
    use crate::communicator::Communicator;
    use crate::error::Result;
    use crate::group::{Axis, World};

    pub trait Layout {
        /// `(name, extent)` of each axis, in order.
        fn extents(&self) -> Vec<(&'static str, usize)>;
        /// The groups, made in order, of these members an axis.
        fn groups(world: &Communicator<World>, members: &[Vec<usize>]) -> Result<Groups>;
    }

    pub trait Pick<A: Axis> {
        fn slot(groups: &Groups) -> &Option<Communicator<A>>;
        fn take(groups: Groups) -> Option<Communicator<A>>;
    }
}

/// The groups of a mesh.
#[derive(Default)]
pub struct Groups {
    dp: Option<Communicator<Dp>>,
    pp: Option<Communicator<Pp>>,
    tp: Option<Communicator<Tp>>,
}

impl<Axes> Mesh<Axes> {
    /// Lays the world out on `axes`, row-major. Every rank of the world calls it, with the same axes.
    ///
    /// ```
    /// use hccl::{Dp, Mesh, Tp};
    /// let out = hccl::local(4, |world| {
    ///     let mesh = Mesh::new(&world, (Tp(2), Dp(2)))?; // neighbours are replicas
    ///     assert!(Mesh::new(&world, (Dp(3),)).unwrap_err().to_string().contains("3 places for 4 ranks"));
    ///     Ok((mesh.group::<Tp>().rank().index(), mesh.group::<Dp>().rank().index()))
    /// })?;
    /// assert_eq!(out, [(0, 0), (0, 1), (1, 0), (1, 1)]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` when the extents do not multiply to the size of the world; those of
    /// [`Communicator::group`].
    pub fn new(world: &Communicator<World>, axes: Axes) -> Result<Self>
    where
        Axes: MeshAxes,
    {
        let at = |error: Error| error.at("Mesh::new", world.rank().index(), world.size());
        let extents = axes.extents();
        check(&extents, world.size()).map_err(at)?;
        let sizes: Vec<usize> = extents.iter().map(|&(_, extent)| extent).collect();
        let members: Vec<Vec<usize>> = (0..sizes.len()).map(|axis| line(&sizes, axis, world.rank().index())).collect();
        Ok(Mesh { axes, groups: Axes::groups(world, &members)? })
    }

    /// This rank's group on axis `A`.
    ///
    /// ```
    /// use hccl::{Dp, Max, Mesh, Pp};
    /// let out = hccl::local(4, |world| {
    ///     let mesh = Mesh::new(&world, (Dp(2), Pp(2)))?;
    ///     let mut slowest = [world.rank().index() as u64 * 5];
    ///     mesh.group::<Pp>().all_reduce(&mut slowest, Max)?; // ranks 0 1, and 2 3
    ///     Ok(slowest[0])
    /// })?;
    /// assert_eq!(out, [5, 5, 15, 15]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn group<A: Axis>(&self) -> &Communicator<A>
    where
        Axes: HasAxis<A>,
    {
        let Some(group) = Axes::slot(&self.groups) else { unreachable!("(1): `Axes` has axis {}", A::NAME) };
        group
    }

    /// This rank's group on axis `A`, for good; the other groups are closed.
    ///
    /// ```
    /// use hccl::{Communicator, Dp, Mesh};
    /// /// Data parallelism only: what trainers take.
    /// fn replicas(world: &Communicator) -> hccl::Result<Communicator<Dp>> {
    ///     Ok(Mesh::new(world, (Dp(world.size()),))?.into_group())
    /// }
    /// let out = hccl::local(2, |world| Ok(format!("{:?}", replicas(&world)?)))?;
    /// assert_eq!(out[1], "Communicator<Dp>(rank 1 of 2)");
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn into_group<A: Axis>(self) -> Communicator<A>
    where
        Axes: HasAxis<A>,
    {
        let Some(group) = Axes::take(self.groups) else { unreachable!("(1): `Axes` has axis {}", A::NAME) };
        group
    }

    /// The axes the mesh was made with.
    ///
    /// ```
    /// use hccl::{Dp, Mesh, Tp};
    /// let out = hccl::local(2, |world| {
    ///     let mesh = Mesh::new(&world, (Dp(1), Tp(2)))?;
    ///     let (Dp(replicas), Tp(slices)) = *mesh.axes();
    ///     Ok((replicas, slices))
    /// })?;
    /// assert_eq!(out, [(1, 2); 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn axes(&self) -> &Axes {
        &self.axes
    }
}

impl<Axes: fmt::Debug> fmt::Debug for Mesh<Axes> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mesh({:?})", self.axes)
    }
}

fn check(extents: &[(&'static str, usize)], world: usize) -> Result<()> {
    let product = extents.iter().try_fold(1usize, |product, &(_, extent)| product.checked_mul(extent));
    if product == Some(world) {
        return Ok(());
    }
    let factors: Vec<String> = extents.iter().map(|(name, extent)| format!("{name}({extent})")).collect();
    let product = product.map_or("more than memory can address".to_owned(), |product| product.to_string());
    Err(Error::invalid(format!("a mesh of {} has {product} places for {world} ranks", factors.join(" x ")))
        .hint("the extents of a mesh multiply to the size of the world"))
}

/// The ranks that differ from `rank` on `axis` only, in the order of that axis.
fn line(sizes: &[usize], axis: usize, rank: usize) -> Vec<usize> {
    let stride: usize = sizes[axis + 1..].iter().product();
    let coordinate = rank / stride % sizes[axis];
    let first = rank - coordinate * stride;
    (0..sizes[axis]).map(|i| first + i * stride).collect()
}

macro_rules! mesh {
    ($($axes:tt)*) => { $( axes! { $axes } )* };
}

macro_rules! axes {
    (($($axis:ident $field:ident $index:tt),*)) => {
        impl sealed::Layout for ($($axis,)*) {
            fn extents(&self) -> Vec<(&'static str, usize)> {
                vec![$((<$axis as Axis>::NAME, self.$index.0)),*]
            }

            fn groups(world: &Communicator<World>, members: &[Vec<usize>]) -> Result<Groups> {
                let mut groups = Groups::default();
                $( groups.$field = Some(world.subgroup::<$axis>("Mesh::new", &members[$index])?); )*
                Ok(groups)
            }
        }

        impl MeshAxes for ($($axis,)*) {}
        picks! { ($($axis,)*) $($axis $field)* }
    };
}

macro_rules! picks {
    ($axes:tt) => {};
    ($axes:tt $axis:ident $field:ident $($rest:tt)*) => {
        impl sealed::Pick<$axis> for $axes {
            fn slot(groups: &Groups) -> &Option<Communicator<$axis>> {
                &groups.$field
            }

            fn take(groups: Groups) -> Option<Communicator<$axis>> {
                groups.$field
            }
        }

        impl HasAxis<$axis> for $axes {}
        picks! { $axes $($rest)* }
    };
}

mesh! {
    (Dp dp 0)
    (Pp pp 0)
    (Tp tp 0)
    (Dp dp 0, Pp pp 1)
    (Dp dp 0, Tp tp 1)
    (Pp pp 0, Dp dp 1)
    (Pp pp 0, Tp tp 1)
    (Tp tp 0, Dp dp 1)
    (Tp tp 0, Pp pp 1)
    (Dp dp 0, Pp pp 1, Tp tp 2)
    (Dp dp 0, Tp tp 1, Pp pp 2)
    (Pp pp 0, Dp dp 1, Tp tp 2)
    (Pp pp 0, Tp tp 1, Dp dp 2)
    (Tp tp 0, Dp dp 1, Pp pp 2)
    (Tp tp 0, Pp pp 1, Dp dp 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_row_major() {
        let sizes = [2, 3, 2];
        assert_eq!(line(&sizes, 2, 7), [6, 7]);
        assert_eq!(line(&sizes, 1, 7), [7, 9, 11]);
        assert_eq!(line(&sizes, 0, 7), [1, 7]);
        assert_eq!(line(&[1], 0, 0), [0]);
    }

    #[test]
    fn every_rank_finds_itself_at_its_coordinate() {
        let sizes = [2, 3, 4];
        for rank in 0..24 {
            let coordinates = [rank / 12, rank / 4 % 3, rank % 4];
            for (axis, &coordinate) in coordinates.iter().enumerate() {
                assert_eq!(line(&sizes, axis, rank)[coordinate], rank);
            }
        }
    }

    #[test]
    fn the_extents_must_multiply_to_the_world() {
        assert!(check(&[("Dp", 2), ("Tp", 3)], 6).is_ok());
        let text = check(&[("Dp", 2), ("Tp", 2)], 6).unwrap_err().to_string();
        assert!(text.contains("Dp(2) x Tp(2) has 4 places for 6 ranks"), "{text}");
        assert!(check(&[("Dp", 0), ("Tp", 3)], 6).is_err());
        assert!(check(&[("Dp", usize::MAX), ("Tp", 2)], 6).is_err());
    }
}
