//! Tensors, differentiable collectives, data parallelism, optimizers and checkpoints over ranks as threads.

mod checkpoint;
mod ops;
mod optim;
mod parallel;
mod policies;
mod segments;
mod support;
mod tensor;
