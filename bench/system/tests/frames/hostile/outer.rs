//! Invalid outer headers around a frame inside UDP: wrong addresses, ports, lengths, and fragments.

use std::net::{Ipv4Addr, SocketAddrV4};

use cxloe_mn::admin::client::ask;
use cxloe_system::text;

use super::work::{Numbers, Work};
use super::*;

/// Inner frames that would have an effect if they were accepted from another address.
type Harm<'a> = Box<dyn FnMut() -> Vec<u8> + 'a>;

/// Packets like those with the valid headers `right`, with one header field changed.
fn attacks_on_outer<'a>(right: Outer, mut harm: Harm<'a>) -> impl FnMut(&str, u64) -> Vec<u8> + 'a {
    let mut numbers = Numbers(21);
    move |what, n| {
        let frame = harm();
        let (host, port) = (*right.from.ip(), right.from.port());
        let from = |ip, port| Outer { from: SocketAddrV4::new(ip, port), ..right };
        let mut packet = right.around(&frame);
        let other = numbers.below(250) as u8;
        match what {
            FORGED => {
                let [a, b, c, _] = host.octets();
                return from(Ipv4Addr::new(a, b, c, 3 + other), port).around(&frame);
            }
            WRONG_PORTS if n % 2 == 0 => return from(host, port ^ (1 + u16::from(other))).around(&frame),
            WRONG_PORTS => {
                let to = SocketAddrV4::new(*right.to.ip(), right.to.port() ^ (1 + u16::from(other)));
                return Outer { to, ..right }.around(&frame);
            }
            CUT => packet.truncate(14 + numbers.below(Outer::LEN - 14 + 14)),
            WRONG_LENGTHS => {
                // The frame has no padding, so that a shorter datagram truncates the frame.
                let body = cxloe_wire::frame::body_len(&frame).unwrap_or(0);
                packet = right.around(&frame[..body + Seal::PLAIN_LEN]);
                let length = if n % 4 < 2 { numbers.next() as u16 } else { numbers.below(64) as u16 };
                let at = if n % 2 == 0 { 16 } else { 38 };
                // A random length may equal the valid length; it is then changed.
                let right = u16::from_be_bytes([packet[at], packet[at + 1]]);
                let wrong = if length == right { right ^ 1 } else { length };
                packet[at..at + 2].copy_from_slice(&wrong.to_be_bytes());
                Outer::sum(&mut packet);
            }
            FRAGMENTS => {
                // Fragment offset and flag of the first fragment, of a middle fragment, or of the last fragment.
                let word = [0x2000, 0x2000 | (1 + u16::from(other)), 1 + u16::from(other)][n as usize % 3];
                packet[20..22].copy_from_slice(&word.to_be_bytes());
                packet[18..20].copy_from_slice(&(n as u16).to_be_bytes());
                Outer::sum(&mut packet);
            }
            WRONG_CHECKSUMS => packet[24 + numbers.below(2)] ^= 1 + other % 255,
            WRONG_PROTOCOLS => {
                // Sets another protocol, another IP version, or another header length.
                match n % 3 {
                    0 => packet[23] = [1, 6, 136, 0][other as usize % 4],
                    1 => packet[14] = [0x05, 0x35, 0x65, 0xF5][other as usize % 4],
                    _ => packet[14] = 0x40 | [0, 1, 4, 15][other as usize % 4],
                }
                Outer::sum(&mut packet);
            }
            _ => {
                packet.truncate(14);
                let length = numbers.below(1486);
                packet.extend(numbers.bytes(length));
            }
        }
        packet
    }
}

const FORGED: &str = "forged outer addresses";
const WRONG_PORTS: &str = "wrong outer ports";
const CUT: &str = "cut-off outer headers";
const WRONG_LENGTHS: &str = "wrong outer lengths";
const FRAGMENTS: &str = "fragments";
const WRONG_CHECKSUMS: &str = "wrong outer checksums";
const WRONG_PROTOCOLS: &str = "other protocols";
const RANDOM: &str = "random packets";

const ALL: [&str; 8] =
    [FORGED, WRONG_PORTS, CUT, WRONG_LENGTHS, FRAGMENTS, WRONG_CHECKSUMS, WRONG_PROTOCOLS, RANDOM];

/// Sends packets of all kinds from `interface`, while the compute node works.
fn deceive(lab: &Lab, interface: &str, right: Outer, harm: Harm<'_>, work: &Work) -> Outcome {
    let raw = RawSocket::open_in(lab, interface)?;
    let mut make = attacks_on_outer(right, harm);
    for what in ALL {
        for number in 0..FLOOD / 4 {
            raw.send(&make(what, number))?;
        }
        work.goes_on(what)?;
    }
    Ok(())
}

/// Session id in the memory node's answer to a Hello, captured at `tap`.
fn session_at(tap: &RawSocket) -> Result<u64, Failed> {
    eventually("a HelloAck passes", || {
        let seen = tap.receive(Duration::from_millis(20)).ok()??;
        match Message::parse(Outer::inner(&seen.bytes)?) {
            Ok((_, Message::HelloAck(ack))) if ack.status == HelloStatus::Ok => Some(ack.session),
            _ => None,
        }
    })
}

/// A neighbour that has the session id, but other outer addresses, can neither end nor change the session.
pub fn headers_deceive_nobody(over: LinkKind) -> Outcome {
    let lab = lab_for(over)?;
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("mn.sock");
    let more = ["--socket", text(&socket)];
    let node = MemoryNode::start_with(&lab, "mn0", over, &[(CN, REGION)], folder.path(), &more)?;
    // The session id is read from captured frames. Frames of an AF_XDP socket cannot be captured: on this kind of link
    // the test guesses the id.
    let tap = RawSocket::open_in(&lab, "cn0")?;
    let mut port = port(link_on(&lab, &config_to(over, MN))?, MN, HPA, REGION, CacheConfig::OFF)?;
    port.connect(LIMIT)?;
    let session = if over.backend == Backend::Xdp { 1 } else { session_at(&tap)? };
    drop(tap);
    let work = Work::start(port);
    work.goes_on("nothing yet")?;
    let (before, cn, mn) = (node.resident_kib()?, CN_AT.parse()?, MN_AT.parse()?);
    let mut seq = 0;
    let bye = |from: Mac, to: Mac, direction| {
        move || {
            seq += 1;
            in_guessed_session(from, to, direction, &Message::Bye, seq, session)
        }
    };
    let to_mn = Outer { next: MN, from: cn, to: mn };
    deceive(&lab, "cn0", to_mn, Box::new(bye(CN, MN, Direction::ToMn)), &work)?;
    let to_cn = Outer { next: CN, from: mn, to: cn };
    deceive(&lab, "mn0", to_cn, Box::new(bye(MN, CN, Direction::ToCn)), &work)?;
    let after = node.resident_kib()?;
    ensure(after <= before + GROWTH_KIB, format!("mn-server grew from {before} to {after} KiB"))?;
    let ended = work.end()?;
    let session = ended.session;
    ensure((session.sessions, session.faults) == (1, 0), format!("a session was lost: {session:?}"))?;
    let status = ask(&socket).map_err(|error| error.to_string())?;
    let theirs = status.workers.first().ok_or("no worker")?.report.link;
    for link in [ended.link, theirs] {
        // The link counts forged frames that fit into its queue: all frames with forged addresses, and half of the
        // frames with wrong ports.
        ensure(link.rx_forged > FLOOD / 8, format!("{link:?}"))?;
    }
    ensure(node.end()?.code() == Some(0), "mn-server did not end in order")
}
