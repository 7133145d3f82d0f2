//! The hand-over of a userfaultfd by a virtual machine monitor, as Firecracker does it: the monitor connects to a Unix
//! socket and sends one message, a JSON array that describes the memory, with the userfaultfd attached.
//!
//! Observed behaviour: the message may arrive in parts, the userfaultfd is not always attached to the first part, and
//! the field `page_size_kib` holds bytes.

#![expect(unsafe_code, reason = "pidfds are made and used by bare system calls")]

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use cxloe_member::process_files::ProcessFiles;
use cxloe_member::socket::{Descriptors, receive_some};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};
use serde::Deserialize;

use cxloe_cn_core::pager::PAGE_BYTES;

/// Maximum length of the message in bytes.
const MESSAGE_MAX: usize = 64 << 10;
/// Maximum number of pieces of memory.
const PIECES_MAX: usize = 64;
/// Longest time that a monitor may take to send the whole message.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(5);
const PAGE: u64 = PAGE_BYTES as u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Address of the piece in the monitor's process.
    pub address: u64,
    /// Length in bytes, a multiple of the page size.
    pub bytes: u64,
    /// Offset of the first byte in the region.
    pub offset: u64,
}

#[derive(Debug)]
pub struct Machine {
    pub pieces: Vec<Piece>,
    pub uffd: OwnedFd,
    /// Process id of the monitor.
    pub pid: u32,
    /// The monitor's page table. This process opens it and passes it to the agent, which opens no files of the monitor.
    pub files: ProcessFiles,
    /// Pidfd of the monitor, by which this process waits for the monitor and ends it.
    pub process: OwnedFd,
    /// Connection to the monitor, kept open: a monitor may regard a closed connection as the loss of its memory.
    pub stream: UnixStream,
}

#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// The connection ended or was silent.
    #[error("the monitor connected and did not hand over {0} within {HANDOVER_TIMEOUT:?}")]
    Incomplete(&'static str),
    /// The message is not a list of memory in the expected form.
    #[error("the monitor sent something other than a list of memory: {0}")]
    Message(String),
    #[error(
        "the machine has pages of {0} bytes; only 4096 can be served: take its snapshot without huge pages"
    )]
    PageSize(u64),
    /// A piece of memory that a region cannot back.
    #[error("the machine's memory at {:#x}, {} bytes from byte {} on, {why}", .piece.address, .piece.bytes, .piece.offset)]
    Piece {
        piece: Piece,
        /// The property of the piece that is wrong.
        why: &'static str,
    },
    /// A system call failed.
    #[error("the machine cannot be taken over: {0}")]
    System(#[from] io::Error),
}

/// One element of the message's array. Other fields are ignored.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Element {
    base_host_virt_addr: u64,
    size: u64,
    offset: u64,
    page_size: Option<u64>,
    /// Page size in bytes, despite the field's name.
    page_size_kib: Option<u64>,
}

/// Parses the message; `None` while it is incomplete.
fn parse(message: &[u8]) -> Result<Option<Vec<Element>>, HandoverError> {
    match serde_json::from_slice(message) {
        Ok(elements) => Ok(Some(elements)),
        Err(error) if error.is_eof() => Ok(None),
        Err(error) => Err(HandoverError::Message(error.to_string())),
    }
}

/// Pieces of memory in the message, if they fit into a region of `room` bytes.
fn pieces(elements: &[Element], room: u64) -> Result<Vec<Piece>, HandoverError> {
    if elements.is_empty() || elements.len() > PIECES_MAX {
        let why = format!("it has {} elements, which may be 1 to {PIECES_MAX}", elements.len());
        return Err(HandoverError::Message(why));
    }
    let mut taken: Vec<Range<u64>> = Vec::new();
    let piece = |element: &Element| {
        let Element { base_host_virt_addr: address, size: bytes, offset, page_size, page_size_kib } =
            *element;
        let piece = Piece { address, bytes, offset };
        let wrong = |why| HandoverError::Piece { piece, why };
        let page = page_size.or(page_size_kib).unwrap_or(PAGE);
        if page != PAGE {
            return Err(HandoverError::PageSize(page));
        }
        if bytes == 0 || [address, bytes, offset].iter().any(|number| !number.is_multiple_of(PAGE)) {
            return Err(wrong("is not whole pages"));
        }
        let end = address.checked_add(bytes).ok_or_else(|| wrong("ends beyond all addresses"))?;
        if offset.checked_add(bytes).is_none_or(|end| end > room) {
            return Err(wrong("ends beyond the region"));
        }
        if taken.iter().any(|other| address < other.end && other.start < end) {
            return Err(wrong("lies over another piece"));
        }
        taken.push(address..end);
        Ok(piece)
    };
    elements.iter().map(piece).collect()
}

/// Takes over the machine of the monitor that connected by `stream`; its memory has to fit into `room` bytes.
pub fn receive(stream: UnixStream, room: u64) -> Result<Machine, HandoverError> {
    let deadline = Instant::now() + HANDOVER_TIMEOUT;
    let (mut message, mut elements, mut uffd) = (Vec::new(), None, None);
    let mut part = vec![0; MESSAGE_MAX];
    while elements.is_none() || uffd.is_none() {
        let missing = if elements.is_none() { "a list of its memory" } else { "a userfaultfd" };
        let left = deadline.saturating_duration_since(Instant::now());
        let mut set = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
        let limit = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        if left.is_zero() || poll(&mut set, limit).map_err(io::Error::from)? == 0 {
            return Err(HandoverError::Incomplete(missing));
        }
        let mut descriptors = Descriptors::new();
        let got = receive_some(stream.as_fd(), &mut part, &mut descriptors, libc::MSG_DONTWAIT)?;
        // The userfaultfd may be attached to any part of the message.
        uffd = uffd.or_else(|| descriptors.take());
        if got == 0 && (elements.is_none() || uffd.is_none()) {
            return Err(HandoverError::Incomplete(missing));
        }
        message.extend_from_slice(&part[..got]);
        if message.len() > MESSAGE_MAX {
            return Err(HandoverError::Message(format!("it has more than {MESSAGE_MAX} bytes")));
        }
        if elements.is_none() {
            elements = parse(&message)?;
        }
    }
    let uffd = uffd.ok_or(HandoverError::Incomplete("a userfaultfd"))?;
    let pieces = pieces(&elements.unwrap_or_default(), room)?;
    let peer = getsockopt(&stream, sockopt::PeerCredentials).map_err(io::Error::from)?.pid();
    let process = open_process(peer)?;
    let table = std::fs::File::open(format!("/proc/{peer}/pagemap"))?;
    let files = ProcessFiles::from_descriptors(None, table.into());
    Ok(Machine { pieces, uffd, pid: peer.cast_unsigned(), files, process, stream })
}

fn open_process(pid: libc::pid_t) -> io::Result<OwnedFd> {
    // SAFETY: plain values.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as i32;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Kills the machine's monitor, because the pages that its vCPUs wait for cannot be fetched any more.
pub fn kill(process: &OwnedFd) {
    let none = std::ptr::null::<libc::siginfo_t>();
    let fd = std::os::fd::AsRawFd::as_raw_fd(process);
    // SAFETY: plain values; the error for a process that has ended is ignored.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, libc::SIGKILL, none, 0) };
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    const ROOM: u64 = 64 << 20;

    fn read(text: &str) -> Result<Vec<Piece>, HandoverError> {
        pieces(&parse(text.as_bytes())?.ok_or(HandoverError::Incomplete("all of it"))?, ROOM)
    }

    #[test]
    fn firecrackers_message_is_read() {
        let text = r#"[{"base_host_virt_addr":140000000000000,"size":16777216,"offset":0,"page_size":4096,"page_size_kib":4096},
            {"base_host_virt_addr":150000000004096,"size":8192,"offset":16777216,"page_size_kib":4096,"what":{"comes":"next"}}]"#;
        let expected = [
            Piece { address: 140_000_000_000_000, bytes: 16 << 20, offset: 0 },
            Piece { address: 150_000_000_004_096, bytes: 8192, offset: 16 << 20 },
        ];
        assert_eq!(read(text).unwrap(), expected);
        // Newer releases send the page size in another field as well.
        let both =
            r#"[{"base_host_virt_addr":4096,"size":4096,"offset":0,"page_size":4096,"page_size_kib":4}]"#;
        assert_eq!(read(both).unwrap().len(), 1);
    }

    #[test]
    fn an_unservable_handover_is_reported() {
        let one = |address: u64, size: u64, offset: u64, page: u64| {
            format!(
                r#"{{"base_host_virt_addr":{address},"size":{size},"offset":{offset},"page_size":{page}}}"#
            )
        };
        let said = |elements: &[String]| read(&format!("[{}]", elements.join(","))).unwrap_err().to_string();
        assert!(said(&[one(4096, 4096, 0, 2 << 20)]).contains("huge pages"));
        assert!(said(&[one(4097, 4096, 0, 4096)]).contains("whole pages"));
        assert!(said(&[one(4096, 0, 0, 4096)]).contains("whole pages"));
        assert!(said(&[one(4096, 4096, ROOM, 4096)]).contains("beyond the region"));
        assert!(said(&[one(4096, 4096, !4095, 4096)]).contains("beyond the region"));
        assert!(said(&[one(!4095, 8192, 0, 4096)]).contains("beyond all addresses"));
        assert!(said(&[one(4096, 8192, 0, 4096), one(8192, 4096, 0, 4096)]).contains("over another"));
        assert!(said(&[]).contains("0 elements"));
        assert!(matches!(read("{}"), Err(HandoverError::Message(_))));
        assert!(matches!(read("nonsense"), Err(HandoverError::Message(_))));
        assert!(matches!(read(r#"[{"size":1}]"#), Err(HandoverError::Message(_))));
    }

    #[test]
    fn a_monitor_that_sends_no_descriptor_is_not_waited_for_in_vain() {
        let (mut monitor, stream) = UnixStream::pair().unwrap();
        monitor
            .write_all(br#"[{"base_host_virt_addr":4096,"size":4096,"offset":0,"page_size":4096}]"#)
            .unwrap();
        drop(monitor);
        assert!(matches!(receive(stream, ROOM), Err(HandoverError::Incomplete("a userfaultfd"))));
    }

    #[test]
    fn parts_come_in_any_order() {
        let (mut monitor, stream) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || receive(stream, ROOM));
        monitor.write_all(br#"[{"base_host_virt_addr":4096,"size":4096,"#).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        monitor.write_all(br#""offset":0}]"#).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let file = std::fs::File::open("/dev/zero").unwrap();
        cxloe_member::socket::send_some(monitor.as_fd(), b" ", &[file.as_fd()], 0).unwrap();
        let machine = thread.join().unwrap().unwrap();
        assert_eq!(machine.pieces, [Piece { address: 4096, bytes: 4096, offset: 0 }]);
        assert_eq!(machine.pid, std::process::id());
    }

    proptest! {
        #[test]
        fn nonsense_does_no_harm(text in ".{0,200}") {
            let _ = read(&text);
        }

        #[test]
        fn pieces_lie_in_the_region_and_beside_each_other(
            numbers in prop::collection::vec((0..16_u64, 0..8_u64, 0..20_000_u64), 1..6),
        ) {
            let element = |(address, size, offset): &(u64, u64, u64)| Element {
                base_host_virt_addr: address * PAGE, size: size * PAGE, offset: offset * PAGE,
                page_size: None, page_size_kib: None,
            };
            let elements: Vec<Element> = numbers.iter().map(element).collect();
            if let Ok(pieces) = pieces(&elements, ROOM) {
                for (index, piece) in pieces.iter().enumerate() {
                    prop_assert!(piece.bytes > 0 && piece.offset + piece.bytes <= ROOM);
                    for other in &pieces[..index] {
                        let apart = piece.address + piece.bytes <= other.address
                            || other.address + other.bytes <= piece.address;
                        prop_assert!(apart);
                    }
                }
            }
        }
    }
}
