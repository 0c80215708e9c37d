//! The permutation of an epoch.

/// The generator SplitMix64 (Steele, Lea and Flood, 2014). Own code, because resuming promises the same permutation
/// whichever version of whichever crate is installed then.
pub(super) struct SplitMix64(pub(super) u64);

impl SplitMix64 {
    /// A stream for one epoch. The seed is mixed before the epoch is added, so that (seed, epoch + 1) and
    /// (seed + 1, epoch) are unrelated.
    pub(super) fn for_epoch(seed: u64, epoch: u64) -> Self {
        Self(Self(Self(seed).next().wrapping_add(epoch)).next())
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// An unbiased number below `bound`, which is not 0: draws from the incomplete last multiple of it are repeated.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        let skip = bound.wrapping_neg() % bound;
        loop {
            let draw = self.next();
            if draw >= skip {
                return draw % bound;
            }
        }
    }

    /// Fisher-Yates, from the last place down.
    pub(super) fn shuffle(&mut self, items: &mut [usize]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            items.swap(last, other);
        }
    }
}
