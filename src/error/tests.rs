use super::*;

#[test]
fn says_who_where_and_what_next() {
    let error = Error::new(ErrorKind::PeerLost { peer: 5, how: Loss::Died }).at("all_reduce", 3, 8);
    let text = error.to_string();
    assert!(text.starts_with("all_reduce on rank 3 of 8: rank 5 died"), "{text}");
    assert!(text.contains("(hint: "), "{text}");
    assert!(error.is_peer_lost() && !error.is_recoverable() && error.is_knock_on());
}

#[test]
fn the_innermost_place_wins() {
    let error = Error::new(ErrorKind::Closed).at("inner", 1, 2).at("outer", 0, 9);
    assert_eq!((error.op(), error.rank()), (Some("inner"), Some(1)));
}

#[test]
fn is_small_enough_to_return() {
    assert_eq!(size_of::<Error>(), size_of::<usize>());
}
