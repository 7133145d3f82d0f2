//! Planted faults: rules that nodes break on purpose, to test the checks of a run.
//!
//! Some act between the network and a memory node's service, so that the memory node breaks one rule; others are in
//! compute nodes, the manager or the simulated kernel. A run with a planted fault must fail; otherwise the checks are
//! ineffective.

use std::collections::{HashMap, VecDeque};

use cxloe_cn_core::engine::Route;
use cxloe_fabric::hdm::Granularity;
use cxloe_wire::frame::{Command, Header, LINE_SIZE, Mac, Message};

use crate::named::named;
use crate::trace::Name;

named! {
    /// A rule that nodes break on purpose; a memory node does so unless stated otherwise.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum PlantedFault {
        /// Acknowledges a line write now and then without storing it
        LosesWrites = "loses-writes",
        /// Executes a write again whenever its frame is repeated (R7, R11)
        RepeatsWrites = "repeats-writes",
        /// Does not answer a repeated request (R7)
        ForgetsAnswers = "forgets-answers",
        /// Undoes the last line write of a compute node when its next session starts
        RollsBack = "rolls-back",
        /// Waits with answers of a batch that it has held back
        KeepsAnswers = "keeps-answers",
        /// Accepts a session of a compute node with an unregistered key
        AcceptsUnknownKeys = "accepts-unknown-keys",
        /// Compute nodes reuse the counter of a sealed frame when they retransmit the request
        RepeatsNonces = "repeats-nonces",
        /// Compute nodes swap the last two memory nodes of an interleave set
        SwapsTargets = "swaps-targets",
        /// Compute nodes use twice the granularity of an interleave set
        WrongGranularity = "wrong-granularity",
        /// Compute nodes address the last memory node of a set one page too far
        ShiftsTarget = "shifts-target",
        /// Executes a command of the manager a second time, later
        RepeatsCommands = "repeats-commands",
        /// Reports memory as zeroed without zeroing it
        SkipsZeroing = "skips-zeroing",
        /// Follows any manager, and zeroes all memory that it does not list
        ZeroesUnlisted = "zeroes-unlisted",
        /// The manager commits a change without the command for the memory node, now and then
        ForgetsCommits = "forgets-commits",
        /// Compute nodes accept any answer from the manager as the one to their last request
        TakesOldAnswers = "takes-old-answers",
        /// The kernel reports write-protection of pages without protecting them
        IgnoresProtection = "ignores-protection",
        /// The kernel copies the content that pages had when they were installed
        CopiesStalePages = "copies-stale-pages",
        /// The kernel removes pages later than it reports
        DropsLate = "drops-late",
        /// Compute nodes release a region before they have written its modified lines back
        LetsGoEarly = "lets-go-early",
        /// Compute nodes sleep longer than until their next timer
        ForgetsTimers = "forgets-timers",
        /// After a compute node has followed an order of the manager, it sleeps as it had decided before the
        /// order arrived
        SleepsOnOrders = "sleeps-on-orders",
        /// Compute nodes with several workers give each region to a second worker too
        SharesRegions = "shares-regions",
        /// All workers of a compute node have their sessions from the addresses of the first
        SharesSessions = "shares-sessions",
    }
}

impl PlantedFault {
    /// Changes a route before the engine receives it, if the planted fault concerns routes.
    pub(crate) fn misroute(self, route: &mut Route) {
        let last = route.targets.len() - 1;
        match self {
            PlantedFault::SwapsTargets if last > 0 => route.targets.swap(last - 1, last),
            PlantedFault::ShiftsTarget => route.targets[last].cmem += 4096,
            PlantedFault::WrongGranularity => {
                let granularity = &mut route.decoder.granularity;
                let twice = Granularity::try_from(granularity.bytes() * 2);
                *granularity = twice.unwrap_or(Granularity::MIN);
            }
            _ => {}
        }
    }
}

/// One of this number of line writes is lost.
const LOSES_EVERY: u64 = 13;
/// Number of requests that are remembered in order to recognise repeated ones.
const SEEN_MAX: usize = 1024;

/// Lines in the pool of a memory node, by compute node and CMem address.
pub(crate) trait Lines {
    /// Returns the content of a line; `None` if no memory is mapped at the address.
    fn get(&self, cn: Mac, cmem: u64) -> Option<[u8; LINE_SIZE]>;
    fn set(&self, cn: Mac, cmem: u64, data: &[u8; LINE_SIZE]);
}

/// The rule that a memory node breaks, and the state needed to break it.
pub(crate) struct FaultPlanter {
    mistake: PlantedFault,
    /// Requests received so far, the newest last.
    seen: VecDeque<Vec<u8>>,
    writes: u64,
    /// Line that was written last from each address of a compute node, with the content before that write.
    last: HashMap<Mac, (u64, [u8; LINE_SIZE])>,
    /// Line to overwrite once the service has handled the frame, with the content to write.
    undo: Option<(Mac, u64, [u8; LINE_SIZE])>,
}

impl FaultPlanter {
    pub fn new(mistake: PlantedFault) -> FaultPlanter {
        FaultPlanter { mistake, seen: VecDeque::new(), writes: 0, last: HashMap::new(), undo: None }
    }

    /// Returns true if the memory node does not end the batches of its service.
    pub fn keeps_answers(&self) -> bool {
        self.mistake == PlantedFault::KeepsAnswers
    }

    /// Breaks the rule for a frame before the service handles it. Returns false if the service must not
    /// receive the frame.
    pub fn before(&mut self, frame: &[u8], lines: &dyn Lines) -> bool {
        let Some(header) = Header::parse(frame) else { return true };
        let again = self.seen.iter().any(|seen| seen == frame);
        let request = Command::from_u8(header.command);
        let cn = Name::owner(header.src);
        // Of several writes in one frame, only the first is affected.
        let write = match Message::parse(frame) {
            Ok((_, Message::WriteReq { data })) => Some(*data),
            Ok((_, Message::MultiWriteReq { data, .. })) => Some(data[0]),
            _ => None,
        };
        match self.mistake {
            PlantedFault::LosesWrites if write.is_some() => {
                self.writes += u64::from(!again);
                if !again && self.writes.is_multiple_of(LOSES_EVERY) {
                    self.undo = lines.get(cn, header.addr).map(|old| (cn, header.addr, old));
                }
            }
            PlantedFault::RepeatsWrites if again => {
                self.undo = write.map(|data| (cn, header.addr, data));
            }
            PlantedFault::ForgetsAnswers if again && request < Some(Command::Hello) => return false,
            PlantedFault::RollsBack if write.is_some() && !again => {
                if let Some(before) = lines.get(cn, header.addr) {
                    self.last.insert(header.src, (header.addr, before));
                }
            }
            PlantedFault::RollsBack if request == Some(Command::Start) => {
                let last = self.last.remove(&header.src);
                self.undo = last.map(|(cmem, before)| (cn, cmem, before));
            }
            _ => {}
        }
        if request < Some(Command::Hello) && !again {
            if self.seen.len() == SEEN_MAX {
                self.seen.pop_front();
            }
            self.seen.push_back(frame.to_vec());
        }
        true
    }

    /// Breaks the rule for a frame after the service has handled it.
    pub fn after(&mut self, lines: &dyn Lines) {
        if let Some((cn, cmem, data)) = self.undo.take() {
            lines.set(cn, cmem, &data);
        }
    }
}
