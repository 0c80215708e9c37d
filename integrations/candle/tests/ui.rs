//! Misuse that must not compile (`no_*.rs`, with the compiler's words beside), and its twins that do and run (`ok_*.rs`).
//!
//! The twins are part of this test binary: for trybuild to build them would build candle once more.

#![expect(clippy::print_stdout, reason = "counts cases on a line of their own")]

#[path = "../../../tests/support/ui.rs"]
mod ui;

#[test]
fn misuse_does_not_compile() {
    if ui::compares_messages() {
        trybuild::TestCases::new().compile_fail("tests/ui/no_*.rs");
    } else {
        ui::fail_with_their_codes(&["hccl_candle", "hccl", "candle_core", "candle_nn"]);
    }
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
fn every_case_has_a_twin_that_is_run_and_differs_in_one_hunk_of_at_most_three_lines() {
    ui::check_twins(10);
    let source = include_str!("ui.rs");
    for twin in ui::cases("ok_") {
        let path = format!("\"ui/{}\"", ui::name(&twin));
        assert!(source.contains(&path), "{path} is not run");
    }
}

#[test]
fn every_message_belongs_to_a_case_and_every_case_has_one() {
    ui::check_messages();
}
