//! Blocking collectives on borrowed memory.

use super::Communicator;
use crate::backend::{Failure, Kind};
use crate::error::Result;
use crate::group::{Axis, Root};
use crate::memory::{InPlace, Source, sealed::LendMut};
use crate::reduce::ReduceOp;

impl<A: Axis> Communicator<A> {
    /// Reduces `buf` over all ranks, in place; every rank gets the result.
    ///
    /// ```text
    /// rank 0  [a0 b0] --+       +-->  [a0+a1 b0+b1]
    ///                   +- Sum -+
    /// rank 1  [a1 b1] --+       +-->  [a0+a1 b0+b1]
    /// ```
    /// ```
    /// use hccl::Sum;
    /// let out = hccl::local(2, |comm| {
    ///     let mut x = [comm.rank().index() as f32, 10.0];
    ///     comm.all_reduce(&mut x, Sum)?;
    ///     Ok(x)
    /// })?;
    /// assert_eq!(out, [[1.0, 20.0]; 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Mismatch` when a rank makes another call; `PeerLost`, `Timeout`, `Aborted` and what else fails a group.
    pub fn all_reduce<B, Op>(&self, buf: &mut B, _: Op) -> Result<()>
    where
        B: InPlace + ?Sized,
        Op: ReduceOp<B::Elem>,
    {
        let call = self.place().all_reduce(buf.write(), Op::KIND)?;
        let done = self.queue.run(call);
        self.settle(Kind::AllReduce, done, buf)
    }

    /// As [`all_reduce`](Communicator::all_reduce), from `send` into `recv`, which has as many elements.
    ///
    /// ```
    /// use hccl::Sum;
    /// let out = hccl::local(2, |comm| {
    ///     let own = [comm.rank().index() as i32 + 1, 10];
    ///     let mut sum = [0; 2];
    ///     comm.all_reduce_into(&own, &mut sum, Sum)?;
    ///     Ok((own[0], sum))
    /// })?;
    /// assert_eq!(out, [(1, [3, 20]), (2, [3, 20])]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Length` when the lengths differ; those of [`all_reduce`](Communicator::all_reduce).
    pub fn all_reduce_into<S, R, Op>(&self, send: &S, recv: &mut R, _: Op) -> Result<()>
    where
        S: Source<Elem = R::Elem> + ?Sized,
        R: InPlace + ?Sized,
        Op: ReduceOp<R::Elem>,
    {
        let call = self.place().all_reduce_into(send.read(), recv.write(), Op::KIND)?;
        let done = self.queue.run(call);
        self.settle(Kind::AllReduce, done, recv)
    }

    /// Reduces `buf` over all ranks; the root gets the result in place, the others' buffers stay as they are.
    ///
    /// ```text
    /// rank 0 (root)  [a0] --+-- Sum -->  [a0+a1]
    /// rank 1         [a1] --+            [a1]
    /// ```
    /// ```
    /// use hccl::Prod;
    /// let out = hccl::local(3, |comm| {
    ///     let mut x = [comm.rank().index() as i32 + 2];
    ///     comm.reduce(&mut x, Prod, comm.root(1)?)?;
    ///     Ok(x[0])
    /// })?;
    /// assert_eq!(out, [2, 24, 4]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `WrongGroup` for a root of another group; those of [`all_reduce`](Communicator::all_reduce).
    pub fn reduce<B, Op>(&self, buf: &mut B, _: Op, root: Root<A>) -> Result<()>
    where
        B: InPlace + ?Sized,
        Op: ReduceOp<B::Elem>,
    {
        let call = self.place().reduce(buf.write(), Op::KIND, root.member())?;
        let done = self.queue.run(call);
        self.settle(Kind::Reduce, done, buf)
    }

    /// As [`reduce`](Communicator::reduce), from `send` into `recv` of the root, which has as many elements. Elsewhere
    /// `recv` may be `None`, and is not looked at. A bare `None` needs a type, as `None::<&mut [f32]>`.
    ///
    /// ```
    /// use hccl::Max;
    /// let out = hccl::local(3, |comm| {
    ///     let root = comm.root(1)?;
    ///     let own = [comm.rank().index() as f32 * 1.5];
    ///     let mut most = [-1.0];
    ///     comm.reduce_into(&own, comm.is_root(root).then_some(&mut most), Max, root)?;
    ///     Ok(most[0])
    /// })?;
    /// assert_eq!(out, [-1.0, 3.0, -1.0]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` when the root gives no `recv`, `Length` when it has another length; those of
    /// [`reduce`](Communicator::reduce).
    pub fn reduce_into<S, R, Op>(&self, send: &S, recv: Option<&mut R>, _: Op, root: Root<A>) -> Result<()>
    where
        S: Source<Elem = R::Elem> + ?Sized,
        R: InPlace + ?Sized,
        Op: ReduceOp<R::Elem>,
    {
        let mut recv = recv;
        let write = recv.as_deref_mut().map(LendMut::write);
        let call = self.place().reduce_into(send.read(), write, Op::KIND, root.member())?;
        let done = self.queue.run(call);
        self.settle_some(Kind::Reduce, done, recv)
    }

    /// Copies the root's `buf` to every rank.
    ///
    /// ```text
    /// rank 0         [.] <--+     [a]
    /// rank 1 (root)  [a] ---+-->  [a]
    /// ```
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let mut x = vec![comm.rank().index() as u16; 2];
    ///     comm.broadcast(&mut x, comm.root(1)?)?;
    ///     Ok(x)
    /// })?;
    /// assert_eq!(out, [[1, 1]; 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `WrongGroup` for a root of another group; those of [`all_reduce`](Communicator::all_reduce).
    pub fn broadcast<B: InPlace + ?Sized>(&self, buf: &mut B, root: Root<A>) -> Result<()> {
        let call = self.place().broadcast(buf.write(), root.member())?;
        let done = self.queue.run(call);
        self.settle(Kind::Broadcast, done, buf)
    }

    /// Gives every rank the elements of all ranks, in rank order: `recv` has `size` times as many as `send`.
    ///
    /// ```text
    /// rank 0  [a] --+-->  [a b]
    /// rank 1  [b] --+-->  [a b]
    /// ```
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let mut all = [0i8; 4];
    ///     comm.all_gather(&[comm.rank().index() as i8, 5], &mut all)?;
    ///     Ok(all)
    /// })?;
    /// assert_eq!(out, [[0, 5, 1, 5]; 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Length` when `recv` has another length; those of [`all_reduce`](Communicator::all_reduce).
    pub fn all_gather<S, R>(&self, send: &S, recv: &mut R) -> Result<()>
    where
        S: Source<Elem = R::Elem> + ?Sized,
        R: InPlace + ?Sized,
    {
        let call = self.place().all_gather(send.read(), recv.write())?;
        let done = self.queue.run(call);
        self.settle(Kind::AllGather, done, recv)
    }

    /// As [`all_gather`](Communicator::all_gather), where this rank's elements are already in its part of `buf`: the
    /// `rank`-th of `size` equal parts.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let mut all = [0u64; 2];
    ///     all[comm.rank().index()] = 7 + comm.rank().index() as u64;
    ///     comm.all_gather_in_place(&mut all)?;
    ///     Ok(all)
    /// })?;
    /// assert_eq!(out, [[7, 8]; 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` when `buf` does not divide into equal parts; those of [`all_reduce`](Communicator::all_reduce).
    pub fn all_gather_in_place<B: InPlace + ?Sized>(&self, buf: &mut B) -> Result<()> {
        let call = self.place().all_gather_in_place(buf.write())?;
        let done = self.queue.run(call);
        self.settle(Kind::AllGather, done, buf)
    }

    /// As [`all_gather`](Communicator::all_gather), where rank r gives `counts[r]` elements. Every rank passes the same
    /// counts; `recv` has as many elements as they add up to.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let own = vec![comm.rank().index() as u8; 1 + comm.rank().index()];
    ///     let mut all = [9; 3];
    ///     comm.all_gather_v(&own, &mut all, &[1, 2])?;
    ///     Ok(all)
    /// })?;
    /// assert_eq!(out, [[0, 1, 1]; 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Length` when counts or buffers have other lengths, `InvalidArgument` when the counts overflow; those of
    /// [`all_reduce`](Communicator::all_reduce).
    pub fn all_gather_v<S, R>(&self, send: &S, recv: &mut R, counts: &[usize]) -> Result<()>
    where
        S: Source<Elem = R::Elem> + ?Sized,
        R: InPlace + ?Sized,
    {
        let call = self.place().all_gather_v(send.read(), recv.write(), counts)?;
        let done = self.queue.run(call);
        self.settle(Kind::AllGatherV, done, recv)
    }

    /// Reduces `send` over all ranks and gives each rank one of `size` equal parts of the result.
    ///
    /// ```text
    /// rank 0  [a0 b0] --+       +-->  [a0+a1]
    ///                   +- Sum -+
    /// rank 1  [a1 b1] --+       +-->  [b0+b1]
    /// ```
    /// ```
    /// use hccl::Sum;
    /// let out = hccl::local(2, |comm| {
    ///     let mut part = [0i32];
    ///     comm.reduce_scatter(&[comm.rank().index() as i32, 10], &mut part, Sum)?;
    ///     Ok(part[0])
    /// })?;
    /// assert_eq!(out, [1, 20]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Length` when `send` has not `size` times the elements of `recv`; those of
    /// [`all_reduce`](Communicator::all_reduce).
    pub fn reduce_scatter<S, R, Op>(&self, send: &S, recv: &mut R, _: Op) -> Result<()>
    where
        S: Source<Elem = R::Elem> + ?Sized,
        R: InPlace + ?Sized,
        Op: ReduceOp<R::Elem>,
    {
        let call = self.place().reduce_scatter(send.read(), recv.write(), Op::KIND)?;
        let done = self.queue.run(call);
        self.settle(Kind::ReduceScatter, done, recv)
    }

    /// As [`reduce_scatter`](Communicator::reduce_scatter), with the result in this rank's part of `buf`: the `rank`-th
    /// of `size` equal parts. The other parts stay as they are.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let rank = comm.rank().index() as u32;
    ///     let mut x = [rank + 1, 10 * (rank + 1)];
    ///     comm.reduce_scatter_in_place(&mut x, hccl::Sum)?;
    ///     Ok(x)
    /// })?;
    /// assert_eq!(out, [[3, 10], [2, 30]]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` when `buf` does not divide into equal parts; those of [`all_reduce`](Communicator::all_reduce).
    pub fn reduce_scatter_in_place<B, Op>(&self, buf: &mut B, _: Op) -> Result<()>
    where
        B: InPlace + ?Sized,
        Op: ReduceOp<B::Elem>,
    {
        let call = self.place().reduce_scatter_in_place(buf.write(), Op::KIND)?;
        let done = self.queue.run(call);
        self.settle(Kind::ReduceScatter, done, buf)
    }

    /// As [`reduce_scatter`](Communicator::reduce_scatter), where rank r gets `counts[r]` elements. Every rank passes
    /// the same counts; `send` has as many elements as they add up to.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let rank = comm.rank().index();
    ///     let mut part = vec![0; 1 + rank];
    ///     comm.reduce_scatter_v(&[rank as i64 + 1, 10, 20 + rank as i64], &mut part, &[1, 2], hccl::Sum)?;
    ///     Ok(part)
    /// })?;
    /// assert_eq!(out, [vec![3], vec![20, 41]]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Length` when counts or buffers have other lengths, `InvalidArgument` when the counts overflow; those of
    /// [`all_reduce`](Communicator::all_reduce).
    pub fn reduce_scatter_v<S, R, Op>(&self, send: &S, recv: &mut R, counts: &[usize], _: Op) -> Result<()>
    where
        S: Source<Elem = R::Elem> + ?Sized,
        R: InPlace + ?Sized,
        Op: ReduceOp<R::Elem>,
    {
        let call = self.place().reduce_scatter_v(send.read(), recv.write(), counts, Op::KIND)?;
        let done = self.queue.run(call);
        self.settle(Kind::ReduceScatterV, done, recv)
    }

    /// Gives each rank one of `size` equal parts of the root's `send`. Elsewhere `send` may be `None`, and is not looked
    /// at. A bare `None` needs a type, as `None::<&[f32]>`.
    ///
    /// ```text
    /// rank 0 (root)  [a b] --+-->  [a]
    /// rank 1                 +-->  [b]
    /// ```
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let root = comm.root(0)?;
    ///     let all = comm.is_root(root).then_some(&[10u32, 20]);
    ///     let mut own = [0];
    ///     comm.scatter(all, &mut own, root)?;
    ///     Ok(own[0])
    /// })?;
    /// assert_eq!(out, [10, 20]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` when the root gives no `send`, `Length` when it has not `size` times the elements of `recv`,
    /// `WrongGroup` for a root of another group; those of [`all_reduce`](Communicator::all_reduce).
    pub fn scatter<S, R>(&self, send: Option<&S>, recv: &mut R, root: Root<A>) -> Result<()>
    where
        S: Source<Elem = R::Elem> + ?Sized,
        R: InPlace + ?Sized,
    {
        let call = self.place().scatter(send.map(|send| send.read()), recv.write(), root.member())?;
        let done = self.queue.run(call);
        self.settle(Kind::Scatter, done, recv)
    }

    /// Gives the root the elements of all ranks, in rank order: its `recv` has `size` times as many as `send`. Elsewhere
    /// `recv` may be `None`, and is not looked at. A bare `None` needs a type, as `None::<&mut [f32]>`.
    ///
    /// ```text
    /// rank 0 (root)  [a] --+-->  [a b]
    /// rank 1         [b] --+
    /// ```
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let root = comm.root(0)?;
    ///     let mut all = vec![0f64; 2];
    ///     comm.gather(&[comm.rank().index() as f64], comm.is_root(root).then_some(&mut all), root)?;
    ///     Ok(all)
    /// })?;
    /// assert_eq!(out, [[0.0, 1.0], [0.0, 0.0]]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` when the root gives no `recv`, `Length` when it has another length, `WrongGroup` for a root of
    /// another group; those of [`all_reduce`](Communicator::all_reduce).
    pub fn gather<S, R>(&self, send: &S, recv: Option<&mut R>, root: Root<A>) -> Result<()>
    where
        S: Source<Elem = R::Elem> + ?Sized,
        R: InPlace + ?Sized,
    {
        let mut recv = recv;
        let write = recv.as_deref_mut().map(LendMut::write);
        let call = self.place().gather(send.read(), write, root.member())?;
        let done = self.queue.run(call);
        self.settle_some(Kind::Gather, done, recv)
    }

    /// Gives rank r the r-th of `size` equal parts of `send`, and takes one from each, in rank order.
    ///
    /// ```text
    /// rank 0  [a0 b0] --\/-->  [a0 a1]
    /// rank 1  [a1 b1] --/\-->  [b0 b1]
    /// ```
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let mine = comm.rank().index() as i64 * 10;
    ///     let mut theirs = [0; 2];
    ///     comm.all_to_all(&[mine, mine + 1], &mut theirs)?;
    ///     Ok(theirs)
    /// })?;
    /// assert_eq!(out, [[0, 10], [1, 11]]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` when `send` does not divide into equal parts, `Length` when `recv` has another length; those of
    /// [`all_reduce`](Communicator::all_reduce).
    pub fn all_to_all<S, R>(&self, send: &S, recv: &mut R) -> Result<()>
    where
        S: Source<Elem = R::Elem> + ?Sized,
        R: InPlace + ?Sized,
    {
        let call = self.place().all_to_all(send.read(), recv.write())?;
        let done = self.queue.run(call);
        self.settle(Kind::AllToAll, done, recv)
    }

    /// As [`all_to_all`](Communicator::all_to_all), where this rank gives `send_counts[r]` elements to rank r and takes
    /// `recv_counts[r]` from it. What one rank gives another is what the other takes.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let (own, gives, takes) = match comm.rank().index() {
    ///         0 => (vec![0u8, 1, 2], [1, 2], [1, 0]),
    ///         _ => (vec![10], [0, 1], [2, 1]),
    ///     };
    ///     let mut got = vec![0; takes.iter().sum()];
    ///     comm.all_to_all_v(&own, &gives, &mut got, &takes)?;
    ///     Ok(got)
    /// })?;
    /// assert_eq!(out, [vec![0], vec![1, 2, 10]]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Length` when counts or buffers have other lengths, `InvalidArgument` when counts overflow or differ for this
    /// rank itself, `Mismatch` when two ranks disagree; those of [`all_reduce`](Communicator::all_reduce).
    pub fn all_to_all_v<S, R>(&self, send: &S, send_counts: &[usize], recv: &mut R, recv_counts: &[usize]) -> Result<()>
    where
        S: Source<Elem = R::Elem> + ?Sized,
        R: InPlace + ?Sized,
    {
        let call = self.place().all_to_all_v(send.read(), send_counts, recv.write(), recv_counts)?;
        let done = self.queue.run(call);
        self.settle(Kind::AllToAllV, done, recv)
    }

    /// Waits until every rank has called it.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    /// let prepared = AtomicUsize::new(0);
    /// let out = hccl::local(3, |comm| {
    ///     prepared.fetch_add(comm.rank().index() + 1, SeqCst);
    ///     comm.barrier()?;
    ///     Ok(prepared.load(SeqCst)) // every rank has prepared its part
    /// })?;
    /// assert_eq!(out, [6; 3]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`all_reduce`](Communicator::all_reduce).
    pub fn barrier(&self) -> Result<()> {
        let done = self.queue.run(self.place().barrier());
        self.settle_plain(Kind::Barrier, done)
    }

    pub(super) fn settle<B: InPlace + ?Sized>(&self, kind: Kind, done: Result<(), Failure>, buf: &mut B) -> Result<()> {
        done.map_err(|failure| self.queue.failed(kind, failure, || buf.retire()))
    }

    fn settle_some<B: InPlace + ?Sized>(
        &self,
        kind: Kind,
        done: Result<(), Failure>,
        buf: Option<&mut B>,
    ) -> Result<()> {
        done.map_err(|failure| self.queue.failed(kind, failure, || buf.into_iter().for_each(LendMut::retire)))
    }

    pub(super) fn settle_plain(&self, kind: Kind, done: Result<(), Failure>) -> Result<()> {
        done.map_err(|failure| self.queue.failed(kind, failure, || ()))
    }
}
