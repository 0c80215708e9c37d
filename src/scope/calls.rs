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
    /// # Errors
    /// When the call cannot start; the scope, or [`Borrowed::wait`], tells of the rest.
    pub fn barrier(&self) -> Result<Borrowed<'s, 'env, ()>> {
        self.start(Kind::Barrier, self.place().barrier(), Vec::new(), nothing())
    }
}
