//! A buffered TCP connection with a limit on every wait. While there are no data, the thread either spins or sleeps in
//! the kernel.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::readable::is_readable;

/// Maximum wait for data from the other end.
pub const SILENCE: Duration = Duration::from_secs(20);
/// Maximum time until a server accepts the connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Size of the receive buffer in bytes.
const AHEAD: usize = 64 << 10;
/// Polls of an empty socket between two readings of the clock.
const SPINS: u32 = 1024;

/// Wait style of a thread while there are no data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// Polls without a pause: lowest latency, but a core is occupied.
    Spin,
    /// Sleeps in the kernel until data arrive.
    Block,
}

/// TCP connection with a receive buffer.
pub struct PeerStream {
    tcp: TcpStream,
    waiting: Waiting,
    ahead: Vec<u8>,
    from: usize,
    to: usize,
}

impl PeerStream {
    /// Connects to a port of the far side; retries while the server starts.
    pub fn connect(address: Ipv4Addr, port: u16, waiting: Waiting) -> io::Result<PeerStream> {
        let deadline = Instant::now() + CONNECT;
        let tcp = loop {
            match TcpStream::connect_timeout(&SocketAddr::from((address, port)), CONNECT) {
                Ok(tcp) => break tcp,
                Err(e) if Instant::now() > deadline => return Err(e),
                Err(_) => thread::sleep(Duration::from_millis(5)),
            }
        };
        PeerStream::over(tcp, waiting)
    }

    /// Uses a connection that is open already.
    pub fn over(tcp: TcpStream, waiting: Waiting) -> io::Result<PeerStream> {
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(SILENCE))?;
        tcp.set_write_timeout(Some(SILENCE))?;
        tcp.set_nonblocking(waiting == Waiting::Spin)?;
        Ok(PeerStream { tcp, waiting, ahead: vec![0; AHEAD], from: 0, to: 0 })
    }

    /// Sends all of `bytes`; waits while the socket's buffer is full.
    pub fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let mut pause = Pause::new(self.waiting);
        while !bytes.is_empty() {
            match self.tcp.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => bytes = &bytes[sent..],
                Err(e) => pause.after(e)?,
            }
        }
        Ok(())
    }

    /// Receives bytes until `out` is full.
    pub fn receive(&mut self, out: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < out.len() {
            let left = out.len() - filled;
            let here = self.to - self.from;
            if here > 0 {
                let taken = here.min(left);
                out[filled..filled + taken].copy_from_slice(&self.ahead[self.from..self.from + taken]);
                self.from += taken;
                filled += taken;
            } else if left >= AHEAD {
                // Data that would fill the buffer are read directly to their destination.
                filled += read(&mut self.tcp, self.waiting, &mut out[filled..])?;
            } else {
                self.look_ahead()?;
            }
        }
        Ok(())
    }

    /// Waits for data, at most until `until`; true if there are some. Looks once if `until` has passed.
    pub fn has_data(&mut self, until: Instant) -> io::Result<bool> {
        while !self.is_ahead() {
            if self.waiting == Waiting::Block && !is_readable(&self.tcp, until)? {
                return Ok(false);
            }
            (self.from, self.to) = (0, 0);
            match self.tcp.read(&mut self.ahead) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.to = read,
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    if Instant::now() >= until {
                        return Ok(false);
                    }
                }
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// True if data have been received that were not taken yet.
    pub fn is_ahead(&self) -> bool {
        self.from < self.to
    }

    /// Receives a line that ends in CR LF, without the CR LF.
    pub fn line(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        out.clear();
        loop {
            let here = &self.ahead[self.from..self.to];
            match here.iter().position(|byte| *byte == b'\n') {
                Some(end) => {
                    out.extend_from_slice(&here[..end]);
                    self.from += end + 1;
                    if out.last() == Some(&b'\r') {
                        out.pop();
                    }
                    return Ok(());
                }
                None => {
                    out.extend_from_slice(here);
                    self.from = self.to;
                    self.look_ahead()?;
                }
            }
        }
    }

    /// Returns the received data, at least `at_least` bytes; `None` if the other end has closed the connection. Used by
    /// servers, which parse requests as they arrive and remove them by [`consume`](Self::consume).
    pub fn pending(&mut self, at_least: usize) -> io::Result<Option<&[u8]>> {
        while self.to - self.from < at_least {
            if self.from > 0 {
                self.ahead.copy_within(self.from..self.to, 0);
                (self.from, self.to) = (0, self.to - self.from);
            }
            if self.ahead.len() < at_least {
                self.ahead.resize(at_least, 0);
            }
            match read(&mut self.tcp, self.waiting, &mut self.ahead[self.to..]) {
                Ok(more) => self.to += more,
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(None),
                Err(e) => return Err(e),
            }
        }
        Ok(Some(&self.ahead[self.from..self.to]))
    }

    /// Removes the first `bytes` of the data that [`pending`](Self::pending) returned.
    pub fn consume(&mut self, bytes: usize) {
        self.from += bytes;
    }

    fn look_ahead(&mut self) -> io::Result<()> {
        (self.from, self.to) = (0, 0);
        self.to = read(&mut self.tcp, self.waiting, &mut self.ahead)?;
        Ok(())
    }
}

/// Reads at least one byte; waits if there is none.
fn read(tcp: &mut TcpStream, waiting: Waiting, out: &mut [u8]) -> io::Result<usize> {
    let mut pause = Pause::new(waiting);
    loop {
        match tcp.read(out) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => return Ok(read),
            Err(e) => pause.after(e)?,
        }
    }
}

/// Limit on a wait for one socket: [`SILENCE`].
struct Pause {
    waiting: Waiting,
    spins: u32,
    since: Option<Instant>,
}

impl Pause {
    fn new(waiting: Waiting) -> Pause {
        Pause { waiting, spins: 0, since: None }
    }

    /// Returns `Ok` if `error` means that there are no data yet, and the wait may go on.
    fn after(&mut self, error: io::Error) -> io::Result<()> {
        match error.kind() {
            ErrorKind::Interrupted => return Ok(()),
            // A blocking socket reports this only after its time-out, which is `SILENCE`.
            ErrorKind::WouldBlock if self.waiting == Waiting::Block => return Err(ErrorKind::TimedOut.into()),
            ErrorKind::WouldBlock => {}
            _ => return Err(error),
        }
        self.spins += 1;
        if self.spins.is_multiple_of(SPINS) {
            let since = *self.since.get_or_insert_with(Instant::now);
            if since.elapsed() > SILENCE {
                return Err(ErrorKind::TimedOut.into());
            }
        }
        std::hint::spin_loop();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair(waiting: Waiting) -> (PeerStream, PeerStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let near = PeerStream::connect(Ipv4Addr::LOCALHOST, port, waiting).unwrap();
        (near, PeerStream::over(listener.accept().unwrap().0, waiting).unwrap())
    }

    #[test]
    fn lines_and_blocks_come_as_they_were_sent() {
        for waiting in [Waiting::Spin, Waiting::Block] {
            let (mut near, mut far) = pair(waiting);
            let block: Vec<u8> = (0..300_000_u32).map(|i| i as u8).collect();
            let sender = thread::spawn({
                let block = block.clone();
                move || {
                    far.send(b"$300000\r\n").unwrap();
                    far.send(&block).unwrap();
                    far.send(b"\r\nEND\r\n").unwrap();
                }
            });
            let (mut line, mut out) = (Vec::new(), vec![0; block.len()]);
            near.line(&mut line).unwrap();
            assert_eq!(line, b"$300000");
            near.receive(&mut out).unwrap();
            assert!(out == block);
            near.line(&mut line).unwrap();
            assert_eq!(line, b"");
            near.line(&mut line).unwrap();
            assert_eq!(line, b"END");
            sender.join().unwrap();
            assert_eq!(near.line(&mut line).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn a_wait_for_data_has_an_end() {
        for waiting in [Waiting::Spin, Waiting::Block] {
            let (mut near, mut far) = pair(waiting);
            assert!(!near.has_data(Instant::now()).unwrap() && !near.is_ahead());
            far.send(b"abc").unwrap();
            assert!(near.has_data(Instant::now() + SILENCE).unwrap() && near.is_ahead());
            let mut out = [0; 2];
            near.receive(&mut out).unwrap();
            assert!(near.is_ahead() && near.has_data(Instant::now()).unwrap(), "a byte is left");
            near.receive(&mut out[..1]).unwrap();
            drop(far);
            let ended = near.has_data(Instant::now() + SILENCE).unwrap_err();
            assert_eq!(ended.kind(), ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn requests_are_taken_as_they_come() {
        let (mut near, mut far) = pair(Waiting::Spin);
        near.send(&[7; 40]).unwrap();
        assert_eq!(far.pending(16).unwrap().unwrap()[..16], [7; 16]);
        far.consume(16);
        assert_eq!(far.pending(24).unwrap().unwrap().len(), 24);
        far.consume(24);
        near.send(&vec![9; 200_000]).unwrap();
        assert!(far.pending(200_000).unwrap().unwrap().iter().all(|byte| *byte == 9));
        far.consume(200_000);
        drop(near);
        assert!(far.pending(1).unwrap().is_none());
    }
}
