//! A data set that several compute nodes read at the same time, from one copy: one of them fills a region, and after the
//! region is sealed and shared, each of them maps it read-only and checks every record.
//!
//! ```sh
//! cargo build --release -p cxloe-client --examples
//! gmm create-region -s 1G --owner cn0 set
//! target/release/examples/shared_set fill set      # at cn0
//! gmm seal-region set                              # from here on nobody writes it
//! gmm share-region set --with cn1
//! target/release/examples/shared_set scan set      # at cn0 and cn1
//! ```
//!
//! `CXLOE_AGENT` in the environment names the agent's socket, if it is not the default one.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use cxloe_client::defaults::default_socket;
use cxloe_client::mapping::{MapError, MapOptions, Mapping};

/// Words of 8 bytes of a record: its number, values that follow from the number, and a checksum of all before.
const RECORD_WORDS: usize = 128;
/// Factor that spreads a small number over all bits of a word.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        ["fill", region] => fill(region),
        ["scan", region] => scan(region),
        _ => Err("usage: shared_set fill|scan REGION".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shared_set: {error}");
            ExitCode::FAILURE
        }
    }
}

fn map(region: &str) -> Result<Mapping, MapError> {
    let socket = std::env::var_os("CXLOE_AGENT").map_or_else(default_socket, PathBuf::from);
    // At most 256 MiB of the region are in this machine at a time.
    Mapping::open(&socket, region, MapOptions { limit: 256 << 20, ..MapOptions::default() })
}

/// Number of records for which the region has room.
fn count(memory: &Mapping) -> usize {
    memory.len() / (RECORD_WORDS * size_of::<u64>())
}

/// Content of the record `number`.
fn record(number: u64) -> [u64; RECORD_WORDS] {
    let mut words = [number; RECORD_WORDS];
    for (index, word) in (1_u64..).zip(&mut words[1..RECORD_WORDS - 1]) {
        *word = ((number << 32) | index).wrapping_mul(SPREAD);
    }
    words[RECORD_WORDS - 1] = checksum(&words[..RECORD_WORDS - 1]);
    words
}

/// A checksum that changes with each word and with their order (FNV-1a, over words).
fn checksum(words: &[u64]) -> u64 {
    words.iter().fold(0xCBF2_9CE4_8422_2325_u64, |sum, word| (sum ^ word).wrapping_mul(0x100_0000_01B3))
}

fn fill(region: &str) -> Result<(), Box<dyn Error>> {
    let memory = map(region)?;
    let count = count(&memory);
    for number in 0..count {
        for (index, word) in (number * RECORD_WORDS..).zip(record(number as u64)) {
            memory.store(index, word)?;
        }
    }
    memory.flush()?;
    println!("{count} records written");
    Ok(())
}

fn scan(region: &str) -> Result<(), Box<dyn Error>> {
    let memory = map(region)?;
    if !memory.is_sealed() {
        return Err(format!("region {region} can still be written: gmm seal-region {region}").into());
    }
    let (begun, count) = (Instant::now(), count(&memory));
    let mut found = [0; RECORD_WORDS];
    for number in 0..count {
        for (index, word) in (number * RECORD_WORDS..).zip(&mut found) {
            *word = memory.load(index);
        }
        let [first, .., sum] = found;
        if first != number as u64 || sum != checksum(&found[..RECORD_WORDS - 1]) {
            return Err(format!("record {number} of {count} is not the one that was written").into());
        }
    }
    let (bytes, seconds) = (count * size_of_val(&found), begun.elapsed().as_secs_f64());
    println!("{count} records right, {bytes} bytes, {seconds:.3} seconds");
    match memory.store(0, 0) {
        Err(error) => println!("a write is refused: {error}"),
        Ok(()) => return Err("a write to the sealed region was not refused".into()),
    }
    Ok(())
}
