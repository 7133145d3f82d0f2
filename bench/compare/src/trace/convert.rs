//! Converters from public formats of traces, line by line, so that a trace of any length needs little memory.
//!
//! ```text
//!   lackey: valgrind --tool=lackey --trace-mem=yes         msr: block traces of Microsoft Research Cambridge
//!     I  0401ab70,3     an instruction: left out             time,host,disk,Read or Write,offset,bytes,duration
//!      L 1ffeffe7e,8    a load: r                            128166372010810581,mds,0,Write,2654453760,4096,54086
//!      S be80199c,4     a store: w
//!      M 0025747c,1     a load and a store: r, then w
//! ```

use std::io::{BufRead, Write};

use super::access::{TraceAccess, number};
use super::error::{ACCESSES_MAX, TraceError};
use super::text::NumberedLines;

/// Public format of a recorded trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceFormat {
    /// Loads and stores of a program, as Valgrind's tool lackey prints them.
    Lackey,
    /// Requests to one disk, as in the CSV files of the MSR Cambridge block traces.
    Msr,
}

/// Accesses that one line of a public format stands for, all to the same bytes.
struct Range {
    /// For each access, true if it is a write.
    writes: &'static [bool],
    at: u64,
    bytes: u64,
}

const READ: &[bool] = &[false];
const WRITE: &[bool] = &[true];
const READ_AND_WRITE: &[bool] = &[false, true];

/// Converts a trace into the text that [`AccessTrace::read`](super::AccessTrace::read) takes; returns the number of
/// accesses.
///
/// # Errors
/// Returns which line is not of the format, or that there are no accesses or too many. The output then holds what
/// precedes the error.
pub fn convert(from: TraceFormat, input: impl BufRead, mut output: impl Write) -> Result<usize, TraceError> {
    let mut lines = NumberedLines::new(input);
    let (mut disk, mut count) = (None, 0);
    while let Some((line, text)) = lines.next_line()? {
        let fault = |fault: String| TraceError::Line { line, fault };
        let range = match from {
            TraceFormat::Lackey => lackey(text.trim()),
            TraceFormat::Msr => msr(text.trim(), &mut disk),
        };
        let Some(Range { writes, at, bytes }) = range.map_err(fault)? else { continue };
        for is_write in writes {
            let access = TraceAccess::new(*is_write, at, bytes).map_err(fault)?;
            if count == ACCESSES_MAX {
                return Err(TraceError::TooLong);
            }
            writeln!(output, "{access}").map_err(TraceError::Write)?;
            count += 1;
        }
    }
    output.flush().map_err(TraceError::Write)?;
    if count == 0 { Err(TraceError::Empty) } else { Ok(count) }
}

/// Parses a line of lackey's; `None` for instructions, superblocks and Valgrind's own messages.
fn lackey(line: &str) -> Result<Option<Range>, String> {
    let is_message = ["==", "--", "**"].iter().any(|start| line.starts_with(start));
    if line.is_empty() || is_message {
        return Ok(None);
    }
    let (kind, place) = line.split_once(' ').unwrap_or((line, ""));
    let writes = match kind {
        "L" => READ,
        "S" => WRITE,
        "M" => READ_AND_WRITE,
        "I" | "SB" => return Ok(None),
        _ => {
            return Err(format!(
                "`{line}` is no line of lackey's; keep the program's own output apart with --log-file"
            ));
        }
    };
    let parts = place.trim_start().split_once(',');
    let range = parts.and_then(|(at, bytes)| {
        let at = u64::from_str_radix(at, 16).ok()?;
        Some(Range { writes, at, bytes: bytes.parse().ok()? })
    });
    let range = range.ok_or_else(|| format!("`{place}` is no hexadecimal address, comma, size"));
    range.map(Some)
}

/// Parses a line of an MSR Cambridge trace; `None` for the names of the columns. `disk` is the one of the lines before:
/// its host and number.
fn msr(line: &str, disk: &mut Option<(String, String)>) -> Result<Option<Range>, String> {
    if line.is_empty() || line.starts_with("Timestamp,") {
        return Ok(None);
    }
    let fields: Vec<&str> = line.split(',').collect();
    let &[_, host, number_of_disk, kind, at, bytes, _] = &fields[..] else {
        let expected = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime";
        return Err(format!("{} fields, not seven: {expected}", fields.len()));
    };
    let first = disk.get_or_insert_with(|| (host.to_owned(), number_of_disk.to_owned()));
    if (first.0.as_str(), first.1.as_str()) != (host, number_of_disk) {
        return Err(format!(
            "disk {number_of_disk} of {host} after disk {} of {}: a trace is of one disk",
            first.1, first.0
        ));
    }
    let writes = match kind {
        "Read" => READ,
        "Write" => WRITE,
        _ => return Err(format!("`{kind}` is neither Read nor Write")),
    };
    Ok(Some(Range { writes, at: number(at)?, bytes: number(bytes)? }))
}

#[cfg(test)]
mod tests {
    use super::super::AccessTrace;
    use super::*;

    fn converted(from: TraceFormat, text: &str) -> Result<String, String> {
        let mut out = Vec::new();
        let count = convert(from, text.as_bytes(), &mut out).map_err(|error| error.to_string())?;
        let trace = AccessTrace::read(&out[..]).map_err(|error| error.to_string())?;
        assert_eq!(trace.accesses().len(), count);
        String::from_utf8(out).map_err(|error| error.to_string())
    }

    #[test]
    fn loads_and_stores_of_lackey_are_converted() {
        let log = "==4711== Lackey, an example Valgrind tool\n\
            ==4711== \n\
            I  0401ab70,3\n \
            L 1ffeffe7e,8\n \
            S be80199c,4\n\
            SB 0401ab73\n \
            M 0025747c,1\n\
            ==4711== Counted 1 call to main()\n";
        let expected = "r 0x1ffeffe7e 8\nw 0xbe80199c 4\nr 0x25747c 1\nw 0x25747c 1\n";
        assert_eq!(converted(TraceFormat::Lackey, log).unwrap(), expected);
    }

    #[test]
    fn requests_of_msr_cambridge_are_converted() {
        let rows = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n\
            128166372010810581,mds,0,Write,2654453760,4096,54086\n\
            128166372011600556,mds,0,Read,3201662976,20480,45361\r\n";
        let expected = "w 0x9e37c000 4096\nr 0xbed58000 20480\n";
        assert_eq!(converted(TraceFormat::Msr, rows).unwrap(), expected);
    }

    #[test]
    fn lines_of_another_form_are_named() {
        for (from, text, expected) in [
            (TraceFormat::Lackey, " L 1000,8\nhello\n", "line 2: `hello` is no line of lackey's"),
            (TraceFormat::Lackey, " L 1000\n", "line 1: `1000` is no hexadecimal address"),
            (TraceFormat::Lackey, " S 10g0,8\n", "line 1: `10g0,8` is no hexadecimal address"),
            (TraceFormat::Lackey, " S 1000,0\n", "line 1: a length of 0"),
            (TraceFormat::Lackey, "I  1000,4\n", "no access"),
            (TraceFormat::Msr, "1,usr,0,Read,0\n", "line 1: 5 fields, not seven"),
            (TraceFormat::Msr, "1,usr,0,Trim,0,512,9\n", "line 1: `Trim` is neither"),
            (TraceFormat::Msr, "1,usr,0,Read,a,512,9\n", "line 1: `a` is no number"),
            (TraceFormat::Msr, "1,usr,0,Read,0,512,9\n2,usr,1,Read,0,512,9\n", "line 2: disk 1 of usr after"),
        ] {
            let error = converted(from, text).unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }
}
