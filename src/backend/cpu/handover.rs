//! Handing shared memory to the other processes of a job.
//!
//! Each process has one service: a thread behind an abstract unix socket that answers "give me arena 3" and "give me the
//! segment of group K" with a file descriptor. It serves processes of the same user only, one short question a
//! connection. Peers ask at their first use of an arena and never again.

use crate::backend::cpu::group::ProcessId;
use crate::backend::cpu::segment::Segment;
use crate::backend::cpu::{heap, subgroup};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::SharedMemory;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::OnceLock;
use std::time::Duration;

/// How long one question may take: the service answers from a table.
const PATIENCE: Duration = Duration::from_secs(5);
const ARENA: u64 = 1;
const SEGMENT: u64 = 2;
const NOTHING: u64 = 0;

static SERVICE: OnceLock<std::result::Result<ProcessId, String>> = OnceLock::new();

/// This process, as its peers name it; starts its service.
pub(crate) fn own_process() -> Result<ProcessId> {
    let started = SERVICE.get_or_init(|| start().map_err(|e| e.to_string()));
    started
        .clone()
        .map_err(|problem| Error::new(ErrorKind::Resource { what: format!("the memory service: {problem}") }))
}

/// A random number.
pub(crate) fn random() -> u64 {
    let mut bytes = [0_u8; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_ne_bytes(bytes),
        // Not a secret: it only has to differ between processes.
        _ => subgroup::mix(std::time::SystemTime::now().elapsed().map_or(0, |t| t.as_nanos() as u64)),
    }
}

fn address(process: ProcessId) -> std::io::Result<SocketAddr> {
    let user = rustix::process::geteuid().as_raw();
    SocketAddr::from_abstract_name(format!("hccl/{user}/process/{}/{:016x}", process.pid, process.nonce))
}

fn start() -> std::io::Result<ProcessId> {
    let process = ProcessId { pid: std::process::id(), nonce: random() };
    let listener = UnixListener::bind_addr(&address(process)?)?;
    let service = move || listener.incoming().for_each(serve);
    std::thread::Builder::new().name("hccl-handover".into()).stack_size(128 << 10).spawn(service)?;
    Ok(process)
}

/// Answers one client, on a thread of its own: one that is silent keeps nobody else waiting.
fn serve(client: std::io::Result<UnixStream>) {
    let Ok(client) = client else {
        std::thread::sleep(Duration::from_millis(10)); // no file descriptor is free
        return;
    };
    // A bad client costs its own connection and nothing else.
    let thread = std::thread::Builder::new().name("hccl-handover".into()).stack_size(128 << 10);
    let _ = thread.spawn(move || answer(client));
}

/// True when the other end of `stream` is a process of this user.
pub(crate) fn is_same_user(stream: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(stream).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

fn answer(mut client: UnixStream) -> std::io::Result<()> {
    if !is_same_user(&client) {
        return Ok(());
    }
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let (mut kind, mut key) = ([0; 8], [0; 8]);
    client.read_exact(&mut kind)?;
    client.read_exact(&mut key)?;
    let key = u64::from_ne_bytes(key);
    match u64::from_ne_bytes(kind) {
        ARENA => send_memory(client, u32::try_from(key).ok().and_then(heap::arena).as_deref()),
        SEGMENT => send_memory(client, subgroup::find(key).as_deref().map(Segment::memory)),
        _ => Ok(()),
    }
}

/// Answers with memory made here, or that there is none.
fn send_memory(mut client: UnixStream, memory: Option<&SharedMemory>) -> std::io::Result<()> {
    match memory.and_then(|memory| Some((memory.bytes() as u64, memory.file()?))) {
        Some((bytes, file)) => send_with_file(&client, &bytes.to_ne_bytes(), file),
        None => client.write_all(&NOTHING.to_ne_bytes()),
    }
}

/// Sends `bytes` and one file descriptor.
pub(crate) fn send_with_file(to: &UnixStream, bytes: &[u8], file: BorrowedFd<'_>) -> std::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    control.push(SendAncillaryMessage::ScmRights(&files));
    let sent = rustix::net::sendmsg(to.as_fd(), &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(std::io::ErrorKind::WriteZero.into()) }
}

/// Receives exactly `bytes.len()` bytes and at most one file descriptor.
pub(crate) fn receive_with_file(from: &UnixStream, bytes: &mut [u8]) -> std::io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    // A process that is stopped and continued is interrupted here.
    let received = loop {
        let mut into = [IoSliceMut::new(bytes)];
        match rustix::net::recvmsg(from.as_fd(), &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            received => break received?,
        }
    };
    let mut file = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            file = files.last();
        }
    }
    if received.bytes == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let mut rest = from;
    rest.read_exact(&mut bytes[received.bytes..])?;
    Ok(file)
}

/// What a process says when asked for memory.
pub(crate) enum Answer {
    Here(SharedMemory),
    /// It has no such memory, or not yet.
    NotHere,
    /// Nobody answers: the process has ended or is ending.
    Gone,
    /// No answer within the patience: it is stopped, or very slow.
    Late,
}

/// Asks `process` for an arena of its heap.
///
/// # Errors
/// `Resource` when this process cannot ask, or cannot map what it got.
pub(crate) fn ask_for_arena(process: ProcessId, arena: u32, patience: Duration) -> Result<Answer> {
    let what = || format!("arena {arena} of process {}", process.pid);
    ask(process, ARENA, u64::from(arena), patience).map_err(|e| Error::resource(what(), e))
}

/// Asks `process`, the leader of a new group, for the group's segment.
///
/// # Errors
/// As [`ask_for_arena`].
pub(crate) fn ask_for_segment(process: ProcessId, key: u64, patience: Duration) -> Result<Answer> {
    let what = || format!("a group's segment of process {}", process.pid);
    ask(process, SEGMENT, key, patience).map_err(|e| Error::resource(what(), e))
}

fn ask(process: ProcessId, kind: u64, key: u64, patience: Duration) -> std::io::Result<Answer> {
    use std::io::ErrorKind as Io;
    match try_to_ask(process, kind, key, patience.min(PATIENCE)) {
        Ok(Some(memory)) => Ok(Answer::Here(memory)),
        Ok(None) => Ok(Answer::NotHere),
        Err(e) => match e.kind() {
            Io::ConnectionRefused | Io::ConnectionReset | Io::BrokenPipe | Io::UnexpectedEof => Ok(Answer::Gone),
            Io::WouldBlock | Io::TimedOut | Io::Interrupted => Ok(Answer::Late),
            _ => Err(e),
        },
    }
}

fn try_to_ask(process: ProcessId, kind: u64, key: u64, patience: Duration) -> std::io::Result<Option<SharedMemory>> {
    let mut stream = UnixStream::connect_addr(&address(process)?)?;
    if !is_same_user(&stream) {
        return Err(std::io::ErrorKind::PermissionDenied.into());
    }
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let question: Vec<u8> = [kind, key].iter().flat_map(|word| word.to_ne_bytes()).collect();
    stream.write_all(&question)?;
    let mut bytes = [0; 8];
    let Some(file) = receive_with_file(&stream, &mut bytes)? else { return Ok(None) };
    let size = usize::try_from(u64::from_ne_bytes(bytes)).map_err(std::io::Error::other)?;
    SharedMemory::map(file, size).map(Some).map_err(std::io::Error::other)
}
