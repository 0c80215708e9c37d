//! Groups within a group.

use hccl::prelude::*;
use hccl::{ErrorKind, Result};

/// The sum of `value` over the group, by a short and by a long call.
fn total<A: Axis>(comm: &Communicator<A>, value: usize) -> Result<u64> {
    let mut short = [value as u64];
    let mut long = vec![value as u64; 1500];
    comm.all_reduce(&mut short, Sum)?;
    comm.all_reduce(&mut long, Sum)?;
    assert!(long.iter().all(|x| *x == short[0]));
    Ok(short[0])
}

pub(crate) fn split(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    for colors in 1..=n {
        let color = rank % colors;
        let group = comm.split(Some(color as u64), -(rank as i64))?.expect("every rank has a colour");
        let members: Vec<usize> = (0..n).rev().filter(|r| r % colors == color).collect();
        assert_eq!((group.size(), members[group.rank().index()]), (members.len(), rank));
        assert_eq!(total(&group, rank)?, members.iter().sum::<usize>() as u64);
    }
    let first = comm.split((rank == 0).then_some(u64::MAX), i64::MIN)?;
    assert_eq!(first.map(|group| group.size()), (rank == 0).then_some(1));
    Ok(())
}

pub(crate) fn lists(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    for leader in 0..n {
        let members: Vec<usize> = (0..n).map(|i| (leader + n - i) % n).filter(|r| *r != n / 2 || n == 1).collect();
        if members.contains(&rank) {
            let group = comm.group(&members)?;
            assert_eq!(members[group.rank().index()], rank);
            assert_eq!(total(&group, rank)?, members.iter().sum::<usize>() as u64);
        }
    }
    comm.barrier()
}

/// Each duplicate is a queue of its own, here for a thread of its own.
pub(crate) fn duplicates(comm: &Communicator) -> Result<()> {
    let rank = comm.rank().index();
    let others = [comm.duplicate()?, comm.duplicate()?];
    let sum = (0..comm.size()).sum::<usize>() as u64;
    std::thread::scope(|scope| {
        let running = others.map(|other| {
            scope.spawn(move || -> Result<()> {
                for i in 0..20 {
                    assert_eq!(total(&other, rank + i)?, sum + (i * other.size()) as u64);
                }
                other.close()
            })
        });
        for _ in 0..20 {
            assert_eq!(total(comm, rank)?, sum);
        }
        running.into_iter().try_for_each(|thread| thread.join().unwrap())
    })
}

pub(crate) fn mesh(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    let (rows, columns) = if n == 4 { (2, 2) } else { (1, n) };
    let mesh = Mesh::new(comm, (Dp(rows), Tp(columns)))?;
    let (row, column) = (rank / columns, rank % columns);
    let (dp, tp) = (mesh.group::<Dp>(), mesh.group::<Tp>());
    assert_eq!((dp.rank().index(), tp.rank().index()), (row, column));
    assert_eq!(total(dp, rank)?, (0..rows).map(|r| r * columns + column).sum::<usize>() as u64);
    assert_eq!(total(tp, rank)?, (0..columns).map(|c| row * columns + c).sum::<usize>() as u64);
    let tp = mesh.into_group::<Tp>();
    assert_eq!(total(&tp, 1)?, columns as u64);
    let error = Mesh::new(comm, (Pp(n), Dp(2))).unwrap_err();
    assert!(error.is_recoverable() && error.to_string().contains(&format!("{} places", 2 * n)), "{error}");
    Ok(())
}

/// Communicators go in any order, and what is left still works.
pub(crate) fn drop_orders(comm: &Communicator) -> Result<()> {
    let (rank, n) = (comm.rank().index(), comm.size());
    let sum = (0..n).sum::<usize>() as u64;
    for order in 0..6 {
        let mut groups = Vec::new();
        groups.push(comm.duplicate()?);
        groups.push(groups[0].duplicate()?);
        groups.push(groups[1].split(Some(0), 0)?.expect("all have a colour"));
        // Every rank starts elsewhere, so that peers leave while others still work.
        for left in (1..=3).rev() {
            let gone = (order + left * (order / 3 + 1)) % left;
            assert_eq!(total(&groups[gone], rank)?, sum, "order {order}");
            drop(groups.remove(gone));
            for group in &groups {
                assert_eq!(total(group, rank)?, sum, "order {order}");
            }
        }
        assert_eq!(total(comm, rank)?, sum);
    }
    Ok(())
}

pub(crate) fn groups_of_groups(comm: &Communicator) -> Result<()> {
    let mut group = comm.duplicate()?;
    while group.size() > 1 {
        let (rank, n) = (group.rank().index(), group.size());
        let half = group.split(Some(u64::from(rank >= n.div_ceil(2))), rank as i64)?.expect("all have a colour");
        assert_eq!(total(&half, 1)?, half.size() as u64);
        group = half; // the parent goes before its child
    }
    assert_eq!(total(&group, 5)?, 5);
    comm.barrier()
}

/// A rank of another group of the same axis is refused on this rank alone.
pub(crate) fn values_of_another_group(comm: &Communicator) -> Result<()> {
    let other = comm.duplicate()?;
    let mut buf = [1_u8];
    let error = comm.broadcast(&mut buf, other.root(0)?).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WrongGroup { .. }) && error.is_recoverable(), "{error}");
    let error = other.send(&buf, comm.peer(comm.size() - 1)?).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WrongGroup { .. }), "{error}");
    let again = comm.duplicate()?;
    assert!(again.broadcast(&mut buf, other.root(0)?).is_err());
    assert!(!again.is_root(other.root(again.rank().index())?));
    total(comm, 1)?;
    total(&other, 1).map(|_| ())
}
