impl<T: Copy> Scale<T>
where
    T: Send,
{
    fn forward(&mut self, pass: Pass, x: X) -> hccl::Result<(X, Saved<T>)> {
        body
    }
    fn backward(&mut self, saved: Saved<T>, grad: Grad<X>) -> hccl::Result<Grad<X>> {
        body
    }
}
const _: () = {
    #[automatically_derived]
    #[allow(clippy::useless_conversion)]
    impl<T: Copy> renamed::hccl::pipeline::Train for Scale<T>
    where
        T: Send,
    {
        type In = X;
        type Out = X;
        type Saved = Saved<T>;
        fn forward(
            &mut self,
            pass: renamed::hccl::pipeline::Pass,
            input: Self::In,
        ) -> renamed::hccl::pipeline::StageResult<(Self::Out, Self::Saved)> {
            let _ = pass;
            <Scale<T>>::forward(self, pass, input).map_err(::core::convert::Into::into)
        }
        fn backward(
            &mut self,
            saved: Self::Saved,
            grad: renamed::hccl::pipeline::Grad<Self::Out>,
        ) -> renamed::hccl::pipeline::StageResult<
            renamed::hccl::pipeline::Grad<Self::In>,
        > {
            <Scale<T>>::backward(self, saved, grad).map_err(::core::convert::Into::into)
        }
    }
};
