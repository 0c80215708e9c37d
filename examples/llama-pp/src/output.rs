//! Standard output of the run, written by rank 0 wherever it runs.
//!
//! A launcher carries whole lines of its ranks and puts their numbers in front. Text that streams, and JSON, must
//! arrive as they are: rank 0 writes them to a socket of the program that started it, which passes them on.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::failure::{Failure, Result};

/// The environment variable that tells rank 0 where to write: name and secret.
pub(crate) const VARIABLE: &str = "LLAMA_PP_OUTPUT";

/// Length of the secret.
const SECRET: usize = 32;
/// How long a stranger may keep the socket.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where rank 0 writes.
pub(crate) enum Output {
    /// This process's standard output.
    Stdout,
    /// The program that started it.
    Relay(UnixStream),
}

impl Output {
    /// The place that the environment names, else standard output.
    ///
    /// # Errors
    /// [`Failure::Output`].
    pub(crate) fn open() -> Result<Output> {
        let Ok(place) = std::env::var(VARIABLE) else { return Ok(Output::Stdout) };
        let (name, secret) = place.split_once(' ').unwrap_or((&place, ""));
        let connect = || {
            let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
            stream.write_all(secret.as_bytes())?;
            Ok(stream)
        };
        connect().map(Output::Relay).map_err(Failure::Output)
    }

    /// Writes text, at once.
    ///
    /// # Errors
    /// [`Failure::Output`].
    pub(crate) fn write(&mut self, text: &str) -> Result<()> {
        let written = match self {
            Output::Stdout => pass_on(text.as_bytes()),
            Output::Relay(stream) => stream.write_all(text.as_bytes()),
        };
        written.map_err(Failure::Output)
    }
}

fn pass_on(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// Receives what rank 0 writes.
pub(crate) struct Relay {
    name: String,
    secret: String,
    done: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<Vec<u8>>>,
}

impl Relay {
    /// Opens the socket. What comes is passed on to standard output, or kept for [`finish`](Relay::finish).
    ///
    /// # Errors
    /// [`Failure::Output`].
    pub(crate) fn open(keep: bool) -> Result<Relay> {
        let random = || format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        let (name, secret) = (format!("llama-pp-{}", random()), random() + &random());
        let done = Arc::new(AtomicBool::new(false));
        let start = || {
            let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
            let (secret, done) = (secret.clone(), Arc::clone(&done));
            std::thread::Builder::new().name("output".into()).spawn(move || receive(&listener, &secret, &done, keep))
        };
        let thread = start().map_err(Failure::Output)?;
        Ok(Relay { name, secret, done, thread })
    }

    /// The value of [`VARIABLE`] for rank 0.
    pub(crate) fn place(&self) -> String {
        format!("{} {}", self.name, self.secret)
    }

    /// What was kept, once all has arrived. The ranks are gone.
    ///
    /// # Errors
    /// [`Failure::Output`].
    pub(crate) fn finish(self) -> Result<Vec<u8>> {
        self.done.store(true, Ordering::Release);
        // Wakes the thread where no rank has come; it may have ended already.
        let _ = SocketAddr::from_abstract_name(&self.name).and_then(|name| UnixStream::connect_addr(&name));
        let kept = self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the output thread panicked")));
        kept.map_err(Failure::Output)
    }
}

fn receive(listener: &UnixListener, secret: &str, done: &AtomicBool, keep: bool) -> io::Result<Vec<u8>> {
    loop {
        let (mut stream, _) = match listener.accept() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Vec::new()),
            accepted => accepted?,
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut said = [0u8; SECRET];
        if stream.read_exact(&mut said).is_ok() && said == secret.as_bytes() {
            stream.set_read_timeout(None)?;
            return copy(&mut stream, keep);
        }
        if done.load(Ordering::Acquire) {
            // The ranks are gone: whoever of them came is in the queue already.
            listener.set_nonblocking(true)?;
        }
    }
}

fn copy(stream: &mut UnixStream, keep: bool) -> io::Result<Vec<u8>> {
    let (mut kept, mut buffer) = (Vec::new(), [0u8; 16 << 10]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(kept),
            Ok(count) if keep => kept.extend_from_slice(&buffer[..count]),
            Ok(count) => pass_on(&buffer[..count])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_takes_from_who_knows_the_secret_only() {
        let relay = Relay::open(true).unwrap();
        let address = SocketAddr::from_abstract_name(&relay.name).unwrap();
        let mut stranger = UnixStream::connect_addr(&address).unwrap();
        stranger.write_all(&[b'x'; SECRET]).unwrap();
        let mut rank = UnixStream::connect_addr(&address).unwrap();
        rank.write_all(relay.secret.as_bytes()).unwrap();
        rank.write_all(b"text").unwrap();
        drop(rank);
        assert_eq!(relay.finish().unwrap(), b"text");
    }

    #[test]
    fn a_relay_that_nobody_used_ends() {
        assert!(Relay::open(true).unwrap().finish().unwrap().is_empty());
    }
}
