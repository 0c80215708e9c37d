//! [`Builder`].

use super::{Communicator, next_world};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::group::World;
use crate::options::Options;
use std::time::Duration;

/// Makes a world with deadlines of its own. Made by [`Communicator::builder`].
///
/// ```
/// use hccl::{Communicator, Sum};
/// use std::time::Duration;
/// let sums = Communicator::builder().exec_timeout(Duration::from_secs(20)).local(2, |comm| {
///     let mut x = [1u8];
///     comm.all_reduce(&mut x, Sum)?;
///     Ok(x[0])
/// })?;
/// assert_eq!(sums, [2, 2]);
/// # Ok::<(), hccl::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a builder makes nothing until `from_env`, `join`, `init_all` or `local`"]
pub struct Builder {
    connect_timeout: Option<Duration>,
    exec_timeout: Option<Duration>,
    device: Device,
}

impl Builder {
    /// How long ranks may take to find each other: 1 ms to a week. Wins over `HCCL_CONNECT_TIMEOUT`.
    ///
    /// ```
    /// use hccl::Communicator;
    /// use std::time::Duration;
    /// let comm = Communicator::builder().connect_timeout(Duration::from_secs(30)).from_env()?;
    /// assert_eq!(comm.size(), 1);
    /// let refused = Communicator::builder().connect_timeout(Duration::ZERO).from_env().unwrap_err();
    /// assert!(refused.to_string().contains("connect_timeout of 0 s"));
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// How long one call may take: 1 ms to a week. Wins over `HCCL_EXEC_TIMEOUT`.
    ///
    /// ```
    /// use hccl::{Communicator, ErrorKind};
    /// use std::{sync::Barrier, time::Duration};
    /// let shown = Barrier::new(2);
    /// let world = Communicator::builder().exec_timeout(Duration::from_millis(50));
    /// let err = world
    ///     .local(2, |comm| {
    ///         let result = if comm.rank().index() == 0 { comm.barrier() } else { Ok(()) };
    ///         shown.wait(); // until then rank 1 is alive, and late
    ///         result
    ///     })
    ///     .unwrap_err();
    /// assert!(matches!(err.kind(), ErrorKind::Timeout { late, .. } if *late == [1]), "{err}");
    /// ```
    pub fn exec_timeout(mut self, timeout: Duration) -> Self {
        self.exec_timeout = Some(timeout);
        self
    }

    /// The device of this rank; the host's processors when not called. With [`init_all`](Builder::init_all) and
    /// [`local`](Builder::local) it is the device of rank 0, and the other ranks take the NPUs after it.
    ///
    /// ```no_run
    /// use hccl::{Avg, Communicator, Device};
    /// let local_rank: u32 = std::env::var("HCCL_LOCAL_RANK").map_or(0, |rank| rank.parse().unwrap_or(0));
    /// let comm = Communicator::builder().device(Device::Npu(local_rank)).from_env()?;
    /// let grads = comm.upload(&[1.0f32; 1024])?; // memory of the NPU
    /// let grads = comm.all_reduce_async(grads, Avg)?.wait()?.to_vec()?;
    /// # let _ = grads;
    /// # Ok::<(), hccl::Error>(())
    /// ```
    pub fn device(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    /// As [`Communicator::from_env`]. On an NPU, `RANK_TABLE_FILE` and `RANK_ID` may describe the world too.
    ///
    /// ```
    /// let comm = hccl::Communicator::builder().connect_timeout(std::time::Duration::from_secs(5)).from_env()?;
    /// let mut x = [3.0f32];
    /// comm.all_reduce(&mut x, hccl::Sum)?;
    /// assert_eq!(x[0], 3.0 * comm.size() as f32);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Communicator::from_env`]; `InvalidArgument` and `Environment` for a deadline out of range; on an NPU
    /// `Unsupported` without Ascend's libraries, `Vendor` and the like for what they refuse.
    pub fn from_env(&self) -> Result<Communicator> {
        let options = Options::resolve(self.connect_timeout, self.exec_timeout)?;
        Communicator::wrap(crate::rendezvous::connect(self.device, &options)?, next_world(), options)
    }

    /// Joins the world of `size` ranks named `job` on this host as its rank `rank`, whatever the environment says: for
    /// programs whose ranks learn of each other by their own means. It returns when all ranks have joined.
    ///
    /// Ranks may be processes that know nothing of each other, or threads, each with a communicator of its own. The name
    /// may be any text; it is free for the next world once all ranks are there. It is the `HCCL_JOB_ID` of
    /// [`from_env`](Builder::from_env), so that ranks started by hand can join those of a launcher.
    ///
    /// ```
    /// # #[cfg(all(target_os = "linux", not(hccl_portable)))] {
    /// use hccl::{Communicator, Sum};
    /// let job = format!("example-{}", std::process::id());
    /// std::thread::scope(|s| {
    ///     for rank in 0..2u8 {
    ///         let job = &job;
    ///         s.spawn(move || {
    ///             let comm = Communicator::builder().join(job, rank.into(), 2).unwrap();
    ///             let mut x = [rank + 1];
    ///             comm.all_reduce(&mut x, Sum).unwrap();
    ///             assert_eq!(x, [3]);
    ///         });
    ///     }
    /// });
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for an empty name, a rank not below `size`, or more ranks than one host has; `Timeout` naming
    /// the ranks that did not come, `PeerLost` for one that died on the way; `Rendezvous` when the name is taken or
    /// ranks disagree on `size`; `InvalidArgument` and `Environment` for a deadline out of range.
    pub fn join(&self, job: &str, rank: usize, size: usize) -> Result<Communicator> {
        if job.is_empty() || rank >= size {
            let problem = format!("rank {rank} of {size} cannot join the job {job:?}");
            return Err(Error::invalid(problem).hint("name the job, and count ranks from 0"));
        }
        let options = Options::resolve(self.connect_timeout, self.exec_timeout)?;
        Communicator::wrap(crate::rendezvous::join(self.device, job, rank, size, &options)?, next_world(), options)
    }

    /// As [`Communicator::init_all`].
    ///
    /// ```
    /// let world = hccl::Communicator::builder().init_all(3)?;
    /// let ranks: Vec<usize> = world.iter().map(|comm| comm.rank().index()).collect();
    /// assert_eq!(ranks, [0, 1, 2]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Communicator::init_all`]; `InvalidArgument` and `Environment` for a deadline out of range.
    pub fn init_all(&self, n: usize) -> Result<Vec<Communicator>> {
        if n == 0 {
            return Err(Error::invalid("a world needs at least 1 rank, 0 were asked for"));
        }
        let options = Options::resolve(self.connect_timeout, self.exec_timeout)?;
        let group = next_world();
        let backends = crate::rendezvous::threads(self.device, n, &options)?;
        backends.into_iter().map(|backend| Communicator::<World>::wrap(backend, group, options.clone())).collect()
    }

    /// As [`local`](crate::local()).
    ///
    /// ```
    /// let world = hccl::Communicator::builder().exec_timeout(std::time::Duration::from_secs(20));
    /// let out = world.local(3, |comm| comm.all_gather_bytes(&[comm.rank().index() as u8; 2]))?;
    /// assert_eq!(out[0], [[0; 2], [1; 2], [2; 2]]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`local`](crate::local()); `InvalidArgument` and `Environment` for a deadline out of range.
    pub fn local<R: Send>(&self, n: usize, f: impl Fn(Communicator) -> Result<R> + Sync) -> Result<Vec<R>> {
        self.try_local(n, f)
    }

    /// As [`try_local`](crate::try_local).
    ///
    /// ```
    /// use hccl::{Communicator, launch::exit_code};
    /// let world = Communicator::builder().exec_timeout(std::time::Duration::from_secs(20));
    /// let err = world
    ///     .try_local(2, |comm| match comm.rank().index() {
    ///         0 => comm.barrier(),
    ///         rank => Err(hccl::Error::rank_failed(rank, "no data")),
    ///     })
    ///     .unwrap_err();
    /// assert_eq!((err.peer(), exit_code(&err)), (Some(1), 1));
    /// ```
    ///
    /// # Errors
    /// Those of [`try_local`](crate::try_local); `InvalidArgument` and `Environment` for a deadline out of range.
    pub fn try_local<R, E>(&self, n: usize, f: impl Fn(Communicator) -> Result<R, E> + Sync) -> Result<Vec<R>, E>
    where
        R: Send,
        E: std::error::Error + From<Error> + Send + 'static,
    {
        crate::local::first_cause(crate::local::spawn(self.init_all(n)?, f))
    }

    /// As [`local_results`](crate::local_results).
    ///
    /// ```
    /// let world = hccl::Communicator::builder().exec_timeout(std::time::Duration::from_secs(20));
    /// let results = world.local_results(2, |comm| comm.root(1 + comm.rank().index()).map(|root| root.index()))?;
    /// assert_eq!(results[0].as_ref().ok(), Some(&1));
    /// assert!(results[1].as_ref().is_err_and(|err| err.is_recoverable()));
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the world cannot be made: those of [`Communicator::init_all`].
    pub fn local_results<R, E>(
        &self,
        n: usize,
        f: impl Fn(Communicator) -> Result<R, E> + Sync,
    ) -> Result<Vec<Result<R, E>>>
    where
        R: Send,
        E: From<Error> + Send,
    {
        Ok(crate::local::spawn(self.init_all(n)?, f).into_iter().map(|outcome| outcome.result).collect())
    }
}
