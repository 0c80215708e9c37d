//! `hccl run` with real processes: what is printed, what is returned, and that no process stays.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// `hccl run` with these arguments and then `sh -c script`. The launcher dies with the test.
fn hccl_run(args: &[&str], script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hccl"));
    command.arg("run").args(args).args(["--", "sh", "-c", script]);
    command.env_remove("RAYON_NUM_THREADS").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(args: &[&str], script: &str) -> Output {
    finish(hccl_run(args, script).spawn().unwrap())
}

/// Waits for the end of `child`, but not for ever: a launcher that hangs is killed and fails the test.
fn finish(child: Child) -> Output {
    let pid = pid_of(&child);
    let (done, watch) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let hung = watch.recv_timeout(Duration::from_secs(60)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
        if hung {
            let _ = kill_process(pid, Signal::KILL);
        }
        hung
    });
    let output = child.wait_with_output().unwrap();
    drop(done);
    assert!(!watchdog.join().unwrap(), "the launcher hung; it had said: {}", text(&output.stderr));
    output
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_child(child)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn last_line(bytes: &[u8]) -> String {
    text(bytes).lines().last().unwrap_or_default().to_owned()
}

/// Processes in whose environment `mark` stands, zombies left out.
fn marked(mark: &str) -> Vec<String> {
    let holds = |pid: &str| {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let zombie = fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "));
        !zombie && environ.split(|byte| *byte == 0).any(|entry| entry == format!("HCCL_TEST_MARK={mark}").as_bytes())
    };
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    pids.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()) && holds(name)).collect()
}

/// Waits until no marked process is left, which the launcher's own end must bring about.
#[track_caller]
fn assert_all_gone(mark: &str) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !marked(mark).is_empty() {
        assert!(Instant::now() < deadline, "still there: {:?}", marked(mark));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A launcher whose ranks have said their pids as `pid N`, in the order of saying.
struct Started {
    launcher: Child,
    pids: Vec<Pid>,
    out: BufReader<std::process::ChildStdout>,
}

/// Starts `ranks` ranks of `script` after each has said its pid; all are marked with `mark`.
fn start(args: &[&str], ranks: usize, mark: &str, script: &str) -> Started {
    let count = ranks.to_string();
    let args: Vec<&str> = args.iter().copied().chain(["-n", &count]).collect();
    let script = format!("{script} echo rank $HCCL_RANK pid $$; wait");
    let mut launcher = hccl_run(&args, &script).env("HCCL_TEST_MARK", mark).spawn().unwrap();
    let mut out = BufReader::new(launcher.stdout.take().unwrap());
    let mut pids = vec![None; ranks];
    for _ in 0..ranks {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["[rank", _, "rank", rank, "pid", pid] = words[..] else { panic!("{line:?}") };
        pids[rank.parse::<usize>().unwrap()] = Pid::from_raw(pid.parse().unwrap());
    }
    Started { launcher, pids: pids.into_iter().map(Option::unwrap).collect(), out }
}

/// Two processes a rank: the shell and a sleeping child of it that nobody waits for.
const SLEEPERS: &str = "sleep 1000 & sleep 1000 &";

#[test]
fn lines_of_ranks_are_whole_and_prefixed() {
    // Every line is written in three pieces, so that pieces of different ranks do meet.
    let script = "i=0; while [ $i -lt 200 ]; do printf a; printf \"$HCCL_RANK-$i\"; echo z; i=$((i+1)); done; \
                  echo err$HCCL_RANK >&2; printf tail$HCCL_RANK";
    let output = run(&["-n", "3"], script);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 3 * 201);
    for rank in 0..3 {
        let prefix = format!("[rank {rank}] ");
        let own: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix(&prefix)).collect();
        let expected: Vec<String> = (0..200).map(|i| format!("a{rank}-{i}z")).chain([format!("tail{rank}")]).collect();
        assert_eq!(own, expected);
    }
    let errors: BTreeSet<String> = text(&output.stderr).lines().map(str::to_owned).collect();
    assert_eq!(errors, (0..3).map(|rank| format!("[rank {rank}] err{rank}")).collect());
}

#[test]
fn long_lines_and_odd_bytes_come_through() {
    let output =
        run(&["-n", "1"], r"head -c 200000 /dev/zero | tr '\0' x; echo; printf '\377\376\n'; printf '1%%\r2%%\r\n'");
    let lines: Vec<&[u8]> = output.stdout.split(|byte| *byte == b'\n').collect();
    let long: Vec<u8> = lines[..4].iter().flat_map(|line| line.strip_prefix(b"[rank 0] ").unwrap().to_vec()).collect();
    assert!(long.len() == 200_000 && long.iter().all(|byte| *byte == b'x'));
    assert_eq!(lines[4..], [&b"[rank 0] \xff\xfe"[..], b"[rank 0] 1%", b"[rank 0] 2%\r", b""]);
}

#[test]
fn ranks_learn_who_they_are() {
    let script = "echo $HCCL_RANK/$HCCL_WORLD_SIZE $HCCL_LOCAL_RANK/$HCCL_LOCAL_WORLD_SIZE $HCCL_GENERATION $HCCL_JOB_ID; \
                  readlink /proc/self/fd/0";
    let (first, second) = (run(&["-n", "2"], script), run(&["-n", "1", "--job-id", "mine"], script));
    let mut lines: Vec<String> = text(&first.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!((lines[0].as_str(), lines[2].as_str()), ("[rank 0] /dev/null", "[rank 1] /dev/null"));
    let id = lines[1].strip_prefix("[rank 0] 0/2 0/2 0 ").unwrap();
    assert_eq!(lines[3], format!("[rank 1] 1/2 1/2 0 {id}"));
    assert_eq!((id.len(), text(&second.stdout).lines().next()), (32, Some("[rank 0] 0/1 0/1 0 mine")));
}

#[test]
fn the_first_failure_ends_all_and_is_printed_last() {
    let script =
        "echo started $HCCL_RANK >&2; [ $HCCL_RANK = 1 ] && { echo out of luck >&2; exit 7; }; exec sleep 1000";
    let output = run(&["-n", "3"], script);
    assert_eq!(output.status.code(), Some(7));
    let stderr = text(&output.stderr);
    let lines: Vec<&str> = stderr.lines().collect();
    let (said, last) = (lines[lines.len() - 2], lines[lines.len() - 1]);
    assert_eq!(said, "hccl: rank 1 said: out of luck", "{stderr}");
    assert_eq!(last, "hccl: rank 1 of 3 failed first: exit code 7", "{stderr}");
    assert!(stderr.contains("hccl: knock-on exits: ranks 0, 2: stopped by the launcher\n"), "{stderr}");
}

#[test]
fn a_lost_peer_is_not_the_first_cause() {
    // Rank 0 says that it lost a peer before the peer's own failure can be seen.
    let dir = tempfile::tempdir().unwrap();
    let gone = dir.path().join("gone");
    let gone = gone.display();
    let script = format!("[ $HCCL_RANK = 0 ] && {{ : >{gone}; exit 75; }}; until [ -e {gone} ]; do :; done; exit 3");
    let output = run(&["-n", "2"], &script);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert_eq!(last_line(&output.stderr), "hccl: rank 1 of 2 failed first: exit code 3");
    assert!(text(&output.stderr).contains("knock-on exits: rank 0: lost a peer (exit code 75)"));
}

#[test]
fn a_killed_rank_ends_all_and_is_named() {
    let Started { launcher, pids, .. } = start(&[], 3, "killed-rank", SLEEPERS);
    let before = Instant::now();
    kill_process(pids[1], Signal::KILL).unwrap();
    let output = finish(launcher);
    assert!(before.elapsed() < Duration::from_secs(2), "{:?}", before.elapsed());
    assert_eq!(output.status.code(), Some(137));
    let last = last_line(&output.stderr);
    assert!(last.starts_with("hccl: rank 1 of 3 failed first: killed by SIGKILL (signal 9)"), "{last}");
    assert_all_gone("killed-rank");
}

#[test]
fn a_rank_that_does_not_listen_is_killed_after_the_grace() {
    let script = "trap '' TERM; [ $HCCL_RANK = 0 ] && exit 4; while :; do sleep 1; done";
    let output = finish(hccl_run(&["-n", "2"], script).env("HCCL_TEST_MARK", "deaf").spawn().unwrap());
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    assert_all_gone("deaf");
}

#[test]
fn a_killed_launcher_leaves_no_process() {
    let Started { mut launcher, .. } = start(&[], 2, "killed-launcher", SLEEPERS);
    assert!(marked("killed-launcher").len() >= 8, "launcher, guardian, 2 shells and 4 children of them");
    launcher.kill().unwrap();
    assert_eq!(launcher.wait().unwrap().signal(), Some(9));
    assert_all_gone("killed-launcher");
}

#[test]
fn children_of_ranks_do_not_outlive_a_good_run() {
    let output = hccl_run(&["-n", "2"], "sleep 1000 & echo done").env("HCCL_TEST_MARK", "orphans").spawn().unwrap();
    let output = finish(output);
    assert_eq!((output.status.code(), text(&output.stdout).lines().count()), (Some(0), 2));
    assert_all_gone("orphans");
}

#[test]
fn signals_of_the_launcher_end_all() {
    for (signal, name, code) in
        [(Signal::INT, "SIGINT", 130), (Signal::TERM, "SIGTERM", 143), (Signal::HUP, "SIGHUP", 129)]
    {
        // The shell passes on what a program's own handler would do.
        let script = format!("trap 'echo rank $HCCL_RANK saw {name}; exit 0' {}; {SLEEPERS}", &name[3..]);
        let Started { launcher, mut out, .. } = start(&[], 2, name, &script);
        kill_process(pid_of(&launcher), signal).unwrap();
        let output = finish(launcher);
        assert_eq!(output.status.code(), Some(code), "{name}: {}", text(&output.stderr));
        assert!(last_line(&output.stderr).contains(name), "{}", text(&output.stderr));
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        assert_eq!(rest.matches(&format!("saw {name}")).count(), 2, "{rest}");
        assert_all_gone(name);
    }
}

#[test]
fn a_second_signal_does_not_wait_for_the_grace() {
    let Started { launcher, mut out, .. } =
        start(&[], 1, "twice", "trap 'echo asked; while :; do sleep 1; done' INT; sleep 1000 &");
    let pid = pid_of(&launcher);
    kill_process(pid, Signal::INT).unwrap();
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(finish(launcher).status.code(), Some(130));
    assert_all_gone("twice");
}

#[test]
fn threads_are_cores_by_ranks_unless_given() {
    let script = "echo $RAYON_NUM_THREADS";
    let one = |output: Output| text(&output.stdout).lines().next().unwrap_or_default().to_owned();
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!(one(run(&["-n", "1"], script)), format!("[rank 0] {cores}"));
    assert!(one(run(&["-n", "2"], script)).ends_with(&format!("] {}", (cores / 2).max(1))));
    assert!(one(run(&["-n", "2", "--threads-per-rank", "5"], script)).ends_with("] 5"));
    let inherited = || hccl_run(&["-n", "1"], script).env("RAYON_NUM_THREADS", "9").spawn().unwrap();
    assert_eq!(one(finish(inherited())), "[rank 0] 9");
    let both = hccl_run(&["-n", "1", "--threads-per-rank", "6"], script).env("RAYON_NUM_THREADS", "9").spawn();
    assert_eq!(one(finish(both.unwrap())), "[rank 0] 6");
}

/// The cores of a list such as `0-2,5`.
fn core_list(list: &str) -> BTreeSet<usize> {
    let range = |part: &str| match part.split_once('-') {
        Some((first, last)) => first.parse().unwrap()..=last.parse().unwrap(),
        None => part.parse().unwrap()..=part.parse().unwrap(),
    };
    list.trim().split(',').flat_map(range).collect()
}

#[test]
fn each_rank_has_its_share_of_the_cores() {
    let own = fs::read_to_string("/proc/thread-self/status").unwrap();
    let all = core_list(own.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap());
    let shares = |args: &[&str]| -> Vec<BTreeSet<usize>> {
        let output = run(args, "grep Cpus_allowed_list /proc/self/status");
        let lines = text(&output.stdout);
        lines.lines().map(|line| core_list(line.rsplit(':').next().unwrap())).collect()
    };
    assert_eq!(shares(&["-n", "1"]), std::slice::from_ref(&all));
    assert_eq!(shares(&["-n", "2", "--bind", "none"]), [all.clone(), all.clone()]);
    let two = shares(&["-n", "2"]);
    assert_eq!(&two[0] | &two[1], all);
    assert!(all.len() == 1 || two[0].is_disjoint(&two[1]), "{two:?}");
    let many = shares(&["-n", &(all.len() + 1).to_string()]);
    assert!(many.iter().all(|share| share.len() == 1 && share.is_subset(&all)), "{many:?}");
}

#[test]
fn log_files_hold_each_rank_alone() {
    let dir = tempfile::tempdir().unwrap();
    let logs = dir.path().join("a/b");
    let output = run(&["-n", "2", "--log-dir", logs.to_str().unwrap()], "echo out$HCCL_RANK; printf half$HCCL_RANK");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for rank in 0..2 {
        let log = fs::read_to_string(logs.join(format!("rank-{rank}.log"))).unwrap();
        assert_eq!(log, format!("out{rank}\nhalf{rank}"));
    }
    assert_eq!(text(&output.stdout).lines().count(), 4);
}

#[test]
fn an_ignored_sigchld_loses_no_exit_code() {
    let mut launcher = Command::new("env");
    launcher.args(["--ignore-signal=CHLD", env!("CARGO_BIN_EXE_hccl"), "run", "-n", "2", "--", "sh", "-c"]);
    launcher.arg("exit $((HCCL_RANK * 6))").stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = finish(launcher.spawn().unwrap());
    assert_eq!(output.status.code(), Some(6), "{}", text(&output.stderr));
}

#[test]
fn more_ranks_than_the_soft_limit_of_files_run_with_that_limit() {
    let mut launcher = Command::new("sh");
    let script = "ulimit -Sn 64; exec \"$0\" run -n 50 -- sh -c 'ulimit -Sn'";
    launcher.args(["-c", script, env!("CARGO_BIN_EXE_hccl")]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = finish(launcher.spawn().unwrap());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).lines().filter(|line| line.ends_with("] 64")).count(), 50);
}

/// The code of a run that must not start anything, and what it says.
fn refused(args: &[&str]) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().unwrap();
    let touched = dir.path().join("touched");
    let output = run(args, &format!("touch {}", touched.display()));
    assert!(!touched.exists(), "{args:?} started a rank");
    (output.status.code(), text(&output.stderr))
}

#[test]
fn bad_flags_are_named_before_anything_starts() {
    for (args, named) in [
        (&["-n", "0"][..], "--ranks"),
        (&["--ranks", "1025"], "--ranks"),
        (&["--ranks", "two"], "--ranks"),
        (&[], "--ranks"),
        (&["-n", "1", "--threads-per-rank", "0"], "--threads-per-rank"),
        (&["-n", "1", "--bind", "all"], "--bind"),
        (&["-n", "1", "--job-id", ""], "--job-id"),
        (&["-n", "2", "--log-dir", "/proc/no/such"], "--log-dir"),
        (&["-n", "2", "--log-dir", "/dev/null"], "/dev/null"),
    ] {
        let (code, stderr) = refused(args);
        assert!(code == Some(2) && stderr.contains(named), "{args:?}: {code:?} {stderr}");
    }
}

#[test]
fn a_program_that_cannot_start_is_named() {
    let bare = |program: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hccl"));
        let output = command.args(["run", "-n", "2", "--"]).arg(program).output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let (code, stderr) = bare(Path::new("no-such-program-3141"));
    assert_eq!(code, Some(127), "{stderr}");
    assert!(stderr.contains("rank 0: there is no program no-such-program-3141"), "{stderr}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let (code, stderr) = bare(file.path());
    assert_eq!(code, Some(126), "{stderr}");
    assert!(stderr.contains(file.path().to_str().unwrap()), "{stderr}");
}

#[test]
fn a_reader_that_goes_away_ends_the_run() {
    let mut launcher = hccl_run(&["-n", "2"], "exec yes").env("HCCL_TEST_MARK", "no-reader").spawn().unwrap();
    let mut line = String::new();
    BufReader::new(launcher.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.ends_with("] y\n"), "{line}");
    // The reader is gone here: the ranks get SIGPIPE as they would without a launcher.
    let output = finish(launcher);
    assert_eq!(output.status.code(), Some(141), "{}", text(&output.stderr));
    assert_all_gone("no-reader");
}
