//! One function per (type, operation) and instruction set, and the choice of the instruction set.

#![expect(unsafe_code, reason = "entry points compiled for an instruction set that was detected first")]

use super::arch::Portable;
use super::copy::{Hint, copy_bytes};
use super::fold::{Avg, Fold, Max, Min, Prod, Sum};
use super::lane::{Bf16, F16};
use super::run::{Call, run};
use crate::element::DType;
use crate::reduce::OpKind;
use std::sync::OnceLock;

/// Reduces one call; safe to call if the invariants of [`Call`] hold and its instruction set is there.
pub(super) type Reduce = unsafe fn(&Call<'_>);
/// As [`copy_bytes`].
pub(super) type Copy = unsafe fn(*const u8, *mut u8, usize, Hint);

/// Everything compiled for one instruction set.
pub(super) struct Table {
    /// By the codes of dtype and operation; `None` where the type does not have the operation.
    reduce: [[Option<Reduce>; OpKind::ALL.len()]; DType::ALL.len()],
    pub(super) copy: Copy,
}

impl Table {
    pub(super) fn reduce(&self, dtype: DType, op: OpKind) -> Option<Reduce> {
        *self.reduce.get(dtype as usize)?.get(op as usize)?
    }
}

/// The rows of a table, in the order of `DType::ALL` and `OpKind::ALL`. Wrapping sums and products do not depend on the
/// sign, so signed types share the code of unsigned ones.
macro_rules! rows {
    ($ints:ident, $reduce:ident) => {
        [
            rows!(@int $ints, i8, u8),
            rows!(@int $ints, u8, u8),
            rows!(@int $ints, i16, u16),
            rows!(@int $ints, u16, u16),
            rows!(@int $ints, i32, u32),
            rows!(@int $ints, u32, u32),
            rows!(@int $ints, i64, u64),
            rows!(@int $ints, u64, u64),
            rows!(@float $reduce, F16),
            rows!(@float $reduce, Bf16),
            rows!(@float $reduce, f32),
            rows!(@float $reduce, f64),
        ]
    };
    (@int $reduce:ident, $t:ty, $unsigned:ty) => {
        [
            Some($reduce::<Sum<$unsigned>> as Reduce),
            Some($reduce::<Prod<$unsigned>>),
            Some($reduce::<Min<$t>>),
            Some($reduce::<Max<$t>>),
            None,
        ]
    };
    (@float $reduce:ident, $t:ty) => {
        [
            Some($reduce::<Sum<$t>> as Reduce),
            Some($reduce::<Prod<$t>>),
            Some($reduce::<Min<$t>>),
            Some($reduce::<Max<$t>>),
            Some($reduce::<Avg<$t>>),
        ]
    };
}

macro_rules! tables {
    ($($(#[cfg($cfg:meta)])? $doc:literal $name:ident, $table:ident, $module:ident, ints of $ints:ident;)*) => {
        /// An instruction set that kernels were compiled for. All of them give the same bits.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Isa { $($(#[cfg($cfg)])? #[doc = $doc] $name,)* }

        impl Isa {
            /// Every set compiled into this program, whether or not the processor has it; the best last.
            pub(crate) const COMPILED: &'static [Isa] = &[$($(#[cfg($cfg)])? Isa::$name),*];

            pub(super) fn table(self) -> &'static Table {
                match self { $($(#[cfg($cfg)])? Isa::$name => &$table,)* }
            }
        }

        $(
            $(#[cfg($cfg)])?
            static $table: Table = Table { reduce: { use $ints::reduce as ints; use $module::reduce; rows!(ints, reduce) }, copy: $module::copy };
        )*
    };
}

tables! {
    "What the crate was compiled for; on aarch64 that has NEON."
    Portable, PORTABLE, portable, ints of portable;
    #[cfg(target_arch = "x86_64")]
    "AVX2 and F16C."
    Avx2, AVX2, avx2, ints of avx2;
    #[cfg(target_arch = "x86_64")]
    "AVX-512 F, BW, DQ and VL; integers with AVX2, which keeps up with the cache."
    Avx512, AVX512, avx512, ints of avx2;
}

/// The functions of one instruction set: the generic loops are inlined here and compiled for it.
macro_rules! entry_points {
    ($($(#[cfg($cfg:meta)])? $module:ident: $arch:ty $(, $features:literal)?;)*) => { $(
        $(#[cfg($cfg)])?
        mod $module {
            use super::*;

            /// # Safety
            /// The invariants of [`Call`] hold and the processor has the features.
            $(#[target_feature(enable = $features)])?
            pub(super) unsafe fn reduce<K: Fold<$arch>>(call: &Call<'_>) {
                // SAFETY: the caller's.
                unsafe { run::<K, $arch>(call) }
            }

            /// # Safety
            /// As [`copy_bytes`], and the processor has the features.
            $(#[target_feature(enable = $features)])?
            pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, bytes: usize, hint: Hint) {
                // SAFETY: the caller's.
                unsafe { copy_bytes::<$arch>(src, dst, bytes, hint) }
            }
        }
    )* };
}

entry_points! {
    portable: Portable;
    #[cfg(target_arch = "x86_64")]
    avx2: super::super::x86::Avx2, "avx2,f16c";
    #[cfg(target_arch = "x86_64")]
    avx512: super::super::x86::Avx512, "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl";
}

impl Isa {
    /// The best instruction set of this processor, looked up once.
    pub(crate) fn detect() -> Isa {
        static DETECTED: OnceLock<Isa> = OnceLock::new();
        *DETECTED
            .get_or_init(|| Isa::COMPILED.iter().rev().copied().find(|isa| isa.available()).unwrap_or(Isa::Portable))
    }

    /// Whether the processor and the operating system have the instruction set.
    pub(crate) fn available(self) -> bool {
        match self {
            Isa::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
        }
    }
}
