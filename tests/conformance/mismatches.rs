//! Contract: "every call carries a fingerprint; when two ranks' calls differ, both get a mismatch before any memory is
//! written".
//!
//! Each case breaks a duplicate of the world, so that the world itself goes on.

use crate::support::cells::cells;
use hccl::prelude::*;
use hccl::{ErrorKind, Result};

/// Makes one rank the odd one out, each in turn: `call(group, is_odd)` must fail everywhere, naming both sides.
fn both_sides(comm: &Communicator, names: [&str; 2], call: impl Fn(&Communicator, bool) -> Result<()>) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    for odd in [0, n - 1].into_iter().filter(|_| n > 1) {
        let group = comm.duplicate()?;
        let error = call(&group, rank == odd).expect_err("the calls differ");
        let text = error.to_string();
        assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }) && !error.is_recoverable(), "{text}");
        assert!(names.iter().all(|name| text.contains(name)), "rank {rank}: {text} lacks one of {names:?}");
        assert!(text.contains(&format!("on rank {rank} of {n}")), "{text}");
        let again = group.barrier().unwrap_err();
        assert!(matches!(again.kind(), ErrorKind::Mismatch { .. }), "later calls return the first cause: {again}");
        assert!(group.failure().is_some() && comm.failure().is_none());
    }
    comm.barrier()
}

pub(crate) fn kinds(comm: &Communicator) -> Result<()> {
    let n = comm.size();
    for len in [1, 2000] {
        let all = format!("all_reduce(u32 x {len}, sum)");
        both_sides(comm, [&all, &format!("broadcast(u32 x {len}, root 0)")], |comm, odd| {
            let mut buf = vec![3_u32; len];
            if odd { comm.broadcast(&mut buf, comm.root(0)?) } else { comm.all_reduce(&mut buf, Sum) }
        })?;
        both_sides(comm, [&all, "barrier()"], |comm, odd| {
            if odd { comm.barrier() } else { comm.all_reduce(&mut vec![3_u32; len], Sum) }
        })?;
        both_sides(comm, [&format!("all_gather(u32 x {len})"), &format!("all_to_all(u32 x {len})")], |comm, odd| {
            let (send, mut recv) = (vec![1_u32; len * n], vec![0; len * n]);
            if odd { comm.all_to_all(&send, &mut recv) } else { comm.all_gather(&send[..len], &mut recv) }
        })?;
    }
    Ok(())
}

pub(crate) fn dtypes(comm: &Communicator) -> Result<()> {
    for len in [1, 3000] {
        let names = [format!("all_reduce(i32 x {len}, max)"), format!("all_reduce(f32 x {len}, max)")];
        both_sides(comm, [&names[0], &names[1]], |comm, odd| match odd {
            true => comm.all_reduce(&mut vec![1_i32; len], Max),
            false => comm.all_reduce(&mut vec![1_f32; len], Max),
        })?;
    }
    both_sides(comm, ["all_gather(f16 x 4)", "all_gather(bf16 x 4)"], |comm, odd| {
        let n = comm.size();
        match odd {
            true => comm.all_gather(&[half::f16::ONE; 4], &mut vec![half::f16::ONE; 4 * n]),
            false => comm.all_gather(&[half::bf16::ONE; 4], &mut vec![half::bf16::ONE; 4 * n]),
        }
    })
}

/// Also where the shorter call travels in the slot and the longer does not.
pub(crate) fn counts(comm: &Communicator) -> Result<()> {
    for (short, long) in [(0, 1), (4, 5), (1024, 1025), (3, 5000), (70_000, 70_001)] {
        let names = [format!("f32 x {short}"), format!("f32 x {long}")];
        both_sides(comm, [&names[0], &names[1]], |comm, odd| {
            comm.all_reduce(&mut vec![1_f32; if odd { short } else { long }], Sum)
        })?;
        both_sides(comm, [&names[0], &names[1]], |comm, odd| {
            let mut buf = comm.zeros::<f32>(if odd { long } else { short })?;
            comm.broadcast(&mut buf, comm.root(0)?)
        })?;
    }
    Ok(())
}

pub(crate) fn operations(comm: &Communicator) -> Result<()> {
    for len in [2, 4000] {
        both_sides(comm, ["sum", "prod"], |comm, odd| {
            let mut buf = vec![1_u16; len];
            if odd { comm.all_reduce(&mut buf, Sum) } else { comm.all_reduce(&mut buf, Prod) }
        })?;
        both_sides(comm, ["avg", "min"], |comm, odd| {
            let send = vec![1_f64; len * comm.size()];
            let mut recv = vec![0.0; len];
            if odd { comm.reduce_scatter(&send, &mut recv, Min) } else { comm.reduce_scatter(&send, &mut recv, Avg) }
        })?;
    }
    Ok(())
}

pub(crate) fn roots(comm: &Communicator) -> Result<()> {
    let n = comm.size();
    let last = format!("root {}", n - 1);
    let root = |comm: &Communicator, odd: bool| comm.root(if odd { 0 } else { n - 1 });
    for len in [1, 4000] {
        both_sides(comm, ["root 0", &last], |comm, odd| comm.broadcast(&mut vec![1_u8; len], root(comm, odd)?))?;
        both_sides(comm, ["root 0", &last], |comm, odd| comm.reduce(&mut vec![1_u8; len], Sum, root(comm, odd)?))?;
        both_sides(comm, ["root 0", &last], |comm, odd| {
            comm.scatter(Some(&vec![1_u8; len * n]), &mut vec![1; len], root(comm, odd)?)
        })?;
        both_sides(comm, ["root 0", &last], |comm, odd| {
            comm.gather(&vec![1_u8; len], Some(&mut vec![1; len * n]), root(comm, odd)?)
        })?;
    }
    Ok(())
}

/// Counts of V calls that add up to the same and differ all the same.
pub(crate) fn tables(comm: &Communicator) -> Result<()> {
    let n = comm.size();
    for unit in [1, 3000] {
        let table = |odd: bool| {
            let mut counts = vec![2 * unit; n];
            (counts[0], counts[n - 1]) = if odd { (3 * unit, unit) } else { (unit, 3 * unit) };
            counts
        };
        let names = [format!("counts[0] = {}", 3 * unit), format!("counts[0] = {unit}")];
        both_sides(comm, [&names[0], &names[1]], |comm, odd| {
            let counts = table(odd);
            comm.all_gather_v(&vec![1_u8; counts[comm.rank().index()]], &mut vec![0; 2 * unit * n], &counts)
        })?;
        both_sides(comm, [&names[0], &names[1]], |comm, odd| {
            let counts = table(odd);
            let mut recv = vec![0_i8; counts[comm.rank().index()]];
            comm.reduce_scatter_v(&vec![1_i8; 2 * unit * n], &mut recv, &counts, Sum)
        })?;
    }
    Ok(())
}

/// One pair of ranks disagrees about what one gives the other.
pub(crate) fn exchanges_v(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    both_sides(comm, ["all_to_all_v(50", "all_to_all_v(40"], |comm, odd| {
        let other = (rank + 1) % n;
        let equal = vec![40; n];
        let mut sends = equal.clone();
        sends[other] = if odd { 50 } else { 40 };
        let send = vec![1_u32; sends.iter().sum()];
        comm.all_to_all_v(&send, &sends, &mut vec![0; 40 * n], &equal)
    })
}

/// Messages: both ends get the error at once, the rest of the group with its next call.
pub(crate) fn messages(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    for (sent, asked) in [(4_usize, 5_usize), (0, 1), (9000, 8999)].into_iter().filter(|_| n > 1) {
        let group = comm.duplicate()?;
        let mut buf = vec![9_u32; asked];
        let error = match rank {
            0 => group.send(&vec![1_u32; sent], group.peer(1)?),
            1 => group.recv(&mut buf, group.peer(0)?),
            _ => group.barrier(),
        }
        .unwrap_err();
        let text = error.to_string();
        if rank < 2 {
            assert!(matches!(error.kind(), ErrorKind::Mismatch { peer, .. } if *peer == 1 - rank), "{text}");
            assert!(text.contains(&format!("send(u32 x {sent}, to 1)")), "{text}");
            assert!(text.contains(&format!("recv(u32 x {asked}, from 0)")), "{text}");
        }
        assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{text}");
        assert_eq!(buf, vec![9; asked], "nothing is written");
    }
    if n > 1 && rank < 2 {
        let group = comm.group(&[0, 1])?;
        let other = group.peer(1 - rank)?;
        let (send, mut recv) = ([1_i16, 2], [7_u16, 7]);
        let error = group
            .batch_send_recv(|batch| {
                batch.send(&send, other)?;
                batch.recv(&mut recv, other)
            })
            .unwrap_err();
        assert!(error.to_string().contains("i16 x 2") && error.to_string().contains("u16 x 2"), "{error}");
        assert_eq!(recv, [7, 7]);
    }
    comm.barrier()
}

/// Whatever differs, every buffer is as it was.
pub(crate) fn nothing_is_written(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    for len in [1, 40, 5000, 90_000].into_iter().filter(|_| n > 1) {
        let group = comm.duplicate()?;
        let own = cells::<u32>(len, rank, n);
        let (mut plain, mut device) = (own.clone(), comm.upload(&own)?);
        let kept = if rank == 0 {
            group.all_reduce(&mut device, Min).unwrap_err();
            device.to_vec()?
        } else if len % 2 == 0 {
            group.all_reduce(&mut plain, Max).unwrap_err();
            plain
        } else {
            group.broadcast(&mut device, group.root(0)?).unwrap_err();
            device.to_vec()?
        };
        assert_eq!(kept, own, "{len}");
    }
    comm.barrier()
}
