//! Lines for systemd's journal, which reads standard error: each begins with its priority (`sd-daemon(3)`), by which
//! `journalctl -p warning` selects lines.

use std::io::{self, Write};

use nix::sys::stat::fstat;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use super::queue::QUEUE;

/// Whether standard error goes to the journal: `JOURNAL_STREAM` names its device and inode (`systemd.exec(5)`).
pub fn is_on_standard_error() -> bool {
    let named = std::env::var("JOURNAL_STREAM").ok();
    named.is_some_and(|named| {
        let stream = fstat(io::stderr()).map(|found| format!("{}:{}", found.st_dev, found.st_ino));
        stream.is_ok_and(|stream| stream == named)
    })
}

/// Writer of whole log lines to the queue.
#[derive(Clone, Copy, Debug)]
pub struct LineWriter {
    /// Whether lines begin with their priorities.
    pub with_priority: bool,
}

/// Writer of the lines of one event, with the priority that they begin with.
#[derive(Debug)]
pub struct EventWriter(Option<u8>);

/// Priority of a level, as in `syslog(3)`.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

impl<'a> MakeWriter<'a> for LineWriter {
    type Writer = EventWriter;

    fn make_writer(&'a self) -> EventWriter {
        EventWriter(self.with_priority.then(|| priority(Level::INFO)))
    }

    fn make_writer_for(&'a self, of: &Metadata<'_>) -> EventWriter {
        EventWriter(self.with_priority.then(|| priority(*of.level())))
    }
}

impl Write for EventWriter {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        match self.0 {
            Some(priority) => (&QUEUE).write_all(&prefixed(event, priority))?,
            None => (&QUEUE).write_all(event)?,
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Puts the priority in front of each line of an event, because the journal reads lines one by one.
fn prefixed(event: &[u8], priority: u8) -> Vec<u8> {
    let prefix = format!("<{priority}>");
    event.split_inclusive(|byte| *byte == b'\n').flat_map(|line| [prefix.as_bytes(), line].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_an_event_has_its_priority() {
        assert_eq!(prefixed(b"WARN a\n  b\n", priority(Level::WARN)), b"<4>WARN a\n<4>  b\n");
        assert_eq!(prefixed(b"", 6), b"");
        let [error, warn, info, debug] = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG].map(priority);
        assert!(error < warn && warn < info && info < debug);
    }
}
