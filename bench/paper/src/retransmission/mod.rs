//! Simulation of selective retransmission: the same operations over the same link with the same losses, repaired by the
//! protocol and by Go-Back-N.
//!
//! ```text
//!   operations --> compute node -- 100 Gbit/s, 2 us, loses frames --> memory node --> memory
//! ```
//!
//! The protocol's ends are the sessions that the daemons use. The ends of Go-Back-N are a model with the protocol's
//! frames and timers, the actions after a silence included, so that only the scheme differs. Time is virtual, so that a
//! run depends on its settings alone. Passes over a set of pages write and read alternately, with 128 bursts in flight
//! as by a line port, and every byte read is compared.
//!
//! | module | |
//! |---|---|
//! | here | the link, the operations, their check |
//! | `session` | selective retransmission: the protocol |
//! | `go_back_n` | Go-Back-N |

mod go_back_n;
mod session;

use std::time::Duration;

use cxloe_link::impairment::Faults;
use cxloe_link::limit::Rate;
use cxloe_link::sim::{Path, PortConfig, SimLink, SimNetwork};
use cxloe_link::{Link, LinkError};
use cxloe_wire::Transmit;
use cxloe_wire::frame::{FaultStatus, LINE_SIZE, Mac};
use cxloe_wire::random::Probability;
use cxloe_wire::session::{Completions, Memory, OpError, Rejected, Timing};
use cxloe_wire::time::Time;
use serde::Serialize;

use go_back_n::GoBackN;
use session::Session;

const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const MN: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// Number of pages in a pass, so large that all operations on a page have ended long before the next pass
/// reaches it.
const PAGES: u64 = 1024;
const PAGE: usize = 4096;
/// Number of lines in a burst, the maximum for MTU 1500.
const LINES: usize = 23;
const BURST: usize = LINES * LINE_SIZE;
/// Number of bursts in flight, equal to that of a line port.
const DEPTH: u64 = 128;
const STREAMS: u8 = 4;
/// One-way delay of a frame, in addition to its time on the wire.
const DELAY: Duration = Duration::from_micros(2);
/// Maximum virtual time of a run.
const LIMIT: Duration = Duration::from_secs(600);

/// Method of repairing losses, by which the runs differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// The protocol's method: only lost requests are sent again.
    Selective,
    /// Go-Back-N: all requests from the first lost one on are sent again.
    GoBackN,
}

#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub scheme: Scheme,
    /// Share of frames lost in each direction, in percent; losses are independent of each other.
    pub loss_percent: f64,
    /// Number of bursts written and read.
    pub operations: u64,
    /// Seed that determines which frames are lost.
    pub seed: u64,
}

/// Result of one run: counts, and virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    pub bytes: u64,
    /// Number of frames sent by both ends.
    pub frames: u64,
    /// Number of frames, of both ends, that the link lost.
    pub lost: u64,
    pub requests_again: u64,
    pub answers_again: u64,
    /// Number of SACKs, or of NAKs with Go-Back-N.
    pub sacks: u64,
    /// Number of probes sent after a silence. With Go-Back-N, which sends no probes, number of silences after which
    /// requests were sent again.
    pub probes: u64,
    pub timeouts: u64,
    pub took_ns: u64,
}

impl Outcome {
    /// Bytes of cache lines transferred per second of virtual time.
    pub fn goodput(&self) -> f64 {
        self.bytes as f64 * 1e9 / self.took_ns.max(1) as f64
    }
}

/// Failure of a run. Except [`Loss`](Self::Loss), each means a defect of the program.
#[derive(Debug, thiserror::Error)]
pub enum ComparisonError {
    /// The share of lost frames is not between 0 and 100 %.
    #[error("{0} % of all frames cannot be lost: write a number from 0 to 100")]
    Loss(f64),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("operation {operation} failed: {error}; a link that only loses frames must not let that happen")]
    Failed { operation: u64, error: OpError },
    #[error("operation {operation} was not taken: {error}")]
    Rejected { operation: u64, error: Rejected },
    #[error("operation {0} read something else than was written")]
    WrongData(u64),
    #[error("after {LIMIT:?} of virtual time {0} operations have not ended")]
    Endless(u64),
}

#[derive(Clone, Copy, Debug)]
struct Target {
    stream: u8,
    addr: u64,
    /// Number of the operation that is to write or read the burst.
    operation: u64,
}

/// Events at both ends, counted; see [`Outcome`].
struct Counts {
    requests_again: u64,
    answers_again: u64,
    sacks: u64,
    probes: u64,
    timeouts: u64,
}

/// Both ends of a transport. The caller supplies frames and the time, so that a run is reproducible.
trait Transport {
    /// Returns true once the transport accepts operations.
    fn is_open(&self) -> bool;

    fn write(
        &mut self,
        target: Target,
        data: &[u8],
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Result<(), Rejected>;

    fn read(&mut self, target: Target, now: Time, tx: &mut dyn Transmit) -> Result<(), Rejected>;

    /// Handles a frame that has arrived at the memory node; answers are sent by `tx`.
    fn serve(&mut self, frame: &mut [u8], now: Time, pages: &mut Pages, tx: &mut dyn Transmit);

    /// Sends the frames that the memory node holds back until the end of a batch.
    fn finish_batch(&mut self, now: Time, pages: &mut Pages, tx: &mut dyn Transmit);

    /// Handles a frame that has arrived at the compute node.
    fn handle(&mut self, frame: &mut [u8], now: Time, tx: &mut dyn Transmit, out: &mut dyn Completions);

    /// Returns the time at which [`poll`](Self::poll) of the compute node is due next.
    fn deadline(&self) -> Time;

    /// Does what is due at the compute node at `now`: retransmissions, probes, time-outs.
    fn poll(&mut self, now: Time, tx: &mut dyn Transmit, out: &mut dyn Completions);

    fn counts(&self) -> Counts;
}

/// Runs `setting.operations` bursts by the method of `setting`, and compares every byte read.
///
/// # Errors
/// Returns an error if the loss is no percentage, or on a defect of the protocol.
pub fn run(setting: &Setting) -> Result<Outcome, ComparisonError> {
    let net = SimNetwork::new(setting.seed);
    let port = PortConfig { egress: Some(Rate::gbit_per_s(100)), ..PortConfig::default() };
    let timing = Timing::default();
    match setting.scheme {
        Scheme::Selective => {
            let session = Session::new(port.mtu + 14, timing, setting.seed, net.now());
            run_over(session, net, port, setting)
        }
        Scheme::GoBackN => run_over(GoBackN::new(&timing), net, port, setting),
    }
}

fn run_over(
    transport: impl Transport,
    net: SimNetwork,
    port: PortConfig,
    setting: &Setting,
) -> Result<Outcome, ComparisonError> {
    let drop = Probability::new(setting.loss_percent / 100.0)
        .map_err(|_| ComparisonError::Loss(setting.loss_percent))?;
    let mut ends = Ends::connected(transport, net, port, setting)?;
    // Frames are lost only from now on, so that both schemes begin with an open connection.
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
    let net = ends.net.counters();
    let Counts { requests_again, answers_again, sacks, probes, timeouts } = ends.transport.counts();
    Ok(Outcome {
        bytes: setting.operations * BURST as u64,
        frames: net.sent - before.sent,
        lost: net.lost - before.lost,
        requests_again,
        answers_again,
        sacks,
        probes,
        timeouts,
        took_ns: (ends.net.now() - began).as_nanos() as u64,
    })
}

/// Both ends of a transport, the network between them, and the progress of the run.
struct Ends<T> {
    net: SimNetwork,
    cn: SimLink,
    mn: SimLink,
    transport: T,
    pages: Pages,
    checker: Checker,
    issued: u64,
    data: [u8; BURST],
}

impl<T: Transport> Ends<T> {
    /// Connects both ends over a link that loses no frames yet, and waits until the transport accepts
    /// operations.
    fn connected(
        transport: T,
        net: SimNetwork,
        port: PortConfig,
        setting: &Setting,
    ) -> Result<Self, ComparisonError> {
        net.set_default_path(Path { delay: DELAY, ..Path::default() });
        let [cn, mn] = [CN, MN].map(|mac| net.attach(mac, port).expect("two addresses"));
        let pages = Pages(vec![0; PAGES as usize * PAGE]);
        let mut ends =
            Ends { net, cn, mn, transport, pages, checker: Checker::default(), issued: 0, data: [0; BURST] };
        while !ends.transport.is_open() {
            ends.turn()?;
            if ends.net.now() > Time::ZERO + LIMIT {
                return Err(ComparisonError::Endless(setting.operations));
            }
        }
        Ok(ends)
    }

    /// Submits bursts until [`DEPTH`] are in flight.
    fn issue(&mut self, operations: u64) -> Result<(), ComparisonError> {
        let now = self.net.now();
        while self.issued < operations && self.issued - self.checker.ended < DEPTH {
            let operation = self.issued;
            let (pass, page) = (operation / PAGES, operation % PAGES);
            let stream = (page % u64::from(STREAMS)) as u8;
            let target = Target { stream, addr: page * PAGE as u64, operation };
            // Passes with even numbers write all pages, the other passes read what the previous pass has
            // written.
            let (transport, tx) = (&mut self.transport, self.cn.transmit());
            let taken = if pass % 2 == 0 {
                content(operation, &mut self.data);
                transport.write(target, &self.data, now, tx)
            } else {
                transport.read(target, now, tx)
            };
            match taken {
                Ok(()) => self.issued += 1,
                Err(Rejected::Busy) => break,
                Err(error) => return Err(ComparisonError::Rejected { operation, error }),
            }
        }
        Ok(self.cn.flush()?)
    }

    /// Handles the frames that have arrived at both ends. Without any, advances the time to the next event.
    fn turn(&mut self) -> Result<(), ComparisonError> {
        let Ends { net, cn, mn, transport, pages, checker, .. } = self;
        let now = net.now();
        mn.receive(usize::MAX, &mut |frame, tx| transport.serve(frame, now, pages, tx))?;
        transport.finish_batch(now, pages, mn.transmit());
        mn.flush()?;
        let arrived = cn.receive(usize::MAX, &mut |frame, tx| transport.handle(frame, now, tx, checker))?;
        if now >= transport.deadline() {
            transport.poll(now, cn.transmit(), checker);
        }
        cn.flush()?;
        if let Some(error) = checker.error.take() {
            return Err(error);
        }
        // The virtual time does not advance while frames arrive, since an answer may make room for another
        // request at the same time.
        if arrived == 0 {
            let next = net.next_event().unwrap_or(Time(u64::MAX)).min(transport.deadline());
            net.step(next.max(now));
        }
        Ok(())
    }
}

/// Fills `data` with the content that the operation number `operation` writes, different for each operation
/// and word.
fn content(operation: u64, data: &mut [u8; BURST]) {
    for (word, place) in data.chunks_exact_mut(8).zip(1_u64..) {
        word.copy_from_slice(
            &(operation.rotate_left(32) ^ place).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes(),
        );
    }
}

struct Pages(Vec<u8>);

impl Memory for Pages {
    fn read(&mut self, _cn: u64, addr: u64, out: &mut [u8]) -> Result<(), FaultStatus> {
        let from =
            self.0.get(addr as usize..).and_then(|rest| rest.get(..out.len())).ok_or(FaultStatus::Nxm)?;
        out.copy_from_slice(from);
        Ok(())
    }

    fn write(&mut self, _cn: u64, addr: u64, mask: u64, data: &[u8]) -> Result<(), FaultStatus> {
        // In this simulation, all masks begin at the first line and have no gaps.
        let whole = mask == (1 << (data.len() / LINE_SIZE)) - 1;
        let to = self.0.get_mut(addr as usize..).and_then(|rest| rest.get_mut(..data.len()));
        to.filter(|_| whole).ok_or(FaultStatus::Nxm)?.copy_from_slice(data);
        Ok(())
    }

    fn admits(&mut self, cn: u64) -> bool {
        cn == CN.to_u64()
    }
}

/// Receiver of completions, which compares data read with those that the pass before wrote.
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

    fn outcome(scheme: Scheme, loss_percent: f64) -> Outcome {
        run(&Setting { scheme, loss_percent, operations: 8 * PAGES, seed: 11 }).expect("a run")
    }

    #[test]
    fn without_losses_the_schemes_are_one() {
        let selective = outcome(Scheme::Selective, 0.0);
        assert_eq!(selective, outcome(Scheme::GoBackN, 0.0));
        assert_eq!((selective.requests_again, selective.answers_again, selective.sacks), (0, 0, 0));
        assert_eq!(selective.frames, 2 * 8 * PAGES);
    }

    #[test]
    fn selective_retransmission_sends_less_again_and_carries_more() {
        for loss_percent in [0.1, 1.0, 5.0] {
            let selective = outcome(Scheme::Selective, loss_percent);
            let back = outcome(Scheme::GoBackN, loss_percent);
            assert!(
                selective.requests_again * 3 < back.requests_again,
                "{loss_percent} %: {selective:?} {back:?}"
            );
            assert!(
                selective.answers_again * 3 < back.answers_again,
                "{loss_percent} %: {selective:?} {back:?}"
            );
            assert!(selective.goodput() > back.goodput(), "{loss_percent} %: {selective:?} {back:?}");
            // Each loss may cause a few requests to be sent again, but not the whole stream.
            assert!(selective.requests_again < 2 * selective.lost, "{loss_percent} %: {selective:?}");
        }
    }

    #[test]
    fn at_one_percent_bursts_keep_most_of_their_rate() {
        let whole = outcome(Scheme::Selective, 0.0);
        let lossy = outcome(Scheme::Selective, 1.0);
        assert!(lossy.goodput() >= 0.7 * whole.goodput(), "{whole:?} {lossy:?}");
        assert!(lossy.timeouts <= 2, "{lossy:?}");
    }

    #[test]
    fn a_setting_is_a_run() {
        for scheme in [Scheme::Selective, Scheme::GoBackN] {
            assert_eq!(outcome(scheme, 1.0), outcome(scheme, 1.0));
        }
    }
}
