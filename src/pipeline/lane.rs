//! One direction of one edge on this rank: packets that wait to be sent, to be used, or to come.

use super::bytes;
use super::header::{Flags, Header};
use super::payload::{Payload, Wire};
use super::shape::{Bound, Dims, Shape, Symbols};
use super::stage::StageResult;
use crate::element::{DType, Element};
use std::any::Any;

/// Most buffers kept for packets to come.
const MOST_SPARE: usize = 4;

/// A packet on a lane.
pub(super) struct Entry<P> {
    pub(super) unit: usize,
    /// `None` for an idle slot.
    pub(super) packet: Option<P>,
    pub(super) flags: Flags,
    pub(super) bound: Bound,
}

/// The packets of one channel; `P` is what both its ends agreed on when the pipeline was declared.
pub(super) struct Lane<P: Payload> {
    ready: Vec<Entry<P>>,
    wire: Wire,
    /// Memory of packets that are gone.
    spare: Vec<Vec<P::Elem>>,
    /// What is being received.
    arriving: Vec<P::Elem>,
    /// The same, or what is being sent, in a narrower dtype.
    bits: Vec<u16>,
}

impl<P: Payload> Lane<P> {
    pub(super) fn new(wire: Wire) -> Self {
        Lane { ready: Vec::new(), wire, spare: Vec::new(), arriving: Vec::new(), bits: Vec::new() }
    }

    pub(super) fn put(&mut self, entry: Entry<P>) {
        self.ready.push(entry);
    }

    pub(super) fn take(&mut self, unit: usize) -> Option<Entry<P>> {
        let index = self.ready.iter().position(|entry| entry.unit == unit)?;
        Some(self.ready.remove(index))
    }

    /// Compares the packet's dimensions with the shape, and binds names.
    pub(super) fn check(dims: Dims, symbols: &Symbols, bound: &mut Bound) -> Result<(), String> {
        symbols.bind(dims, P::Shape::DIMS, bound)
    }

    fn find(&self, unit: usize) -> Option<&Entry<P>> {
        self.ready.iter().find(|entry| entry.unit == unit)
    }

    fn is_narrow(&self) -> bool {
        P::Elem::DTYPE == DType::F32 && self.wire != Wire::F32
    }
}

/// A [`Lane`] of any payload.
pub(super) trait AnyLane: Any {
    /// The dtype that its packets have on the wire.
    fn dtype(&self) -> DType;

    /// Fills in what the header says of the packet of this unit; `None` when there is none.
    fn announce(&self, header: Header) -> Option<Header>;

    /// Calls `f` with the bytes of the packet of this unit.
    fn read(&mut self, unit: usize, f: &mut dyn FnMut(&[u8])) -> StageResult<()>;

    /// The packet of this unit is away.
    fn sent(&mut self, unit: usize);

    /// Compares the header with the shape and makes room for its payload.
    fn open(&mut self, header: &Header, symbols: &Symbols) -> StageResult<&mut [u8]>;

    /// The room of [`open`](AnyLane::open) is filled.
    fn close(&mut self, header: &Header) -> StageResult<()>;

    /// Whether the packet of this unit is an idle slot, and its flags.
    fn flags(&self, unit: usize) -> Option<Flags>;

    /// Puts an idle slot.
    fn put_idle(&mut self, unit: usize);

    /// Drops everything: the step has failed, or nobody needs what is left.
    fn clear(&mut self);
}

impl<P: Payload> AnyLane for Lane<P> {
    fn dtype(&self) -> DType {
        if self.is_narrow() { self.wire.dtype() } else { P::Elem::DTYPE }
    }

    fn announce(&self, header: Header) -> Option<Header> {
        let entry = self.find(header.message.microbatch)?;
        let dims = entry.packet.as_ref().map_or(Dims::default(), P::dims);
        let elements = if entry.packet.is_some() { dims.elements().unwrap_or(0) } else { 0 };
        let bytes = (elements * self.dtype().size()) as u64;
        Some(Header { dtype: self.dtype(), dims, bytes, bound: entry.bound, flags: entry.flags, ..header })
    }

    fn read(&mut self, unit: usize, f: &mut dyn FnMut(&[u8])) -> StageResult<()> {
        let (narrow, wire) = (self.is_narrow(), self.wire);
        let Some(packet) = self.ready.iter().find(|entry| entry.unit == unit).and_then(|entry| entry.packet.as_ref())
        else {
            f(&[]);
            return Ok(());
        };
        let bits = &mut self.bits;
        packet.read(&mut |elements| match bytes::same::<P::Elem, f32>(elements) {
            Some(elements) if narrow => {
                wire.narrow(elements, bits);
                f(bytes::of(bits));
            }
            _ => f(bytes::of(elements)),
        })
    }

    fn sent(&mut self, unit: usize) {
        let memory = self.take(unit).and_then(|entry| entry.packet).and_then(P::recycle);
        if self.spare.len() < MOST_SPARE {
            self.spare.extend(memory);
        }
    }

    fn open(&mut self, header: &Header, symbols: &Symbols) -> StageResult<&mut [u8]> {
        if header.flags.idle {
            return Ok(&mut []);
        }
        Self::check(header.dims, symbols, &mut header.bound.clone())?;
        // The header's bytes are those of its dimensions, see `Header::is`.
        let elements = header.dims.elements().unwrap_or(0);
        self.arriving = self.spare.pop().unwrap_or_default();
        resize(&mut self.arriving, elements)?;
        if self.is_narrow() {
            resize(&mut self.bits, elements)?;
            return Ok(bytes::of_mut(&mut self.bits));
        }
        Ok(bytes::of_mut(&mut self.arriving))
    }

    fn close(&mut self, header: &Header) -> StageResult<()> {
        let mut elements = std::mem::take(&mut self.arriving);
        if self.is_narrow()
            && let Some(elements) = bytes::same_mut(&mut elements)
        {
            self.wire.widen(&self.bits, elements);
        }
        let packet = if header.flags.idle { None } else { Some(P::build(header.dims, elements)?) };
        self.put(Entry { unit: header.message.microbatch, packet, flags: header.flags, bound: header.bound });
        Ok(())
    }

    fn flags(&self, unit: usize) -> Option<Flags> {
        self.find(unit).map(|entry| entry.flags)
    }

    fn put_idle(&mut self, unit: usize) {
        let flags = Flags { idle: true, ..Flags::default() };
        self.put(Entry { unit, packet: None, flags, bound: Bound::NOTHING });
    }

    fn clear(&mut self) {
        self.ready.clear();
    }
}

/// `len` elements, without going through the old ones where there is enough room.
fn resize<T: Element>(elements: &mut Vec<T>, len: usize) -> StageResult<()> {
    if let Some(more) = len.checked_sub(elements.len()) {
        elements.try_reserve_exact(more)?;
    }
    elements.resize(len, T::default());
    Ok(())
}
