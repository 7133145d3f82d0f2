//! Redis, with the server installed on the machine, without persistence, and a client that speaks RESP
//! (redis.io/topics/protocol).
//!
//! Lines, pages, stretches and blocks are values under keys of their own: `l7`, `p7`, `m7`, `b7`.

use std::io::{self, ErrorKind, Write};

use super::error::PeerError;
use super::keyed::{KeyValue, Keyed};
use super::measured::Measured;
use super::peer::{Facts, Peer, Tool};
use super::plan::Plan;
use super::stage::{FAR, FAR_ADDRESS, Stage, find};
use super::store::drive;
use super::stream::{PeerStream, Waiting};

const PORT: u16 = 7379;
/// Request for all settings: `CONFIG GET *`.
const CONFIG_GET: &[u8] = b"*3\r\n$6\r\nCONFIG\r\n$3\r\nGET\r\n$1\r\n*\r\n";
/// Maximum number of texts in the answer, and of bytes in one of them.
const TEXTS_MAX: usize = 4096;
const TEXT_MAX: usize = 64 << 10;

/// Peer Redis: lines, pages, stretches and blocks are values of a key-value server.
pub struct Redis;

impl Peer for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn facts(&self) -> Facts {
        Facts {
            what: "Redis over TCP, GET and SET, no persistence, one thread",
            waits: "client spins on recv; the server sleeps in epoll, as it always does",
            copies: "server into its answer, kernel in and out of socket buffers, client out of its buffer",
            verified: "every byte read",
            figures: "values of 64 bytes, 4 KiB and 1 MiB, each under a key of its own, whatever the order; many in flight are \
                      pipelined on one connection; bulk in values of 64 KiB",
        }
    }

    fn tools(&self) -> &'static [Tool] {
        &[Tool { program: "redis-server", package: "redis-server" }]
    }

    fn trial(&self, stage: &Stage, plan: &Plan) -> Result<Vec<Measured>, PeerError> {
        let program = find("redis-server").unwrap_or_else(|| "redis-server".into());
        let mut server = stage.pinned(false, program);
        server.args(["--port", &PORT.to_string(), "--bind", &FAR_ADDRESS.to_string()]);
        server.args(["--save", "", "--appendonly", "no", "--protected-mode", "no", "--io-threads", "1"]);
        server.arg("--dir").arg(&stage.folder);
        let _server = stage.serve(FAR, "redis-server", PORT, server)?;
        let mut stream = PeerStream::connect(FAR_ADDRESS, PORT, Waiting::Spin)
            .map_err(PeerError::io("connecting to redis-server"))?;
        let settings =
            settings(&mut stream).map_err(PeerError::io("asking redis-server for its settings"))?;
        settings.into_iter().for_each(|text| stage.journal.settings(text));
        let mut client = Keyed::new(stream, Resp, plan.depth);
        drive(&mut client, &stage.content, plan, &stage.interrupt)
    }
}

/// Settings of the server, a line each; `None` if it refuses to tell them.
fn settings(stream: &mut PeerStream) -> io::Result<Option<String>> {
    stream.send(CONFIG_GET)?;
    let mut line = Vec::new();
    stream.line(&mut line)?;
    // An error is one line, as in `-ERR unknown command`.
    let Some(count) = length(&line, b"*", TEXTS_MAX) else { return Ok(None) };
    let mut texts = Vec::with_capacity(count);
    for _ in 0..count {
        stream.line(&mut line)?;
        let bytes = length(&line, b"$", TEXT_MAX).ok_or(ErrorKind::InvalidData)?;
        // CR LF follows the text.
        let mut text = vec![0; bytes + 2];
        stream.receive(&mut text)?;
        texts.push(String::from_utf8_lossy(&text[..bytes]).into_owned());
    }
    let pairs = texts.as_chunks::<2>().0.iter();
    Ok(Some(pairs.map(|[name, value]| format!("{name} {value}\n")).collect()))
}

/// Number in a line that begins with `mark`; `None` if there is none, or if it is above `most`.
fn length(line: &[u8], mark: &[u8], most: usize) -> Option<usize> {
    let number: usize = std::str::from_utf8(line.strip_prefix(mark)?).ok()?.parse().ok()?;
    (number <= most).then_some(number)
}

/// Commands GET and SET in Redis's protocol RESP.
#[derive(Default)]
struct Resp;

impl KeyValue for Resp {
    const NAME: &'static str = "redis-server";

    fn get(&self, key: &str, out: &mut Vec<u8>) {
        let _ = write!(out, "*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len());
    }

    fn set(&self, key: &str, value: &[u8], out: &mut Vec<u8>) {
        let _ = write!(out, "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n", key.len(), value.len());
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }

    fn value_length(&self, line: &[u8], _key: &str) -> Option<usize> {
        std::str::from_utf8(line.strip_prefix(b"$")?).ok()?.parse().ok()
    }

    fn end_of_value(&self) -> &'static [u8] {
        b"\r\n"
    }

    fn stored(&self) -> &'static [u8] {
        b"+OK"
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use super::*;

    /// Settings from a server that gives this answer.
    fn settings_from(answer: &'static [u8]) -> io::Result<Option<String>> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || {
            let mut stream = PeerStream::over(listener.accept().unwrap().0, Waiting::Block).unwrap();
            let mut request = [0; CONFIG_GET.len()];
            stream.receive(&mut request).unwrap();
            stream.send(answer).unwrap();
            request
        });
        let mut stream = PeerStream::connect(Ipv4Addr::LOCALHOST, port, Waiting::Block).unwrap();
        let found = settings(&mut stream);
        assert_eq!(server.join().unwrap(), CONFIG_GET);
        found
    }

    #[test]
    fn settings_are_read_whatever_they_contain() {
        let answer = b"*4\r\n$4\r\nsave\r\n$0\r\n\r\n$3\r\ndir\r\n$5\r\n/a\r\nb\r\n";
        assert_eq!(settings_from(answer).unwrap().as_deref(), Some("save \ndir /a\r\nb\n"));
        assert_eq!(settings_from(b"-ERR unknown command\r\n").unwrap(), None);
        assert_eq!(settings_from(b"*1\r\n:7\r\n").unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn requests_and_answers_are_resp() {
        let mut out = Vec::new();
        Resp.get("l7", &mut out);
        Resp.set("l7", b"abc", &mut out);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$2\r\nl7\r\n*3\r\n$3\r\nSET\r\n$2\r\nl7\r\n$3\r\nabc\r\n");
        assert_eq!(Resp.value_length(b"$64", "l7"), Some(64));
        assert_eq!(Resp.value_length(b"$-1", "l7"), None, "there is no such key");
        assert_eq!(Resp.value_length(b"-ERR unknown", "l7"), None);
    }
}
