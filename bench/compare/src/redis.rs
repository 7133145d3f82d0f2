//! Redis, with the server installed on the machine, without persistence, and a client that speaks RESP
//! (redis.io/topics/protocol).
//!
//! Lines, pages and blocks are values under keys of their own: `l7`, `p7`, `b7`.

use std::io::Write;

use super::error::PeerError;
use super::keyed::{KeyValue, Keyed};
use super::measured::Measured;
use super::pattern::Plan;
use super::peer::{Facts, Peer, Tool};
use super::stage::{FAR, FAR_ADDRESS, Stage, find};
use super::store::drive;
use super::stream::{PeerStream, Waiting};

const PORT: u16 = 7379;

/// Peer Redis: lines, pages and blocks are values of a key-value server.
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
            figures: "64-byte and 4 KiB values at random keys; stream64 pipelined; bulk in values of 64 KiB",
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
        let stream = PeerStream::connect(FAR_ADDRESS, PORT, Waiting::Spin)
            .map_err(PeerError::io("connecting to redis-server"))?;
        let mut client = Keyed::new(stream, Resp, plan.depth);
        drive(&mut client, &stage.content, plan, &stage.interrupt)
    }
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
    use super::*;

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
