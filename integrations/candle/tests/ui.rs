//! Misuse that must not compile (`no_*.rs`, with the compiler's words beside), and its twins that do and run (`ok_*.rs`).
//!
//! The twins are part of this test binary: for trybuild to build them would build candle once more.

#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/ui/no_*.rs");
}

/// Declares the twins, each in a module of its own, and a test that runs it.
macro_rules! twins {
    ($($name:ident = $path:literal;)*) => { $(
        #[expect(unreachable_pub, reason = "a program of its own when it is a case")]
        #[path = $path]
        mod $name;

        #[test]
        fn $name() {
            $name::main().unwrap();
        }
    )* };
}

twins! {
    ok_accumulate_synchronised = "ui/ok_accumulate_synchronised.rs";
    ok_bare_communicator = "ui/ok_bare_communicator.rs";
    ok_claimed_state = "ui/ok_claimed_state.rs";
    ok_dropped_gradients = "ui/ok_dropped_gradients.rs";
    ok_gradient_of_max = "ui/ok_gradient_of_max.rs";
    ok_raw_gradients = "ui/ok_raw_gradients.rs";
    ok_step_between_accumulated = "ui/ok_step_between_accumulated.rs";
    ok_sync_twice = "ui/ok_sync_twice.rs";
    ok_unsynchronised_clip = "ui/ok_unsynchronised_clip.rs";
    ok_unsynchronised_step = "ui/ok_unsynchronised_step.rs";
    ok_use_after_sync = "ui/ok_use_after_sync.rs";
}

#[test]
fn every_case_has_a_twin_that_is_run() {
    let source = include_str!("ui.rs");
    let mut cases = 0;
    for entry in std::fs::read_dir("tests/ui").unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        match (name.strip_prefix("no_"), name.strip_suffix(".stderr")) {
            (Some(_), Some(case)) => assert!(std::path::Path::new(&format!("tests/ui/{case}.rs")).exists(), "{name}"),
            (Some(rest), None) => {
                assert!(source.contains(&format!("\"ui/ok_{rest}\"")), "{name} has no twin");
                cases += 1;
            }
            (None, _) => assert!(source.contains(&format!("\"ui/{name}\"")), "{name} is not run"),
        }
    }
    assert!(cases >= 10, "{cases} cases");
}
