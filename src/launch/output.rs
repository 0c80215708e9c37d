//! Carries the output of all ranks to the launcher's own, whole lines with the rank in front, and into log files.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::lines::{End, Lines};
use crate::{Error, ErrorKind, Result};

/// How many last lines of stderr are kept of each rank, and how much of each.
const TAIL_LINES: usize = 5;
const TAIL_BYTES: usize = 500;

/// How long output may still come once the ranks are gone: from processes that left the group of the ranks.
const DRAIN_QUIET: Duration = Duration::from_millis(100);
const DRAIN_LONGEST: Duration = Duration::from_secs(2);

/// The last lines that a rank wrote to stderr, oldest first.
pub(crate) type Tail = VecDeque<Vec<u8>>;

/// The log file of one rank.
pub(crate) struct Log {
    path: PathBuf,
    file: File,
}

impl Log {
    /// Creates `dir` and the empty files `rank-0.log` and so on in it.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` naming the path that cannot be made.
    pub(crate) fn create(dir: &Path, ranks: usize) -> Result<Vec<Log>> {
        let refused = |path: &Path, error: io::Error| {
            let problem = format!("the log directory: cannot create {}", path.display());
            Error::new(ErrorKind::InvalidArgument { problem })
                .source(error)
                .hint("give --log-dir a directory that this user may write to")
        };
        std::fs::create_dir_all(dir).map_err(|error| refused(dir, error))?;
        let open = |rank| {
            let path = dir.join(format!("rank-{rank}.log"));
            match File::create(&path) {
                Ok(file) => Ok(Log { path, file }),
                Err(error) => Err(refused(&path, error)),
            }
        };
        (0..ranks).map(open).collect()
    }
}

/// Where a stream of a rank goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// stdout to stdout.
    Out = 0,
    /// stderr to stderr.
    Err = 1,
}

struct Stream {
    rank: usize,
    target: Target,
    fd: OwnedFd,
    lines: Lines,
}

/// Everything that the ranks write. Made whole before the first rank writes, then [`run`](Output::run) on a thread.
pub(crate) struct Output {
    streams: Vec<Stream>,
    logs: Vec<Option<Log>>,
    tails: Vec<Tail>,
    screens: [Screen; 2],
    /// The ranks are gone when this pipe has ended.
    finish: OwnedFd,
}

impl Output {
    /// For `ranks` ranks, with `logs` for each of them or none.
    pub(crate) fn new(ranks: usize, logs: Vec<Log>, finish: OwnedFd) -> Output {
        let mut logs: Vec<Option<Log>> = logs.into_iter().map(Some).collect();
        logs.resize_with(ranks, || None);
        let screens = [Screen::new(io::stdout().is_terminal()), Screen::new(io::stderr().is_terminal())];
        Output { streams: Vec::new(), logs, tails: vec![Tail::new(); ranks], screens, finish }
    }

    /// Adds the reading end of a rank's pipe.
    pub(crate) fn add(&mut self, rank: usize, target: Target, fd: OwnedFd) {
        self.streams.push(Stream { rank, target, fd, lines: Lines::default() });
    }

    /// Copies until every stream has ended; returns the last lines that each rank wrote to stderr.
    pub(crate) fn run(mut self) -> Vec<Tail> {
        let mut buf = vec![0u8; 64 * 1024];
        let mut deadline = None;
        while !self.streams.is_empty() && deadline.is_none_or(|deadline| Instant::now() < deadline) {
            let (ready, finished) = self.wait(deadline.map(|_| DRAIN_QUIET));
            if finished {
                deadline.get_or_insert_with(|| Instant::now() + DRAIN_LONGEST);
            }
            if deadline.is_some() && ready.is_empty() && !finished {
                break;
            }
            // From the back, so that removing one leaves the others where they are.
            for &index in ready.iter().rev() {
                if !self.copy(index, &mut buf) {
                    let mut stream = self.streams.remove(index);
                    self.finish(&mut stream);
                }
            }
        }
        for mut stream in std::mem::take(&mut self.streams) {
            self.finish(&mut stream);
        }
        self.tails
    }

    /// Indices of the streams that can be read, and whether the finish pipe has ended; it is asked only with no limit.
    fn wait(&self, limit: Option<Duration>) -> (Vec<usize>, bool) {
        let mut fds: Vec<PollFd<'_>> = self.streams.iter().map(|s| PollFd::new(&s.fd, PollFlags::IN)).collect();
        if limit.is_none() {
            fds.push(PollFd::new(&self.finish, PollFlags::IN));
        }
        let limit = limit.map(|limit| Timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() });
        while poll(&mut fds, limit.as_ref()) == Err(Errno::INTR) {}
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let finished = fds.get(self.streams.len()).is_some_and(is_ready);
        ((0..self.streams.len()).filter(|index| is_ready(&fds[*index])).collect(), finished)
    }

    /// Copies what one stream has; false when it has ended or nobody wants the rest.
    fn copy(&mut self, index: usize, buf: &mut [u8]) -> bool {
        let Output { streams, logs, tails, screens, .. } = self;
        let Stream { rank, target, fd, lines } = &mut streams[index];
        let count = match rustix::io::read(&*fd, &mut *buf) {
            Err(Errno::INTR | Errno::AGAIN) => return true,
            Ok(0) | Err(_) => return false,
            Ok(count) => count,
        };
        let (screen, log) = (&mut screens[*target as usize], &mut logs[*rank]);
        let mut sink = Sink { rank: *rank, target: *target, screen, log: Vec::new(), tail: &mut tails[*rank] };
        lines.push(&buf[..count], &mut |piece, end| sink.take(piece, end));
        let logged = std::mem::take(&mut sink.log);
        write_log(log, &logged);
        screen.flush(*target);
        // With nobody to read its output a rank shall see that, as it would without a launcher in between.
        !screen.closed || log.is_some()
    }

    fn finish(&mut self, stream: &mut Stream) {
        let (screen, log) = (&mut self.screens[stream.target as usize], &mut self.logs[stream.rank]);
        let tail = &mut self.tails[stream.rank];
        let mut sink = Sink { rank: stream.rank, target: stream.target, screen, log: Vec::new(), tail };
        stream.lines.finish(&mut |piece, end| sink.take(piece, end));
        let logged = std::mem::take(&mut sink.log);
        write_log(log, &logged);
        screen.flush(stream.target);
    }
}

/// What becomes of the pieces of one stream.
struct Sink<'a> {
    rank: usize,
    target: Target,
    screen: &'a mut Screen,
    log: Vec<u8>,
    tail: &'a mut Tail,
}

impl Sink<'_> {
    fn take(&mut self, piece: &[u8], end: End) {
        self.screen.add(self.rank, piece, end);
        self.log.extend_from_slice(piece);
        self.log.extend_from_slice(match end {
            End::Line | End::Late => b"\n",
            End::Return => b"\r",
            End::Cut => b"",
        });
        if self.target == Target::Err && !piece.trim_ascii().is_empty() {
            if self.tail.len() == TAIL_LINES {
                self.tail.pop_front();
            }
            self.tail.push_back(piece.trim_ascii_end()[..].iter().copied().take(TAIL_BYTES).collect());
        }
    }
}

/// One of the launcher's own streams: lines gathered for one write.
struct Screen {
    terminal: bool,
    /// The cursor stands at the start of a line that a progress bar drew.
    returned: bool,
    gathered: Vec<u8>,
    closed: bool,
}

impl Screen {
    fn new(terminal: bool) -> Screen {
        Screen { terminal, returned: false, gathered: Vec::new(), closed: false }
    }

    fn add(&mut self, rank: usize, piece: &[u8], end: End) {
        let blank = piece.is_empty() && end != End::Line;
        if self.terminal && self.returned && !(blank && end == End::Return) {
            // Either ends the bar's line or erases it to make room; a bar draws itself again.
            self.returned = false;
            self.gathered.extend_from_slice(if end == End::Late { b"\n" } else { b"\x1b[K" });
        }
        if blank {
            return;
        }
        self.gathered.extend_from_slice(format!("[rank {rank}] ").as_bytes());
        self.gathered.extend_from_slice(piece);
        self.returned = self.terminal && end == End::Return;
        self.gathered.extend_from_slice(if self.returned { b"\r" } else { b"\n" });
    }

    fn flush(&mut self, target: Target) {
        if !self.closed && !self.gathered.is_empty() {
            self.closed = write(target, &self.gathered).is_err();
        }
        self.gathered.clear();
    }
}

fn write_log(log: &mut Option<Log>, bytes: &[u8]) {
    let Some(Log { path, file }) = log else { return };
    if let Err(error) = file.write_all(bytes) {
        let message = format!("hccl: cannot write {}: {error}; this log ends here\n", path.display());
        // With stderr gone too there is nobody to tell.
        let _ = write(Target::Err, message.as_bytes());
        *log = None;
    }
}

/// Writes all of `bytes` to the launcher's own stdout or stderr.
pub(crate) fn write(target: Target, bytes: &[u8]) -> io::Result<()> {
    match target {
        Target::Out => write_all(io::stdout().as_fd(), bytes),
        Target::Err => write_all(io::stderr().as_fd(), bytes),
    }
}

fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            // A terminal that another program set to not block.
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::OUT)], None);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(terminal: bool, pieces: &[(usize, &str, End)]) -> String {
        let mut screen = Screen::new(terminal);
        pieces.iter().for_each(|(rank, piece, end)| screen.add(*rank, piece.as_bytes(), *end));
        String::from_utf8(screen.gathered).unwrap()
    }

    const BAR: [(usize, &str, End); 5] = [
        (0, "10%", End::Return),
        (1, "hello", End::Line),
        (0, "", End::Return),
        (0, "99%", End::Return),
        (0, "", End::Late),
    ];

    #[test]
    fn a_bar_is_redrawn_on_a_terminal() {
        let text = "[rank 0] 10%\r\x1b[K[rank 1] hello\n[rank 0] 99%\r\n";
        assert_eq!(shown(true, &BAR), text);
    }

    #[test]
    fn a_bar_is_plain_lines_elsewhere() {
        assert_eq!(shown(false, &BAR), "[rank 0] 10%\n[rank 1] hello\n[rank 0] 99%\n");
    }

    #[test]
    fn the_tail_keeps_the_last_lines_of_stderr() {
        let (mut screen, mut tail) = (Screen::new(false), Tail::new());
        let mut sink = Sink { rank: 0, target: Target::Err, screen: &mut screen, log: Vec::new(), tail: &mut tail };
        for i in 0..9 {
            sink.take(format!("line {i}").as_bytes(), End::Line);
            sink.take(b"  ", End::Line);
        }
        assert_eq!(sink.log.len(), 9 * ("line 0\n".len() + 3));
        let tail: Vec<String> = tail.into_iter().map(|line| String::from_utf8(line).unwrap()).collect();
        assert_eq!(tail, ["line 4", "line 5", "line 6", "line 7", "line 8"]);
    }
}
