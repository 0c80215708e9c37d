//! Asynchronous collectives that own their buffers: each is its blocking namesake, returning a [`Pending`].

use super::Communicator;
use crate::backend::Kind;
use crate::flight::{InFlight, OwnedBuffer};
use crate::group::{Axis, Peer, Root};
use crate::memory::sealed::{Lend, LendMut};
use crate::pending::{Pending, Refused};
use crate::reduce::ReduceOp;

/// What a call that owns its buffers returns.
type Started<B> = Result<Pending<B>, Refused<B>>;

impl<A: Axis> Communicator<A> {
    /// [`all_reduce`](Communicator::all_reduce) that owns its buffer.
    ///
    /// ```
    /// use hccl::Sum;
    /// let out = hccl::local(2, |comm| {
    ///     let op = comm.all_reduce_async(comm.upload(&[1.5f32])?, Sum)?;
    ///     op.wait()?.to_vec()
    /// })?;
    /// assert_eq!(out, [[3.0], [3.0]]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`] with the buffer when the call cannot start; [`Pending::wait`] tells of the rest.
    pub fn all_reduce_async<B, Op>(&self, buf: B, _: Op) -> Started<B>
    where
        B: OwnedBuffer,
        Op: ReduceOp<B::Elem>,
    {
        Pending::launch(&self.queue, Kind::AllReduce, buf, |place, buf| place.all_reduce(buf.write(), Op::KIND))
    }

    /// [`all_reduce_into`](Communicator::all_reduce_into) that owns its buffers.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let own = vec![comm.rank().index() as i32 + 1];
    ///     let (own, sum) = comm.all_reduce_into_async(own, vec![0], hccl::Sum)?.wait()?;
    ///     Ok((own[0], sum[0]))
    /// })?;
    /// assert_eq!(out, [(1, 3), (2, 3)]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`] with the buffers when the call cannot start; [`Pending::wait`] tells of the rest.
    pub fn all_reduce_into_async<S, R, Op>(&self, send: S, recv: R, _: Op) -> Started<(S, R)>
    where
        S: OwnedBuffer<Elem = R::Elem>,
        R: OwnedBuffer,
        Op: ReduceOp<R::Elem>,
    {
        self.pair(Kind::AllReduce, send, recv, |place, send, recv| {
            place.all_reduce_into(send.read(), recv.write(), Op::KIND)
        })
    }

    /// [`reduce`](Communicator::reduce) that owns its buffer.
    ///
    /// ```
    /// let out = hccl::local(3, |comm| {
    ///     let loss = vec![comm.rank().index() as f64];
    ///     Ok(comm.reduce_async(loss, hccl::Avg, comm.root(0)?)?.wait()?[0])
    /// })?;
    /// assert_eq!(out, [1.0, 1.0, 2.0]); // the mean on the root
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`] with the buffer when the call cannot start; [`Pending::wait`] tells of the rest.
    pub fn reduce_async<B, Op>(&self, buf: B, _: Op, root: Root<A>) -> Started<B>
    where
        B: OwnedBuffer,
        Op: ReduceOp<B::Elem>,
    {
        Pending::launch(&self.queue, Kind::Reduce, buf, |place, buf| place.reduce(buf.write(), Op::KIND, root.member()))
    }

    /// [`reduce_into`](Communicator::reduce_into) that owns its buffers.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let root = comm.root(1)?;
    ///     let recv = comm.is_root(root).then(|| vec![0u8]);
    ///     let own = vec![comm.rank().index() as u8 + 4];
    ///     let (_own, max) = comm.reduce_into_async(own, recv, hccl::Max, root)?.wait()?;
    ///     Ok(max)
    /// })?;
    /// assert_eq!(out, [None, Some(vec![5])]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`] with the buffers when the call cannot start; [`Pending::wait`] tells of the rest.
    pub fn reduce_into_async<S, R, Op>(&self, send: S, recv: Option<R>, _: Op, root: Root<A>) -> Started<(S, Option<R>)>
    where
        S: OwnedBuffer<Elem = R::Elem>,
        R: OwnedBuffer,
        Op: ReduceOp<R::Elem>,
    {
        self.pair(Kind::Reduce, send, recv, |place, send, recv| {
            place.reduce_into(send.read(), recv.as_mut().map(LendMut::write), Op::KIND, root.member())
        })
    }

    /// [`broadcast`](Communicator::broadcast) that owns its buffer.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let weights = comm.upload(&[comm.rank().index() as f32; 2])?;
    ///     comm.broadcast_async(weights, comm.root(1)?)?.wait()?.to_vec()
    /// })?;
    /// assert_eq!(out, [[1.0; 2]; 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`] with the buffer when the call cannot start; [`Pending::wait`] tells of the rest.
    pub fn broadcast_async<B: OwnedBuffer>(&self, buf: B, root: Root<A>) -> Started<B> {
        Pending::launch(&self.queue, Kind::Broadcast, buf, |place, buf| place.broadcast(buf.write(), root.member()))
    }

    /// [`all_gather`](Communicator::all_gather) that owns its buffers.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let op = comm.all_gather_async(vec![comm.rank().index() as i8 + 5], vec![0; 2])?;
    ///     let (_own, all) = op.wait()?;
    ///     Ok(all)
    /// })?;
    /// assert_eq!(out, [[5, 6]; 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`] with the buffers when the call cannot start; [`Pending::wait`] tells of the rest.
    pub fn all_gather_async<S, R>(&self, send: S, recv: R) -> Started<(S, R)>
    where
        S: OwnedBuffer<Elem = R::Elem>,
        R: OwnedBuffer,
    {
        self.pair(Kind::AllGather, send, recv, |place, send, recv| place.all_gather(send.read(), recv.write()))
    }

    /// [`all_gather_in_place`](Communicator::all_gather_in_place) that owns its buffer.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let mut all = vec![0u64; 2];
    ///     all[comm.rank().index()] = 7 + comm.rank().index() as u64;
    ///     Ok(comm.all_gather_in_place_async(all)?.wait()?)
    /// })?;
    /// assert_eq!(out, [[7, 8]; 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`] with the buffer when the call cannot start; [`Pending::wait`] tells of the rest.
    pub fn all_gather_in_place_async<B: OwnedBuffer>(&self, buf: B) -> Started<B> {
        Pending::launch(&self.queue, Kind::AllGather, buf, |place, buf| place.all_gather_in_place(buf.write()))
    }

    /// [`all_gather_v`](Communicator::all_gather_v) that owns its buffers.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let own = vec![comm.rank().index() as u8; 1 + comm.rank().index()];
    ///     let (_own, all) = comm.all_gather_v_async(own, vec![9; 3], &[1, 2])?.wait()?;
    ///     Ok(all)
    /// })?;
    /// assert_eq!(out, [[0, 1, 1]; 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`] with the buffers when the call cannot start; [`Pending::wait`] tells of the rest.
    pub fn all_gather_v_async<S, R>(&self, send: S, recv: R, counts: &[usize]) -> Started<(S, R)>
    where
        S: OwnedBuffer<Elem = R::Elem>,
        R: OwnedBuffer,
    {
        self.pair(Kind::AllGatherV, send, recv, |place, send, recv| {
            place.all_gather_v(send.read(), recv.write(), counts)
        })
    }

    /// [`reduce_scatter`](Communicator::reduce_scatter) that owns its buffers.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let grads = vec![comm.rank().index() as f32, 10.0];
    ///     let (_grads, shard) = comm.reduce_scatter_async(grads, vec![0.0], hccl::Sum)?.wait()?;
    ///     Ok(shard[0])
    /// })?;
    /// assert_eq!(out, [1.0, 20.0]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`] with the buffers when the call cannot start; [`Pending::wait`] tells of the rest.
    pub fn reduce_scatter_async<S, R, Op>(&self, send: S, recv: R, _: Op) -> Started<(S, R)>
    where
        S: OwnedBuffer<Elem = R::Elem>,
        R: OwnedBuffer,
        Op: ReduceOp<R::Elem>,
    {
        self.pair(Kind::ReduceScatter, send, recv, |place, send, recv| {
            place.reduce_scatter(send.read(), recv.write(), Op::KIND)
        })
    }

    /// [`reduce_scatter_in_place`](Communicator::reduce_scatter_in_place) that owns its buffer.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let rank = comm.rank().index();
    ///     let grads = vec![rank as u32 + 1, 10 * (rank as u32 + 1)];
    ///     Ok(comm.reduce_scatter_in_place_async(grads, hccl::Sum)?.wait()?[rank])
    /// })?;
    /// assert_eq!(out, [3, 30]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`] with the buffer when the call cannot start; [`Pending::wait`] tells of the rest.
    pub fn reduce_scatter_in_place_async<B, Op>(&self, buf: B, _: Op) -> Started<B>
    where
        B: OwnedBuffer,
        Op: ReduceOp<B::Elem>,
    {
        Pending::launch(&self.queue, Kind::ReduceScatter, buf, |place, buf| {
            place.reduce_scatter_in_place(buf.write(), Op::KIND)
        })
    }

    /// [`reduce_scatter_v`](Communicator::reduce_scatter_v) that owns its buffers.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let rank = comm.rank().index();
    ///     let (grads, shard) = (vec![rank as i64 + 1, 10, 20 + rank as i64], vec![0; 1 + rank]);
    ///     let (_grads, shard) = comm.reduce_scatter_v_async(grads, shard, &[1, 2], hccl::Sum)?.wait()?;
    ///     Ok(shard)
    /// })?;
    /// assert_eq!(out, [vec![3], vec![20, 41]]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`] with the buffers when the call cannot start; [`Pending::wait`] tells of the rest.
    pub fn reduce_scatter_v_async<S, R, Op>(&self, send: S, recv: R, counts: &[usize], _: Op) -> Started<(S, R)>
    where
        S: OwnedBuffer<Elem = R::Elem>,
        R: OwnedBuffer,
        Op: ReduceOp<R::Elem>,
    {
        self.pair(Kind::ReduceScatterV, send, recv, |place, send, recv| {
            place.reduce_scatter_v(send.read(), recv.write(), counts, Op::KIND)
        })
    }

    /// [`scatter`](Communicator::scatter) that owns its buffers.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let root = comm.root(0)?;
    ///     let shards = comm.is_root(root).then(|| vec![10u32, 20]);
    ///     let (_shards, own) = comm.scatter_async(shards, vec![0], root)?.wait()?;
    ///     Ok(own[0])
    /// })?;
    /// assert_eq!(out, [10, 20]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`] with the buffers when the call cannot start; [`Pending::wait`] tells of the rest.
    pub fn scatter_async<S, R>(&self, send: Option<S>, recv: R, root: Root<A>) -> Started<(Option<S>, R)>
    where
        S: OwnedBuffer<Elem = R::Elem>,
        R: OwnedBuffer,
    {
        self.pair(Kind::Scatter, send, recv, |place, send, recv| {
            place.scatter(send.as_ref().map(Lend::read), recv.write(), root.member())
        })
    }

    /// [`gather`](Communicator::gather) that owns its buffers.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let root = comm.root(1)?;
    ///     let recv = comm.is_root(root).then(|| vec![0f64; 2]);
    ///     let (_own, all) = comm.gather_async(vec![comm.rank().index() as f64 + 0.5], recv, root)?.wait()?;
    ///     Ok(all)
    /// })?;
    /// assert_eq!(out, [None, Some(vec![0.5, 1.5])]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`] with the buffers when the call cannot start; [`Pending::wait`] tells of the rest.
    pub fn gather_async<S, R>(&self, send: S, recv: Option<R>, root: Root<A>) -> Started<(S, Option<R>)>
    where
        S: OwnedBuffer<Elem = R::Elem>,
        R: OwnedBuffer,
    {
        self.pair(Kind::Gather, send, recv, |place, send, recv| {
            place.gather(send.read(), recv.as_mut().map(LendMut::write), root.member())
        })
    }

    /// [`all_to_all`](Communicator::all_to_all) that owns its buffers.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let mine = comm.rank().index() as i64 * 10;
    ///     let (_mine, theirs) = comm.all_to_all_async(vec![mine, mine + 1], vec![0; 2])?.wait()?;
    ///     Ok(theirs)
    /// })?;
    /// assert_eq!(out, [[0, 10], [1, 11]]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`] with the buffers when the call cannot start; [`Pending::wait`] tells of the rest.
    pub fn all_to_all_async<S, R>(&self, send: S, recv: R) -> Started<(S, R)>
    where
        S: OwnedBuffer<Elem = R::Elem>,
        R: OwnedBuffer,
    {
        self.pair(Kind::AllToAll, send, recv, |place, send, recv| place.all_to_all(send.read(), recv.write()))
    }

    /// [`all_to_all_v`](Communicator::all_to_all_v) that owns its buffers.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let (own, gives, takes) = match comm.rank().index() {
    ///         0 => (vec![0u8, 1, 2], [1, 2], [1, 0]),
    ///         _ => (vec![10], [0, 1], [2, 1]),
    ///     };
    ///     let got = vec![0; takes.iter().sum()];
    ///     let (_own, got) = comm.all_to_all_v_async(own, &gives, got, &takes)?.wait()?;
    ///     Ok(got)
    /// })?;
    /// assert_eq!(out, [vec![0], vec![1, 2, 10]]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`] with the buffers when the call cannot start; [`Pending::wait`] tells of the rest.
    pub fn all_to_all_v_async<S, R>(
        &self,
        send: S,
        send_counts: &[usize],
        recv: R,
        recv_counts: &[usize],
    ) -> Started<(S, R)>
    where
        S: OwnedBuffer<Elem = R::Elem>,
        R: OwnedBuffer,
    {
        self.pair(Kind::AllToAllV, send, recv, |place, send, recv| {
            place.all_to_all_v(send.read(), send_counts, recv.write(), recv_counts)
        })
    }

    /// [`send`](Communicator::send) that owns its buffer. It finishes when the peer has received; a rank whose queue
    /// holds such a send before the receive that the peer needs first is in a circle: use
    /// [`batch_send_recv_async`](Communicator::batch_send_recv_async).
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let x = vec![comm.rank().index() as u32 + 5];
    ///     if comm.rank().index() == 0 {
    ///         let sending = comm.send_async(x, comm.peer(1)?)?;
    ///         let next = 1 + 1; // this rank's next work
    ///         return Ok(sending.wait()?[0] + next);
    ///     }
    ///     Ok(comm.recv_async(x, comm.peer(0)?)?.wait()?[0])
    /// })?;
    /// assert_eq!(out, [7, 5]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`] with the buffer when the call cannot start; [`Pending::wait`] tells of the rest.
    pub fn send_async<B: OwnedBuffer>(&self, buf: B, peer: Peer<A>) -> Started<B> {
        Pending::launch(&self.queue, Kind::Send, buf, |place, buf| place.send(buf.read(), peer.member()))
    }

    /// [`recv`](Communicator::recv) that owns its buffer.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     if comm.rank().index() == 0 {
    ///         comm.send(&[2.5f32], comm.peer(1)?)?;
    ///         return Ok(0.0);
    ///     }
    ///     let receiving = comm.recv_async(vec![0f32], comm.peer(0)?)?; // before the data is needed
    ///     Ok(receiving.wait()?[0])
    /// })?;
    /// assert_eq!(out, [0.0, 2.5]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`] with the buffer when the call cannot start; [`Pending::wait`] tells of the rest.
    pub fn recv_async<B: OwnedBuffer>(&self, buf: B, peer: Peer<A>) -> Started<B> {
        Pending::launch(&self.queue, Kind::Recv, buf, |place, buf| place.recv(buf.write(), peer.member()))
    }

    /// [`batch_send_recv`](Communicator::batch_send_recv) that owns its buffers; [`Pending::wait`] gives both lists
    /// back, in the order given.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let other = comm.peer(1 - comm.rank().index())?;
    ///     let mine = vec![comm.rank().index() as u32];
    ///     let op = comm.batch_send_recv_async(vec![(mine, other)], vec![(vec![0u32], other)])?;
    ///     let (_sent, received) = op.wait()?;
    ///     Ok(received[0].0[0])
    /// })?;
    /// assert_eq!(out, [1, 0]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`] with the buffers when the call cannot start; [`Pending::wait`] tells of the rest.
    #[expect(clippy::type_complexity, reason = "what is given comes back")]
    pub fn batch_send_recv_async<S: OwnedBuffer, R: OwnedBuffer>(
        &self,
        sends: Vec<(S, Peer<A>)>,
        recvs: Vec<(R, Peer<A>)>,
    ) -> Started<(Vec<(S, Peer<A>)>, Vec<(R, Peer<A>)>)> {
        self.pair(Kind::BatchSendRecv, sends, recvs, |place, sends, recvs| {
            let sends = sends.iter().map(|(buf, peer)| place.batched_send(buf.read(), peer.member()));
            let recvs = recvs.iter_mut().map(|(buf, peer)| place.batched_recv(buf.write(), peer.member()));
            let messages = sends.chain(recvs).collect::<crate::Result<Vec<_>>>()?;
            Ok(place.batch(messages))
        })
    }

    /// [`barrier`](Communicator::barrier) that does not wait: [`Pending::wait`] does.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let all_here = comm.barrier_async()?;
    ///     let own = comm.rank().index() * 3; // work that needs no other rank
    ///     all_here.wait()?;
    ///     Ok(own)
    /// })?;
    /// assert_eq!(out, [0, 3]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`] when the call cannot start; [`Pending::wait`] tells of the rest.
    pub fn barrier_async(&self) -> Started<()> {
        Pending::launch(&self.queue, Kind::Barrier, (), |place, ()| Ok(place.barrier()))
    }

    fn pair<S: InFlight, R: InFlight>(
        &self,
        kind: Kind,
        send: S,
        recv: R,
        check: impl for<'a> FnOnce(&super::check::Place, &'a S, &'a mut R) -> crate::Result<super::check::Checked<'a>>,
    ) -> Started<(S, R)> {
        Pending::launch(&self.queue, kind, (send, recv), |place, buf| check(place, &buf.0, &mut buf.1))
    }
}
