//! What a forward pass saved is used once.
use hccl::pipeline::{Act, Dyn, Fixed, StageResult};

type X = Act<f32, (Dyn, Fixed<1>)>;

struct Scale(f32, f32);

#[hccl::stage]
impl Scale {
    fn forward(&self, x: X) -> StageResult<(X, X)> {
        Ok((x.clone().map(|x| x * self.0), x))
    }

    fn backward(&mut self, saved: X, grad: X) -> StageResult<X> {
        self.1 += sum(saved);
        self.1 += sum(grad.clone());
        Ok(grad.map(|g| g * self.0))
    }
}

fn sum(x: X) -> f32 {
    x.data().iter().sum()
}

fn main() {
    let mut scale = Scale(2.0, 0.0);
    let x = X::new([1, 1], vec![3.0]).unwrap();
    let (y, saved) = scale.forward(x).unwrap();
    assert_eq!(scale.backward(saved, y).unwrap().data(), [12.0]);
}
