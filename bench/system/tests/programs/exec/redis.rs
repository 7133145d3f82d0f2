//! Redis, a server that keeps its data in memory, and forks to save the data while changing it.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use cxloe_lab::Process;

use super::run::{Running, Sizes, nothing_is_left, rig, start, text};
use cxloe_system::pair::{LIMIT, Outcome, Pair, ensure, eventually};

/// Number of keys; each has a value of [`VALUE`] bytes.
const KEYS: usize = 16_000;
const VALUE: usize = 1000;
/// Number of requests in flight.
const BATCH: usize = 200;

/// A connection to a Redis server.
pub struct Redis {
    stream: BufReader<UnixStream>,
}

impl Redis {
    pub fn connect(socket: &Path) -> Option<Redis> {
        let stream = UnixStream::connect(socket).ok()?;
        stream.set_read_timeout(Some(LIMIT)).ok()?;
        let mut redis = Redis { stream: BufReader::new(stream) };
        redis.ask(&[b"PING"]).is_ok_and(|answer| answer == b"PONG").then_some(redis)
    }

    pub fn send(&mut self, words: &[&[u8]]) -> Outcome {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend(format!("${}\r\n", word.len()).into_bytes());
            request.extend_from_slice(word);
            request.extend(b"\r\n");
        }
        Ok(self.stream.get_mut().write_all(&request)?)
    }

    /// Receives the answer to one request: a simple string or a bulk string.
    pub fn receive(&mut self) -> Outcome<Vec<u8>> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let (kind, rest) = line.trim_end().split_at_checked(1).ok_or("the server has hung up")?;
        match kind {
            "+" | ":" => Ok(rest.as_bytes().to_vec()),
            "$" => {
                let length: usize = rest.parse().map_err(|_| format!("no value: {line:?}"))?;
                let mut value = vec![0; length + 2];
                self.stream.read_exact(&mut value)?;
                value.truncate(length);
                Ok(value)
            }
            _ => Err(format!("the server says {line:?}").into()),
        }
    }

    pub fn ask(&mut self, words: &[&[u8]]) -> Outcome<Vec<u8>> {
        self.send(words)?;
        self.receive()
    }

    /// Sets each key to its value of this generation, in random order.
    fn set_all(&mut self, generation: usize) -> Outcome {
        for batch in (0..KEYS).step_by(BATCH) {
            let keys = batch..(batch + BATCH).min(KEYS);
            for key in keys.clone().map(|index| index * 7919 % KEYS) {
                let (name, value) = (name(key), value(key, generation));
                self.send(&[b"SET", &name, &value])?;
            }
            for _ in keys {
                ensure(self.receive()? == b"OK", "a key is set")?;
            }
        }
        Ok(())
    }

    /// Checks that each key has its value of this generation.
    fn check_all(&mut self, generation: usize) -> Outcome {
        ensure(self.ask(&[b"DBSIZE"])? == KEYS.to_string().into_bytes(), "as many keys as were set")?;
        for batch in (0..KEYS).step_by(BATCH) {
            let keys = batch..(batch + BATCH).min(KEYS);
            for key in keys.clone() {
                self.send(&[b"GET", &name(key)])?;
            }
            for key in keys {
                let right = self.receive()? == value(key, generation);
                ensure(right, format!("key {key} has another value than in generation {generation}"))?;
            }
        }
        Ok(())
    }

    pub fn info(&mut self, field: &str) -> Outcome<String> {
        let info = String::from_utf8(self.ask(&[b"INFO", b"everything"])?)?;
        let found = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        Ok(found.ok_or_else(|| format!("no {field} in {info}"))?.to_string())
    }
}

fn name(key: usize) -> Vec<u8> {
    format!("key:{key:08}").into_bytes()
}

fn value(key: usize, generation: usize) -> Vec<u8> {
    let mut value = format!("{generation}/{key}/").into_bytes();
    let filler = (key.wrapping_mul(31) + generation * 17) as u8;
    value.extend((0..VALUE - value.len()).map(|at| filler.wrapping_add(at as u8)));
    value
}

pub fn arguments(folder: &str, socket: &str) -> Vec<String> {
    let fixed = ["--port", "0", "--save", "", "--appendonly", "no", "--dir", folder, "--unixsocket", socket];
    fixed.into_iter().map(Into::into).collect()
}

/// Starts a server without remote memory that loads the data in `folder`.
pub fn local(rig: &Pair, folder: &Path) -> Outcome<(Process, Redis)> {
    let socket = rig.path("local.sock");
    let mut server = Command::new("redis-server");
    server.args(arguments(text(folder), text(&socket))).stdin(Stdio::null());
    Process::log_to(&mut server, &rig.path("local.log"))?;
    let process = rig.lab.spawn("cn", server)?;
    let redis = eventually("the local server answers", || Redis::connect(&socket))?;
    Ok((process, redis))
}

/// Starts a server with remote memory.
pub fn remote(rig: &Pair, folder: &Path, sizes: Sizes) -> Outcome<(Running, Redis)> {
    let socket = rig.path("redis.sock");
    let given = arguments(text(folder), text(&socket));
    let command: Vec<&str> = ["redis-server"].into_iter().chain(given.iter().map(String::as_str)).collect();
    let running = start(rig, sizes, &[], &command)?;
    let answers = eventually("the server answers", || Redis::connect(&socket));
    let redis = answers.map_err(|error| format!("{error:?}; it said: {}", running.err()))?;
    Ok((running, redis))
}

pub fn a_snapshot_is_what_was_there_at_the_fork() -> Outcome {
    let rig = rig()?;
    let folder = rig.path("redis");
    std::fs::create_dir(&folder)?;
    let (running, mut redis) = remote(&rig, &folder, Sizes(128, 8))?;

    redis.set_all(1)?;
    redis.check_all(1)?;
    ensure(redis.ask(&[b"BGSAVE"])? == b"Background saving started", "a snapshot is begun")?;
    let during = redis.info("rdb_bgsave_in_progress")? == "1";
    ensure(during, "the snapshot is not yet written when the first key changes")?;
    redis.set_all(2)?;
    eventually("the snapshot is written", || {
        std::thread::sleep(Duration::from_millis(50));
        (redis.info("rdb_bgsave_in_progress").ok()? == "0").then_some(())
    })?;
    ensure(redis.info("rdb_last_bgsave_status")? == "ok", "the snapshot was written well")?;
    redis.check_all(2)?;

    // A second server loads the snapshot, which must contain the values from the time of the fork, not the
    // later ones.
    let (mut second, mut loaded) = local(&rig, &folder)?;
    loaded.check_all(1)?;
    second.terminate(LIMIT)?;

    // The server sends no answer to SHUTDOWN.
    redis.send(&[b"SHUTDOWN", b"NOSAVE"])?;
    let ended = running.wait()?.well()?.paged(KEYS as u64 * VALUE as u64)?;
    let forks = ended.view.map_or(0, |view| view.counters.forks);
    ensure(forks == 1, format!("{forks} forks"))?;
    nothing_is_left(&rig)
}
