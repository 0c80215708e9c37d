//! The flags. What a value may be is checked here, so that the message names its flag.

use std::path::PathBuf;

use candle_core::DType;
use clap::{Parser, ValueEnum, value_parser};
use hccl::launch::MAX_RANKS;
use hccl_candle::Wire;

use crate::data::{MAX_IMAGE_SIZE, Normalize, Place};

/// Train a ResNet-50 on images, data-parallel over ranks
///
/// Without a flag for it the images are the Fashion-MNIST test set inside this program: 9,000 for training, 1,000 for the
/// test, padded to 32x32 pixels. The program starts its own ranks; under `hccl run`, torchrun, mpirun or srun it is one.
#[derive(Clone, Debug, Parser)]
#[command(name = "resnet50", version, args_override_self = true)]
pub(crate) struct Args {
    /// Ranks to start, each a process of its own [default: 1, this process]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=MAX_RANKS as u64))]
    pub(crate) ranks: Option<u64>,

    /// How often to go through the training images
    #[arg(long, value_name = "E", default_value_t = 2, value_parser = value_parser!(u64).range(1..))]
    pub(crate) epochs: u64,

    /// Take S optimizer steps instead of counting epochs
    #[arg(long, value_name = "S", value_parser = value_parser!(u64).range(1..))]
    pub(crate) steps: Option<u64>,

    /// Images a rank and batch
    #[arg(long, value_name = "B", default_value_t = 32, value_parser = value_parser!(u64).range(1..=65_536))]
    pub(crate) batch: u64,

    /// Folder of IDX files: train-* and t10k-*, plain or gzipped
    #[arg(long, value_name = "DIR", conflicts_with = "images")]
    pub(crate) data: Option<PathBuf>,

    /// Folder of PNG and JPEG images: one folder a class, or train/ and test/ with one folder a class
    #[arg(long, value_name = "DIR")]
    pub(crate) images: Option<PathBuf>,

    /// Side of the images in pixels [default: 32, or as stored if larger; 64 with --images]
    #[arg(long, value_name = "P", value_parser = value_parser!(u64).range(1..=MAX_IMAGE_SIZE as u64))]
    pub(crate) image_size: Option<u64>,

    /// Order of the training images: a new one each epoch, or as stored
    #[arg(long, value_enum, default_value = "shuffled")]
    pub(crate) order: OrderArg,

    /// What the network sees of a pixel
    #[arg(long, value_enum, default_value = "mean-std")]
    pub(crate) normalize: Normalize,

    /// Use the first N training images only
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    pub(crate) train_samples: Option<u64>,

    /// Use the first N test images only
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    pub(crate) test_samples: Option<u64>,

    /// Start from these weights, named as torchvision names them
    #[arg(long, value_name = "FILE.safetensors")]
    pub(crate) init: Option<PathBuf>,

    /// Type of weights and activations
    #[arg(long, value_enum, default_value = "f32")]
    pub(crate) dtype: DTypeArg,

    /// Peak learning rate: reached in a line over the first tenth of the steps, then falling along a cosine to 0
    #[arg(long, value_name = "RATE", default_value_t = 0.025, allow_negative_numbers = true, value_parser = at_least_0)]
    pub(crate) lr: f64,

    /// Momentum of SGD
    #[arg(long, value_name = "M", default_value_t = 0.9, allow_negative_numbers = true, value_parser = below_1)]
    pub(crate) momentum: f64,

    /// Weight decay, of all parameters
    #[arg(long, value_name = "W", default_value_t = 1e-4, allow_negative_numbers = true, value_parser = at_least_0)]
    pub(crate) weight_decay: f64,

    /// Batches of each rank for one step
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = value_parser!(u64).range(1..=65_536))]
    pub(crate) accumulate: u64,

    /// Type in which gradients travel [default: that of --dtype]
    #[arg(long, value_enum)]
    pub(crate) wire: Option<WireArg>,

    /// Take BatchNorm statistics over the batches of all ranks
    #[arg(long)]
    pub(crate) sync_bn: bool,

    /// Threads of computation of each rank [default: RAYON_NUM_THREADS, else cores / ranks]
    #[arg(long, value_name = "T", value_parser = value_parser!(u64).range(1..=65_536))]
    pub(crate) threads_per_rank: Option<u64>,

    /// Write checkpoints to this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) checkpoint: Option<PathBuf>,

    /// Steps between two checkpoints; there is one after the last step too
    #[arg(long, value_name = "K", default_value_t = 100, requires = "checkpoint", value_parser = value_parser!(u64).range(1..))]
    pub(crate) checkpoint_every: u64,

    /// Continue from the newest checkpoint of the folder, bit for bit, if there is one
    #[arg(long, requires = "checkpoint")]
    pub(crate) resume: bool,

    /// Decides initial weights and order of the images
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub(crate) seed: u64,

    /// Write a line a step: step,loss,grad_norm,images_per_s,step_ms,sync_ms
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,

    /// Draw loss and throughput over the steps
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,

    /// Also run one rank, with as many threads and with all cores, and print the speed-up
    #[arg(long)]
    pub(crate) compare: bool,

    /// Write the throughput to this file, for `--compare`
    #[arg(long, hide = true)]
    pub(crate) speed_file: Option<PathBuf>,

    /// Measure the throughput and nothing else, for `--compare`
    #[arg(long, hide = true)]
    pub(crate) speed_only: bool,
}

impl Args {
    /// The flags as they were given.
    pub(crate) fn read() -> Args {
        let mut args = Args::parse();
        if args.speed_only {
            args = Args { csv: None, plot: None, checkpoint: None, resume: false, compare: false, ..args };
        }
        args
    }

    /// Number of ranks that this program shall start.
    pub(crate) fn ranks(&self) -> usize {
        self.ranks.unwrap_or(1) as usize
    }

    /// Images a rank and batch.
    pub(crate) fn batch(&self) -> usize {
        self.batch as usize
    }

    /// Where the images come from.
    pub(crate) fn place(&self) -> Place {
        match (&self.data, &self.images) {
            (Some(dir), _) => Place::Idx(dir.clone()),
            (None, Some(dir)) => Place::Images(dir.clone()),
            (None, None) => Place::BuiltIn,
        }
    }

    /// Type of weights and activations.
    pub(crate) fn dtype(&self) -> DType {
        match self.dtype {
            DTypeArg::F32 => DType::F32,
            DTypeArg::F64 => DType::F64,
        }
    }

    /// Type in which gradients travel.
    pub(crate) fn wire(&self) -> Wire {
        match self.wire {
            None => Wire::Native,
            Some(WireArg::F32) => Wire::F32,
            Some(WireArg::Bf16) => Wire::Bf16,
            Some(WireArg::F16) => Wire::F16,
        }
    }
}

/// `--order`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OrderArg {
    /// A new order each epoch, from the seed.
    Shuffled,
    /// As stored: rank r takes samples r*B to (r+1)*B of each global batch.
    Sequential,
}

/// `--dtype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DTypeArg {
    /// 32 bits.
    F32,
    /// 64 bits.
    F64,
}

/// `--wire`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WireArg {
    /// 32 bits.
    F32,
    /// 16 bits with the range of f32.
    Bf16,
    /// 16 bits with 11 bits of precision.
    F16,
}

fn number(text: &str, allowed: impl Fn(f64) -> bool, range: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if f64::is_finite(value) && allowed(value) => Ok(value),
        _ => Err(format!("must be a number, {range}")),
    }
}

fn at_least_0(text: &str) -> Result<f64, String> {
    number(text, |value| value >= 0.0, "0 or more")
}

fn below_1(text: &str) -> Result<f64, String> {
    number(text, |value| (0.0..1.0).contains(&value), "0 or more and less than 1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn refused(flags: &[&str]) -> String {
        let all = std::iter::once("resnet50").chain(flags.iter().copied());
        Args::try_parse_from(all).unwrap_err().to_string()
    }

    #[test]
    fn the_flags_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn what_is_refused_is_named() {
        let cases: [&[&str]; 16] = [
            &["--ranks", "0"],
            &["--ranks", "1025"],
            &["--epochs", "0"],
            &["--steps", "0"],
            &["--batch", "0"],
            &["--image-size", "2049"],
            &["--order", "random"],
            &["--normalize", "yes"],
            &["--dtype", "f16"],
            &["--lr", "-1"],
            &["--lr", "nan"],
            &["--momentum", "1"],
            &["--weight-decay", "inf"],
            &["--accumulate", "0"],
            &["--wire", "i8"],
            &["--threads-per-rank", "0"],
        ];
        for case in cases {
            let text = refused(case);
            assert!(text.contains(case[0]) && text.contains(case[1]), "{case:?}: {text}");
        }
        assert!(refused(&["--resume"]).contains("--checkpoint"));
        assert!(refused(&["--data", "a", "--images", "b"]).contains("--images"));
    }

    #[test]
    fn the_last_of_a_flag_counts() {
        let args = Args::try_parse_from(["resnet50", "--ranks", "4", "--steps", "9", "--ranks", "1"]).unwrap();
        assert_eq!((args.ranks(), args.steps, args.epochs), (1, Some(9), 2));
    }
}
