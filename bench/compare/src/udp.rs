//! UDP sockets: the project's own client and server, with retransmission. The memory is a vector of the server.

use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use super::batch::{BATCH, Batch};
use super::error::PeerError;
use super::measured::Measured;
use super::peer::{Facts, Peer};
use super::pipeline::Pipeline;
use super::plan::Plan;
use super::readable::is_readable;
use super::request::{HEADER, MemoryRequest};
use super::server::{Server, StopFlag};
use super::stage::{FAR_ADDRESS, NEAR_ADDRESS, Stage};
use super::store::{Store, drive};
use super::stream::{SILENCE, Waiting};
use super::unit::{AccessUnit, LINE, PAGE};

const FAR_PORT: u16 = 7600;
const NEAR_PORT: u16 = 7601;
/// Bytes of an answer in front of the data.
const ANSWER: usize = 4;
/// Data bytes of a datagram in bulk patterns and reads of 1 MiB: IP fragments and reassembles it, which takes fewer
/// system calls than datagrams of one frame each.
const PIECE: usize = 16 << 10;
/// Number of pieces of this size in flight; so few that their frames fit the rings on the path.
const PIECES_AHEAD: usize = 8;
/// Size of the largest datagram in bytes.
const ROOM: usize = HEADER + PIECE;
/// Time after which an unanswered request is sent again.
const AGAIN: Duration = Duration::from_millis(20);
/// Polls of an empty socket between two readings of the clock.
const SPINS: u32 = 256;
/// Size of the socket buffers in bytes.
const SOCKET_BUFFER: usize = 4 << 20;

pub struct Udp {
    pub waiting: Waiting,
}

impl Peer for Udp {
    fn name(&self) -> &'static str {
        match self.waiting {
            Waiting::Spin => "udp-spin",
            Waiting::Block => "udp-block",
        }
    }

    fn facts(&self) -> Facts {
        Facts {
            what: match self.waiting {
                Waiting::Spin => "UDP sockets, both ends spinning",
                Waiting::Block => "UDP sockets, both ends sleeping in recv",
            },
            waits: match self.waiting {
                Waiting::Spin => "both ends spin on recv",
                Waiting::Block => "both ends sleep until the kernel wakes them",
            },
            copies: "server into its answer, kernel in and out of socket buffers, client out of its buffer",
            verified: "UDP's checksum is left out by the kernel over a veth; every byte read",
            figures: "a request of 16 bytes, asked again after 20 ms; many datagrams a system call; bulk and 1 MiB in 16 KiB, \
                      eight of them in flight",
        }
    }

    fn trial(&self, stage: &Stage, plan: &Plan) -> Result<Vec<Measured>, PeerError> {
        let (waiting, bytes, stop) = (self.waiting, plan.bytes, StopFlag::default());
        let flag = stop.clone();
        let listen = || socket((FAR_ADDRESS, FAR_PORT), (NEAR_ADDRESS, NEAR_PORT), waiting);
        let server = Server::start(stage, "udp", listen, move |socket| serve(&socket, bytes, &flag))?;
        let near = socket((NEAR_ADDRESS, NEAR_PORT), (FAR_ADDRESS, FAR_PORT), waiting);
        let found = near.map_err(failed).and_then(|socket| {
            let batch = || Batch::new(ROOM);
            let mut client = Client {
                socket,
                waiting,
                depth: plan.depth,
                number: 0,
                out: batch(),
                back: batch(),
                pieces: Vec::new(),
                begun: Vec::new(),
            };
            drive(&mut client, &stage.content, plan, &stage.interrupt)
        });
        stop.set();
        server.end()?;
        found
    }
}

fn failed(source: io::Error) -> PeerError {
    PeerError::Io { what: "exchanging datagrams".into(), source }
}

type Address = (std::net::Ipv4Addr, u16);

fn socket(own: Address, other: Address, waiting: Waiting) -> io::Result<UdpSocket> {
    use nix::sys::socket::{setsockopt, sockopt};
    let socket = UdpSocket::bind(own)?;
    socket.connect(other)?;
    // This fails without CAP_NET_ADMIN; then the system's limit applies.
    let _ = setsockopt(&socket, sockopt::RcvBufForce, &SOCKET_BUFFER)
        .or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &SOCKET_BUFFER));
    // A blocking read ends after this time, so that the stop flag and retransmissions are checked.
    socket.set_read_timeout(Some(AGAIN))?;
    socket.set_nonblocking(waiting == Waiting::Spin)?;
    Ok(socket)
}

/// Answers requests until `stop` is set.
fn serve(socket: &UdpSocket, bytes: usize, stop: &StopFlag) -> io::Result<()> {
    let mut memory = vec![0; bytes];
    let (mut requests, mut answers) = (Batch::new(ROOM), Batch::new(ROOM));
    while !stop.is_set() {
        match requests.receive(socket) {
            Ok(()) => {}
            Err(e) if is_nothing(&e) => continue,
            Err(e) => return Err(e),
        }
        for index in 0..requests.len() {
            let datagram = requests.datagram(index);
            let request = MemoryRequest::decoded(datagram, memory.len()).ok_or(ErrorKind::InvalidData)?;
            let number: &[u8; ANSWER] = datagram.first_chunk().ok_or(ErrorKind::InvalidData)?;
            let range = request.at..request.at + request.bytes;
            if request.is_write {
                let data = datagram.get(HEADER..HEADER + request.bytes).ok_or(ErrorKind::InvalidData)?;
                memory[range].copy_from_slice(data);
                answers.push(number, &[]);
            } else {
                answers.push(number, &memory[range]);
            }
        }
        answers.send(socket)?;
    }
    Ok(())
}

/// True if an error means that no datagram has arrived. ECONNREFUSED reports that an earlier datagram was sent before
/// the other end had opened its socket.
fn is_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionRefused)
}

struct Client {
    socket: UdpSocket,
    waiting: Waiting,
    depth: usize,
    /// Number of the next request.
    number: u32,
    out: Batch,
    back: Batch,
    /// For each piece of the current bulk call, true if the piece has been answered.
    pieces: Vec<bool>,
    /// Reads that were begun and not answered.
    begun: Vec<BegunRead>,
}

/// Read of a line that is in flight.
#[derive(Clone, Copy)]
struct BegunRead {
    request: MemoryRequest,
    slot: u32,
    /// Time at which the request was sent for the last time.
    sent: Instant,
}

impl Client {
    /// Sends one request and receives the data of its answer into `out`.
    fn exchange(&mut self, message: &[u8], out: &mut [u8]) -> Result<(), PeerError> {
        let begin = Instant::now();
        let mut answer = [0; ANSWER + PAGE];
        let room = ANSWER + out.len();
        loop {
            self.socket.send(message).map_err(failed)?;
            let (sent, mut spins) = (Instant::now(), 0_u32);
            loop {
                match self.socket.recv(&mut answer[..room]) {
                    // Late answers to retransmitted requests are rejected by their number.
                    Ok(length) if length == room && answer[..ANSWER] == message[..ANSWER] => {
                        out.copy_from_slice(&answer[ANSWER..room]);
                        return Ok(());
                    }
                    Ok(_) => {}
                    Err(e) if is_nothing(&e) => spins += 1,
                    Err(e) => return Err(failed(e)),
                }
                if self.looks(spins) && sent.elapsed() > AGAIN {
                    break;
                }
            }
            silent(begin)?;
        }
    }

    /// True if the clock is to be read after `spins` polls of an empty socket. On a blocking socket, the clock is read
    /// after each poll, because the poll itself has waited.
    fn looks(&self, spins: u32) -> bool {
        self.waiting == Waiting::Block || spins.is_multiple_of(SPINS)
    }

    fn next(&mut self, is_write: bool, bytes: usize, at: usize) -> MemoryRequest {
        self.number = (self.number + 1) & 0x00FF_FFFF;
        MemoryRequest { is_write, number: self.number, bytes, at }
    }

    /// Transfers pieces of memory of equal size with `depth` requests in flight, and retransmits unanswered ones. Reads
    /// fill `data`; writes send it.
    fn pipelined(&mut self, places: &[usize], mut data: Data<'_>, depth: usize) -> Result<(), PeerError> {
        let bytes = data.len() / places.len().max(1);
        self.pieces.clear();
        self.pieces.resize(places.len(), false);
        // Numbers are new for each call, so that late answers to an earlier call are recognised.
        let first = (self.number + 1) & 0x00FF_FFFF;
        self.number = (self.number + places.len() as u32) & 0x00FF_FFFF;
        let (mut sent, mut answered) = (0, 0);
        let mut progress = Instant::now();
        let (mut spins, mut repeated) = (0_u32, progress);
        while answered < places.len() {
            while sent < places.len() && sent - answered < depth {
                self.ask(&data, first, sent, bytes, places[sent])?;
                sent += 1;
            }
            self.out.send(&self.socket).map_err(failed)?;
            match self.back.receive(&self.socket) {
                Ok(()) => {}
                Err(e) if is_nothing(&e) => spins += 1,
                Err(e) => return Err(failed(e)),
            }
            let before = answered;
            for index in 0..self.back.len() {
                let answer = self.back.datagram(index);
                let Some(number) = answer.first_chunk::<ANSWER>() else { continue };
                let number = u32::from_le_bytes(*number) >> 8;
                let piece = (number.wrapping_sub(first) & 0x00FF_FFFF) as usize;
                if self.pieces.get(piece) == Some(&false) && data.takes(piece, bytes, &answer[ANSWER..]) {
                    self.pieces[piece] = true;
                    answered += 1;
                }
            }
            self.back.clear();
            if answered > before {
                (progress, repeated, spins) = (Instant::now(), Instant::now(), 0);
            } else if self.looks(spins) && repeated.elapsed() > AGAIN {
                silent(progress)?;
                repeated = Instant::now();
                for piece in (0..sent).filter(|piece| !self.pieces[*piece]).take(BATCH).collect::<Vec<_>>() {
                    self.ask(&data, first, piece, bytes, places[piece])?;
                }
            }
        }
        Ok(())
    }

    /// Reads units of `bytes` bytes, a multiple of [`PIECE`], in datagrams of a piece each.
    fn read_pieces(&mut self, indices: &[usize], bytes: usize, out: &mut [u8]) -> Result<(), PeerError> {
        let of_unit = |index: &usize| (index * bytes..(index + 1) * bytes).step_by(PIECE);
        let places: Vec<usize> = indices.iter().flat_map(of_unit).collect();
        self.pipelined(&places, Data::Read(out), PIECES_AHEAD)
    }

    /// Adds a request without data to those that are sent next.
    fn add(&mut self, request: MemoryRequest) -> Result<(), PeerError> {
        if self.out.is_full() {
            self.out.send(&self.socket).map_err(failed)?;
        }
        self.out.push(&request.encoded(), &[]);
        Ok(())
    }

    /// Passes the received lines on, and returns their number. Answers to other requests are late ones.
    fn pass(&mut self, arrived: &mut dyn FnMut(u32, &[u8])) -> usize {
        let mut count = 0;
        for index in 0..self.back.len() {
            let Some((number, line)) = self.back.datagram(index).split_first_chunk::<ANSWER>() else {
                continue;
            };
            let number = u32::from_le_bytes(*number) >> 8;
            let is_asked =
                |read: &BegunRead| read.request.number == number && line.len() == read.request.bytes;
            let Some(place) = self.begun.iter().position(is_asked) else { continue };
            arrived(self.begun.swap_remove(place).slot, line);
            count += 1;
        }
        count
    }

    fn ask(
        &mut self,
        data: &Data<'_>,
        first: u32,
        piece: usize,
        bytes: usize,
        at: usize,
    ) -> Result<(), PeerError> {
        if self.out.is_full() {
            self.out.send(&self.socket).map_err(failed)?;
        }
        let number = (first + piece as u32) & 0x00FF_FFFF;
        let (is_write, payload): (bool, &[u8]) = match data {
            Data::Read(_) => (false, &[]),
            Data::Write(all) => (true, &all[piece * bytes..(piece + 1) * bytes]),
        };
        self.out.push(&MemoryRequest { is_write, number, bytes, at }.encoded(), payload);
        Ok(())
    }
}

/// Direction and buffer of a bulk call.
enum Data<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
}

impl Data<'_> {
    fn len(&self) -> usize {
        match self {
            Data::Read(out) => out.len(),
            Data::Write(all) => all.len(),
        }
    }

    /// Stores the data of an answer; returns false if its length is wrong.
    fn takes(&mut self, piece: usize, bytes: usize, answer: &[u8]) -> bool {
        match self {
            Data::Write(_) => answer.is_empty(),
            Data::Read(out) => {
                let fits = answer.len() == bytes;
                if fits {
                    out[piece * bytes..(piece + 1) * bytes].copy_from_slice(answer);
                }
                fits
            }
        }
    }
}

fn silent(since: Instant) -> Result<(), PeerError> {
    if since.elapsed() < SILENCE {
        return Ok(());
    }
    let what = "an answer over UDP".into();
    Err(PeerError::Timeout { what, limit: SILENCE, log: "requests were sent again every 20 ms".into() })
}

impl Store for Client {
    fn read(&mut self, unit: AccessUnit, index: usize, out: &mut [u8]) -> Result<(), PeerError> {
        let bytes = unit.bytes();
        if bytes > PAGE {
            return self.read_pieces(&[index], bytes, out);
        }
        let request = self.next(false, bytes, index * bytes);
        self.exchange(&request.encoded(), out)
    }

    fn write(&mut self, index: usize, line: &[u8]) -> Result<(), PeerError> {
        let mut message = [0; HEADER + LINE];
        message[..HEADER].copy_from_slice(&self.next(true, LINE, index * LINE).encoded());
        message[HEADER..].copy_from_slice(line);
        // A write that is sent again cannot undo a later one: cable and socket keep the order of datagrams.
        self.exchange(&message, &mut [])
    }

    fn read_many(
        &mut self,
        unit: AccessUnit,
        indices: &[usize],
        out: &mut [u8],
    ) -> Result<Option<()>, PeerError> {
        if unit == AccessUnit::Stretch {
            return self.read_pieces(indices, unit.bytes(), out).map(Some);
        }
        let places: Vec<usize> = indices.iter().map(|index| index * unit.bytes()).collect();
        self.pipelined(&places, Data::Read(out), unit.in_flight(self.depth)).map(Some)
    }

    fn write_lines(&mut self, indices: &[usize], lines: &[u8]) -> Result<(), PeerError> {
        let places: Vec<usize> = indices.iter().map(|index| index * LINE).collect();
        self.pipelined(&places, Data::Write(lines), self.depth)
    }

    fn bulk_read(&mut self, out: &mut [u8]) -> Result<(), PeerError> {
        let places: Vec<usize> = (0..out.len()).step_by(PIECE).collect();
        self.pipelined(&places, Data::Read(out), PIECES_AHEAD)
    }

    fn bulk_write(&mut self, all: &[u8]) -> Result<(), PeerError> {
        let places: Vec<usize> = (0..all.len()).step_by(PIECE).collect();
        self.pipelined(&places, Data::Write(all), PIECES_AHEAD)
    }

    fn pipeline(&mut self) -> Option<&mut dyn Pipeline> {
        Some(self)
    }
}

impl Pipeline for Client {
    fn begin(&mut self, slot: u32, line: usize) -> Result<bool, PeerError> {
        let request = self.next(false, LINE, line * LINE);
        self.begun.push(BegunRead { request, slot, sent: Instant::now() });
        self.add(request)?;
        Ok(true)
    }

    fn take(&mut self, until: Instant, arrived: &mut dyn FnMut(u32, &[u8])) -> Result<(), PeerError> {
        loop {
            if self.out.len() > 0 {
                self.out.send(&self.socket).map_err(failed)?;
            }
            let now = Instant::now();
            if self.waiting == Waiting::Spin
                || is_readable(&self.socket, until.min(now + AGAIN)).map_err(failed)?
            {
                match self.back.receive(&self.socket) {
                    Ok(()) => {}
                    Err(e) if is_nothing(&e) => {}
                    Err(e) => return Err(failed(e)),
                }
            } else {
                self.back.clear();
            }
            if self.pass(arrived) > 0 || Instant::now() >= until {
                return Ok(());
            }
            for place in 0..self.begun.len() {
                if self.begun[place].sent.elapsed() > AGAIN {
                    self.begun[place].sent = Instant::now();
                    self.add(self.begun[place].request)?;
                }
            }
        }
    }
}
