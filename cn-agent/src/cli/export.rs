//! `cn-agent export` and `cn-agent import`: copy a region's content to and from a file or a pipe, through the
//! running agent.

use std::fs::File;
use std::io::{BufWriter, IsTerminal, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use cxloe_client::client::{self, Client};
use cxloe_client::message::AttachedRegion;
use cxloe_daemon::command_line::{Exit, Failure};
use cxloe_daemon::to_stderr;
use cxloe_fabric::model::{ByteSize, Name};
use indicatif::{ProgressBar, ProgressStyle};

use super::SocketArgs;
use super::failure::{is_transient, of_agent, of_operation};
use super::image::{ImageHeader, ImageReader, ImageWriter, RECORD_MAX, is_zero};
use super::retry_deadline::RetryDeadline;
use super::target::{beyond_addresses, hpa_in, is_attached};

/// Interval of the progress display.
const TICK: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
#[command(after_help = "\
The export reads the region while programs use it: stop or pause programs that write, or its parts are of
different times. Zeros take no space in it.

Examples:
  cn-agent export scratch --file scratch.cxloe
  cn-agent export scratch | zstd > scratch.cxloe.zst")]
pub struct ExportArgs {
    /// Region to export
    region: Name,
    /// Write to this file instead of standard output; it appears under its name when it is complete
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    socket: SocketArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The region may have another name than the exported one, and be larger: bytes beyond the export keep their
content. A file is checked as a whole before anything is written; from a pipe, each part is checked before
it is written.

Examples:
  cn-agent import scratch --file scratch.cxloe
  zstd -d < scratch.cxloe.zst | cn-agent import scratch")]
pub struct ImportArgs {
    /// Region to overwrite
    region: Name,
    /// Read this file instead of standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    socket: SocketArgs,
}

/// Writes a region's content to a file or to standard output.
///
/// # Errors
/// The agent's error, or a file that cannot be written.
pub fn export(args: &ExportArgs) -> Result<(), Failure> {
    if args.file.is_none() && std::io::stdout().is_terminal() {
        return Err(Failure::usage(
            "an export is not for a terminal: name a file with --file, or pipe it on",
        ));
    }
    let (mut port, attached, hpa) = open(&args.region, &args.socket.path())?;
    if attached.addressable() < attached.size {
        return Err(beyond_addresses(&attached));
    }
    let header = ImageHeader { region: args.region.clone(), bytes: attached.size };
    match &args.file {
        None => copy_out(&mut port, hpa, &header, std::io::stdout().lock(), "standard output", args),
        Some(path) => {
            // Written under another name first, so that a file of the requested name is always complete.
            let mut partial = path.clone().into_os_string();
            partial.push(".partial");
            let partial = PathBuf::from(partial);
            let name = path.display().to_string();
            let failed = |error| Failure::failed(format!("cannot write {name}: {error}"));
            let file = create(&partial).map_err(failed)?;
            // Synced before the rename, so that a crash leaves no incomplete file under the requested name.
            let written = copy_out(&mut port, hpa, &header, &file, &name, args)
                .and_then(|()| file.sync_all().map_err(failed))
                .and_then(|()| std::fs::rename(&partial, path).map_err(failed));
            if written.is_err() {
                // An error here is ignored: the user needs the error of the export.
                let _ = std::fs::remove_file(&partial);
            }
            written
        }
    }
}

/// Creates a file that only its owner may read, and replaces one left by an interrupted export. Never opens a
/// file or link that another user has placed there.
fn create(path: &Path) -> std::io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::options().write(true).create_new(true).mode(0o600).open(path)
}

fn copy_out(
    port: &mut Client,
    hpa: u64,
    header: &ImageHeader,
    out: impl Write,
    name: &str,
    args: &ExportArgs,
) -> Result<(), Failure> {
    let failed = |error| Failure::failed(format!("cannot write {name}: {error}"));
    let bar = bar(format!("exporting {}", header.region), header.bytes);
    let mut writer = ImageWriter::begin(BufWriter::new(out), header).map_err(failed)?;
    let mut room = vec![0; RECORD_MAX];
    for at in (0..header.bytes).step_by(RECORD_MAX) {
        let data = &mut room[..(header.bytes - at).min(RECORD_MAX as u64) as usize];
        port.read_bytes(hpa + at, data).map_err(|error| of_operation(error, &args.socket.path()))?;
        writer.put(data).map_err(failed)?;
        bar.inc(data.len() as u64);
    }
    writer.finish().map_err(failed)?;
    bar.finish_and_clear();
    Ok(())
}

/// Replaces a region's content by an exported one.
///
/// # Errors
/// The agent's error, or an export that is damaged, truncated, or too large.
pub fn import(args: &ImportArgs) -> Result<(), Failure> {
    let name = args.file.as_ref().map_or("standard input".into(), |path| path.display().to_string());
    let unreadable = |error| Failure::failed(format!("cannot read {name}: {error}"));
    let mut input = match &args.file {
        Some(path) => File::open(path).map_err(unreadable)?,
        None => File::from(std::io::stdin().as_fd().try_clone_to_owned().map_err(unreadable)?),
    };
    let (mut port, attached, hpa) = open(&args.region, &args.socket.path())?;
    // A regular file can be read twice, so it is verified completely before the region is overwritten.
    if input.metadata().is_ok_and(|about| about.is_file()) {
        let begin = input.stream_position().map_err(unreadable)?;
        let mut reader =
            ImageReader::open(std::io::BufReader::new(&input), &name).map_err(Failure::failed)?;
        let mut data = Vec::new();
        while reader.next(&mut data).map_err(Failure::failed)?.is_some() {}
        input.seek(std::io::SeekFrom::Start(begin)).map_err(unreadable)?;
    }
    let mut reader = ImageReader::open(std::io::BufReader::new(input), &name).map_err(Failure::failed)?;
    let ImageHeader { region, bytes } = reader.header().clone();
    if bytes > attached.size {
        return Err(Failure::new(
            Exit::Refused,
            format!(
                "region {} has {}, and the exported region {region} has {}: create or grow one that is large enough",
                args.region,
                ByteSize(attached.size),
                ByteSize(bytes)
            ),
        ));
    }
    if bytes > attached.addressable() {
        return Err(beyond_addresses(&attached));
    }
    copy_in(&mut port, hpa, &mut reader, args)?;
    to_stderr!("region {}: imported {} of region {region}", args.region, ByteSize(bytes));
    Ok(())
}

fn copy_in(
    port: &mut Client,
    hpa: u64,
    reader: &mut ImageReader<impl Read>,
    args: &ImportArgs,
) -> Result<(), Failure> {
    let bytes = reader.header().bytes;
    let bar = bar(format!("importing {}", args.region), bytes);
    let socket = args.socket.path();
    let (mut data, mut at) = (Vec::new(), 0);
    loop {
        let next = reader.next(&mut data).map_err(|error| {
            let mut failure = Failure::failed(error);
            failure.message += &format!(
                "; region {} has been overwritten up to offset {at}: import an undamaged one",
                args.region
            );
            failure
        })?;
        zero(port, hpa + at, next.unwrap_or(bytes) - at).map_err(|error| of_operation(error, &socket))?;
        let Some(offset) = next else { break };
        port.write_bytes(hpa + offset, &data).map_err(|error| of_operation(error, &socket))?;
        at = offset + data.len() as u64;
        bar.set_position(at);
    }
    port.flush().map_err(|error| of_operation(error, &socket))?;
    bar.finish_and_clear();
    Ok(())
}

/// Sets `bytes` bytes at `hpa` to zero. Parts that are zero already are read, but not written.
fn zero(port: &mut Client, hpa: u64, bytes: u64) -> Result<(), client::ClientError> {
    let mut room = vec![0; bytes.min(RECORD_MAX as u64) as usize];
    for at in (0..bytes).step_by(RECORD_MAX) {
        let part = &mut room[..(bytes - at).min(RECORD_MAX as u64) as usize];
        port.read_bytes(hpa + at, part)?;
        if !is_zero(part) {
            part.fill(0);
            port.write_bytes(hpa + at, part)?;
        }
    }
    Ok(())
}

/// Connects to the agent, and returns a port, the region, and the region's HPA. Waits for a region that is
/// about to be attached, and for its memory nodes.
fn open(region: &Name, socket: &Path) -> Result<(Client, AttachedRegion, u64), Failure> {
    let wait_limit = RetryDeadline::begin();
    let attached = loop {
        let regions = client::regions(socket).map_err(of_agent)?;
        if is_attached(region, &regions) || !wait_limit.again() {
            hpa_in(region, 0, 0, &regions)?;
            let found = regions.into_iter().find(|attached| attached.region == region.as_str());
            break found.expect("it has an HPA");
        }
    };
    let mut port = Client::connect(socket).map_err(of_agent)?;
    loop {
        // The read fails until the region's memory nodes are connected.
        match port.read(attached.hpa) {
            Ok(_) => {
                let hpa = attached.hpa;
                return Ok((port, attached, hpa));
            }
            Err(error) if is_transient(&error, socket) && wait_limit.again() => {}
            Err(error) => return Err(of_operation(error, socket)),
        }
    }
}

/// Creates a progress bar on standard error, which appears only on a terminal.
fn bar(what: String, bytes: u64) -> ProgressBar {
    let bar = ProgressBar::new(bytes).with_message(what);
    let template = "{msg} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(TICK);
    bar
}
