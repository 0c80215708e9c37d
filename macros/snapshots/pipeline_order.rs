#[derive(Clone, Copy, Debug)]
struct ByHand;
///A stage of [`ByHand`] that this rank holds, with the proof that it does.
#[allow(dead_code)]
#[derive(Debug)]
enum ByHandRole<'p> {
    ///This rank holds `First`.
    First(::hccl::pipeline::At<'p, Half>),
    ///This rank holds `Second`.
    Second(::hccl::pipeline::At<'p, Half>),
}
#[allow(dead_code)]
impl ByHand {
    /**Ranks of the pipeline.

```text
gpipe: 2 ranks, 1 microbatches, 6 ticks; idle 50.0 % of the time (100.0 % of the work)
rank 0 |F0 .  .  .  B0 B0
rank 1 |.  F0 B0 B0
a column is 1 tick; F forward, B backward; . waits, = transfers
no time lost to blocking messages
```*/
    const RANKS: usize = 2usize;
    /// The digest of the plan, checked while this was compiled.
    const DIGEST: u64 = 17496376729035323494u64;
    /// The plan on this many ranks.
    ///
    /// # Errors
    /// `InvalidArgument` for numbers that the schedule has no order for.
    fn plan(ranks: usize) -> ::hccl::Result<::hccl::pipeline::Plan> {
        ::core::result::Result::Ok(
            ::hccl::pipeline::Plan::by_hand(
                ::hccl::pipeline::Schedule::GPipe,
                ranks,
                1usize,
                ::hccl::pipeline::Costs::new(1u32, 1u32, 1u32).with_transfer(0u32),
                ::std::vec![
                    ::std::vec![::hccl::pipeline::Action::Compute(::hccl::pipeline::Work
                    { phase : ::hccl::pipeline::Phase::Forward, stage : 0usize,
                    microbatch : 0usize }),
                    ::hccl::pipeline::Action::Send(::hccl::pipeline::Message { channel :
                    ::hccl::pipeline::Channel { edge : 0usize, direction :
                    ::hccl::pipeline::Direction::Forward }, microbatch : 0usize, }),
                    ::hccl::pipeline::Action::Recv(::hccl::pipeline::Message { channel :
                    ::hccl::pipeline::Channel { edge : 0usize, direction :
                    ::hccl::pipeline::Direction::Backward }, microbatch : 0usize, }),
                    ::hccl::pipeline::Action::Compute(::hccl::pipeline::Work { phase :
                    ::hccl::pipeline::Phase::Backward, stage : 0usize, microbatch :
                    0usize })],
                    ::std::vec![::hccl::pipeline::Action::Recv(::hccl::pipeline::Message
                    { channel : ::hccl::pipeline::Channel { edge : 0usize, direction :
                    ::hccl::pipeline::Direction::Forward }, microbatch : 0usize, }),
                    ::hccl::pipeline::Action::Compute(::hccl::pipeline::Work { phase :
                    ::hccl::pipeline::Phase::Forward, stage : 1usize, microbatch : 0usize
                    }), ::hccl::pipeline::Action::Compute(::hccl::pipeline::Work { phase
                    : ::hccl::pipeline::Phase::Backward, stage : 1usize, microbatch :
                    0usize }), ::hccl::pipeline::Action::Send(::hccl::pipeline::Message {
                    channel : ::hccl::pipeline::Channel { edge : 0usize, direction :
                    ::hccl::pipeline::Direction::Backward }, microbatch : 0usize, })]
                ],
            )?,
        )
    }
    /// Joins the ranks of `comm`. `make` is called once for each stage of this rank, with its role, and gives it to
    /// `at.hold`.
    ///
    /// # Errors
    /// On every rank the same: `Rank` when making a stage failed on a rank, `InvalidArgument` when stages and ranks do
    /// not fit, `Mismatch` when the ranks' pipelines differ; what fails the group.
    fn train<A: ::hccl::Axis>(
        comm: &::hccl::Communicator<A>,
        mut make: impl for<'p> ::core::ops::FnMut(
            ByHandRole<'p>,
        ) -> ::hccl::pipeline::StageResult<::hccl::pipeline::Held<'p>>,
    ) -> ::hccl::Result<
        ::hccl::pipeline::Trainer<
            A,
            <Half as ::hccl::pipeline::Train>::In,
            <Half as ::hccl::pipeline::Train>::Out,
        >,
    > {
        let plan = Self::plan(Self::RANKS)?;
        ::hccl::pipeline::train(comm, plan)
            .stage::<
                Half,
            >(|at| {
                let held = make(ByHandRole::First(at.again()))?;
                at.made(held)
            })
            .stage::<
                Half,
            >(|at| {
                let held = make(ByHandRole::Second(at.again()))?;
                at.made(held)
            })
            .build()
    }
}
