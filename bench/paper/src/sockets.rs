//! Sockets as a baseline: lines requested over UDP or TCP from a server that has them in its memory, in the
//! same lab.
//!
//! A request is a header of 16 bytes (command, request number, line index), followed by 64 bytes of data if
//! it is a write. The answer is a header, followed by 64 bytes if it answers a read. So the sizes are about
//! those of this system's frames, without its ordering and retransmission. Both ends either spin on
//! non-blocking sockets, like busy polling, or sleep in the kernel.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cxloe_wire::frame::LINE_SIZE;

use super::PaperError;
use super::testbed::Testbed;
use cxloe_measure::machine;
use cxloe_measure::report::Samples;
use cxloe_wire::random::Random;

const HEADER: usize = 16;
const WHOLE: usize = HEADER + LINE_SIZE;
const READ: u8 = 0;
const WRITE: u8 = 1;
const LINE: u8 = 2;
const DONE: u8 = 3;
/// Time after which a datagram counts as lost, and maximum sleep of an end that sleeps.
const LOST_AFTER: Duration = Duration::from_millis(100);
/// Maximum wait for data over TCP, which repairs losses itself.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Udp,
    /// TCP without Nagle's delay, which would hold small requests back.
    Tcp,
}

enum Socket {
    Udp(UdpSocket),
    Tcp(TcpStream),
}

impl Socket {
    fn prepare(&self, spin: bool) -> io::Result<()> {
        match self {
            Socket::Udp(s) => {
                s.set_nonblocking(spin)?;
                s.set_read_timeout(Some(LOST_AFTER))
            }
            Socket::Tcp(s) => {
                s.set_nodelay(true)?;
                s.set_nonblocking(spin)?;
                s.set_read_timeout(Some(LOST_AFTER))
            }
        }
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Udp(s) => s.recv(into),
            Socket::Tcp(s) => s.read(into),
        }
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        match self {
            Socket::Udp(s) => s.send(message).map(drop),
            Socket::Tcp(s) => s.write_all(message),
        }
    }

    /// Receives one whole message and returns its length; `None` if the other end has closed the connection,
    /// or if `give_up` returns true while no message is there.
    fn message(
        &mut self,
        buffer: &mut [u8; WHOLE],
        mut give_up: impl FnMut() -> bool,
    ) -> io::Result<Option<usize>> {
        let mut have = 0;
        loop {
            match self.read(&mut buffer[have..]) {
                Ok(0) => return Ok(None),
                Ok(more) => have += more,
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if give_up() {
                        return Ok(None);
                    }
                    std::hint::spin_loop();
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
            // Only these two commands have data behind the header.
            let whole = if matches!(buffer[0], WRITE | LINE) { WHOLE } else { HEADER };
            if have >= HEADER && have >= whole {
                return Ok(Some(whole));
            }
        }
    }
}

/// Connects a client in the compute node's namespace with a server in the memory node's, over the second
/// cable.
fn connected(ends: &Testbed, transport: Transport) -> Result<(Socket, Socket), PaperError> {
    let io = PaperError::io("connecting sockets over the lab's second cable");
    let pair = match transport {
        Transport::Udp => {
            let bind = |namespace, address| ends.lab.enter(namespace, || UdpSocket::bind((address, 0)));
            let client = bind("cn", Testbed::CLIENT)?.map_err(&io)?;
            let server = bind("mn", Testbed::SERVER)?.map_err(&io)?;
            client.connect(server.local_addr().map_err(&io)?).map_err(&io)?;
            server.connect(client.local_addr().map_err(&io)?).map_err(&io)?;
            (Socket::Udp(client), Socket::Udp(server))
        }
        Transport::Tcp => {
            let listener = ends.lab.enter("mn", || TcpListener::bind((Testbed::SERVER, 0)))?.map_err(&io)?;
            let address = listener.local_addr().map_err(&io)?;
            let client =
                ends.lab.enter("cn", || TcpStream::connect_timeout(&address, Duration::from_secs(10)))?;
            let (client, (server, _)) = (client.map_err(&io)?, listener.accept().map_err(&io)?);
            (Socket::Tcp(client), Socket::Tcp(server))
        }
    };
    Ok(pair)
}

/// Makes one trial: `count` operations on random lines, half of them reads, with their latencies recorded in
/// `samples`.
pub fn trial(
    ends: &Testbed,
    transport: Transport,
    spin: bool,
    count: u64,
    bounce: Option<f64>,
    samples: &mut Samples,
) -> Result<(), PaperError> {
    let io = PaperError::io("exchanging lines over sockets");
    let (mut client, mut server) = connected(ends, transport)?;
    client.prepare(spin).and_then(|()| server.prepare(spin)).map_err(&io)?;
    ends.pin()?;
    let lines = ends.bytes / LINE_SIZE as u64;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let serving = scope.spawn(|| {
            if let Some((_, theirs)) = ends.cores {
                machine::pin(theirs)?;
            }
            serve(&mut server, lines, &stop).map_err(PaperError::io("serving lines over sockets"))
        });
        // Only a datagram can be lost for good; TCP repairs losses itself.
        let wait_limit = if transport == Transport::Udp { LOST_AFTER } else { ANSWER_TIMEOUT };
        let asked = ask(ends, &mut client, (lines, wait_limit), count, samples);
        stop.store(true, Ordering::Release);
        let served = serving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        asked.and(served)
    })?;
    samples.end_trial(bounce);
    Ok(())
}

fn serve(socket: &mut Socket, lines: u64, stop: &AtomicBool) -> io::Result<()> {
    let mut memory = vec![[1_u8; LINE_SIZE]; lines as usize];
    let mut buffer = [0; WHOLE];
    while socket.message(&mut buffer, || stop.load(Ordering::Acquire))?.is_some() {
        let index = u64::from_le_bytes(buffer[8..HEADER].try_into().unwrap_or_default());
        let Some(line) = memory.get_mut(index as usize) else { continue };
        if buffer[0] == WRITE {
            line.copy_from_slice(&buffer[HEADER..]);
            buffer[0] = DONE;
            socket.send(&buffer[..HEADER])?;
        } else {
            buffer[HEADER..].copy_from_slice(line);
            buffer[0] = LINE;
            socket.send(&buffer)?;
        }
    }
    Ok(())
}

fn ask(
    ends: &Testbed,
    socket: &mut Socket,
    (lines, wait_limit): (u64, Duration),
    count: u64,
    samples: &mut Samples,
) -> Result<(), PaperError> {
    let io = PaperError::io("asking for lines over sockets");
    let mut random = Random::new(7);
    let mut buffer = [0_u8; WHOLE];
    let warm_up = count / 20 + 10;
    for number in 0..warm_up + count {
        if number % 1024 == 0 {
            ends.check()?;
        }
        let (index, writes) = (random.below(lines), random.bits() & 1 == 0);
        let mark = (number as u32).to_le_bytes();
        buffer[0] = if writes { WRITE } else { READ };
        buffer[4..8].copy_from_slice(&mark);
        buffer[8..HEADER].copy_from_slice(&index.to_le_bytes());
        let start = Instant::now();
        socket.send(&buffer[..if writes { WHOLE } else { HEADER }]).map_err(&io)?;
        let late = || start.elapsed() > wait_limit;
        // A lost datagram is not timed. A late answer has another request number, and is discarded.
        let mut answer = socket.message(&mut buffer, late).map_err(&io)?;
        while answer.is_some() && buffer[4..8] != mark {
            answer = socket.message(&mut buffer, late).map_err(&io)?;
        }
        if answer.is_some() && number >= warm_up {
            samples.record_ns(start.elapsed().as_nanos() as u64);
        }
    }
    Ok(())
}
