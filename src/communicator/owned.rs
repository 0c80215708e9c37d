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
    /// # Errors
    /// [`Refused`] with the buffer when the call cannot start; [`Pending::wait`] tells of the rest.
    pub fn broadcast_async<B: OwnedBuffer>(&self, buf: B, root: Root<A>) -> Started<B> {
        Pending::launch(&self.queue, Kind::Broadcast, buf, |place, buf| place.broadcast(buf.write(), root.member()))
    }

    /// [`all_gather`](Communicator::all_gather) that owns its buffers.
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
    /// # Errors
    /// [`Refused`] with the buffer when the call cannot start; [`Pending::wait`] tells of the rest.
    pub fn all_gather_in_place_async<B: OwnedBuffer>(&self, buf: B) -> Started<B> {
        Pending::launch(&self.queue, Kind::AllGather, buf, |place, buf| place.all_gather_in_place(buf.write()))
    }

    /// [`all_gather_v`](Communicator::all_gather_v) that owns its buffers.
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
    /// # Errors
    /// [`Refused`] with the buffer when the call cannot start; [`Pending::wait`] tells of the rest.
    pub fn send_async<B: OwnedBuffer>(&self, buf: B, peer: Peer<A>) -> Started<B> {
        Pending::launch(&self.queue, Kind::Send, buf, |place, buf| place.send(buf.read(), peer.member()))
    }

    /// [`recv`](Communicator::recv) that owns its buffer.
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
