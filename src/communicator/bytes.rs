//! Small untyped helpers: data whose length the other ranks do not know.

use super::Communicator;
use crate::error::{Error, Result};
use crate::group::{Axis, Root};

impl<A: Axis> Communicator<A> {
    /// Gives every rank the root's bytes. The other ranks need not know how many there are; what they pass is ignored.
    ///
    /// ```
    /// let out = hccl::local(2, |comm| {
    ///     let root = comm.root(1)?;
    ///     let own = if comm.is_root(root) { b"config".to_vec() } else { Vec::new() };
    ///     comm.broadcast_bytes(own, root)
    /// })?;
    /// assert_eq!(out, [b"config", b"config"]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`broadcast`](Communicator::broadcast).
    pub fn broadcast_bytes(&self, mut bytes: Vec<u8>, root: Root<A>) -> Result<Vec<u8>> {
        let mut length = [bytes.len() as u64];
        self.broadcast(&mut length, root)?;
        if !self.is_root(root) {
            bytes = room(length[0])?;
        }
        self.broadcast(&mut bytes, root)?;
        Ok(bytes)
    }

    /// Gives every rank the bytes of all, in rank order; the lengths may differ.
    ///
    /// ```
    /// let out = hccl::local(3, |comm| comm.all_gather_bytes(&vec![7; comm.rank().index()]))?;
    /// assert_eq!(out[0], [vec![], vec![7], vec![7, 7]]);
    /// # Ok::<(), hccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`all_gather`](Communicator::all_gather).
    pub fn all_gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut lengths = vec![0u64; self.size()];
        self.all_gather(&[bytes.len() as u64], &mut lengths)?;
        let total = lengths.iter().try_fold(0u64, |sum, &length| sum.checked_add(length));
        let mut all = room(total.unwrap_or(u64::MAX))?;
        // Each is at most the total, which `room` found to fit.
        let counts: Vec<usize> = lengths.iter().map(|&length| length as usize).collect();
        self.all_gather_v(bytes, &mut all, &counts)?;
        let mut rest = &all[..];
        let cut = |&count: &usize| {
            let (own, others) = rest.split_at(count);
            rest = others;
            own.to_vec()
        };
        Ok(counts.iter().map(cut).collect())
    }
}

/// Zeroed bytes, or an error where memory has no room for them.
fn room(length: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    bytes.try_reserve_exact(length).map_err(|error| Error::resource(format!("{length} bytes of memory"), error))?;
    bytes.resize(length, 0);
    Ok(bytes)
}
