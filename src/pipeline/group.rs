//! A group that does not say who one is: [`Group`].
//!
//! A collective inside `if rank == 0 { … }` hangs. Code that does not see its rank cannot write that branch. The rank is
//! visible inside [`Group::local`] only, which borrows the group, so that no collective can be called there; what `local`
//! returns is a [`PerRank`], which opens in `local` again.
//!
//! This is a guard against accidents, not against malice: a rank can be smuggled out through a `Cell`.

use crate::communicator::Communicator;
use crate::error::Result;
use crate::group::Axis;
use crate::memory::InPlace;
use crate::reduce::ReduceOp;
use std::fmt;

/// A communicator for code that runs alike on every rank.
///
/// ```
/// use hccl::{Sum, pipeline::Group};
/// let sums = hccl::local(2, |comm| {
///     let mut group = Group::new(&comm);
///     let mut x = [1.0f32];
///     group.local(|rank| x[0] += rank as f32);
///     group.all_reduce(&mut x, Sum)?;
///     Ok(x[0])
/// })?;
/// assert_eq!(sums, [3.0, 3.0]);
/// # Ok::<(), hccl::Error>(())
/// ```
pub struct Group<'c, A: Axis> {
    comm: &'c Communicator<A>,
}

/// A value that differs from rank to rank: it is seen in [`Group::local`] only.
#[derive(Clone, Copy, Default)]
pub struct PerRank<T>(T);

impl<'c, A: Axis> Group<'c, A> {
    /// The same group, without its rank.
    pub fn new(comm: &'c Communicator<A>) -> Self {
        Group { comm }
    }

    /// Ranks in the group.
    pub fn size(&self) -> usize {
        self.comm.size()
    }

    /// Runs `f` with this rank's number. The group is borrowed meanwhile: nothing collective can happen inside.
    pub fn local<T>(&mut self, f: impl FnOnce(usize) -> T) -> PerRank<T> {
        PerRank(f(self.comm.rank().index()))
    }

    /// Runs `f` with this rank's number and a value that an earlier [`local`](Self::local) made.
    pub fn local_with<T, U>(&mut self, value: PerRank<T>, f: impl FnOnce(usize, T) -> U) -> PerRank<U> {
        PerRank(f(self.comm.rank().index(), value.0))
    }

    /// [`Communicator::all_reduce`].
    ///
    /// # Errors
    /// Those of [`Communicator::all_reduce`].
    pub fn all_reduce<B, Op>(&mut self, buf: &mut B, op: Op) -> Result<()>
    where
        B: InPlace + ?Sized,
        Op: ReduceOp<B::Elem>,
    {
        self.comm.all_reduce(buf, op)
    }

    /// [`Communicator::broadcast`] from rank `root`.
    ///
    /// # Errors
    /// `NoSuchRank`, and those of [`Communicator::broadcast`].
    pub fn broadcast<B: InPlace + ?Sized>(&mut self, buf: &mut B, root: usize) -> Result<()> {
        self.comm.broadcast(buf, self.comm.root(root)?)
    }

    /// [`Communicator::barrier`].
    ///
    /// # Errors
    /// Those of [`Communicator::barrier`].
    pub fn barrier(&mut self) -> Result<()> {
        self.comm.barrier()
    }

    /// True when every rank has `more`: all stop together, whoever runs out first.
    ///
    /// # Errors
    /// Those of [`Communicator::all_reduce`].
    pub fn all_have(&mut self, more: PerRank<bool>) -> Result<bool> {
        let mut all = [u8::from(more.0)];
        self.comm.all_reduce(&mut all, crate::Min)?;
        Ok(all[0] == 1)
    }
}

impl<A: Axis> fmt::Debug for Group<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group<{}>(of {})", A::NAME, self.size())
    }
}

impl<T> fmt::Debug for PerRank<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PerRank")
    }
}
