//! The launcher as a library: what it returns, and what it leaves of the calling process.
#![cfg(target_os = "linux")]

use std::fs;
use std::sync::Mutex;

use hccl::ErrorKind;
use hccl::launch::{Bind, Exit, Launch};

/// Dispositions of signals belong to the whole process: tests that look at them run one at a time.
static SIGNALS: Mutex<()> = Mutex::new(());

fn sh(script: &str) -> Launch {
    Launch::new("sh").args(["-c", script])
}

fn caught_signals() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    status.lines().filter(|line| line.starts_with("SigCgt") || line.starts_with("SigIgn")).collect()
}

#[test]
fn outcomes_tell_rank_and_exit() {
    let _one = SIGNALS.lock().unwrap();
    let good = sh("exit 0").ranks(3).run().unwrap();
    assert!(good.is_success() && good.code() == 0 && good.failed_rank().is_none());
    let bad = sh("[ $HCCL_RANK = 2 ] && exit 9; exec sleep 1000").ranks(3).run().unwrap();
    assert_eq!((bad.code(), bad.failed_rank(), bad.failure()), (9, Some(2), Some(Exit::Code(9))));
    let killed = sh("[ $HCCL_RANK = 1 ] && kill -SEGV $$; exec sleep 1000").ranks(2).run().unwrap();
    assert_eq!((killed.code(), killed.failure()), (139, Some(Exit::Signal(11))));
}

#[test]
fn handlers_are_there_during_a_run_and_gone_after_it() {
    let _one = SIGNALS.lock().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let before = caught_signals();
    for _ in 0..2 {
        let during = sh("grep SigCgt /proc/$PPID/status").log_dir(Some(dir.path().to_owned()));
        assert!(during.run().unwrap().is_success());
        let log = fs::read_to_string(dir.path().join("rank-0.log")).unwrap();
        let mask = u64::from_str_radix(log.split_whitespace().nth(1).unwrap(), 16).unwrap();
        // SIGHUP, SIGINT, SIGTERM; the test runner ignores none of them unless it was started so.
        let ignored = caught_signals();
        let ignored = u64::from_str_radix(ignored[7..].split("SigCgt").next().unwrap().trim(), 16).unwrap();
        for signal in [1, 2, 15] {
            let bit = 1 << (signal - 1);
            assert!(mask & bit != 0 || ignored & bit != 0, "signal {signal} in {mask:x}");
        }
        assert_eq!(caught_signals(), before);
    }
}

#[test]
fn the_environment_given_reaches_the_ranks() {
    let _one = SIGNALS.lock().unwrap();
    let launch = sh("[ \"$COLOUR\" = blue ] && [ \"$RAYON_NUM_THREADS\" = 3 ] && [ \"$HCCL_JOB_ID\" = j ]");
    let launch = launch.env("COLOUR", "blue").env("HCCL_JOB_ID", "overwritten").job_id(Some("j".to_owned()));
    assert!(launch.threads_per_rank(Some(3)).bind(Bind::None).ranks(2).run().unwrap().is_success());
}

#[test]
fn what_cannot_start_is_an_error_that_names_it() {
    let _one = SIGNALS.lock().unwrap();
    let error = Launch::new("no-such-program-2718").ranks(2).run().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error:?}");
    assert!(error.to_string().contains("no-such-program-2718"), "{error}");
    let error = sh("exit 0").log_dir(Some("/dev/null/logs".into())).run().unwrap_err();
    assert!(error.to_string().contains("/dev/null/logs"), "{error}");
}
