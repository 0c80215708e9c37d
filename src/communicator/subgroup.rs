//! Groups within a group: `split`, `group`, `duplicate`.

use super::Communicator;
use crate::error::{Error, ErrorKind, Result};
use crate::group::Axis;
use std::sync::PoisonError;

impl<A: Axis> Communicator<A> {
    /// Cuts the group by colour: ranks that give the same `color` form a new group, in the order of `key`, and of their
    /// ranks where keys are equal. A rank that gives `None` is in no new group and gets `None`. Every rank calls it.
    ///
    /// ```
    /// use hccl::Sum;
    /// let out = hccl::local(4, |comm| {
    ///     let rank = comm.rank().index();
    ///     let Some(half) = comm.split(Some(rank as u64 % 2), -(rank as i64))? else { return Ok((0, 0)) };
    ///     let mut sum = [rank];
    ///     let mut x = [rank as u64];
    ///     half.all_reduce(&mut x, Sum)?;
    ///     sum[0] = half.rank().index();
    ///     Ok((sum[0], x[0]))
    /// })?;
    /// assert_eq!(out, [(1, 2), (1, 4), (0, 2), (0, 4)]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`all_gather`](Communicator::all_gather).
    pub fn split(&self, color: Option<u64>, key: i64) -> Result<Option<Communicator<A>>> {
        let own = [u64::from(color.is_some()), color.unwrap_or(0), key.cast_unsigned()];
        let mut all = vec![0u64; 3 * self.size()];
        self.all_gather(&own, &mut all)?;
        let mut same: Vec<(i64, usize)> = all
            .chunks_exact(3)
            .enumerate()
            .filter(|(_, entry)| color.is_some() && entry[..2] == own[..2])
            .map(|(rank, entry)| (entry[2].cast_signed(), rank))
            .collect();
        same.sort_unstable();
        let members: Vec<usize> = same.into_iter().map(|(_, rank)| rank).collect();
        if members.is_empty() { Ok(None) } else { self.subgroup("split", &members).map(Some) }
    }

    /// A new group of these ranks, numbered in the order given. Only they call it, all with the same list.
    ///
    /// ```
    /// let out = hccl::local(3, |comm| {
    ///     let rank = comm.rank().index();
    ///     if rank == 1 {
    ///         return Ok(None);
    ///     }
    ///     let pair = comm.group(&[2, 0])?;
    ///     Ok(Some((pair.rank().index(), pair.size())))
    /// })?;
    /// assert_eq!(out, [Some((1, 2)), None, Some((0, 2))]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NoSuchRank` and `InvalidArgument` for a list that names a rank outside the group, a rank twice, or not this
    /// rank; the errors of a collective when the others do not make the same call.
    pub fn group(&self, members: &[usize]) -> Result<Communicator<A>> {
        self.subgroup("group", members)
    }

    /// A second communicator of the same ranks, with a queue of its own: one for each thread. Every rank calls it.
    ///
    /// ```
    /// use hccl::{Max, Sum};
    /// let out = hccl::local(2, |comm| {
    ///     let (rank, background) = (comm.rank().index(), comm.duplicate()?);
    ///     let logging = std::thread::spawn(move || {
    ///         let mut slowest = [rank as u8 + 7];
    ///         background.all_reduce(&mut slowest, Max).map(|()| slowest[0])
    ///     });
    ///     let mut sum = [rank as i32 + 1];
    ///     comm.all_reduce(&mut sum, Sum)?; // meanwhile, on this rank's own queue
    ///     Ok((sum[0], logging.join().unwrap()?))
    /// })?;
    /// assert_eq!(out, [(3, 8); 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of a collective when the others do not make the same call.
    pub fn duplicate(&self) -> Result<Communicator<A>> {
        let all: Vec<usize> = (0..self.size()).collect();
        self.subgroup("duplicate", &all)
    }

    /// A new group on axis `B`.
    pub(crate) fn subgroup<B: Axis>(&self, op: &'static str, members: &[usize]) -> Result<Communicator<B>> {
        let at = |error: Error| error.at(op, self.rank().index(), self.size());
        self.check_members(members).map_err(at)?;
        let id = self.place().group.of_members(B::NAME, members, self.count(members));
        let backend = self.queue.backend().group(members, id.tag()).map_err(at)?;
        Communicator::wrap(backend, id, self.options.clone())
    }

    /// How many groups of these members were made before this one. Counted by list, because ranks outside a list do not
    /// see it.
    fn count(&self, members: &[usize]) -> u64 {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        *made.entry(members.into()).and_modify(|made| *made += 1).or_insert(0)
    }

    fn check_members(&self, members: &[usize]) -> Result<()> {
        let mut seen = vec![false; self.size()];
        for &rank in members {
            match seen.get_mut(rank) {
                None => return Err(Error::new(ErrorKind::NoSuchRank { rank, size: self.size() })),
                Some(seen) if *seen => {
                    return Err(Error::invalid(format!("rank {rank} is twice in the list of members")));
                }
                Some(seen) => *seen = true,
            }
        }
        let rank = self.rank().index();
        if seen[rank] {
            return Ok(());
        }
        Err(Error::invalid(format!("rank {rank} asks for a group of {members:?}, in which it is not"))
            .hint("only the members of a new group make the call"))
    }
}
