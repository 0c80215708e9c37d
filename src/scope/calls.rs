//! The collectives of a [`Scope`]: each is its namesake of [`Communicator`](crate::Communicator).

use super::{Borrowed, Scope, nothing};
use crate::backend::Kind;
use crate::communicator::Batch;
use crate::error::Result;
use crate::group::{Axis, Peer, Root};
use crate::memory::{InPlace, Source};
use crate::reduce::ReduceOp;

impl<'s, 'env, A: Axis> Scope<'s, 'env, A> {
    /// [`all_reduce`](crate::Communicator::all_reduce), on memory lent until the scope ends.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let mut x = [comm.rank().index() as i32 + 1];
    ///     comm.scope(|s| s.all_reduce(&mut x, hccl::Sum).map(drop))?;
    ///     Ok(x[0])
    /// })?;
    /// assert_eq!(out, [3, 3]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the call cannot start; the scope, or [`Borrowed::wait`], tells of the rest.
    pub fn all_reduce<B, Op>(&self, buf: &'env mut B, _: Op) -> Result<Borrowed<'s, 'env, B>>
    where
        B: InPlace + ?Sized,
        Op: ReduceOp<B::Elem>,
    {
        self.writes(Kind::AllReduce, buf, |place, buf| place.all_reduce(buf, Op::KIND))
    }

    /// [`all_reduce_into`](crate::Communicator::all_reduce_into), on memory lent until the scope ends.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let (own, mut sum) = ([comm.rank().index() as f64 + 0.5], [0.0]);
    ///     comm.scope(|s| {
    ///         s.all_reduce_into(&own, &mut sum, hccl::Sum)?;
    ///         Ok(own[0]) // still readable: the call only reads it
    ///     })
    ///     .map(|own| (own, sum[0]))
    /// })?;
    /// assert_eq!(out, [(0.5, 2.0), (1.5, 2.0)]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the call cannot start; the scope, or [`Borrowed::wait`], tells of the rest.
    pub fn all_reduce_into<S, R, Op>(&self, send: &'env S, recv: &'env mut R, _: Op) -> Result<Borrowed<'s, 'env, R>>
    where
        S: Source<Elem = R::Elem> + ?Sized,
        R: InPlace + ?Sized,
        Op: ReduceOp<R::Elem>,
    {
        self.writes(Kind::AllReduce, recv, |place, recv| place.all_reduce_into(send.read(), recv, Op::KIND))
    }

    /// [`reduce`](crate::Communicator::reduce), on memory lent until the scope ends.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let mut x = [comm.rank().index() as i32 + 2];
    ///     comm.scope(|s| s.reduce(&mut x, hccl::Prod, comm.root(1)?).map(drop))?;
    ///     Ok(x[0])
    /// })?;
    /// assert_eq!(out, [2, 6]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the call cannot start; the scope, or [`Borrowed::wait`], tells of the rest.
    pub fn reduce<B, Op>(&self, buf: &'env mut B, _: Op, root: Root<A>) -> Result<Borrowed<'s, 'env, B>>
    where
        B: InPlace + ?Sized,
        Op: ReduceOp<B::Elem>,
    {
        self.writes(Kind::Reduce, buf, |place, buf| place.reduce(buf, Op::KIND, root.member()))
    }

    /// [`reduce_into`](crate::Communicator::reduce_into), on memory lent until the scope ends.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let root = comm.root(0)?;
    ///     let (own, mut most) = ([comm.rank().index() as u8 + 4], [0]);
    ///     let recv = comm.is_root(root).then_some(&mut most);
    ///     comm.scope(|s| s.reduce_into(&own, recv, hccl::Max, root).map(drop))?;
    ///     Ok(most[0])
    /// })?;
    /// assert_eq!(out, [5, 0]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the call cannot start; the scope, or [`Borrowed::wait`], tells of the rest.
    pub fn reduce_into<S, R, Op>(
        &self,
        send: &'env S,
        recv: Option<&'env mut R>,
        _: Op,
        root: Root<A>,
    ) -> Result<Borrowed<'s, 'env, ()>>
    where
        S: Source<Elem = R::Elem> + ?Sized,
        R: InPlace + ?Sized,
        Op: ReduceOp<R::Elem>,
    {
        self.writes_some(Kind::Reduce, recv, |place, recv| {
            place.reduce_into(send.read(), recv, Op::KIND, root.member())
        })
    }

    /// [`broadcast`](crate::Communicator::broadcast), on memory lent until the scope ends.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let (mut weights, mut bias) = ([comm.rank().index() as f32; 2], [comm.rank().index() as f64]);
    ///     comm.scope(|s| {
    ///         s.broadcast(&mut weights, comm.root(1)?)?;
    ///         s.broadcast(&mut bias, comm.root(0)?).map(drop)
    ///     })?;
    ///     Ok((weights, bias))
    /// })?;
    /// assert_eq!(out, [([1.0; 2], [0.0]); 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the call cannot start; the scope, or [`Borrowed::wait`], tells of the rest.
    pub fn broadcast<B>(&self, buf: &'env mut B, root: Root<A>) -> Result<Borrowed<'s, 'env, B>>
    where
        B: InPlace + ?Sized,
    {
        self.writes(Kind::Broadcast, buf, |place, buf| place.broadcast(buf, root.member()))
    }

    /// [`all_gather`](crate::Communicator::all_gather), on memory lent until the scope ends.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let (own, mut all) = ([comm.rank().index() as i8 + 5], [0; 2]);
    ///     comm.scope(|s| s.all_gather(&own, &mut all).map(drop))?;
    ///     Ok(all)
    /// })?;
    /// assert_eq!(out, [[5, 6]; 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the call cannot start; the scope, or [`Borrowed::wait`], tells of the rest.
    pub fn all_gather<S, R>(&self, send: &'env S, recv: &'env mut R) -> Result<Borrowed<'s, 'env, R>>
    where
        S: Source<Elem = R::Elem> + ?Sized,
        R: InPlace + ?Sized,
    {
        self.writes(Kind::AllGather, recv, |place, recv| place.all_gather(send.read(), recv))
    }

    /// [`all_gather_in_place`](crate::Communicator::all_gather_in_place), on memory lent until the scope ends.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let mut all = [0u64; 2];
    ///     all[comm.rank().index()] = 7 + comm.rank().index() as u64;
    ///     comm.scope(|s| s.all_gather_in_place(&mut all).map(drop))?;
    ///     Ok(all)
    /// })?;
    /// assert_eq!(out, [[7, 8]; 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the call cannot start; the scope, or [`Borrowed::wait`], tells of the rest.
    pub fn all_gather_in_place<B>(&self, buf: &'env mut B) -> Result<Borrowed<'s, 'env, B>>
    where
        B: InPlace + ?Sized,
    {
        self.writes(Kind::AllGather, buf, |place, buf| place.all_gather_in_place(buf))
    }

    /// [`all_gather_v`](crate::Communicator::all_gather_v), on memory lent until the scope ends.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let own = vec![comm.rank().index() as u8; 1 + comm.rank().index()];
    ///     let mut all = [9; 3];
    ///     comm.scope(|s| s.all_gather_v(&own, &mut all, &[1, 2]).map(drop))?;
    ///     Ok(all)
    /// })?;
    /// assert_eq!(out, [[0, 1, 1]; 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the call cannot start; the scope, or [`Borrowed::wait`], tells of the rest.
    pub fn all_gather_v<S, R>(
        &self,
        send: &'env S,
        recv: &'env mut R,
        counts: &[usize],
    ) -> Result<Borrowed<'s, 'env, R>>
    where
        S: Source<Elem = R::Elem> + ?Sized,
        R: InPlace + ?Sized,
    {
        self.writes(Kind::AllGatherV, recv, |place, recv| place.all_gather_v(send.read(), recv, counts))
    }

    /// [`reduce_scatter`](crate::Communicator::reduce_scatter), on memory lent until the scope ends.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let (grads, mut shard) = ([comm.rank().index() as f32, 10.0], [0.0]);
    ///     comm.scope(|s| s.reduce_scatter(&grads, &mut shard, hccl::Sum).map(drop))?;
    ///     Ok(shard[0])
    /// })?;
    /// assert_eq!(out, [1.0, 20.0]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the call cannot start; the scope, or [`Borrowed::wait`], tells of the rest.
    pub fn reduce_scatter<S, R, Op>(&self, send: &'env S, recv: &'env mut R, _: Op) -> Result<Borrowed<'s, 'env, R>>
    where
        S: Source<Elem = R::Elem> + ?Sized,
        R: InPlace + ?Sized,
        Op: ReduceOp<R::Elem>,
    {
        self.writes(Kind::ReduceScatter, recv, |place, recv| place.reduce_scatter(send.read(), recv, Op::KIND))
    }

    /// [`reduce_scatter_in_place`](crate::Communicator::reduce_scatter_in_place), on memory lent until the scope ends.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let rank = comm.rank().index();
    ///     let mut x = [rank as u32 + 1, 10 * (rank as u32 + 1)];
    ///     comm.scope(|s| s.reduce_scatter_in_place(&mut x, hccl::Sum).map(drop))?;
    ///     Ok(x[rank])
    /// })?;
    /// assert_eq!(out, [3, 30]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the call cannot start; the scope, or [`Borrowed::wait`], tells of the rest.
    pub fn reduce_scatter_in_place<B, Op>(&self, buf: &'env mut B, _: Op) -> Result<Borrowed<'s, 'env, B>>
    where
        B: InPlace + ?Sized,
        Op: ReduceOp<B::Elem>,
    {
        self.writes(Kind::ReduceScatter, buf, |place, buf| place.reduce_scatter_in_place(buf, Op::KIND))
    }

    /// [`reduce_scatter_v`](crate::Communicator::reduce_scatter_v), on memory lent until the scope ends.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let rank = comm.rank().index();
    ///     let (grads, mut shard) = ([rank as i64 + 1, 10, 20 + rank as i64], vec![0; 1 + rank]);
    ///     comm.scope(|s| s.reduce_scatter_v(&grads, &mut shard, &[1, 2], hccl::Sum).map(drop))?;
    ///     Ok(shard)
    /// })?;
    /// assert_eq!(out, [vec![3], vec![20, 41]]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the call cannot start; the scope, or [`Borrowed::wait`], tells of the rest.
    pub fn reduce_scatter_v<S, R, Op>(
        &self,
        send: &'env S,
        recv: &'env mut R,
        counts: &[usize],
        _: Op,
    ) -> Result<Borrowed<'s, 'env, R>>
    where
        S: Source<Elem = R::Elem> + ?Sized,
        R: InPlace + ?Sized,
        Op: ReduceOp<R::Elem>,
    {
        self.writes(Kind::ReduceScatterV, recv, |place, recv| {
            place.reduce_scatter_v(send.read(), recv, counts, Op::KIND)
        })
    }

    /// [`scatter`](crate::Communicator::scatter), on memory lent until the scope ends.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let root = comm.root(1)?;
    ///     let shards = comm.is_root(root).then_some(&[10u32, 20]);
    ///     let mut own = [0];
    ///     comm.scope(|s| s.scatter(shards, &mut own, root).map(drop))?;
    ///     Ok(own[0])
    /// })?;
    /// assert_eq!(out, [10, 20]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the call cannot start; the scope, or [`Borrowed::wait`], tells of the rest.
    pub fn scatter<S, R>(
        &self,
        send: Option<&'env S>,
        recv: &'env mut R,
        root: Root<A>,
    ) -> Result<Borrowed<'s, 'env, R>>
    where
        S: Source<Elem = R::Elem> + ?Sized,
        R: InPlace + ?Sized,
    {
        self.writes(Kind::Scatter, recv, |place, recv| place.scatter(send.map(|send| send.read()), recv, root.member()))
    }

    /// [`gather`](crate::Communicator::gather), on memory lent until the scope ends.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let root = comm.root(1)?;
    ///     let (own, mut all) = ([comm.rank().index() as f64 + 0.5], [0.0; 2]);
    ///     let recv = comm.is_root(root).then_some(&mut all);
    ///     comm.scope(|s| s.gather(&own, recv, root).map(drop))?;
    ///     Ok(all)
    /// })?;
    /// assert_eq!(out, [[0.0, 0.0], [0.5, 1.5]]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the call cannot start; the scope, or [`Borrowed::wait`], tells of the rest.
    pub fn gather<S, R>(
        &self,
        send: &'env S,
        recv: Option<&'env mut R>,
        root: Root<A>,
    ) -> Result<Borrowed<'s, 'env, ()>>
    where
        S: Source<Elem = R::Elem> + ?Sized,
        R: InPlace + ?Sized,
    {
        self.writes_some(Kind::Gather, recv, |place, recv| place.gather(send.read(), recv, root.member()))
    }

    /// [`all_to_all`](crate::Communicator::all_to_all), on memory lent until the scope ends.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let mine = comm.rank().index() as i64 * 10;
    ///     let (mine, mut theirs) = ([mine, mine + 1], [0; 2]);
    ///     comm.scope(|s| s.all_to_all(&mine, &mut theirs).map(drop))?;
    ///     Ok(theirs)
    /// })?;
    /// assert_eq!(out, [[0, 10], [1, 11]]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the call cannot start; the scope, or [`Borrowed::wait`], tells of the rest.
    pub fn all_to_all<S, R>(&self, send: &'env S, recv: &'env mut R) -> Result<Borrowed<'s, 'env, R>>
    where
        S: Source<Elem = R::Elem> + ?Sized,
        R: InPlace + ?Sized,
    {
        self.writes(Kind::AllToAll, recv, |place, recv| place.all_to_all(send.read(), recv))
    }

    /// [`all_to_all_v`](crate::Communicator::all_to_all_v), on memory lent until the scope ends.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let (own, gives, takes) = match comm.rank().index() {
    ///         0 => (vec![0u8, 1, 2], [1, 2], [1, 0]),
    ///         _ => (vec![10], [0, 1], [2, 1]),
    ///     };
    ///     let mut got = vec![0; takes.iter().sum()];
    ///     comm.scope(|s| s.all_to_all_v(&own, &gives, &mut got, &takes).map(drop))?;
    ///     Ok(got)
    /// })?;
    /// assert_eq!(out, [vec![0], vec![1, 2, 10]]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the call cannot start; the scope, or [`Borrowed::wait`], tells of the rest.
    pub fn all_to_all_v<S, R>(
        &self,
        send: &'env S,
        send_counts: &[usize],
        recv: &'env mut R,
        recv_counts: &[usize],
    ) -> Result<Borrowed<'s, 'env, R>>
    where
        S: Source<Elem = R::Elem> + ?Sized,
        R: InPlace + ?Sized,
    {
        self.writes(Kind::AllToAllV, recv, |place, recv| {
            place.all_to_all_v(send.read(), send_counts, recv, recv_counts)
        })
    }

    /// [`send`](crate::Communicator::send), of memory lent until the scope ends.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let (own, mut got) = ([comm.rank().index() as u32 + 5; 2], [0u32; 2]);
    ///     comm.scope(|s| match comm.rank().index() {
    ///         0 => s.send(&own, comm.peer(1)?).map(drop), // works on while rank 1 receives
    ///         _ => s.recv(&mut got, comm.peer(0)?).map(drop),
    ///     })?;
    ///     Ok(got[1])
    /// })?;
    /// assert_eq!(out, [0, 5]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the call cannot start; the scope, or [`Borrowed::wait`], tells of the rest.
    pub fn send<S>(&self, buf: &'env S, peer: Peer<A>) -> Result<Borrowed<'s, 'env, ()>>
    where
        S: Source + ?Sized,
    {
        let call = self.place().send(buf.read(), peer.member())?;
        self.start(Kind::Send, call, Vec::new(), nothing())
    }

    /// [`recv`](crate::Communicator::recv), into memory lent until the scope ends.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let (x, mut next) = ([comm.rank().index() as f32 + 2.5], [0f32]);
    ///     comm.scope(|s| match comm.rank().index() {
    ///         0 => comm.send(&x, comm.peer(1)?),
    ///         _ => {
    ///             let receiving = s.recv(&mut next, comm.peer(0)?)?; // before it is needed
    ///             receiving.wait().map(|next| next[0] *= 2.0)
    ///         }
    ///     })?;
    ///     Ok(next[0])
    /// })?;
    /// assert_eq!(out, [0.0, 5.0]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the call cannot start; the scope, or [`Borrowed::wait`], tells of the rest.
    pub fn recv<B>(&self, buf: &'env mut B, peer: Peer<A>) -> Result<Borrowed<'s, 'env, B>>
    where
        B: InPlace + ?Sized,
    {
        self.writes(Kind::Recv, buf, |place, buf| place.recv(buf, peer.member()))
    }

    /// [`batch_send_recv`](crate::Communicator::batch_send_recv), on memory lent until the scope ends.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let other = comm.peer(1 - comm.rank().index())?;
    ///     let (mine, mut theirs) = ([comm.rank().index() as u16], [9u16]);
    ///     comm.scope(|s| {
    ///         s.batch_send_recv(|batch| {
    ///             batch.send(&mine, other)?;
    ///             batch.recv(&mut theirs, other)
    ///         })
    ///         .map(drop)
    ///     })?;
    ///     Ok(theirs[0])
    /// })?;
    /// assert_eq!(out, [1, 0]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// That of `fill`, before anything is sent, or when the call cannot start; the scope, or [`Borrowed::wait`], tells
    /// of the rest.
    pub fn batch_send_recv(
        &self,
        fill: impl for<'b> FnOnce(&'b mut Batch<'env, A>) -> Result<()>,
    ) -> Result<Borrowed<'s, 'env, ()>> {
        let mut batch = Batch::new(*self.place());
        fill(&mut batch)?;
        let (call, targets) = batch.finish(self.place())?;
        self.start(Kind::BatchSendRecv, call, targets, nothing())
    }

    /// [`barrier`](crate::Communicator::barrier) that does not wait: the end of the scope, or [`Borrowed::wait`], does.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     comm.scope(|s| {
    ///         let all_here = s.barrier()?;
    ///         let own = comm.rank().index() * 3; // work that needs no other rank
    ///         all_here.wait()?;
    ///         Ok(own)
    ///     })
    /// })?;
    /// assert_eq!(out, [0, 3]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the call cannot start; the scope, or [`Borrowed::wait`], tells of the rest.
    pub fn barrier(&self) -> Result<Borrowed<'s, 'env, ()>> {
        self.start(Kind::Barrier, self.place().barrier(), Vec::new(), nothing())
    }
}
