//! Communicators.

#![expect(unsafe_code, reason = "handles owned by this guard cross the C interface")]

use std::{cell::Cell, ffi::CStr, rc::Rc, time::Duration};

use super::{Context, Stream};
use crate::{
    loader::Libraries,
    result::{Error, Result, hccl},
    sys::{HcclComm, HcclCommConfig, HcclResult, HcclRootInfo},
};

/// How long destroying waits for the work on the stream, unless told otherwise.
const DESTROY_WAIT: Duration = Duration::from_secs(30);

/// A communicator and the one stream its operations go to: HCCL mixes up operations of one communicator on two streams.
///
/// Dropping waits for the stream, then destroys the communicator, then the stream. Where the work does not end within
/// [`set_destroy_wait`](Self::set_destroy_wait), both stay allocated instead, because freeing them under running work
/// would corrupt memory; the error says so. A communicator stays alive under its sub-communicators.
#[derive(Debug)]
pub struct Comm(Rc<Inner>);

#[derive(Debug)]
struct Inner {
    stream: Stream,
    /// Invariant: an alive communicator until `close` takes it, once.
    raw: Cell<Option<HcclComm>>,
    destroy_wait: Cell<Duration>,
    /// The communicator this one is a part of, destroyed after it.
    parent: Option<Rc<Self>>,
}

/// How a communicator is built by root info.
#[derive(Clone, Copy, Debug)]
pub struct RootInfoComm<'a> {
    /// The number of ranks.
    pub ranks: u32,
    /// This rank, below `ranks`.
    pub rank: u32,
    /// What [`Comm::root_info`] gave on one rank, the same on all.
    pub info: &'a HcclRootInfo,
    /// Settings, or the library's defaults.
    pub config: Option<&'a HcclCommConfig>,
}

/// How a communicator is built by a rank table.
#[derive(Clone, Copy, Debug)]
pub struct RankTableComm<'a> {
    /// The file's path, at most 4096 bytes.
    pub path: &'a CStr,
    /// This rank as the table has it.
    pub rank: u32,
    /// Settings, or the library's defaults.
    pub config: Option<&'a HcclCommConfig>,
}

impl Comm {
    /// Starts a root on the context's device: 4108 bytes to be carried to every rank. A communicator must be built with
    /// it on this device.
    ///
    /// # Errors
    /// When the call fails or the library lacks it.
    pub fn root_info(context: &Context) -> Result<HcclRootInfo> {
        context.enter()?;
        hccl::get_root_info(context.libraries())
    }

    /// Builds a communicator by root info; blocks until every rank has called or `HCCL_CONNECT_TIMEOUT` is over.
    ///
    /// # Errors
    /// When the ranks do not meet, another thread is building on this device, or the library lacks the call.
    pub fn from_root_info(stream: Stream, how: RootInfoComm<'_>) -> Result<Self> {
        Self::build(stream, "HcclCommInitRootInfo", |libs| {
            // SAFETY: `build` holds the claim on this thread's device.
            unsafe { hccl::comm_init_root_info(libs, how.ranks, how.info, how.rank, how.config) }
        })
    }

    /// Builds a communicator by a rank table; blocks as [`from_root_info`](Self::from_root_info) does.
    ///
    /// # Errors
    /// When the table is wrong, the ranks do not meet, another thread is building on this device, or the library lacks
    /// the call.
    pub fn from_rank_table(stream: Stream, how: RankTableComm<'_>) -> Result<Self> {
        Self::build(stream, "HcclCommInitClusterInfo", |libs| {
            // SAFETY: `build` holds the claim on this thread's device.
            unsafe { hccl::comm_init_cluster_info(libs, how.path, how.rank, how.config) }
        })
    }

    /// Takes over a communicator made elsewhere, such as one of [`hccl::comm_init_all`].
    ///
    /// # Safety
    /// `raw` is alive, of the stream's device and library, and used and destroyed by nobody else.
    #[must_use]
    pub unsafe fn from_raw(stream: Stream, raw: HcclComm) -> Self {
        Self::own(stream, raw, None)
    }

    /// Builds a communicator of some of this one's ranks. Every rank of this one calls; those that stay out pass `None`
    /// and get `None`.
    ///
    /// # Errors
    /// When this is a sub-communicator itself, the call fails, or the library lacks it.
    pub fn create_sub(
        &self,
        stream: Stream,
        member: Option<hccl::SubComm<'_>>,
        config: &HcclCommConfig,
    ) -> Result<Option<Self>> {
        const NAME: &str = "HcclCreateSubCommConfig";
        if self.0.parent.is_some() {
            return Err(Error::argument(NAME, "HCCL splits only a communicator that is not itself a part of one"));
        }
        let (ours, theirs) = (self.0.stream.context(), stream.context());
        ours.require_same_library(NAME, theirs)?;
        if ours.device().id() != theirs.device().id() {
            let (ours, theirs) = (ours.device().id(), theirs.device().id());
            return Err(Error::argument(NAME, format!("the stream is of device {theirs}, the communicator of {ours}")));
        }
        let libs = self.enter()?;
        let _claim = claim(libs, NAME, stream.context().device().id())?;
        // SAFETY: alive, and no sub-communicator.
        let sub = unsafe { hccl::create_sub_comm(libs, self.raw(), member, config) }?;
        Ok(sub.map(|raw| Self::own(stream, raw, Some(Rc::clone(&self.0)))))
    }

    /// The stream every operation of this communicator goes to.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.0.stream
    }

    /// The handle, valid as long as this guard.
    #[must_use]
    pub fn raw(&self) -> HcclComm {
        // `close` runs only when the last guard is given up.
        self.0.raw.get().unwrap_or_default()
    }

    /// This rank.
    ///
    /// # Errors
    /// When the call fails or the library lacks it.
    pub fn rank(&self) -> Result<u32> {
        let libs = self.enter()?;
        // SAFETY: alive.
        unsafe { hccl::rank_id(libs, self.raw()) }
    }

    /// The number of ranks.
    ///
    /// # Errors
    /// When the call fails or the library lacks it.
    pub fn size(&self) -> Result<u32> {
        let libs = self.enter()?;
        // SAFETY: alive.
        unsafe { hccl::rank_size(libs, self.raw()) }
    }

    /// The name, as logs have it.
    ///
    /// # Errors
    /// When the call fails or the library lacks it.
    pub fn name(&self) -> Result<String> {
        let libs = self.enter()?;
        // SAFETY: alive.
        unsafe { hccl::comm_name(libs, self.raw()) }
    }

    /// An RDMA error that has come up, or success. A dead peer or a timeout does not show here.
    ///
    /// # Errors
    /// When the call fails or the library lacks it.
    pub fn async_error(&self) -> Result<HcclResult> {
        let libs = self.enter()?;
        // SAFETY: alive.
        unsafe { hccl::comm_async_error(libs, self.raw()) }
    }

    /// Makes the stream wait for all ranks; the host goes on.
    ///
    /// # Errors
    /// When the call fails or the library lacks it.
    pub fn barrier(&self) -> Result<()> {
        let libs = self.enter()?;
        // SAFETY: alive, as is the stream.
        unsafe { hccl::barrier(libs, self.raw(), self.0.stream.raw()) }
    }

    /// How long dropping and [`destroy`](Self::destroy) wait for the work on the stream; 30 s at first.
    pub fn set_destroy_wait(&self, wait: Duration) {
        self.0.destroy_wait.set(wait);
    }

    /// Destroys the communicator as dropping does, and tells how it went.
    ///
    /// # Errors
    /// When the stream's work failed or did not end in time, when the communicator is at work, or when it still has
    /// sub-communicators; it is then destroyed with the last of them.
    pub fn destroy(self) -> Result<()> {
        let Some(inner) = Rc::into_inner(self.0) else {
            return Err(Error::argument("HcclCommDestroy", "sub-communicators are alive: destroy them first"));
        };
        inner.close()
    }

    fn build(
        stream: Stream,
        symbol: &'static str,
        init: impl FnOnce(&'static Libraries) -> Result<HcclComm>,
    ) -> Result<Self> {
        let context = stream.context();
        context.enter()?;
        let libs = context.libraries();
        let raw = {
            let _claim = claim(libs, symbol, context.device().id())?;
            init(libs)?
        };
        Ok(Self::own(stream, raw, None))
    }

    fn own(stream: Stream, raw: HcclComm, parent: Option<Rc<Inner>>) -> Self {
        Self(Rc::new(Inner { stream, raw: Cell::new(Some(raw)), destroy_wait: Cell::new(DESTROY_WAIT), parent }))
    }

    fn enter(&self) -> Result<&'static Libraries> {
        let context = self.0.stream.context();
        context.enter()?;
        Ok(context.libraries())
    }
}

impl Inner {
    /// Waits, then destroys; leaks what may still be in use. The first error is returned.
    fn close(&self) -> Result<()> {
        let Some(raw) = self.raw.take() else { return Ok(()) };
        let quiet = self.quiesce();
        if matches!(quiet, Ok(false)) {
            self.leak();
            let wait = self.destroy_wait.get();
            let why = format!("work is still running after {wait:?}: communicator and stream stay allocated");
            return Err(Error::argument("HcclCommDestroy", why));
        }
        let libs = self.stream.context().libraries();
        // SAFETY: taken from `raw`, so destroyed once; the stream has run out of work or failed.
        let destroyed = unsafe { hccl::comm_destroy(libs, raw) };
        if destroyed.as_ref().is_err_and(|error| error.is_hccl(HcclResult::E_AGAIN)) {
            self.leak();
        }
        quiet.and(destroyed)
    }

    /// What a communicator still at work may use is never freed: its stream, its device, its parent.
    fn leak(&self) {
        self.stream.leak();
        std::mem::forget(self.parent.clone());
    }

    /// `false` when work is left on the stream after the wait. A library without timed waiting is waited for.
    fn quiesce(&self) -> Result<bool> {
        match self.stream.synchronize_for(self.destroy_wait.get()) {
            Err(error) if error.is_missing() => self.stream.synchronize().map(|()| true),
            waited => waited,
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            self.stream.context().libraries().keep_drop_error(error);
        }
    }
}

fn claim(libs: &'static Libraries, symbol: &'static str, device: i32) -> Result<crate::loader::DeviceClaim<'static>> {
    libs.claim_device(device).ok_or_else(|| {
        let why = format!("another thread is building a communicator on device {device}: HCCL allows one at a time");
        Error::argument(symbol, why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::acl;

    #[test]
    fn a_device_is_claimed_once_and_given_back() {
        let libs: &'static Libraries = Box::leak(Box::default());
        let first = claim(libs, "HcclCommInitRootInfo", 3).unwrap();
        let error = claim(libs, "HcclCommInitRootInfo", 3).err().unwrap();
        assert!(error.to_string().contains("device 3"), "{error}");
        assert!(claim(libs, "HcclCommInitRootInfo", 4).is_ok());
        drop(first);
        assert!(claim(libs, "HcclCommInitRootInfo", 3).is_ok());
        assert_eq!(acl::device_count(libs).unwrap_err().symbol(), "aclrtGetDeviceCount");
    }
}
