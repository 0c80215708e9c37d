//! Layers that candle lacks for training on CPU: fast backward passes, overlapping windows, synchronised statistics.
//!
//! | layer | why not candle's own |
//! | --- | --- |
//! | [`Conv2d`] | backward pass by matrix products; candle's does a scalar dot product per output pixel |
//! | [`MaxPool2d`] | candle has no backward pass for overlapping windows (`kernel != stride`) |
//! | [`BatchNorm2d`] | one fused operation; on request the statistics of all ranks together ([`StatsReduce`]) |
//! | [`relu`] | gradient 0 at 0 as in PyTorch (candle: 1) |
//! | [`global_avg_pool`] | one pass each way |
//!
//! The contract, for all of them:
//!
//! * Inputs are `N x C x H x W` on the CPU, f32 or f64. Any other dtype is refused by name, as is any other device.
//!   Views (transposed, narrowed, broadcast) are copied to contiguous memory first.
//! * Results and gradients do not depend on the number of threads: every sum has a fixed order.
//! * Threads: the calling thread's rayon pool, and only when candle's `get_num_threads()` (`RAYON_NUM_THREADS`) is
//!   above 1.
//! * Temporary memory comes from buffers that each thread keeps ([`trim_scratch`] frees the calling thread's).
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::{VarBuilder, VarMap};
//! use hccl_candle::nn::{BatchNorm2d, Conv2d, Conv2dConfig, MaxPool2d};
//!
//! let vars = VarMap::new();
//! let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
//! let halving = Conv2dConfig { stride: (2, 2), padding: (1, 1), ..Default::default() };
//! let conv = Conv2d::new(3, 8, 3, halving, vb.pp("conv"))?;
//! let norm = BatchNorm2d::new(8, vb.pp("norm"))?;
//! let pool = MaxPool2d::new(3, 2, 1)?;
//!
//! let images = Tensor::randn(0f32, 1.0, (2, 3, 9, 7), &Device::Cpu)?;
//! let y = pool.forward(&norm.forward_relu(&conv.forward(&images)?, true)?)?;
//! assert_eq!(y.dims(), [2, 8, 3, 2]);
//! assert!(y.sum_all()?.backward()?.get(conv.weight()).is_some());
//! # Ok::<(), candle_core::Error>(())
//! ```

mod activation;
mod batch_norm;
mod conv;
mod data;
mod im2col;
mod matrix;
mod pool;
mod scratch;
mod segments;
mod stats;

pub use activation::{add_relu, relu};
pub use batch_norm::{BatchNorm2d, BatchNormConfig};
pub use conv::{Conv2d, Conv2dConfig};
pub use pool::{MaxPool2d, global_avg_pool};
pub use scratch::trim_scratch;
pub use segments::SegmentedModel;
pub use stats::StatsReduce;
