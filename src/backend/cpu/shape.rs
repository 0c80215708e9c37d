//! Which bytes of which rank go where, for every kind of collective; nothing here touches memory.

use crate::backend::cpu::segment::INLINE;
use crate::backend::{Call, Extent, Kind};

/// A collective whose data is at most this long travels in the slots.
const TINY: usize = if INLINE < 4096 { INLINE } else { 4096 };

impl Call {
    /// Bytes of one element.
    pub(super) fn width(&self) -> usize {
        self.dtype.size()
    }

    /// Bytes that `rank` puts into its slot, or `None` when the call is too large for slots. All ranks agree on which.
    pub(super) fn inline_bytes(&self, rank: usize, size: usize) -> Option<usize> {
        let all = match self.kind {
            Kind::AllToAllV => return None,
            Kind::Scatter | Kind::ReduceScatter | Kind::AllToAll => self.count.checked_mul(size as u64)?,
            _ => self.count,
        };
        let fits = all.checked_mul(self.width() as u64).is_some_and(|bytes| bytes <= TINY as u64);
        fits.then(|| self.published(rank, size))
    }

    /// Bytes in the slot of `rank`, for a call that travels in slots.
    pub(super) fn published(&self, rank: usize, size: usize) -> usize {
        let root = self.root as usize == rank;
        let elements = match self.kind {
            Kind::Barrier => 0,
            Kind::Broadcast if !root => 0,
            Kind::Scatter if !root => 0,
            Kind::Scatter | Kind::ReduceScatter | Kind::AllToAll => self.count * size as u64,
            Kind::AllGatherV => self.recv_parts[rank].1,
            _ => self.count,
        };
        elements as usize * self.width()
    }

    /// True when ranks write into each other's `recv`.
    pub(super) fn foreign_writes(&self) -> bool {
        matches!(self.kind, Kind::AllReduce | Kind::Reduce)
    }

    /// True when `rank` gets the result of a reduction that all ranks work on.
    pub(super) fn is_sink(&self, rank: usize) -> bool {
        match self.kind {
            Kind::AllReduce => true,
            Kind::Reduce => rank == self.root as usize,
            _ => false,
        }
    }

    /// True when others read the `send` of `rank`.
    pub(super) fn is_source(&self, rank: usize) -> bool {
        match self.kind {
            Kind::Broadcast | Kind::Scatter => rank == self.root as usize,
            Kind::Barrier => false,
            _ => true,
        }
    }

    /// Pieces of a rank's `send` that go to different ranks; 1 when all get the same.
    pub(super) fn pieces(&self, size: usize) -> usize {
        match self.kind {
            Kind::ReduceScatter | Kind::ReduceScatterV | Kind::Scatter | Kind::AllToAll | Kind::AllToAllV => size,
            _ => 1,
        }
    }

    /// The part of this rank's own `send` that is piece `piece`.
    pub(super) fn send_part(&self, piece: usize) -> Extent {
        match self.kind {
            Kind::ReduceScatterV | Kind::AllToAllV => self.send_parts[piece],
            Kind::ReduceScatter | Kind::Scatter | Kind::AllToAll => (piece as u64 * self.count, self.count),
            Kind::AllGatherV => (0, (self.send.bytes / self.width()) as u64),
            _ => (0, self.count),
        }
    }

    /// The part of this rank's `recv` that is filled from `rank`, `me` being this rank.
    pub(super) fn recv_part(&self, rank: usize, me: usize) -> Extent {
        let root = self.root as usize;
        match self.kind {
            Kind::AllGatherV | Kind::AllToAllV => self.recv_parts[rank],
            Kind::AllGather | Kind::AllToAll => (rank as u64 * self.count, self.count),
            Kind::Gather if me == root => (rank as u64 * self.count, self.count),
            Kind::Broadcast if me == root => (0, 0),
            Kind::Broadcast | Kind::Scatter if rank == root => (0, self.count),
            Kind::ReduceScatter => (0, self.count),
            Kind::ReduceScatterV => (0, self.send_parts[me].1),
            _ => (0, 0),
        }
    }
}

/// Rank `rank`'s share of `elements` among `size`: `(first, end)`, cut at cache lines so that no two ranks write one.
pub(super) fn share(elements: usize, size: usize, rank: usize, width: usize) -> (usize, usize) {
    let line = (64 / width).max(1);
    let each = elements.div_ceil(size).next_multiple_of(line);
    ((rank * each).min(elements), ((rank + 1) * each).min(elements))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::DType;

    #[test]
    fn shares_cover_everything_once() {
        for (elements, size, width) in [(0, 3, 4), (1, 4, 8), (100, 7, 2), (1000, 2, 4), (1001, 3, 1), (17, 16, 8)] {
            let mut end = 0;
            for rank in 0..size {
                let (from, to) = share(elements, size, rank, width);
                assert_eq!(from, end);
                end = to;
            }
            assert_eq!(end, elements);
        }
    }

    #[test]
    fn all_ranks_agree_on_the_way() {
        for kind in Kind::ALL.into_iter().filter(|k| !matches!(k, Kind::AllGatherV | Kind::ReduceScatterV)) {
            for count in [0, 1, 341, 342, 1024, 1025, u64::MAX / 2] {
                let mut call = Call::new(kind, DType::F32);
                call.count = count;
                let ways: Vec<bool> = (0..3).map(|rank| call.inline_bytes(rank, 3).is_some()).collect();
                assert!(ways.windows(2).all(|w| w[0] == w[1]), "{kind:?} {count}");
            }
        }
    }
}
