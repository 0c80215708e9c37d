//! `hccl bench pipeline`: plans against the clock, with stages that sleep.

use clap::{Args, ValueEnum};
use hccl::pipeline::{Costs, Flow, Plan, Rehearsal, Schedule, rehearse};
use std::process::ExitCode;
use std::time::Duration;

/// Runs pipeline schedules with sleeping stages and compares the time with the plan's.
///
/// Ranks are threads. They sleep instead of working, so that any number of ranks runs on any number of cores.
#[derive(Args)]
pub(crate) struct Bench {
    /// Ranks of the pipeline.
    #[arg(short = 'n', long, default_value_t = 4)]
    ranks: usize,
    /// Microbatches of a step; slots in a ring. [default: four a rank]
    #[arg(short, long)]
    microbatches: Option<usize>,
    /// Schedules to run; all when none is named.
    #[arg(short, long, value_enum)]
    schedule: Vec<Name>,
    /// Ticks of a stage's forward pass, of the input part and of the weight part of its backward pass.
    #[arg(long, value_delimiter = ',', num_args = 3, default_values_t = [1, 1, 1])]
    costs: Vec<u32>,
    /// Milliseconds a tick. Too short a tick measures the system's clock.
    #[arg(long, default_value = "5", value_name = "MS", value_parser = tick)]
    tick_ms: Duration,
    /// Rounds of the ring.
    #[arg(long, default_value_t = 4)]
    rounds: usize,
    /// Also prints the plan.
    #[arg(long)]
    plan: bool,
}

fn tick(text: &str) -> Result<Duration, String> {
    let tick = text.parse().ok().filter(|ms| (0.001..=10_000.0).contains(ms));
    tick.map(|ms: f64| Duration::from_secs_f64(ms / 1e3)).ok_or_else(|| "give milliseconds from 0.001 to 10000".into())
}

/// A schedule by name.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Name {
    Gpipe,
    OneFOneB,
    Interleaved,
    ZbH1,
    ZbV,
    FillDrain,
    Ring,
}

impl Bench {
    fn schedule(&self, name: Name) -> Schedule {
        match name {
            Name::Gpipe => Schedule::GPipe,
            Name::OneFOneB => Schedule::OneFOneB,
            Name::Interleaved => Schedule::Interleaved { chunks: 2 },
            Name::ZbH1 => Schedule::ZbH1,
            Name::ZbV => Schedule::ZbV,
            Name::FillDrain => Schedule::ForwardOnly(Flow::FillDrain),
            Name::Ring => Schedule::ForwardOnly(Flow::Ring { rounds: self.rounds }),
        }
    }

    fn rehearse(&self, name: Name) -> hccl::Result<(Plan, Rehearsal)> {
        let costs = match self.costs[..] {
            [forward, backward, weight] => Costs::new(forward, backward, weight),
            _ => Costs::default(),
        };
        let microbatches = self.microbatches.unwrap_or(4 * self.ranks);
        let plan = Plan::new(self.schedule(name), self.ranks, microbatches, costs)?;
        let tick = self.tick_ms;
        let ranks = hccl::local(self.ranks, |comm| rehearse(&comm, plan.clone(), tick))?;
        let rehearsal = ranks.first().copied().unwrap_or(Rehearsal { predicted: tick, measured: tick });
        Ok((plan, rehearsal))
    }
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "the table is what was asked for")]
pub(crate) fn run(bench: Bench) -> ExitCode {
    let all = Name::value_variants();
    let names = if bench.schedule.is_empty() { all } else { &bench.schedule };
    let mut code = ExitCode::SUCCESS;
    println!(
        "{:<16}{:>12}{:>14}{:>14}{:>9}{:>8}",
        "schedule", "microbatches", "predicted ms", "measured ms", "excess", "idle"
    );
    for &name in names {
        match bench.rehearse(name) {
            Ok((plan, rehearsal)) => {
                println!(
                    "{:<16}{:>12}{:>14.1}{:>14.1}{:>8.1}%{:>7.1}%",
                    plan.schedule().to_string(),
                    plan.microbatches(),
                    rehearsal.predicted.as_secs_f64() * 1e3,
                    rehearsal.measured.as_secs_f64() * 1e3,
                    rehearsal.excess() * 100.0,
                    plan.timeline().bubble().of_total() * 100.0
                );
                if bench.plan {
                    println!("{}", plan.to_text());
                }
            }
            Err(error) => {
                eprintln!("hccl bench pipeline: {error}");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}
