//! memcached, with the server installed on the machine, and a client that speaks its text protocol.

use std::io::{self, Write};
use std::process::Command;

use super::error::PeerError;
use super::keyed::{KeyValue, Keyed};
use super::measured::Measured;
use super::peer::{Facts, Peer, Tool};
use super::plan::Plan;
use super::stage::{FAR, FAR_ADDRESS, Stage, find};
use super::store::drive;
use super::stream::{PeerStream, Waiting};
use cxloe_lab::LabPrivilege;

const PORT: u16 = 7211;

/// Peer memcached: lines, pages, stretches and blocks are values of a key-value server.
pub struct Memcached;

impl Peer for Memcached {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn facts(&self) -> Facts {
        Facts {
            what: "memcached over TCP, get and set, text protocol, one thread",
            waits: "client spins on recv; the server sleeps in epoll, as it always does",
            copies: "kernel out of the server's memory and in and out of socket buffers, client out of its buffer",
            verified: "every byte read",
            figures: "values of 64 bytes, 4 KiB and 1 MiB, each under a key of its own, whatever the order; many in flight are \
                      pipelined on one connection; bulk in values of 64 KiB",
        }
    }

    fn tools(&self) -> &'static [Tool] {
        &[Tool { program: "memcached", package: "memcached" }]
    }

    fn trial(&self, stage: &Stage, plan: &Plan) -> Result<Vec<Measured>, PeerError> {
        let program = find("memcached").unwrap_or_else(|| "memcached".into());
        let mut server = match stage.site.standing {
            LabPrivilege::Root => stage.pinned(false, program),
            // If memcached runs as root, it drops its supplementary groups. User namespaces forbid that, so in a user
            // namespace memcached runs as another user.
            LabPrivilege::UserNamespace => {
                let mut server: Command = stage.pinned(false, "unshare");
                server.args(["--user", "--map-user=1", "--"]).arg(program);
                server
            }
        };
        server.args(["-l", &FAR_ADDRESS.to_string(), "-p", &PORT.to_string(), "-U", "0", "-t", "1"]);
        // Lines, pages, blocks and stretches are stored as separate values, and each value has a header. The limit of
        // memcached's memory is therefore several times the size of the measured memory. A stretch with its header is
        // larger than memcached's usual limit of a value.
        let memory = 64 + 10 * (plan.bytes >> 20);
        server.args(["-m", &memory.to_string(), "-I", "2m", "-R", "1000", "-u", "root"]);
        let _server = stage.serve(FAR, "memcached", PORT, server)?;
        let mut stream = PeerStream::connect(FAR_ADDRESS, PORT, Waiting::Spin)
            .map_err(PeerError::io("connecting to memcached"))?;
        let settings = settings(&mut stream).map_err(PeerError::io("asking memcached for its settings"))?;
        stage.journal.settings(settings);
        let mut client = Keyed::new(stream, Text, plan.depth);
        drive(&mut client, &stage.content, plan, &stage.interrupt)
    }
}

/// Settings of the server, a line each.
fn settings(stream: &mut PeerStream) -> io::Result<String> {
    stream.send(b"stats settings\r\n")?;
    let (mut line, mut text) = (Vec::new(), String::new());
    loop {
        stream.line(&mut line)?;
        let line = String::from_utf8_lossy(&line);
        // Lines are `STAT name value`; the last one is `END`, or an error if the server does not know the request.
        let Some(setting) = line.strip_prefix("STAT ") else { return Ok(text) };
        text.push_str(setting);
        text.push('\n');
    }
}

/// Text protocol of memcached: `get` and `set` (doc/protocol.txt).
struct Text;

impl KeyValue for Text {
    const NAME: &'static str = "memcached";

    fn get(&self, key: &str, out: &mut Vec<u8>) {
        let _ = write!(out, "get {key}\r\n");
    }

    fn set(&self, key: &str, value: &[u8], out: &mut Vec<u8>) {
        let _ = write!(out, "set {key} 0 0 {}\r\n", value.len());
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }

    fn value_length(&self, line: &[u8], key: &str) -> Option<usize> {
        let line = std::str::from_utf8(line).ok()?;
        let (found, rest) = line.strip_prefix("VALUE ")?.split_once(' ')?;
        let length = rest.split(' ').nth(1)?;
        length.parse().ok().filter(|_| found == key)
    }

    fn end_of_value(&self) -> &'static [u8] {
        b"\r\nEND\r\n"
    }

    fn stored(&self) -> &'static [u8] {
        b"STORED"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_are_memcacheds() {
        let mut out = Vec::new();
        Text.get("l7", &mut out);
        Text.set("l7", b"abc", &mut out);
        assert_eq!(out, b"get l7\r\nset l7 0 0 3\r\nabc\r\n");
        assert_eq!(Text.value_length(b"VALUE l7 0 64", "l7"), Some(64));
        assert_eq!(Text.value_length(b"VALUE l8 0 64", "l7"), None, "another key's value");
        assert_eq!(Text.value_length(b"END", "l7"), None, "there is no such key");
    }
}
