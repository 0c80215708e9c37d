//! `hccl bench pipeline`: a table of schedules, or an error that says what is wrong.
#![cfg(target_os = "linux")]

use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hccl")).args(["bench", "pipeline"]).args(arguments).output().unwrap()
}

#[test]
fn every_schedule_is_run_and_compared_with_its_plan() {
    let output = bench(&["-n", "2", "-m", "4", "--tick-ms", "1", "--plan"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for schedule in ["gpipe", "one_f_one_b", "interleaved(2)", "zb_h1", "zb_v", "fill_drain", "ring(rounds = 4)"] {
        let row = text.lines().find(|line| line.starts_with(&format!("{schedule} ")));
        let row: Vec<&str> = row.unwrap_or_else(|| panic!("no {schedule} in {text}")).split_whitespace().collect();
        let number = |from_the_end: usize| row[row.len() - from_the_end].parse::<f64>().unwrap();
        let (predicted, measured) = (number(4), number(3));
        assert!(predicted >= 5.0 && measured >= predicted, "{text}");
    }
    assert!(text.contains("rank 1 |"), "{text}");
}

#[test]
fn what_cannot_run_is_said() {
    let output = bench(&["-n", "4", "-m", "6", "--schedule", "interleaved"]);
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("interleaved(2) on 4 ranks cannot run 6 microbatches"), "{text}");
    let output = bench(&["--tick-ms", "0"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("milliseconds from 0.001 to 10000"));
}
