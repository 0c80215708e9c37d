//! What each chip does, as the vendor documents it, and what this backend does instead where a chip does not.
//!
//! | | 910 | A2 (910B) | A3 (910_93) | 950 | 310P |
//! | --- | --- | --- | --- | --- | --- |
//! | native sum, max, min | i8 i32 i64 f16 f32 | + i16 bf16 | as A2 without i64 | A2 + u64 f64 | i8 i32 f16 f32, sum of i16 |
//! | native prod | the same | without i16 bf16 | none | without i16 bf16 | without i16 |
//! | moves | all but bf16, which goes as u16 | all | all | all | as 910 |
//! | no such call | | | | | broadcast, reduce, scatter, send, recv, batches |
//!
//! The documents contradict each other about products and i64 on A3, so those take the detour. Every other pair of dtype
//! and operation takes it too, and gives the same bits as the CPU engine: see [`detour`](super::detour).

use crate::backend::{Kind, Support};
use crate::element::DType;
use crate::reduce::OpKind;
use ascend_sys::sys::{HcclDataType, HcclReduceOp};

/// A family of chips that do the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chip {
    /// Atlas training products of the first generation.
    Ascend910,
    /// Atlas A2.
    Ascend910B,
    /// Atlas A3.
    Ascend910_93,
    /// Ascend 950.
    Ascend950,
    /// Atlas 300I Duo.
    Ascend310P,
    /// A name this crate does not know: what every chip does counts as native.
    Unknown,
}

/// How a reduction is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// One call of HCCL.
    Native(HcclReduceOp),
    /// HCCL's sum, then times 1/n on the host.
    Scaled,
    /// HCCL moves the elements and the host reduces them, in rank order.
    Host,
}

impl Chip {
    /// The family of a name as `aclrtGetSocName` tells it.
    pub(super) fn of(name: &str) -> Chip {
        const PREFIXES: [(&str, Chip); 7] = [
            ("Ascend910_93", Chip::Ascend910_93),
            ("Ascend910_95", Chip::Ascend950),
            ("Ascend950", Chip::Ascend950),
            ("Ascend910B", Chip::Ascend910B),
            ("Ascend910C", Chip::Ascend910_93),
            ("Ascend910", Chip::Ascend910),
            ("Ascend310P", Chip::Ascend310P),
        ];
        PREFIXES.iter().find(|(prefix, _)| name.starts_with(prefix)).map_or(Chip::Unknown, |(_, chip)| *chip)
    }

    /// The chip as a person would name it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Chip::Ascend910 => "Ascend 910",
            Chip::Ascend910B => "Ascend 910B (Atlas A2)",
            Chip::Ascend910_93 => "Ascend 910_93 (Atlas A3)",
            Chip::Ascend950 => "Ascend 950",
            Chip::Ascend310P => "Ascend 310P",
            Chip::Unknown => "this chip",
        }
    }

    /// Whether HCCL's all_reduce, reduce and reduce_scatter take this pair on this chip.
    pub(super) const fn reduces(self, dtype: DType, op: OpKind) -> bool {
        let every = matches!(dtype, DType::I8 | DType::I32 | DType::F16 | DType::F32);
        let wide = every || matches!(dtype, DType::I16 | DType::BF16);
        let prod = matches!(op, OpKind::Prod);
        match self {
            _ if matches!(op, OpKind::Avg) => false,
            Chip::Ascend910 => every || matches!(dtype, DType::I64),
            Chip::Ascend910B if prod => every || matches!(dtype, DType::I64),
            Chip::Ascend910B => wide || matches!(dtype, DType::I64),
            Chip::Ascend910_93 => wide && !prod,
            Chip::Ascend950 if prod => every || matches!(dtype, DType::I64 | DType::U64 | DType::F64),
            Chip::Ascend950 => wide || matches!(dtype, DType::I64 | DType::U64 | DType::F64),
            Chip::Ascend310P => every || (matches!(dtype, DType::I16) && matches!(op, OpKind::Sum)),
            Chip::Unknown => every && !prod,
        }
    }

    /// Whether HCCL's reduce_scatter with unequal parts takes this pair on this chip.
    pub(super) const fn reduces_parts(self, dtype: DType, op: OpKind) -> bool {
        match self {
            Chip::Ascend910 | Chip::Unknown => false,
            Chip::Ascend910B => self.reduces(dtype, op) && !matches!((dtype, op), (DType::I64, _) | (_, OpKind::Prod)),
            Chip::Ascend910_93 => self.reduces(dtype, op),
            Chip::Ascend950 => self.reduces(dtype, op) && !matches!(dtype, DType::U64 | DType::F64),
            Chip::Ascend310P => matches!(dtype, DType::I16 | DType::F16 | DType::F32) && matches!(op, OpKind::Sum),
        }
    }

    /// Whether HCCL's all_gather with unequal parts exists on this chip.
    pub(super) const fn gathers_parts(self) -> bool {
        !matches!(self, Chip::Ascend910 | Chip::Unknown)
    }

    /// How this backend reduces.
    pub(super) fn way(self, kind: Kind, dtype: DType, op: OpKind) -> Way {
        let takes = |op| match kind {
            Kind::ReduceScatterV => self.reduces_parts(dtype, op),
            Kind::Reduce if self == Chip::Ascend310P => false,
            _ => self.reduces(dtype, op),
        };
        match op {
            // Halves are averaged by the detour: a native sum would round before the division.
            OpKind::Avg if matches!(dtype, DType::F32 | DType::F64) && takes(OpKind::Sum) => Way::Scaled,
            OpKind::Avg => Way::Host,
            op if takes(op) => Way::Native(reduce_op(op)),
            _ => Way::Host,
        }
    }

    /// What a backend on this chip declares.
    pub(super) fn support(self, dtype: DType, op: Option<OpKind>) -> Support {
        let native = match op {
            Some(op) => matches!(self.way(Kind::AllReduce, dtype, op), Way::Native(_)),
            None => dtype != DType::BF16 || self.moves_bf16(),
        };
        if native { Support::Native } else { Support::Emulated }
    }

    /// Why the chip cannot do a call of this kind at all, and what to use instead.
    pub(super) fn lacks(self, kind: Kind) -> Option<&'static str> {
        match (self, kind) {
            (Chip::Ascend310P, Kind::Broadcast | Kind::Scatter) => Some("use all_gather and take the root's part"),
            (Chip::Ascend310P, Kind::Send | Kind::Recv | Kind::BatchSendRecv) => {
                Some("use all_to_all_v with counts of 0 for the other ranks")
            }
            _ => None,
        }
    }

    /// The type in which HCCL moves elements: the bits travel as they are.
    pub(super) fn moved_as(self, dtype: DType) -> HcclDataType {
        match dtype {
            DType::BF16 if !self.moves_bf16() => HcclDataType::UINT16,
            dtype => data_type(dtype),
        }
    }

    const fn moves_bf16(self) -> bool {
        matches!(self, Chip::Ascend910B | Chip::Ascend910_93 | Chip::Ascend950)
    }
}

/// HCCL's name of a dtype.
pub(super) const fn data_type(dtype: DType) -> HcclDataType {
    match dtype {
        DType::I8 => HcclDataType::INT8,
        DType::U8 => HcclDataType::UINT8,
        DType::I16 => HcclDataType::INT16,
        DType::U16 => HcclDataType::UINT16,
        DType::I32 => HcclDataType::INT32,
        DType::U32 => HcclDataType::UINT32,
        DType::I64 => HcclDataType::INT64,
        DType::U64 => HcclDataType::UINT64,
        DType::F16 => HcclDataType::FP16,
        DType::BF16 => HcclDataType::BFP16,
        DType::F32 => HcclDataType::FP32,
        DType::F64 => HcclDataType::FP64,
    }
}

/// HCCL's name of an operation. It has no average: that is a sum, scaled.
const fn reduce_op(op: OpKind) -> HcclReduceOp {
    match op {
        OpKind::Sum | OpKind::Avg => HcclReduceOp::SUM,
        OpKind::Prod => HcclReduceOp::PROD,
        OpKind::Min => HcclReduceOp::MIN,
        OpKind::Max => HcclReduceOp::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_families() {
        let of = [
            ("Ascend910B3", Chip::Ascend910B),
            ("Ascend910B4-1", Chip::Ascend910B),
            ("Ascend910B2C", Chip::Ascend910B),
            ("Ascend910_9391", Chip::Ascend910_93),
            ("Ascend910_95", Chip::Ascend950),
            ("Ascend950PR_9599", Chip::Ascend950),
            ("Ascend910A", Chip::Ascend910),
            ("Ascend910", Chip::Ascend910),
            ("Ascend310P3", Chip::Ascend310P),
            ("Ascend310B1", Chip::Unknown),
            ("", Chip::Unknown),
        ];
        for (name, chip) in of {
            assert_eq!(Chip::of(name), chip, "{name}");
        }
    }

    /// The documented table, row by row: dtypes that HCCL sums, and those it multiplies.
    #[test]
    fn native_pairs_are_the_documented_ones() {
        let rows = [
            (Chip::Ascend910, "i8 i32 i64 f16 f32", "i8 i32 i64 f16 f32"),
            (Chip::Ascend910B, "i8 i16 i32 i64 f16 bf16 f32", "i8 i32 i64 f16 f32"),
            (Chip::Ascend910_93, "i8 i16 i32 f16 bf16 f32", ""),
            (Chip::Ascend950, "i8 i16 i32 i64 u64 f16 bf16 f32 f64", "i8 i32 i64 u64 f16 f32 f64"),
            (Chip::Ascend310P, "i8 i16 i32 f16 f32", "i8 i32 f16 f32"),
            (Chip::Unknown, "i8 i32 f16 f32", ""),
        ];
        for (chip, sums, products) in rows {
            let native = |op| {
                let names = DType::ALL.iter().filter(|dtype| chip.reduces(**dtype, op)).map(|dtype| dtype.name());
                names.collect::<Vec<_>>().join(" ")
            };
            assert_eq!((native(OpKind::Sum), native(OpKind::Prod)), (sums.into(), products.into()), "{chip:?}");
            assert_eq!(native(OpKind::Avg), "");
        }
    }

    #[test]
    fn nothing_is_refused_and_detours_are_declared() {
        for chip in [Chip::Ascend910, Chip::Ascend910B, Chip::Ascend910_93, Chip::Ascend950, Chip::Ascend310P] {
            for &dtype in DType::ALL {
                assert!(!matches!(chip.support(dtype, None), Support::Refused(_)));
                for &op in OpKind::ALL {
                    let native = matches!(chip.way(Kind::AllReduce, dtype, op), Way::Native(_));
                    assert_eq!(chip.support(dtype, Some(op)) == Support::Native, native, "{chip:?} {dtype} {op}");
                }
            }
        }
        assert_eq!(Chip::Ascend910B.way(Kind::AllReduce, DType::F32, OpKind::Avg), Way::Scaled);
        assert_eq!(Chip::Ascend910B.way(Kind::AllReduce, DType::F16, OpKind::Avg), Way::Host);
        assert_eq!(Chip::Ascend910B.way(Kind::AllReduce, DType::F64, OpKind::Avg), Way::Host);
        assert_eq!(Chip::Ascend910.way(Kind::ReduceScatterV, DType::F32, OpKind::Sum), Way::Host);
        assert_eq!(Chip::Ascend310P.way(Kind::Reduce, DType::F32, OpKind::Sum), Way::Host);
    }

    #[test]
    fn halves_of_the_brain_kind_travel_as_bits_where_they_must() {
        assert_eq!(Chip::Ascend910.moved_as(DType::BF16), HcclDataType::UINT16);
        assert_eq!(Chip::Ascend910B.moved_as(DType::BF16), HcclDataType::BFP16);
        for &dtype in DType::ALL {
            for chip in [Chip::Ascend910, Chip::Ascend950, Chip::Unknown] {
                assert_eq!(chip.moved_as(dtype).size(), Some(dtype.size()), "{dtype}");
            }
        }
    }

    #[test]
    fn what_a_chip_lacks_has_an_alternative() {
        assert!(Chip::Ascend310P.lacks(Kind::Broadcast).is_some_and(|hint| hint.contains("all_gather")));
        assert!(Chip::Ascend310P.lacks(Kind::AllReduce).is_none());
        assert!(Kind::ALL.iter().all(|kind| Chip::Ascend910B.lacks(*kind).is_none()));
    }
}
