//! `cn-agent read`, `cn-agent write` and `cn-agent flush`: lines of remote memory from the shell, through a port
//! of the running agent.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Args;
use cxloe_client::client::{self, Client, ClientError};
use cxloe_cn_core::cache::Line;
use cxloe_daemon::command_line::{Failure, output};
use cxloe_fabric::model::ByteSize;

use super::SocketArgs;
use super::failure::{may_pass, of_agent, of_operation};
use super::patience::Patience;
use super::target::Target;

const LINE: usize = size_of::<Line>();
/// Lines read in one go.
const CHUNK: u64 = 64 << 10;

/// Arguments of `cn-agent read`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cn-agent read 0x10000000000                 one line by its HPA
  cn-agent read scratch+0x1000 --lines 64     a page of a region
  cn-agent read scratch --lines 1048576 --raw > scratch.img")]
pub struct ReadArgs {
    /// Where: an HPA, or REGION or REGION+OFFSET; a multiple of 64
    target: Target,
    /// How many 64-byte lines
    #[arg(short, long, default_value_t = 1, value_name = "N")]
    lines: u64,
    /// Write the bytes as they are instead of a hexdump
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    socket: SocketArgs,
}

/// Arguments of `cn-agent write`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without --text, --hex or --file the bytes come from standard input. What does not fill its last line is
completed with what that line holds already.

Examples:
  cn-agent write scratch --text 'hello, remote memory'
  cn-agent write scratch+64 --hex 00ff00ff
  cn-agent write scratch < scratch.img")]
pub struct WriteArgs {
    /// Where: an HPA, or REGION or REGION+OFFSET; a multiple of 64
    target: Target,
    /// The bytes of this text
    #[arg(long, group = "source")]
    text: Option<String>,
    /// Bytes in hexadecimal; white space does not matter
    #[arg(long, group = "source", value_name = "DIGITS")]
    hex: Option<String>,
    /// The bytes of this file
    #[arg(long, group = "source", value_name = "FILE")]
    file: Option<PathBuf>,
    /// The most bytes to take, in case the source has no end
    #[arg(long, default_value = "1G", value_name = "SIZE")]
    max: ByteSize,
    /// Wait until the memory node has them
    #[arg(long)]
    flush: bool,
    #[command(flatten)]
    socket: SocketArgs,
}

/// The HPA of a target. A region that is not attached yet is waited for.
fn locate(target: &Target, path: &Path, patience: Patience) -> Result<u64, Failure> {
    let regions = || client::regions(path).map_err(of_agent);
    while !target.is_among(&regions()?) && patience.again() {}
    target.hpa(regions)
}

/// The first operation on a region, which may have to wait until the region is there and its memory node connected. What an
/// HPA names was there before.
fn first_of_all<T>(
    target: &Target,
    path: &Path,
    patience: Patience,
    mut operation: impl FnMut() -> Result<T, ClientError>,
) -> Result<T, Failure> {
    loop {
        match operation() {
            Err(error)
                if matches!(target, Target::Region(..)) && may_pass(&error, path) && patience.again() => {}
            result => return result.map_err(|error| of_operation(error, path)),
        }
    }
}

/// Reads lines and shows them.
///
/// # Errors
/// What the port says, or a closed standard output.
pub fn read(args: &ReadArgs) -> Result<(), Failure> {
    let path = args.socket.path();
    let patience = Patience::begin();
    let first = locate(&args.target, &path, patience)?;
    let end = args.lines.checked_mul(LINE as u64).and_then(|bytes| first.checked_add(bytes));
    if end.is_none() {
        return Err(Failure::usage(format!("{} lines reach beyond the end of all addresses", args.lines)));
    }
    let mut port = Client::connect(&path).map_err(of_agent)?;
    if args.lines > 0 {
        first_of_all(&args.target, &path, patience, || port.read(first))?;
    }
    let mut room = vec![0; CHUNK.min(args.lines) as usize * LINE];
    let mut done = 0;
    while done < args.lines {
        let count = CHUNK.min(args.lines - done);
        let hpa = first + done * LINE as u64;
        let bytes = &mut room[..count as usize * LINE];
        port.read_bytes(hpa, bytes).map_err(|e| of_operation(e, &path))?;
        if args.raw {
            output::write(bytes)?;
        } else {
            output::write(hexdump(hpa, bytes).as_bytes())?;
        }
        done += count;
    }
    Ok(())
}

/// Writes bytes.
///
/// # Errors
/// What the port says, or a source that cannot be read.
pub fn write(args: &WriteArgs) -> Result<(), Failure> {
    let path = args.socket.path();
    let bytes = source(args)?;
    let patience = Patience::begin();
    let first = locate(&args.target, &path, patience)?;
    if first.checked_add(bytes.len().next_multiple_of(LINE) as u64).is_none() {
        return Err(Failure::usage("the bytes reach beyond the end of all addresses"));
    }
    let mut port = Client::connect(&path).map_err(of_agent)?;
    let failed = |e| of_operation(e, &path);
    if !bytes.is_empty() {
        first_of_all(&args.target, &path, patience, || port.read(first))?;
    }
    let (whole, rest) = bytes.as_chunks::<LINE>();
    if let [line] = whole {
        port.write(first, line).map_err(failed)?;
    } else {
        port.write_bytes(first, whole.as_flattened()).map_err(failed)?;
    }
    if !rest.is_empty() {
        let last = first + (whole.len() * LINE) as u64;
        let mut line = port.read(last).map_err(failed)?;
        line[..rest.len()].copy_from_slice(rest);
        port.write(last, &line).map_err(failed)?;
    }
    if args.flush {
        port.flush().map_err(failed)?;
    }
    Ok(())
}

/// Flushes.
///
/// # Errors
/// What the port says.
pub fn flush(args: &SocketArgs) -> Result<(), Failure> {
    let path = args.path();
    Client::connect(&path).map_err(of_agent)?.flush().map_err(|e| of_operation(e, &path))
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

/// Sixteen bytes a row, with their HPA in front and as text behind.
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
    use cxloe_daemon::command_line::Exit;

    use super::*;

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
