#[derive(Clone, Copy, Debug)]
pub struct Toy;
///A stage of [`Toy`] that this rank holds, with the proof that it does.
#[allow(dead_code)]
#[derive(Debug)]
pub enum ToyRole<'p> {
    ///This rank holds `Embed`.
    Embed(::hccl::pipeline::At<'p, Embed>),
    ///This rank holds `Blocks`.
    Blocks(::hccl::pipeline::At<'p, model::Blocks>),
    ///This rank holds `Head`.
    Head(::hccl::pipeline::At<'p, Head>),
}
#[allow(dead_code)]
impl Toy {
    /**Ranks of the pipeline.

```text
one_f_one_b: 4 ranks, 8 microbatches, 33 ticks; idle 27.3 % of the time (37.5 % of the work)
rank 0 |F0 F1 F2 F3 .  .  .  .  .  .  B0 B0 F4 B1 B1 F5 B2 B2 F6 B3 B3 F7 B4 B4 .  B5 B5 .  B6 B6 .  B7 B7
rank 1 |.  F0 F1 F2 .  .  .  .  B0 B0 F3 B1 B1 F4 B2 B2 F5 B3 B3 F6 B4 B4 F7 B5 B5 .  B6 B6 .  B7 B7
rank 2 |.  .  F0 F1 .  .  B0 B0 F2 B1 B1 F3 B2 B2 F4 B3 B3 F5 B4 B4 F6 B5 B5 F7 B6 B6 .  B7 B7
rank 3 |.  .  .  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 F4 B4 B4 F5 B5 B5 F6 B6 B6 F7 B7 B7
a column is 1 tick; F forward, B backward; . waits, = transfers
no time lost to blocking messages
```*/
    pub const RANKS: usize = 4usize;
    /// The digest of the plan, checked while this was compiled.
    pub const DIGEST: u64 = 3641586892031463945u64;
    /// The plan on this many ranks.
    ///
    /// # Errors
    /// `InvalidArgument` for numbers that the schedule has no order for.
    pub fn plan(ranks: usize) -> ::hccl::Result<::hccl::pipeline::Plan> {
        ::core::result::Result::Ok(
            ::hccl::pipeline::Plan::new(
                ::hccl::pipeline::Schedule::OneFOneB,
                ranks,
                8usize,
                ::hccl::pipeline::Costs::new(1u32, 1u32, 1u32).with_transfer(0u32),
            )?,
        )
    }
    /// Joins the ranks of `comm`. `make` is called once for each stage of this rank, with its role, and gives it to
    /// `at.hold`.
    ///
    /// # Errors
    /// On every rank the same: `Rank` when making a stage failed on a rank, `InvalidArgument` when stages and ranks do
    /// not fit, `Mismatch` when the ranks' pipelines differ; what fails the group.
    pub fn train<A: ::hccl::Axis>(
        comm: &::hccl::Communicator<A>,
        mut make: impl for<'p> ::core::ops::FnMut(
            ToyRole<'p>,
        ) -> ::hccl::pipeline::StageResult<::hccl::pipeline::Held<'p>>,
    ) -> ::hccl::Result<
        ::hccl::pipeline::Trainer<
            A,
            <Embed as ::hccl::pipeline::Train>::In,
            <Head as ::hccl::pipeline::Train>::Out,
        >,
    > {
        let plan = Self::plan(Self::RANKS)?;
        ::hccl::pipeline::train(comm, plan)
            .grad_wire(::hccl::pipeline::Wire::BF16)
            .stage::<
                Embed,
            >(|at| {
                let held = make(ToyRole::Embed(at.again()))?;
                at.made(held)
            })
            .stages::<
                model::Blocks,
            >(
                2usize,
                |at| {
                    let held = make(ToyRole::Blocks(at.again()))?;
                    at.made(held)
                },
            )
            .stage::<
                Head,
            >(|at| {
                let held = make(ToyRole::Head(at.again()))?;
                at.made(held)
            })
            .build()
    }
}
