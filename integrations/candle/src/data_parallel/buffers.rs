//! Variables without gradient: kept together by policy.

use super::options::{Buffers, Options};
use super::parameters::{describe, sorted};
use crate::error::{Error, Result};
use crate::storage::{self, Elem, Visit, VisitMut};
use crate::tensor::TensorCollectives;
use candle_core::Var;
use hccl::{Avg, Axis, Communicator, DeviceBuffer};

/// The buffers of a model, in order of names.
#[derive(Debug)]
pub(crate) struct BufferSet {
    named: Vec<(String, Var, Buffers)>,
    /// Memory for the floats of each policy, reused every step; f64 holds every float exactly.
    broadcast: Option<DeviceBuffer<f64>>,
    average: Option<DeviceBuffer<f64>>,
}

impl BufferSet {
    pub(super) fn new(vars: Vec<(String, Var)>, options: &Options) -> Result<Self> {
        let mut named = Vec::with_capacity(vars.len());
        for (name, var) in sorted(vars)? {
            let policy = options.policy(&name).unwrap_or(Buffers::Local);
            if policy == Buffers::Average && var.dtype().is_int() {
                return Err(Error::invalid(format!(
                    "the buffer `{name}` is {:?} and cannot be averaged (hint: Buffers::Broadcast or Local)",
                    var.dtype()
                )));
            }
            named.push((name, var, policy));
        }
        Ok(BufferSet { named, broadcast: None, average: None })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Var)> {
        self.named.iter().map(|(name, var, _)| (name.as_str(), var))
    }

    pub(crate) fn policy(&self, name: &str) -> Buffers {
        let at = self.named.binary_search_by(|(known, _, _)| known.as_str().cmp(name));
        at.map_or(Buffers::Local, |at| self.named[at].2)
    }

    /// A line for each: name, dtype, shape and policy.
    pub(super) fn lines(&self) -> Vec<String> {
        self.named.iter().map(|(name, var, policy)| format!("buffer {} {policy:?}", describe(name, var))).collect()
    }

    /// Brings the ranks' buffers together.
    pub(super) fn sync<A: Axis>(&mut self, comm: &Communicator<A>) -> Result<()> {
        let floats = |policy| move |(_, var, own): &&(String, Var, Buffers)| *own == policy && !var.dtype().is_int();
        let vars = |policy| self.named.iter().filter(floats(policy)).map(|(_, var, _)| var);
        flat(comm, &mut self.average, vars(Buffers::Average), |memory| Ok(comm.all_reduce(memory, Avg)?))?;
        let root = comm.root(0)?;
        flat(comm, &mut self.broadcast, vars(Buffers::Broadcast), |memory| Ok(comm.broadcast(memory, root)?))?;
        for (_, var, policy) in &self.named {
            if *policy == Buffers::Broadcast && var.dtype().is_int() {
                comm.broadcast_tensor(var, root)?;
            }
        }
        Ok(())
    }
}

/// Runs a collective on all these variables together.
fn flat<'a, A: Axis>(
    comm: &Communicator<A>,
    memory: &mut Option<DeviceBuffer<f64>>,
    vars: impl Iterator<Item = &'a Var> + Clone,
    run: impl FnOnce(&mut DeviceBuffer<f64>) -> Result<()>,
) -> Result<()> {
    let len = vars.clone().map(|var| var.elem_count()).sum();
    if len == 0 {
        return Ok(());
    }
    let mut values = Vec::with_capacity(len);
    for var in vars.clone() {
        storage::read("buffers", var, Append(&mut values))?;
    }
    let mut buffer = match memory.take() {
        Some(buffer) => buffer,
        None => comm.zeros(len)?,
    };
    buffer.copy_from_slice(&values)?;
    run(&mut buffer)?;
    let values = buffer.to_vec()?;
    let mut rest = values.as_slice();
    for var in vars {
        let (own, after) = rest.split_at(var.elem_count());
        storage::write("buffers", var, Overwrite(own))?;
        rest = after;
    }
    *memory = Some(buffer);
    Ok(())
}

struct Append<'a>(&'a mut Vec<f64>);

impl Visit for Append<'_> {
    type Out = ();

    fn visit<T: Elem>(self, values: &[T]) -> Result<()> {
        self.0.extend(values.iter().map(|x| x.to_f64()));
        Ok(())
    }
}

struct Overwrite<'a>(&'a [f64]);

impl VisitMut for Overwrite<'_> {
    type Out = ();

    fn visit<T: Elem>(self, values: &mut [T]) -> Result<()> {
        values.iter_mut().zip(self.0).for_each(|(to, &x)| *to = T::from_f64(x));
        Ok(())
    }
}
