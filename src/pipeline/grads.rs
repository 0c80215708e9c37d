//! Gradients as a typestate: [`Grads<Local>`] are one replica's own, [`Grads<Synced>`] are the mean over all.
//!
//! Only [`Grads::sync`] makes one of the other, over the group of the data-parallel axis, and only the latter can be
//! applied: a step with gradients that were never synchronised does not compile.

use super::group::Group;
use crate::error::{Error, ErrorKind, Result};
use crate::group::Dp;
use crate::reduce::Avg;
use std::fmt;
use std::marker::PhantomData;

mod sealed {
    pub trait Sealed {}
}

/// Whose gradients these are: [`Local`] or [`Synced`]. Sealed.
pub trait State: sealed::Sealed + 'static {}

/// Gradients of this replica only.
#[derive(Debug)]
pub enum Local {}

/// Gradients over all replicas, with the same bits on each.
#[derive(Debug)]
pub enum Synced {}

impl sealed::Sealed for Local {}
impl sealed::Sealed for Synced {}
impl State for Local {}
impl State for Synced {}

/// A state in which gradients are the same on all replicas: [`Synced`] alone.
#[diagnostic::on_unimplemented(
    message = "these gradients are of this replica only",
    label = "not synchronised: `Grads<{Self}>`",
    note = "`grads.sync(&mut replicas)` makes `Grads<Synced>` of them; only those are applied"
)]
pub trait Synchronised: State {}

impl Synchronised for Synced {}

/// Gradients of a stage's weights, one buffer a parameter, in an order that all replicas share.
///
/// ```
/// use hccl::pipeline::{Grads, Group};
/// use hccl::{Dp, Mesh};
/// let weights = hccl::local(2, |comm| {
///     let mesh = Mesh::new(&comm, (Dp(2),))?;
///     let mut replicas = Group::new(mesh.group::<Dp>());
///     let grads = Grads::local(vec![vec![comm.rank().index() as f32, 1.0]]);
///     let grads = grads.sync(&mut replicas)?; // without this, `descend` does not compile
///     let mut weights = [1.0, 1.0];
///     grads.descend(0, &mut weights, 0.5)?;
///     Ok(weights)
/// })?;
/// assert_eq!(weights, [[0.75, 0.5]; 2]);
/// # Ok::<(), hccl::Error>(())
/// ```
#[must_use = "gradients do nothing until they are synchronised and applied"]
pub struct Grads<S: State> {
    buffers: Vec<Vec<f32>>,
    state: PhantomData<fn() -> S>,
}

impl Grads<Local> {
    /// What this replica's backward passes added up.
    pub fn local(buffers: Vec<Vec<f32>>) -> Self {
        Grads { buffers, state: PhantomData }
    }

    /// The mean over the replicas. Each calls it, with buffers of the same lengths.
    ///
    /// # Errors
    /// `Mismatch` when lengths differ; those of [`all_reduce`](crate::Communicator::all_reduce).
    pub fn sync(mut self, replicas: &mut Group<'_, Dp>) -> Result<Grads<Synced>> {
        for buffer in &mut self.buffers {
            replicas.all_reduce(buffer, Avg)?;
        }
        Ok(Grads { buffers: self.buffers, state: PhantomData })
    }
}

impl<S: State> Grads<S> {
    /// The gradients, one buffer a parameter.
    pub fn buffers(&self) -> &[Vec<f32>]
    where
        S: Synchronised,
    {
        &self.buffers
    }

    /// Takes one step of gradient descent: `weights -= rate * gradient`.
    ///
    /// # Errors
    /// `InvalidArgument` when there is no parameter `index`, `Length` when it has another length.
    pub fn descend(&self, index: usize, weights: &mut [f32], rate: f32) -> Result<()>
    where
        S: Synchronised,
    {
        let Some(buffer) = self.buffers.get(index) else {
            return Err(Error::invalid(format!("there is no gradient {index}, there are {}", self.buffers.len())));
        };
        if weights.len() != buffer.len() {
            let (expected, actual) = (buffer.len(), weights.len());
            return Err(Error::new(ErrorKind::Length { what: "weights", expected, actual }));
        }
        weights.iter_mut().zip(buffer).for_each(|(weight, grad)| *weight -= rate * grad);
        Ok(())
    }
}

impl<S: State> fmt::Debug for Grads<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = std::any::type_name::<S>().rsplit("::").next().unwrap_or_default();
        write!(f, "Grads<{state}> of {} parameters", self.buffers.len())
    }
}
