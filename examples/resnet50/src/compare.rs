//! `--compare`: the run itself, then one rank in its place, with as many threads as each of its ranks and with all cores.

use std::ffi::OsString;

use hccl::launch::Launch;

use crate::failure::Result;
use crate::job::Job;
use crate::report::{Speed, speed_up_table};
use crate::speed::{Mailbox, Measured};

/// The other runs take the images of as many steps of the run as there are, but of no more than this.
const STEPS: u64 = 40;

/// Runs all of them; the exit code, and the table where all went well. `launch` starts this program on so many ranks.
///
/// # Errors
/// Those of starting ranks and of passing figures.
pub(crate) fn run(job: &Job, launch: &dyn Fn(usize) -> Result<Launch>) -> Result<(u8, Option<String>)> {
    let mut speeds = Vec::new();
    let mut threads = 0;
    for other in others(job) {
        let threads_of = match other.same_threads {
            Some(true) => Some(threads),
            Some(false) => Some(cores()),
            None => job.args.threads_per_rank.map(|threads| threads as usize),
        };
        let mailbox = Mailbox::new()?;
        let flags = other.flags.into_iter().chain(["--speed-file".into(), mailbox.path().into()]);
        let threads_flag = threads_of.map(|threads| ["--threads-per-rank".into(), threads.to_string().into()]);
        let flags = flags.chain(threads_flag.into_iter().flatten());
        let outcome = launch(other.ranks)?.args(flags).threads_per_rank(threads_of).run()?;
        if !outcome.is_success() {
            return Ok((outcome.code(), None));
        }
        let measured = mailbox.read()?;
        threads = if speeds.is_empty() { measured.threads } else { threads };
        speeds.push(speed(other.label, other.ranks, measured));
    }
    Ok((0, Some(speed_up_table(&speeds))))
}

/// One of the runs.
struct Other {
    label: String,
    ranks: usize,
    /// Of a run in place of the run itself: whether it has as many threads as a rank of that, or as cores.
    same_threads: Option<bool>,
    flags: Vec<OsString>,
}

/// The run itself first.
fn others(job: &Job) -> Vec<Other> {
    let (ranks, batch) = (job.world, job.args.batch);
    let steps = job.steps.min(STEPS);
    let flags = |steps: u64, batch: u64| {
        let flags =
            ["--speed-only".to_owned(), "--ranks=1".to_owned(), format!("--steps={steps}"), format!("--batch={batch}")];
        flags.map(OsString::from).to_vec()
    };
    let whole = ranks as u64 * batch;
    vec![
        Other { label: "this run".into(), ranks, same_threads: None, flags: Vec::new() },
        Other {
            label: format!("same threads, batch {batch}"),
            ranks: 1,
            same_threads: Some(true),
            flags: flags(steps * ranks as u64, batch),
        },
        Other {
            label: format!("all cores, batch {whole}"),
            ranks: 1,
            same_threads: Some(false),
            flags: flags(steps, whole),
        },
    ]
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn speed(label: String, ranks: usize, measured: Measured) -> Speed {
    let Measured { images_per_s, step_ms, sync_share, threads } = measured;
    Speed { label, ranks, threads, images_per_s, step_ms, sync_share }
}
