//! The last words of a run, and the table of `--compare`.

use std::fmt::{self, Write};

/// How a run went.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Steps taken by this run.
    pub steps: u64,
    /// Duration of the training, in seconds.
    pub seconds: f64,
    /// Images of all ranks a second.
    pub images_per_s: f64,
    /// Share of the time spent waiting for synchronisation, 0 to 1.
    pub sync_share: f64,
    /// Test images whose class was found.
    pub correct: usize,
    /// Test images.
    pub tested: usize,
    /// Checksum of the parameters and buffers, one a rank.
    pub checksums: Vec<u64>,
}

impl Summary {
    /// Share of the test images whose class was found, 0 to 1.
    pub fn accuracy(&self) -> f64 {
        if self.tested == 0 { 0.0 } else { self.correct as f64 / self.tested as f64 }
    }

    /// Whether all ranks hold the same parameters.
    pub fn replicas_equal(&self) -> bool {
        self.checksums.windows(2).all(|pair| pair[0] == pair[1])
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steps, seconds, images_per_s, correct, tested, .. } = self;
        let sync = 100.0 * self.sync_share;
        let ranks = plural(self.checksums.len(), "rank");
        writeln!(f, "test accuracy {:.2} % ({correct} of {tested})", 100.0 * self.accuracy())?;
        writeln!(f, "{images_per_s:.1} images/s over {steps} steps on {ranks} in {seconds:.1} s, sync {sync:.1} %")?;
        match self.checksums.first() {
            Some(sum) if self.replicas_equal() => write!(f, "replica checksum equal on {ranks}: {sum:016x}"),
            _ => write!(f, "replica checksum DIFFERS: {}", by_rank(&self.checksums)),
        }
    }
}

/// One run of `--compare`.
#[derive(Clone, Debug, PartialEq)]
pub struct Speed {
    /// What is special about it, such as "same threads".
    pub label: String,
    /// Number of ranks.
    pub ranks: usize,
    /// Threads of each rank.
    pub threads: usize,
    /// Images of all ranks a second.
    pub images_per_s: f64,
    /// Mean duration of a step, in milliseconds.
    pub step_ms: f64,
    /// Share of the time spent waiting for synchronisation, 0 to 1.
    pub sync_share: f64,
}

/// The first run against each of the others: how many times its throughput, and how much of what its number of
/// threads would allow.
pub fn speed_up_table(runs: &[Speed]) -> String {
    let label = runs.iter().map(|run| run.label.chars().count()).max().unwrap_or(0).max(3);
    let mut table =
        format!("{:label$}  ranks  threads/rank   images/s   ms/step    sync  speed-up over it  efficiency\n", "run");
    for run in runs {
        let Speed { label: name, ranks, threads, images_per_s, step_ms, sync_share } = run;
        let (speed_up, efficiency) = gain(&runs[0], run);
        let sync = 100.0 * sync_share;
        // Writing to a String does not fail.
        let _ = writeln!(
            table,
            "{name:label$}  {ranks:>5}  {threads:>12}  {images_per_s:>9.1}  {step_ms:>8.1}  {sync:>4.1} %  {speed_up:>16}  {efficiency:>10}"
        );
    }
    table
}

fn gain(first: &Speed, other: &Speed) -> (String, String) {
    if std::ptr::eq(first, other) || other.images_per_s <= 0.0 {
        return ("-".to_owned(), "-".to_owned());
    }
    let speed_up = first.images_per_s / other.images_per_s;
    let threads = (first.ranks * first.threads) as f64 / (other.ranks * other.threads).max(1) as f64;
    (format!("{speed_up:.2}x"), format!("{:.0} %", 100.0 * speed_up / threads))
}

fn plural(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn by_rank(checksums: &[u64]) -> String {
    let each: Vec<String> = checksums.iter().enumerate().map(|(rank, sum)| format!("rank {rank} {sum:016x}")).collect();
    if each.is_empty() { "no rank reported one".to_owned() } else { each.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(checksums: &[u64]) -> Summary {
        Summary {
            steps: 450,
            seconds: 92.16,
            images_per_s: 312.5,
            sync_share: 0.031,
            correct: 832,
            tested: 1000,
            checksums: checksums.to_vec(),
        }
    }

    #[test]
    fn a_summary_says_accuracy_throughput_and_checksum() {
        assert_eq!(
            summary(&[0xab, 0xab]).to_string(),
            "test accuracy 83.20 % (832 of 1000)\n\
             312.5 images/s over 450 steps on 2 ranks in 92.2 s, sync 3.1 %\n\
             replica checksum equal on 2 ranks: 00000000000000ab"
        );
        assert!(summary(&[1]).to_string().ends_with("equal on 1 rank: 0000000000000001"));
    }

    #[test]
    fn replicas_that_drifted_are_named() {
        let drifted = summary(&[1, 1, 2]);
        assert!(!drifted.replicas_equal());
        let text = drifted.to_string();
        assert!(text.contains("DIFFERS: rank 0 0000000000000001, rank 1 0000000000000001, rank 2 0000000000000002"));
        assert!(summary(&[]).to_string().ends_with("DIFFERS: no rank reported one"));
    }

    #[test]
    fn the_table_compares_the_first_run_with_the_others() {
        let run = |label: &str, ranks, threads, images_per_s| Speed {
            label: label.to_owned(),
            ranks,
            threads,
            images_per_s,
            step_ms: 100.0,
            sync_share: 0.05,
        };
        let runs = [run("this run", 2, 1, 190.0), run("same threads", 1, 1, 100.0), run("all cores", 1, 2, 160.0)];
        let table = speed_up_table(&runs);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{table}");
        assert!(lines[1].ends_with("-           -"), "{table}");
        assert!(lines[2].contains("1.90x") && lines[2].ends_with("95 %"), "{table}");
        assert!(lines[3].contains("1.19x") && lines[3].ends_with("119 %"), "{table}");
        assert_eq!(speed_up_table(&[]).lines().count(), 1);
    }
}
