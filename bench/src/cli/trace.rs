//! `cxloe-bench trace`: traces in public formats, converted into those that `compare --trace` replays.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use cxloe_compare::trace::{TraceError, TraceFormat, convert};
use cxloe_daemon::to_stderr;

use super::Failure;

/// Convert recorded traces into those that `compare --trace` replays
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Convert a recorded trace from a public format
    #[command(after_help = EXAMPLES)]
    Convert(ConvertArgs),
}

const EXAMPLES: &str = "\
Examples:
  Loads and stores of a program; a load that is a store as well becomes a read and a write:
    valgrind --tool=lackey --trace-mem=yes --log-file=ls.log ls
    cxloe-bench trace convert --from lackey ls.log ls.trace

  The first hundred thousand requests to a disk:
    zcat web_0.csv.gz | head -n 100000 | cxloe-bench trace convert --from msr - web.trace

The result is a text, one access a line: `r` or `w`, byte offset (decimal, or hexadecimal after 0x), length in bytes; `#`
begins a comment. It may have 10 million accesses, of at most 16 MiB each.

Exit codes: 0 done, 1 failed (OUT holds what precedes a wrong line), 2 wrong usage.";

#[derive(clap::Args)]
struct ConvertArgs {
    /// Format of the recorded trace
    #[arg(long, value_name = "FORMAT", value_enum)]
    from: Format,

    /// File to read; - is standard input
    #[arg(value_name = "IN")]
    input: PathBuf,

    /// File to write; - is standard output
    #[arg(value_name = "OUT")]
    output: PathBuf,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    /// Log of valgrind --tool=lackey --trace-mem=yes, without the instructions
    Lackey,
    /// CSV file of the MSR Cambridge block traces, of one disk
    Msr,
}

impl From<Format> for TraceFormat {
    fn from(format: Format) -> TraceFormat {
        match format {
            Format::Lackey => TraceFormat::Lackey,
            Format::Msr => TraceFormat::Msr,
        }
    }
}

pub fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        Command::Convert(args) => convert_file(args),
    }
}

fn convert_file(ConvertArgs { from, input, output }: &ConvertArgs) -> Result<(), Failure> {
    if is_same_file(input, output) {
        return Err(format!("{}: name another file for OUT, this one is IN", output.display()).into());
    }
    let source = source(input).map_err(|e| format!("cannot read {}: {e}", input.display()))?;
    let sink = sink(output).map_err(|e| format!("cannot write {}: {e}", output.display()))?;
    match convert((*from).into(), source, BufWriter::new(sink)) {
        Ok(count) => to_stderr!("{count} accesses"),
        // A closed pipe (`| head`) is no error.
        Err(TraceError::Write(e)) if e.kind() == ErrorKind::BrokenPipe => {}
        Err(error) => return Err(format!("{}: {error}", input.display()).into()),
    }
    Ok(())
}

fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn source(path: &Path) -> io::Result<Box<dyn BufRead>> {
    if is_standard(path) {
        return Ok(Box::new(io::stdin().lock()));
    }
    Ok(Box::new(BufReader::new(File::open(path)?)))
}

fn sink(path: &Path) -> io::Result<Box<dyn Write>> {
    if is_standard(path) {
        return Ok(Box::new(io::stdout().lock()));
    }
    Ok(Box::new(File::create(path)?))
}

/// True if both paths lead to one file, which would be emptied before it is read.
fn is_same_file(input: &Path, output: &Path) -> bool {
    if is_standard(input) || is_standard(output) {
        return false;
    }
    let found = fs::canonicalize(input).ok();
    found.is_some() && found == fs::canonicalize(output).ok()
}
