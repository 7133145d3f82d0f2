//! Load on a Redis server: values under keys with a Zipf distribution, over a Unix socket.
//!
//! Every value received is checked: it contains its key.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cxloe_wire::random::Random;

use cxloe_measure::pattern::Share;

/// Number of keys at full scale; each key has a value of [`VALUE`] bytes.
const KEYS: f64 = 100e3;
const VALUE: usize = 800;
/// Exponent of Zipf's law, as in the benchmark YCSB.
const EXPONENT: f64 = 0.99;
/// Number of timed requests. The next two constants are the number of untimed requests before these, and the number of
/// requests in flight.
const REQUESTS: f64 = 150e3;
const WARM: f64 = 75e3;
const DEPTH: usize = 32;
/// One request among this number is a write.
const WRITES: usize = 10;
/// Maximum wait for an answer from the server.
const SILENCE: Duration = Duration::from_secs(30);

/// Numbers of requests to a server, and the server's socket.
pub(super) struct Load {
    /// Path of the server's Unix socket.
    pub socket: PathBuf,
    keys: usize,
    requests: usize,
    warm: usize,
}

/// Result of a load on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loaded {
    pub requests: u64,
    /// Duration of the timed requests.
    pub time: Duration,
}

impl Load {
    /// The share `scale` of the usual load, on the server at `socket`.
    pub fn new(socket: PathBuf, scale: Share) -> Load {
        let part = |whole: f64| ((whole * scale.fraction()) as usize).next_multiple_of(DEPTH);
        Load { socket, keys: part(KEYS), requests: part(REQUESTS), warm: part(WARM) }
    }

    /// Number of timed requests of the complete load.
    pub fn requests(&self) -> u64 {
        self.requests as u64
    }

    /// Stores all values, warms up until hot keys are resident, and then times requests. At `deadline`, or on an error
    /// of `check`, the load ends early; at `deadline`, the result counts the requests made until then.
    pub fn put(&self, deadline: Instant, mut check: impl FnMut() -> io::Result<()>) -> io::Result<Loaded> {
        let mut server = Server::connect(&self.socket)?;
        self.fill(&mut server, deadline, &mut check)?;
        let mut ranks = Zipf::new(self.keys);
        // Warming up takes at most half of the remaining time.
        let half = Instant::now() + deadline.saturating_duration_since(Instant::now()) / 2;
        self.ask(&mut server, &mut ranks, self.warm, half, &mut check)?;
        let start = Instant::now();
        let requests = self.ask(&mut server, &mut ranks, self.requests, deadline, &mut check)?;
        Ok(Loaded { requests, time: start.elapsed() })
    }

    fn fill(
        &self,
        server: &mut Server,
        deadline: Instant,
        check: &mut impl FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        for batch in (0..self.keys).step_by(DEPTH) {
            check()?;
            if Instant::now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let keys = batch..(batch + DEPTH).min(self.keys);
            for key in keys.clone() {
                server.send(&[b"SET", &name(key), &value(key)]);
            }
            server.flush()?;
            for _ in keys {
                server.stored()?;
            }
        }
        Ok(())
    }

    /// Sends `count` requests, fewer if `deadline` passes; returns their number.
    fn ask(
        &self,
        server: &mut Server,
        ranks: &mut Zipf,
        requests: usize,
        deadline: Instant,
        check: &mut impl FnMut() -> io::Result<()>,
    ) -> io::Result<u64> {
        let mut asked = 0;
        let mut keys = [0; DEPTH];
        while asked < requests && Instant::now() < deadline {
            check()?;
            keys.fill_with(|| ranks.draw());
            for (number, key) in keys.iter().enumerate() {
                match (asked + number).is_multiple_of(WRITES) {
                    true => server.send(&[b"SET", &name(*key), &value(*key)]),
                    false => server.send(&[b"GET", &name(*key)]),
                }
            }
            server.flush()?;
            for (number, key) in keys.iter().enumerate() {
                match (asked + number).is_multiple_of(WRITES) {
                    true => server.stored()?,
                    false => server.holds(*key)?,
                }
            }
            asked += DEPTH;
        }
        Ok(asked as u64)
    }
}

/// Shuts down the server at `socket`, which sends no reply.
pub(super) fn end(socket: &Path) {
    if let Ok(mut server) = Server::connect(socket) {
        server.send(&[b"SHUTDOWN", b"NOSAVE"]);
        let _ = server.flush();
    }
}

pub(super) fn answers(socket: &Path) -> bool {
    let asked = || {
        let mut server = Server::connect(socket)?;
        server.send(&[b"PING"]);
        server.flush()?;
        server.line()
    };
    asked().is_ok_and(|line| line == "+PONG")
}

fn name(key: usize) -> Vec<u8> {
    format!("key:{key:08}").into_bytes()
}

fn value(key: usize) -> Vec<u8> {
    let mut value = format!("{key:08}").into_bytes();
    value.resize(VALUE, b'a' + (key % 26) as u8);
    value
}

/// Connection over the server's Unix socket.
struct Server {
    stream: BufReader<UnixStream>,
    request: Vec<u8>,
}

impl Server {
    fn connect(socket: &Path) -> io::Result<Server> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        Ok(Server { stream: BufReader::new(stream), request: Vec::new() })
    }

    /// Appends a request in RESP (redis.io/topics/protocol).
    fn send(&mut self, words: &[&[u8]]) {
        let _ = write!(self.request, "*{}\r\n", words.len());
        for word in words {
            let _ = write!(self.request, "${}\r\n", word.len());
            self.request.extend_from_slice(word);
            self.request.extend_from_slice(b"\r\n");
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.get_mut().write_all(&self.request)?;
        self.request.clear();
        Ok(())
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    fn stored(&mut self) -> io::Result<()> {
        let line = self.line()?;
        if line == "+OK" { Ok(()) } else { Err(wrong(&line)) }
    }

    fn holds(&mut self, key: usize) -> io::Result<()> {
        let line = self.line()?;
        if line.strip_prefix('$') != Some(&VALUE.to_string()) {
            return Err(wrong(&line));
        }
        let mut found = [0; VALUE + 2];
        self.stream.read_exact(&mut found)?;
        if found[..VALUE] == value(key) { Ok(()) } else { Err(wrong("another key's value")) }
    }
}

fn wrong(answer: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the server answered `{answer}`"))
}

/// Choice of keys by Zipf's law. Hot keys are not adjacent, because a server stores consecutive keys in one page.
struct Zipf {
    below: Vec<f64>,
    /// Key of each rank; the ranks are shuffled.
    key_of: Vec<u32>,
    draw: Random,
}

impl Zipf {
    fn new(keys: usize) -> Zipf {
        let mut sum = 0.0;
        let add = |rank: usize| {
            sum += (rank as f64).powf(-EXPONENT);
            sum
        };
        let mut shuffle = Random::new(1986);
        let mut key_of: Vec<u32> = (0..keys as u32).collect();
        (1..keys).rev().for_each(|rank| key_of.swap(rank, shuffle.below(rank as u64 + 1) as usize));
        Zipf { below: (1..=keys).map(add).collect(), key_of, draw: Random::new(99) }
    }

    fn draw(&mut self) -> usize {
        let keys = self.below.len();
        let uniform = (self.draw.bits() >> 11) as f64 / (1_u64 << 53) as f64;
        let wanted = uniform * self.below[keys - 1];
        let rank = self.below.partition_point(|below| *below < wanted).min(keys - 1);
        self.key_of[rank] as usize
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn few_keys_are_wanted_often_and_all_may_be() {
        let mut zipf = Zipf::new(1024);
        let mut counts = vec![0_u32; 1024];
        (0..100_000).for_each(|_| counts[zipf.draw()] += 1);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let hottest: u32 = counts[..102].iter().sum();
        assert!((55_000..75_000).contains(&hottest), "a tenth of the keys has {hottest}");
        assert!(counts.iter().filter(|count| **count > 0).count() > 1000);
    }

    /// A constant distance between hot keys would also put them into few pages.
    #[test]
    fn keys_that_are_wanted_often_are_no_neighbours() {
        let zipf = Zipf::new(100_000);
        let mut all = zipf.key_of.clone();
        all.sort_unstable();
        assert!(all.iter().enumerate().all(|(at, key)| at == *key as usize), "each key has one rank");
        // A page has four or five values, so the hottest tenth of the values would fit into 2,200 pages if they were
        // adjacent.
        let pages: std::collections::HashSet<u32> = zipf.key_of[..10_000].iter().map(|key| key / 5).collect();
        assert!(pages.len() > 7_500, "{}", pages.len());
    }

    #[test]
    fn a_value_of_another_key_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let served = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut answer = format!("${VALUE}\r\n").into_bytes();
            answer.extend(value(8));
            answer.extend(b"\r\n+PONG\r\n");
            stream.write_all(&answer).unwrap();
        });
        let mut server = Server::connect(&socket).unwrap();
        let error = server.holds(7).unwrap_err().to_string();
        assert!(error.contains("another key"), "{error}");
        assert!(server.stored().is_err(), "PONG is no OK");
        served.join().unwrap();
    }
}
