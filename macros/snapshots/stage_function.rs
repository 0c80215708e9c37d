pub(crate) fn to_hidden(x: X) -> StageResult<Y> {
    body
}
///The stage that `to_hidden` is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ToHidden;
#[automatically_derived]
#[allow(clippy::useless_conversion)]
impl ::hccl::pipeline::Stage for ToHidden {
    type In = X;
    type Out = Y;
    fn forward(
        &mut self,
        pass: ::hccl::pipeline::Pass,
        input: Self::In,
    ) -> ::hccl::pipeline::StageResult<Self::Out> {
        let _ = pass;
        to_hidden(input).map_err(::core::convert::Into::into)
    }
}
