//! Who is who in a group: [`Rank`], [`Peer`], [`Root`], and the [`Axis`] a group lies on.
//!
//! A communicator is one group of ranks as this rank sees it. Peers and roots are values that the group hands out, so
//! a bare integer is never mistaken for one:
//!
//! - a value of another axis does not compile: `Root<Dp>` is not `Root<Tp>`;
//! - a value of another group of the same axis is [`ErrorKind::WrongGroup`], because the
//!   group's identity is inside;
//! - a number outside the group is [`ErrorKind::NoSuchRank`].
//!
//! ```
//! let out = hccl::local(3, |comm| {
//!     let root = comm.root(2)?;
//!     let mut word = [if comm.is_root(root) { 7u32 } else { 0 }];
//!     comm.broadcast(&mut word, root)?;
//!     assert!(comm.peer(3).unwrap_err().to_string().contains("no rank 3"));
//!     Ok(word[0])
//! })?;
//! assert_eq!(out, [7, 7, 7]);
//! # Ok::<(), hccl::Error>(())
//! ```

use crate::error::{Error, ErrorKind};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

mod sealed {
    #[diagnostic::on_unimplemented(
        message = "`{Self}` cannot become an axis",
        label = "not one of the library's axes",
        note = "axes are `World`, `Dp` (data), `Pp` (pipeline) and `Tp` (tensor parallel)",
        note = "for other groups use `Communicator::split` or `Communicator::group`"
    )]
    pub trait Sealed {}
}

/// What a group of ranks is for: [`World`], [`Dp`], [`Pp`] or [`Tp`]. Sealed.
///
/// ```
/// use hccl::{Axis, Communicator, Dp, Mesh};
/// fn describe<A: Axis>(comm: &Communicator<A>) -> String {
///     format!("{} {} of {}", A::NAME, comm.rank(), comm.size())
/// }
/// let out = hccl::local(2, |world| Ok([describe(&world), describe(Mesh::new(&world, (Dp(2),))?.group::<Dp>())]))?;
/// assert_eq!(out[1], ["World 1 of 2", "Dp 1 of 2"]);
/// # Ok::<(), hccl::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an axis of a group",
    label = "not an axis",
    note = "axes are `World`, `Dp` (data), `Pp` (pipeline) and `Tp` (tensor parallel)"
)]
pub trait Axis: sealed::Sealed + Copy + fmt::Debug + Send + Sync + 'static {
    /// The name of the axis, as `Dp`.
    ///
    /// ```
    /// use hccl::{Axis, Tp};
    /// assert_eq!(Tp::NAME, "Tp");
    /// ```
    const NAME: &'static str;
}

/// The axis of every rank of the job, and of the groups that [`split`](crate::Communicator::split) makes of it.
///
/// ```
/// use hccl::{Communicator, World};
/// /// What only a group on the axis of the world can be given to.
/// fn report(comm: &Communicator<World>) -> String {
///     format!("{comm:?}")
/// }
/// let out = hccl::local(2, |comm| Ok(comm.split(Some(comm.rank().index() as u64), 0)?.as_ref().map(report)))?;
/// assert_eq!(out[1].as_deref(), Some("Communicator<World>(rank 0 of 1)"));
/// # Ok::<(), hccl::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World;

/// The data-parallel axis of a [`Mesh`](crate::Mesh): ranks that hold replicas. The number is its extent.
///
/// ```
/// use hccl::{Avg, Communicator, Dp, Mesh, Tp};
/// fn average(replicas: &Communicator<Dp>, grads: &mut [f32]) -> hccl::Result<()> {
///     replicas.all_reduce(grads, Avg)
/// }
/// let out = hccl::local(4, |world| {
///     let mut grads = [world.rank().index() as f32];
///     average(Mesh::new(&world, (Dp(2), Tp(2)))?.group(), &mut grads)?;
///     Ok(grads[0])
/// })?;
/// assert_eq!(out, [1.0, 2.0, 1.0, 2.0]);
/// # Ok::<(), hccl::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dp(pub usize);

/// The pipeline axis of a [`Mesh`](crate::Mesh): ranks that hold successive layers. The number is its extent.
///
/// ```
/// use hccl::{Communicator, Mesh, Pp};
/// /// Takes what the stage before has computed, adds this stage's part and passes it on.
/// fn stage(stages: &Communicator<Pp>, x: &mut [i64]) -> hccl::Result<()> {
///     let rank = stages.rank().index();
///     if rank > 0 {
///         stages.recv(x, stages.peer(rank - 1)?)?;
///     }
///     x[0] = x[0] * 10 + rank as i64 + 1;
///     if rank + 1 < stages.size() { stages.send(x, stages.peer(rank + 1)?) } else { Ok(()) }
/// }
/// let out = hccl::local(3, |world| {
///     let mut x = [0];
///     stage(Mesh::new(&world, (Pp(3),))?.group(), &mut x)?;
///     Ok(x[0])
/// })?;
/// assert_eq!(out, [1, 12, 123]);
/// # Ok::<(), hccl::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pp(pub usize);

/// The tensor-parallel axis of a [`Mesh`](crate::Mesh): ranks that hold slices of the same layers. The number is its
/// extent.
///
/// ```
/// use hccl::{Communicator, Mesh, Sum, Tp};
/// /// A dot product of which each rank holds a slice.
/// fn dot(slices: &Communicator<Tp>, a: &[f64], b: &[f64]) -> hccl::Result<f64> {
///     let mut sum = [a.iter().zip(b).map(|(a, b)| a * b).sum()];
///     slices.all_reduce(&mut sum, Sum)?;
///     Ok(sum[0])
/// }
/// let out = hccl::local(2, |world| {
///     let slice = [[1.0, 2.0], [3.0, 4.0]][world.rank().index()];
///     dot(Mesh::new(&world, (Tp(2),))?.group(), &slice, &[1.0, 10.0])
/// })?;
/// assert_eq!(out, [64.0; 2]);
/// # Ok::<(), hccl::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tp(pub usize);

macro_rules! axes {
    ($($axis:ident)*) => { $(
        impl sealed::Sealed for $axis {}
        impl Axis for $axis { const NAME: &'static str = stringify!($axis); }
    )* };
}

axes! { World Dp Pp Tp }

/// Tells groups apart within a process. All members in one process have the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GroupId {
    /// Which world; differs between worlds of one process.
    world: u64,
    /// How the group was derived from the world: the same on all members, also in other processes.
    path: u64,
}

impl GroupId {
    /// The group of all ranks of a new world.
    pub(crate) fn world(number: u64) -> Self {
        GroupId { world: number, path: 0 }
    }

    /// The `nth` group of these members of `self`.
    pub(crate) fn of_members(self, axis: &str, members: &[usize], nth: u64) -> Self {
        let start = mix(mix(self.path, nth), members.len() as u64);
        let named = axis.bytes().fold(start, |hash, byte| mix(hash, u64::from(byte)));
        let path = members.iter().fold(named, |hash, &member| mix(hash, member as u64));
        GroupId { world: self.world, path }
    }

    /// The number that tells the group's engine apart from its siblings', the same on all members.
    pub(crate) fn tag(self) -> u64 {
        self.path
    }
}

/// One round of splitmix64 over both words: good enough that derived groups do not collide by accident.
fn mix(hash: u64, word: u64) -> u64 {
    let mut z = (hash ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A rank and the group it belongs to, with the axis erased.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Member {
    pub(crate) group: GroupId,
    pub(crate) index: u32,
    /// Name of the axis, for messages.
    pub(crate) axis: &'static str,
}

/// The refusal of a member of another group.
#[cold]
pub(crate) fn wrong_group(theirs: Member, ours: GroupId, axis: &'static str) -> Error {
    let name = |axis, group: GroupId| format!("{axis}#{:06x}", mix(group.world, group.path) & 0xff_ffff);
    let kind = ErrorKind::WrongGroup { theirs: name(theirs.axis, theirs.group), ours: name(axis, ours) };
    Error::new(kind)
}

/// This rank's own number in a group. Made by [`Communicator::rank`](crate::Communicator::rank).
///
/// ```
/// let out = hccl::local(3, |comm| {
///     let last = comm.rank().index() + 1 == comm.size();
///     Ok(format!("rank {} {}", comm.rank(), if last { "computes the loss" } else { "passes on" }))
/// })?;
/// assert_eq!(out, ["rank 0 passes on", "rank 1 passes on", "rank 2 computes the loss"]);
/// # Ok::<(), hccl::Error>(())
/// ```
pub struct Rank<A: Axis> {
    index: u32,
    axis: PhantomData<A>,
}

impl<A: Axis> Rank<A> {
    pub(crate) fn new(index: u32) -> Self {
        Rank { index, axis: PhantomData }
    }

    /// The number, from 0.
    ///
    /// ```
    /// let seeds = hccl::local(3, |comm| Ok(1000 + comm.rank().index() as u64))?;
    /// assert_eq!(seeds, [1000, 1001, 1002]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn index(self) -> usize {
        self.index as usize
    }
}

macro_rules! members {
    ($($(#[$doc:meta])* $name:ident)*) => { $(
        $(#[$doc])*
        pub struct $name<A: Axis> {
            member: Member,
            axis: PhantomData<A>,
        }

        impl<A: Axis> $name<A> {
            pub(crate) fn new(group: GroupId, index: u32) -> Self {
                $name { member: Member { group, index, axis: A::NAME }, axis: PhantomData }
            }

            pub(crate) fn member(self) -> Member {
                self.member
            }

            /// The rank's number in its group, from 0.
            ///
            /// ```
            /// let out = hccl::local(2, |comm| {
            ///     let others: Vec<usize> = comm.peers().map(|peer| peer.index()).collect();
            ///     Ok((others, comm.root(1)?.index()))
            /// })?;
            /// assert_eq!(out, [(vec![1], 1), (vec![0], 1)]);
            /// # Ok::<(), hccl::Error>(())
            /// ```
            pub fn index(self) -> usize {
                self.member.index as usize
            }
        }

        impl<A: Axis> PartialEq for $name<A> {
            fn eq(&self, other: &Self) -> bool { self.member == other.member }
        }
        impl<A: Axis> Hash for $name<A> {
            fn hash<H: Hasher>(&self, state: &mut H) { self.member.hash(state) }
        }
    )* };
}

members! {
    /// The other side of a message, checked to be in the group. Made by [`Communicator::peer`](crate::Communicator::peer).
    Peer
    /// The rank that gives or gets the data of a rooted collective, checked to be in the group. Made by
    /// [`Communicator::root`](crate::Communicator::root).
    Root
}

impl<A: Axis> PartialEq for Rank<A> {
    fn eq(&self, other: &Self) -> bool {
        self.index == other.index
    }
}

impl<A: Axis> PartialOrd for Rank<A> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<A: Axis> Ord for Rank<A> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.index.cmp(&other.index)
    }
}

impl<A: Axis> Hash for Rank<A> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.index.hash(state);
    }
}

// By hand: deriving would ask for the same of the axis.
macro_rules! values {
    ($($name:ident)*) => { $(
        impl<A: Axis> Clone for $name<A> {
            fn clone(&self) -> Self { *self }
        }
        impl<A: Axis> Copy for $name<A> {}
        impl<A: Axis> Eq for $name<A> {}
        impl<A: Axis> fmt::Debug for $name<A> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "<{}>({})"), A::NAME, self.index())
            }
        }
        impl<A: Axis> fmt::Display for $name<A> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.index())
            }
        }
    )* };
}

values! { Rank Peer Root }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_groups_differ_by_members_order_number_and_axis() {
        let world = GroupId::world(3);
        let derived = [
            world,
            world.of_members("World", &[0, 1], 0),
            world.of_members("World", &[1, 0], 0),
            world.of_members("World", &[0, 1], 1),
            world.of_members("Dp", &[0, 1], 0),
            world.of_members("World", &[0], 0),
            world.of_members("World", &[0, 1], 0).of_members("World", &[0, 1], 0),
        ];
        for (i, a) in derived.iter().enumerate() {
            for b in &derived[i + 1..] {
                assert_ne!(a.tag(), b.tag());
            }
        }
        let elsewhere = GroupId::world(4).of_members("World", &[0, 1], 0);
        assert_eq!(elsewhere.tag(), derived[1].tag(), "the same on members in other processes");
        assert_ne!(elsewhere, derived[1], "worlds of one process are told apart");
    }

    #[test]
    fn values_print_their_axis_and_number() {
        assert_eq!(format!("{:?} {}", Root::<Tp>::new(GroupId::world(0), 2), Rank::<Dp>::new(5)), "Root<Tp>(2) 5");
    }
}
