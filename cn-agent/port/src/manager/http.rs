//! One request and its answer, as HTTP/1.0.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConfig;

use super::cut::Cut;
use super::place::Place;

/// The longest answer in bytes: that about the largest region there can be.
const ANSWER_MAX: u64 = 64 << 20;

/// A request, as it is sent.
pub struct Request<'a> {
    /// The method.
    pub method: &'static str,
    /// Path and query.
    pub path: &'a str,
    /// JSON.
    pub body: Option<Vec<u8>>,
    /// How long the answer may take.
    pub patience: Duration,
    /// What may end it sooner.
    pub cut: &'a Cut,
}

/// What a request shows of who asks.
#[derive(Debug)]
pub struct Shown {
    /// The certificate, and whom to trust, where TLS is spoken.
    pub tls: Arc<ClientConfig>,
    /// The token that goes with it, where nobody on the way reads it.
    pub token: Option<String>,
}

/// What has come of sending a request.
pub enum Sent {
    /// It did not leave.
    Unreached(io::Error),
    /// It may have been carried out.
    NoAnswer(io::Error),
    /// An answer.
    Answered(Answer),
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// Where else to ask.
    pub location: Option<String>,
    /// The manager asks to come again, because nobody leads.
    pub retry: bool,
    /// The body.
    pub body: Vec<u8>,
}

impl Answer {
    /// The answer in `bytes`, to which nothing is added any more.
    fn parse(bytes: &[u8]) -> Option<Answer> {
        const END: &[u8] = b"\r\n\r\n";
        let end = bytes.windows(END.len()).position(|four| four == END)?;
        let mut lines = std::str::from_utf8(&bytes[..end]).ok()?.split("\r\n");
        let mut first = lines.next()?.splitn(3, ' ');
        let version = first.next()?;
        let status = first.next()?.parse().ok().filter(|_| version.starts_with("HTTP/1."))?;
        let mut answer =
            Answer { status, location: None, retry: false, body: bytes[end + END.len()..].to_vec() };
        for line in lines {
            let (name, value) = line.split_once(':')?;
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "location" => answer.location = Some(value.to_owned()),
                "retry-after" => answer.retry = true,
                "content-length" if value.parse() != Ok(answer.body.len()) => return None,
                // Not to be sent to a client of HTTP/1.0.
                "transfer-encoding" => return None,
                _ => {}
            }
        }
        Some(answer)
    }
}

/// Sends a request as HTTP/1.0: the connection's end is the answer's.
pub fn send(place: &Place, request: &Request<'_>, shown: &Shown) -> Sent {
    let until = Instant::now() + request.patience;
    let connected = place.connect(&shown.tls).and_then(|stream| request.cut.watch(&*stream).map(|()| stream));
    let mut stream = match connected {
        Ok(stream) => stream,
        Err(error) => return Sent::Unreached(error),
    };
    let Request { method, path, body, .. } = request;
    let body = body.as_deref().unwrap_or_default();
    let token = shown.token.as_ref().filter(|_| place.is_private());
    let token = token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
    let head = format!(
        "{method} {path} HTTP/1.0\r\nHost: {}\r\nAccept: application/json\r\nContent-Type: application/json\r\n\
         {token}Content-Length: {}\r\n\r\n",
        place.host(),
        body.len()
    );
    let mut exchange = || -> io::Result<Vec<u8>> {
        stream.set_patience(request.patience.max(Duration::from_millis(1)))?;
        stream.write_all(&[head.as_bytes(), body].concat())?;
        stream.flush()?;
        let (mut answer, mut part) = (Vec::new(), [0; 4096]);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
            }
            stream.set_patience(left)?;
            match stream.read(&mut part) {
                Ok(0) => return Ok(answer),
                Ok(bytes) if (answer.len() + bytes) as u64 > ANSWER_MAX => {
                    return Err(io::Error::other("the answer is too long"));
                }
                Ok(bytes) => answer.extend_from_slice(&part[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
                }
                Err(error) => return Err(error),
            }
        }
    };
    match exchange() {
        Ok(bytes) => match Answer::parse(&bytes) {
            Some(answer) => Sent::Answered(answer),
            None => Sent::NoAnswer(io::Error::other("what came is no answer of a manager")),
        },
        Err(error) => Sent::NoAnswer(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_whole_or_not_at_all() {
        let parse = |text: &str| Answer::parse(text.as_bytes());
        let answer = parse("HTTP/1.0 200 OK\r\nContent-Length: 2\r\nX: y\r\n\r\n{}").unwrap();
        assert_eq!((answer.status, answer.body.as_slice(), answer.retry), (200, &b"{}"[..], false));
        let elsewhere = parse("HTTP/1.1 307 T\r\nLocation: http://a/b\r\n\r\n").unwrap();
        assert_eq!(elsewhere.location.as_deref(), Some("http://a/b"));
        assert!(parse("HTTP/1.1 503 S\r\nRetry-After: 1\r\n\r\n").unwrap().retry);
        for cut in [
            "",
            "HTTP/1.0 200 OK\r\n",
            "HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n{}",
            "SSH-2.0-x\r\n\r\n",
            "HTTP/1.1 x y\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        ] {
            assert!(parse(cut).is_none(), "{cut:?}");
        }
    }
}
