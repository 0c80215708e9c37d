use super::*;
use crate::Loss;

#[test]
fn a_lost_peer_has_its_own_exit_code() {
    let lost = Error::new(ErrorKind::PeerLost { peer: 1, how: Loss::Died });
    assert_eq!((exit_code(&lost), exit_code(&Error::new(ErrorKind::Closed))), (75, 1));
}

#[test]
fn this_program_is_started_with_its_own_arguments() {
    let launch = this_program(3).unwrap();
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    assert_eq!((launch.ranks, &launch.args), (3, &args));
    assert_eq!(launch.program, std::env::current_exe().unwrap());
}

#[test]
fn job_ids_differ() {
    let (a, b) = (random_job().unwrap(), random_job().unwrap());
    assert!(a != b && a.len() == 32, "{a} {b}");
}

#[test]
fn numbers_out_of_range_are_refused_by_flag() {
    for (launch, flag) in [
        (Launch::new("true").ranks(0), "--ranks is 0"),
        (Launch::new("true").ranks(1025), "--ranks is 1025"),
        (Launch::new("true").threads_per_rank(Some(0)), "--threads-per-rank is 0"),
        (Launch::new("true").job_id(Some(String::new())), "job id is empty"),
    ] {
        let error = launch.run().unwrap_err();
        assert!(error.to_string().contains(flag), "{error}");
    }
}
