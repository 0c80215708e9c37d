//! Whoever else connects to a job's sockets costs the job nothing.

use crate::kill::{self, Crowd, SOON, say, say_error, sockets, wait_until};
use hccl::prelude::*;
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Instant;

fn rank() {
    match Communicator::from_env() {
        Err(error) => say_error(&error),
        Ok(comm) => {
            let mut sum = comm.upload(&vec![comm.rank().index() as u32 + 1; 100_000]).unwrap();
            comm.all_reduce(&mut sum, Sum).unwrap();
            say(format!("sum {}", sum.as_slice().unwrap()[99_999]));
        }
    }
}

fn find(part: &str) -> Option<String> {
    sockets().into_iter().find(|name| name.contains(part))
}

/// Connects to the first socket of this library whose name contains `part`.
fn connect(part: &str) -> UnixStream {
    // The kernel's list may skip a socket while others come and go: what was found once is kept.
    let found = std::cell::RefCell::new(None);
    wait_until("the socket is there", || {
        *found.borrow_mut() = find(part);
        found.borrow().is_some()
    });
    let address = SocketAddr::from_abstract_name(found.into_inner().unwrap()).unwrap();
    UnixStream::connect_addr(&address).unwrap()
}

/// The layout of this version, as `backend/cpu/segment.rs` counts it.
fn layout() -> u32 {
    let source = include_str!("../../src/backend/cpu/segment.rs");
    let number = source.split("const LAYOUT: u32 = ").nth(1).and_then(|rest| rest.split(';').next());
    number.unwrap().parse().unwrap()
}

/// A hello as `backend/cpu/meet.rs` lays it out.
fn hello(layout: u32, size: u32, rank: u32) -> Vec<u8> {
    let pair = |low: u32, high: u32| u64::from(low) | (u64::from(high) << 32);
    let head = [0x6863_636c_2d68_656c, pair(layout, size), pair(rank, 4242), 99];
    head.into_iter().chain([1; 16]).flat_map(u64::to_le_bytes).collect()
}

#[test]
fn nonsense_at_the_door_delays_nobody() {
    const TEST: &str = "strangers::nonsense_at_the_door_delays_nobody";
    if kill::case(TEST).is_some() {
        return rank();
    }
    let mut crowd = Crowd::new(TEST, "", 3, &[("HCCL_CONNECT_TIMEOUT", "20")]);
    crowd.spawn(0);
    let door = format!("/{}", crowd.generation);
    let mut guests = Vec::new();
    for i in 0..60 {
        let mut guest = connect(&door);
        let sent = match i % 6 {
            0 => guest.write_all(&[0x5a; 3000]),
            1 => guest.write_all(&hello(layout(), 3, 1)[..80]),
            2 => guest.write_all(&hello(layout(), 3, 77)),
            3 => guest.write_all(&hello(layout(), 3, 0)),
            _ => Ok(()),
        };
        sent.unwrap();
        // Some go at once, some stay and say nothing more.
        if i % 6 != 5 {
            guests.push(guest);
        }
    }
    crowd.spawn(1);
    crowd.spawn(2);
    for rank in 0..3 {
        crowd.wait_for(rank, "sum 6");
    }
    drop(guests);
    crowd.finish(&[]);
}

#[test]
fn a_death_is_seen_behind_silent_guests() {
    const TEST: &str = "strangers::a_death_is_seen_behind_silent_guests";
    if kill::case(TEST).is_some() {
        return rank();
    }
    let mut crowd = Crowd::new(TEST, "", 3, &[]);
    crowd.spawn(0);
    let door = format!("/{}", crowd.generation);
    let _silent: Vec<UnixStream> = (0..5).map(|_| connect(&door)).collect();
    crowd.spawn(1);
    // The listening socket, the guests and rank 1.
    wait_until("rank 1 has come", || sockets().iter().filter(|name| name.ends_with(&door)).count() == 7);
    // Between connecting and its hello a rank has no number; nothing outside shows when that is over.
    std::thread::sleep(std::time::Duration::from_millis(100));
    let killed = crowd.kill(1);
    let said = crowd.wait_for(0, "error lost 1 Died");
    assert!(said.at.saturating_duration_since(killed) < SOON, "{said:?}");
    crowd.finish(&[1]);
}

#[test]
fn another_layout_is_a_clear_error_on_both_sides() {
    const TEST: &str = "strangers::another_layout_is_a_clear_error_on_both_sides";
    if kill::case(TEST).is_some() {
        return rank();
    }
    let mut crowd = Crowd::new(TEST, "", 2, &[]);
    crowd.spawn(0);
    let mut guest = connect(&format!("/{}", crowd.generation));
    guest.write_all(&hello(7777, 2, 1)).unwrap();
    let said = crowd.wait_for(0, "error Rendezvous");
    assert!(said.text.contains("rank 1 has layout 7777") && said.text.contains("one version"), "{said:?}");
    let mut answer = Vec::new();
    guest.read_to_end(&mut answer).unwrap();
    assert!(String::from_utf8_lossy(&answer).contains("layout 7777"));
    crowd.finish(&[]);
}

/// Each process hands its memory out by a service of its own; a silent client keeps the peers from nothing.
#[test]
fn a_silent_client_of_the_memory_service_delays_nobody() {
    const TEST: &str = "strangers::a_silent_client_of_the_memory_service_delays_nobody";
    if kill::case(TEST).is_some() {
        let comm = Communicator::from_env().unwrap();
        say("met");
        kill::hear();
        let mut sum = comm.upload(&vec![comm.rank().index() as u32 + 1; 100_000]).unwrap();
        comm.all_reduce(&mut sum, Sum).unwrap();
        return say(format!("sum {}", sum.as_slice().unwrap()[99_999]));
    }
    let mut crowd = Crowd::start(TEST, "", 2, &[]);
    crowd.wait_for_all(&[0, 1], "met");
    let services = [0, 1].map(|rank| format!("/process/{}/", crowd.pid(rank)));
    let _silent: Vec<UnixStream> = services.iter().flat_map(|name| [connect(name), connect(name)]).collect();
    let started = Instant::now();
    [0, 1].iter().for_each(|rank| crowd.tell(*rank, "go"));
    for rank in [0, 1] {
        let said = crowd.wait_for(rank, "sum 3");
        assert!(said.at.saturating_duration_since(started) < 3 * SOON, "{said:?}");
    }
    crowd.finish(&[]);
}
