//! The laws of the seam, once, for every backend.
//!
//! | line of the contract (`src/backend.rs`) | laws |
//! | --- | --- |
//! | calls start in the order given, the n-th belong together | `forms::queue_order`, `messages::order`, `endurance` |
//! | different calls are a mismatch on both, nothing written | `mismatches` |
//! | the same bits on every rank | `reductions`, `fused`, `endurance` |
//! | after `Ok` nobody uses the memory | `forms::memory_is_quiet`, and every law that reuses buffers |
//! | after a failure nobody writes plain memory | `failures::memory_is_quiet` |
//! | a lost peer, an abort, a deadline end every call with the first cause | `failures`, `deadlines` |
//! | a count of 0 is a call like any other | `exchanges` (length 0), `failures::nothing_still_meets` |
//! | nothing is written outside | `exchanges`, `reductions`, `messages` (guards around every buffer) |
//!
//! Each law runs on every backend: ranks as threads, as processes, and as processes whose staging blocks are so short
//! that little data already takes many rounds; and on NPUs over the stand-in libraries, as threads, and as processes
//! that compare every call. Processes are started once for all laws of one area.

mod deadlines;
mod endurance;
mod exchanges;
mod failures;
#[cfg(target_os = "linux")]
mod fork;
mod forms;
mod fused;
mod groups;
mod lengths;
mod messages;
mod mismatches;
mod reductions;
mod refusals;
#[cfg(target_os = "linux")]
#[path = "../support/stand_in.rs"]
mod stand_in;
#[path = "../support/mod.rs"]
mod support;

/// Instantiates every law for every backend.
macro_rules! laws {
    ($($area:ident { $($law:ident),+ $(,)? })+) => {
        mod threads { $(
            mod $area { $(
                #[test]
                fn $law() {
                    for n in crate::support::WORLDS {
                        crate::support::threads(n, crate::$area::$law);
                    }
                }
            )+ }
        )+ }
        #[cfg(target_os = "linux")]
        mod processes { $(
            #[test]
            fn $area() {
                crate::in_processes(module_path!(), stringify!($area), &[], &[$((stringify!($law), crate::$area::$law)),+]);
            }
        )+ }
        #[cfg(target_os = "linux")]
        mod processes_in_short_rounds { $(
            #[test]
            fn $area() {
                let short = [("HCCL_STAGE_BYTES", "1024")];
                crate::in_processes(module_path!(), stringify!($area), &short, &[$((stringify!($law), crate::$area::$law)),+]);
            }
        )+ }
        #[cfg(target_os = "linux")]
        mod npus_as_threads { $(
            #[test]
            fn $area() {
                crate::on_npus_as_threads(module_path!(), stringify!($area), &[$((stringify!($law), crate::$area::$law)),+]);
            }
        )+ }
        #[cfg(target_os = "linux")]
        mod npus_as_processes { $(
            #[test]
            fn $area() {
                crate::on_npus(|variables| {
                    let variables = [variables, &[("HCCL_CHECK", "1")]].concat();
                    let laws: &[(&'static str, crate::support::Law)] = &[$((stringify!($law), crate::$area::$law)),+];
                    crate::in_processes(module_path!(), stringify!($area), &variables, laws);
                });
            }
        )+ }
    };
}

#[cfg(target_os = "linux")]
fn in_processes(module: &str, area: &str, variables: &[(&str, &str)], laws: &[(&'static str, support::Law)]) {
    let name = support::test_name(module, area);
    for n in support::WORLDS {
        support::processes_with(&name, n, variables, |comm| support::run_all(laws, comm));
    }
}

/// Runs tests with the variables of ranks on NPUs, whose libraries are the stand-ins.
#[cfg(target_os = "linux")]
fn on_npus(tests: impl Fn(&[(&str, &str)])) {
    // A rank is given the libraries by who starts it.
    let libraries = support::rank_of().is_none().then(stand_in::StandIn::new);
    let found = libraries.as_ref().map(stand_in::StandIn::env).unwrap_or_default();
    let found = found.iter().map(|(name, value)| (*name, value.to_str().unwrap()));
    // Short lengths are enough: how the engine below cuts long ones is tested by itself.
    let own = [(support::DEVICE, "npu"), ("HCCL_STAGE_BYTES", "1024")];
    tests(&found.chain(own).collect::<Vec<_>>());
}

#[cfg(target_os = "linux")]
fn on_npus_as_threads(module: &str, area: &str, laws: &[(&'static str, support::Law)]) {
    let name = support::test_name(module, area);
    on_npus(|variables| {
        // A process of its own, because the libraries are looked for once a process.
        support::processes_with(&name, 1, variables, |_| {
            for n in support::WORLDS {
                support::threads(n, |comm| support::run_all(laws, comm));
            }
            Ok(())
        });
    });
}

laws! {
    exchanges {
        broadcast, all_gather, all_gather_in_place, all_gather_v, scatter, gather, all_to_all, all_to_all_v,
        every_dtype_moves, bytes,
    }
    reductions {
        all_reduce, all_reduce_into, reduce, reduce_into, reduce_scatter, reduce_scatter_in_place, reduce_scatter_v,
        every_dtype_and_operation, halves_round_once, order_is_by_rank, all_ways_give_the_same_bits,
    }
    fused { same_bits, few_and_none, lengths_are_compared }
    messages { send_recv, batch, order, ring_of_batches, many_to_one }
    groups { split, lists, duplicates, mesh, drop_orders, groups_of_groups, values_of_another_group }
    forms {
        owned, owned_pairs, owned_messages, scoped, scoped_messages, queue_order, memory_is_quiet, detached, forgotten,
        scope_errors, scope_panics,
    }
    refusals { lengths, ranks, counts, members, refused_buffers_come_back }
    mismatches { kinds, dtypes, counts, operations, roots, tables, exchanges_v, messages, nothing_is_written }
    failures {
        send_circle, send_against_collective, abort, abort_from_another_thread, leaving, panicking, first_cause,
        again_after_failure, memory_is_quiet, nothing_still_meets, queued_calls_fail,
    }
}
