use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// What every rank of a world takes in one epoch, as `[step][rank]`.
fn epoch_of(world: usize, mut make: impl FnMut(usize) -> Sampler, epoch: u64) -> Vec<Vec<Batch>> {
    let ranks: Vec<Vec<Batch>> = (0..world)
        .map(|rank| {
            let mut sampler = make(rank);
            sampler.seek(epoch, 0).unwrap();
            sampler.epoch_batches().collect()
        })
        .collect();
    let steps = ranks[0].len();
    assert!(ranks.iter().all(|batches| batches.len() == steps), "ranks take different numbers of steps");
    (0..steps).map(|step| ranks.iter().map(|batches| batches[step].clone()).collect()).collect()
}

fn counts(steps: &[Vec<Batch>]) -> HashMap<usize, usize> {
    let mut counts = HashMap::new();
    for index in steps.iter().flatten().flat_map(|batch| &batch.indices) {
        *counts.entry(*index).or_default() += 1;
    }
    counts
}

fn indices(steps: &[Vec<Batch>]) -> Vec<usize> {
    steps.iter().flatten().flat_map(|batch| batch.indices.clone()).collect()
}

fn orders() -> impl Strategy<Value = Order> {
    prop_oneof![Just(Order::Sequential), any::<u64>().prop_map(|seed| Order::Shuffled { seed })]
}

fn remainders() -> impl Strategy<Value = Remainder> {
    prop_oneof![Just(Remainder::Wrap), Just(Remainder::Drop), Just(Remainder::Uneven)]
}

proptest! {
    #[test]
    fn wrap_covers_all_and_repeats_only_the_start(
        (world, samples) in (1usize..9).prop_flat_map(|world| (Just(world), world..200)),
        batch in 1usize..20, order in orders(), epoch in 0u64..5,
    ) {
        let make = |rank| Sampler::new(samples, rank, world, batch).unwrap().order(order);
        let steps = epoch_of(world, make, epoch);
        prop_assert!(steps.iter().flatten().all(|b| b.indices.len() == batch && b.global == world * batch));
        let taken = indices(&steps);
        prop_assert_eq!(counts(&steps).len(), samples);
        prop_assert!(taken.len() - samples < world * batch);
        for (place, index) in taken.iter().enumerate().skip(samples) {
            prop_assert_eq!(*index, taken[place % samples]);
        }
    }

    #[test]
    fn drop_repeats_nothing_and_leaves_less_than_one_global_batch(
        samples in 1usize..200, world in 1usize..9, batch in 1usize..20, order in orders(), epoch in 0u64..5,
    ) {
        prop_assume!(samples >= world * batch);
        let make = |rank| {
            Sampler::new(samples, rank, world, batch).unwrap().order(order).remainder(Remainder::Drop).unwrap()
        };
        let steps = epoch_of(world, make, epoch);
        prop_assert!(steps.iter().flatten().all(|b| b.indices.len() == batch && b.global == world * batch));
        prop_assert!(counts(&steps).values().all(|count| *count == 1));
        prop_assert!(samples - counts(&steps).len() < world * batch);
    }

    #[test]
    fn uneven_and_evaluation_count_each_sample_once(
        samples in 1usize..200, world in 1usize..9, batch in 1usize..20, epoch in 0u64..5, order in orders(),
    ) {
        let make = |rank| Sampler::evaluation(samples, rank, world, batch).unwrap().order(order);
        let steps = epoch_of(world, make, epoch);
        prop_assert_eq!(counts(&steps).len(), samples);
        prop_assert!(counts(&steps).values().all(|count| *count == 1));
        for step in &steps {
            let sizes: Vec<usize> = step.iter().map(|b| b.indices.len()).collect();
            prop_assert!(sizes.iter().all(|size| *size <= batch));
            prop_assert!(sizes.is_sorted_by(|a, b| a >= b) && sizes[0] - sizes[world - 1] <= 1);
            prop_assert!(step.iter().all(|b| b.global == sizes.iter().sum::<usize>()));
            prop_assert!((step.iter().map(Batch::weight).sum::<f64>() - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn sequential_rank_takes_its_slice_of_each_global_batch(
        world in 1usize..6, batch in 1usize..9, whole in 1usize..5, more in 0usize..50, remainder in remainders(),
    ) {
        let samples = whole * world * batch + more;
        for rank in 0..world {
            let mut sampler = Sampler::new(samples, rank, world, batch).unwrap().remainder(remainder).unwrap();
            for step in 0..whole {
                let first = step * world * batch + rank * batch;
                prop_assert_eq!(sampler.next_batch().indices, (first..first + batch).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn shuffled_is_the_same_cut_of_one_permutation_for_any_world(
        batch in 1usize..6, steps in 1usize..6, seed in any::<u64>(), epoch in 0u64..4,
    ) {
        let samples = 12 * batch * steps;
        let of_world = |world: usize| {
            let make = |rank| {
                Sampler::new(samples, rank, world, 12 * batch / world).unwrap().order(Order::Shuffled { seed })
            };
            indices(&epoch_of(world, make, epoch))
        };
        let one = of_world(1);
        for world in [2, 3, 4, 6] {
            prop_assert_eq!(&of_world(world), &one);
        }
    }

    #[test]
    fn resuming_at_any_point_equals_going_on(
        (world, samples) in (1usize..5).prop_flat_map(|world| (Just(world), world..60)),
        batch in 1usize..5, rank in 0usize..5, before in 0usize..80, order in orders(), remainder in remainders(),
    ) {
        prop_assume!(rank < world && (remainder != Remainder::Drop || samples >= world * batch));
        let make = || Sampler::new(samples, rank, world, batch).unwrap().order(order).remainder(remainder).unwrap();
        let mut unbroken = make();
        for _ in 0..before {
            unbroken.next_batch();
        }
        let text = serde_json::to_string(&unbroken.state()).unwrap();
        let mut resumed = make();
        resumed.restore(&serde_json::from_str(&text).unwrap()).unwrap();
        for _ in 0..2 * unbroken.steps_per_epoch() + 1 {
            prop_assert_eq!(resumed.next_batch(), unbroken.next_batch());
        }
    }
}

#[test]
fn generator_gives_the_published_sequence() {
    let mut generator = SplitMix64(1_234_567);
    let drawn: Vec<u64> = (0..5).map(|_| generator.next()).collect();
    assert_eq!(
        drawn,
        [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821
        ]
    );
}

/// Pinned for ever: a change here breaks the resuming of every saved run.
#[test]
fn permutations_are_pinned() {
    let epochs = |seed| {
        let mut sampler = Sampler::new(10, 0, 1, 10).unwrap().order(Order::Shuffled { seed });
        [sampler.next_batch().indices, sampler.next_batch().indices]
    };
    assert_eq!(epochs(0), PINNED_SEED_0);
    assert_eq!(epochs(42), PINNED_SEED_42);
}

const PINNED_SEED_0: [[usize; 10]; 2] = [[1, 7, 6, 2, 0, 9, 8, 4, 5, 3], [1, 9, 6, 2, 3, 7, 4, 8, 0, 5]];
const PINNED_SEED_42: [[usize; 10]; 2] = [[6, 1, 8, 5, 2, 7, 4, 3, 9, 0], [0, 4, 8, 3, 5, 9, 7, 2, 6, 1]];

#[test]
fn seed_and_epoch_are_not_interchangeable() {
    let permutation = |seed, epoch| {
        let mut sampler = Sampler::new(50, 0, 1, 50).unwrap().order(Order::Shuffled { seed });
        sampler.seek(epoch, 0).unwrap();
        sampler.next_batch().indices
    };
    let all: Vec<_> = (0..6).flat_map(|seed| (0..6).map(move |epoch| permutation(seed, epoch))).collect();
    for (i, one) in all.iter().enumerate() {
        assert!(all[i + 1..].iter().all(|other| other != one), "permutation {i} came twice");
    }
}

/// Each sample lands in each place about equally often: chi-squared with 9 degrees of freedom a place.
#[test]
fn shuffling_is_uniform() {
    let mut sampler = Sampler::new(10, 0, 1, 10).unwrap().order(Order::Shuffled { seed: 3 });
    let mut seen = [[0f64; 10]; 10];
    for _ in 0..10_000 {
        for (place, index) in sampler.next_batch().indices.into_iter().enumerate() {
            seen[place][index] += 1.0;
        }
    }
    for place in seen {
        let chi: f64 = place.iter().map(|n| (n - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi < 40.0, "chi-squared {chi} for {place:?}");
    }
}

#[test]
fn small_evaluation_leaves_some_ranks_empty() {
    let sizes: Vec<Vec<usize>> = (0..4)
        .map(|rank| Sampler::evaluation(6, rank, 4, 1).unwrap().epoch_batches().map(|b| b.indices.len()).collect())
        .collect();
    assert_eq!(sizes, [[1, 1], [1, 1], [1, 0], [1, 0]]);
    let mut last = Sampler::evaluation(2, 3, 4, 8).unwrap();
    let batch = last.next_batch();
    assert_eq!((batch.indices.len(), batch.global, batch.weight()), (0, 2, 0.0));
}

#[test]
fn an_epoch_iterator_ends_at_the_boundary_and_starts_where_the_sampler_stands() {
    let mut sampler = Sampler::new(10, 0, 2, 2).unwrap();
    sampler.next_batch();
    assert_eq!(sampler.epoch_batches().map(|b| b.step).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((sampler.state().epoch, sampler.state().step), (1, 0));
}

#[test]
fn refused_shapes_say_why() {
    let error = |samples, rank, world, batch| Sampler::new(samples, rank, world, batch).unwrap_err();
    assert_eq!(error(10, 0, 2, 0), SamplerError::ZeroBatch);
    assert_eq!(error(0, 0, 1, 4), SamplerError::NoSamples);
    assert_eq!(error(10, 2, 2, 4), SamplerError::Rank { rank: 2, world: 2 });
    assert_eq!(error(10, 0, 0, 4), SamplerError::Rank { rank: 0, world: 0 });
    assert_eq!(error(10, 0, 2, usize::MAX / 2), SamplerError::GlobalBatch { world: 2, batch: usize::MAX / 2 });
    let more = error(3, 0, 4, 1);
    assert_eq!(more.to_string(), "more ranks than samples: 4 ranks, 3 samples (start at most 3 ranks)");
    let nothing = Sampler::new(7, 0, 2, 4).unwrap().remainder(Remainder::Drop).unwrap_err();
    assert_eq!(nothing, SamplerError::NothingLeft { samples: 7, global: 8 });
}

#[test]
fn a_state_of_another_run_is_refused_and_changes_nothing() {
    let mut sampler = Sampler::new(100, 1, 2, 8).unwrap().order(Order::Shuffled { seed: 5 });
    sampler.next_batch();
    let before = sampler.state();
    let cases = [
        (SamplerState { samples: 90, ..before }, "samples 90, this run has samples 100"),
        (SamplerState { world: 4, ..before }, "world size 4, this run has world size 2"),
        (SamplerState { batch: 4, ..before }, "batch size 4, this run has batch size 8"),
        (
            SamplerState { order: Order::Sequential, ..before },
            "order sequential, this run has order shuffled with seed 5",
        ),
        (SamplerState { order: Order::Shuffled { seed: 6 }, ..before }, "shuffled with seed 6"),
        (
            SamplerState { remainder: Remainder::Drop, ..before },
            "remainder policy drop, this run has remainder policy wrap",
        ),
        (SamplerState { step: 7, ..before }, "step 7 is past the end of an epoch of 7 steps"),
    ];
    for (state, text) in cases {
        let error = sampler.restore(&state).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
        assert_eq!(sampler.state(), before);
    }
}
