//! Cuts a stream of bytes into lines and the redrawn lines of progress bars.

/// A line longer than this is cut.
pub(crate) const LONGEST: usize = 64 * 1024;

/// What ended a piece of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// `\n`, or `\r\n` with the `\r` left in the piece.
    Line,
    /// A lone `\r`: a progress bar goes back to redraw itself.
    Return,
    /// A `\n` that came after its `\r` had already been taken for a lone one; the piece is empty.
    Late,
    /// Nothing: the piece is [`LONGEST`] bytes long, or the stream ended.
    Cut,
}

/// The unfinished end of one stream.
#[derive(Default)]
pub(crate) struct Lines {
    pending: Vec<u8>,
    returned: bool,
}

impl Lines {
    /// Adds `bytes` and emits every piece that is complete.
    pub(crate) fn push(&mut self, mut bytes: &[u8], emit: &mut dyn FnMut(&[u8], End)) {
        while let Some(&first) = bytes.first() {
            if std::mem::take(&mut self.returned) && first == b'\n' {
                emit(&[], End::Late);
                bytes = &bytes[1..];
                continue;
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')).unwrap_or(bytes.len());
            let room = LONGEST - self.pending.len();
            let taken = end.min(room);
            self.pending.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            bytes = match (taken < end, bytes) {
                (true, rest) => self.emit(rest, End::Cut, emit),
                (false, []) => bytes,
                (false, [b'\r', b'\n', rest @ ..]) => {
                    self.pending.push(b'\r');
                    self.emit(rest, End::Line, emit)
                }
                (false, [b'\r', rest @ ..]) => {
                    self.returned = rest.is_empty();
                    self.emit(rest, End::Return, emit)
                }
                (false, [_, rest @ ..]) => self.emit(rest, End::Line, emit),
            };
        }
    }

    /// Emits what is left when the stream has ended.
    pub(crate) fn finish(&mut self, emit: &mut dyn FnMut(&[u8], End)) {
        if !self.pending.is_empty() {
            self.emit(&[], End::Cut, emit);
        }
    }

    fn emit<'a>(&mut self, rest: &'a [u8], end: End, emit: &mut dyn FnMut(&[u8], End)) -> &'a [u8] {
        emit(&self.pending, end);
        self.pending.clear();
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(chunks: &[&[u8]]) -> Vec<(Vec<u8>, End)> {
        let (mut lines, mut out) = (Lines::default(), Vec::new());
        for chunk in chunks {
            lines.push(chunk, &mut |piece, end| out.push((piece.to_vec(), end)));
        }
        lines.finish(&mut |piece, end| out.push((piece.to_vec(), end)));
        out
    }

    fn piece(text: &str, end: End) -> (Vec<u8>, End) {
        (text.as_bytes().to_vec(), end)
    }

    #[test]
    fn lines_are_joined_over_chunks() {
        let expected = [piece("abc", End::Line), piece("", End::Line), piece("d", End::Cut)];
        assert_eq!(cut(&[b"a", b"bc\n\nd"]), expected);
        assert_eq!(cut(&[b"abc\n", b"\n", b"d"]), expected);
    }

    #[test]
    fn carriage_returns_redraw_and_windows_lines_stay() {
        assert_eq!(cut(&[b"10%\r20%\r\n"]), [piece("10%", End::Return), piece("20%\r", End::Line)]);
        assert_eq!(
            cut(&[b"10%\r", b"\nx\n"]),
            [piece("10%", End::Return), piece("", End::Late), piece("x", End::Line)]
        );
        assert_eq!(cut(&[b"10%\r", b"20%"]), [piece("10%", End::Return), piece("20%", End::Cut)]);
    }

    #[test]
    fn long_lines_are_cut_and_nothing_is_lost() {
        for extra in [0, 1, LONGEST - 1, LONGEST, LONGEST + 1] {
            let line: Vec<u8> = (0..LONGEST + extra).map(|i| b'a' + (i % 23) as u8).chain([b'\n']).collect();
            for chunk in [line.len(), 1000, LONGEST] {
                let chunks: Vec<&[u8]> = line.chunks(chunk).collect();
                let pieces = cut(&chunks);
                assert!(pieces.iter().all(|(piece, _)| piece.len() <= LONGEST));
                assert_eq!(pieces.len(), if extra == 0 { 1 } else { 1 + extra.div_ceil(LONGEST) });
                assert_eq!(pieces.iter().filter(|(_, end)| *end == End::Line).count(), 1);
                assert_eq!(pieces.concat_bytes(), line[..line.len() - 1], "{extra} {chunk}");
            }
        }
    }

    trait Concat {
        fn concat_bytes(&self) -> Vec<u8>;
    }

    impl Concat for Vec<(Vec<u8>, End)> {
        fn concat_bytes(&self) -> Vec<u8> {
            self.iter().flat_map(|(piece, _)| piece.clone()).collect()
        }
    }

    #[test]
    fn bytes_that_are_not_text_pass() {
        assert_eq!(cut(&[b"\xff\xfe\x00\n"]), [(b"\xff\xfe\x00".to_vec(), End::Line)]);
    }
}
