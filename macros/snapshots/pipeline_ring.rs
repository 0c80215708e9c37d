/// Generates.
#[derive(Clone, Copy, Debug)]
struct Llama;
///A stage of [`Llama`] that this rank holds, with the proof that it does.
#[allow(dead_code)]
#[derive(Debug)]
enum LlamaRole<'p> {
    ///This rank holds `Embed`.
    Embed(renamed::pipeline::At<'p, Embed>),
    ///This rank holds `Blocks`.
    Blocks(renamed::pipeline::At<'p, Blocks>),
    ///This rank holds `Head`.
    Head(renamed::pipeline::At<'p, Head>),
}
#[allow(dead_code)]
impl Llama {
    /// The plan on this many ranks.
    ///
    /// # Errors
    /// `InvalidArgument` for numbers that the schedule has no order for.
    fn plan(ranks: usize, slots: usize) -> renamed::Result<renamed::pipeline::Plan> {
        ::core::result::Result::Ok(
            renamed::pipeline::Plan::new(
                renamed::pipeline::Schedule::ForwardOnly(renamed::pipeline::Flow::Ring {
                    rounds: {
                        let number: usize = ROUNDS + 1;
                        number
                    },
                }),
                ranks,
                slots,
                renamed::pipeline::Costs::new(1u32, 1u32, 1u32).with_transfer(0u32),
            )?,
        )
    }
    /// Joins the ranks of `comm`. `make` is called once for each stage of this rank, with its role, and gives it to
    /// `at.hold`.
    ///
    /// # Errors
    /// On every rank the same: `Rank` when making a stage failed on a rank, `InvalidArgument` when stages and ranks do
    /// not fit, `Mismatch` when the ranks' pipelines differ; what fails the group.
    fn infer<A: renamed::Axis>(
        comm: &renamed::Communicator<A>,
        slots: usize,
        mut make: impl for<'p> ::core::ops::FnMut(
            LlamaRole<'p>,
        ) -> renamed::pipeline::StageResult<renamed::pipeline::Held<'p>>,
    ) -> renamed::Result<
        renamed::pipeline::Ring<
            A,
            <Embed as renamed::pipeline::Stage>::In,
            <Head as renamed::pipeline::Stage>::Out,
            Act<u32, (Fixed<1>,)>,
        >,
    > {
        const _: fn() = || {
            fn returns<
                First: renamed::pipeline::Payload,
                Back: renamed::pipeline::Returns<First>,
            >() {}
            returns::<<Embed as renamed::pipeline::Stage>::In, Act<u32, (Fixed<1>,)>>();
        };
        let plan = Self::plan(comm.size(), slots)?;
        let rest = plan.stages().saturating_sub(0usize + 1 + 0 + 1);
        renamed::pipeline::infer(comm, plan)
            .stage::<
                Embed,
            >(|at| {
                let held = make(LlamaRole::Embed(at.again()))?;
                at.made(held)
            })
            .stages::<
                Blocks,
            >(
                rest,
                |at| {
                    let held = make(LlamaRole::Blocks(at.again()))?;
                    at.made(held)
                },
            )
            .stage::<
                Head,
            >(|at| {
                let held = make(LlamaRole::Head(at.again()))?;
                at.made(held)
            })
            .build_ring::<Act<u32, (Fixed<1>,)>>()
    }
}
