//! What a process may open is little: memory of peers costs no file once it is mapped.

use crate::kill::{self, Crowd, say};
use hccl::prelude::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const RANKS: usize = 3;
const FILES: u64 = 40;

#[test]
fn many_communicators_and_arenas_need_few_files() {
    const TEST: &str = "limits::many_communicators_and_arenas_need_few_files";
    if kill::case(TEST).is_some() {
        let limit = Rlimit { current: Some(FILES), ..getrlimit(Resource::Nofile) };
        setrlimit(Resource::Nofile, limit).unwrap();
        let comm = Communicator::from_env().unwrap();
        let (n, me) = (comm.size() as u64, comm.rank().index() as u64);
        // Each is larger than what is left of the arenas before it.
        let mut buffers: Vec<_> =
            [5 << 20, 9 << 20, 17 << 20].map(|bytes| comm.zeros::<u64>(bytes / 8).unwrap()).into();
        let groups: Vec<Communicator> = (0..10).map(|_| comm.duplicate().unwrap()).collect();
        for (i, group) in groups.iter().enumerate() {
            for buffer in &mut buffers {
                buffer.fill(i as u64 + me).unwrap();
                group.all_reduce(buffer, Sum).unwrap();
                let sum = n * i as u64 + n * (n - 1) / 2;
                assert!(buffer.as_slice().unwrap().iter().all(|value| *value == sum));
            }
        }
        return say("fine");
    }
    let crowd = Crowd::start(TEST, "", RANKS, &[]);
    crowd.wait_for_all(&[0, 1, 2], "fine");
    crowd.finish(&[]);
}
