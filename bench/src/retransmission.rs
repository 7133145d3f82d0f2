//! What selective retransmission saves, in simulation: the same operations over the same link with the same losses,
//! repaired as the protocol does it and by Go-Back-N.
//!
//! ```text
//!   operations --> Requester -- 100 Gbit/s, 2 us, loses frames --> Responder --> memory
//! ```
//!
//! Both ends are the ones that ship, told to use one scheme or the other; time is virtual, so a run depends on its
//! settings alone. Passes over a set of pages write and read by turns, 128 bursts at a time as a line port has them,
//! and every byte read is compared. Go-Back-N is given the protocol's timers, its early reaction to silence included, so
//! that the difference is the scheme's.

use std::time::Duration;

use cxloe_link::impairment::Faults;
use cxloe_link::limit::Rate;
use cxloe_link::sim::{Path, PortConfig, SimLink, SimNetwork};
use cxloe_link::{Link, LinkError};
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, FaultStatus, LINE_SIZE, Mac};
use cxloe_wire::random::Probability;
use cxloe_wire::session::{
    Completions, Identity, Memory, OpError, Rejected, Requester, RequesterConfig, Responder, ResponderConfig,
    Retransmission, Timing,
};
use cxloe_wire::time::Time;
use serde::Serialize;

const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const MN: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// Pages of a pass: so many that a page's last operation has ended long before its next.
const PAGES: u64 = 1024;
const PAGE: usize = 4096;
/// Lines of a burst: as many as MTU 1500 carries.
const LINES: usize = 23;
const BURST: usize = LINES * LINE_SIZE;
/// Bursts under way.
const DEPTH: u64 = 128;
const STREAMS: u8 = 4;
/// One way, beside the time on the wire.
const DELAY: Duration = Duration::from_micros(2);
/// Virtual time after which a run is given up.
const LIMIT: Duration = Duration::from_secs(600);

/// Settings of a run.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// How losses are repaired.
    pub scheme: Retransmission,
    /// How many of a hundred frames are lost, each way, independently of each other.
    pub loss_percent: f64,
    /// Bursts written and read.
    pub operations: u64,
    /// Where the losses come from.
    pub seed: u64,
}

/// What a run took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Bytes of lines written and read.
    pub bytes: u64,
    /// Frames sent by both ends.
    pub frames: u64,
    /// Of these, lost.
    pub lost: u64,
    /// Requests sent again.
    pub requests_again: u64,
    /// Answers sent again.
    pub answers_again: u64,
    /// SACKs, or NAKs.
    pub sacks: u64,
    /// Silences probed.
    pub probes: u64,
    /// Time-outs.
    pub timeouts: u64,
    /// Virtual time in nanoseconds.
    pub took_ns: u64,
}

impl Outcome {
    /// Bytes of lines a second.
    pub fn goodput(&self) -> f64 {
        self.bytes as f64 * 1e9 / self.took_ns.max(1) as f64
    }
}

/// Why there is no outcome. Each is a defect.
#[derive(Debug, thiserror::Error)]
pub enum ComparisonError {
    /// Losses are given in percent.
    #[error("{0} % of all frames cannot be lost: write a number from 0 to 100")]
    Loss(f64),
    /// The simulated link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// An operation failed.
    #[error("operation {operation} failed: {error}; a link that only loses frames must not let that happen")]
    Failed {
        /// Which.
        operation: u64,
        /// Why.
        error: OpError,
    },
    /// A burst was not taken.
    #[error("operation {operation} was not taken: {error}")]
    Rejected {
        /// Which.
        operation: u64,
        /// Why.
        error: Rejected,
    },
    /// Memory does not hold what was written.
    #[error("operation {0} read something else than was written")]
    WrongData(u64),
    /// The operations do not end.
    #[error("after {LIMIT:?} of virtual time {0} operations have not ended")]
    Endless(u64),
}

/// Runs `setting.operations` bursts.
///
/// # Errors
/// A loss that is no percentage, or a defect of the protocol.
pub fn run(setting: &Setting) -> Result<Outcome, ComparisonError> {
    let mut ends = Ends::connected(setting)?;
    let drop = Probability::new(setting.loss_percent / 100.0)
        .map_err(|_| ComparisonError::Loss(setting.loss_percent))?;
    ends.net.set_default_path(Path {
        delay: DELAY,
        faults: Faults { drop, ..Faults::NONE },
        ..Path::default()
    });
    let (began, before) = (ends.net.now(), ends.net.counters());
    while ends.checker.ended < setting.operations {
        ends.issue(setting.operations)?;
        ends.turn()?;
        if ends.net.now() - began > LIMIT {
            return Err(ComparisonError::Endless(setting.operations - ends.checker.ended));
        }
    }
    let (net, counters, totals) = (ends.net.counters(), ends.requester.counters(), ends.responder.totals());
    Ok(Outcome {
        bytes: setting.operations * BURST as u64,
        frames: net.sent - before.sent,
        lost: net.lost - before.lost,
        requests_again: counters.retransmitted,
        answers_again: totals.duplicates,
        sacks: totals.sacks + totals.sack_acks,
        probes: counters.probes,
        timeouts: counters.timeouts,
        took_ns: (ends.net.now() - began).as_nanos() as u64,
    })
}

/// Both ends and the network between them.
struct Ends {
    net: SimNetwork,
    cn: SimLink,
    mn: SimLink,
    requester: Requester,
    responder: Responder,
    pages: Pages,
    checker: Checker,
    issued: u64,
    data: [u8; BURST],
}

impl Ends {
    /// A session over a link that loses nothing yet.
    fn connected(setting: &Setting) -> Result<Ends, ComparisonError> {
        let net = SimNetwork::new(setting.seed);
        net.set_default_path(Path { delay: DELAY, ..Path::default() });
        let port = PortConfig { egress: Some(Rate::gbit_per_s(100)), ..PortConfig::default() };
        let max_frame = port.mtu + 14;
        let [cn, mn] = [CN, MN].map(|mac| net.attach(mac, port).expect("two addresses"));
        let config = RequesterConfig {
            identity: Identity { own: CN, peer: MN, ethertype: ETHERTYPE_DEFAULT },
            max_frame,
            streams: STREAMS,
            instance: 1,
            key: None,
            keys: None,
            timing: Timing::default(),
            seed: setting.seed.into(),
        };
        let (mut requester, mut responder) =
            (Requester::new(config), Responder::new(ResponderConfig::new(MN, max_frame, 1, setting.seed)));
        requester.set_retransmission(setting.scheme);
        responder.set_retransmission(setting.scheme);
        requester.connect(net.now());
        let pages = Pages(vec![0; PAGES as usize * PAGE]);
        let mut ends = Ends {
            net,
            cn,
            mn,
            requester,
            responder,
            pages,
            checker: Checker::default(),
            issued: 0,
            data: [0; BURST],
        };
        while !ends.requester.is_open() {
            ends.turn()?;
            if ends.net.now() > Time::ZERO + LIMIT {
                return Err(ComparisonError::Endless(setting.operations));
            }
        }
        Ok(ends)
    }

    /// Keeps [`DEPTH`] bursts under way.
    fn issue(&mut self, operations: u64) -> Result<(), ComparisonError> {
        let now = self.net.now();
        while self.issued < operations && self.issued - self.checker.ended < DEPTH {
            let operation = self.issued;
            let (pass, page) = (operation / PAGES, operation % PAGES);
            let (stream, addr) = ((page % u64::from(STREAMS)) as u8, page * PAGE as u64);
            let (requester, tx) = (&mut self.requester, self.cn.transmit());
            let taken = if pass % 2 == 0 {
                content(operation, &mut self.data);
                requester.burst_write(stream, addr, (1 << LINES) - 1, &self.data, operation, now, tx)
            } else {
                requester.burst_read(stream, addr, LINES as u8, operation, now, tx)
            };
            match taken {
                Ok(()) => self.issued += 1,
                Err(Rejected::Busy) => break,
                Err(error) => return Err(ComparisonError::Rejected { operation, error }),
            }
        }
        Ok(self.cn.flush()?)
    }

    /// Takes in what has arrived at both ends, then lets time pass until something happens.
    fn turn(&mut self) -> Result<(), ComparisonError> {
        let Ends { net, cn, mn, requester, responder, pages, checker, .. } = self;
        let now = net.now();
        mn.receive(usize::MAX, &mut |frame, tx| responder.handle(frame, now, pages, tx))?;
        responder.finish_batch(mn.transmit());
        mn.flush()?;
        let arrived = cn.receive(usize::MAX, &mut |frame, tx| requester.handle(frame, now, tx, checker))?;
        if now >= requester.deadline() {
            requester.poll(now, cn.transmit(), checker);
        }
        cn.flush()?;
        if let Some(error) = checker.error.take() {
            return Err(error);
        }
        // With an answer there may be room for another request, before time passes.
        if arrived == 0 {
            let next = net.next_event().unwrap_or(Time(u64::MAX)).min(requester.deadline());
            net.step(next.max(now));
        }
        Ok(())
    }
}

/// Fills a burst with what operation number `operation` writes.
fn content(operation: u64, data: &mut [u8; BURST]) {
    for (word, place) in data.chunks_exact_mut(8).zip(1_u64..) {
        word.copy_from_slice(
            &(operation.rotate_left(32) ^ place).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes(),
        );
    }
}

/// The memory node's memory.
struct Pages(Vec<u8>);

impl Memory for Pages {
    fn read(&mut self, _cn: u64, addr: u64, out: &mut [u8]) -> Result<(), FaultStatus> {
        let from =
            self.0.get(addr as usize..).and_then(|rest| rest.get(..out.len())).ok_or(FaultStatus::Nxm)?;
        out.copy_from_slice(from);
        Ok(())
    }

    fn write(&mut self, _cn: u64, addr: u64, mask: u64, data: &[u8]) -> Result<(), FaultStatus> {
        // All masks here begin at the first line and have no holes.
        let whole = mask == (1 << (data.len() / LINE_SIZE)) - 1;
        let to = self.0.get_mut(addr as usize..).and_then(|rest| rest.get_mut(..data.len()));
        to.filter(|_| whole).ok_or(FaultStatus::Nxm)?.copy_from_slice(data);
        Ok(())
    }

    fn admits(&mut self, cn: u64) -> bool {
        cn == CN.to_u64()
    }
}

/// Compares what is read with what the pass before wrote.
#[derive(Default)]
struct Checker {
    ended: u64,
    error: Option<ComparisonError>,
}

impl Completions for Checker {
    fn read(&mut self, token: u64, data: &[u8]) {
        let mut expected = [0; BURST];
        content(token - PAGES, &mut expected);
        if data != expected {
            self.error.get_or_insert(ComparisonError::WrongData(token));
        }
        self.ended += 1;
    }

    fn written(&mut self, _token: u64) {
        self.ended += 1;
    }

    fn failed(&mut self, token: u64, error: OpError, _data: &[u8]) {
        self.error.get_or_insert(ComparisonError::Failed { operation: token, error });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(scheme: Retransmission, loss_percent: f64) -> Outcome {
        run(&Setting { scheme, loss_percent, operations: 8 * PAGES, seed: 11 }).expect("a run")
    }

    #[test]
    fn without_losses_the_schemes_are_one() {
        let selective = outcome(Retransmission::Selective, 0.0);
        assert_eq!(selective, outcome(Retransmission::GoBackN, 0.0));
        assert_eq!((selective.requests_again, selective.answers_again, selective.sacks), (0, 0, 0));
        assert_eq!(selective.frames, 2 * 8 * PAGES);
    }

    #[test]
    fn selective_retransmission_sends_less_again_and_carries_more() {
        for loss_percent in [0.1, 1.0, 5.0] {
            let selective = outcome(Retransmission::Selective, loss_percent);
            let back = outcome(Retransmission::GoBackN, loss_percent);
            assert!(
                selective.requests_again * 3 < back.requests_again,
                "{loss_percent} %: {selective:?} {back:?}"
            );
            assert!(
                selective.answers_again * 3 < back.answers_again,
                "{loss_percent} %: {selective:?} {back:?}"
            );
            assert!(selective.goodput() > back.goodput(), "{loss_percent} %: {selective:?} {back:?}");
            // As many as were lost, and few for nothing.
            assert!(selective.requests_again < 2 * selective.lost, "{loss_percent} %: {selective:?}");
        }
    }

    #[test]
    fn at_one_percent_bursts_keep_most_of_their_rate() {
        let whole = outcome(Retransmission::Selective, 0.0);
        let lossy = outcome(Retransmission::Selective, 1.0);
        assert!(lossy.goodput() >= 0.7 * whole.goodput(), "{whole:?} {lossy:?}");
        assert!(lossy.timeouts <= 2, "{lossy:?}");
    }

    #[test]
    fn a_setting_is_a_run() {
        for scheme in [Retransmission::Selective, Retransmission::GoBackN] {
            assert_eq!(outcome(scheme, 1.0), outcome(scheme, 1.0));
        }
    }
}
