//! Operators as calls of the engine, in the thread of a stream.
#![expect(unsafe_code, reason = "device memory as slices, which the program under test keeps apart")]

use std::sync::Arc;

use half::{bf16, f16};
use hccl::{Communicator, Element, Max, Min, Numeric, Prod, ReduceOp, Result as Done, Sum};

use crate::abi::{Failure, Result, acl_code};
use crate::chip::{dtype, op};
use crate::comm::{Comm, InFlight};
use crate::fault::{self, Later};
use crate::memory::Span;
use crate::stream::Stream;

/// Enqueues work on `spans`, which must be alive when it runs.
pub(crate) fn enqueue(
    comm: &Arc<Comm>,
    stream: &Stream,
    name: &'static str,
    spans: Vec<Span>,
    work: impl FnOnce(&Communicator) -> Done<()> + Send + 'static,
) -> Result<()> {
    let (later, flight) = (fault::take_later(), InFlight::new(comm));
    stream.push(Box::new(move |stream| {
        match later {
            Some(Later::Fail(code)) => return Err(Failure::new(code, fault::text(name, code))),
            Some(Later::Stall) => {
                stream.park(None);
                return Ok(());
            }
            None => {}
        }
        if spans.iter().any(Span::is_freed) {
            return Err(Failure::new(acl_code::DEVICE_MEMORY, format!("EI0012: memory was freed under {name}")));
        }
        flight.comm().run(stream, name, work)
    }))
}

/// A reduction: what goes where.
pub(crate) enum Reduction {
    All {
        send: Span,
        recv: Span,
    },
    /// `recv` is the root's.
    Root {
        send: Span,
        recv: Option<Span>,
        root: u32,
    },
    Scatter {
        send: Span,
        recv: Span,
    },
    /// Elements and first element of each rank's part of `send`.
    ScatterV {
        send: Span,
        parts: Vec<(usize, usize)>,
        recv: Span,
    },
}

impl Reduction {
    pub(crate) fn spans(&self) -> Vec<Span> {
        match self {
            Reduction::All { send, recv } | Reduction::Scatter { send, recv } => vec![send.clone(), recv.clone()],
            Reduction::ScatterV { send, recv, .. } => vec![send.clone(), recv.clone()],
            Reduction::Root { send, recv, .. } => recv.iter().chain([send]).cloned().collect(),
        }
    }

    /// Runs it with the types named by numbers, which the chip's table has let through.
    pub(crate) fn run(&self, comm: &Communicator, kind: i32, by: i32) -> Done<()> {
        match kind {
            dtype::I8 => self.of::<i8>(comm, by),
            dtype::I16 => self.of::<i16>(comm, by),
            dtype::I32 => self.of::<i32>(comm, by),
            dtype::I64 => self.of::<i64>(comm, by),
            dtype::U64 => self.of::<u64>(comm, by),
            dtype::F16 => self.of::<f16>(comm, by),
            dtype::BF16 => self.of::<bf16>(comm, by),
            dtype::F32 => self.of::<f32>(comm, by),
            dtype::F64 => self.of::<f64>(comm, by),
            _ => Err(hccl::Error::rank_failed(comm.rank().index(), format!("no reduction of data type {kind}"))),
        }
    }

    fn of<T: Numeric>(&self, comm: &Communicator, by: i32) -> Done<()> {
        match by {
            op::SUM => self.with::<T, _>(comm, Sum),
            op::PROD => self.with::<T, _>(comm, Prod),
            op::MAX => self.with::<T, _>(comm, Max),
            _ => self.with::<T, _>(comm, Min),
        }
    }

    fn with<T: Numeric, Op: ReduceOp<T>>(&self, comm: &Communicator, by: Op) -> Done<()> {
        match self {
            Reduction::All { send, recv } if send.ptr() == recv.ptr() => comm.all_reduce(write::<T>(recv), by),
            Reduction::All { send, recv } => {
                let send = apart::<T>(send, recv);
                comm.all_reduce_into(&*send, write::<T>(recv), by)
            }
            Reduction::Root { send, recv, root } => {
                let root = comm.root(*root as usize)?;
                match recv {
                    Some(recv) => comm.reduce_into(&*apart::<T>(send, recv), Some(write::<T>(recv)), by, root),
                    None => comm.reduce_into(read::<T>(send), None::<&mut [T]>, by, root),
                }
            }
            Reduction::Scatter { send, recv } => comm.reduce_scatter(&*apart::<T>(send, recv), write::<T>(recv), by),
            Reduction::ScatterV { send, parts, recv } => {
                let packed = pack(read::<T>(send), parts);
                let counts: Vec<_> = parts.iter().map(|part| part.0).collect();
                comm.reduce_scatter_v(&packed, write::<T>(recv), &counts, by)
            }
        }
    }
}

/// The elements to read.
pub(crate) fn read<T: Element>(span: &Span) -> &[T] {
    // SAFETY: the program under test orders its streams; two overlapping sides of one call go through `apart`.
    unsafe { span.slice() }
}

/// The elements to write.
#[expect(clippy::mut_from_ref, reason = "device memory is shared; the program under test orders its streams")]
pub(crate) fn write<T: Element>(span: &Span) -> &mut [T] {
    // SAFETY: as in `read`.
    unsafe { span.slice_mut() }
}

/// The elements of `send`: copied where `recv` overlaps them.
pub(crate) fn apart<'a, T: Element>(send: &'a Span, recv: &Span) -> std::borrow::Cow<'a, [T]> {
    if send.overlaps(recv) { read::<T>(send).to_vec().into() } else { read::<T>(send).into() }
}

/// The parts of `all`, each an amount and a place, one after the other.
pub(crate) fn pack<T: Element>(all: &[T], parts: &[(usize, usize)]) -> Vec<T> {
    parts.iter().flat_map(|&(count, start)| &all[start..start + count]).copied().collect()
}

/// Undoes [`pack`].
pub(crate) fn unpack<T: Element>(packed: &[T], parts: &[(usize, usize)], all: &mut [T]) {
    let mut rest = packed;
    for &(count, start) in parts {
        let (part, others) = rest.split_at(count);
        all[start..start + count].copy_from_slice(part);
        rest = others;
    }
}
