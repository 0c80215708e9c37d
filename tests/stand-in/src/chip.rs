//! What each family of chips supports, as documented.

use crate::abi::{Failure, Result, hccl_code};

/// A family of chips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// Ascend 910.
    A1,
    /// Ascend 910B.
    A2,
    /// Ascend 910_93.
    A3,
    /// Ascend 950.
    A5,
    /// Ascend 310P.
    Duo,
}

/// Element types by their numbers.
pub(crate) mod dtype {
    pub(crate) const I8: i32 = 0;
    pub(crate) const I16: i32 = 1;
    pub(crate) const I32: i32 = 2;
    pub(crate) const F16: i32 = 3;
    pub(crate) const F32: i32 = 4;
    pub(crate) const I64: i32 = 5;
    pub(crate) const U64: i32 = 6;
    pub(crate) const U8: i32 = 7;
    pub(crate) const U16: i32 = 8;
    pub(crate) const U32: i32 = 9;
    pub(crate) const F64: i32 = 10;
    pub(crate) const BF16: i32 = 11;

    /// Bytes of an element.
    pub(crate) fn size(dtype: i32) -> Option<usize> {
        Some(match dtype {
            I8 | U8 | 14..=17 => 1,
            I16 | U16 | F16 | BF16 => 2,
            I32 | U32 | F32 => 4,
            I64 | U64 | F64 => 8,
            12 => 16,
            _ => return None,
        })
    }
}

/// Operations by their numbers.
pub(crate) mod op {
    pub(crate) const SUM: i32 = 0;
    pub(crate) const PROD: i32 = 1;
    pub(crate) const MAX: i32 = 2;
    pub(crate) const MIN: i32 = 3;
}

use dtype::{BF16, F16, F32, F64, I8, I16, I32, I64, U64};

impl Family {
    pub(crate) fn of(soc: &str) -> Family {
        let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| soc.starts_with(prefix));
        if begins(&["Ascend950", "Ascend910_95"]) {
            Family::A5
        } else if begins(&["Ascend910_93"]) {
            Family::A3
        } else if begins(&["Ascend910B"]) {
            Family::A2
        } else if begins(&["Ascend310P"]) {
            Family::Duo
        } else {
            Family::A1
        }
    }

    /// Whether the family has the call at all.
    pub(crate) fn has(self, call: &str) -> Result<()> {
        let lacks: &[&str] = match self {
            Family::Duo => &[
                "HcclBroadcast",
                "HcclScatter",
                "HcclReduce",
                "HcclSend",
                "HcclRecv",
                "HcclBatchSendRecv",
                "HcclAlltoAllVC",
                "HcclBarrier",
                "HcclCreateSubCommConfig",
                "HcclGroupStart",
            ],
            Family::A1 => &["HcclAllGatherV", "HcclReduceScatterV", "HcclAlltoAllVC", "HcclGroupStart"],
            Family::A5 => &["HcclGetCommAsyncError"],
            Family::A2 | Family::A3 => &[],
        };
        let here = !lacks.contains(&call);
        if here { Ok(()) } else { Err(unsupported(format!("{call} is not supported by {self:?}"))) }
    }

    /// Whether the call may move such elements.
    pub(crate) fn moves(self, call: &str, kind: i32) -> Result<usize> {
        self.has(call)?;
        let here = match kind {
            0..=10 => true,
            BF16 => matches!(self, Family::A2 | Family::A3 | Family::A5),
            14..=17 => self == Family::A5,
            _ => false,
        };
        self.size(call, kind, here)
    }

    /// Whether the call may reduce such elements by this operation.
    pub(crate) fn reduces(self, call: &str, kind: i32, by: i32) -> Result<usize> {
        self.has(call)?;
        if !(op::SUM..=op::MIN).contains(&by) {
            return Err(crate::abi::para(format!("{call}: {by} is no reduce operation")));
        }
        let here = if call == "HcclReduceScatterV" { self.reduces_v(kind, by) } else { self.reduces_whole(kind, by) };
        self.size(call, kind, here)
    }

    fn reduces_whole(self, kind: i32, by: i32) -> bool {
        let types: &[i32] = match self {
            Family::A1 => &[I8, I32, I64, F16, F32],
            Family::A2 | Family::A3 => &[I8, I16, I32, I64, F16, F32, BF16],
            Family::A5 => &[I8, I16, I32, I64, F16, F32, BF16, U64, F64],
            Family::Duo => &[I8, I16, I32, F16, F32],
        };
        let product = by != op::PROD || (kind != I16 && kind != BF16);
        let duo = self != Family::Duo || kind != I16 || by == op::SUM;
        types.contains(&kind) && product && duo
    }

    fn reduces_v(self, kind: i32, by: i32) -> bool {
        let types: &[i32] = match self {
            Family::A1 => &[],
            Family::A2 => &[I8, I16, I32, F16, F32, BF16],
            Family::A3 | Family::A5 => &[I8, I16, I32, I64, F16, F32, BF16],
            Family::Duo => &[I16, F16, F32],
        };
        let operation = match self {
            Family::Duo => by == op::SUM,
            Family::A5 => by != op::PROD || (kind != I16 && kind != BF16),
            _ => by != op::PROD,
        };
        types.contains(&kind) && operation
    }

    fn size(self, call: &str, kind: i32, here: bool) -> Result<usize> {
        match dtype::size(kind) {
            Some(size) if here => Ok(size),
            Some(_) => Err(unsupported(format!("{call}: {self:?} does not support data type {kind} here"))),
            None => Err(crate::abi::para(format!("{call}: {kind} is no data type"))),
        }
    }
}

fn unsupported(text: String) -> Failure {
    Failure::new(hccl_code::NOT_SUPPORT, format!("EI0003: {text}"))
}
