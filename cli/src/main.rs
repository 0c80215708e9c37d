//! The `hccl` command: `hccl run -n 4 -- program args` starts the ranks of one host, `hccl doctor` looks at the machine,
//! `hccl bench` measures.

#[cfg(target_os = "linux")]
mod bench;
#[cfg(target_os = "linux")]
mod bench_pipeline;
#[cfg(target_os = "linux")]
mod doctor;
#[cfg(target_os = "linux")]
mod run;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    use clap::Parser;
    match Cli::parse().command {
        Command::Run(args) => run::run(args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Bench(args) => bench::run(*args),
    }
}

#[cfg(target_os = "linux")]
#[derive(clap::Parser)]
#[command(name = "hccl", version, about = "Typed collective communication for Rust machine learning")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[cfg(target_os = "linux")]
#[derive(clap::Subcommand)]
enum Command {
    Run(run::Run),
    Doctor(doctor::Doctor),
    Bench(Box<bench::Bench>),
}

#[cfg(not(target_os = "linux"))]
#[expect(clippy::print_stderr, reason = "a command says what it cannot do")]
fn main() -> std::process::ExitCode {
    eprintln!("hccl: its commands need Linux; on this system ranks are threads (hccl::local)");
    std::process::ExitCode::from(2)
}
