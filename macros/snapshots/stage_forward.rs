impl Embed {
    fn load(seed: u64) -> Self {
        Embed
    }
    pub fn forward(
        &self,
        ids: Act<u32, (Batch,)>,
    ) -> Result<Act<f32, (Batch, Hidden)>, MyError> {
        todo()
    }
}
const _: () = {
    #[automatically_derived]
    #[allow(clippy::useless_conversion)]
    impl ::hccl::pipeline::Stage for Embed {
        type In = Act<u32, (Batch,)>;
        type Out = Act<f32, (Batch, Hidden)>;
        fn forward(
            &mut self,
            pass: ::hccl::pipeline::Pass,
            input: Self::In,
        ) -> ::hccl::pipeline::StageResult<Self::Out> {
            let _ = pass;
            <Embed>::forward(self, input).map_err(::core::convert::Into::into)
        }
    }
};
