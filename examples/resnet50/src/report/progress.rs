//! How far training is: a bar on a terminal, a plain line a step elsewhere.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};

use super::Row;

const BAR: &str = "{bar:30} {pos}/{len} {msg}  {eta} left";

/// The progress of one run, on standard output; only rank 0 has one.
pub struct Progress {
    total: u64,
    sink: Sink,
}

enum Sink {
    Bar(ProgressBar),
    Lines(Box<dyn Write + Send>),
}

impl Progress {
    /// A bar when standard output is a terminal, lines when it is not. `done` of `total` steps lie behind a resumed run.
    pub fn new(done: u64, total: u64) -> Self {
        match io::stdout().is_terminal() {
            true => Self::bar(done, total, ProgressDrawTarget::stdout()),
            false => Self::lines(total, Box::new(io::stdout())),
        }
    }

    /// A bar for a terminal of so many columns behind a launcher that redraws lines ending in `\r`, and puts `[rank 0] `
    /// in front.
    pub fn through_launcher(done: u64, total: u64, columns: u16) -> Self {
        let pipe = Pipe { columns: columns.saturating_sub(PREFIX), line: Mutex::default() };
        Self::bar(done, total, ProgressDrawTarget::term_like_with_hz(Box::new(pipe), 2))
    }

    /// A bar drawn to a place of choice.
    pub fn bar(done: u64, total: u64, target: ProgressDrawTarget) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), target).with_position(done);
        // The template is a constant that the test below parses; should it ever fail, the default style still shows.
        bar.set_style(ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.reset_eta();
        bar.enable_steady_tick(Duration::from_secs(1));
        Self { total, sink: Sink::Bar(bar) }
    }

    /// Plain lines to a place of choice.
    pub fn lines(total: u64, out: Box<dyn Write + Send>) -> Self {
        Self { total, sink: Sink::Lines(out) }
    }

    /// Shows a finished step; `done` counts finished steps, this one included.
    ///
    /// # Errors
    /// Those of writing a line, such as a closed pipe.
    pub fn step(&mut self, done: u64, row: &Row) -> io::Result<()> {
        match &mut self.sink {
            Sink::Bar(bar) => {
                bar.set_position(done);
                bar.set_message(format!("{}", Shown(row)));
                Ok(())
            }
            // One write a line, so that lines of several ranks on one pipe do not mix.
            Sink::Lines(out) => write_line(out, &format!("step {done}/{}  {}", self.total, Shown(row))),
        }
    }

    /// Writes a line of text, above the bar if there is one.
    ///
    /// # Errors
    /// Those of writing.
    pub fn note(&mut self, text: &str) -> io::Result<()> {
        match &mut self.sink {
            Sink::Bar(bar) => bar.suspend(|| write_line(&mut io::stdout(), text)),
            Sink::Lines(out) => write_line(out, text),
        }
    }

    /// Leaves the bar as it stands.
    pub fn finish(self) {
        if let Sink::Bar(bar) = self.sink {
            bar.abandon();
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").field("total", &self.total).finish_non_exhaustive()
    }
}

/// Columns that a launcher puts in front.
const PREFIX: u16 = "[rank 0] ".len() as u16;

/// A terminal behind a launcher: one line, drawn with a `\r` at its end.
#[derive(Debug)]
struct Pipe {
    columns: u16,
    line: Mutex<String>,
}

impl Pipe {
    fn line(&self) -> std::sync::MutexGuard<'_, String> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TermLike for Pipe {
    fn width(&self) -> u16 {
        self.columns
    }

    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        write_line(&mut io::stdout(), text)
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.line().push_str(text);
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        self.line().clear();
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let line = std::mem::take(&mut *self.line());
        if line.trim().is_empty() {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        out.write_all(format!("{}\r", line.trim_end()).as_bytes())?;
        out.flush()
    }
}

/// A row as people read it.
struct Shown<'a>(&'a Row);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { loss, images_per_s, .. } = self.0;
        write!(f, "loss {loss:.4}  {images_per_s:.1} images/s  sync {:.1} %", 100.0 * self.0.sync_share())
    }
}

fn write_line(out: &mut dyn Write, text: &str) -> io::Result<()> {
    out.write_all(format!("{text}\n").as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const ROW: Row =
        Row { step: 11, loss: 2.41259, grad_norm: 1.0, images_per_s: 312.44, step_ms: 200.0, sync_ms: 6.3 };

    /// Sends on every single write.
    struct Writes(mpsc::Sender<String>);

    impl Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(String::from_utf8_lossy(bytes).into_owned()).unwrap();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_whole_and_say_loss_throughput_and_share() {
        let (sender, writes) = mpsc::channel();
        let mut progress = Progress::lines(450, Box::new(Writes(sender)));
        progress.step(12, &ROW).unwrap();
        progress.note("epoch 1 of 3").unwrap();
        progress.finish();
        let written: Vec<String> = writes.iter().collect();
        assert_eq!(written, ["step 12/450  loss 2.4126  312.4 images/s  sync 3.1 %\n", "epoch 1 of 3\n"]);
    }

    #[test]
    fn the_bar_shows_the_same() {
        ProgressStyle::with_template(BAR).unwrap();
        let mut progress = Progress::bar(10, 450, ProgressDrawTarget::hidden());
        progress.step(12, &ROW).unwrap();
        let Sink::Bar(bar) = &progress.sink else { panic!("not a bar") };
        assert_eq!((bar.position(), bar.length()), (12, Some(450)));
        assert_eq!(bar.message(), "loss 2.4126  312.4 images/s  sync 3.1 %");
        progress.finish();
    }

    #[test]
    fn a_closed_pipe_is_an_error() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let error = Progress::lines(1, Box::new(Closed)).step(1, &ROW).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_step_without_duration_has_no_share() {
        assert_eq!(Row { step_ms: 0.0, sync_ms: 0.0, ..ROW }.sync_share(), 0.0);
    }
}
