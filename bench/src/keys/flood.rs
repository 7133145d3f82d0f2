//! A station that sends forged Hellos at a rate.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cxloe_link::keys::SYSTEM;
use cxloe_link::{Link, open};
use cxloe_wire::Transmit;
use cxloe_wire::frame::keyed::{HELLO_FRAME_LEN, MAC1_AT};
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac, PublicKey};
use cxloe_wire::session::{
    Completions, Identity, KeyPair, NodeKey, OpError, Requester, RequesterConfig, Timing,
};
use cxloe_wire::time::Time;
use serde::Serialize;

use super::KeysError;
use super::site::{CN, MN, NOBODY, Site};

/// Different Hellos that are sent by turns: more than a memory node has handshakes under way.
const DIFFERENT: u64 = 512;
/// How often some are sent.
const TICK: Duration = Duration::from_micros(500);

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Nothing.
    None,
    /// Genuine Hellos to an address that nobody has: what the frames alone cost.
    Elsewhere,
    /// Hellos of who does not know the memory node's key.
    WrongMac1,
    /// Hellos from invented addresses, of who knows the memory node's public key.
    Strangers,
    /// The same in the name of the compute node.
    InItsName,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 5] =
        [Kind::None, Kind::Elsewhere, Kind::WrongMac1, Kind::Strangers, Kind::InItsName];

    /// Where it goes.
    pub fn aim(self) -> Aim {
        match self {
            Kind::None => Aim::Paused,
            Kind::Elsewhere => Aim::Nobody,
            Kind::WrongMac1 | Kind::Strangers | Kind::InItsName => Aim::MemoryNode,
        }
    }

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Kind::None => "no flood",
            Kind::Elsewhere => "Hellos to nobody",
            Kind::WrongMac1 => "Hellos with a wrong mac1",
            Kind::Strangers => "Hellos of strangers, mac1 right",
            Kind::InItsName => "Hellos in the node's name, mac1 right",
        }
    }
}

/// Frames that are kept.
#[derive(Default)]
struct Frames {
    sent: Vec<Vec<u8>>,
    slot: Vec<u8>,
}

impl Transmit for Frames {
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        self.slot = vec![0; len];
        Some(&mut self.slot)
    }

    fn commit(&mut self) {
        self.sent.push(std::mem::take(&mut self.slot));
    }
}

struct Nothing;

impl Completions for Nothing {
    fn read(&mut self, _: u64, _: &[u8]) {}
    fn written(&mut self, _: u64) {}
    fn failed(&mut self, _: u64, _: OpError, _: &[u8]) {}
}

/// The Hello that somebody with the key `own` makes in the name of `from`, for the memory node at `to` with the key `mn`; another
/// one for each `number`.
///
/// # Errors
/// [`KeysError::NoHello`] when none comes of it.
pub fn hello(
    (from, to): (Mac, Mac),
    mn: PublicKey,
    own: &Arc<NodeKey>,
    number: u64,
) -> Result<Vec<u8>, KeysError> {
    let keys = KeyPair { own: Arc::clone(own), peer: mn, epoch_ns: 1_900_000_000_000_000_000 + number };
    let mut requester = Requester::new(RequesterConfig {
        identity: Identity { own: from, peer: to, ethertype: ETHERTYPE_DEFAULT },
        max_frame: 1514,
        streams: 4,
        instance: number,
        key: None,
        keys: Some(keys),
        timing: Timing::default(),
        seed: number.into(),
    });
    let (now, mut frames) = (Time(1), Frames::default());
    requester.connect(now);
    let job = requester.poll_handshake().ok_or(KeysError::NoHello)?;
    requester.handshake_done(job.run(), now);
    requester.poll(now, &mut frames, &mut Nothing);
    frames.sent.pop().filter(|hello| hello.len() == HELLO_FRAME_LEN).ok_or(KeysError::NoHello)
}

/// Different Hellos of a kind.
pub fn hellos(kind: Kind, mn: PublicKey) -> Result<Vec<Vec<u8>>, KeysError> {
    let own = Arc::new(NodeKey::generate(SYSTEM));
    let one = |number: u64| {
        let invented = Mac([2, 0xF0, 0, 0, (number >> 8) as u8, number as u8]);
        let from = if kind == Kind::InItsName { CN } else { invented };
        let mut frame = hello((from, MN), mn, &own, number)?;
        match kind {
            Kind::WrongMac1 => frame[MAC1_AT] ^= 1,
            Kind::None | Kind::Elsewhere | Kind::Strangers | Kind::InItsName => {}
        }
        Ok(frame)
    };
    (0..DIFFERENT).map(one).collect()
}

/// Where a flood goes at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Aim {
    /// Nowhere: it pauses.
    Paused,
    /// To an address that nobody has: the same frames but for six bytes.
    Nobody,
    /// To the memory node.
    MemoryNode,
}

/// What a flood and who started it have in common.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// An [`Aim`].
    aim: AtomicU8,
    sent: AtomicU64,
}

/// A flood that goes on until it is ended.
pub struct Flood {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<(), KeysError>>>,
    started: Instant,
}

impl Flood {
    /// Begins to send `hellos` by turns, `rate` a second, to nobody at first.
    ///
    /// # Errors
    /// No link.
    pub fn start(site: &Site, hellos: &[Vec<u8>], rate: u64) -> Result<Flood, KeysError> {
        let shared = Arc::new(Shared::default());
        let mut link = site.enter(|| open(&site.link()))??;
        let (its, hellos) = (Arc::clone(&shared), hellos.to_vec());
        let thread = Some(std::thread::spawn(move || flood(&mut *link, &hellos, rate, &its)));
        let flood = Flood { shared, thread, started: Instant::now() };
        flood.aim(Aim::Nobody);
        Ok(flood)
    }

    /// Sends them somewhere else from now on.
    pub fn aim(&self, aim: Aim) {
        self.shared.aim.store(aim as u8, Ordering::Relaxed);
    }

    /// Ends it; how many were sent a second.
    ///
    /// # Errors
    /// What ended it before.
    pub fn end(mut self) -> Result<f64, KeysError> {
        let sent = self.shared.sent.load(Ordering::Relaxed);
        let rate = sent as f64 / self.started.elapsed().as_secs_f64();
        self.shared.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(0.0),
            Some(Ok(ended)) => ended.map(|()| rate),
            Some(Err(_)) => Err(KeysError::Thread),
        }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

fn flood(link: &mut dyn Link, hellos: &[Vec<u8>], rate: u64, shared: &Shared) -> Result<(), KeysError> {
    let (started, mut done) = (Instant::now(), 0_u64);
    while !shared.stop.load(Ordering::Relaxed) {
        // What was missed is not made up for without an end: a tenth of a second's worth.
        let due = (started.elapsed().as_nanos() as u64).saturating_mul(rate) / 1_000_000_000;
        done = done.max(due.saturating_sub(rate / 10));
        let aim = shared.aim.load(Ordering::Relaxed);
        if aim == Aim::Paused as u8 {
            done = due;
        }
        while done < due {
            let hello = &hellos[(done % hellos.len() as u64) as usize];
            let tx = link.transmit();
            let Some(slot) = tx.slot(hello.len()) else { break };
            slot.copy_from_slice(hello);
            if aim == Aim::Nobody as u8 {
                slot[..6].copy_from_slice(&NOBODY.0);
            }
            tx.commit();
            done += 1;
            shared.sent.fetch_add(1, Ordering::Relaxed);
        }
        link.flush()?;
        // Answers to the names that are used here are nobody's.
        link.receive(64, &mut |_, _| {})?;
        std::thread::sleep(TICK);
    }
    Ok(())
}
