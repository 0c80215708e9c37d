//! The operations: their names, their lengths, their calls, and what they should give.

use hccl::{Communicator, InPlace, OpKind, ReduceOp, Source};

use super::cell::{Cell, Reducing};

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    Scatter,
    Gather,
    AllToAll,
    SendRecv,
    Barrier,
}

/// What a cell of an output should hold, in terms of what the ranks gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Cell `.0` of all ranks' inputs, reduced.
    Reduced(usize),
    /// Cell `.1` of the input of rank `.0`.
    Copied(usize, usize),
}

impl Operation {
    pub(crate) const ALL: [Operation; 10] = [
        Operation::AllReduce,
        Operation::Reduce,
        Operation::Broadcast,
        Operation::AllGather,
        Operation::ReduceScatter,
        Operation::Scatter,
        Operation::Gather,
        Operation::AllToAll,
        Operation::SendRecv,
        Operation::Barrier,
    ];

    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::AllReduce => "all-reduce",
            Operation::Reduce => "reduce",
            Operation::Broadcast => "broadcast",
            Operation::AllGather => "all-gather",
            Operation::ReduceScatter => "reduce-scatter",
            Operation::Scatter => "scatter",
            Operation::Gather => "gather",
            Operation::AllToAll => "all-to-all",
            Operation::SendRecv => "send-recv",
            Operation::Barrier => "barrier",
        }
    }

    /// The name in CSV files: MPI's, with the dtype where elements are reduced.
    pub(crate) fn csv_name(self, dtype: &str) -> String {
        match self {
            Operation::AllReduce => format!("allreduce_{dtype}"),
            Operation::Reduce => format!("reduce_{dtype}"),
            Operation::ReduceScatter => format!("reduce_scatter_{dtype}"),
            Operation::Broadcast => "bcast".into(),
            Operation::AllGather => "allgather".into(),
            Operation::Scatter => "scatter".into(),
            Operation::Gather => "gather".into(),
            Operation::AllToAll => "alltoall".into(),
            Operation::SendRecv => "pingpong_half".into(),
            Operation::Barrier => "barrier".into(),
        }
    }

    pub(crate) fn reduces(self) -> bool {
        matches!(self, Operation::AllReduce | Operation::Reduce | Operation::ReduceScatter)
    }

    /// True when the larger buffer is one part for each rank.
    fn has_parts(self) -> bool {
        use Operation::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
        matches!(self, AllGather | ReduceScatter | Scatter | Gather | AllToAll)
    }

    /// Elements of the larger buffer for about `bytes` bytes: at least one, and whole parts.
    pub(crate) fn elements(self, bytes: u64, width: usize, ranks: usize) -> usize {
        let elements = (bytes as usize / width).max(1);
        match self {
            Operation::Barrier => 0,
            _ if self.has_parts() => (elements / ranks).max(1) * ranks,
            _ => elements,
        }
    }

    /// Elements of the input and of the output.
    pub(crate) fn lengths(self, elements: usize, ranks: usize, in_place: bool) -> (usize, usize) {
        match self {
            _ if in_place && self.is_in_place() => (0, elements),
            Operation::Broadcast => (0, elements),
            Operation::AllGather | Operation::Gather => (elements / ranks, elements),
            Operation::ReduceScatter | Operation::Scatter => (elements, elements / ranks),
            _ => (elements, elements),
        }
    }

    /// True for those that `--in-place` changes.
    pub(crate) fn is_in_place(self) -> bool {
        use Operation::{AllGather, AllReduce, Reduce, ReduceScatter};
        matches!(self, AllReduce | Reduce | AllGather | ReduceScatter)
    }

    /// Calls of the collective in one timed piece of work: a round trip is two messages.
    pub(crate) fn calls(self) -> f64 {
        if self == Operation::SendRecv { 2.0 } else { 1.0 }
    }

    /// Bus bandwidth over algorithm bandwidth: how often the busiest link carries each byte.
    pub(crate) fn bus_factor(self, ranks: usize) -> f64 {
        let others = (ranks as f64 - 1.0) / ranks as f64;
        match self {
            Operation::AllReduce => 2.0 * others,
            _ if self.has_parts() => others,
            _ => 1.0,
        }
    }

    /// The input cell of `rank` that stands at cell `i` of its output before a call in place, if any does.
    pub(crate) fn initial(self, i: usize, rank: usize, ranks: usize, elements: usize) -> Option<usize> {
        match self {
            Operation::Broadcast => (rank == 0).then_some(i),
            Operation::AllGather => (i / (elements / ranks) == rank).then(|| i % (elements / ranks)),
            _ => Some(i),
        }
    }

    /// What the output of `rank` holds at cell `i`, or `None` when the operation leaves it alone.
    pub(crate) fn expected(
        self,
        i: usize,
        rank: usize,
        ranks: usize,
        elements: usize,
        in_place: bool,
    ) -> Option<Origin> {
        let part = (elements / ranks).max(1);
        match self {
            Operation::AllReduce => Some(Origin::Reduced(i)),
            Operation::Reduce => (rank == 0).then_some(Origin::Reduced(i)),
            Operation::Broadcast => Some(Origin::Copied(0, i)),
            Operation::AllGather => Some(Origin::Copied(i / part, i % part)),
            Operation::Gather => (rank == 0).then_some(Origin::Copied(i / part, i % part)),
            Operation::ReduceScatter if in_place => (i / part == rank).then_some(Origin::Reduced(i)),
            Operation::ReduceScatter => Some(Origin::Reduced(rank * part + i)),
            Operation::Scatter => Some(Origin::Copied(0, rank * part + i)),
            Operation::AllToAll => Some(Origin::Copied(i / part, rank * part + i % part)),
            Operation::SendRecv => (rank < 2).then(|| Origin::Copied(1 - rank, i)),
            Operation::Barrier => None,
        }
    }

    /// Does it once.
    pub(crate) fn call<T, S, R>(
        self,
        comm: &Communicator,
        op: OpKind,
        in_place: bool,
        send: &S,
        recv: &mut R,
    ) -> hccl::Result<()>
    where
        T: Cell,
        S: Source<Elem = T> + ?Sized,
        R: InPlace<Elem = T> + ?Sized,
    {
        let root = comm.root(0)?;
        let is_root = comm.is_root(root);
        match self {
            Operation::AllReduce | Operation::Reduce | Operation::ReduceScatter => {
                T::reduce(op, Reduction { operation: self, comm, in_place, send, recv })
            }
            Operation::Broadcast => comm.broadcast(recv, root),
            Operation::AllGather if in_place => comm.all_gather_in_place(recv),
            Operation::AllGather => comm.all_gather(send, recv),
            Operation::Scatter => comm.scatter(is_root.then_some(send), recv, root),
            Operation::Gather => comm.gather(send, is_root.then_some(recv), root),
            Operation::AllToAll => comm.all_to_all(send, recv),
            Operation::SendRecv => match comm.rank().index() {
                0 => comm.send(send, comm.peer(1)?).and_then(|()| comm.recv(recv, comm.peer(1)?)),
                1 => comm.recv(recv, comm.peer(0)?).and_then(|()| comm.send(send, comm.peer(0)?)),
                _ => Ok(()),
            },
            Operation::Barrier => comm.barrier(),
        }
    }
}

/// A reduction that waits for its operation's type.
struct Reduction<'a, S: ?Sized, R: ?Sized> {
    operation: Operation,
    comm: &'a Communicator,
    in_place: bool,
    send: &'a S,
    recv: &'a mut R,
}

impl<T: Cell, S: Source<Elem = T> + ?Sized, R: InPlace<Elem = T> + ?Sized> Reducing<T> for Reduction<'_, S, R> {
    fn with<Op: ReduceOp<T>>(self, op: Op) -> hccl::Result<()> {
        let Reduction { operation, comm, in_place, send, recv } = self;
        let root = comm.root(0)?;
        match (operation, in_place) {
            (Operation::AllReduce, true) => comm.all_reduce(recv, op),
            (Operation::AllReduce, false) => comm.all_reduce_into(send, recv, op),
            (Operation::Reduce, true) => comm.reduce(recv, op, root),
            (Operation::Reduce, false) => comm.reduce_into(send, comm.is_root(root).then_some(recv), op, root),
            (_, true) => comm.reduce_scatter_in_place(recv, op),
            (_, false) => comm.reduce_scatter(send, recv, op),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_whole_parts_of_at_least_one_element() {
        for operation in Operation::ALL.into_iter().filter(|operation| *operation != Operation::Barrier) {
            for (bytes, ranks) in [(0, 3), (8, 3), (1000, 7), (4096, 4)] {
                let elements = operation.elements(bytes, 4, ranks);
                assert!(elements > 0 && (!operation.has_parts() || elements.is_multiple_of(ranks)), "{operation:?}");
                for in_place in [false, true] {
                    let (send, recv) = operation.lengths(elements, ranks, in_place);
                    assert_eq!(send.max(recv), elements, "{operation:?}");
                }
            }
        }
    }

    #[test]
    fn origins_lie_inside_the_inputs() {
        for operation in Operation::ALL {
            for ranks in [2, 3] {
                let elements = operation.elements(100, 4, ranks);
                let (send, recv) = operation.lengths(elements, ranks, false);
                let input = if operation == Operation::Broadcast { recv } else { send };
                for (rank, i) in (0..ranks).flat_map(|rank| (0..recv).map(move |i| (rank, i))) {
                    match operation.expected(i, rank, ranks, elements, false) {
                        Some(Origin::Reduced(cell)) => assert!(cell < input),
                        Some(Origin::Copied(from, cell)) => assert!(from < ranks && cell < input),
                        None => assert!(rank > 0, "{operation:?}"),
                    }
                }
            }
        }
    }
}
