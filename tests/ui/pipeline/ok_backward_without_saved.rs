//! The forward pass of a stage that is trained also returns what the backward pass needs.
use hccl::pipeline::{Act, Dyn, Grad, StageResult};

type X = Act<f32, (Dyn,)>;

struct Own;

#[hccl::stage]
impl Own {
    fn forward(&self, x: X) -> StageResult<(X, X)> {
        Ok((x.clone(), x))
    }

    fn backward(&mut self, saved: X, grad: Grad<X>) -> StageResult<Grad<X>> {
        Ok(grad.map(|g| g * saved.data()[0]))
    }
}

fn main() {
    assert!(Own.forward(X::new([1], vec![1.0]).unwrap()).is_ok());
}
