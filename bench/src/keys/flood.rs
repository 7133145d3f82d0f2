//! A sender of forged Hellos at a given rate.

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

/// Number of distinct Hellos, sent in rotation: more than the memory node's limit on pending handshakes.
const DIFFERENT: u64 = 512;
/// Interval between bursts of Hellos.
const TICK: Duration = Duration::from_micros(500);

/// Kind of Hellos in a flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FloodKind {
    /// No Hellos: the baseline.
    None,
    /// Genuine Hellos to an unused address: the cost of the frames alone.
    Elsewhere,
    /// Hellos from a sender without the memory node's public key.
    WrongMac1,
    /// Hellos from invented addresses, by a sender that knows the memory node's public key.
    Strangers,
    /// Hellos from the compute node's address, by a sender that knows the memory node's public key.
    InItsName,
}

impl FloodKind {
    /// All kinds, in the order of the report.
    pub const ALL: [FloodKind; 5] = [
        FloodKind::None,
        FloodKind::Elsewhere,
        FloodKind::WrongMac1,
        FloodKind::Strangers,
        FloodKind::InItsName,
    ];

    pub fn aim(self) -> Aim {
        match self {
            FloodKind::None => Aim::Paused,
            FloodKind::Elsewhere => Aim::Nobody,
            FloodKind::WrongMac1 | FloodKind::Strangers | FloodKind::InItsName => Aim::MemoryNode,
        }
    }

    /// Description of the flood for reports.
    pub fn words(self) -> &'static str {
        match self {
            FloodKind::None => "no flood",
            FloodKind::Elsewhere => "Hellos to nobody",
            FloodKind::WrongMac1 => "Hellos with a wrong mac1",
            FloodKind::Strangers => "Hellos of strangers, mac1 right",
            FloodKind::InItsName => "Hellos in the node's name, mac1 right",
        }
    }
}

/// Link that only stores the frames it is to send.
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

struct DiscardCompletions;

impl Completions for DiscardCompletions {
    fn read(&mut self, _: u64, _: &[u8]) {}
    fn written(&mut self, _: u64) {}
    fn failed(&mut self, _: u64, _: OpError, _: &[u8]) {}
}

/// Hello with source address `from`, made with the key `own`, for the memory node at `to` with the public key
/// `mn`. Different values of `number` give different Hellos.
///
/// # Errors
/// Returns [`KeysError::NoHello`] if the handshake sends none.
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
    requester.poll(now, &mut frames, &mut DiscardCompletions);
    frames.sent.pop().filter(|hello| hello.len() == HELLO_FRAME_LEN).ok_or(KeysError::NoHello)
}

/// Hellos of this kind for the memory node with the public key `mn`; all differ.
pub fn hellos(kind: FloodKind, mn: PublicKey) -> Result<Vec<Vec<u8>>, KeysError> {
    let own = Arc::new(NodeKey::generate(SYSTEM));
    let one = |number: u64| {
        let invented = Mac([2, 0xF0, 0, 0, (number >> 8) as u8, number as u8]);
        let from = if kind == FloodKind::InItsName { CN } else { invented };
        let mut frame = hello((from, MN), mn, &own, number)?;
        match kind {
            FloodKind::WrongMac1 => frame[MAC1_AT] ^= 1,
            FloodKind::None | FloodKind::Elsewhere | FloodKind::Strangers | FloodKind::InItsName => {}
        }
        Ok(frame)
    };
    (0..DIFFERENT).map(one).collect()
}

/// Destination of a flood's Hellos.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Aim {
    /// No destination: the flood pauses.
    Paused,
    /// An unused address; the frames differ from those to the memory node only in the address's six bytes.
    Nobody,
    /// The memory node that is measured.
    MemoryNode,
}

/// State shared by the flood's thread and its owner.
#[derive(Default)]
struct FloodState {
    stop: AtomicBool,
    /// Present [`Aim`], as a number.
    aim: AtomicU8,
    sent: AtomicU64,
}

/// Running flood, sent by a thread of its own; ended on drop.
pub struct Flood {
    shared: Arc<FloodState>,
    thread: Option<JoinHandle<Result<(), KeysError>>>,
    started: Instant,
}

impl Flood {
    /// Starts sending `hellos` in rotation, `rate` per second, to an unused address at first.
    ///
    /// # Errors
    /// Fails if no link can be opened.
    pub fn start(site: &Site, hellos: &[Vec<u8>], rate: u64) -> Result<Flood, KeysError> {
        let shared = Arc::new(FloodState::default());
        let mut link = site.enter(|| open(&site.link()))??;
        let (its, hellos) = (Arc::clone(&shared), hellos.to_vec());
        let thread = Some(std::thread::spawn(move || flood(&mut *link, &hellos, rate, &its)));
        let flood = Flood { shared, thread, started: Instant::now() };
        flood.aim(Aim::Nobody);
        Ok(flood)
    }

    /// Changes the destination.
    pub fn aim(&self, aim: Aim) {
        self.shared.aim.store(aim as u8, Ordering::Relaxed);
    }

    /// Ends the flood; returns the Hellos sent per second.
    ///
    /// # Errors
    /// Returns the error that ended the flood early, if any.
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

fn flood(link: &mut dyn Link, hellos: &[Vec<u8>], rate: u64, shared: &FloodState) -> Result<(), KeysError> {
    let (started, mut done) = (Instant::now(), 0_u64);
    while !shared.stop.load(Ordering::Relaxed) {
        // After a delay of this thread, at most a tenth of a second's worth of late Hellos is still sent.
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
        // Answers to the forged Hellos are discarded.
        link.receive(64, &mut |_, _| {})?;
        std::thread::sleep(TICK);
    }
    Ok(())
}
