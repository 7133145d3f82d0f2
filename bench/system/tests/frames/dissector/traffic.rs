//! Captures of real traffic: a memory node and a compute node at a switch, with dumpcap at the switch's port to the
//! compute node. A capture at the node itself would lack frames that bypass the queueing discipline.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use cxloe_cn_core::attach::{STREAMS_DEFAULT, SessionKeys, SessionSettings};
use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::{Engine, Route, RouteTarget};
use cxloe_lab::{Lab, Process};
use cxloe_link::pfc::PfcSocket;
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, LinkConfig, Middlewares, open_with};
use cxloe_port::port::Port;
use cxloe_system::Failed;
use cxloe_wire::frame::{
    Command as FrameCommand, ETHERTYPE_DEFAULT, Header, Mac, Message, PfcVector, frame_len, vlan,
};
use cxloe_wire::session::Timing;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::tshark::{self, Row};
use cxloe_system::node::MemoryNode;
use cxloe_system::raw::RawSocket;
use cxloe_system::{LIMIT, ensure, eventually};

/// MAC address of the compute node of a star.
const CN: Mac = Mac([2, 0, 0, 0, 1, 0]);
const MN: Mac = Mac([2, 0, 0, 0, 2, 0]);
const BYTES: u64 = 2 << 20;
/// Number of lines written and read, first one by one and then many at once.
const LINES: u64 = 600;
const KEY: &str = "a key for captures, long enough";
/// Frame that marks the end of the traffic. Its EtherType, the second one for local experiments, is not that
/// of the protocol.
const END: [u8; 60] = {
    let mut frame = [0; 60];
    (frame[0], frame[5], frame[6], frame[10]) = (2, 1, 2, 1);
    (frame[12], frame[13]) = (0x88, 0xB6);
    frame
};
/// Bytes of a pcap file's header.
const FILE_HEADER: usize = 24;
/// Bytes of the header of each frame in a pcap file.
const FRAME_HEADER: usize = 16;

/// Headers of a frame inside UDP: Ethernet, IPv4 from 10.0.0.1 to 10.0.0.2, UDP without a checksum.
const OUTER: [u8; 42] = [
    2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, // Ethernet
    0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, // IPv4: its length at 16
    0, 0, 0, 0, 0, 0, 0, 0, // UDP: ports at 34 and 36, its length at 38
];

#[derive(Clone)]
pub struct Frame {
    /// Time of capture since the Unix epoch.
    pub time: Duration,
    /// Bytes of the frame without an 802.1Q tag.
    pub bytes: Vec<u8>,
}

/// A capture: the content of its pcap file, and its frames.
pub struct Captured {
    pub frames: Vec<Frame>,
    file: Vec<u8>,
    dir: TempDir,
}

impl Captured {
    /// Parses the content of a pcap file.
    pub fn new(file: Vec<u8>) -> Result<Captured, Failed> {
        let frames = frames(&file)?.into_iter().map(|(_, frame)| frame).collect();
        Ok(Captured { frames, file, dir: tempfile::tempdir()? })
    }

    /// Fields that tshark shows of each frame, with further `options`.
    pub fn read(&self, options: &[&str]) -> Result<Vec<Row>, Failed> {
        let path = self.dir.path().join("capture.pcap");
        fs::write(&path, &self.file)?;
        tshark::read(&path, options)
    }

    /// The same capture with each frame inside a UDP datagram to this port.
    pub fn inside_datagrams(&self, port: u16) -> Result<Captured, Failed> {
        let mut file = self.file[..FILE_HEADER].to_vec();
        for frame in &self.frames {
            let mut outer = OUTER.to_vec();
            let (datagram, packet) = ((8 + frame.bytes.len()) as u16, (28 + frame.bytes.len()) as u16);
            outer[16..18].copy_from_slice(&packet.to_be_bytes());
            outer[34..36].copy_from_slice(&port.to_be_bytes());
            outer[36..38].copy_from_slice(&port.to_be_bytes());
            outer[38..40].copy_from_slice(&datagram.to_be_bytes());
            let length = (outer.len() + frame.bytes.len()) as u32;
            let head = [frame.time.as_secs() as u32, frame.time.subsec_micros(), length, length]
                .map(u32::to_le_bytes);
            file.extend(head.as_flattened());
            file.extend(&outer);
            file.extend(&frame.bytes);
        }
        Ok(Captured { frames: self.frames.clone(), file, dir: tempfile::tempdir()? })
    }

    /// Removes the leading frames for which `is_early` returns true.
    pub fn drop_first(&mut self, is_early: impl Fn(&[u8]) -> bool) -> Result<(), Failed> {
        let at = frames(&self.file)?.into_iter().find(|(_, frame)| !is_early(&frame.bytes));
        let (at, _) = at.ok_or("no frame is left")?;
        self.file.drain(FILE_HEADER..at);
        self.frames = frames(&self.file)?.into_iter().map(|(_, frame)| frame).collect();
        Ok(())
    }
}

/// Frames of a pcap file with timestamps in microseconds, each with its offset in the file.
fn frames(file: &[u8]) -> Result<Vec<(usize, Frame)>, Failed> {
    let word = |at: usize| file.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    ensure(word(0) == Some(0xa1b2_c3d4), "not a pcap file with microseconds")?;
    let (mut frames, mut at) = (Vec::new(), FILE_HEADER);
    while let (Some(s), Some(us), Some(len)) = (word(at), word(at + 4), word(at + 8)) {
        let from = at + FRAME_HEADER;
        let Some(bytes) = file.get(from..from + len as usize) else { break };
        let mut bytes = bytes.to_vec();
        let time = Duration::new(u64::from(s), us * 1000);
        frames.push((at, Frame { time, bytes: vlan::strip(&mut bytes).to_vec() }));
        at = from + len as usize;
    }
    Ok(frames)
}

#[derive(Clone, Copy)]
pub struct Traffic {
    /// Faults that both ends apply to frames that they send, in the syntax of the option.
    pub faults: Option<&'static str>,
    /// Set if the memory node's queue has to exceed its threshold, and a switch signals congestion as well.
    pub congestion: bool,
    /// Set if frames are sealed with a pre-shared key.
    pub sealed: bool,
    /// Set if Echo frames are sent as well.
    pub echo: bool,
    /// Priority in the frames' 802.1Q tags; `None` for untagged frames.
    pub priority: Option<u8>,
}

impl Traffic {
    /// Traffic without faults, congestion, key, Echo frames and tags.
    pub fn quiet() -> Traffic {
        Traffic { faults: None, congestion: false, sealed: false, echo: false, priority: None }
    }

    /// Runs the traffic between real nodes, and captures it at the switch.
    pub fn capture(self) -> Result<Captured, Failed> {
        let dir = tempfile::tempdir()?;
        let lab = Lab::star(1, 1).build()?;
        let file = dir.path().join("capture.pcap");
        let mut dumpcap = Command::new("dumpcap");
        dumpcap.args(["-i", "port-cn0", "-P", "-q", "-B", "32", "-w"]).arg(&file);
        let log = dir.path().join("dumpcap.log");
        Process::log_to(&mut dumpcap, &log)?;
        let mut dumpcap = lab.spawn("switch", dumpcap)?;
        // dumpcap prints the name of its file when its socket is open.
        eventually("dumpcap captures", || {
            fs::read_to_string(&log).is_ok_and(|output_text| output_text.contains("File: "))
        })?;

        self.run(&lab, &dir)?;
        // Any frame of the session may be lost by a fault, so a frame of another protocol marks the end.
        RawSocket::open_in(&lab, "cn0")?.send(&END)?;
        let end = |file: &[u8]| {
            let frames = frames(file).ok()?;
            frames.into_iter().find(|(_, frame)| frame.bytes.starts_with(&END)).map(|(at, _)| at)
        };
        let length = eventually("the end is captured", || fs::read(&file).ok().and_then(|file| end(&file)))?;
        dumpcap.signal(Signal::SIGINT)?;
        dumpcap.wait(LIMIT)?;
        let mut captured = fs::read(&file)?;
        captured.truncate(length);
        Captured::new(captured)
    }

    fn run(self, lab: &Lab, dir: &TempDir) -> Result<(), Failed> {
        let key = dir.path().join("key");
        fs::write(&key, KEY)?;
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
        let of = |seed: u64| self.faults.map(|plan| format!("{plan},dir=tx,seed={seed}"));
        let mut more = Vec::new();
        more.extend(of(5).map(|faults| ["--faults".to_owned(), faults]));
        more.extend(self.sealed.then(|| ["--key-file".into(), key.display().to_string()]));
        more.extend(self.congestion.then(|| ["--congestion-threshold".into(), "4".into()]));
        more.extend(self.echo.then(|| ["--echo".into(), "true".into()]));
        more.extend(self.priority.map(|class| ["--priority".into(), class.to_string()]));
        let more: Vec<&str> = more.iter().flatten().map(String::as_str).collect();
        let node = MemoryNode::start_with(lab, "mn0", Backend::Packet, &[(CN, BYTES)], dir.path(), &more)?;

        let faults = of(6).map(|faults| faults.parse()).transpose()?;
        let extras = Middlewares { faults, ..Middlewares::default() };
        let config = LinkConfig {
            backend: Backend::Packet,
            busy_poll: false,
            priority: self.priority,
            ..LinkConfig::new("cn0")
        };
        let link = lab.home_of("cn0")?.enter(|| open_with(&config, &extras))??;
        let station = SessionSettings {
            own: CN,
            ethertype: ETHERTYPE_DEFAULT,
            max_frame: link.info().max_frame,
            streams: STREAMS_DEFAULT,
            instance: 0x5EED,
            key: self.sealed.then(|| KEY.as_bytes().into()),
            keys: SessionKeys::none(cxloe_link::keys::SYSTEM),
            timing: Timing { ping_every: Duration::from_millis(5), ..Timing::default() },
        };
        let wait = WaitStyle::Adaptive { spin: Duration::from_micros(50) };
        let mut port = Port::new(link, Engine::new(CacheConfig::OFF), wait);
        if self.congestion {
            // Without features, a frame carries one line. Frames of many lines would leave the queue too
            // short for a signal.
            port.engine().set_features(0);
        }
        let now = port.clock().now();
        let peer = port.engine().add_peer(station.requester(MN), now);
        // The route covers twice the memory node's memory: accesses beyond that memory give a Fault.
        port.engine().add_route(Route::direct(
            0,
            2 * BYTES,
            RouteTarget { peer, cmem: 0, incarnation: None, mirror: None },
        ))?;
        port.connect(LIMIT)?;
        self.work(lab, &mut port)?;
        port.close()?;
        ensure(node.end()?.success(), "mn-server failed")
    }

    fn work(self, lab: &Lab, port: &mut Port) -> Result<(), Failed> {
        let line = |i: u64| std::array::from_fn(|at| (i as u8).wrapping_mul(31).wrapping_add(at as u8));
        let lines: Vec<(u64, [u8; 64])> = (0..LINES).map(|i| (i * 192, line(i))).collect();
        let hpas: Vec<u64> = lines.iter().map(|(hpa, _)| *hpa).collect();
        if self.congestion {
            port.set_depth(400);
            lab.home_of("cn0")?.enter(|| -> Result<(), Failed> {
                let vector = PfcVector { enabled: 8, quanta: [0, 0, 0, 77, 0, 0, 0, 0] };
                Ok(PfcSocket::open("cn0")?.send(&vector)?)
            })??;
        }
        for (hpa, line) in &lines {
            port.write(*hpa, line)?;
            ensure(port.read(*hpa)? == *line, "another line than was written")?;
        }
        let mut read = vec![[0; 64]; lines.len()];
        // The requests are repeated until the memory node has signalled a long queue. A fast memory node needs several
        // attempts.
        for _ in 0..100 {
            port.write_batch(&lines)?;
            port.read_batch(&hpas, &mut read)?;
            ensure(lines.iter().zip(&read).all(|((_, w), r)| w == r), "another line than was written")?;
            if !self.congestion || port.engine().sessions()[0].counters.congestion > 0 {
                break;
            }
        }
        let bytes: Vec<u8> = (0..64 << 10).map(|i: u32| (i / 64) as u8).collect();
        let mut back = vec![0; bytes.len()];
        port.write_bytes(BYTES / 2, &bytes)?;
        port.read_bytes(BYTES / 2, &mut back)?;
        ensure(bytes == back, "other bytes than were written")?;
        ensure(port.read(BYTES + 64).is_err(), "beyond what the memory node gives")?;
        let pinged = RawSocket::open_in(lab, "cn0")?;
        eventually("an idle session is asked for a sign of life", || {
            let _ = port.idle();
            heard(&pinged, FrameCommand::Pong)
        })?;
        if self.echo {
            let message = Message::Echo { reply_len: 100, reply_count: 3 };
            let header = Header {
                dst: MN,
                src: CN,
                ethertype: ETHERTYPE_DEFAULT,
                command: 0,
                seq: 0,
                axi: Default::default(),
                addr: 0,
            };
            let mut frame = vec![0; frame_len(message.body_len(), 0)];
            message.emit(&header, &mut frame);
            pinged.send(&frame)?;
            eventually("echoes come back", || heard(&pinged, FrameCommand::EchoReply))?;
        }
        Ok(())
    }
}

/// True if a frame with `command` is among those received so far.
fn heard(raw: &RawSocket, command: FrameCommand) -> bool {
    let frames = std::iter::from_fn(|| raw.receive(Duration::from_millis(1)).ok().flatten()).take(1000);
    frames.into_iter().any(|frame| frame.bytes.get(14) == Some(&(command as u8)))
}
