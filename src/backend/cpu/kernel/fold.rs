//! The five operations over any [`Lane`] type.

use super::lane::{FloatLane, Lane};
use std::marker::PhantomData;

/// A (type, operation) pair: sources are opened, folded in rank order and closed.
pub(super) trait Fold<A> {
    /// One cache line of elements.
    type Chunk: Copy;
    /// The same elements in the type they are folded in.
    type Acc: Copy;
    const ZERO: Self::Chunk;
    /// Bytes of one element.
    const BYTES: usize;

    fn open(chunk: Self::Chunk) -> Self::Acc;
    /// `earlier op later`, in rank order.
    fn fold(earlier: Self::Acc, later: Self::Acc) -> Self::Acc;
    fn close(acc: Self::Acc, ranks: usize) -> Self::Chunk;
}

macro_rules! folds {
    ($($name:ident: $bound:ident, $chunk:ident -> $acc:ident,
        open $open:expr, fold $fold:ident, close $close:expr;)*) => { $(
        pub(super) struct $name<T>(PhantomData<T>);

        impl<A, T: $bound<A>> Fold<A> for $name<T> {
            type Chunk = T::$chunk;
            type Acc = T::$acc;
            const ZERO: Self::Chunk = T::ZERO;
            const BYTES: usize = T::BYTES;

            #[inline(always)]
            fn open(chunk: Self::Chunk) -> Self::Acc {
                $open(chunk)
            }
            #[inline(always)]
            fn fold(earlier: Self::Acc, later: Self::Acc) -> Self::Acc {
                T::$fold(earlier, later)
            }
            #[inline(always)]
            fn close(acc: Self::Acc, ranks: usize) -> Self::Chunk {
                $close(acc, ranks)
            }
        }
    )* };
}

folds! {
    Sum: Lane, Chunk -> Acc, open T::widen, fold add, close |acc, _| T::narrow(acc);
    Prod: Lane, Chunk -> Acc, open T::widen, fold mul, close |acc, _| T::narrow(acc);
    Min: Lane, Chunk -> Chunk, open |chunk| chunk, fold min, close |acc, _| acc;
    Max: Lane, Chunk -> Chunk, open |chunk| chunk, fold max, close |acc, _| acc;
    Avg: FloatLane, Chunk -> Acc, open T::widen, fold add, close |acc, ranks| T::narrow(T::scale(acc, ranks));
}
