//! How ranks learn of each other: root info, and the rank table.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::abi::{Failure, Result, hccl_code, para};

/// Bytes of a root info.
pub(crate) const ROOT_INFO: usize = 4108;
const MAGIC: &[u8; 16] = b"hccl-stand-in 1\n";
const NAME: usize = 64;

/// A new root info: a name that no other has, and bytes up to the end that a shortened copy would lack.
pub(crate) fn new_info() -> [u8; ROOT_INFO] {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    info_of(&format!("{}-{}-{now:x}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed)))
}

fn info_of(name: &str) -> [u8; ROOT_INFO] {
    let mut info = std::array::from_fn(|i| (i as u8).wrapping_mul(31) ^ name.as_bytes()[i % name.len()]);
    info[..16].copy_from_slice(MAGIC);
    info[16..16 + NAME].fill(0);
    info[16..16 + name.len()].copy_from_slice(name.as_bytes());
    info
}

/// The name in a root info.
pub(crate) fn job_of(info: &[u8; ROOT_INFO]) -> Result<String> {
    let name = info[16..16 + NAME].split(|byte| *byte == 0).next().unwrap_or_default();
    let name = std::str::from_utf8(name).unwrap_or_default();
    if name.is_empty() || *info != info_of(name) {
        return Err(para("the root info is none of HcclGetRootInfo, or was cut on its way"));
    }
    Ok(name.to_owned())
}

/// A rank's entry in a rank table.
pub(crate) struct Entry {
    /// Names the table among others.
    pub(crate) job: String,
    pub(crate) size: u32,
    /// The rank's device.
    pub(crate) device: i32,
}

/// Reads the rank table at `path` for one rank.
pub(crate) fn read_table(path: &str, rank: u32) -> Result<Entry> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::new(hccl_code::OPEN_FILE, format!("EI0004: the rank table {path} cannot be read: {error}"))
    })?;
    let table: Value = serde_json::from_str(&text).map_err(|e| refused(format!("the rank table is no JSON: {e}")))?;
    if table["status"].as_str().is_some_and(|status| status != "completed") {
        return Err(refused("the rank table's status is not \"completed\""));
    }
    let ranks = match table["version"].as_str() {
        Some("1.0" | "1.2") => flat(&table["server_list"], "device")?,
        Some("2.0") => table["rank_list"].as_array().cloned().unwrap_or_default(),
        other => return Err(refused(format!("the rank table's version is {other:?}"))),
    };
    let number = |entry: &Value, field: &str| {
        let value = &entry[field];
        value.as_i64().or_else(|| value.as_str()?.parse().ok())
    };
    let mut ids: Vec<_> = ranks.iter().filter_map(|entry| number(entry, "rank_id")).collect();
    ids.sort_unstable();
    if ids.is_empty() || !ids.iter().copied().eq(0..ranks.len() as i64) {
        return Err(Failure::new(hccl_code::PARA, format!("EI0014: the table's rank ids are {ids:?}")));
    }
    let own = ranks.iter().find(|entry| number(entry, "rank_id") == Some(rank.into()));
    let device = own.and_then(|own| number(own, "device_id"));
    let Some(device) = device else {
        return Err(Failure::new(hccl_code::PARA, format!("EI0014: the rank table has no device for rank {rank}")));
    };
    Ok(Entry { job: format!("table-{path}-{:x}", hash(&text)), size: ids.len() as u32, device: device as i32 })
}

/// The lists inside the entries of a list, one after the other.
fn flat(list: &Value, inner: &str) -> Result<Vec<Value>> {
    let Some(list) = list.as_array() else { return Err(refused("the rank table has no server_list")) };
    Ok(list.iter().filter_map(|entry| entry[inner].as_array()).flatten().cloned().collect())
}

fn refused(text: impl std::fmt::Display) -> Failure {
    Failure::new(hccl_code::PARA, format!("EI0004: {text}"))
}

fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
