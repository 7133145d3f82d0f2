//! Mistakes planted on purpose, to see that the checker is awake.
//!
//! Most of them stand between the network and a memory node's service, and make the node break one rule; the last are in what
//! compute nodes are told about their regions. Runs with one must fail; a checker that lets them pass checks nothing.

use std::collections::{HashMap, VecDeque};

use clap::ValueEnum;
use cxloe_cn_core::engine::Route;
use cxloe_fabric::hdm::Granularity;
use cxloe_wire::frame::{Command, Header, LINE_SIZE, Mac, Message};

/// What goes wrong, at a memory node unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mistake {
    /// Acknowledges a line now and then that it has not kept
    LosesWrites,
    /// Executes a write again whenever its frame comes again (R7, R11)
    RepeatsWrites,
    /// Does not answer a request that comes again (R7)
    ForgetsAnswers,
    /// Undoes the last line write of a compute node when its next session starts
    RollsBack,
    /// Takes a compute node for who shows a key that nobody knows
    AcceptsUnknownKeys,
    /// Compute nodes set the counter of a sealed frame back when they send the request again
    RepeatsNonces,
    /// Compute nodes have the last two memory nodes of an interleave set the wrong way round
    SwapsTargets,
    /// Compute nodes take an interleave set's chunks for twice as large as they are
    WrongGranularity,
    /// Compute nodes look for what the last memory node of a set has one page too far
    ShiftsTarget,
    /// Carries out a command of the manager a second time, later
    RepeatsCommands,
    /// Reports memory as zeroed that is not
    SkipsZeroing,
    /// Follows any manager, and zeroes what that does not list
    ZeroesUnlisted,
    /// The manager commits a change without the command for the memory node, now and then
    ForgetsCommits,
    /// Compute nodes take any answer of the manager for the one to their last question
    TakesOldAnswers,
    /// The kernel says that it protects pages from writes, and does not
    IgnoresProtection,
    /// The kernel copies pages as they were when they were put in place
    CopiesStalePages,
    /// The kernel takes pages away later than it says
    DropsLate,
    /// Compute nodes let go of a region before they have written back what is modified
    LetsGoEarly,
}

impl Mistake {
    /// What becomes of a route before the engine is told of it.
    pub(crate) fn misroute(self, route: &mut Route) {
        let last = route.targets.len() - 1;
        match self {
            Mistake::SwapsTargets if last > 0 => route.targets.swap(last - 1, last),
            Mistake::ShiftsTarget => route.targets[last].cmem += 4096,
            Mistake::WrongGranularity => {
                let granularity = &mut route.decoder.granularity;
                let twice = Granularity::try_from(granularity.bytes() * 2);
                *granularity = twice.unwrap_or(Granularity::MIN);
            }
            _ => {}
        }
    }

    /// Its name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Line writes are lost one in this many.
const LOSES_EVERY: u64 = 13;
/// Frames remembered.
const SEEN_MAX: usize = 1024;

/// A memory node's line, by compute node and CMem address.
pub(crate) trait Lines {
    /// What it holds; `None` where nothing is mapped.
    fn get(&self, cn: Mac, cmem: u64) -> Option<[u8; LINE_SIZE]>;
    /// Puts something into it.
    fn set(&self, cn: Mac, cmem: u64, data: &[u8; LINE_SIZE]);
}

/// A mistake at work.
pub(crate) struct Meddler {
    mistake: Mistake,
    /// Frames that were requests, the newest last.
    seen: VecDeque<Vec<u8>>,
    writes: u64,
    /// The line that each compute node wrote last, as it was before.
    last: HashMap<Mac, (u64, [u8; LINE_SIZE])>,
    /// What is to be put into a line once the service is done with the frame.
    undo: Option<(Mac, u64, [u8; LINE_SIZE])>,
}

impl Meddler {
    pub fn new(mistake: Mistake) -> Meddler {
        Meddler { mistake, seen: VecDeque::new(), writes: 0, last: HashMap::new(), undo: None }
    }

    /// Looks at a frame before the service does; `false` if the service is not to see it.
    pub fn before(&mut self, frame: &[u8], lines: &dyn Lines) -> bool {
        let Some(header) = Header::parse(frame) else { return true };
        let again = self.seen.iter().any(|seen| seen == frame);
        let request = Command::from_u8(header.command);
        // Of many in one frame, the first.
        let write = match Message::parse(frame) {
            Ok((_, Message::WriteReq { data })) => Some(*data),
            Ok((_, Message::MultiWriteReq { data, .. })) => Some(data[0]),
            _ => None,
        };
        match self.mistake {
            Mistake::LosesWrites if write.is_some() => {
                self.writes += u64::from(!again);
                if !again && self.writes.is_multiple_of(LOSES_EVERY) {
                    self.undo = lines.get(header.src, header.addr).map(|old| (header.src, header.addr, old));
                }
            }
            Mistake::RepeatsWrites if again => {
                self.undo = write.map(|data| (header.src, header.addr, data));
            }
            Mistake::ForgetsAnswers if again && request < Some(Command::Hello) => return false,
            Mistake::RollsBack if write.is_some() && !again => {
                if let Some(before) = lines.get(header.src, header.addr) {
                    self.last.insert(header.src, (header.addr, before));
                }
            }
            Mistake::RollsBack if request == Some(Command::Start) => {
                let last = self.last.remove(&header.src);
                self.undo = last.map(|(cmem, before)| (header.src, cmem, before));
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

    /// Does what is left to do after the service has seen the frame.
    pub fn after(&mut self, lines: &dyn Lines) {
        if let Some((cn, cmem, data)) = self.undo.take() {
            lines.set(cn, cmem, &data);
        }
    }
}
