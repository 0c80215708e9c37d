//! The configuration of a communicator, in the versions HCCL has had.
//!
//! A library reads the fields that the struct's version number promises. Version and size must therefore match, and the
//! version must not be newer than the library: [`ConfigVersion::for_capability`] picks it.

use std::{ffi::c_char, fmt};

/// A version of [`HcclCommConfig`] that was released, with the size that belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfigVersion {
    number: u32,
    size: usize,
}

impl ConfigVersion {
    /// CANN 8.0.RC2: buffer size, determinism.
    pub const V1: Self = Self { number: 1, size: 32 };
    /// CANN 8.0.RC3 and 8.0.0: adds the communicator's name.
    pub const V2: Self = Self { number: 2, size: 160 };
    /// CANN 8.1.RC1 and 8.2.RC1: adds expansion mode, traffic class, service level.
    pub const V5: Self = Self { number: 5, size: 300 };
    /// CANN 8.3.RC1: adds world rank and job.
    pub const V6: Self = Self { number: 6, size: 312 };
    /// CANN 8.5.0: adds execution timeout, algorithm, retry.
    pub const V8: Self = Self { number: 8, size: 2104 };
    /// CANN 9.0.0-beta.1: adds the name of a shared buffer.
    pub const V9: Self = Self { number: 9, size: 2232 };
    /// CANN 9.0.0: adds quality of service and symmetric memory.
    pub const V10: Self = Self { number: 10, size: 2240 };
    /// After CANN 9.1: adds the channels' queue depth.
    pub const V11: Self = Self { number: 11, size: 2248 };

    /// Every released version, oldest first.
    pub const ALL: &'static [Self] =
        &[Self::V1, Self::V2, Self::V5, Self::V6, Self::V8, Self::V9, Self::V10, Self::V11];

    /// The version's number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.number
    }

    /// Bytes a library of this version reads.
    #[must_use]
    pub const fn size(self) -> usize {
        self.size
    }

    /// The newest version that a library surely knows whose `HcclGetCommConfigCapability` returned `capability`.
    ///
    /// The capabilities end at version 9, so this never answers 10 or 11; choose those by the installed CANN version.
    /// A library without the function reads version 1.
    #[must_use]
    pub const fn for_capability(capability: u32) -> Self {
        // A capability numbered n is supported when the answer is greater than n.
        match capability {
            0..=2 => Self::V1,  // up to DETERMINISTIC (1)
            3 => Self::V2,      // COMM_NAME (2)
            4..=6 => Self::V5,  // OP_EXPANSION_MODE (3), SUPPORT_INIT_BY_ENV (4), WORLD_RANKID (5) without JOBID
            7..=10 => Self::V6, // JOBID (6); RETRY (10) completes version 8
            11 => Self::V8,     // RETRY (10)
            12.. => Self::V9,   // BUFFER_NAME (11)
        }
    }
}

impl fmt::Display for ConfigVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {} ({} bytes)", self.number, self.size)
    }
}

/// A field of [`HcclCommConfig`] was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// The library's version of the struct has no such field and would ignore it silently.
    TooOld {
        /// The field.
        field: &'static str,
        /// The first version that has it.
        since: u32,
        /// The version in use.
        version: u32,
    },
    /// The text does not fit, or has a zero byte in it.
    Text {
        /// The field.
        field: &'static str,
        /// Bytes given.
        len: usize,
        /// Bytes that fit, without the closing zero.
        max: usize,
    },
    /// The number is outside what the field takes.
    Range {
        /// The field.
        field: &'static str,
        /// The number given.
        value: i64,
        /// What is allowed, in words.
        allowed: &'static str,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooOld { field, since, version } => write!(
                f,
                "communicator setting {field} needs version {since} of HcclCommConfig, the library has {version}: \
                 leave it unset, use the environment variable instead, or install a newer CANN"
            ),
            Self::Text { field, len, max } => write!(
                f,
                "communicator setting {field} is a text of {len} bytes: at most {max} fit, and none may be zero"
            ),
            Self::Range { field, value, allowed } => {
                write!(f, "communicator setting {field} is {value}, allowed is {allowed}")
            }
        }
    }
}

impl std::error::Error for ConfigError {}

/// `HcclCommConfig` in its newest layout, 2248 bytes without hidden padding. Made by [`new`](Self::new), which does the
/// work of the interface's inline initialiser; older libraries read its beginning.
///
/// ```
/// use ascend_sys::sys::{ConfigVersion, HcclCommConfig};
/// let mut config = HcclCommConfig::new(ConfigVersion::for_capability(12));
/// config.set_buffer_size(64)?;
/// config.set_exec_timeout(60)?;
/// assert!(HcclCommConfig::new(ConfigVersion::V2).set_exec_timeout(60).is_err()); // would be ignored there
/// # Ok::<(), ascend_sys::sys::ConfigError>(())
/// ```
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HcclCommConfig {
    size: usize,
    magic: u32,
    version: u32,
    zero: u64,
    buffer_size: u32,
    deterministic: u32,
    comm_name: [c_char; 128],
    udi: [c_char; 128],
    op_expansion_mode: u32,
    rdma_traffic_class: u32,
    rdma_service_level: u32,
    world_rank_id: u32,
    job_id: u64,
    acl_graph_zero_copy: u8,
    pad_a: [u8; 3],
    exec_timeout: i32,
    algo: [c_char; 1600],
    retry_enable: [c_char; 50],
    retry_params: [c_char; 128],
    buffer_name: [c_char; 128],
    pad_b: [u8; 2],
    qos: u32,
    sym_win_max_mem_size_per_rank: u64,
    channel_sq_depth: u32,
    pad_c: [u8; 4],
}

const MAGIC: u32 = 0xf0f0_f0f0;
const UNSET: u32 = 0xffff_ffff;

#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<HcclCommConfig>() == 2248 && align_of::<HcclCommConfig>() == 8);
    assert!(offset_of!(HcclCommConfig, size) == 0 && offset_of!(HcclCommConfig, magic) == 8);
    assert!(offset_of!(HcclCommConfig, version) == 12 && offset_of!(HcclCommConfig, zero) == 16);
    assert!(offset_of!(HcclCommConfig, buffer_size) == 24 && offset_of!(HcclCommConfig, deterministic) == 28);
    // Each version ends where the first field of the next begins, rounded up to the alignment it had.
    assert!(offset_of!(HcclCommConfig, comm_name) == ConfigVersion::V1.size);
    assert!(offset_of!(HcclCommConfig, udi) == ConfigVersion::V2.size);
    assert!(offset_of!(HcclCommConfig, op_expansion_mode) == 288);
    assert!(offset_of!(HcclCommConfig, rdma_traffic_class) == 292);
    assert!(offset_of!(HcclCommConfig, rdma_service_level) == 296);
    assert!(offset_of!(HcclCommConfig, world_rank_id) == ConfigVersion::V5.size);
    assert!(offset_of!(HcclCommConfig, job_id) == 304);
    assert!(offset_of!(HcclCommConfig, acl_graph_zero_copy) == ConfigVersion::V6.size);
    assert!(offset_of!(HcclCommConfig, exec_timeout) == 316 && offset_of!(HcclCommConfig, algo) == 320);
    assert!(offset_of!(HcclCommConfig, retry_enable) == 1920 && offset_of!(HcclCommConfig, retry_params) == 1970);
    assert!(offset_of!(HcclCommConfig, buffer_name) == 2098);
    assert!(offset_of!(HcclCommConfig, buffer_name).next_multiple_of(8) == ConfigVersion::V8.size);
    assert!(offset_of!(HcclCommConfig, qos) == 2228);
    assert!(offset_of!(HcclCommConfig, qos).next_multiple_of(8) == ConfigVersion::V9.size);
    assert!(offset_of!(HcclCommConfig, sym_win_max_mem_size_per_rank) == 2232);
    assert!(offset_of!(HcclCommConfig, channel_sq_depth) == ConfigVersion::V10.size);
    assert!(size_of::<HcclCommConfig>() == ConfigVersion::V11.size);
};

macro_rules! number_setters {
    ($($(#[$meta:meta])* $set:ident, $field:ident: $ty:ty, since $since:literal, $range:expr, $allowed:literal;)*) => {$(
        $(#[$meta])*
        ///
        /// # Errors
        /// When the number is out of range or the library's version has no such field.
        pub fn $set(&mut self, value: $ty) -> Result<(), ConfigError> {
            self.require(stringify!($field), $since)?;
            if !$range.contains(&value) {
                let value = i64::try_from(value).unwrap_or(i64::MAX);
                return Err(ConfigError::Range { field: stringify!($field), value, allowed: $allowed });
            }
            self.$field = value;
            Ok(())
        }
    )*};
}

macro_rules! text_setters {
    ($($(#[$meta:meta])* $set:ident, $field:ident, since $since:literal;)*) => {$(
        $(#[$meta])*
        ///
        /// # Errors
        /// When the text does not fit or the library's version has no such field.
        pub fn $set(&mut self, text: &str) -> Result<(), ConfigError> {
            self.require(stringify!($field), $since)?;
            write_text(&mut self.$field, text, stringify!($field))
        }
    )*};
}

impl HcclCommConfig {
    /// A configuration with every setting unset, announced in the given version.
    #[must_use]
    pub const fn new(version: ConfigVersion) -> Self {
        Self {
            size: version.size,
            magic: MAGIC,
            version: version.number,
            zero: 0,
            buffer_size: UNSET,
            deterministic: UNSET,
            comm_name: [0; 128],
            udi: [0; 128],
            op_expansion_mode: 0,
            rdma_traffic_class: UNSET,
            rdma_service_level: UNSET,
            world_rank_id: 0,
            job_id: 0,
            acl_graph_zero_copy: 0,
            pad_a: [0; 3],
            exec_timeout: -1,
            algo: [0; 1600],
            retry_enable: [0; 50],
            retry_params: [0; 128],
            buffer_name: [0; 128],
            pad_b: [0; 2],
            qos: UNSET,
            sym_win_max_mem_size_per_rank: 16,
            channel_sq_depth: UNSET,
            pad_c: [0; 4],
        }
    }

    /// The version this configuration is announced in.
    #[must_use]
    pub const fn version(&self) -> ConfigVersion {
        ConfigVersion { number: self.version, size: self.size }
    }

    number_setters! {
        /// MB of each of the communicator's two buffers (`HCCL_BUFFSIZE`).
        set_buffer_size, buffer_size: u32, since 1, (1..UNSET), "1 MB or more";
        /// 0 off, 1 the same bits run by run, 2 also a fixed order (`HCCL_DETERMINISTIC`).
        set_deterministic, deterministic: u32, since 1, (0..=2), "0, 1 or 2";
        /// 0 default, 1 host, 2 AI CPU, 3 AIV, 4 AIV only, 5 CCU_MS, 6 CCU_SCHED (`HCCL_OP_EXPANSION_MODE`).
        set_op_expansion_mode, op_expansion_mode: u32, since 4, (0..=6), "0 to 6";
        /// The RDMA traffic class (`HCCL_RDMA_TC`), a multiple of four.
        set_rdma_traffic_class, rdma_traffic_class: u32, since 5, TrafficClass, "a multiple of 4 up to 252";
        /// The RDMA service level (`HCCL_RDMA_SL`).
        set_rdma_service_level, rdma_service_level: u32, since 5, (0..=7), "0 to 7";
        /// This process's rank in the whole job, for the logs.
        set_world_rank_id, world_rank_id: u32, since 6, (0..=u32::MAX), "any number";
        /// The job's number, for the logs.
        set_job_id, job_id: u64, since 6, (0..=u64::MAX), "any number";
        /// Whole seconds an operation may wait for its peers (`HCCL_EXEC_TIMEOUT`); 0 waits for ever.
        set_exec_timeout, exec_timeout: i32, since 8, (0..=i32::MAX), "0 s or more";
        /// The quality of service class.
        set_qos, qos: u32, since 10, (0..UNSET), "any number below 0xffffffff";
        /// GB of address space each rank keeps for symmetric memory.
        set_sym_win_max_mem_size_per_rank, sym_win_max_mem_size_per_rank: u64, since 10, (1..=u64::MAX), "1 GB or more";
        /// The depth of a channel's send queue.
        set_channel_sq_depth, channel_sq_depth: u32, since 11, (1..UNSET), "1 or more";
    }

    text_setters! {
        /// The communicator's name, in logs and for `HcclCommGetHandleWithName`.
        set_comm_name, comm_name, since 2;
        /// A text of the caller's, for the logs.
        set_udi, udi, since 3;
        /// The algorithm (`HCCL_ALGO`).
        set_algo, algo, since 8;
        /// Where operations are run again (`HCCL_OP_RETRY_ENABLE`).
        set_retry_enable, retry_enable, since 8;
        /// How often and when (`HCCL_OP_RETRY_PARAMS`).
        set_retry_params, retry_params, since 8;
        /// The name of buffers to share with other communicators.
        set_buffer_name, buffer_name, since 9;
    }

    const fn require(&self, field: &'static str, since: u32) -> Result<(), ConfigError> {
        if self.version < since {
            return Err(ConfigError::TooOld { field, since, version: self.version });
        }
        Ok(())
    }
}

impl fmt::Debug for HcclCommConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HcclCommConfig")
            .field("version", &self.version)
            .field("size", &self.size)
            .field("comm_name", &super::text_of(&self.comm_name))
            .field("buffer_size", &self.buffer_size)
            .field("exec_timeout", &self.exec_timeout)
            .finish_non_exhaustive()
    }
}

struct TrafficClass;

impl TrafficClass {
    fn contains(self, value: &u32) -> bool {
        *value <= 255 && value.is_multiple_of(4)
    }
}

fn write_text(into: &mut [c_char], text: &str, field: &'static str) -> Result<(), ConfigError> {
    let max = into.len() - 1;
    if text.len() > max || text.contains('\0') {
        return Err(ConfigError::Text { field, len: text.len(), max });
    }
    into.fill(0);
    for (place, byte) in into.iter_mut().zip(text.bytes()) {
        *place = c_char::from_ne_bytes([byte]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_follows_the_capability_and_never_exceeds_it() {
        let picked: Vec<u32> = (0..14).map(|c| ConfigVersion::for_capability(c).number()).collect();
        assert_eq!(picked, [1, 1, 1, 2, 5, 5, 5, 6, 6, 6, 6, 8, 9, 9]);
    }

    #[test]
    fn sizes_grow_with_versions_and_stay_inside_the_struct() {
        for pair in ConfigVersion::ALL.windows(2) {
            assert!(pair[0].number() < pair[1].number() && pair[0].size() < pair[1].size());
        }
        assert_eq!(ConfigVersion::V11.size(), size_of::<HcclCommConfig>());
    }

    #[test]
    fn a_setting_the_library_would_ignore_is_an_error() {
        let mut config = HcclCommConfig::new(ConfigVersion::V5);
        let error = config.set_exec_timeout(30).unwrap_err();
        assert_eq!(error, ConfigError::TooOld { field: "exec_timeout", since: 8, version: 5 });
        assert!(error.to_string().contains("needs version 8"), "{error}");
        assert_eq!(config.exec_timeout, -1);
        config.set_rdma_service_level(7).unwrap();
        assert_eq!(config.rdma_service_level, 7);
    }

    #[test]
    fn texts_that_do_not_fit_and_numbers_out_of_range_are_refused() {
        let mut config = HcclCommConfig::new(ConfigVersion::V11);
        let long = "n".repeat(128);
        assert_eq!(config.set_comm_name(&long), Err(ConfigError::Text { field: "comm_name", len: 128, max: 127 }));
        config.set_comm_name(&long[1..]).unwrap();
        assert_eq!(super::super::text_of(&config.comm_name), long[1..]);
        config.set_comm_name("ab").unwrap();
        assert_eq!(super::super::text_of(&config.comm_name), "ab");
        assert!(config.set_comm_name("a\0b").is_err());
        assert!(config.set_buffer_size(0).is_err());
        assert!(config.set_rdma_traffic_class(130).is_err());
        config.set_rdma_traffic_class(132).unwrap();
        assert!(config.set_exec_timeout(-2).unwrap_err().to_string().contains("is -2"));
    }
}
