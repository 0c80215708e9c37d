//! What HCCL lacks, built from what it has.
//!
//! | wanted | how | result |
//! | --- | --- | --- |
//! | average of f32 (f64 where HCCL sums it) | reduce_scatter by HCCL, own share times 1/n on the host, all_gather | HCCL's sum, times 1/n, one more rounding |
//! | any other pair that HCCL lacks, averages of halves | all_to_all_v of the elements as bits, own share reduced on the host in rank order, all_gather of the shares | the bits of the CPU engine: halves accumulate in f32 and round once |
//!
//! Both move as much between devices as a ring does, and over the host's bus one share of the elements, or all of them.
//! Every element of a result is computed by one rank alone, so all ranks get the same bits.
#![expect(unsafe_code, reason = "runs the host's kernels on vectors")]

use super::worker::{Keep, Station, Trouble};
use crate::backend::cpu::kernel::{self, Hint};
use crate::backend::{Call, Extent, Home, Kind, Memory};
use crate::element::DType;
use crate::reduce::OpKind;
use ascend_sys::result::hccl;
use ascend_sys::sys::{HcclComm, HcclReduceOp};
use std::ffi::c_void;

/// Memory of the device in this module.
fn on_device(ptr: *mut c_void, bytes: usize) -> Memory {
    Memory { ptr: ptr.cast(), bytes, home: Home::Npu { device: 0 } }
}

/// Equal shares of `count` elements, the last ones shorter.
fn shares(count: u64, ranks: u32) -> Vec<Extent> {
    let each = count.div_ceil(u64::from(ranks));
    let share = |rank: u64| {
        let from = (rank * each).min(count);
        (from, each.min(count - from))
    };
    (0..u64::from(ranks)).map(share).collect()
}

impl Station {
    /// An average of elements that HCCL sums.
    pub(super) fn average(&mut self, call: &Call, comm: HcclComm) -> Result<(), Trouble> {
        if call.kind == Kind::AllReduce {
            return self.average_all(call, comm);
        }
        self.reduce(call, HcclReduceOp::SUM, comm)?;
        self.finish()?;
        self.scale(call.dtype, call.recv.ptr.cast(), call.recv.bytes)
    }

    fn average_all(&mut self, call: &Call, comm: HcclComm) -> Result<(), Trouble> {
        let width = call.dtype.size();
        let share = call.count.div_ceil(u64::from(self.size));
        let padded = share as usize * self.size as usize * width;
        let whole = padded == call.send.bytes;
        // [all elements, padded][own share]
        let all = self.block(Keep::Scratch, padded + share as usize * width)?;
        let own = all.wrapping_byte_add(padded);
        let (from, into) = if whole { (call.send.ptr.cast(), call.recv.ptr.cast()) } else { (all, all) };
        if !whole {
            self.copy(call.send.ptr.cast(), all, call.send.bytes)?;
        }
        let (libs, stream, dtype) = (self.libs, self.stream(), super::chip::data_type(call.dtype));
        // SAFETY: addresses of the device, valid for `share` elements and `size` times as many, until the stream is
        // finished; handles are the station's own.
        unsafe { hccl::reduce_scatter(libs, from, own, share, dtype, HcclReduceOp::SUM, comm, stream) }?;
        self.finish()?;
        self.scale(call.dtype, own, share as usize * width)?;
        // SAFETY: as above.
        unsafe { hccl::all_gather(libs, own, into, share, dtype, comm, stream) }?;
        if whole { Ok(()) } else { self.copy(all, call.recv.ptr.cast(), call.recv.bytes) }
    }

    /// Multiplies elements of the device by 1/n. The stream must be finished.
    fn scale(&self, dtype: DType, at: *mut c_void, bytes: usize) -> Result<(), Trouble> {
        let mut elements = vec![0; bytes];
        self.to_host(at, &mut elements)?;
        let output = elements.as_mut_ptr();
        reduce(dtype, OpKind::Avg, &[output.cast_const()], output, bytes / dtype.size(), self.size as usize);
        self.to_device(at, &elements)
    }

    /// A reduction on the host: every rank reduces one share of the elements of all.
    pub(super) fn reduce_on_host(&mut self, call: &Call, op: OpKind) -> Result<(), Trouble> {
        let (width, ranks) = (call.dtype.size(), u64::from(self.size));
        let parts: Vec<Extent> = match call.kind {
            Kind::ReduceScatterV => call.send_parts.to_vec(),
            Kind::ReduceScatter => (0..ranks).map(|rank| (rank * call.count, call.count)).collect(),
            _ => shares(call.count, self.size),
        };
        let mine = parts[self.rank as usize].1;
        let bytes = mine as usize * width;
        let rows = bytes * self.size as usize;
        let scratch = self.block(Keep::Scratch, rows.max(4096))?;
        let takes: Vec<Extent> = (0..ranks).map(|rank| (rank * mine, mine)).collect();
        self.exchange(call, &call.send, &parts, &on_device(scratch, rows), &takes)?;
        self.finish()?;
        let mut all = vec![0; rows];
        self.to_host(scratch, &mut all)?;
        let mut result = vec![0; bytes];
        if bytes > 0 {
            let sources: Vec<*const u8> = all.chunks_exact(bytes).map(<[u8]>::as_ptr).collect();
            reduce(call.dtype, op, &sources, result.as_mut_ptr(), mine as usize, self.size as usize);
        }
        if matches!(call.kind, Kind::ReduceScatter | Kind::ReduceScatterV) {
            return self.to_device(call.recv.ptr.cast(), &result);
        }
        self.to_device(scratch, &result)?;
        let reached = |rank: u64| call.kind == Kind::AllReduce || rank == u64::from(call.root);
        let gives: Vec<Extent> = (0..ranks).map(|rank| if reached(rank) { (0, mine) } else { (0, 0) }).collect();
        let takes = if reached(self.rank.into()) { parts } else { vec![(0, 0); self.size as usize] };
        self.exchange(call, &on_device(scratch, bytes), &gives, &call.recv, &takes)
    }
}

/// Reduces vectors of bytes, which may be aligned badly; the output may be the one source.
fn reduce(dtype: DType, op: OpKind, sources: &[*const u8], output: *mut u8, elements: usize, ranks: usize) {
    if elements == 0 {
        return;
    }
    // SAFETY: the sources and the output are vectors of at least `elements` elements that nobody else reaches; the
    // kernels take any alignment.
    unsafe { kernel::reduce_chunk(dtype, op, sources, &[output], elements, ranks, Hint::Cached) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_everything_once() {
        assert_eq!(shares(7, 3), [(0, 3), (3, 3), (6, 1)]);
        assert_eq!(shares(2, 4), [(0, 1), (1, 1), (2, 0), (2, 0)]);
        assert_eq!(shares(0, 2), [(0, 0), (0, 0)]);
    }

    #[test]
    fn a_sum_of_one_source_is_scaled() {
        let mut values = [3.0_f32, -1.0, 0.5];
        let at = values.as_mut_ptr().cast::<u8>();
        reduce(DType::F32, OpKind::Avg, &[at.cast_const()], at, 3, 4);
        assert_eq!(values, [0.75, -0.25, 0.125]);
    }
}
