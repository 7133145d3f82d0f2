//! The passes that a guest has completed, with the time of each, as its serial line shows them.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::Instant;

/// The guest's serial line, which QEMU writes to a file.
#[derive(Debug)]
pub struct SerialLine {
    file: File,
    /// Beginning of a line that is not complete yet.
    rest: String,
    /// Times at which passes were seen to be complete, in order.
    pub passes: Vec<Instant>,
    /// First message about a wrong word in the guest's memory.
    pub wrong: Option<String>,
}

impl SerialLine {
    /// Opens the serial line that is written to the file at `path`.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path) -> io::Result<SerialLine> {
        Ok(SerialLine { file: File::open(path)?, rest: String::new(), passes: Vec::new(), wrong: None })
    }

    /// Reads the lines that were written since the last call.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn look(&mut self) -> io::Result<()> {
        let now = Instant::now();
        self.file.read_to_string(&mut self.rest)?;
        while let Some(end) = self.rest.find('\n') {
            let line: String = self.rest.drain(..=end).collect();
            if line.starts_with("pass ") {
                self.passes.push(now);
            } else if line.starts_with("wrong ") {
                self.wrong.get_or_insert(line.trim().to_owned());
            }
        }
        Ok(())
    }

    /// Number of passes completed between two moments.
    pub fn between(&self, from: Instant, to: Instant) -> usize {
        self.passes.iter().filter(|at| (from..to).contains(*at)).count()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use super::*;

    #[test]
    fn passes_and_wrong_words_are_read_as_they_come() {
        let mut written = tempfile::NamedTempFile::new().unwrap();
        let mut line = SerialLine::open(written.path()).unwrap();
        let began = Instant::now();
        write!(written, "SeaBIOS\npass 1\npas").unwrap();
        line.look().unwrap();
        assert_eq!(line.passes.len(), 1);
        write!(written, "s 2\nwrong page 7: 1, not 2\n").unwrap();
        line.look().unwrap();
        assert_eq!((line.passes.len(), line.wrong.as_deref()), (2, Some("wrong page 7: 1, not 2")));
        assert_eq!(line.between(began, began + Duration::from_secs(60)), 2);
        assert_eq!(line.between(began - Duration::from_secs(60), began), 0);
    }
}
