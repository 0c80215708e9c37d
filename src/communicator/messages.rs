//! Blocking messages between two ranks, one by one and in batches.

use super::Communicator;
use super::check::{Checked, CheckedMessage, Place};
use crate::backend::Kind;
use crate::error::{Error, Result};
use crate::group::{Axis, Peer};
use crate::memory::{InPlace, Source};
use crate::scope::{Targets, hold};
use std::marker::PhantomData;

impl<A: Axis> Communicator<A> {
    /// Sends `buf` to `peer`, and returns when it was received there.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let mut x = [comm.rank().index() as u32 + 5];
    ///     match comm.rank().index() {
    ///         0 => comm.send(&x, comm.peer(1)?)?,
    ///         _ => comm.recv(&mut x, comm.peer(0)?)?,
    ///     }
    ///     Ok(x[0])
    /// })?;
    /// assert_eq!(out, [5, 5]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for a send to itself, `WrongGroup` for a peer of another group, `Mismatch` when the receive
    /// has another type or length, `Deadlock` when ranks wait for each other in a circle; those of
    /// [`all_reduce`](Communicator::all_reduce).
    pub fn send<S: Source + ?Sized>(&self, buf: &S, peer: Peer<A>) -> Result<()> {
        let call = self.place().send(buf.read(), peer.member())?;
        let done = self.queue.run(call);
        self.settle_plain(Kind::Send, done)
    }

    /// Receives into `buf` what `peer` sends: as many elements, of the same type.
    ///
    /// A literal without a type is an `f64` or an `i32` here, as elsewhere in Rust: nothing ties `buf` to what the sender
    /// sends before the message comes. Where that is an `f32`, say so, as in the example; what does not fit is a
    /// `Mismatch` on both ranks that names both types. `vec![]` and `Vec::new()` alone do not compile ("type annotations
    /// needed").
    ///
    /// ```
    /// let out = hccl::local(3, |comm| {
    ///     let rank = comm.rank().index();
    ///     let mut x = [1.0f32];
    ///     if rank > 0 {
    ///         comm.recv(&mut x, comm.peer(rank - 1)?)?;
    ///     }
    ///     x[0] *= 2.0; // this rank's layer
    ///     if rank < 2 {
    ///         comm.send(&x, comm.peer(rank + 1)?)?;
    ///     }
    ///     Ok(x[0])
    /// })?;
    /// assert_eq!(out, [2.0, 4.0, 8.0]);
    ///
    /// let err = hccl::local(2, |comm| match comm.rank().index() {
    ///     0 => comm.send(&[1.0f32], comm.peer(1)?),
    ///     _ => comm.recv(&mut [0.0], comm.peer(0)?), // an f64
    /// })
    /// .unwrap_err();
    /// assert!(err.to_string().contains("f32") && err.to_string().contains("f64"), "{err}");
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`send`](Communicator::send).
    pub fn recv<B: InPlace + ?Sized>(&self, buf: &mut B, peer: Peer<A>) -> Result<()> {
        let call = self.place().recv(buf.write(), peer.member())?;
        let done = self.queue.run(call);
        self.settle(Kind::Recv, done, buf)
    }

    /// Sends and receives at once: no message of the batch waits for another one, so that exchanges cannot deadlock.
    /// Messages of one pair of ranks in one direction arrive in the order in which they were added.
    ///
    /// ```
    /// let out = hccl::local(3, |comm| {
    ///     let (rank, n) = (comm.rank().index(), comm.size());
    ///     let (next, previous) = (comm.peer((rank + 1) % n)?, comm.peer((rank + n - 1) % n)?);
    ///     let mine = [rank as f32];
    ///     let mut theirs = [0f32];
    ///     comm.batch_send_recv(|batch| {
    ///         batch.send(&mine, next)?;
    ///         batch.recv(&mut theirs, previous)
    ///     })?;
    ///     Ok(theirs[0])
    /// })?;
    /// assert_eq!(out, [2.0, 0.0, 1.0]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the closure, before anything is sent; those of [`send`](Communicator::send).
    pub fn batch_send_recv<'env>(&self, fill: impl for<'b> FnOnce(&'b mut Batch<'env, A>) -> Result<()>) -> Result<()> {
        let mut batch = Batch::new(*self.place());
        fill(&mut batch)?;
        let (call, mut targets) = batch.finish(self.place())?;
        self.queue.run(call).map_err(|failure| {
            self.queue.failed(Kind::BatchSendRecv, failure, || targets.iter_mut().for_each(|target| target.retire()))
        })
    }
}

/// Messages that start together; made by [`Communicator::batch_send_recv`] and
/// [`Scope::batch_send_recv`](crate::Scope::batch_send_recv), which lend what is added until they are finished.
///
/// ```
/// let out = hccl::local(3, |comm| {
///     let own = [comm.rank().index() as u32 * 10];
///     let mut theirs = [[0u32]; 2];
///     comm.batch_send_recv(|batch| {
///         for (peer, slot) in comm.peers().zip(&mut theirs) {
///             batch.send(&own, peer)?;
///             batch.recv(slot, peer)?;
///         }
///         Ok(())
///     })?;
///     Ok(theirs)
/// })?;
/// assert_eq!(out, [[[10], [20]], [[0], [20]], [[0], [10]]]);
/// # Ok::<(), hccl::Error>(())
/// ```
pub struct Batch<'env, A: Axis> {
    place: Place,
    messages: Vec<CheckedMessage<'env>>,
    targets: Targets<'env>,
    axis: PhantomData<A>,
}

impl<'env, A: Axis> Batch<'env, A> {
    pub(crate) fn new(place: Place) -> Self {
        Batch { place, messages: Vec::new(), targets: Vec::new(), axis: PhantomData }
    }

    /// The call of all messages, and the memory it writes.
    pub(crate) fn finish(self, place: &Place) -> Result<(Checked<'env>, Targets<'env>)> {
        // The closure of a nested call could have swapped the two batches.
        if (self.place.group, self.place.rank) != (place.group, place.rank) {
            return Err(place.at(Kind::BatchSendRecv, Error::invalid("the batch was filled for another communicator")));
        }
        Ok((place.batch(self.messages), self.targets))
    }

    /// Adds a send of `buf` to `peer`.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let other = comm.peer(1 - comm.rank().index())?;
    ///     let (shape, data) = ([comm.rank().index() as u64 + 1], [0.5f32; 4]);
    ///     let (mut their_shape, mut their_data) = ([0u64], [0f32; 4]);
    ///     comm.batch_send_recv(|batch| {
    ///         batch.send(&shape, other)?; // messages of a batch may differ in type
    ///         batch.send(&data, other)?;
    ///         batch.recv(&mut their_shape, other)?;
    ///         batch.recv(&mut their_data, other)
    ///     })?;
    ///     Ok((their_shape[0], their_data[3]))
    /// })?;
    /// assert_eq!(out, [(2, 0.5), (1, 0.5)]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for a send to itself, `WrongGroup` for a peer of another group.
    pub fn send<S: Source + ?Sized>(&mut self, buf: &'env S, peer: Peer<A>) -> Result<()> {
        self.messages.push(self.place.batched_send(buf.read(), peer.member())?);
        Ok(())
    }

    /// Adds a receive from `peer` into `buf`.
    ///
    /// ```
    /// let out = hccl::local(3, |comm| {
    ///     let own = [comm.rank().index() as u64 * 10];
    ///     let mut got = [[0u64]; 2];
    ///     comm.batch_send_recv(|batch| match comm.rank().index() {
    ///         0 => comm.peers().zip(&mut got).try_for_each(|(peer, slot)| batch.recv(slot, peer)),
    ///         _ => batch.send(&own, comm.peer(0)?),
    ///     })?;
    ///     Ok(got)
    /// })?;
    /// assert_eq!(out, [[[10], [20]], [[0], [0]], [[0], [0]]]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for a receive from itself, `WrongGroup` for a peer of another group.
    pub fn recv<B: InPlace + ?Sized>(&mut self, buf: &'env mut B, peer: Peer<A>) -> Result<()> {
        let (held, write) = hold(buf);
        self.messages.push(self.place.batched_recv(write, peer.member())?);
        self.targets.push(Box::new(held));
        Ok(())
    }
}
