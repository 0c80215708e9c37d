//! `hccl bench` with real ranks: processes, threads, and a world that a launcher made.
#![cfg(target_os = "linux")]

use std::process::{Command, Stdio};
use std::time::Duration;

/// Exit code, stdout and stderr of `hccl` with these arguments; a hang fails the test.
fn hccl(args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hccl"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    let (done, watch) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let hung = watch.recv_timeout(Duration::from_secs(120)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
        if hung {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        hung
    });
    let output = child.wait_with_output().unwrap();
    drop(done);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(!watchdog.join().unwrap(), "{args:?} hung; it had said: {}", text(&output.stderr));
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

const QUICK: [&str; 4] = ["--sizes", "8,5000", "--iters", "3"];

#[test]
fn processes_report_csv_in_the_columns_of_the_protocol() {
    let mut args = vec!["bench", "all", "--ranks", "2", "--csv", "--check"];
    args.extend(QUICK);
    let (code, out, err) = hccl(&args);
    assert_eq!(code, Some(0), "{err}");
    let mut lines = out.lines();
    assert_eq!(lines.next(), Some("peer,op,ranks,bytes,median_us,p99_us,p10_us,b2b_us"));
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    let names = [
        "allreduce_f32",
        "reduce_f32",
        "bcast",
        "allgather",
        "reduce_scatter_f32",
        "scatter",
        "gather",
        "alltoall",
        "pingpong_half",
    ];
    let expected: Vec<(&str, &str)> =
        names.into_iter().flat_map(|name| [(name, "8"), (name, "5000")]).chain([("barrier", "0")]).collect();
    assert_eq!(rows.iter().map(|row| (row[1], row[3])).collect::<Vec<_>>(), expected);
    for row in &rows {
        assert_eq!((row.len(), row[0], row[2]), (8, "hccl", "2"));
        let times: Vec<f64> = row[4..].iter().map(|time| time.parse().unwrap()).collect();
        assert!(times.iter().all(|time| *time > 0.0) && times[2] <= times[0] && times[0] <= times[1], "{row:?}");
    }
}

#[test]
fn threads_report_json() {
    let mut args = vec!["bench", "all-reduce", "reduce-scatter", "--threads", "-n", "3", "--json", "--check"];
    args.extend(["--dtype", "bf16", "--op", "avg", "--buffers", "slice", "--in-place"]);
    args.extend(QUICK);
    let (code, out, err) = hccl(&args);
    assert_eq!(code, Some(0), "{err}");
    let rows: serde_json::Value = serde_json::from_str(&out).unwrap();
    let rows = rows.as_array().unwrap();
    let facts =
        |row: &serde_json::Value| (row["operation"].as_str().unwrap().to_owned(), row["bytes"].as_u64().unwrap());
    let expected = [("all-reduce", 8), ("all-reduce", 5000), ("reduce-scatter", 6), ("reduce-scatter", 4998)];
    assert_eq!(rows.iter().map(facts).collect::<Vec<_>>(), expected.map(|(name, bytes)| (name.to_owned(), bytes)));
    for row in rows {
        assert_eq!(
            (&row["ranks"], &row["dtype"], &row["op"], &row["wrong"]),
            (&3.into(), &"bf16".into(), &"avg".into(), &0.into())
        );
        assert!(row["median_us"].as_f64().unwrap() > 0.0 && row["busbw"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn every_type_and_operation_is_right() {
    for dtype in ["i8", "u16", "i32", "u64", "f16", "bf16", "f32", "f64"] {
        for op in ["sum", "prod", "min", "max"] {
            let args =
                ["bench", "all-reduce", "--threads", "-n", "3", "--sizes", "24,70000", "--iters", "1", "--check"];
            let (code, out, err) = hccl(&[&args[..], &["--dtype", dtype, "--op", op]].concat());
            assert_eq!((code, err.as_str()), (Some(0), ""), "{dtype} {op}: {out}");
            assert!(out.lines().skip(2).all(|line| line.ends_with(" 0")), "{dtype} {op}: {out}");
        }
    }
}

#[test]
fn a_launched_world_is_measured_as_it_is() {
    let mut args = vec!["run", "-n", "3", "--", env!("CARGO_BIN_EXE_hccl"), "bench", "broadcast", "--csv", "--check"];
    args.extend(QUICK);
    let (code, out, err) = hccl(&args);
    assert_eq!(code, Some(0), "{err}");
    let rows: Vec<&str> = out.lines().map(|line| line.strip_prefix("[rank 0] ").unwrap()).collect();
    assert_eq!(rows.len(), 3);
    assert!(rows[1].starts_with("hccl,bcast,3,8,") && rows[2].starts_with("hccl,bcast,3,5000,"), "{out}");

    let bench = ["run", "-n", "2", "--", env!("CARGO_BIN_EXE_hccl"), "bench"];
    for (flags, said) in [(&["--ranks", "3"][..], "--ranks 3: the launcher started 2"), (&["--threads"], "--threads: ")]
    {
        let (code, _, err) = hccl(&[&bench[..], flags].concat());
        assert!(code == Some(2) && err.contains(said), "{flags:?}: {code:?} {err}");
    }
}

#[test]
fn the_table_and_the_picture_show_every_point() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bandwidth.svg");
    let mut args = vec!["bench", "all-reduce", "barrier", "--threads", "--check", "--plot", path.to_str().unwrap()];
    args.extend(QUICK);
    let (code, out, err) = hccl(&args);
    assert_eq!(code, Some(0), "{err}");
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("# all-reduce: 2 threads, device buffers"), "{out}");
    let columns: Vec<&str> = lines[1].split_whitespace().collect();
    assert_eq!(columns, ["bytes", "count", "type", "op", "median", "p99", "algbw", "busbw", "wrong"]);
    let row: Vec<&str> = lines[3].split_whitespace().collect();
    assert_eq!((row.len(), row[0], row[1], row[2], row[3], row[8]), (9, "5000", "1250", "f32", "sum", "0"));
    assert!(lines[5].starts_with("# barrier") && lines.len() == 8, "{out}");
    let svg = std::fs::read_to_string(path).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("\nall-reduce\n"));
}

#[test]
fn flags_that_cannot_be_obeyed_are_named() {
    for (flags, said) in [
        (&["--op", "avg", "--dtype", "i32"][..], "--op avg: i32 has no average"),
        (&["--dtype", "bool"], "unknown dtype"),
        (&["--op", "mean"], "operations are sum, prod, min, max and avg"),
        (&["--sizes", "8,many"], "as 8, 64K, 1M or 1G"),
        (&["--min", "2K", "--max", "1K"], "--min 2048 --max 1024"),
        (&["--sizes", "8", "--max", "1K"], "--max"),
        (&["--factor", "1"], "--factor"),
        (&["--iters", "0"], "iterations are auto, or from 1"),
        (&["--time=-1"], "seconds are a number from 0 to 3600"),
        (&["--ranks", "0"], "--ranks"),
        (&["--csv", "--json"], "--json"),
        (&["--name", "a,b"], "--name"),
        (&["--plot", "/no/such/folder/x.svg"], "--plot /no/such/folder/x.svg"),
        (&["send-recv", "--ranks", "1"], "send-recv needs 2 ranks"),
        (&["all-broadcast"], "all-broadcast"),
    ] {
        let (code, out, err) = hccl(&[&["bench"], flags].concat());
        assert!(code == Some(2) && out.is_empty() && err.contains(said), "{flags:?}: {code:?} {err}");
    }
}

#[test]
fn a_world_of_one_is_measured_too() {
    let (code, out, err) = hccl(&["bench", "all", "--ranks", "1", "--sizes", "64", "--iters", "2", "--check", "--csv"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.lines().count() == 10 && !out.contains("pingpong"), "{out}");
}
