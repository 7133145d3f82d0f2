//! Lines of a text of any length, one at a time: memory stays bounded, and errors can name a line.

use std::io::{BufRead, Read};

use super::error::TraceError;

/// Maximum length of a line in bytes, without its line break.
const LINE_MAX: usize = 1024;

/// Reader of a text by lines, which are numbered from 1 on.
pub(super) struct NumberedLines<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
}

impl<R: BufRead> NumberedLines<R> {
    pub(super) fn new(input: R) -> NumberedLines<R> {
        NumberedLines { input, line: Vec::new(), number: 0 }
    }

    /// Number and text of the next line; `None` at the end of the text.
    pub(super) fn next_line(&mut self) -> Result<Option<(u64, &str)>, TraceError> {
        self.line.clear();
        let room = LINE_MAX as u64 + 1;
        let read = self.input.by_ref().take(room).read_until(b'\n', &mut self.line);
        if read.map_err(TraceError::Read)? == 0 {
            return Ok(None);
        }
        self.number += 1;
        let number = self.number;
        let fault = |fault: String| TraceError::Line { line: number, fault };
        let bytes = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        if bytes.len() > LINE_MAX {
            return Err(fault(format!("more than {LINE_MAX} bytes")));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| fault("not a text in UTF-8".into()))?;
        Ok(Some((number, text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_numbered_and_bounded() {
        let long = "x".repeat(LINE_MAX);
        let text = format!("one\r\n\n{long}\nlast");
        let mut lines = NumberedLines::new(text.as_bytes());
        assert_eq!(lines.next_line().unwrap(), Some((1, "one\r")));
        assert_eq!(lines.next_line().unwrap(), Some((2, "")));
        assert_eq!(lines.next_line().unwrap(), Some((3, long.as_str())));
        assert_eq!(lines.next_line().unwrap(), Some((4, "last")));
        assert_eq!(lines.next_line().unwrap(), None);

        let longer = format!("\n{long}x");
        let mut lines = NumberedLines::new(longer.as_bytes());
        lines.next_line().unwrap();
        assert_eq!(lines.next_line().unwrap_err().to_string(), "line 2: more than 1024 bytes");
        let mut binary = NumberedLines::new(&b"\xFF\n"[..]);
        assert!(binary.next_line().unwrap_err().to_string().starts_with("line 1: not a text"));
    }
}
