//! Somebody at the network whose key nobody knows. It hears every frame and sends what it likes, in any name: forged frames
//! with the right addresses, frames of earlier sessions, floods of Hellos, and calls under a key of its own. None of it may
//! have any effect but the loss of time.
//!
//! | file | |
//! |---|---|
//! | here | what it sends |
//! | `caller` | a session asked for under an unknown key |
//! | `tap` | what it hears |
//! | `nonces` | which numbers sealed frames bear, and a mistake in them |

mod caller;
mod nonces;
mod tap;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cxloe_link::Link;
use cxloe_link::sim::{PortConfig, SimLink, SimNetwork};
use cxloe_wire::frame::keyed::{CALL_AT, HELLO_FRAME_LEN, MAC_LEN, MAC1_AT, MAC2_AT};
use cxloe_wire::frame::{
    Axi, Command, Direction, ETHERTYPE_DEFAULT, HEADER_LEN, Header, Hello, Mac, Message, PublicKey, Seal,
    Space,
};
use cxloe_wire::random::Random;
use cxloe_wire::time::Time;
use hmac::{Hmac, KeyInit, Mac as _};
use sha2::{Digest, Sha256};

use crate::broken::Broken;
use crate::mistake::Mistake;
use crate::node_keys::key_of;
use caller::Caller;
use tap::Tap;

/// Its own address.
const OWN: Mac = Mac([2, 0xEE, 0, 0, 0, 1]);

/// A station with no right to anything.
pub(crate) struct Intruder {
    link: SimLink,
    tap: Arc<Mutex<Tap>>,
    random: Random,
    caller: Option<Caller>,
}

impl Intruder {
    /// A station at `net`. Unless it `acts`, it only watches that no nonce comes twice.
    pub fn new(net: &SimNetwork, acts: bool, mistake: Option<Mistake>, random: Random) -> Intruder {
        let sets_back = mistake == Some(Mistake::RepeatsNonces);
        let tap = Arc::new(Mutex::new(Tap::new(OWN, acts, sets_back)));
        let heard = Arc::clone(&tap);
        net.on_send(move |from, frame| {
            heard.lock().unwrap_or_else(PoisonError::into_inner).hear(from, frame)
        });
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

    /// Sends frames of the past, as they were. How many.
    pub fn replay(&mut self) -> u64 {
        let count = 1 + self.random.below(64);
        let sent = (0..count).filter(|_| {
            let mut random = self.random.clone();
            let frame = self.tap().any(&mut random);
            self.random = random;
            frame.inspect(|frame| self.send(frame)).is_some()
        });
        let sent = sent.count() as u64;
        self.flush();
        sent
    }

    /// Sends frames that look like those of sessions. How many.
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

    /// Makes something else of a frame: its addresses stay.
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
            // Another content, and another tag.
            0 => fill(&mut frame[content..], r),
            // The next requests, or answers.
            1 => {
                let seq = u16::from_be_bytes([frame[15], frame[16]]).wrapping_add(1 + r.below(4) as u16);
                frame[15..17].copy_from_slice(&seq.to_be_bytes());
                fill(&mut frame[content..], r);
            }
            // The same for another line.
            2 => frame[22..25].copy_from_slice(&((r.below(1 << 10) * 64) as u32).to_be_bytes()[1..]),
            // A bit of it.
            3 => {
                let at = 14 + r.below(frame.len() as u64 - 14) as usize;
                frame[at] ^= 1 << r.below(8);
            }
            // Another counter behind the tag, another tag.
            4 => {
                let at = frame.len() - frame.len().min(22);
                fill(&mut frame[at.max(content)..], r);
            }
            // The end of a session, the start of one, a sign of life, a cry for less.
            _ => {
                frame[14] = CONTROL[r.below(CONTROL.len() as u64) as usize] as u8;
                frame.resize(HEADER_LEN + 40, 0);
                fill(&mut frame[HEADER_LEN..], r);
            }
        }
    }

    /// Floods the memory node at `mn` with Hellos: from many addresses or from one of `cns`, with a mac1 that is right or not.
    /// How many; none before a Hello was heard.
    pub fn flood(&mut self, mn: Mac, cns: &[Mac]) -> u64 {
        let Some((genuine, hello)) = self.tap().hello_to(mn, None) else { return 0 };
        let key = key_of(mn).public();
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
            let mac1 = if right { mac1(&key, &frame[..MAC1_AT]) } else { [r.bits() as u8; MAC_LEN] };
            frame[MAC1_AT..MAC2_AT].copy_from_slice(&mac1);
            fill(&mut frame[MAC2_AT..], r);
            self.send(&frame);
        }
        self.flush();
        count
    }

    /// Calls the memory node at `mn` as if it were `cn`, under a key of its own, or `insecure` without one. `false` if nothing is known of that CN yet.
    pub fn call(&mut self, cn: Mac, mn: Mac, max_frame: usize, insecure: bool, now: Time) -> bool {
        // Said as the CN itself says it, so that nothing but the key is wrong.
        let Some((_, hello)) = self.tap().hello_to(mn, Some(cn)) else { return false };
        self.tap().listen_for(Some((mn, cn)));
        let seed = (insecure, self.random.bits());
        self.caller = Some(Caller::new(cn, mn, hello.instance, max_frame, seed, now));
        true
    }

    /// It is quiet from now on.
    pub fn rest(&mut self) {
        self.caller = None;
        self.tap().listen_for(None);
    }

    /// Whether it calls somebody.
    pub fn is_calling(&self) -> bool {
        self.caller.is_some()
    }

    /// When it goes on.
    pub fn deadline(&self) -> Option<Time> {
        self.caller.as_ref().map(Caller::deadline)
    }

    /// Does what is due; what must not be is told.
    pub fn work(&mut self, now: Time) -> Result<(), Broken> {
        if let Some(why) = self.tap().broken() {
            return Err(Broken::Rule(why));
        }
        let overheard = if self.caller.is_some() { self.tap().overheard() } else { Vec::new() };
        let Some(caller) = &mut self.caller else { return Ok(()) };
        caller.work(overheard, now, self.link.transmit())?;
        let is_over = caller.is_over(now);
        self.flush();
        if is_over {
            self.rest();
        }
        Ok(())
    }
}

fn fill(bytes: &mut [u8], random: &mut Random) {
    for part in bytes.chunks_mut(8) {
        let number = random.bits().to_be_bytes();
        part.copy_from_slice(&number[..part.len()]);
    }
}

/// A Hello of version 2 from `from`, as long as the genuine one, with its checksum; what stands behind that is as it was.
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

/// mac1, which anybody can make who knows the memory node's public key.
fn mac1(responder: &PublicKey, hello: &[u8]) -> [u8; MAC_LEN] {
    let key = Sha256::new().chain_update(b"mac1----").chain_update(responder.0).finalize();
    let mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&key).expect("HMAC takes keys of any length");
    let whole: [u8; 32] = mac.chain_update(hello).finalize().into_bytes().into();
    std::array::from_fn(|at| whole[at])
}
