//! A stage takes the dimensions that the stage before makes.
use hccl::pipeline::{Act, Dyn, Fixed, StageResult};

struct Front;
struct Back;

#[hccl::stage]
impl Front {
    fn forward(&self, x: Act<f32, (Dyn,)>) -> StageResult<Act<f32, (Dyn, Fixed<2>)>> {
        Ok(Act::new([x.dims()[0], 2], [x.data(), x.data()].concat())?)
    }
}

#[hccl::stage]
impl Back {
    fn forward(&self, x: Act<f32, (Dyn, Fixed<2>)>) -> StageResult<Act<f32, (Dyn,)>> {
        Ok(Act::new([2], vec![x.data()[0] as f32, 1.0])?)
    }
}

hccl::pipeline! {
    struct Net = Front => Back;
    schedule = fill_drain(microbatches = 2);
}

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let mut net = Net::infer(&comm, |role| {
            Ok(match role {
                NetRole::Front(at) => at.hold(Front),
                NetRole::Back(at) => at.hold(Back),
            })
        })?;
        net.run(|_| Ok(Act::new([1], vec![3.0])?), |_, y| Ok(assert_eq!(y.data(), [3.0, 1.0])))
    })?;
    Ok(())
}
