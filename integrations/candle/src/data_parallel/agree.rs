//! What ranks must have in common, found out before it does harm.

use super::parameters::first_difference;
use crate::digest::Digest;
use crate::error::{Error, Result};
use candle_core::Var;
use hccl::{Axis, Communicator};

/// Checks that all ranks have the same lines. The texts travel only when their digests differ.
pub(crate) fn agree<A: Axis>(comm: &Communicator<A>, what: &'static str, lines: &[String]) -> Result<()> {
    let mut digest = Digest::new();
    lines.iter().for_each(|line| digest.text(line));
    let digests = comm.all_gather_bytes(&digest.finish().to_le_bytes())?;
    if digests.iter().all(|digest| *digest == digests[0]) {
        return Ok(());
    }
    let texts = comm.all_gather_bytes(lines.join("\n").as_bytes())?;
    let lines_of =
        |rank: usize| -> Vec<String> { String::from_utf8_lossy(&texts[rank]).lines().map(str::to_string).collect() };
    let first = lines_of(0);
    let differing = (1..comm.size()).find_map(|rank| Some((rank, first_difference(&first, &lines_of(rank))?)));
    let detail = match differing {
        Some((rank, (first, other))) => format!("rank 0 has {first}, rank {rank} has {other}"),
        None => "their digests".into(),
    };
    Err(Error::Mismatch { what, detail })
}

/// The checksum of all variables, when it is the same on all ranks.
pub(crate) fn check_replicas<'a, A: Axis>(
    comm: &Communicator<A>,
    named: impl Iterator<Item = (&'a str, &'a Var)>,
) -> Result<u64> {
    let (mut names, mut digests, mut whole) = (Vec::new(), Vec::new(), Digest::new());
    for (name, var) in named {
        let mut digest = Digest::new();
        digest.tensor(var)?;
        whole.word(digest.finish());
        names.push(name);
        digests.push(digest.finish());
    }
    let whole = whole.finish();
    let all = comm.all_gather_bytes(&whole.to_le_bytes())?;
    if all.iter().all(|theirs| *theirs == all[0]) {
        return Ok(whole);
    }
    let bytes: Vec<u8> = digests.iter().flat_map(|digest| digest.to_le_bytes()).collect();
    let parts = comm.all_gather_bytes(&bytes)?;
    Err(drift(&names, &all, &parts))
}

/// Names the ranks outside the most frequent checksum (of the lowest rank, where several are as frequent).
fn drift(names: &[&str], wholes: &[Vec<u8>], parts: &[Vec<u8>]) -> Error {
    let votes = |rank: usize| wholes.iter().filter(|other| **other == wholes[rank]).count();
    let model = (0..wholes.len()).rev().max_by_key(|&rank| votes(rank)).unwrap_or(0);
    let ranks: Vec<usize> = (0..wholes.len()).filter(|&rank| wholes[rank] != wholes[model]).collect();
    let differs = |at: usize| {
        let part = |rank: usize| parts[rank].get(at * 8..at * 8 + 8);
        ranks.iter().any(|&rank| part(rank) != part(model))
    };
    let first = (0..names.len()).find(|&at| differs(at));
    let parameter = first.map_or_else(|| "?".into(), |at| names[at].to_string());
    Error::Drift { ranks, parameter }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(sums: &[u64]) -> (Vec<usize>, String) {
        let wholes: Vec<Vec<u8>> = sums.iter().map(|sum| sum.to_le_bytes().to_vec()).collect();
        let part = |sum: &u64| [7u64.to_le_bytes(), sum.to_le_bytes()].concat();
        let parts: Vec<Vec<u8>> = sums.iter().map(part).collect();
        match drift(&["a", "b"], &wholes, &parts) {
            Error::Drift { ranks, parameter } => (ranks, parameter),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn the_minority_is_named() {
        assert_eq!(found(&[5, 5, 9]), (vec![2], "b".into()));
        assert_eq!(found(&[9, 5, 5]), (vec![0], "b".into()));
        assert_eq!(found(&[4, 5, 9, 5]), (vec![0, 2], "b".into()));
    }

    #[test]
    fn in_a_tie_the_lowest_rank_is_the_model() {
        assert_eq!(found(&[1, 2]), (vec![1], "b".into()));
        assert_eq!(found(&[1, 2, 2, 1]), (vec![1, 2], "b".into()));
    }
}
