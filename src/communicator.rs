//! A group of ranks as this rank sees it: [`Communicator`].
//!
//! ```text
//!            all_reduce            broadcast            all_gather          reduce_scatter
//! rank 0   a0  ->  a0+a1         a  ->  a             a  ->  a b          a0 b0  ->  a0+a1
//! rank 1   a1  ->  a0+a1         .  ->  a             b  ->  a b          a1 b1  ->  b0+b1
//!
//!            reduce                scatter              gather              all_to_all
//! rank 0   a0  ->  a0+a1         a b  ->  a           a  ->  a b          a0 b0  ->  a0 a1
//! rank 1   a1  ->  .             .    ->  b           b  ->  .            a1 b1  ->  b0 b1
//! ```
//!
//! Each collective comes in three forms, which mean the same to the other ranks:
//!
//! | form | memory | returns |
//! | --- | --- | --- |
//! | blocking, [`all_reduce`] | borrowed: slice, array, `Vec`, [`DeviceBuffer`] or range of one | when finished |
//! | owned, [`all_reduce_async`] | moved: `Vec` or [`DeviceBuffer`] | at once, a [`Pending`](crate::Pending) |
//! | scoped, [`scope`] and [`Scope::all_reduce`](crate::Scope::all_reduce) | borrowed until the scope ends | at once |
//!
//! Many small tensors go as one operation: [`all_reduce_fused`](Communicator::all_reduce_fused).
//!
//! The contract:
//!
//! - A communicator is one ordered queue. The n-th collective of one rank meets the n-th of every other; a rank that
//!   makes another call there, or with another length, is [`Mismatch`](crate::ErrorKind::Mismatch) on every rank.
//! - Lengths, roots and peers are checked before anything is sent; such an error is
//!   [recoverable](crate::Error::is_recoverable), and the other ranks see nothing of it.
//! - Every other error fails the communicator for good: from then on every call returns the first cause. What a failed
//!   call was to write is unspecified. Nobody touches the caller's memory any more when the error is returned.
//! - No call waits for ever: it ends by its deadline (`HCCL_EXEC_TIMEOUT`, 300 s), or when a rank it needs is gone.
//! - A send is complete when it was received. Two ranks that both send first wait for each other, which is
//!   [`Deadlock`](crate::ErrorKind::Deadlock): use [`batch_send_recv`].
//! - Lengths of 0 are fine: the ranks meet and nothing is moved.
//! - `Communicator` is `Send` and not `Sync`: move it to a thread, or [`duplicate`] it, one for each thread.
//! - Dropping it leaves the group after its queued calls; ranks that still need this one get
//!   [`PeerLost`](crate::ErrorKind::PeerLost). [`close`] does the same and tells of errors.
//!
//! ```
//! use hccl::prelude::*;
//! let out = hccl::local(2, |comm| {
//!     let grads = comm.upload(&[comm.rank().index() as f32; 4])?;
//!     let op = comm.all_reduce_async(grads, Avg)?; // moved: reading `grads` now does not compile
//!     let mut bias = [1i32, 2];
//!     comm.all_reduce(&mut bias, Sum)?;
//!     Ok((op.wait()?.to_vec()?, bias))
//! })?;
//! assert_eq!(out, vec![(vec![0.5; 4], [2, 4]); 2]);
//! # Ok::<(), hccl::Error>(())
//! ```
//!
//! [`all_reduce`]: Communicator::all_reduce
//! [`all_reduce_async`]: Communicator::all_reduce_async
//! [`batch_send_recv`]: Communicator::batch_send_recv
//! [`close`]: Communicator::close
//! [`DeviceBuffer`]: crate::DeviceBuffer
//! [`duplicate`]: Communicator::duplicate
//! [`scope`]: Communicator::scope

use crate::backend::Backend;
use crate::buffer::DeviceBuffer;
use crate::communicator::check::Place;
use crate::communicator::queue::{OneQueue, Queue};
use crate::device::Device;
use crate::element::Element;
use crate::error::{Error, ErrorKind, Result};
use crate::group::{Axis, GroupId, Peer, Rank, Root, World};
use crate::options::Options;
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

mod blocking;
mod builder;
mod bytes;
pub(crate) mod check;
mod fused;
mod messages;
mod owned;
pub(crate) mod queue;
mod subgroup;
#[cfg(test)]
mod tests;

pub use builder::Builder;
pub use messages::Batch;

/// A group of ranks as this rank sees it, on axis `A`. The module page says more.
///
/// ```
/// use hccl::{Axis, Communicator, Sum};
/// /// The samples that all ranks of any group hold together.
/// fn samples<A: Axis>(comm: &Communicator<A>, own: u64) -> hccl::Result<u64> {
///     let mut sum = [own];
///     comm.all_reduce(&mut sum, Sum)?;
///     Ok(sum[0])
/// }
/// assert_eq!(hccl::local(3, |comm| samples(&comm, 100 + comm.rank().index() as u64))?, [303; 3]);
/// # Ok::<(), hccl::Error>(())
/// ```
pub struct Communicator<A: Axis = World> {
    pub(crate) queue: Arc<Queue>,
    options: Options,
    /// How many groups of the same members this rank made of this group.
    made: Mutex<HashMap<Box<[usize]>, u64>>,
    /// Where fused calls pack.
    room: Mutex<fused::Room>,
    axis: PhantomData<A>,
    _one_queue: OneQueue,
}

impl Communicator<World> {
    /// Joins the world that the environment describes: this library's launcher, torchrun, mpirun or srun. A process
    /// that nothing launched is a world of one.
    ///
    /// ```
    /// use hccl::Communicator;
    /// let comm = Communicator::from_env()?;
    /// assert!(comm.rank().index() < comm.size());
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Environment` when the variables describe half a rank, `Rendezvous` when the ranks do not find each other within
    /// `HCCL_CONNECT_TIMEOUT`.
    pub fn from_env() -> Result<Self> {
        Communicator::builder().from_env()
    }

    /// A world with other deadlines than the environment's.
    ///
    /// ```
    /// use hccl::Communicator;
    /// use std::time::Duration;
    /// let comm = Communicator::builder().exec_timeout(Duration::from_secs(20)).from_env()?;
    /// assert_eq!(comm.exec_timeout(), Duration::from_secs(20));
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A world of `n` ranks in this process: one communicator a rank, in rank order, each for a thread of its own.
    /// [`local`](crate::local()) starts the threads too.
    ///
    /// ```
    /// use hccl::{Communicator, Max};
    /// let world = Communicator::init_all(2)?;
    /// std::thread::scope(|s| {
    ///     for comm in world {
    ///         s.spawn(move || {
    ///             let mut x = [comm.rank().index() as u8];
    ///             comm.all_reduce(&mut x, Max).unwrap();
    ///             assert_eq!(x, [1]);
    ///         });
    ///     }
    /// });
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for `n == 0`, `Resource` when the system has no memory or threads for them.
    pub fn init_all(n: usize) -> Result<Vec<Self>> {
        Communicator::builder().init_all(n)
    }
}

/// The number of the next world of this process.
pub(crate) fn next_world() -> GroupId {
    static WORLDS: AtomicU64 = AtomicU64::new(0);
    GroupId::world(WORLDS.fetch_add(1, Ordering::Relaxed))
}

impl<A: Axis> Communicator<A> {
    /// The typed face of a backend.
    pub(crate) fn wrap(backend: Arc<dyn Backend>, group: GroupId, options: Options) -> Result<Self> {
        let number = |what: usize| {
            u32::try_from(what).map_err(|_| Error::invalid(format!("{what} ranks are more than this library counts")))
        };
        let place = Place { rank: number(backend.rank())?, size: number(backend.size())?, group, axis: A::NAME };
        Ok(Communicator {
            queue: Arc::new(Queue::new(backend, place)),
            options,
            made: Mutex::default(),
            room: Mutex::default(),
            axis: PhantomData,
            _one_queue: OneQueue::new(),
        })
    }

    fn place(&self) -> &Place {
        &self.queue.place
    }

    /// This rank's number in the group.
    ///
    /// ```
    /// let shards = hccl::local(3, |comm| {
    ///     Ok((0..7).skip(comm.rank().index()).step_by(comm.size()).collect::<Vec<usize>>())
    /// })?;
    /// assert_eq!(shards, [vec![0, 3, 6], vec![1, 4], vec![2, 5]]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn rank(&self) -> Rank<A> {
        Rank::new(self.place().rank)
    }

    /// Ranks in the group; at least 1.
    ///
    /// ```
    /// let rows = hccl::local(3, |comm| {
    ///     let (rank, n) = (comm.rank().index(), comm.size());
    ///     Ok(100 * rank / n..100 * (rank + 1) / n) // this rank's share of 100 rows
    /// })?;
    /// assert_eq!(rows, [0..33, 33..66, 66..100]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn size(&self) -> usize {
        self.place().size as usize
    }

    /// Where [`upload`](Communicator::upload) and [`zeros`](Communicator::zeros) put their buffers.
    ///
    /// ```
    /// let comm = hccl::Communicator::from_env()?;
    /// let buf = hccl::DeviceBuffer::from_slice(comm.device(), &[1u8, 2])?; // what `upload` does
    /// assert_eq!(buf.device(), comm.device());
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn device(&self) -> Device {
        self.queue.backend().device()
    }

    /// How long one call may take before it fails with `Timeout`.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// let comm = hccl::Communicator::builder().exec_timeout(Duration::from_secs(9)).from_env()?;
    /// let started = Instant::now();
    /// comm.barrier()?;
    /// assert!(started.elapsed() < comm.exec_timeout());
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn exec_timeout(&self) -> Duration {
        self.options.exec_timeout
    }

    /// Rank `index` as the other side of a message.
    ///
    /// ```
    /// let out = hccl::local(3, |comm| {
    ///     let next = comm.peer((comm.rank().index() + 1) % comm.size())?;
    ///     assert!(comm.peer(3).is_err());
    ///     Ok(next.index())
    /// })?;
    /// assert_eq!(out, [1, 2, 0]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NoSuchRank` when the group has no such rank.
    pub fn peer(&self, index: usize) -> Result<Peer<A>> {
        Ok(Peer::new(self.place().group, self.index(index)?))
    }

    /// Rank `index` as the root of a collective.
    ///
    /// ```
    /// let out = hccl::local(3, |comm| {
    ///     let mut seed = [comm.rank().index() as u64 * 7];
    ///     comm.broadcast(&mut seed, comm.root(2)?)?;
    ///     Ok(seed[0])
    /// })?;
    /// assert_eq!(out, [14; 3]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NoSuchRank` when the group has no such rank.
    pub fn root(&self, index: usize) -> Result<Root<A>> {
        Ok(Root::new(self.place().group, self.index(index)?))
    }

    /// True when this rank is `root`.
    ///
    /// ```
    /// let out = hccl::local(3, |comm| {
    ///     let writer = comm.root(1)?;
    ///     Ok(if comm.is_root(writer) { "writes the checkpoint" } else { "goes on" })
    /// })?;
    /// assert_eq!(out, ["goes on", "writes the checkpoint", "goes on"]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn is_root(&self, root: Root<A>) -> bool {
        root.member().group == self.place().group && root.index() == self.rank().index()
    }

    /// Every other rank of the group, in rank order.
    ///
    /// ```
    /// let out = hccl::local(3, |comm| Ok(comm.peers().map(|peer| peer.index()).collect::<Vec<_>>()))?;
    /// assert_eq!(out, [[1, 2], [0, 2], [0, 1]]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn peers(&self) -> impl Iterator<Item = Peer<A>> + use<A> {
        let Place { rank, size, group, .. } = *self.place();
        (0..size).filter(move |&index| index != rank).map(move |index| Peer::new(group, index))
    }

    fn index(&self, index: usize) -> Result<u32> {
        match u32::try_from(index) {
            Ok(small) if small < self.place().size => Ok(small),
            _ => Err(Error::new(ErrorKind::NoSuchRank { rank: index, size: self.size() })),
        }
    }

    /// A buffer on this communicator's device with a copy of these elements.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let mut grads = comm.upload(&[1.0f32, comm.rank().index() as f32])?;
    ///     comm.all_reduce(&mut grads, hccl::Sum)?;
    ///     grads.to_vec()
    /// })?;
    /// assert_eq!(out, [[2.0, 1.0]; 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Resource` when there is not enough memory.
    pub fn upload<T: Element>(&self, elements: &[T]) -> Result<DeviceBuffer<T>> {
        DeviceBuffer::from_slice(self.device(), elements)
    }

    /// A buffer of `len` zeros on this communicator's device.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let mut all = comm.zeros::<u32>(comm.size())?;
    ///     comm.all_gather(&[comm.rank().index() as u32 + 3], &mut all)?;
    ///     all.to_vec()
    /// })?;
    /// assert_eq!(out, [[3, 4]; 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Resource` when there is not enough memory.
    pub fn zeros<T: Element>(&self, len: usize) -> Result<DeviceBuffer<T>> {
        DeviceBuffer::zeros(self.device(), len)
    }

    /// A handle with which any thread can fail the group.
    ///
    /// ```
    /// let err = hccl::local(2, |comm| {
    ///     if comm.rank().index() == 0 {
    ///         comm.abort_handle().abort();
    ///     }
    ///     comm.barrier()
    /// })
    /// .unwrap_err();
    /// assert!(matches!(err.kind(), hccl::ErrorKind::Aborted { by: 0 }));
    /// ```
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle(Arc::clone(self.queue.backend()))
    }

    /// The error that failed the group, if it failed: what every further call returns.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     if comm.rank().index() == 1 {
    ///         let _lost = comm.barrier(); // rank 0 is gone, or goes
    ///     }
    ///     Ok(comm.failure().and_then(|first| first.peer()))
    /// })?;
    /// assert_eq!(out, [None, Some(0)]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn failure(&self) -> Option<Error> {
        self.queue.backend().failure()
    }

    /// Waits for queued calls, leaves the group and tells of errors, which dropping cannot.
    ///
    /// ```
    /// let results = hccl::local_results(2, |comm| {
    ///     if comm.rank().index() == 1 {
    ///         comm.abort_handle().abort();
    ///     }
    ///     comm.close()
    /// })?;
    /// assert!(results[1].as_ref().is_err_and(|err: &hccl::Error| err.peer() == Some(1)));
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// The failure of the group, when it failed.
    pub fn close(self) -> Result<()> {
        self.queue.backend().close().map_err(|error| error.at("close", self.rank().index(), self.size()))
    }
}

impl<A: Axis> Drop for Communicator<A> {
    fn drop(&mut self) {
        // After `close` this does nothing. An error was or will be returned by the calls it failed.
        let _ = self.queue.backend().close();
        self.queue.sweep();
    }
}

impl<A: Axis> fmt::Debug for Communicator<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator<{}>(rank {} of {})", A::NAME, self.rank(), self.size())
    }
}

/// Fails a group from any thread. Made by [`Communicator::abort_handle`].
///
/// ```
/// use hccl::ErrorKind;
/// let err = hccl::local(2, |comm| {
///     if comm.rank().index() == 1 {
///         let handle = comm.abort_handle();
///         let watchdog = std::thread::spawn(move || handle.abort()); // when the user presses a key, say
///         watchdog.join().unwrap();
///     }
///     comm.barrier()
/// })
/// .unwrap_err();
/// assert!(matches!(err.kind(), ErrorKind::Aborted { by: 1 }));
/// ```
#[derive(Clone)]
pub struct AbortHandle(Arc<dyn Backend>);

impl AbortHandle {
    /// Fails the group on every rank: running calls and all later ones return `Aborted`. Does nothing when the group
    /// has failed or is closed.
    ///
    /// ```
    /// let comm = hccl::Communicator::from_env()?;
    /// let handle = comm.abort_handle();
    /// handle.abort();
    /// handle.abort(); // has nothing left to do
    /// assert!(comm.barrier().unwrap_err().to_string().contains("rank 0 aborted"));
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn abort(&self) {
        self.0.abort();
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AbortHandle(rank {} of {})", self.0.rank(), self.0.size())
    }
}
