//! The XDP program that selects this protocol's frames on an interface. Frames of its EtherType (802.1Q
//! tagged or not) to the interface's own address, or to one of its shards, go to the AF_XDP socket of the
//! queue on which they arrived. All other frames go to the kernel as without the program.
//!
//! The program is written as instructions, so that no compiler or loader is needed at run time. It is
//! attached through a link descriptor, so it is detached when the last process that has the descriptor ends.

#![expect(unsafe_code, reason = "bpf takes raw pointers")]

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, Weak};

use cxloe_wire::frame::Mac;

use crate::interface::Interface;
use crate::socket::owned;

/// Maximum number of queues of an interface, which is the size of the map of sockets.
const QUEUES_MAX: u32 = 64;

/// Attached program with its map of sockets, shared by the links on several queues of one interface.
pub(super) struct Program {
    map: OwnedFd,
    native: bool,
    _program: OwnedFd,
    _link: OwnedFd,
}

/// Key of an attached program: network namespace, interface, EtherType, addresses and ports.
type Key = (u64, u32, u16, Vec<Mac>, Option<(u16, u16)>);

/// Programs that this process has attached.
static ATTACHED: Mutex<Option<HashMap<Key, Weak<Program>>>> = Mutex::new(None);

impl Program {
    /// Returns the XDP program on `interface`: the one that this process has already attached, or a newly attached one.
    /// A new program runs in the driver (native mode) if the driver supports that, else in the kernel after the driver
    /// (generic mode).
    pub fn attach(
        interface: &Interface,
        addresses: &[Mac],
        ethertype: u16,
        ports: Option<(u16, u16)>,
    ) -> io::Result<Arc<Program>> {
        let namespace = std::fs::metadata("/proc/thread-self/ns/net").map(|m| m.ino()).unwrap_or(0);
        let key: Key = (namespace, interface.index, ethertype, addresses.to_vec(), ports);
        let mut attached = ATTACHED.lock().unwrap_or_else(|e| e.into_inner());
        let attached = attached.get_or_insert_with(HashMap::new);
        attached.retain(|_, p| p.strong_count() > 0);
        if let Some(program) = attached.get(&key).and_then(Weak::upgrade) {
            return Ok(program);
        }
        let map = create_map()?;
        let program = load(&map, addresses, ethertype, ports)?;
        let (link, native) = match create_link(&program, interface.index, FLAG_NATIVE) {
            Ok(link) => (link, true),
            // Another program is attached already, so generic mode would be refused as well.
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => return Err(e),
            Err(_) => (create_link(&program, interface.index, FLAG_GENERIC)?, false),
        };
        let program = Arc::new(Program { map, native, _program: program, _link: link });
        attached.insert(key, Arc::downgrade(&program));
        Ok(program)
    }

    /// Whether the program runs in the driver (native), and not in the kernel after the driver (generic).
    pub fn native(&self) -> bool {
        self.native
    }

    /// Redirects the frames of `queue` to `socket` until the socket closes.
    pub fn redirect(&self, queue: u32, socket: &OwnedFd) -> io::Result<()> {
        let value = socket.as_raw_fd() as u32;
        let mut attr = Attr([0; 16]);
        attr.0[0] = self.map.as_raw_fd() as u64;
        attr.0[1] = std::ptr::from_ref(&queue) as u64;
        attr.0[2] = std::ptr::from_ref(&value) as u64;
        bpf(MAP_UPDATE_ELEM, &attr).map(drop)
    }
}

/// `union bpf_attr` as the kernel reads it: fields at fixed offsets, all other bytes zero.
#[repr(C, align(8))]
struct Attr([u64; 16]);

const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
const MAP_TYPE_XSKMAP: u64 = 17;
const PROG_TYPE_XDP: u64 = 6;
const ATTACH_TYPE_XDP: u64 = 37;
const PROG_HAS_FRAGS: u64 = 1 << 5;
const FLAG_GENERIC: u64 = 1 << 1;
const FLAG_NATIVE: u64 = 1 << 2;

fn bpf(command: libc::c_long, attr: &Attr) -> io::Result<libc::c_int> {
    // SAFETY: the kernel reads `size_of::<Attr>()` bytes and follows the callers' pointers, all of which
    // outlive the call. Unknown trailing bytes are zero, as the kernel requires.
    let rc = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attr), size_of::<Attr>() as libc::c_long)
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc as libc::c_int) }
}

fn pair(low: u64, high: u64) -> u64 {
    (low & 0xFFFF_FFFF) | (high << 32)
}

fn create_map() -> io::Result<OwnedFd> {
    let mut attr = Attr([0; 16]);
    attr.0[0] = pair(MAP_TYPE_XSKMAP, 4); // type, key size
    attr.0[1] = pair(4, u64::from(QUEUES_MAX)); // value size, entries
    owned(bpf(MAP_CREATE, &attr)?)
}

fn load(map: &OwnedFd, addresses: &[Mac], ethertype: u16, ports: Option<(u16, u16)>) -> io::Result<OwnedFd> {
    let code = instructions(map.as_raw_fd(), addresses, ethertype, ports);
    let license = c"Dual MIT/GPL";
    let mut attr = Attr([0; 16]);
    attr.0[0] = pair(PROG_TYPE_XDP, code.len() as u64);
    attr.0[1] = code.as_ptr() as u64;
    attr.0[2] = license.as_ptr() as u64;
    // Offsets of the fields in bytes: 24 log level and log size, 32 log buffer, 40 kernel version, 44 flags.
    attr.0[5] = pair(0, PROG_HAS_FRAGS);
    owned(match bpf(PROG_LOAD, &attr) {
        // Kernels before 5.18 do not support frames in several parts.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            attr.0[5] = 0;
            bpf(PROG_LOAD, &attr)?
        }
        other => other?,
    })
}

fn create_link(program: &OwnedFd, index: u32, flags: u64) -> io::Result<OwnedFd> {
    let mut attr = Attr([0; 16]);
    attr.0[0] = pair(program.as_raw_fd() as u64, u64::from(index));
    attr.0[1] = pair(ATTACH_TYPE_XDP, flags);
    owned(bpf(LINK_CREATE, &attr)?)
}

/// Encodes one eBPF instruction: opcode, destination and source register, jump offset, immediate.
const fn op(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> u64 {
    (code as u64)
        | ((dst as u64) << 8)
        | ((src as u64) << 12)
        | ((off as u16 as u64) << 16)
        | ((imm as u32 as u64) << 32)
}

fn instructions(map: libc::c_int, addresses: &[Mac], ethertype: u16, ports: Option<(u16, u16)>) -> Vec<u64> {
    const LOAD_W: u8 = 0x61; // dst = *(u32 *)(src + off)
    const LOAD_B: u8 = 0x71; // dst = *(u8 *)(src + off)
    const LOAD_H: u8 = 0x69; // dst = *(u16 *)(src + off)
    const MOVE: u8 = 0xBF;
    const MOVE_IMM: u8 = 0xB7;
    const ADD_IMM: u8 = 0x07;
    const AND_IMM: u8 = 0x57;
    const TO_BIG_ENDIAN: u8 = 0xDC;
    const IF_GT: u8 = 0x2D;
    const IF_GT_IMM: u8 = 0x25;
    const IF_EQ_IMM: u8 = 0x15;
    const IF_NE_IMM: u8 = 0x55;
    const IF_NE32_IMM: u8 = 0x56;
    const JUMP: u8 = 0x05;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    const XDP_PASS: i32 = 2;
    const REDIRECT_MAP: i32 = 51;
    // The program compares packet bytes in this machine's byte order.
    let ours = i32::from(u16::from_ne_bytes(ethertype.to_be_bytes()));
    let tagged = i32::from(u16::from_ne_bytes(0x8100_u16.to_be_bytes()));
    // For each address, compare the first four octets, then the last two; if they differ, jump to the next
    // address.
    const PER_ADDRESS: usize = 4;
    let compares = addresses.iter().enumerate().flat_map(|(index, mac)| {
        let [a, b, c, d, e, f] = mac.0;
        let high = i32::from_ne_bytes([a, b, c, d]);
        let low = i32::from(u16::from_ne_bytes([e, f]));
        // Distance of the jump after a match: over the comparisons with the remaining addresses, and over the jump that
        // follows these comparisons.
        let found = (PER_ADDRESS * (addresses.len() - index - 1) + 1) as i16;
        [
            op(LOAD_W, 5, 2, 0, 0),
            op(IF_NE32_IMM, 5, 0, 2, high),
            op(LOAD_H, 5, 2, 4, 0),
            op(IF_EQ_IMM, 5, 0, found, low),
        ]
    });
    let redirect = [
        op(0x18, 1, 1, 0, map), // r1 = map, 64-bit immediate by descriptor
        op(0, 0, 0, 0, 0),
        op(LOAD_W, 2, 6, 16, 0),         // r2 = receive queue
        op(MOVE_IMM, 3, 0, 0, XDP_PASS), // nobody listens there: pass
        op(CALL, 0, 0, 0, REDIRECT_MAP),
        op(EXIT, 0, 0, 0, 0),
    ];
    // Checks that a datagram has an IP header without options, UDP, no fragment, and one of the node's ports.
    let mut checks = Vec::new();
    if let Some((first, count)) = ports {
        let fragment = i32::from(u16::from_ne_bytes(0x3FFF_u16.to_be_bytes()));
        checks = vec![
            op(LOAD_B, 5, 2, 14, 0),
            op(IF_NE_IMM, 5, 0, 0, 0x45),
            op(LOAD_B, 5, 2, 23, 0),
            op(IF_NE_IMM, 5, 0, 0, 17),
            op(LOAD_H, 5, 2, 20, 0),
            op(AND_IMM, 5, 0, 0, fragment),
            op(IF_NE_IMM, 5, 0, 0, 0),
            op(LOAD_H, 5, 2, 36, 0),
            op(TO_BIG_ENDIAN, 5, 0, 0, 16),
            op(ADD_IMM, 5, 0, 0, -i32::from(first)),
            op(IF_GT_IMM, 5, 0, 0, i32::from(count) - 1),
        ];
        let len = checks.len();
        for (index, check) in checks.iter_mut().enumerate() {
            // Distance to the instructions that pass the frame to the kernel.
            let jump = (len - index - 1 + redirect.len()) as u16;
            if [IF_NE_IMM, IF_GT_IMM].contains(&(*check as u8)) {
                *check |= u64::from(jump) << 16;
            }
        }
    }
    // Minimum length in bytes of a frame in which every load of the program lies within the frame.
    let least = if ports.is_some() { 42 } else { 18 };
    // Number of instructions from the first comparison of an address to the end of the redirection.
    let pass = (PER_ADDRESS * addresses.len() + 1 + checks.len() + redirect.len()) as i16;
    let head = [
        op(MOVE, 6, 1, 0, 0),   // r6 = context
        op(LOAD_W, 2, 1, 0, 0), // r2 = first byte of the frame
        op(LOAD_W, 3, 1, 4, 0), // r3 = its end
        op(MOVE, 4, 2, 0, 0),
        op(ADD_IMM, 4, 0, 0, least),
        op(IF_GT, 4, 3, 4 + pass, 0), // too short: pass
        op(LOAD_H, 5, 2, 12, 0),      // r5 = EtherType
        op(IF_NE_IMM, 5, 0, 1, tagged),
        op(LOAD_H, 5, 2, 16, 0), // the one behind the tag
        op(IF_NE_IMM, 5, 0, pass, ours),
    ];
    let otherwise = [op(JUMP, 0, 0, (checks.len() + redirect.len()) as i16, 0)];
    let end = [op(MOVE_IMM, 0, 0, 0, XDP_PASS), op(EXIT, 0, 0, 0, 0)];
    head.into_iter().chain(compares).chain(otherwise).chain(checks).chain(redirect).chain(end).collect()
}
