//! Ranks of one host meet over an abstract unix socket.
//!
//! ```text
//! rank 0                                   rank r
//! listen on the job's name                 connect (again until it is there)
//!        <── hello: layout, size, rank, process, cores ──
//! all there? make the segment
//!        ── welcome, with the segment's memory ──>        map it, put the own life under watch
//!        <── ready ──
//! all ready? close the name
//!        ── go ──>
//! ```
//!
//! Both ends check that the other belongs to the same user. While they meet, a closed connection is a dead rank, and
//! everybody is told. After "go" each rank's life word is under the kernel's watch. One stranger, garbage or a second
//! holder of a rank costs only its own connection.

use crate::backend::cpu::group::{Group, ProcessId};
use crate::backend::cpu::handover::{self, is_same_user};
use crate::backend::cpu::life::Lives;
use crate::backend::cpu::life::processes::Watched;
use crate::backend::cpu::segment::{LAYOUT, MAX_RANKS, Segment};
use crate::backend::cpu::stage_bytes;
use crate::error::{Error, ErrorKind, Loss, Result};
use crate::options::Options;
use crate::sys::SharedMemory;
use rustix::event::{PollFd, PollFlags};
use std::collections::VecDeque;
use std::io::{ErrorKind as Io, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MAGIC: u64 = 0x6863_636c_2d68_656c;
const HELLO: usize = 32 + CORE_WORDS * 8;
const CORE_WORDS: usize = 16;
const WELCOME: usize = 512;
const GO: u8 = 1;
const FAILED: u8 = 2;
/// How long one hello may take once connected.
const HELLO_PATIENCE: Duration = Duration::from_secs(3);
/// Most connections that may be silent at once: the oldest makes room.
const MAX_STRANGERS: usize = 512;

/// Meets the other ranks under `name`. Returns when all are there.
pub(crate) fn meet(name: &str, rank: usize, size: usize, options: &Options) -> Result<Group> {
    if size == 0 || size > MAX_RANKS || rank >= size {
        return Err(Error::invalid(format!("rank {rank} of {size}: one host has 1 to {MAX_RANKS} ranks")));
    }
    let deadline = Instant::now() + options.connect_timeout;
    let hello = Hello {
        layout: LAYOUT,
        size: size as u32,
        rank: rank as u32,
        process: handover::own_process()?,
        cores: own_cores(),
    };
    let user = rustix::process::geteuid().as_raw();
    let address = SocketAddr::from_abstract_name(format!("hccl/{user}/job/{name}"))
        .map_err(|e| rendezvous(format!("the job's name {name:?} is no socket name: {e}")))?;
    let met = if rank == 0 {
        Host::new(&address, hello, options, deadline)?.host()
    } else {
        join(&address, hello, options, deadline)
    };
    met.map_err(|error| error.at("rendezvous", rank, size))
}

fn rendezvous(problem: String) -> Error {
    Error::new(ErrorKind::Rendezvous { problem })
}

/// What a rank says first.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Hello {
    layout: u32,
    size: u32,
    rank: u32,
    process: ProcessId,
    cores: [u64; CORE_WORDS],
}

impl Hello {
    fn to_bytes(self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        let head = [MAGIC, u64::from(self.layout) | (u64::from(self.size) << 32)];
        let who = [u64::from(self.rank) | (u64::from(self.process.pid) << 32), self.process.nonce];
        let words = head.into_iter().chain(who).chain(self.cores);
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; HELLO]) -> Option<Hello> {
        let mut words = bytes.chunks_exact(8).map(|chunk| {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        let mut next = || words.next().unwrap_or(0);
        let (magic, layout, who, nonce) = (next(), next(), next(), next());
        let cores = std::array::from_fn(|_| next());
        let process = ProcessId { pid: (who >> 32) as u32, nonce };
        let hello = Hello { layout: layout as u32, size: (layout >> 32) as u32, rank: who as u32, process, cores };
        (magic == MAGIC).then_some(hello)
    }
}

/// The cores this process may run on, one bit each.
fn own_cores() -> [u64; CORE_WORDS] {
    let mut words = [0; CORE_WORDS];
    if let Ok(set) = rustix::thread::sched_getaffinity(None) {
        for core in (0..CORE_WORDS * 64).filter(|core| set.is_set(*core)) {
            words[core / 64] |= 1 << (core % 64);
        }
    }
    words
}

/// Rank 0 while the others come.
struct Host {
    listener: UnixListener,
    own: Hello,
    options: Options,
    deadline: Instant,
    /// By rank; rank 0 has none.
    peers: Vec<Option<(UnixStream, Hello)>>,
    /// Connections that have not said their whole hello, oldest first.
    strangers: VecDeque<Stranger>,
}

/// A connection before its hello.
struct Stranger {
    stream: UnixStream,
    hello: [u8; HELLO],
    filled: usize,
    until: Instant,
}

/// What became of a stranger.
enum Said {
    Hello(Hello),
    NotYet,
    Nonsense,
}

impl Stranger {
    fn new(stream: UnixStream) -> Option<Stranger> {
        let welcome = is_same_user(&stream) && stream.set_nonblocking(true).is_ok();
        welcome.then(|| Stranger { stream, hello: [0; HELLO], filled: 0, until: Instant::now() + HELLO_PATIENCE })
    }

    /// Reads what is there, and never waits.
    fn read(&mut self) -> Said {
        while self.filled < HELLO {
            match self.stream.read(&mut self.hello[self.filled..]) {
                Ok(0) => return Said::Nonsense,
                Ok(n) => self.filled += n,
                Err(e) if e.kind() == Io::Interrupted => {}
                Err(e) if e.kind() == Io::WouldBlock && Instant::now() < self.until => return Said::NotYet,
                Err(_) => return Said::Nonsense,
            }
        }
        let hello = Hello::from_bytes(&self.hello).filter(|_| self.stream.set_nonblocking(false).is_ok());
        hello.map_or(Said::Nonsense, Said::Hello)
    }
}

impl Host {
    fn new(address: &SocketAddr, own: Hello, options: &Options, deadline: Instant) -> Result<Host> {
        let listener = bind(address, deadline)?;
        listener.set_nonblocking(true).map_err(|e| Error::resource("a socket", e))?;
        let peers = (0..own.size).map(|_| None).collect();
        Ok(Host { listener, own, options: options.clone(), deadline, peers, strangers: VecDeque::new() })
    }

    fn host(mut self) -> Result<Group> {
        let hosted = self.collect().and_then(|()| self.welcome());
        // Whoever stands at the door is told how it went.
        let _ = self.accept();
        let Host { listener, mut peers, mut strangers, own, options, .. } = self;
        drop(listener);
        let strangers = strangers.iter_mut().map(|stranger| &mut stranger.stream);
        match hosted {
            Ok((segment, watched)) => {
                let full = rendezvous("all ranks of the job are there already".into());
                tell(strangers, &full.hint("give each job its own HCCL_JOB_ID"));
                for (peer, _) in peers.iter_mut().flatten() {
                    // A rank that is gone by now is seen by its life word.
                    let _ = peer.write_all(&[GO]);
                }
                Ok(group(segment, own, watched, &options))
            }
            Err(error) => {
                tell(peers.iter_mut().flatten().map(|(peer, _)| peer).chain(strangers), &error);
                Err(error)
            }
        }
    }

    fn missing(&self) -> Vec<usize> {
        (1..self.peers.len()).filter(|rank| self.peers[*rank].is_none()).collect()
    }

    /// Takes hellos until every rank is there.
    fn collect(&mut self) -> Result<()> {
        while !self.missing().is_empty() {
            self.wait_for_event()?;
            self.accept()?;
            for _ in 0..self.strangers.len() {
                let Some(mut stranger) = self.strangers.pop_front() else { break };
                match stranger.read() {
                    Said::Hello(hello) => self.admit(stranger.stream, hello)?,
                    Said::NotYet => self.strangers.push_back(stranger),
                    Said::Nonsense => {}
                }
            }
        }
        Ok(())
    }

    /// Takes all connections that wait at the door.
    fn accept(&mut self) -> Result<()> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => self.strangers.extend(Stranger::new(stream)),
                Err(e) if e.kind() == Io::WouldBlock => return Ok(()),
                Err(e) if matches!(e.kind(), Io::Interrupted | Io::ConnectionAborted) => {}
                Err(e) => return Err(Error::resource("a connection of a rank", e)),
            }
            if self.strangers.len() > MAX_STRANGERS {
                self.strangers.pop_front();
            }
        }
    }

    /// Waits for a connection or a hello, or for a rank that goes away.
    fn wait_for_event(&self) -> Result<()> {
        if self.deadline <= Instant::now() {
            let late = ErrorKind::Timeout { late: self.missing(), after: self.options.connect_timeout };
            let hint = "see whether those ranks were started with the same job id and world size; HCCL_CONNECT_TIMEOUT sets the limit";
            return Err(Error::new(late).hint(hint));
        }
        let there: Vec<usize> = (1..self.peers.len()).filter(|rank| self.peers[*rank].is_some()).collect();
        let mut sockets: Vec<_> =
            self.peers.iter().flatten().map(|(peer, _)| PollFd::new(peer, PollFlags::IN)).collect();
        sockets.push(PollFd::new(&self.listener, PollFlags::IN));
        sockets.extend(self.strangers.iter().map(|s| PollFd::new(&s.stream, PollFlags::IN)));
        poll(&mut sockets)?;
        // A rank that has said hello says nothing until it is welcomed: an event on its socket is its end.
        match sockets.iter().zip(&there).find(|(socket, _)| !socket.revents().is_empty()) {
            Some((_, rank)) => Err(died(*rank)),
            None => Ok(()),
        }
    }

    /// Gives a rank its place; one that cannot belong here fails the job.
    fn admit(&mut self, mut stream: UnixStream, hello: Hello) -> Result<()> {
        if hello.layout != LAYOUT {
            let problem = format!("rank {} has layout {}, rank 0 has layout {LAYOUT}", hello.rank, hello.layout);
            let error = rendezvous(problem).hint("build all ranks from one version of hccl");
            tell(std::iter::once(&mut stream), &error);
            return Err(error);
        }
        if hello.size != self.own.size {
            let problem =
                format!("rank {} says the world has {} ranks, rank 0 says {}", hello.rank, hello.size, self.own.size);
            let error = rendezvous(problem).hint("start all ranks with the same world size");
            tell(std::iter::once(&mut stream), &error);
            return Err(error);
        }
        let rank = hello.rank as usize;
        if rank == 0 || rank >= self.peers.len() || self.peers[rank].is_some() {
            let error = rendezvous(format!("rank {rank} is taken")).hint("each process of a job has its own rank");
            tell(std::iter::once(&mut stream), &error);
            return Ok(());
        }
        self.peers[rank] = Some((stream, hello));
        Ok(())
    }

    /// Makes the segment, gives it to everyone and waits until each is ready.
    fn welcome(&mut self) -> Result<(Arc<Segment>, Arc<Watched>)> {
        let size = self.peers.len();
        let mut cores = self.own.cores;
        for (_, hello) in self.peers.iter().flatten() {
            cores.iter_mut().zip(hello.cores).for_each(|(all, own)| *all |= own);
        }
        let cores: u32 = cores.iter().map(|word| word.count_ones()).sum();
        let segment = Arc::new(Segment::create(size, handover::random(), stage_bytes(size), size <= cores as usize)?);
        let watched = Watched::start(segment.clone(), 0, self.own.process)?;
        let Some(file) = segment.memory().file() else {
            return Err(Error::invalid("the segment was made by another process"));
        };
        for (rank, peer) in self.peers.iter().enumerate() {
            let Some((stream, _)) = peer else { continue };
            handover::send_with_file(stream, &[GO; WELCOME], file).map_err(|_| died(rank))?;
        }
        self.wait_until_ready()?;
        Ok((segment, watched))
    }

    /// Waits until each rank has said that it is ready; the first that dies instead fails the job.
    fn wait_until_ready(&self) -> Result<()> {
        let there = self.peers.iter().enumerate().filter_map(|(rank, peer)| Some((rank, &peer.as_ref()?.0, false)));
        let mut there: Vec<(usize, &UnixStream, bool)> = there.collect();
        while !there.iter().all(|(.., ready)| *ready) {
            if self.deadline <= Instant::now() {
                let late = there.iter().filter(|(.., ready)| !ready).map(|(rank, ..)| *rank).collect();
                let late = ErrorKind::Timeout { late, after: self.options.connect_timeout };
                return Err(Error::new(late).hint("HCCL_CONNECT_TIMEOUT sets the limit"));
            }
            let mut sockets: Vec<_> = there.iter().map(|(_, s, _)| PollFd::new(*s, PollFlags::IN)).collect();
            poll(&mut sockets)?;
            let events: Vec<bool> = sockets.iter().map(|socket| !socket.revents().is_empty()).collect();
            for ((rank, stream, ready), _) in there.iter_mut().zip(events).filter(|(_, event)| *event) {
                // A rank that is ready says nothing more: an event on its socket is its end.
                if *ready || !matches!((&**stream).read(&mut [0]), Ok(1)) {
                    return Err(died(*rank));
                }
                *ready = true;
            }
        }
        Ok(())
    }
}

fn died(rank: usize) -> Error {
    Error::new(ErrorKind::PeerLost { peer: rank, how: Loss::Died })
}

/// Waits until something happens on a socket, for a short while at most.
fn poll(sockets: &mut [PollFd<'_>]) -> Result<()> {
    let nap = rustix::event::Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
    match rustix::event::poll(sockets, Some(&nap)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(Error::resource("a wait for ranks", e)),
    }
}

fn group(segment: Arc<Segment>, own: Hello, watched: Arc<Watched>, options: &Options) -> Group {
    let ranks = (0..own.size as usize).collect();
    let lives = Lives::Processes { world: segment.clone(), ranks, own: watched };
    Group::join(segment, own.rank as usize, false, options, lives)
}

/// Binds the job's name; a job that is just ending may hold it a moment longer.
fn bind(address: &SocketAddr, deadline: Instant) -> Result<UnixListener> {
    let patience = deadline.min(Instant::now() + Duration::from_secs(2));
    loop {
        match UnixListener::bind_addr(address) {
            Ok(listener) => return Ok(listener),
            Err(e) if e.kind() == Io::AddrInUse && Instant::now() < patience => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(e) if e.kind() == Io::AddrInUse => {
                let problem = "another rank 0 of this job is waiting for its ranks".to_owned();
                return Err(rendezvous(problem).hint("give each job its own HCCL_JOB_ID"));
            }
            Err(e) => return Err(Error::resource("a socket", e)),
        }
    }
}

/// Reads all of `bytes` before `deadline`.
fn read_until(mut stream: &UnixStream, bytes: &mut [u8], deadline: Instant) -> std::io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Io::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut bytes[filled..]) {
            Ok(0) => return Err(Io::UnexpectedEof.into()),
            Ok(n) => filled += n,
            Err(e) if matches!(e.kind(), Io::Interrupted | Io::WouldBlock | Io::TimedOut) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn lost_or_late(e: std::io::Error, rank: usize, options: &Options) -> Error {
    if e.kind() == Io::TimedOut {
        return Error::new(ErrorKind::Timeout { late: vec![rank], after: options.connect_timeout })
            .hint("HCCL_CONNECT_TIMEOUT sets the limit");
    }
    Error::new(ErrorKind::PeerLost { peer: rank, how: Loss::Died })
}

/// Tells ranks why the job does not start; whoever is gone is not told.
fn tell<'a>(peers: impl Iterator<Item = &'a mut UnixStream>, error: &Error) {
    let mut bytes = [0; WELCOME];
    bytes[0] = FAILED;
    let text = error.to_string();
    let length = text.floor_char_boundary(WELCOME - 3);
    bytes[1..3].copy_from_slice(&(length as u16).to_le_bytes());
    bytes[3..3 + length].copy_from_slice(&text.as_bytes()[..length]);
    for peer in peers {
        let _ = peer.set_write_timeout(Some(HELLO_PATIENCE));
        let _ = peer.write_all(&bytes);
    }
}

/// The error inside a message of [`tell`].
fn told(bytes: &[u8]) -> Error {
    let length = bytes.get(1..3).map_or(0, |l| usize::from(u16::from_le_bytes([l[0], l[1]])));
    let text = bytes.get(3..3 + length).map(String::from_utf8_lossy).unwrap_or_default();
    rendezvous(text.into_owned())
}

/// A rank other than 0.
fn join(address: &SocketAddr, own: Hello, options: &Options, deadline: Instant) -> Result<Group> {
    let mut stream = connect(address, options, deadline)?;
    // Rank 0 is there and knows who is missing: its deadline, which ends before this one, decides.
    let deadline = Instant::now() + options.connect_timeout + HELLO_PATIENCE;
    let lost = |e| lost_or_late(e, 0, options);
    stream.write_all(&own.to_bytes()).map_err(lost)?;
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    stream.set_read_timeout(Some(left)).map_err(lost)?;
    let mut welcome = [0; WELCOME];
    let file = handover::receive_with_file(&stream, &mut welcome).map_err(|e| match e.kind() {
        Io::WouldBlock => lost(Io::TimedOut.into()),
        _ => lost(e),
    })?;
    let Some(file) = file.filter(|_| welcome[0] == GO) else { return Err(told(&welcome)) };
    let size = own.size as usize;
    let memory = SharedMemory::map(file, Segment::bytes_for(size))?;
    let segment = Arc::new(Segment::adopt(memory, size)?);
    let watched = Watched::start(segment.clone(), own.rank as usize, own.process)?;
    stream.write_all(&[GO]).map_err(lost)?;
    let mut go = [0];
    read_until(&stream, &mut go, deadline).map_err(lost)?;
    if go[0] != GO {
        let mut rest = [0; WELCOME];
        rest[0] = go[0];
        read_until(&stream, &mut rest[1..], deadline).map_err(lost)?;
        return Err(told(&rest));
    }
    Ok(group(segment, own, watched, options))
}

fn connect(address: &SocketAddr, options: &Options, deadline: Instant) -> Result<UnixStream> {
    let mut nap = Duration::from_millis(1);
    loop {
        match UnixStream::connect_addr(address) {
            Ok(stream) if is_same_user(&stream) => return Ok(stream),
            Ok(_) => return Err(rendezvous("the job's name is held by another user".into())),
            Err(e) if matches!(e.kind(), Io::ConnectionRefused | Io::NotFound | Io::WouldBlock | Io::Interrupted) => {}
            Err(e) => return Err(Error::resource("a connection to rank 0", e)),
        }
        if Instant::now() > deadline {
            let late = ErrorKind::Timeout { late: vec![0], after: options.connect_timeout };
            return Err(Error::new(late).hint("see whether rank 0 was started, with the same job id"));
        }
        std::thread::sleep(nap);
        nap = (nap * 2).min(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hellos_round_trip_and_nonsense_is_refused() {
        let process = ProcessId { pid: 77, nonce: u64::MAX - 3 };
        let hello = Hello { layout: 1, size: 9, rank: 4, process, cores: std::array::from_fn(|i| i as u64) };
        assert_eq!(Hello::from_bytes(&hello.to_bytes()), Some(hello));
        assert_eq!(Hello::from_bytes(&[7; HELLO]), None);
    }

    #[test]
    fn an_error_is_told_whole_or_cut_at_a_character() {
        let (mut a, b) = UnixStream::pair().unwrap();
        for problem in ["short".to_owned(), "ä".repeat(2000)] {
            tell(std::iter::once(&mut a), &rendezvous(problem.clone()));
            let mut bytes = [0; WELCOME];
            read_until(&b, &mut bytes, Instant::now() + HELLO_PATIENCE).unwrap();
            let text = told(&bytes).to_string();
            assert!(text.contains(&problem.chars().take(5).collect::<String>()), "{text}");
        }
    }

    #[test]
    fn a_missing_rank_is_named() {
        let options = Options { connect_timeout: Duration::from_millis(300), ..Options::default() };
        let name = format!("test-{}-{}", std::process::id(), line!());
        let error = meet(&name, 0, 3, &options).err().unwrap();
        assert!(matches!(error.kind(), ErrorKind::Timeout { late, .. } if late == &[1, 2]), "{error}");
        let error = meet(&name, 2, 3, &options).err().unwrap();
        assert!(matches!(error.kind(), ErrorKind::Timeout { late, .. } if late == &[0]), "{error}");
    }
}
