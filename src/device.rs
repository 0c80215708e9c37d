//! Where memory lives: [`Device`].
//!
//! ```
//! use hccl::{Device, DeviceBuffer};
//! let buf = DeviceBuffer::from_slice(Device::Cpu, &[1.0f32, 2.0])?;
//! assert_eq!(buf.device(), Device::Cpu);
//! assert!(DeviceBuffer::<f32>::zeros(Device::Npu(0), 4).unwrap_err().to_string().contains("NPU 0"));
//! # Ok::<(), hccl::Error>(())
//! ```

use crate::error::{Error, ErrorKind, Result};
use std::fmt;

/// The home of a [`DeviceBuffer`](crate::DeviceBuffer).
///
/// ```
/// use hccl::{Device, ErrorKind};
/// assert_eq!(Device::default().to_string(), "CPU");
/// let refused = hccl::DeviceBuffer::<f32>::zeros(Device::Npu(1), 8).unwrap_err();
/// assert!(matches!(refused.kind(), ErrorKind::Unsupported { what } if what.contains("NPU 1")));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// Memory of the host, which peers on this host reach without a copy.
    #[default]
    Cpu,
    /// The Ascend NPU with this logical number. No backend of this build reaches one: making a buffer there is refused.
    Npu(u32),
}

impl Device {
    /// Refuses devices that no backend of this build reaches.
    pub(crate) fn check(self) -> Result<()> {
        match self {
            Device::Cpu => Ok(()),
            Device::Npu(_) => Err(Error::new(ErrorKind::Unsupported { what: format!("memory on {self}") })
                .hint("this build has the CPU backend only: use Device::Cpu")),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("CPU"),
            Device::Npu(index) => write!(f, "NPU {index}"),
        }
    }
}
