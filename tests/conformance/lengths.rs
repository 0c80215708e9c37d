//! Which lengths are worth trying: 0, 1, odd ones, and both sides of every length at which the engine changes its way.

/// Bytes that stand beside a slot's stamp.
const SMALL: usize = 32;
/// Bytes of a mailbox.
const MAIL: usize = 384;
/// Bytes up to which a collective travels in the slots.
const TINY: usize = 4096;
/// Bytes of one visit to another rank's memory.
const VISIT: usize = 256 << 10;

/// Bytes of half a staging block: of one segment.
pub(crate) fn stage() -> usize {
    std::env::var("HCCL_STAGE_BYTES").ok().and_then(|text| text.parse().ok()).unwrap_or(VISIT)
}

/// True when staging blocks are short, so that lengths need not be great to be long.
pub(crate) fn is_short() -> bool {
    stage() < TINY
}

/// Lengths for elements of `width` bytes, `pieces` of which times the length travel together.
pub(crate) fn lengths(width: usize, pieces: usize) -> Vec<usize> {
    let sides = |bytes: usize| {
        let at = bytes / (width * pieces);
        [(at | 1).saturating_sub(2), at, at | 1]
    };
    let mut all = vec![0, 1, 7];
    all.extend([SMALL, MAIL, TINY].iter().flat_map(|bytes| sides(*bytes)));
    all.extend(sides(stage()));
    all.push(5 * stage().min(4 * TINY) / (width * pieces) + 3);
    all.sort_unstable();
    all.dedup();
    all
}

/// A length whose share or part takes more than one visit; `None` where staging blocks are short.
pub(crate) fn long(width: usize, shares: usize) -> Option<usize> {
    (!is_short()).then(|| shares * (VISIT / width) + 2 * shares + 77)
}

/// True for lengths that take long to prepare, so that not every variant is tried.
pub(crate) fn is_long(len: usize, width: usize, pieces: usize) -> bool {
    len * width * pieces > 8 * TINY
}
