//! Checkpoints that are there whole or not at all, and from which a run continues bit for bit.
//!
//! ```text
//! DIR/step-000000000200/     the last two are kept
//!     model.safetensors      parameters, and buffers that are equal on all ranks
//!     optimizer.safetensors  the optimizer's tensors
//!     rank-0001.safetensors  rank 1's own buffers (Buffers::Local), when there are any
//!     state.json             step, data position and random state of each rank, world size, model, optimizer
//!     checksums              CRC-32 and length of each file above
//! ```
//!
//! - Rank 0 writes, into a folder beside, syncs every file and folder to disk, and renames: a run that is killed at any
//!   moment leaves the checkpoints before. Where Linux can exchange two folders on this file system, a step that is written
//!   again has its old folder or its new one at every instant. What it cannot write is an error on every rank.
//! - A file that is missing, cut short or changed makes its checkpoint refused; [`Checkpoints::load_latest`] takes the one
//!   before and says so.
//! - A checkpoint of another model, world size, dtype or kind of optimizer is refused with everything that differs, before
//!   anything is changed.
//! - Rank 0 reads and sends: other hosts need no access to the folder.
//!
//! ```
//! # use candle_core::{DType, Device};
//! # use candle_nn::{Init, VarMap};
//! use hccl_candle::{Checkpoints, DataParallel, Options, Progress, Sgd, SgdConfig};
//!
//! let dir = std::env::temp_dir().join(format!("hccl-candle-doc-{}", std::process::id()));
//! # let root = &dir;
//! hccl_candle::local(2, |comm| {
//!     let checkpoints = Checkpoints::open(&dir)?;                  // fails now if it cannot be written
//! #   let map = VarMap::new();
//! #   map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
//!     let mut dp = DataParallel::new(comm, &map, Options::default())?;
//!     let mut sgd = Sgd::new(dp.parameters(), SgdConfig::default())?;
//!     let start = match checkpoints.load_latest(&mut dp, &mut sgd)? {
//!         Some(loaded) => loaded.progress.step,
//!         None => 0,
//!     };
//!     // … train from `start` …
//!     checkpoints.save(&dp, &sgd, &Progress { step: start + 10, ..Progress::default() })?;
//!     assert_eq!(checkpoints.load_latest(&mut dp, &mut sgd)?.map(|loaded| loaded.progress.step), Some(10));
//!     Ok(())
//! })?;
//! # std::fs::remove_dir_all(root).ok();
//! # Ok::<(), hccl_candle::Error>(())
//! ```

mod files;
mod state;

use crate::data_parallel::{Buffers, DataParallel};
use crate::error::{Error, Result};
use crate::optim::{Optimizer, OptimizerState};
use candle_core::{Device, Tensor, Var};
use files::Contents;
use hccl::{Axis, Communicator};
use serde::{Deserialize, Serialize};
use state::{Offer, State};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const STATE: &str = "state.json";

/// How far a rank has come: what a run needs besides weights and optimizer to continue.
///
/// ```
/// use hccl_candle::{Progress, sampler::Sampler};
/// let mut sampler = Sampler::new(10, 0, 2, 2).map_err(|err| std::io::Error::other(err))?;
/// sampler.next_batch();
/// let state = sampler.state();
/// let progress = Progress { step: 1, epoch: state.epoch, position: state.step as u64, ..Progress::default() };
/// assert_eq!((progress.position, progress.random.len()), (1, 0));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Optimizer steps taken, the same on all ranks.
    pub step: u64,
    /// Epoch of the data.
    pub epoch: u64,
    /// Position in the epoch, in the sampler's own unit.
    pub position: u64,
    /// State of this rank's random numbers, as its generator gives it.
    pub random: Vec<u64>,
    /// Anything else, by names.
    pub notes: BTreeMap<String, String>,
}

/// What [`Checkpoints::load_latest`] took over.
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use candle_nn::{Init, VarMap};
/// use hccl_candle::{Checkpoints, DataParallel, Options, Progress, Sgd, SgdConfig};
/// let dir = std::env::temp_dir().join(format!("hccl-candle-loaded-{}", std::process::id()));
/// let changed = hccl_candle::local(2, |comm| {
/// #   let map = VarMap::new();
/// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
///     let mut dp = DataParallel::new(comm, &map, Options::default())?;
///     let mut sgd = Sgd::new(dp.parameters(), SgdConfig { lr: 0.5, ..SgdConfig::default() })?;
///     let checkpoints = Checkpoints::open(&dir)?;
///     checkpoints.save(&dp, &sgd, &Progress { step: 3, ..Progress::default() })?;
///     sgd = Sgd::new(dp.parameters(), SgdConfig { lr: 0.25, ..SgdConfig::default() })?; // a run with another rate
///     let loaded = checkpoints.load_latest(&mut dp, &mut sgd)?;
///     Ok(loaded.map(|loaded| (loaded.progress.step, loaded.changed.len(), loaded.skipped.len())))
/// })?;
/// # std::fs::remove_dir_all(&dir).ok();
/// assert_eq!(changed, [Some((3, 1, 0)); 2]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Loaded {
    /// This rank's progress.
    pub progress: Progress,
    /// The checkpoint.
    pub path: PathBuf,
    /// Newer checkpoints that were refused, and why.
    pub skipped: Vec<String>,
    /// Hyperparameters that differ from the checkpoint's: the run will not be the same bit for bit.
    pub changed: Vec<String>,
}

/// A folder of checkpoints.
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # use candle_nn::{Init, VarMap};
/// # use hccl_candle::{Checkpoints, DataParallel, Options, Progress, Sgd, SgdConfig};
/// let dir = std::env::temp_dir().join(format!("hccl-candle-folder-{}", std::process::id()));
/// let step = hccl_candle::local(2, |comm| {
/// #   let map = VarMap::new();
/// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
/// #   let mut dp = DataParallel::new(comm, &map, Options::default())?;
/// #   let mut sgd = Sgd::new(dp.parameters(), SgdConfig::default())?;
///     let checkpoints = Checkpoints::open(&dir)?.keep(3);
///     let start = checkpoints.load_latest(&mut dp, &mut sgd)?.map_or(0, |loaded| loaded.progress.step);
///     for step in start + 1..=5 {
///         // … the optimizer's step …
///         checkpoints.save(&dp, &sgd, &Progress { step, ..Progress::default() })?;
///     }
///     Ok(checkpoints.load_latest(&mut dp, &mut sgd)?.map(|loaded| loaded.progress.step))
/// })?;
/// # std::fs::remove_dir_all(&dir).ok();
/// assert_eq!(step, [Some(5); 2]);
/// # Ok::<(), hccl_candle::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Checkpoints {
    dir: PathBuf,
    keep: usize,
}

/// Removes what a killed run left unfinished in a folder of checkpoints: hidden folders, never a checkpoint. Saving does
/// so too; who starts ranks calls this when they have failed, and nobody writes there any more.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path();
/// std::fs::create_dir(dir.join(".hccl-new-4242-0"))?; // a process was killed while it wrote
/// hccl_candle::checkpoint::sweep(dir);
/// assert_eq!(std::fs::read_dir(dir)?.count(), 0);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn sweep(dir: &Path) {
    files::sweep(dir);
}

impl Checkpoints {
    /// Opens a folder, making it where it is missing, and writes a probe: what cannot be written fails now and not after
    /// the first hundred steps. Not collective.
    ///
    /// ```
    /// use hccl_candle::{Checkpoints, Error};
    /// let dir = std::env::temp_dir().join(format!("hccl-candle-open-{}", std::process::id()));
    /// assert!(Checkpoints::open(dir.join("run-7"))?.dir().is_dir());
    /// std::fs::write(dir.join("a-file"), "").unwrap();
    /// assert!(matches!(Checkpoints::open(dir.join("a-file")), Err(Error::Io { .. })));
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`] naming the folder.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self> {
        let dir = dir.into();
        files::probe(&dir)?;
        Ok(Checkpoints { dir, keep: 2 })
    }

    /// How many checkpoints are kept; at least 1, 2 by default.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// # use hccl_candle::{Checkpoints, DataParallel, Options, Progress, Sgd, SgdConfig};
    /// let dir = std::env::temp_dir().join(format!("hccl-candle-keep-{}", std::process::id()));
    /// let kept = hccl_candle::local(1, |comm| {
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    /// #   let dp = DataParallel::new(comm, &map, Options::default())?;
    /// #   let sgd = Sgd::new(dp.parameters(), SgdConfig::default())?;
    ///     let checkpoints = Checkpoints::open(&dir)?.keep(1);
    ///     let first = checkpoints.save(&dp, &sgd, &Progress { step: 1, ..Progress::default() })?;
    ///     let second = checkpoints.save(&dp, &sgd, &Progress { step: 2, ..Progress::default() })?;
    ///     Ok((first.exists(), second.exists()))
    /// })?;
    /// # std::fs::remove_dir_all(&dir).ok();
    /// assert_eq!(kept, [(false, true)]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    #[must_use]
    pub fn keep(mut self, keep: usize) -> Self {
        self.keep = keep.max(1);
        self
    }

    /// The folder.
    ///
    /// ```
    /// let dir = std::env::temp_dir().join(format!("hccl-candle-dir-{}", std::process::id()));
    /// assert_eq!(hccl_candle::Checkpoints::open(&dir)?.dir(), dir);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes a checkpoint of the step in `progress`, in the place of one of the same step, and removes those before the
    /// last ones. Collective; returns when it is on disk.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{Checkpoints, DataParallel, Options, Progress, Sgd, SgdConfig};
    /// let dir = std::env::temp_dir().join(format!("hccl-candle-save-{}", std::process::id()));
    /// let names = hccl_candle::local(2, |comm| {
    ///     let random = vec![comm.rank().index() as u64 + 11]; // of this rank's generator
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let dp = DataParallel::new(comm, &map, Options::default())?;
    ///     let sgd = Sgd::new(dp.parameters(), SgdConfig::default())?;
    ///     let progress = Progress { step: 200, random, ..Progress::default() };
    ///     let path = Checkpoints::open(&dir)?.save(&dp, &sgd, &progress)?;
    ///     Ok(path.file_name().map(|name| name.to_owned()))
    /// })?;
    /// # std::fs::remove_dir_all(&dir).ok();
    /// assert_eq!(names, [Some("step-000000000200".into()), Some("step-000000000200".into())]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// On every rank: what rank 0 cannot write; ranks that differ in their step; gradients that wait in
    /// [`DataParallel::accumulate`] (save after a step); a lost peer.
    pub fn save<A: Axis>(
        &self,
        replica: &DataParallel<A>,
        optimizer: &(impl Optimizer + ?Sized),
        progress: &Progress,
    ) -> Result<PathBuf> {
        if replica.accumulated() > 0 {
            let held = replica.accumulated();
            let problem = format!("{held} accumulated batches are not in a checkpoint: save after the step");
            return Err(Error::invalid(problem));
        }
        let comm = replica.comm();
        let own = serde_json::to_vec(progress).map_err(|error| Error::invalid(error.to_string()))?;
        let progresses = comm.all_gather_bytes(&own)?;
        let locals = comm.all_gather_bytes(&local_buffers(replica)?)?;
        let progresses = state::progresses(&progresses)?;
        let path = self.dir.join(files::folder(progress.step));
        let written = match comm.rank().index() {
            0 => self.write(replica, optimizer, progresses, locals, progress.step).err(),
            _ => None,
        };
        let problem = written.as_ref().map(ToString::to_string).unwrap_or_default();
        let problem = comm.broadcast_bytes(problem.into_bytes(), comm.root(0)?)?;
        match (written, problem.is_empty()) {
            (Some(error), _) => Err(error),
            (None, true) => Ok(path),
            (None, false) => Err(Error::Rank0(String::from_utf8_lossy(&problem).into_owned())),
        }
    }

    /// Takes over the newest checkpoint that is whole: parameters, buffers, optimizer state; `None` when the folder has
    /// none. Collective.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Init, VarMap};
    /// use hccl_candle::{Checkpoints, DataParallel, Options, Progress, Sgd, SgdConfig};
    /// let dir = std::env::temp_dir().join(format!("hccl-candle-load-{}", std::process::id()));
    /// let random = hccl_candle::local(2, |comm| {
    ///     let random = vec![comm.rank().index() as u64 + 11];
    /// #   let map = VarMap::new();
    /// #   let w = map.get(2, "w", Init::Const(1.0), DType::F32, &Device::Cpu)?;
    ///     let mut dp = DataParallel::new(comm, &map, Options::default())?;
    ///     let mut sgd = Sgd::new(dp.parameters(), SgdConfig::default())?;
    ///     let checkpoints = Checkpoints::open(&dir)?;
    ///     assert!(checkpoints.load_latest(&mut dp, &mut sgd)?.is_none()); // a run that starts
    ///     checkpoints.save(&dp, &sgd, &Progress { step: 1, random, ..Progress::default() })?;
    ///     Ok(checkpoints.load_latest(&mut dp, &mut sgd)?.map(|loaded| loaded.progress.random))
    /// })?;
    /// # std::fs::remove_dir_all(&dir).ok();
    /// assert_eq!(random, [Some(vec![11]), Some(vec![12])]);
    /// # Ok::<(), hccl_candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// On every rank: [`Error::TornCheckpoint`] when there are checkpoints and none is whole; [`Error::WrongCheckpoint`]
    /// with all that differs, and then nothing was changed; a lost peer.
    pub fn load_latest<A: Axis>(
        &self,
        replica: &mut DataParallel<A>,
        optimizer: &mut (impl Optimizer + ?Sized),
    ) -> Result<Option<Loaded>> {
        let comm = replica.comm();
        let (offer, contents) = match comm.rank().index() {
            0 => Offer::newest(&self.dir),
            _ => (Offer::default(), Contents::new()),
        };
        let offer = offer.share(comm)?;
        offer.skipped.iter().for_each(|skipped| tracing::warn!("{skipped}"));
        let Some(path) = offer.path.map(PathBuf::from) else {
            return match offer.skipped.is_empty() {
                true => Ok(None),
                false => Err(Error::TornCheckpoint { path: self.dir.clone(), problem: offer.skipped.join("; ") }),
            };
        };
        let contents = share(comm, &offer.files, contents)?;
        let (progress, changed) = take_over(&path, &contents, replica, optimizer)?;
        Ok(Some(Loaded { progress, path, skipped: offer.skipped, changed }))
    }

    fn write<A: Axis>(
        &self,
        replica: &DataParallel<A>,
        optimizer: &(impl Optimizer + ?Sized),
        progresses: Vec<Progress>,
        locals: Vec<Vec<u8>>,
        step: u64,
    ) -> Result<()> {
        let optimizer = optimizer.state_dict()?;
        let state = State::of(replica, &optimizer, progresses);
        let mut contents = Contents::new();
        contents.insert(MODEL.into(), encode(replicated(replica))?);
        contents.insert(OPTIMIZER.into(), encode(optimizer.tensors.iter().map(|(name, t)| (name.as_str(), t)))?);
        contents.insert(STATE.into(), state.to_json()?);
        for (rank, local) in locals.into_iter().enumerate().filter(|(_, local)| !local.is_empty()) {
            contents.insert(rank_file(rank), local);
        }
        files::write(&self.dir, step, &contents)?;
        files::prune(&self.dir, step, self.keep)
    }
}

fn rank_file(rank: usize) -> String {
    format!("rank-{rank:04}.safetensors")
}

/// Sends rank 0's files to all.
fn share<A: Axis>(comm: &Communicator<A>, names: &[String], mut contents: Contents) -> Result<Contents> {
    for name in names {
        let own = contents.remove(name).unwrap_or_default();
        contents.insert(name.clone(), comm.broadcast_bytes(own, comm.root(0)?)?);
    }
    Ok(contents)
}

/// Parameters and buffers that are the same on all ranks.
fn replicated<A: Axis>(replica: &DataParallel<A>) -> impl Iterator<Item = (&str, &Tensor)> {
    let buffers = replica.buffers().filter(|(_, _, policy)| *policy != Buffers::Local);
    let buffers = buffers.map(|(name, var, _)| (name, var.as_tensor()));
    replica.parameters().iter().map(|(name, var)| (name, var.as_tensor())).chain(buffers)
}

/// This rank's own buffers as a file; empty when there are none.
fn local_buffers<A: Axis>(replica: &DataParallel<A>) -> Result<Vec<u8>> {
    let local = || replica.buffers().filter(|(_, _, policy)| *policy == Buffers::Local);
    match local().next() {
        Some(_) => encode(local().map(|(name, var, _)| (name, var.as_tensor()))),
        None => Ok(Vec::new()),
    }
}

fn encode<'a>(tensors: impl Iterator<Item = (&'a str, &'a Tensor)>) -> Result<Vec<u8>> {
    safetensors::serialize(tensors, None).map_err(|error| Error::Candle(error.into()))
}

/// Checks everything, then changes variables and optimizer.
fn take_over<A: Axis>(
    path: &Path,
    contents: &Contents,
    replica: &DataParallel<A>,
    optimizer: &mut (impl Optimizer + ?Sized),
) -> Result<(Progress, Vec<String>)> {
    let torn = |problem: String| Error::TornCheckpoint { path: path.into(), problem };
    let file = |name: &str| contents.get(name).ok_or_else(|| torn(format!("{name} is missing")));
    let state = State::from_json(file(STATE)?).map_err(torn)?;
    let own = optimizer.state_dict()?;
    let problems = state.problems(replica, &own);
    if !problems.is_empty() {
        return Err(Error::WrongCheckpoint { path: path.into(), problems });
    }
    let rank = replica.comm().rank().index();
    let progress = state.ranks.get(rank).cloned().ok_or_else(|| torn(format!("rank {rank} is missing")))?;
    let mut model = candle_core::safetensors::load_buffer(file(MODEL)?, &Device::Cpu)?;
    if let Some(local) = contents.get(&rank_file(rank)) {
        model.extend(candle_core::safetensors::load_buffer(local, &Device::Cpu)?);
    }
    let values = pair(replica, &model).map_err(torn)?;
    let tensors = candle_core::safetensors::load_buffer(file(OPTIMIZER)?, &Device::Cpu)?;
    let changed = state.changed(&own);
    let saved = OptimizerState {
        kind: state.optimizer.kind,
        steps: state.optimizer.steps,
        tensors: tensors.into_iter().collect(),
        ..OptimizerState::default()
    };
    optimizer.load_state_dict(&saved)?;
    for (var, value) in values {
        var.set(value)?;
    }
    Ok((progress, changed))
}

/// Each variable with its saved value, of the same dtype and shape.
fn pair<'a, A: Axis>(
    replica: &'a DataParallel<A>,
    model: &'a HashMap<String, Tensor>,
) -> Result<Vec<(&'a Var, &'a Tensor)>, String> {
    let vars = replica.parameters().iter().chain(replica.buffers().map(|(name, var, _)| (name, var)));
    let value = |(name, var): (&'a str, &'a Var)| {
        let value = model.get(name).ok_or_else(|| format!("{MODEL} lacks `{name}`"))?;
        match value.dtype() == var.dtype() && value.dims() == var.dims() {
            true => Ok((var, value)),
            false => Err(format!("`{name}` is {:?}{:?} in {MODEL}", value.dtype(), value.dims())),
        }
    };
    vars.map(value).collect()
}
