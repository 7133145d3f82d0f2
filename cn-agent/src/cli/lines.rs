//! `cn-agent read`, `cn-agent write` and `cn-agent flush`: access to lines of remote memory from the shell,
//! through a port of the running agent.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Args;
use cxloe_client::client::{self, Client, ClientError};
use cxloe_client::message::AttachedRegion;
use cxloe_cn_core::cache::Line;
use cxloe_daemon::command_line::{Failure, output};
use cxloe_fabric::model::ByteSize;
use serde_json::{Value, json};

use super::SocketArgs;
use super::failure::{is_transient, of_agent, of_operation};
use super::retry_deadline::RetryDeadline;
use super::target::{MemoryTarget, hpa_in, is_attached};

const LINE: usize = size_of::<Line>();
/// Maximum number of lines that one request reads: 4 MiB.
const CHUNK: u64 = 64 << 10;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cn-agent read 0x10000000000                 one line by its HPA
  cn-agent read scratch+0x1000 --lines 64     a page of a region
  cn-agent read scratch --lines 1048576 --raw > scratch.img")]
pub struct ReadArgs {
    /// An HPA, or REGION or REGION+OFFSET; a multiple of 64
    target: MemoryTarget,
    /// Number of 64-byte lines
    #[arg(short, long, default_value_t = 1, value_name = "N")]
    lines: u64,
    /// Write the bytes as they are instead of a hexdump, or of JSON
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    socket: SocketArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without --text, --hex or --file the bytes come from standard input. If they end within a line, the rest of
that line keeps its content. With --json, the HPA and the number of bytes written are printed.

Examples:
  cn-agent write scratch --text 'hello, remote memory'
  cn-agent write scratch+64 --hex 00ff00ff
  cn-agent write scratch < scratch.img")]
pub struct WriteArgs {
    /// An HPA, or REGION or REGION+OFFSET; a multiple of 64
    target: MemoryTarget,
    /// The bytes of this text
    #[arg(long, group = "source")]
    text: Option<String>,
    /// Bytes in hexadecimal; white space does not matter
    #[arg(long, group = "source", value_name = "DIGITS")]
    hex: Option<String>,
    /// The bytes of this file
    #[arg(long, group = "source", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Maximum number of bytes to read from the source
    #[arg(long, default_value = "1G", value_name = "SIZE")]
    max: ByteSize,
    /// Wait until the memory nodes have the bytes
    #[arg(long)]
    flush: bool,
    #[command(flatten)]
    socket: SocketArgs,
}

/// Returns the HPA of a target of `bytes` bytes. A target that is an HPA needs no request. For a region, calls `regions`,
/// and repeats the call until the region is attached or `again`, which waits, returns false.
fn locate(
    target: &MemoryTarget,
    bytes: u64,
    mut regions: impl FnMut() -> Result<Vec<AttachedRegion>, Failure>,
    again: impl Fn() -> bool,
) -> Result<u64, Failure> {
    let (name, offset) = match target {
        MemoryTarget::Hpa(hpa) => return Ok(*hpa),
        MemoryTarget::Region(name, offset) => (name, *offset),
    };
    loop {
        let attached = regions()?;
        if is_attached(name, &attached) || !again() {
            return hpa_in(name, offset, bytes, &attached);
        }
    }
}

/// Returns the HPA of a target of `bytes` bytes. For a region, asks the agent whose socket is at `path`, until the region
/// is attached or `wait_limit` is over.
fn locate_at(
    path: &Path,
    target: &MemoryTarget,
    bytes: u64,
    wait_limit: RetryDeadline,
) -> Result<u64, Failure> {
    locate(target, bytes, || client::regions(path).map_err(of_agent), || wait_limit.again())
}

/// Runs the first operation on a region, and repeats it until the region is attached and its memory nodes are
/// connected, or `wait_limit` is over. If the target is an HPA, the operation runs only one time.
fn first_of_all<T>(
    target: &MemoryTarget,
    path: &Path,
    wait_limit: RetryDeadline,
    mut operation: impl FnMut() -> Result<T, ClientError>,
) -> Result<T, Failure> {
    loop {
        match operation() {
            Err(error)
                if matches!(target, MemoryTarget::Region(..))
                    && is_transient(&error, path)
                    && wait_limit.again() => {}
            result => return result.map_err(|error| of_operation(error, path)),
        }
    }
}

/// Prints lines as a hexdump, as JSON, or as raw bytes.
///
/// # Errors
/// The port's error, or a closed standard output.
pub fn read(args: &ReadArgs) -> Result<(), Failure> {
    let path = args.socket.path();
    let wait_limit = RetryDeadline::begin();
    let bytes = args.lines.saturating_mul(LINE as u64);
    let first = locate_at(&path, &args.target, bytes, wait_limit)?;
    if first.checked_add(bytes).is_none() {
        return Err(Failure::usage(format!("{} lines reach beyond the end of all addresses", args.lines)));
    }
    let mut port = Client::connect(&path).map_err(of_agent)?;
    let mut room = vec![0; CHUNK.min(args.lines) as usize * LINE];
    let json = output::json_asked() && !args.raw;
    let mut done = 0;
    if json {
        output::write(b"[")?;
    }
    while done < args.lines {
        let count = CHUNK.min(args.lines - done);
        let hpa = first + done * LINE as u64;
        let bytes = &mut room[..count as usize * LINE];
        let mut read = || match bytes.as_chunks_mut::<LINE>().0 {
            [line] => port.read(hpa).map(|data| *line = data),
            lines => port.read_bytes(hpa, lines.as_flattened_mut()),
        };
        match done {
            0 => first_of_all(&args.target, &path, wait_limit, read)?,
            _ => read().map_err(|e| of_operation(e, &path))?,
        }
        if args.raw {
            output::write(bytes)?;
        } else if json {
            let separator = if done > 0 { "," } else { "" };
            output::write(format!("{separator}{}", objects(hpa, bytes)).as_bytes())?;
        } else {
            output::write(hexdump(hpa, bytes).as_bytes())?;
        }
        done += count;
    }
    if json { output::write(b"\n]\n") } else { Ok(()) }
}

/// Writes the bytes of `--text`, `--hex` or `--file`, or of standard input, to remote memory.
///
/// # Errors
/// The port's error, or a source that cannot be read.
pub fn write(args: &WriteArgs) -> Result<(), Failure> {
    let path = args.socket.path();
    let bytes = source(args)?;
    let wait_limit = RetryDeadline::begin();
    let all = bytes.len().next_multiple_of(LINE) as u64;
    let first = locate_at(&path, &args.target, all, wait_limit)?;
    if first.checked_add(all).is_none() {
        return Err(Failure::usage("the bytes reach beyond the end of all addresses"));
    }
    let mut port = Client::connect(&path).map_err(of_agent)?;
    let failed = |e| of_operation(e, &path);
    if !bytes.is_empty() {
        // Waits for the region by reading a line: unlike a write, a read can be repeated without an effect.
        first_of_all(&args.target, &path, wait_limit, || port.read(first))?;
    }
    let (whole, rest) = bytes.as_chunks::<LINE>();
    if let [line] = whole {
        port.write(first, line).map_err(failed)?;
    } else {
        port.write_bytes(first, whole.as_flattened()).map_err(failed)?;
    }
    if !rest.is_empty() {
        let last = first + (whole.len() * LINE) as u64;
        // The source ends within this line; the rest of the line keeps its content.
        let mut line = port.read(last).map_err(failed)?;
        line[..rest.len()].copy_from_slice(rest);
        port.write(last, &line).map_err(failed)?;
    }
    if args.flush {
        port.flush().map_err(failed)?;
    }
    shown_if_asked(&json!({ "hpa": first, "bytes": bytes.len(), "flushed": args.flush }))
}

/// Prints `done` if JSON output was chosen; otherwise a successful write or flush prints nothing.
fn shown_if_asked(done: &Value) -> Result<(), Failure> {
    if output::json_asked() { output::print(done.clone(), false) } else { Ok(()) }
}

/// Writes back the lines that the agent's cache has modified, and waits until the memory nodes have them.
///
/// # Errors
/// The port's error.
pub fn flush(args: &SocketArgs) -> Result<(), Failure> {
    let path = args.path();
    Client::connect(&path).map_err(of_agent)?.flush().map_err(|e| of_operation(e, &path))?;
    shown_if_asked(&json!({ "flushed": true }))
}

fn source(args: &WriteArgs) -> Result<Vec<u8>, Failure> {
    if let Some(text) = &args.text {
        return Ok(text.clone().into_bytes());
    }
    if let Some(digits) = &args.hex {
        return unhex(digits);
    }
    let mut bytes = Vec::new();
    let limit = args.max.0.saturating_add(1);
    let (what, read) = match &args.file {
        Some(path) => {
            let file = std::fs::File::open(path);
            (path.display().to_string(), file.and_then(|file| file.take(limit).read_to_end(&mut bytes)))
        }
        None => ("standard input".into(), std::io::stdin().lock().take(limit).read_to_end(&mut bytes)),
    };
    read.map_err(|error| Failure::failed(format!("cannot read {what}: {error}")))?;
    if bytes.len() as u64 > args.max.0 {
        return Err(Failure::usage(format!("{what} has more than {} bytes; raise --max", args.max.0)));
    }
    Ok(bytes)
}

fn unhex(text: &str) -> Result<Vec<u8>, Failure> {
    let wrong = || Failure::usage("--hex takes pairs of hexadecimal digits, as in 00ff");
    let digits: Option<Vec<u8>> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| c.to_digit(16).map(|digit| digit as u8))
        .collect();
    let (pairs, odd) = digits.as_deref().ok_or_else(wrong)?.as_chunks::<2>();
    if !odd.is_empty() {
        return Err(wrong());
    }
    Ok(pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

/// Returns one JSON object for each line, with the line's HPA and its bytes in hexadecimal.
fn objects(hpa: u64, bytes: &[u8]) -> String {
    let lines = bytes.chunks(LINE).enumerate().map(|(at, line)| {
        let digits: String = line.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("\n  {{\"hpa\": {}, \"bytes\": \"{digits}\"}}", hpa + (at * LINE) as u64)
    });
    lines.collect::<Vec<_>>().join(",")
}

/// Formats rows of sixteen bytes, each with its HPA in front and its printable characters behind.
fn hexdump(hpa: u64, bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 5);
    for (row, chunk) in bytes.chunks(16).enumerate() {
        let _ = write!(text, "{:012x} ", hpa + row as u64 * 16);
        for (i, byte) in chunk.iter().enumerate() {
            let gap = if i == 8 { "  " } else { " " };
            let _ = write!(text, "{gap}{byte:02x}");
        }
        text.push_str("  |");
        text.extend(chunk.iter().map(|b| if b.is_ascii_graphic() || *b == b' ' { *b as char } else { '.' }));
        text.push_str("|\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use cxloe_daemon::command_line::Exit;

    use super::super::target::tests::attached;
    use super::*;

    #[test]
    fn the_agent_is_asked_for_regions_once_or_not_at_all() {
        let asked = Cell::new(0);
        let listed = attached("scratch");
        let locate = |text: &str, from: u32, waits: bool| {
            asked.set(0);
            let regions = || {
                asked.set(asked.get() + 1);
                Ok(if asked.get() >= from { vec![listed.clone()] } else { Vec::new() })
            };
            locate(&text.parse().unwrap(), 64, regions, || waits).map_err(|failure| failure.exit)
        };
        assert_eq!((locate("0x40", 1, true), asked.get()), (Ok(0x40), 0));
        assert_eq!((locate("scratch+64", 1, true), asked.get()), (Ok(listed.hpa + 64), 1));
        assert_eq!((locate("scratch+64", 3, true), asked.get()), (Ok(listed.hpa + 64), 3));
        assert_eq!((locate("other", 1, false), asked.get()), (Err(Exit::NotFound), 1));
    }

    #[test]
    fn bytes_are_shown_and_read_in_hexadecimal() {
        let shown = hexdump(0x100_0000_0000, b"hello, \x00world!!!");
        assert_eq!(
            shown,
            "010000000000  68 65 6c 6c 6f 2c 20 00  77 6f 72 6c 64 21 21 21  |hello, .world!!!|\n"
        );
        assert_eq!(unhex("00 fF\n7a").unwrap(), [0, 0xFF, 0x7A]);
        for bad in ["0", "0g", "é0"] {
            assert_eq!(unhex(bad).unwrap_err().exit, Exit::Usage);
        }
    }
}
