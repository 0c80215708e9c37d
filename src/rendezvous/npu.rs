//! The world of a rank on an NPU: as a launcher describes it, or by a rank table.
//!
//! `RANK_TABLE_FILE` names a table, and `RANK_ID` this process's rank in it; without `RANK_ID` the launcher's rank is
//! taken. Where both are set they must agree. `HCCL_JOB_ID` and `HCCL_GENERATION` tell jobs with the same table apart.

use super::environment::{self, JobSpec, World};
use super::meeting_place;
use crate::backend::{Backend, hccl};
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use hccl::RankTable;
use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

/// The world that the environment describes, with this rank on `device`.
pub(super) fn connect(device: u32, options: &Options) -> Result<Arc<dyn Backend>> {
    if let Some(path) = std::env::var_os("RANK_TABLE_FILE").filter(|path| !path.is_empty()) {
        return by_table(path.into(), device, options);
    }
    match environment::this_process()? {
        World::Single => hccl::single(device, options),
        World::Job(JobSpec { rank, size, job, generation, .. }) => {
            hccl::process(&meeting_place(&job, generation), (rank, size), device, None, options)
        }
    }
}

fn by_table(path: PathBuf, device: u32, options: &Options) -> Result<Arc<dyn Backend>> {
    let path = std::path::absolute(&path).map_err(|error| Error::resource("the working directory", error))?;
    let table = RankTable::read(&path)?;
    let size = table.ranks.len();
    if let [first, second, ..] = &table.servers[..] {
        let what = format!("a rank table of several hosts ({first}, {second}, ...)");
        return Err(Error::new(ErrorKind::Unsupported { what })
            .hint("ranks of one host only for now: their control channel is shared memory"));
    }
    let own = number("RANK_ID")?;
    // Without `RANK_ID` half a launcher is an error; with it, whatever the launcher's variables lack does not matter.
    let launched = match environment::this_process() {
        Ok(World::Job(job)) => Some(job),
        Ok(World::Single) => None,
        Err(_) if own.is_some() => None,
        Err(error) => return Err(error),
    };
    let rank = match (own, &launched) {
        (Some(rank), Some(job)) if job.rank != rank => {
            let problem = format!("is {rank}, but the launcher ({:?}) made this rank {}", job.launcher, job.rank);
            return Err(variable("RANK_ID", problem).hint("unset one of the two"));
        }
        (Some(rank), _) => rank,
        (None, Some(job)) => job.rank,
        (None, None) => {
            return Err(variable("RANK_ID", "is missing although RANK_TABLE_FILE is set".into())
                .hint("set RANK_ID to this process's rank_id in the table"));
        }
    };
    if rank >= size {
        let problem = format!("is {rank}, but the table has {size} ranks, counted from 0");
        return Err(variable("RANK_ID", problem));
    }
    if let Some(job) = launched.as_ref().filter(|job| job.size != size) {
        let problem = format!("has {size} ranks, but the launcher ({:?}) started {}", job.launcher, job.size);
        return Err(variable("RANK_TABLE_FILE", problem));
    }
    if size == 1 {
        return hccl::single(device, options);
    }
    let (job, generation) = match launched {
        Some(job) => (job.job, job.generation),
        None => (std::env::var("HCCL_JOB_ID").unwrap_or_default(), number("HCCL_GENERATION")?.unwrap_or(0) as u64),
    };
    let name = meeting_place(&format!("{job}:{}:{table:?}", path.display()), generation);
    let file = CString::new(path.into_os_string().into_vec())
        .map_err(|_| variable("RANK_TABLE_FILE", "holds a zero byte".into()))?;
    hccl::process(&name, (rank, size), device, Some(file), options)
}

fn number(name: &str) -> Result<Option<usize>> {
    let Some(text) = std::env::var_os(name).filter(|text| !text.is_empty()) else { return Ok(None) };
    let text = text.to_string_lossy();
    match text.parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(variable(name, format!("is {text:?}; it must be a whole number"))),
    }
}

fn variable(name: &str, problem: String) -> Error {
    Error::new(ErrorKind::Environment { variable: name.to_owned(), problem })
}
