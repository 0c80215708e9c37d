use super::check::PlanError;
use super::plan::{Action, Channel, Costs, Direction, Message, Phase, Plan, Shape, Work, work_of};
use super::schedule::{Flow, Schedule};
use super::simulate::{Span, Timeline};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::HashMap;

const ALL: [Schedule; 8] = [
    Schedule::GPipe,
    Schedule::OneFOneB,
    Schedule::ForwardOnly(Flow::FillDrain),
    Schedule::ForwardOnly(Flow::Ring { rounds: 3 }),
    Schedule::Interleaved { chunks: 2 },
    Schedule::Interleaved { chunks: 3 },
    Schedule::ZbH1,
    Schedule::ZbV,
];

fn plan(schedule: Schedule, ranks: usize, microbatches: usize, costs: Costs) -> Plan {
    Plan::new(schedule, ranks, microbatches, costs).unwrap()
}

/// Every schedule with every size that it admits.
fn sizes() -> impl Iterator<Item = (Schedule, usize, usize)> {
    let sizes = ALL.into_iter().flat_map(|s| (1..=8).flat_map(move |p| (1..=4 * p).map(move |m| (s, p, m))));
    sizes.filter(|&(schedule, p, m)| !matches!(schedule, Schedule::Interleaved { .. }) || m % p == 0)
}

fn lists(plan: &Plan) -> Vec<Vec<Action>> {
    (0..plan.ranks()).map(|rank| plan.actions(rank).to_vec()).collect()
}

/// The span of every piece of work, by what it is, whichever rank did it.
fn spans(plan: &Plan) -> HashMap<Work, (usize, Span)> {
    let mut spans = HashMap::new();
    for rank in 0..plan.ranks() {
        for span in plan.timeline().spans(rank) {
            if let Action::Compute(work) = span.action {
                assert!(spans.insert(work, (rank, *span)).is_none(), "{work} twice");
            }
        }
    }
    spans
}

/// All work done once, on the right rank, each piece after what it depends on. Written without the planner's own rules.
fn assert_complete(plan: &Plan) {
    let spans = spans(plan);
    let (stages, units) = (plan.stages(), plan.microbatches() * plan.schedule().rounds());
    let get = |phase, stage, microbatch| {
        let (rank, span) = spans.get(&Work { phase, stage, microbatch }).copied()?;
        assert_eq!(rank, plan.rank_of(stage));
        Some(span)
    };
    let mut count = 0;
    for (stage, unit) in (0..stages).flat_map(|stage| (0..units).map(move |unit| (stage, unit))) {
        let forward = get(Phase::Forward, stage, unit).unwrap();
        let backward = |stage| get(Phase::Backward, stage, unit).or(get(Phase::BackwardInput, stage, unit));
        if stage > 0 {
            assert!(forward.begin >= get(Phase::Forward, stage - 1, unit).unwrap().end);
        } else if unit >= plan.microbatches() {
            assert!(forward.begin >= get(Phase::Forward, stages - 1, unit - plan.microbatches()).unwrap().end);
        }
        count += 1;
        if plan.schedule().trains() {
            let own = backward(stage).unwrap();
            assert!(own.begin >= forward.end);
            assert!(stage + 1 == stages || own.begin >= backward(stage + 1).unwrap().end);
            count += 1;
        }
        if plan.schedule().splits_backward() {
            let weight = get(Phase::BackwardWeight, stage, unit).unwrap();
            assert!(weight.begin >= backward(stage).unwrap().end);
            count += 1;
        }
    }
    assert_eq!(spans.len(), count);
}

fn assert_within_memory(plan: &Plan) {
    for rank in 0..plan.ranks() {
        let (peak, p, m) = (plan.peak_activations(rank), plan.ranks(), plan.microbatches());
        let bound = plan.schedule().peak_bound(rank, p, m);
        assert!(peak <= bound, "{}: {peak} activations on rank {rank}, bound {bound}", plan.to_text());
        if plan.schedule() != Schedule::ZbV || m >= 2 * p - 1 {
            assert_eq!(peak, bound, "{} rank {rank}", plan.to_text());
        }
    }
}

#[test]
fn every_size_completes_without_loss_at_equal_costs() {
    let mut plans = 0;
    for (schedule, p, m) in sizes() {
        let plan = plan(schedule, p, m, Costs::default());
        assert_complete(&plan);
        assert_within_memory(&plan);
        assert_eq!(plan.loss().ticks(), 0, "{}", plan.to_text());
        if let Some(formula) = schedule.formula(p, m, Costs::default()) {
            assert_eq!(plan.timeline().makespan(), formula, "{}", plan.to_text());
        }
        let busy: Vec<u64> = (0..p).map(|rank| plan.timeline().busy(rank)).collect();
        let phases = if schedule.trains() { 3 } else { 1 };
        assert_eq!(busy, vec![(m * schedule.chunks() * schedule.rounds() * phases) as u64; p]);
        plans += 1;
    }
    assert_eq!(plans, 6 * 144 + 2 * 32);
}

/// Any schedule, 2 to 8 ranks, up to 4 microbatches a rank, where it admits them.
fn size() -> impl Strategy<Value = (Schedule, usize, usize)> {
    (0..ALL.len(), 2..=8_usize, 0..=1000_usize).prop_map(|(schedule, p, m)| match ALL[schedule] {
        schedule @ Schedule::Interleaved { .. } => (schedule, p, p * (1 + m % 4)),
        schedule => (schedule, p, 1 + m % (4 * p)),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever work costs: all of it is done, within memory; ideal times are those of the formula.
    #[test]
    fn any_costs((schedule, p, m) in size(), [f, b, w] in [1..7_u32, 1..7_u32, 0..7_u32], transfer in 0..3_u32) {
        let costs = Costs::new(f, b, w).with_transfer(transfer);
        let plan = plan(schedule, p, m, costs);
        assert_complete(&plan);
        assert_within_memory(&plan);
        let (loss, makespan) = (plan.loss(), plan.timeline().makespan());
        prop_assert_eq!(loss.blocking, makespan);
        prop_assert!(loss.ideal <= makespan);
        prop_assert_eq!(loss.ticks() > 0, plan.to_text().contains("ticks lost to blocking messages"));
        if let Some(formula) = schedule.formula(p, m, costs) {
            prop_assert_eq!(loss.ideal, formula);
            let lossless = matches!(schedule, Schedule::GPipe | Schedule::OneFOneB | Schedule::ForwardOnly(_));
            prop_assert!(!lossless || loss.ticks() == 0);
        }
        prop_assert_eq!(&plan, &Plan::new(schedule, p, m, costs).unwrap());
    }

    /// A plan made for some costs ends with any others, at the same peak of activations.
    #[test]
    fn costs_never_stop_a_plan((schedule, p, m) in size(), ticks in vec(0..9_u32, 1..20), transfer in 0..3_u32) {
        let plan = plan(schedule, p, m, Costs::default());
        let of = |work: Work| ticks[(work.stage * 7 + work.microbatch * 3 + work.phase as usize) % ticks.len()];
        let timeline = plan.retimed(of, transfer);
        let all: u64 = (0..p).flat_map(|rank| work_of(plan.actions(rank))).map(|work| u64::from(of(work))).sum();
        prop_assert_eq!((0..p).map(|rank| timeline.busy(rank)).sum::<u64>(), all);
        prop_assert_eq!(timeline.ranks(), p);
    }
}

/// The formulas are silent only where the module page says so.
#[test]
fn formulas_exist_where_promised() {
    for (schedule, p, m) in sizes() {
        let known = match schedule {
            Schedule::ZbH1 => m >= p,
            Schedule::ZbV => m > 2 * p - 2,
            _ => true,
        };
        assert_eq!(schedule.formula(p, m, Costs::default()).is_some(), known);
        assert_eq!(schedule.formula(p, m, Costs::default().with_transfer(1)), None);
    }
    assert_eq!(Schedule::ZbV.formula(2, 4, Costs::new(1, 2, 1)), None);
}

/// What a published note says about 4 ranks and 8 microbatches, in half ticks so that half a stage is whole.
#[test]
fn worked_example() {
    let expect = [
        (Schedule::GPipe, 2, 66, [18, 12, 6, 0], [8, 8, 8, 8]),
        (Schedule::OneFOneB, 2, 66, [18, 12, 6, 0], [4, 3, 2, 1]),
        (Schedule::Interleaved { chunks: 2 }, 1, 57, [9, 6, 3, 0], [11, 9, 7, 5]),
        (Schedule::ZbH1, 2, 54, [6, 4, 2, 0], [4, 4, 4, 4]),
        (Schedule::ZbV, 1, 51, [0, 0, 0, 0], [8, 8, 8, 8]),
    ];
    for (schedule, stage, makespan, idle, peak) in expect {
        let plan = plan(schedule, 4, 8, Costs::new(stage, stage, stage));
        assert_eq!(plan.timeline().makespan(), makespan, "{schedule}");
        assert_eq!([0, 1, 2, 3].map(|rank| plan.peak_activations(rank)), peak, "{schedule}");
        assert_eq!([0, 1, 2, 3].map(|rank| idle_inside(plan.timeline(), rank)), idle, "{schedule}");
        let bubble = plan.timeline().bubble();
        assert_eq!(bubble.of_ideal(), (makespan - 48) as f64 / 48.0);
        assert_eq!(bubble.of_total(), (makespan - 48) as f64 / makespan as f64);
    }
}

/// Idle ticks from a rank's first work to its last.
fn idle_inside(timeline: &Timeline, rank: usize) -> u64 {
    let work: Vec<&Span> =
        timeline.spans(rank).iter().filter(|span| matches!(span.action, Action::Compute(_))).collect();
    work[work.len() - 1].end - work[0].begin - timeline.busy(rank)
}

/// Hops that the ideal timing cannot hide, from the same note: 6, 16, 12 and 14 of them.
#[test]
fn hops_of_the_ideal_timing() {
    let expect = [
        (Schedule::GPipe, 200, 6),
        (Schedule::OneFOneB, 200, 16),
        (Schedule::ZbH1, 200, 12),
        (Schedule::Interleaved { chunks: 2 }, 100, 14),
    ];
    for (schedule, stage, hops) in expect {
        let ideal = |transfer| {
            let costs = Costs::new(stage, stage, stage).with_transfer(transfer);
            plan(schedule, 4, 8, costs).loss().ideal
        };
        assert_eq!(ideal(1) - ideal(0), hops, "{schedule}");
    }
}

#[test]
fn one_f_one_b_on_paper() {
    let plan = plan(Schedule::OneFOneB, 4, 8, Costs::default());
    let work: Vec<String> = work_of(plan.actions(2))
        .map(|work| format!("{}{}", if work.phase == Phase::Forward { 'F' } else { 'B' }, work.microbatch))
        .collect();
    assert_eq!(work.join(" "), "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7");
    let timeline = plan.timeline();
    // Rank 2 waits 2 ticks for its first input, 2 for the first gradient, 1 for the last.
    assert_eq!(timeline.waiting(2), 5);
    assert_eq!((0..4).map(|rank| timeline.busy(rank)).collect::<Vec<_>>(), [24; 4]);
}

#[test]
fn slower_stages_are_retimed() {
    let plan = plan(Schedule::ForwardOnly(Flow::FillDrain), 3, 4, Costs::default());
    // Stage 1 takes 5 ticks: it starts at 1 and is the pace; the last stage adds 1.
    let slow = plan.retimed(|work| if work.stage == 1 { 5 } else { 1 }, 0);
    assert_eq!(slow.makespan(), 1 + 4 * 5 + 1);
    assert_eq!(slow.busy(1), 20);
    assert_eq!(plan.retimed(|_| 1, 0), *plan.timeline());
}

#[test]
fn a_ring_waits_only_for_missing_sequences() {
    // 4 ranks, 3 rounds: from 4 slots on a tick a pass, and 3 to fill; below, 4 ticks a round.
    for (slots, ticks) in [(1, 12), (2, 13), (3, 14), (4, 15), (5, 18), (8, 27)] {
        let ring = Schedule::ForwardOnly(Flow::Ring { rounds: 3 });
        assert_eq!(plan(ring, 4, slots, Costs::default()).timeline().makespan(), ticks, "{slots} slots");
    }
}

/// Costs at which one way of placing messages alone would lose time.
#[test]
fn messages_are_placed_well() {
    // A sender that starts its next work at once makes its receiver wait: 79 ticks.
    let patient = plan(Schedule::Interleaved { chunks: 2 }, 4, 8, Costs::new(1, 2, 1));
    assert_eq!((patient.loss().ideal, patient.loss().ticks()), (76, 0));
    // A message that goes before it is needed delays its receiver: 29 ticks.
    let in_time = plan(Schedule::OneFOneB, 2, 3, Costs::new(2, 2, 2).with_transfer(1));
    assert_eq!((in_time.loss().ideal, in_time.loss().ticks()), (28, 0));
}

#[test]
fn opposite_messages_are_exchanged() {
    let plan = plan(Schedule::OneFOneB, 2, 3, Costs::new(2, 2, 2).with_transfer(1));
    let exchanges = |rank: usize| {
        plan.actions(rank)
            .iter()
            .filter(|action| matches!(action, Action::Exchange { .. }))
            .copied()
            .collect::<Vec<_>>()
    };
    let [a, b] = [exchanges(0), exchanges(1)];
    assert!(!a.is_empty());
    let mirrored = b.iter().map(|action| (action.receives(), action.sends()));
    assert!(a.iter().map(|action| (action.sends(), action.receives())).eq(mirrored));
}

/// Receives just before the work that needs it, sends just after the work that makes it.
fn textbook(plan: &Plan) -> Vec<Vec<Action>> {
    let shape = shape(plan);
    let remote = |message: &Message| !shape.is_local(*message);
    let lower = |work: Work| {
        let recv = shape.needs(work).filter(remote).map(Action::Recv);
        let send = shape.makes(work).filter(remote).map(Action::Send);
        recv.into_iter().chain([Action::Compute(work)]).chain(send)
    };
    (0..plan.ranks()).map(|rank| work_of(plan.actions(rank)).flat_map(lower).collect()).collect()
}

fn shape(plan: &Plan) -> Shape {
    Shape { schedule: plan.schedule(), ranks: plan.ranks(), microbatches: plan.microbatches() }
}

#[test]
fn the_textbook_order_deadlocks() {
    for (p, m) in [(2, 4), (3, 6), (4, 8), (8, 16)] {
        for schedule in ALL {
            let plan = plan(schedule, p, m, Costs::default());
            let result = Plan::by_hand(schedule, p, m, Costs::default(), textbook(&plan));
            match schedule {
                Schedule::GPipe | Schedule::ForwardOnly(Flow::FillDrain) => assert!(result.is_ok(), "{schedule}"),
                Schedule::ForwardOnly(_) => {}
                _ => assert!(matches!(result, Err(PlanError::Deadlock { .. })), "{schedule} {p} {m}: {result:?}"),
            }
        }
    }
}

#[test]
fn a_cycle_names_only_those_in_it() {
    let plan = plan(Schedule::OneFOneB, 4, 4, Costs::default());
    let error = Plan::by_hand(Schedule::OneFOneB, 4, 4, Costs::default(), textbook(&plan)).unwrap_err();
    let PlanError::Deadlock { cycle } = error else { panic!("{error}") };
    for (n, blocked) in cycle.iter().enumerate() {
        assert_eq!(blocked.waits_for, cycle[(n + 1) % cycle.len()].rank);
        assert_eq!(textbook(&plan)[blocked.rank][blocked.position], blocked.action);
    }
    assert_eq!(cycle.len(), 2);
}

/// Makes one change to a good plan and gives the error.
fn broken(change: impl FnOnce(&mut Vec<Vec<Action>>)) -> PlanError {
    let (schedule, costs) = (Schedule::OneFOneB, Costs::default());
    let mut actions = lists(&plan(schedule, 2, 2, costs));
    change(&mut actions);
    Plan::by_hand(schedule, 2, 2, costs, actions).unwrap_err()
}

#[test]
fn mistakes_by_hand_are_named() {
    let message = |edge, direction, microbatch| Message { channel: Channel { edge, direction }, microbatch };
    let work = |phase, stage, microbatch| Action::Compute(Work { phase, stage, microbatch });
    assert_eq!(broken(|a| a.truncate(1)), PlanError::Ranks { ranks: 2, lists: 1 });
    let action = work(Phase::Forward, 1, 0);
    assert_eq!(broken(|a| a[0].insert(0, action)), PlanError::Misplaced { rank: 0, position: 0, action });
    let action = Action::Recv(message(7, Direction::Forward, 0));
    assert_eq!(broken(|a| a[1].insert(1, action)), PlanError::Misplaced { rank: 1, position: 1, action });
    let (action, schedule) = (work(Phase::BackwardWeight, 0, 1), Schedule::OneFOneB);
    assert_eq!(broken(|a| a[0].insert(1, action)), PlanError::Phase { schedule, rank: 0, position: 1, action });
    let action = Action::Send(message(0, Direction::Forward, 0));
    assert_eq!(broken(|a| a[0].swap(0, 1)), PlanError::NotReady { rank: 0, position: 0, action });
    let action = work(Phase::Forward, 1, 0);
    assert_eq!(broken(|a| a[1].swap(0, 1)), PlanError::NotReady { rank: 1, position: 0, action });
    let action = work(Phase::Forward, 0, 0);
    assert_eq!(broken(|a| a[0].insert(2, action)), PlanError::Twice { rank: 0, position: 2, action });
    let missing = Work { phase: Phase::Backward, stage: 0, microbatch: 1 };
    assert_eq!(broken(|a| a[0].truncate(7)), PlanError::Missing { rank: 0, work: missing });
    let left = message(0, Direction::Backward, 1);
    assert_eq!(broken(|a| a[1].truncate(7)), PlanError::Unused { rank: 1, message: left });
}

#[test]
fn a_lonely_receive_names_the_finished_rank() {
    let shape = Shape { schedule: Schedule::OneFOneB, ranks: 2, microbatches: 1 };
    let recv = Action::Recv(Message { channel: Channel { edge: 0, direction: Direction::Forward }, microbatch: 0 });
    let error = Timeline::run(&shape, &[vec![], vec![recv]], |_| 1, 0).unwrap_err();
    assert_eq!(
        error.to_string(),
        "rank 1, action 0 (receive the activation of microbatch 0 over edge 0) waits for rank 0, which has no action \
         left (hint: every send needs its receive, and the reverse)"
    );
}

#[test]
fn work_in_an_order_of_ones_own() {
    let work = |phase, stage, microbatch| Work { phase, stage, microbatch };
    // GPipe whose backward passes go from the last microbatch to the first.
    let own: Vec<Vec<Work>> = (0..3)
        .map(|rank| {
            let forward = (0..4).map(|m| work(Phase::Forward, rank, m));
            forward.chain((0..4).rev().map(|m| work(Phase::Backward, rank, m))).collect()
        })
        .collect();
    let plan = Plan::from_work(Schedule::GPipe, 3, 4, Costs::default(), &own).unwrap();
    assert_complete(&plan);
    assert_eq!(plan.timeline().makespan(), 18);
    let mut late = own.clone();
    late[1].rotate_left(1);
    let refused = Plan::from_work(Schedule::GPipe, 3, 4, Costs::default(), &late).unwrap_err();
    assert!(matches!(refused, PlanError::NotReady { .. } | PlanError::Unordered { .. }), "{refused}");
    let mut foreign = own.clone();
    foreign[2][0].stage = usize::MAX;
    let refused = Plan::from_work(Schedule::GPipe, 3, 4, Costs::default(), &foreign).unwrap_err();
    assert!(matches!(refused, PlanError::Misplaced { rank: 2, position: 0, .. }), "{refused}");
    let mut crossed = own;
    crossed[0].swap(0, 4);
    let refused = Plan::from_work(Schedule::GPipe, 3, 4, Costs::default(), &crossed).unwrap_err();
    assert_eq!(refused, PlanError::Unordered { rank: 0, work: work(Phase::Backward, 0, 3) });
}

#[test]
fn sizes_without_an_order_are_refused_by_name() {
    let refuse = |schedule, p, m| Plan::new(schedule, p, m, Costs::default()).unwrap_err().to_string();
    assert_eq!(refuse(Schedule::GPipe, 0, 1), "gpipe: 0 ranks (hint: at least 1 is needed)");
    assert_eq!(refuse(Schedule::ZbV, 2, 0), "zb_v: 0 microbatches (hint: at least 1 is needed)");
    let ring = Schedule::ForwardOnly(Flow::Ring { rounds: 0 });
    assert_eq!(refuse(ring, 2, 1), "ring(rounds = 0): 0 rounds (hint: at least 1 is needed)");
    let interleaved = |chunks| Schedule::Interleaved { chunks };
    assert_eq!(
        refuse(interleaved(2), 4, 3),
        "interleaved(2) on 4 ranks cannot run 3 microbatches (hint: use 4, or another multiple of 4)"
    );
    assert_eq!(
        refuse(interleaved(1), 4, 4),
        "interleaved(1): needs at least 2 stages a rank (hint: with 1, use one_f_one_b)"
    );
    assert!(refuse(Schedule::GPipe, 8, 1 << 40).contains("17592186044416 pieces of work"));
    assert!(
        refuse(Schedule::GPipe, 257, 1).starts_with("gpipe on 257 ranks with 1 microbatches is 514 pieces of work")
    );
    assert!(refuse(Schedule::ZbV, usize::MAX, usize::MAX).contains("at most 256 ranks and 262144 pieces"));
}

/// Ranks as threads, channels without capacity: a send ends only when its receiver takes it.
#[test]
fn real_ranks_meet_without_buffers() {
    for schedule in ALL {
        for p in 2..=8 {
            let plan = plan(schedule, p, p, Costs::new(2, 3, 1));
            let received = threads::run(&plan);
            let expect: usize = lists(&plan).iter().flatten().filter_map(Action::receives).count();
            assert_eq!(received, expect);
        }
    }
}

mod threads {
    use super::{Action, Channel, Message, Plan};
    use std::collections::HashMap;
    use std::collections::hash_map::Entry;
    use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
    use std::thread;
    use std::time::{Duration, Instant};

    type Senders = HashMap<Channel, SyncSender<Message>>;
    type Receivers = HashMap<Channel, Receiver<Message>>;

    const DEADLINE: Duration = Duration::from_secs(60);

    /// Runs the plan and counts the messages; panics when one is wrong or nobody meets it before the deadline.
    pub(super) fn run(plan: &Plan) -> usize {
        let mut ends: Vec<(Senders, Receivers)> = (0..plan.ranks()).map(|_| Default::default()).collect();
        for rank in 0..plan.ranks() {
            for message in plan.actions(rank).iter().filter_map(Action::sends) {
                if let Entry::Vacant(place) = ends[rank].0.entry(message.channel) {
                    let (sender, receiver) = sync_channel(0);
                    place.insert(sender);
                    ends[plan.ends(message.channel).1].1.insert(message.channel, receiver);
                }
            }
        }
        thread::scope(|scope| {
            let ranks: Vec<_> = ends
                .into_iter()
                .enumerate()
                .map(|(rank, (senders, receivers))| {
                    scope.spawn(move || rank_main(plan.actions(rank), &senders, receivers))
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).sum()
        })
    }

    fn rank_main(actions: &[Action], senders: &Senders, receivers: Receivers) -> usize {
        let mut received = 0;
        for action in actions {
            thread::scope(|scope| {
                if let Some(message) = action.sends() {
                    let sender = &senders[&message.channel];
                    scope.spawn(move || send(sender, message));
                }
                if let Some(message) = action.receives() {
                    assert_eq!(receivers[&message.channel].recv_timeout(DEADLINE), Ok(message));
                    received += 1;
                }
            });
        }
        received
    }

    fn send(sender: &SyncSender<Message>, message: Message) {
        let start = Instant::now();
        // Without capacity this succeeds only while the receiver waits; a plain send could hang for ever.
        while let Err(error) = sender.try_send(message) {
            assert!(matches!(error, TrySendError::Full(_)), "the receiver of {message} is gone");
            assert!(start.elapsed() < DEADLINE, "nobody takes {message}");
            thread::yield_now();
        }
    }
}

#[test]
fn golden_text() {
    let one = plan(Schedule::OneFOneB, 2, 3, Costs::default()).to_text();
    assert_eq!(one, golden_from_page(), "the module page shows this picture");
    let vee = plan(Schedule::ZbV, 2, 3, Costs::new(5, 5, 5)).to_text();
    assert_eq!(
        vee,
        "\
zb_v: 2 ranks, 3 microbatches, 95 ticks; idle 5.3 % of the time (5.6 % of the work)
rank 0 |F0.0 F1.0 F2.0 F0.1 B0.1 W0.1 F1.1 B1.1 W1.1 B0.0 W0.0 F2.1 B2.1 W2.1 B1.0 W1.0 B2.0 W2.0
rank 1 |.    F0.0 F0.1 F1.0 F1.1 B0.1 W0.1 F2.0 B0.0 W0.0 F2.1 B1.1 W1.1 B1.0 B2.1 B2.0 W1.0 W2.1 W2.0
a column is 5 ticks; F forward, B backward for inputs, W for weights; .n: n-th stage of the rank, from 0; \
. waits, = transfers
no time lost to blocking messages
"
    );
    let hops = plan(Schedule::ForwardOnly(Flow::FillDrain), 2, 2, Costs::new(2, 0, 0).with_transfer(1)).to_text();
    assert_eq!(
        hops,
        "\
fill_drain: 2 ranks, 2 microbatches, 8 ticks; idle 50.0 % of the time (100.0 % of the work)
rank 0 |F0 F0 =  F1 F1 =
rank 1 |.  .  =  F0 F0 =  F1 F1
a column is 1 tick; F forward; . waits, = transfers
1 of 8 ticks lost to blocking messages
"
    );
}

fn golden_from_page() -> String {
    let page = include_str!("lib.rs");
    let picture = page.split("```text\n").nth(1).unwrap().split("//! ```").next().unwrap();
    picture.lines().map(|line| line.trim_start_matches("//! ").to_owned() + "\n").collect()
}

#[test]
fn long_pictures_stay_narrow() {
    let plan = plan(Schedule::GPipe, 2, 9, Costs::new(999_983, 1_299_709, 7));
    let widest = plan.to_text().lines().filter(|line| line.starts_with("rank")).map(str::len).max().unwrap();
    assert!((2500..3100).contains(&widest), "{widest}");
    assert!(plan.to_svg().len() < 100_000);
}

#[test]
fn svg_is_well_formed_and_shows_everything() {
    let plan = plan(Schedule::OneFOneB, 3, 4, Costs::new(2, 2, 2).with_transfer(1));
    let svg = plan.to_svg();
    let open = tags(&svg);
    let count = |name: &str| open.iter().filter(|tag| *tag == name).count();
    let spans = || (0..3).flat_map(|rank| plan.timeline().spans(rank));
    let waits = spans().filter(|span| span.begin > span.arrived).count();
    assert!(waits > 0);
    assert_eq!(svg.matches("fill=\"url(#wait)\"").count(), waits);
    assert_eq!(count("rect"), 1 + spans().count() + waits);
    assert_eq!(svg.matches("fill=\"#888\"").count(), spans().count() - 3 * 4 * 2);
    assert_eq!(svg, Plan::new(plan.schedule(), 3, 4, plan.costs()).unwrap().to_svg());
}

/// The elements of an XML text, in order. Panics unless each is closed in turn and text holds no stray markup.
fn tags(xml: &str) -> Vec<String> {
    let (mut open, mut all) = (Vec::new(), Vec::new());
    for piece in xml.trim().split('<').skip(1) {
        let (tag, text) = piece.split_once('>').expect("a tag that is not closed");
        assert!(!text.contains('>') && !text.contains('"') && tag.matches('"').count() % 2 == 0, "{piece}");
        for entity in text.split('&').skip(1) {
            assert!(["amp;", "lt;", "gt;", "quot;", "#39;"].iter().any(|known| entity.starts_with(known)), "{entity}");
        }
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name));
            continue;
        }
        let name = tag.split([' ', '/']).next().unwrap().to_owned();
        all.push(name.clone());
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
    all
}

#[test]
fn digests_tell_plans_apart() {
    let digests: Vec<u64> = ALL.iter().map(|&schedule| plan(schedule, 4, 8, Costs::default()).digest()).collect();
    let unique: std::collections::HashSet<_> = digests.iter().collect();
    assert_eq!(unique.len(), ALL.len());
    assert_eq!(plan(Schedule::GPipe, 4, 8, Costs::default()).digest(), digests[0]);
    assert_ne!(plan(Schedule::GPipe, 4, 7, Costs::default()).digest(), digests[0]);
}

#[test]
fn messages_held_are_counted() {
    // Rank 0 makes its last activation before the gradient that it swaps it for comes in; rank 1 likewise.
    let plan = plan(Schedule::OneFOneB, 2, 3, Costs::default());
    assert_eq!([0, 1].map(|rank| plan.peak_messages(rank)), [2, 2]);
    let one = Plan::new(Schedule::ForwardOnly(Flow::FillDrain), 1, 3, Costs::default()).unwrap();
    assert_eq!(one.peak_messages(0), 0);
}
