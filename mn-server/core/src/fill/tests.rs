//! A copier and the responder of another memory node, which exchange frames.

use std::sync::Arc;
use std::time::Duration;

use cxloe_fabric::model::{FillCmem, FillSource, Mapping, Name, Watermark};
use cxloe_wire::Transmit;
use cxloe_wire::frame::{
    ETHERTYPE_DEFAULT, FaultStatus, FrameView, HelloStatus, LINE_SIZE, Mac, Message, PfcVector,
};
use cxloe_wire::machine::{self, StateMachine};
use cxloe_wire::session::{
    Completions, Identity, Memory, OpError, Requester, RequesterConfig, Responder, ResponderConfig, Timing,
};
use cxloe_wire::time::Time;

use super::{FillBoard, FillMemory, Filler, FillerSettings};
use crate::mappings::Mappings;
use crate::pool::Pool;
use crate::service::Service;

const OWN: Mac = Mac([2, 0, 0, 0, 2, 1]);
const SOURCE: Mac = Mac([2, 0, 0, 0, 2, 0]);
const INCARNATION: u64 = 7;
const BASE: u64 = 1 << 30;
const BYTES: usize = 1 << 20;

/// Memory of one node, mapped for the copier or not.
struct Lines {
    bytes: Vec<u8>,
    mapped: bool,
}

impl Lines {
    fn at(&mut self, cn: u64, addr: u64, len: usize) -> Result<&mut [u8], FaultStatus> {
        if !self.mapped || cn != OWN.to_u64() {
            return Err(FaultStatus::Denied);
        }
        let at = (addr - BASE) as usize;
        Ok(&mut self.bytes[at..at + len])
    }
}

impl FillMemory for Lines {
    fn fill(&mut self, cn: u64, addr: u64, data: &[u8]) -> Result<(), FaultStatus> {
        self.at(cn, addr, data.len())?.copy_from_slice(data);
        Ok(())
    }
}

impl Memory for Lines {
    fn read(&mut self, cn: u64, addr: u64, out: &mut [u8]) -> Result<(), FaultStatus> {
        out.copy_from_slice(self.at(cn, addr, out.len())?);
        Ok(())
    }

    fn write(&mut self, _cn: u64, _addr: u64, _mask: u64, _data: &[u8]) -> Result<(), FaultStatus> {
        panic!("a source of a copy is only read");
    }

    fn admits(&mut self, _cn: u64) -> bool {
        true
    }
}

/// Frames in one direction.
#[derive(Default)]
struct Frames {
    slot: Option<Vec<u8>>,
    sent: Vec<Vec<u8>>,
}

impl Transmit for Frames {
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        Some(self.slot.insert(vec![0; len]))
    }

    fn commit(&mut self) {
        self.sent.extend(self.slot.take());
    }
}

fn responder(incarnation: u64, seed: u64) -> Responder {
    Responder::new(ResponderConfig::new(SOURCE, 1514, incarnation, seed))
}

/// Order to copy from the memory node at `source`.
fn order(source: Mac, cmem_base: u64) -> FillCmem {
    let mapping = Mapping {
        cn: OWN.try_into().unwrap(),
        region: Name::new("r").unwrap(),
        cmem_base,
        extent_bytes: BYTES as u64 / 2,
        extents: [1, 2].into_iter().collect(),
        sealed: false,
        cn_key: None,
    };
    let memory_node = Name::new("mn0").unwrap();
    FillCmem { mapping, source: FillSource { memory_node, mac: source, key: None, incarnation: INCARNATION } }
}

struct Pair {
    now: Time,
    board: Arc<FillBoard>,
    filler: Filler,
    target: Lines,
    responder: Responder,
    source: Lines,
}

impl Pair {
    /// Makes a pair whose copier has one order.
    fn new(incarnation: u64) -> Self {
        let board = Arc::new(FillBoard::default());
        board.set_orders(&[order(SOURCE, BASE)]);
        let settings = FillerSettings { worker: 0, instance: 5, epoch_ns: 0 };
        let config = ResponderConfig::new(OWN, 1514, 1, 3);
        let content = (0..BYTES).map(|at| (at / LINE_SIZE * 7 + at) as u8).collect();
        Pair {
            now: Time(1),
            filler: Filler::new(config, settings, Arc::clone(&board)),
            board,
            target: Lines { bytes: vec![0; BYTES], mapped: true },
            responder: responder(incarnation, 11),
            source: Lines { bytes: content, mapped: true },
        }
    }

    /// Has the copier do what is due, and returns its frames.
    fn advance(&mut self) -> Vec<Vec<u8>> {
        let mut out = Frames::default();
        self.filler.follow(self.now, &mut self.target, &mut out);
        self.filler.advance(self.now, &mut self.target, &mut out);
        assert_eq!(machine::check(&self.filler, self.now), Ok(()));
        out.sent
    }

    /// Passes frames to the other node, and returns its answers.
    fn answers(&mut self, mut requests: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let mut back = Frames::default();
        for frame in &mut requests {
            self.responder.handle(frame, self.now, &mut self.source, &mut back);
        }
        self.responder.poll(self.now, &mut self.source, &mut back);
        back.sent
    }

    /// Passes frames to the copier, which may send others at once.
    fn receive(&mut self, mut frames: Vec<Vec<u8>>) {
        let mut out = Frames::default();
        for frame in &mut frames {
            self.filler.handle(frame, self.now, &mut self.target, &mut out);
        }
        self.answers(out.sent);
    }

    fn round(&mut self) {
        let requests = self.advance();
        let answers = self.answers(requests);
        self.receive(answers);
        self.now = self.now + Duration::from_millis(1);
    }

    fn rounds(&mut self, count: usize) {
        (0..count).for_each(|_| self.round());
    }

    /// Runs until the copier has asked for lines.
    fn until_it_reads(&mut self) {
        for _ in 0..100 {
            self.round();
            if self.target.bytes.iter().any(|byte| *byte != 0) {
                return;
            }
        }
        panic!("nothing was read");
    }

    fn done(&self) -> u64 {
        self.board.progress().iter().map(|progress| progress.done).sum()
    }

    fn is_copied(&self) -> bool {
        self.target.bytes == self.source.bytes
    }
}

/// Number of lines that frames ask for.
fn asked(frames: &[Vec<u8>]) -> usize {
    let lines = |frame: &Vec<u8>| match FrameView::new_checked(&frame[..]).unwrap().message() {
        Ok(Message::BurstReadReq { lines }) => usize::from(lines),
        Ok(Message::ReadReq) => 1,
        _ => 0,
    };
    frames.iter().map(lines).sum()
}

#[test]
fn all_lines_are_copied_a_few_pages_at_a_time() {
    let mut pair = Pair::new(INCARNATION);
    assert!(pair.filler.peer().is_none() && pair.filler.deadline().is_never());
    let mut most = 0;
    for _ in 0..200 {
        let requests = pair.advance();
        most = most.max(asked(&requests));
        let answers = pair.answers(requests);
        pair.receive(answers);
        pair.now = pair.now + Duration::from_millis(1);
    }
    assert!(pair.is_copied());
    assert_eq!(pair.done(), BYTES as u64);
    assert!((64..=5 * 64).contains(&most), "{most} lines at once");
    assert!(pair.filler.peer().is_none() && pair.filler.deadline().is_never(), "the session has ended");
    assert_eq!(pair.responder.sessions(), 0);
}

#[test]
fn nothing_is_written_after_an_order_is_withdrawn() {
    let mut pair = Pair::new(INCARNATION);
    pair.until_it_reads();
    let requests = pair.advance();
    assert!(asked(&requests) > 0);
    let answers = pair.answers(requests);
    pair.board.set_orders(&[]);
    pair.advance();
    let before = pair.target.bytes.clone();
    pair.receive(answers);
    pair.rounds(50);
    assert!(pair.target.bytes == before && !pair.is_copied());
}

#[test]
fn a_pool_of_another_incarnation_is_not_read() {
    let mut pair = Pair::new(INCARNATION + 1);
    pair.rounds(300);
    assert_eq!((pair.filler.peer(), pair.responder.sessions()), (Some(SOURCE), 1));
    assert!(pair.target.bytes.iter().all(|byte| *byte == 0) && pair.done() == 0);
}

#[test]
fn a_refused_copy_begins_again() {
    let mut pair = Pair::new(INCARNATION);
    pair.source.mapped = false;
    pair.rounds(1500);
    assert_eq!(pair.done(), 0);
    pair.source.mapped = true;
    pair.rounds(10);
    assert_eq!(pair.done(), 0, "it rests");
    pair.rounds(1000);
    assert!(pair.is_copied());

    let mut pair = Pair::new(INCARNATION);
    pair.until_it_reads();
    pair.target.mapped = false;
    pair.rounds(10);
    // The extents were mapped anew, and are zero.
    pair.target.bytes.fill(0);
    pair.target.mapped = true;
    pair.rounds(1200);
    assert!(pair.is_copied() && pair.done() == BYTES as u64);
}

#[test]
fn a_copy_goes_on_after_the_other_node_was_restarted() {
    let mut pair = Pair::new(INCARNATION);
    pair.until_it_reads();
    pair.responder = responder(INCARNATION, 12);
    pair.rounds(8000);
    assert!(pair.is_copied() && pair.done() == BYTES as u64);
}

#[test]
fn a_source_that_does_not_answer_holds_up_no_copy_from_another() {
    let away = Mac([2, 0, 0, 0, 2, 9]);
    let mut pair = Pair::new(INCARNATION);
    pair.board.set_orders(&[order(away, 2 * BASE), order(SOURCE, BASE)]);
    let unheard = |pair: &mut Pair, count: usize| {
        for _ in 0..count {
            pair.advance();
            pair.now = pair.now + Duration::from_millis(1);
        }
    };
    unheard(&mut pair, 9_990);
    assert_eq!(pair.filler.peer(), Some(away));
    unheard(&mut pair, 20);
    assert_eq!(pair.filler.peer(), Some(SOURCE));
    for _ in 0..8000 {
        if pair.is_copied() {
            break;
        }
        pair.round();
    }
    assert!(pair.is_copied());
    pair.advance();
    assert_eq!((pair.filler.peer(), pair.done()), (Some(away), BYTES as u64), "it is tried again");
    // Alone, an order is kept for as long as its source may come back.
    unheard(&mut pair, 25_000);
    assert_eq!(pair.filler.peer(), Some(away));
}

#[test]
fn a_copy_rests_while_the_queue_of_the_other_node_is_long() {
    let mut pair = Pair::new(INCARNATION);
    pair.until_it_reads();
    let mut quanta = [0; 8];
    quanta[3] = 100;
    let mut out = Frames::default();
    assert_eq!(pair.responder.congested(&PfcVector { enabled: 1 << 3, quanta }, Time::ZERO, &mut out), 1);
    pair.receive(out.sent);
    assert_eq!(asked(&pair.advance()), 0);
    pair.now = pair.now + Duration::from_millis(2);
    assert!(asked(&pair.advance()) > 0);
}

/// Caller that has made no requests.
struct Nobody;

impl Completions for Nobody {
    fn read(&mut self, _token: u64, _data: &[u8]) {}
    fn written(&mut self, _token: u64) {}
    fn failed(&mut self, _token: u64, _error: OpError, _data: &[u8]) {}
}

/// Memory that is mapped for a memory node's own address is being filled by its workers, without a lock.
#[test]
fn nobody_gets_a_session_under_the_address_of_the_memory_node() {
    let pool = Arc::new(Pool::on_heap(4 << 16, 1 << 16, INCARNATION).unwrap());
    let (mappings, _) = Mappings::open(pool, Watermark::default());
    let config = ResponderConfig::new(OWN, 1514, INCARNATION, 3);
    let mut service = Service::new(config, Arc::clone(mappings.table()), 64);
    let Pair { board, .. } = Pair::new(INCARNATION);
    service.set_fills(Arc::clone(&board), FillerSettings { worker: 0, instance: 5, epoch_ns: 0 });
    service.follow_fills(Time(1), &mut Frames::default());
    let status_for = |from: Mac, service: &mut Service| {
        let mut requester = Requester::new(RequesterConfig {
            identity: Identity { own: from, peer: OWN, ethertype: ETHERTYPE_DEFAULT },
            max_frame: 1514,
            streams: 1,
            instance: 5,
            key: None,
            keys: None,
            timing: Timing::default(),
            seed: 4u64.into(),
        });
        let (mut calls, mut answers) = (Frames::default(), Frames::default());
        requester.connect(Time(1));
        requester.poll(Time(1), &mut calls, &mut Nobody);
        calls.sent.iter_mut().for_each(|frame| service.handle(frame, Time(1), &mut answers));
        match FrameView::new_checked(&answers.sent[0][..]).unwrap().message() {
            Ok(Message::HelloAck(ack)) => ack.status,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(status_for(OWN, &mut service), HelloStatus::NotAllowed);
    assert_eq!(status_for(SOURCE, &mut service), HelloStatus::Ok);
    board.set_orders(&[]);
    service.follow_fills(Time(2), &mut Frames::default());
    assert_eq!(status_for(OWN, &mut service), HelloStatus::Ok, "an agent may share the interface");
}
