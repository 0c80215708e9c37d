//! `hccl doctor`: looks at what collectives need on this machine, and says what to do about each problem.

mod ascend;
mod host;
mod network;
mod npu_smi;
mod report;
mod settings;
mod versions;

use std::process::ExitCode;

use clap::Args;

use report::Report;

/// Look at this machine: Ascend libraries, versions, devices, settings, network, memory
///
/// Each line is one finding: `ok`, `note` or `problem`, and a problem comes with what to do about it. The exit code is 0
/// when there is no problem, else 1. On a machine without Ascend it says so, and looks at what the CPU engine needs.
#[derive(Args)]
pub(crate) struct Doctor {
    /// Print one JSON object instead of lines
    #[arg(long)]
    json: bool,
}

/// Runs it; 0 when healthy.
#[expect(clippy::print_stdout, reason = "the report is the command's output")]
pub(crate) fn run(args: &Doctor) -> ExitCode {
    let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let mut report = Report::new();
    let chip = ascend::look(&mut report, &variable);
    settings::look(&mut report, chip, &std::env::vars_os().map(text).collect::<Vec<_>>());
    network::look(&mut report, &variable);
    host::look(&mut report);
    if args.json {
        println!("{}", report.to_json())
    } else {
        print!("{report}")
    }
    ExitCode::from(u8::from(!report.is_healthy()))
}

fn text((name, value): (std::ffi::OsString, std::ffi::OsString)) -> (String, String) {
    (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
}
