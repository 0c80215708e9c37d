//! Dimensions are declared.
use hccl::pipeline::Act;

hccl::dim!(Batch);

fn main() -> hccl::Result<()> {
    let x = Act::<f32, (Batch,)>::new([2], vec![1.0, 2.0])?;
    assert_eq!(x.dims(), [2]);
    Ok(())
}
