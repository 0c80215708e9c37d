//! What a call says about itself, so that two ranks can see that they do not mean the same call.
//!
//! Generation and group are the segment itself: a slot of another group cannot be read by mistake. The sequence number is
//! the slot's stamp. The rest is two words: kind, dtype, operation and root in one, the count in the other.

use crate::backend::{Call, Kind};
use crate::element::DType;
use crate::reduce::OpKind;

/// Everything about a collective that must be the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    pub(crate) call: u64,
    pub(crate) count: u64,
}

impl Fingerprint {
    /// The fingerprint of a collective.
    pub(crate) fn of(call: &Call) -> Fingerprint {
        let op = call.op.map_or(0, |op| op as u64 + 1);
        let call_word = call.kind as u64 | ((call.dtype as u64) << 8) | (op << 16) | (u64::from(call.root) << 32);
        Fingerprint { call: call_word, count: call.count }
    }

    /// As a person would write the call: `all_reduce(f32 x 1024, sum)`.
    pub(crate) fn describe(self) -> String {
        let byte = |shift: u32| (self.call >> shift) as u8;
        let Some(kind) = Kind::ALL.get(usize::from(byte(0))) else { return "an unknown call".into() };
        let mut parts = Vec::new();
        if *kind != Kind::Barrier {
            parts.push(match (DType::from_code(byte(8)), kind) {
                (Some(dtype), Kind::AllToAllV) => dtype.name().to_owned(),
                (Some(dtype), _) => format!("{dtype} x {}", self.count),
                (None, _) => "an unknown dtype".into(),
            });
        }
        if let Some(op) = usize::from(byte(16)).checked_sub(1).and_then(|code| OpKind::ALL.get(code)) {
            parts.push(op.name().into());
        }
        if matches!(kind, Kind::Reduce | Kind::Broadcast | Kind::Scatter | Kind::Gather) {
            parts.push(format!("root {}", self.call >> 32));
        }
        if *kind == Kind::AllReduce && self.call >> 32 != 0 {
            parts.push(format!("fused, digest of the lengths {:08x}", self.call >> 32));
        }
        format!("{}({})", kind.name(), parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_difference_shows() {
        let mut call = Call::new(Kind::AllReduce, DType::F32);
        call.op = Some(OpKind::Sum);
        call.count = 1000;
        let base = Fingerprint::of(&call);
        assert_eq!(base.describe(), "all_reduce(f32 x 1000, sum)");
        call.op = Some(OpKind::Max);
        assert_ne!(Fingerprint::of(&call), base);
        call.op = None;
        call.kind = Kind::Broadcast;
        call.root = 3;
        assert_eq!(Fingerprint::of(&call).describe(), "broadcast(f32 x 1000, root 3)");
        assert_eq!(Fingerprint::of(&Call::new(Kind::Barrier, DType::U8)).describe(), "barrier()");
    }

    #[test]
    fn nonsense_from_shared_memory_is_described_not_believed() {
        assert_eq!(Fingerprint { call: u64::MAX, count: 0 }.describe(), "an unknown call");
        assert_eq!(Fingerprint { call: 1 | 0xff00, count: 0 }.describe(), "all_reduce(an unknown dtype)");
    }
}
