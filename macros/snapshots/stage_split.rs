impl Linear {
    fn forward(&self, x: X) -> StageResult<(X, X)> {
        body
    }
    fn backward_input(&self, saved: X, grad: X) -> StageResult<(X, (X, X))> {
        body
    }
    fn backward_weight(&mut self, queued: (X, X)) -> StageResult<()> {
        body
    }
    fn release(&mut self, slot: usize) {}
}
const _: () = {
    #[automatically_derived]
    #[allow(clippy::useless_conversion)]
    impl ::hccl::pipeline::Train for Linear {
        type In = X;
        type Out = X;
        type Saved = X;
        fn forward(
            &mut self,
            pass: ::hccl::pipeline::Pass,
            input: Self::In,
        ) -> ::hccl::pipeline::StageResult<(Self::Out, Self::Saved)> {
            let _ = pass;
            <Linear>::forward(self, input).map_err(::core::convert::Into::into)
        }
        fn backward(
            &mut self,
            saved: Self::Saved,
            grad: ::hccl::pipeline::Grad<Self::Out>,
        ) -> ::hccl::pipeline::StageResult<::hccl::pipeline::Grad<Self::In>> {
            let (grad, queued) = ::hccl::pipeline::SplitTrain::backward_input(
                self,
                saved,
                grad,
            )?;
            ::hccl::pipeline::SplitTrain::backward_weight(self, queued)?;
            ::core::result::Result::Ok(grad)
        }
        fn into_chunk(self) -> ::hccl::pipeline::IntoChunk {
            ::hccl::pipeline::IntoChunk::split(self)
        }
        fn release(&mut self, slot: usize) {
            <Linear>::release(self, slot);
        }
    }
    #[automatically_derived]
    #[allow(clippy::useless_conversion)]
    impl ::hccl::pipeline::SplitTrain for Linear {
        type Queued = (X, X);
        fn backward_input(
            &mut self,
            saved: Self::Saved,
            grad: ::hccl::pipeline::Grad<Self::Out>,
        ) -> ::hccl::pipeline::StageResult<
            (::hccl::pipeline::Grad<Self::In>, Self::Queued),
        > {
            <Linear>::backward_input(self, saved, grad)
                .map_err(::core::convert::Into::into)
        }
        fn backward_weight(
            &mut self,
            queued: Self::Queued,
        ) -> ::hccl::pipeline::StageResult<()> {
            <Linear>::backward_weight(self, queued).map_err(::core::convert::Into::into)
        }
    }
};
