//! Which versions of CANN and HCCL belong together.
//!
//! HCCL is numbered in three ways: as CANN is (8.5.0), by a number of its own that follows CANN's minor version from 8.5 on
//! (3.5.x), and by the internal number of the packages (7.7 is CANN 8.1).

/// Whether two versions belong together.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pair {
    /// They do.
    Fits,
    /// They do not; what would.
    Differs(String),
    /// Nothing is known about one of them.
    Unknown,
}

/// Whether this HCCL belongs to this CANN.
pub(super) fn pair(cann: &str, hccl: &str) -> Pair {
    let (Some(cann), Some(hccl)) = (numbers(cann), numbers(hccl)) else { return Pair::Unknown };
    match (cann, hccl) {
        ((8, 5..), (3, minor)) => expect(minor == cann.1, || format!("CANN 8.{} comes with HCCL 3.{}", cann.1, cann.1)),
        ((8, _), (3, 0..5)) => Pair::Fits,
        ((8, _), (3, minor)) => Pair::Differs(format!("HCCL 3.{minor} belongs to CANN 8.{minor}")),
        (_, (3, _)) => Pair::Differs("HCCL 3 belongs to CANN 8".to_owned()),
        ((8, 1), (7, 7)) => Pair::Fits,
        (_, (7, 7)) => Pair::Differs("HCCL 7.7 belongs to CANN 8.1".to_owned()),
        // Other internal numbers are in no list.
        (_, (7, _)) => Pair::Unknown,
        (_, (8.., _)) => {
            expect(cann == hccl, || format!("HCCL {}.{} belongs to the CANN of that number", hccl.0, hccl.1))
        }
        _ => Pair::Unknown,
    }
}

/// Whether components of one installation, numbered internally, are of one release.
pub(super) fn same_release(one: &str, other: &str) -> Pair {
    match (numbers(one), numbers(other)) {
        (Some(one), Some(other)) => expect(one == other, || "components of one release have one number".to_owned()),
        _ => Pair::Unknown,
    }
}

fn expect(fits: bool, otherwise: impl FnOnce() -> String) -> Pair {
    if fits { Pair::Fits } else { Pair::Differs(otherwise()) }
}

/// The first two numbers of a version.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let digits = |part: &str| part.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok();
    let mut parts = version.trim().trim_start_matches(['V', 'v']).split('.');
    Some((digits(parts.next()?)?, digits(parts.next()?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_pairs_fit_and_others_say_what_would() {
        for (cann, hccl) in [
            ("8.0.0", "3.0.1"),
            ("8.0.RC3", "3.4"),
            ("8.5.0", "3.5.2"),
            ("8.1.RC1", "7.7.0.1.238"),
            ("8.5.0", "8.5.0"),
            ("9.1.0-beta.1", "9.1.0"),
        ] {
            assert_eq!(pair(cann, hccl), Pair::Fits, "{cann} {hccl}");
        }
        for (cann, hccl, why) in [
            ("8.5.0", "3.1", "HCCL 3.5"),
            ("8.0.0", "3.5.1", "CANN 8.5"),
            ("9.0.0", "3.5.1", "CANN 8"),
            ("8.3.RC1", "7.7.T17", "CANN 8.1"),
            ("9.0.0", "8.5.0", "HCCL 8.5"),
        ] {
            assert!(matches!(pair(cann, hccl), Pair::Differs(text) if text.contains(why)), "{cann} {hccl}");
        }
        for (cann, hccl) in [("8.0.0", "7.3.1"), ("unknown", "3.5"), ("8.0", ""), ("8.0", "2.1")] {
            assert_eq!(pair(cann, hccl), Pair::Unknown, "{cann} {hccl}");
        }
    }

    #[test]
    fn components_are_compared_by_release() {
        assert_eq!(same_release("7.7.0.1.238", "7.7.0.9"), Pair::Fits);
        assert!(matches!(same_release("7.7.0", "7.6.0"), Pair::Differs(_)));
        assert_eq!(same_release("", "7.6.0"), Pair::Unknown);
    }
}
