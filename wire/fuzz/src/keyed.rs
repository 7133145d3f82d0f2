//! Handshake between nodes' keys. The input changes a genuine Hello or HelloAck; a changed frame must not
//! lead to a session, nor make either end panic.

use std::sync::{Arc, OnceLock};

use cxloe_wire::Transmit;
use cxloe_wire::frame::keyed::MAC2_AT;
use cxloe_wire::frame::*;
use cxloe_wire::session::{
    Completions, Identity, KeyPair, Memory, NodeKey, OpError, Requester, RequesterConfig, Responder,
    ResponderConfig, Timing,
};
use cxloe_wire::time::Time;

const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const MN: Mac = Mac([2, 0, 0, 0, 0, 2]);
const NOW: Time = Time(1_000);

#[derive(Default)]
struct SentFrames(Vec<Vec<u8>>, Vec<u8>);

impl Transmit for SentFrames {
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        self.1 = vec![0xee; len];
        Some(&mut self.1)
    }

    fn commit(&mut self) {
        self.0.push(std::mem::take(&mut self.1));
    }
}

struct DiscardCompletions;

impl Completions for DiscardCompletions {
    fn read(&mut self, _: u64, _: &[u8]) {}
    fn written(&mut self, _: u64) {}
    fn failed(&mut self, _: u64, _: OpError, _: &[u8]) {}
}

impl Memory for DiscardCompletions {
    fn read(&mut self, _: u64, _: u64, _: &mut [u8]) -> Result<(), FaultStatus> {
        panic!("there is no session")
    }

    fn write(&mut self, _: u64, _: u64, _: u64, _: &[u8]) -> Result<(), FaultStatus> {
        panic!("there is no session")
    }

    fn admits(&mut self, _: u64) -> bool {
        true
    }

    fn key(&mut self, cn: u64) -> Option<PublicKey> {
        (cn == CN.to_u64()).then(|| keys().0.public())
    }
}

fn keys() -> &'static (Arc<NodeKey>, Arc<NodeKey>) {
    static KEYS: OnceLock<(Arc<NodeKey>, Arc<NodeKey>)> = OnceLock::new();
    KEYS.get_or_init(|| (NodeKey::from_bytes([1; 32]).into(), NodeKey::from_bytes([2; 32]).into()))
}

fn responder() -> Responder {
    Responder::new(ResponderConfig {
        node_key: Some(keys().1.clone()),
        ..ResponderConfig::new(MN, 1514, 7, 8)
    })
}

/// Makes a CN that has sent a Hello. Returns the CN and the Hello.
fn requester() -> (Requester, Vec<u8>) {
    let (own, mn) = keys();
    let mut requester = Requester::new(RequesterConfig {
        identity: Identity { own: CN, peer: MN, ethertype: ETHERTYPE_DEFAULT },
        max_frame: 1514,
        streams: 2,
        instance: 5,
        key: None,
        keys: Some(KeyPair { own: own.clone(), peer: mn.public(), epoch_ns: 1 }),
        timing: Timing::default(),
        seed: 6.into(),
    });
    let mut sent = SentFrames::default();
    requester.connect(NOW);
    let job = requester.poll_handshake().expect("message 1 is to be made");
    requester.handshake_done(job.run(), NOW);
    requester.poll(NOW, &mut sent, &mut DiscardCompletions);
    (requester, sent.0.pop().expect("a Hello"))
}

/// Passes a Hello to the responder and returns the answer, if any.
fn answer(responder: &mut Responder, hello: &mut [u8]) -> Option<Vec<u8>> {
    let mut sent = SentFrames::default();
    responder.handle(hello, NOW, &mut DiscardCompletions, &mut sent);
    while let Some(job) = responder.poll_handshake() {
        responder.handshake_done(job.run(), NOW, &mut DiscardCompletions, &mut sent);
    }
    assert_eq!(responder.sessions(), 0);
    sent.0.pop()
}

/// Returns Hello and HelloAck of an unchanged handshake.
fn genuine() -> &'static (Vec<u8>, Vec<u8>) {
    static GENUINE: OnceLock<(Vec<u8>, Vec<u8>)> = OnceLock::new();
    GENUINE.get_or_init(|| {
        let (_, hello) = requester();
        let ack = answer(&mut responder(), &mut hello.clone()).expect("a HelloAck");
        (hello, ack)
    })
}

/// Mixes the input into one of the two frames; its first three bytes choose the frame, the offset and the
/// length.
pub fn keyed(data: &[u8]) {
    let Some(([which, at, cut], mix)) = data.split_first_chunk::<3>() else { return };
    let (hello, ack) = genuine();
    let original = if which & 1 == 0 { hello } else { ack };
    let mut frame = original.clone();
    frame.iter_mut().skip(usize::from(*at)).zip(mix).for_each(|(byte, mix)| *byte ^= mix);
    frame.truncate(frame.len() - usize::from(*cut) % 64);
    if which & 1 == 0 {
        // The responder checks mac2 only while many handshakes are under way, so a change of mac2 is not
        // expected to be detected here.
        let changed = frame.get(..MAC2_AT) != original.get(..MAC2_AT) || frame.len() < original.len();
        let offered = answer(&mut responder(), &mut frame).and_then(|answer| {
            Message::parse(&answer).ok().map(
                |(_, message)| matches!(message, Message::HelloAck(ack) if ack.status == HelloStatus::Ok),
            )
        });
        assert!(
            !(changed && offered == Some(true) && frame[26] == 2),
            "a changed Hello was answered by an offer"
        );
        return;
    }
    let (mut requester, _) = requester();
    let changed = frame != *ack;
    let mut sent = SentFrames::default();
    requester.handle(&mut frame, NOW, &mut sent, &mut DiscardCompletions);
    while let Some(job) = requester.poll_handshake() {
        requester.handshake_done(job.run(), NOW);
    }
    requester.poll(NOW, &mut sent, &mut DiscardCompletions);
    let started = sent.0.iter().any(|frame| frame[14] == Command::Start as u8);
    assert_eq!(started, !changed, "who is answered by the other node, and nobody else, starts the session");
}
