//! Where memory lives: [`Device`].
//!
//! A communicator is on one device, chosen with [`Builder::device`](crate::Builder::device); its buffers live there.
//!
//! ```
//! use hccl::{Device, DeviceBuffer};
//! let buf = DeviceBuffer::from_slice(Device::Cpu, &[1.0f32, 2.0])?;
//! assert_eq!(buf.device(), Device::Cpu);
//! # Ok::<(), hccl::Error>(())
//! ```

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
    /// The Ascend NPU with this logical number, reached through AscendCL and HCCL, which are looked for when the first
    /// buffer or communicator is made there. Linux only.
    Npu(u32),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("CPU"),
            Device::Npu(index) => write!(f, "NPU {index}"),
        }
    }
}
