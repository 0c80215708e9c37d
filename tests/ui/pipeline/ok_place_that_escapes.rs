//! The proof that a rank holds a stage cannot be kept for later.
use hccl::pipeline::{self, Act, At, Dyn, StageResult};

type X = Act<f32, (Dyn,)>;

struct Front;
struct Back;

impl Front {
    fn load(_: &At<Self>) -> Self {
        Front
    }
}

impl Back {
    fn load(_: &At<Self>) -> Self {
        Back
    }
}

#[hccl::stage]
impl Front {
    fn forward(&self, x: X) -> StageResult<X> {
        Ok(x)
    }
}

#[hccl::stage]
impl Back {
    fn forward(&self, x: X) -> StageResult<X> {
        Ok(x)
    }
}

hccl::pipeline! {
    struct Net = Front => Back;
    schedule = fill_drain(microbatches = 2);
}

fn main() -> hccl::Result<()> {
    hccl::local(2, |comm| {
        let mut kept = None;
        let net: pipeline::Inference<_, X, X> = Net::infer(&comm, |role| {
            Ok(match role {
                NetRole::Front(at) => at.hold(Front::load(&at)),
                NetRole::Back(at) => {
                    kept = Some(at.index());
                    at.hold(Back::load(&at))
                }
            })
        })?;
        assert_eq!(kept.is_some(), comm.rank().index() == 1);
        net.finish()
    })?;
    Ok(())
}
