//! An unauthorised station in the network. It receives every frame, and sends arbitrary frames from any address: forged
//! frames with valid addresses, frames of earlier sessions, floods of Hellos, and session requests with an unregistered
//! key. No frame from this station may have any effect except a delay.
//!
//! | file | |
//! |---|---|
//! | here | frames that the station sends |
//! | `caller` | a session requested with an unregistered key |
//! | `tap` | recorder of frames |
//! | `nonces` | check of the counters in sealed frames, and a planted fault for it to find |

mod caller;
mod nonces;
mod tap;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cxloe_net::Link;
use cxloe_net::sim::{PortConfig, SimLink, SimNetwork};
use cxloe_wire::frame::keyed::{CALL_AT, HELLO_FRAME_LEN, MAC_LEN, MAC1_AT, MAC2_AT};
use cxloe_wire::frame::{
    Axi, Command, Direction, ETHERTYPE_DEFAULT, Gcm, HEADER_LEN, Header, Hello, LINE_SIZE, Mac, Message,
    Seal, Space, field,
};
use cxloe_wire::random::Random;
use cxloe_wire::session::HelloMac;
use cxloe_wire::time::Time;

use crate::node_keys::key_of;
use crate::planted_fault::PlantedFault;
use crate::violation::InvariantViolation;
use caller::Caller;
use tap::Tap;

/// MAC address of the intruder's own port; frames with other source addresses are sent from there too.
const OWN: Mac = Mac([2, 0xEE, 0, 0, 0, 1]);

/// An unauthorised station, with its recorder of all frames.
pub(crate) struct Intruder {
    link: SimLink,
    tap: Arc<Mutex<Tap>>,
    random: Random,
    caller: Option<Caller>,
}

impl Intruder {
    /// Attaches the station to `net`. Unless `acts` is set, the station only checks that no nonce is used
    /// twice.
    pub fn new(net: &SimNetwork, acts: bool, mistake: Option<PlantedFault>, random: Random) -> Intruder {
        let sets_back = mistake == Some(PlantedFault::RepeatsNonces);
        let tap = Arc::new(Mutex::new(Tap::new(OWN, acts, sets_back)));
        let heard = Arc::clone(&tap);
        net.on_send(move |from, frame| {
            heard.lock().unwrap_or_else(PoisonError::into_inner).capture(from, frame)
        });
        // The port accepts the largest frames that nodes send.
        let port = PortConfig { mtu: 9000, ..PortConfig::default() };
        Intruder { link: net.attach(OWN, port).expect("a new address"), tap, random, caller: None }
    }

    fn tap(&self) -> MutexGuard<'_, Tap> {
        self.tap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&mut self, frame: &[u8]) {
        let tx = self.link.transmit();
        if let Some(slot) = tx.slot(frame.len()) {
            slot.copy_from_slice(frame);
            tx.commit();
        }
    }

    fn flush(&mut self) {
        self.link.flush().expect("a simulated link");
    }

    /// Sends recorded frames again, unchanged; returns their number.
    pub fn replay(&mut self) -> u64 {
        let count = 1 + self.random.below(64);
        let sent = (0..count).filter(|_| {
            // A copy, because recorder and generator cannot be borrowed at the same time.
            let mut random = self.random.clone();
            let frame = self.tap().any(&mut random);
            self.random = random;
            frame.inspect(|frame| self.send(frame)).is_some()
        });
        let sent = sent.count() as u64;
        self.flush();
        sent
    }

    /// Sends altered copies of recent frames; returns their number.
    pub fn forge(&mut self) -> u64 {
        let count = 1 + self.random.below(64);
        let mut sent = 0;
        for _ in 0..count {
            let mut random = self.random.clone();
            let frame = self.tap().any_recent(&mut random);
            self.random = random;
            if let Some(mut frame) = frame {
                self.alter(&mut frame);
                self.send(&frame);
                sent += 1;
            }
        }
        self.flush();
        sent
    }

    /// Changes a frame at random, except for its MAC addresses.
    fn alter(&mut self, frame: &mut Vec<u8>) {
        const CONTROL: [Command; 7] = [
            Command::Bye,
            Command::ByeAck,
            Command::Ping,
            Command::Pong,
            Command::Start,
            Command::StartAck,
            Command::Congestion,
        ];
        let r = &mut self.random;
        let content = HEADER_LEN.min(frame.len());
        match r.below(6) {
            // The content and the tag become random.
            0 => fill(&mut frame[content..], r),
            // The sequence number becomes a later one, with random content.
            1 => {
                edit(frame, |header| header.seq = header.seq.wrapping_add(1 + r.below(4) as u16));
                fill(&mut frame[content..], r);
            }
            // The line address becomes another one.
            2 => edit(frame, |header| {
                header.addr = (header.addr & !0xFF_FFFF) | (r.below(1 << 10) * LINE_SIZE as u64);
            }),
            // One bit is flipped.
            3 => {
                let at = field::COMMAND + r.below((frame.len() - field::COMMAND) as u64) as usize;
                frame[at] ^= 1 << r.below(8);
            }
            // The counter and the tag become random.
            4 => {
                let at = frame.len().saturating_sub(Gcm::TAG_LEN + Gcm::COUNTER_LEN);
                fill(&mut frame[at.max(content)..], r);
            }
            // The command becomes another one: end or start of a session, keep-alive, congestion.
            _ => {
                let command = CONTROL[r.below(CONTROL.len() as u64) as usize];
                edit(frame, |header| header.command = command as u8);
                frame.resize(HEADER_LEN + 40, 0);
                fill(&mut frame[HEADER_LEN..], r);
            }
        }
    }

    /// Floods the memory node at `mn` with Hellos, from many addresses or from one of `cns`, with valid or invalid
    /// mac1. Returns the number of Hellos, or 0 if no genuine Hello was recorded yet: the forged ones imitate a genuine
    /// one.
    pub fn flood(&mut self, mn: Mac, cns: &[Mac]) -> u64 {
        let Some((genuine, hello)) = self.tap().hello_to(mn, None) else { return 0 };
        let mac1 = HelloMac::new(&key_of(mn).public());
        let r = &mut self.random;
        let count = 80 + r.below(120);
        let (right, named) = (r.below(4) > 0, r.below(3) == 0);
        let victim = cns[r.below(cns.len() as u64) as usize];
        for _ in 0..count {
            let r = &mut self.random;
            let invented = r.bits().to_be_bytes();
            let from = if named { victim } else { Mac([2, 0xEF, invented[0], invented[1], invented[2], 1]) };
            let hello = Hello { nonce: r.bits() | 1, instance: r.bits(), ..hello };
            let mut frame = self::hello(from, mn, &hello, &genuine);
            fill(&mut frame[CALL_AT..MAC1_AT], r);
            let mac1 = if right { mac1.of(&frame[..MAC1_AT]) } else { [r.bits() as u8; MAC_LEN] };
            frame[MAC1_AT..MAC2_AT].copy_from_slice(&mac1);
            fill(&mut frame[MAC2_AT..], r);
            self.send(&frame);
        }
        self.flush();
        count
    }

    /// Begins a request for a session with the memory node at `mn` from the address of `cn`, with an
    /// unregistered key or, if `insecure`, without one. Returns false if no Hello of `cn` was recorded yet.
    pub fn call(&mut self, cn: Mac, mn: Mac, max_frame: usize, insecure: bool, now: Time) -> bool {
        // The request has the parameters of the compute node's own Hello, so that only the key is wrong.
        let Some((_, hello)) = self.tap().hello_to(mn, Some(cn)) else { return false };
        self.tap().listen_for(Some((mn, cn)));
        let seed = (insecure, self.random.bits());
        self.caller = Some(Caller::new(cn, mn, hello.instance, max_frame, seed, now));
        true
    }

    /// Stops the intruder's request for a session.
    pub fn stop(&mut self) {
        self.caller = None;
        self.tap().listen_for(None);
    }

    /// Returns true while a request for a session is in progress.
    pub fn is_calling(&self) -> bool {
        self.caller.is_some()
    }

    /// Returns the time of the intruder's next action.
    pub fn deadline(&self) -> Option<Time> {
        self.caller.as_ref().map(Caller::deadline)
    }

    /// Performs the actions that are due, and reports what the recorder has found.
    ///
    /// # Errors
    /// Returns a violation: a session with an unregistered key, or a nonce used twice.
    pub fn work(&mut self, now: Time) -> Result<(), InvariantViolation> {
        if let Some(why) = self.tap().broken() {
            return Err(InvariantViolation::Rule(why));
        }
        let overheard = if self.caller.is_some() { self.tap().overheard() } else { Vec::new() };
        let Some(caller) = &mut self.caller else { return Ok(()) };
        caller.work(overheard, now, self.link.transmit())?;
        let is_over = caller.is_over(now);
        self.flush();
        if is_over {
            self.stop();
        }
        Ok(())
    }
}

/// Applies `change` to a frame's header; does nothing if the header cannot be parsed.
fn edit(frame: &mut [u8], change: impl FnOnce(&mut Header)) {
    if let Some(mut header) = Header::parse(frame) {
        change(&mut header);
        header.emit(frame);
    }
}

fn fill(bytes: &mut [u8], random: &mut Random) {
    for part in bytes.chunks_mut(8) {
        let number = random.bits().to_be_bytes();
        part.copy_from_slice(&number[..part.len()]);
    }
}

/// Returns a Hello of version 2 from `from`, as long as a genuine one and with a valid checksum. Everything
/// that `hello` does not determine is copied from the genuine Hello.
fn hello(from: Mac, mn: Mac, hello: &Hello, genuine: &[u8]) -> Vec<u8> {
    let mut frame = genuine.to_vec();
    frame.resize(HELLO_FRAME_LEN, 0);
    let header = Header {
        dst: mn,
        src: from,
        ethertype: ETHERTYPE_DEFAULT,
        command: Command::Hello as u8,
        seq: 0,
        axi: Axi { stream: 0, tag: 0 },
        addr: 0,
    };
    let message = Message::Hello(*hello);
    message.emit(&header, &mut frame);
    let body = message.body_len();
    Seal::OUTSIDE.seal(Direction::ToMn, Space::Control, &mut frame, body, 0);
    frame
}
