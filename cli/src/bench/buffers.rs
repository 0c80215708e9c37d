//! The memory that is measured: made once, for the largest point, and lent in part.

use hccl::{Communicator, DeviceBuffer, InPlace, Source};

use super::cell::Cell;
use super::operation::{Operation, Origin};
use super::plan::Plan;

/// Input and output of one rank.
pub(crate) enum Buffers<T> {
    Device(DeviceBuffer<T>, DeviceBuffer<T>),
    Slice(Vec<T>, Vec<T>),
}

/// One operation on one number of elements, on one rank.
pub(crate) struct Work<'a> {
    pub(crate) comm: &'a Communicator,
    pub(crate) plan: &'a Plan,
    pub(crate) operation: Operation,
    /// Elements of the larger buffer.
    pub(crate) elements: usize,
}

impl<T: Cell> Buffers<T> {
    /// # Errors
    /// `Resource` without memory.
    pub(crate) fn new(comm: &Communicator, elements: usize, slices: bool) -> hccl::Result<Self> {
        if slices {
            return Ok(Buffers::Slice(vec![T::poison(); elements], vec![T::poison(); elements]));
        }
        let (mut send, mut recv) = (comm.zeros::<T>(elements)?, comm.zeros::<T>(elements)?);
        // Touched, so that no page is new in a timed call.
        send.fill(T::poison())?;
        recv.fill(T::poison())?;
        Ok(Buffers::Device(send, recv))
    }

    fn host(&mut self) -> (&mut [T], &mut [T]) {
        match self {
            Buffers::Device(send, recv) => {
                (send.as_mut_slice().unwrap_or_default(), recv.as_mut_slice().unwrap_or_default())
            }
            Buffers::Slice(send, recv) => (send, recv),
        }
    }

    /// Writes the inputs of `work`, and poisons its output.
    pub(crate) fn fill(&mut self, work: &Work<'_>) {
        let (rank, ranks) = (work.comm.rank().index(), work.comm.size());
        let (send_len, recv_len) = work.lengths();
        let (send, recv) = self.host();
        send[..send_len].iter_mut().enumerate().for_each(|(i, cell)| *cell = T::at(rank, i));
        let initial = |i| match work.holds_input_in_place() {
            true => work.operation.initial(i, rank, ranks, work.elements),
            false => None,
        };
        for (i, cell) in recv[..recv_len].iter_mut().enumerate() {
            *cell = initial(i).map_or_else(T::poison, |from| T::at(rank, from));
        }
    }

    /// How many elements of the output are not what they should be.
    pub(crate) fn count_wrong(&mut self, work: &Work<'_>) -> u64 {
        let (rank, ranks) = (work.comm.rank().index(), work.comm.size());
        let recv_len = work.lengths().1;
        let (_, recv) = self.host();
        let wrong = |i: &usize| {
            let origin = work.operation.expected(*i, rank, ranks, work.elements, work.in_place());
            origin.is_some_and(|origin| recv[*i] != value(origin, work.plan.op, ranks))
        };
        (0..recv_len).filter(wrong).count() as u64
    }

    /// Lends the buffers to `work`, which `run` may do as often as it likes.
    pub(crate) fn lend<O>(
        &mut self,
        work: &Work<'_>,
        run: impl FnOnce(&mut dyn FnMut() -> hccl::Result<()>) -> hccl::Result<O>,
    ) -> hccl::Result<O> {
        let (send_len, recv_len) = work.lengths();
        match self {
            Buffers::Device(send, recv) => {
                let (send, mut recv) = (send.range(..send_len)?, recv.range_mut(..recv_len)?);
                run(&mut || work.call(&send, &mut recv))
            }
            Buffers::Slice(send, recv) => {
                let (send, recv) = (&send[..send_len], &mut recv[..recv_len]);
                run(&mut || work.call(send, &mut *recv))
            }
        }
    }
}

fn value<T: Cell>(origin: Origin, op: hccl::OpKind, ranks: usize) -> T {
    match origin {
        Origin::Copied(rank, i) => T::at(rank, i),
        Origin::Reduced(i) => T::fold(op, (0..ranks).map(|rank| T::at(rank, i))),
    }
}

impl Work<'_> {
    fn in_place(&self) -> bool {
        self.plan.in_place && self.operation.is_in_place()
    }

    fn holds_input_in_place(&self) -> bool {
        self.in_place() || self.operation == Operation::Broadcast
    }

    fn lengths(&self) -> (usize, usize) {
        self.operation.lengths(self.elements, self.comm.size(), self.plan.in_place)
    }

    fn call<T, S, R>(&self, send: &S, recv: &mut R) -> hccl::Result<()>
    where
        T: Cell,
        S: Source<Elem = T> + ?Sized,
        R: InPlace<Elem = T> + ?Sized,
    {
        self.operation.call(self.comm, self.plan.op, self.plan.in_place, send, recv)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Bench, Plan};
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bench: Bench,
    }

    fn plan(flags: &[&str]) -> Plan {
        Plan::of(Line::parse_from(["bench"].iter().chain(flags)).bench).unwrap()
    }

    #[test]
    fn a_wrong_element_is_counted_wherever_it_stands() {
        for flags in [&[][..], &["--in-place"], &["--buffers", "slice"], &["--op", "avg"]] {
            let plan = plan(flags);
            hccl::local(3, |comm| {
                let mut buffers = Buffers::<f32>::new(&comm, 64, plan.slices)?;
                for operation in Operation::ALL {
                    let work = Work { comm: &comm, plan: &plan, operation, elements: operation.elements(156, 4, 3) };
                    buffers.fill(&work);
                    buffers.lend(&work, |call| call())?;
                    assert_eq!(buffers.count_wrong(&work), 0, "{operation:?} {flags:?}");
                    for i in 0..work.lengths().1 {
                        let checked =
                            operation.expected(i, comm.rank().index(), 3, work.elements, work.in_place()).is_some();
                        let cell = &mut buffers.host().1[i];
                        let right = std::mem::replace(cell, 3e8);
                        assert_eq!(buffers.count_wrong(&work), u64::from(checked), "{operation:?} {i}");
                        buffers.host().1[i] = right;
                    }
                }
                Ok(())
            })
            .unwrap();
        }
    }

    #[test]
    fn an_operation_that_does_nothing_is_wrong() {
        let plan = plan(&[]);
        hccl::local(2, |comm| {
            let mut buffers = Buffers::<f32>::new(&comm, 64, false)?;
            for operation in Operation::ALL.into_iter().filter(|operation| *operation != Operation::Barrier) {
                let work = Work { comm: &comm, plan: &plan, operation, elements: 16 };
                buffers.fill(&work);
                let wrong = [buffers.count_wrong(&work)];
                let mut all = [0; 2];
                comm.all_gather(&wrong, &mut all)?;
                assert!(all.iter().sum::<u64>() > 0, "{operation:?}");
            }
            Ok(())
        })
        .unwrap();
    }
}
