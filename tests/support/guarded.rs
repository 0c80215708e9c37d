//! Buffers of every kind that a call takes, with elements around them that nobody may touch.
#![allow(dead_code, reason = "each test binary uses its own part")]

use super::cells::{Cell, assert_bits, cell};
use hccl::{Communicator, DeviceBuffer, Result};

/// Elements before and after what is lent: odd numbers, so that what is lent is as badly aligned as its type allows.
pub(crate) const BEFORE: usize = 3;
pub(crate) const AFTER: usize = 5;

/// What kind of memory a rank lends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// A sub-slice of a `Vec`.
    Plain,
    /// A whole `DeviceBuffer`.
    Whole,
    /// A range of a `DeviceBuffer`.
    Part,
}

impl Style {
    pub(crate) const ALL: [Style; 3] = [Style::Plain, Style::Whole, Style::Part];

    /// The kind that rank `rank` uses in scheme `scheme`: 0 to 2 all ranks the same, from 3 on different ones.
    pub(crate) fn of(scheme: usize, rank: usize) -> Style {
        Style::ALL[if scheme < 3 { scheme } else { (scheme + rank) % 3 }]
    }
}

/// Number of schemes of [`Style::of`].
pub(crate) const SCHEMES: usize = 4;

/// The memory itself; [`lend!`](crate::lend) lends the middle of it.
pub(crate) enum Memory<T: Cell> {
    Plain(Vec<T>),
    Whole(DeviceBuffer<T>),
    Part(DeviceBuffer<T>),
}

/// A buffer with guards around it.
pub(crate) struct Guarded<T: Cell> {
    pub(crate) memory: Memory<T>,
}

impl<T: Cell> Guarded<T> {
    pub(crate) fn new(comm: &Communicator, style: Style, values: &[T]) -> Result<Self> {
        let guarded = || -> Vec<T> { guard(BEFORE).chain(values.iter().copied()).chain(guard(AFTER)).collect() };
        let memory = match style {
            Style::Plain => Memory::Plain(guarded()),
            Style::Whole => Memory::Whole(comm.upload(values)?),
            Style::Part => Memory::Part(comm.upload(&guarded())?),
        };
        Ok(Guarded { memory })
    }

    /// A buffer for `len` elements, filled with what no call of a test writes.
    pub(crate) fn empty(comm: &Communicator, style: Style, len: usize) -> Result<Self> {
        Guarded::new(comm, style, &untouched(len))
    }

    /// Checks what was lent, and the guards.
    pub(crate) fn expect(&self, expected: &[T], what: &dyn std::fmt::Display) {
        let all = match &self.memory {
            Memory::Whole(buf) => return assert_bits(&buf.to_vec().unwrap(), expected, what),
            Memory::Plain(vec) => vec.clone(),
            Memory::Part(buf) => buf.to_vec().unwrap(),
        };
        let end = all.len() - AFTER;
        assert_bits(&all[BEFORE..end], expected, what);
        let before: Vec<T> = guard(BEFORE).collect();
        let after: Vec<T> = guard(AFTER).collect();
        assert_bits(&all[..BEFORE], &before, &format_args!("{what}: before the buffer"));
        assert_bits(&all[end..], &after, &format_args!("{what}: after the buffer"));
    }
}

fn guard<T: Cell>(len: usize) -> impl Iterator<Item = T> {
    (0..len).map(|i| cell(i, 77, 1))
}

/// What a buffer holds before anything is written to it.
pub(crate) fn untouched<T: Cell>(len: usize) -> Vec<T> {
    (0..len).map(|i| cell(i, 1234, 1)).collect()
}

/// Makes a call on what a [`Guarded`] lends, as `$name`, mutably.
#[macro_export]
macro_rules! lend {
    ($buf:expr => $name:ident: $call:expr) => {
        match &mut $buf.memory {
            $crate::support::guarded::Memory::Plain(vec) => {
                let end = vec.len() - $crate::support::guarded::AFTER;
                let $name = &mut vec[$crate::support::guarded::BEFORE..end];
                $call
            }
            $crate::support::guarded::Memory::Whole(buf) => {
                let $name = buf;
                $call
            }
            $crate::support::guarded::Memory::Part(buf) => {
                let end = buf.len() - $crate::support::guarded::AFTER;
                let mut range = buf.range_mut($crate::support::guarded::BEFORE..end)?;
                let $name = &mut range;
                $call
            }
        }
    };
}
