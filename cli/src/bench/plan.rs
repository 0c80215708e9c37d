//! What is measured: flags, checked.

use std::path::PathBuf;
use std::str::FromStr;

use hccl::{DType, OpKind};

use super::operation::Operation;
use super::{Bench, BuffersArg, Problem, Which};

/// Most bytes of a buffer.
const MOST: u64 = 1 << 40;

/// Everything that all ranks must agree on, and how rank 0 reports.
pub(crate) struct Plan {
    pub(crate) operations: Vec<Operation>,
    /// True when send-recv was asked for by name.
    needs_pair: bool,
    /// Ascending, each once.
    pub(crate) sizes: Vec<u64>,
    pub(crate) dtype: DType,
    pub(crate) op: OpKind,
    pub(crate) slices: bool,
    pub(crate) in_place: bool,
    pub(crate) iterations: Iterations,
    /// Seconds of timed calls of a point.
    pub(crate) seconds: f64,
    pub(crate) check: bool,
    pub(crate) format: Format,
    pub(crate) plot: Option<PathBuf>,
    pub(crate) name: String,
    pub(crate) threads: bool,
}

/// How the points are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Table,
    Csv,
    Json,
}

impl Plan {
    /// # Errors
    /// For flags that contradict each other, naming them.
    pub(crate) fn of(args: Bench) -> Result<Plan, Problem> {
        let mut operations = Vec::new();
        for operation in args.operations.iter().flat_map(|which| which.operations()) {
            if !operations.contains(&operation) {
                operations.push(operation);
            }
        }
        if args.op == OpKind::Avg && !args.dtype.is_float() {
            let dtype = args.dtype;
            return Err(Problem::flag(format!("--op avg: {dtype} has no average; take f16, bf16, f32 or f64")));
        }
        if args.name.contains([',', '\n']) {
            return Err(Problem::flag(format!("--name {:?}: a name in a CSV file has no comma", args.name)));
        }
        if let Some(path) = &args.plot {
            super::plot::check(path)?;
        }
        let format = match (args.csv, args.json) {
            (true, _) => Format::Csv,
            (_, true) => Format::Json,
            _ => Format::Table,
        };
        Ok(Plan {
            needs_pair: args.operations.contains(&Which::SendRecv),
            operations,
            sizes: sizes(&args)?,
            dtype: args.dtype,
            op: args.op,
            slices: args.buffers == BuffersArg::Slice,
            in_place: args.in_place,
            iterations: args.iters,
            seconds: args.time,
            check: args.check,
            format,
            plot: args.plot,
            name: args.name,
            threads: args.threads,
        })
    }

    /// # Errors
    /// When an operation was asked for that this many ranks cannot do.
    pub(crate) fn check_ranks(&self, ranks: usize) -> Result<(), Problem> {
        if self.needs_pair && ranks < 2 {
            return Err(Problem::flag("send-recv needs 2 ranks: --ranks 2"));
        }
        Ok(())
    }
}

fn sizes(args: &Bench) -> Result<Vec<u64>, Problem> {
    let (min, max) = (args.min.0, args.max.0);
    let mut sizes: Vec<u64> = args.sizes.iter().map(|size| size.0).collect();
    if sizes.is_empty() {
        if min == 0 || min > max {
            return Err(Problem::flag(format!("--min {min} --max {max}: sizes go from at least 1 up to --max")));
        }
        let next = |size: &u64| size.checked_mul(args.factor).filter(|next| *next <= max);
        sizes = std::iter::successors(Some(min), next).collect();
    }
    sizes.sort_unstable();
    sizes.dedup();
    Ok(sizes)
}

/// A number of bytes, as `8`, `64K`, `1MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let shift = match text[digits..].to_ascii_uppercase().as_str() {
            "" | "B" => Some(0),
            "K" | "KIB" => Some(10),
            "M" | "MIB" => Some(20),
            "G" | "GIB" => Some(30),
            _ => None,
        };
        let number = text[..digits].parse::<u64>().ok();
        let bytes = number.zip(shift).and_then(|(number, shift)| number.checked_mul(1 << shift));
        let bytes = bytes.filter(|bytes| *bytes <= MOST);
        bytes.map(Size).ok_or_else(|| "a size is a number of bytes up to 1024G, as 8, 64K, 1M or 1G".to_owned())
    }
}

/// How many timed calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Iterations {
    Auto,
    Exactly(usize),
}

impl FromStr for Iterations {
    type Err = String;

    fn from_str(text: &str) -> Result<Iterations, String> {
        if text == "auto" {
            return Ok(Iterations::Auto);
        }
        let count = text.parse().ok().filter(|count| (1..=10_000_000).contains(count));
        count.map(Iterations::Exactly).ok_or_else(|| "iterations are auto, or from 1 to 10000000".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        let read = |text: &str| text.parse::<Size>().ok().map(|size| size.0);
        assert_eq!(["8", "3B", "1K", "64KiB", "5m", "2G"].map(read), [8, 3, 1024, 65536, 5 << 20, 2 << 30].map(Some));
        assert_eq!(["", "K", "1T", "-1", "1.5M", "1025G", "99999999999999999999"].map(read), [None; 7]);
    }

    #[test]
    fn iterations_are_a_count_or_auto() {
        assert_eq!("auto".parse(), Ok(Iterations::Auto));
        assert_eq!("12".parse(), Ok(Iterations::Exactly(12)));
        assert!(["0", "", "many", "10000001"].iter().all(|text| text.parse::<Iterations>().is_err()));
    }
}
