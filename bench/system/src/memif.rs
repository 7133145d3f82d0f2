//! Shared memory between two processes as a link, by DPDK's driver `net_memif`.
//!
//! ```text
//!   joined:   compute node === memory === memory node
//!   spliced:  compute node === memory === splice -- cn0 -- cable -- mn0 -- splice === memory === memory node
//! ```
//!
//! Such a link has two ends and nothing between them. A test that needs a neighbour, a capture or a cable that can be
//! unplugged splices the memory of a node to an interface of its lab: a copy of the test program passes frames between
//! the two. Faults of frames come from the fault injectors of both ends, as over other links.
//!
//! DPDK starts once in a process, with as much memory as its first device needs. So a test whose own process opens a
//! device runs [`alone`](crate::Test::alone). The plug-in lies beside the test program and beside the daemons, where
//! `make test` puts it.
//!
//! These tests of other links have no counterpart over shared memory:
//!
//! | test | reason |
//! |---|---|
//! | `losses_are_counted` | frames wait at their sender while the memory is full, and none is lost on the way |
//! | `link_outlives_its_interface_going_down`, `interface::comes_back` | there is no interface; an end that goes away and comes back is a test of `agent::dpdk` |
//! | `errors_name_the_interface`, `missing_rights_are_named` | there is no interface, and no right is needed; what may be missing is a test of `agent::dpdk` |
//! | `lines_over_four_workers` | an agent and a memory node with other numbers of workers do not connect, which is a test of `agent::dpdk` |
//! | those inside UDP | a device is a link of its own: `--encap` is refused |
//! | `pfc_frames_slow_their_class` | frames of the protocol alone pass; pauses are counters of the device |
//! | `a_narrow_path_is_named_and_left_once_it_is_wide` | both ends have buffers of one size |
//! | `echoes_stop_nobody` | a splice passes on only frames to the node at the cable's other end |

use std::fmt::Display;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cxloe_lab::{Lab, Process};
use cxloe_link::{Link, LinkConfig, dpdk, open};
use cxloe_port::port::Port;
use cxloe_wire::frame::Mac;

use crate::cable::LinkKind;
use crate::copies::{Role, copy_as};
use crate::node::MemoryNode;
use crate::outcome::{Outcome, ensure, eventually};
use crate::raw::{RawSocket, ReceivedFrame};
use crate::suite::Test;

/// Role of a copy of the test program that splices; a test program whose tests splice lists it among its roles.
pub const SPLICE: Role = ("splice", splice_or_say_why);
/// Environment variable with what such a copy splices: an interface and a device.
const SPLICED: &str = "CXLOE_TEST_SPLICE";
/// Word that a splice prints once frames pass.
const READY: &str = "spliced";
/// Maximum number of frames passed in one direction before the other has its turn.
const BATCH: usize = 64;
/// Sleep of a splice that has found no frame at either end.
const SLEEP: Duration = Duration::from_micros(50);

/// A test `dpdk::NAME` whose own process opens devices.
pub fn by_dpdk(name: &str, run: impl FnOnce() -> Outcome + Send + 'static) -> Test {
    Test::new(format!("dpdk::{name}"), run).alone("DPDK starts once in a process")
}

/// Option `-i` of a node whose frames pass through the memory that the processes at `socket` share: its `server` makes
/// the socket, and its `client` connects to it. Arguments of the driver may be appended.
pub fn device(socket: &Path, role: &str, mac: impl Display) -> String {
    let socket = socket.display();
    format!("dpdk:net_memif{},role={role},socket={socket},socket-abstract=no,mac={mac}", next_number())
}

/// Device of DPDK that sends and receives at an interface of the kernel by packet sockets.
pub fn packet_device(interface: &str) -> String {
    format!("dpdk:net_af_packet{},iface={interface}", next_number())
}

/// Number that no other device of this process has: DPDK finds a device by its name, with its earlier arguments.
fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Interfaces of a compute node and a memory node with these addresses over a kind of link: the ends of a cable, or
/// devices joined by memory, with their socket in `folder`.
pub fn interfaces(over: LinkKind, folder: &Path, cn: Mac, mn: Mac) -> [String; 2] {
    if !over.is_dpdk() {
        return ["cn0", "mn0"].map(str::to_owned);
    }
    let socket = folder.join("memif.sock");
    [device(&socket, "client", cn), device(&socket, "server", mn)]
}

/// Starts a process that passes frames between an interface of the lab and the memory at `socket`, whose server runs.
/// Of the server's frames it passes those to `far`, the node at the other end of the cable.
///
/// # Errors
/// Returns an error when the process cannot be started, or does not reach the server.
pub fn splice(lab: &Lab, interface: &str, socket: &Path, far: Mac) -> Outcome<Process> {
    let mut command = copy_as(SPLICE.0)?;
    // Its buffers hold every frame of the cable, also those that are too long for the server.
    command.env(SPLICED, format!("{interface} {},mtu=9000", device(socket, "client", far)));
    command.stdout(Stdio::piped());
    let mut process = lab.spawn(lab.home_of(interface)?.name(), command)?;
    let output = process.child_mut().stdout.take().ok_or("no pipe")?;
    let ready = BufReader::new(output).lines().map_while(Result::ok).any(|line| line == READY);
    ensure(ready, format!("{interface} is not spliced to {}", socket.display()))?;
    Ok(process)
}

/// Ends a memory node, and then the port that is joined to it by memory, which this thread alone uses. The driver
/// unmaps the memory of the end that is left, even while it receives; this port does not then.
///
/// # Errors
/// Returns an error when the node does not end in order.
pub fn end(node: MemoryNode, port: Port) -> Outcome {
    let status = node.end()?;
    drop(port);
    ensure(status.success(), format!("mn-server ended with {status}"))
}

fn splice_or_say_why() -> ExitCode {
    match pass_frames() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("splice: {}", why.message().unwrap_or_default());
            ExitCode::FAILURE
        }
    }
}

/// Passes frames until the memory has no process at its other end. A frame without room is lost, as on a wire.
fn pass_frames() -> Outcome {
    let told = std::env::var(SPLICED)?;
    let (interface, device) = told.split_once(' ').ok_or("no device to splice")?;
    let raw = RawSocket::open(interface)?;
    let config = LinkConfig::new(device);
    let mut link = open(&config)?;
    eventually("the memory is joined", || dpdk::look(&config).is_ok_and(|device| device.up))?;
    println!("{READY}");
    loop {
        let mut passed = 0;
        // An interface that is down reports an error for each frame, until it is up again.
        while passed < BATCH
            && let Ok(Some(frame)) = raw.receive(Duration::ZERO)
        {
            pass_in(&mut *link, &frame);
            passed += 1;
        }
        link.flush()?;
        passed += link.receive(BATCH, &mut |frame, _| {
            let _ = raw.send(frame);
        })?;
        if passed == 0 {
            link.wait(SLEEP)?;
        }
    }
}

/// Passes a frame of the cable into the memory, with its tag.
fn pass_in(link: &mut dyn Link, frame: &ReceivedFrame) {
    let Some((addresses, rest)) = frame.bytes.split_at_checked(12) else { return };
    let [high, low] = frame.tag.unwrap_or_default().to_be_bytes();
    let tag = [0x81, 0x00, high, low];
    let tag = if frame.tag.is_some() { &tag[..] } else { &[] };
    let whole = [addresses, tag, rest].concat();
    let tx = link.transmit();
    if let Some(slot) = tx.slot(whole.len()) {
        slot.copy_from_slice(&whole);
        tx.commit();
    }
}
