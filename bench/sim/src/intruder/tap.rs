//! Recorder of the frames at every port, for replays and for the check of nonces.

use std::collections::VecDeque;

use cxloe_wire::frame::{Command, FrameView, Hello, Mac, Message};
use cxloe_wire::random::Random;

use super::nonces::{NonceReuse, NonceWatch};

/// Number of frames of sessions that are recorded from the beginning of a run.
const EARLY_MAX: usize = 64;
/// Number of the latest frames of sessions that are kept.
const RECENT_MAX: usize = 64;
/// Number of recorded handshake frames; most of them belong to sessions that have ended.
const HANDSHAKES_MAX: usize = 256;

/// Recorder of the frames of all nodes.
pub(crate) struct Tap {
    /// MAC address of the intruder's port, whose frames are not recorded.
    own: Mac,
    nonces: NonceWatch,
    /// True if frames are recorded for replays.
    keeps: bool,
    handshakes: Vec<Vec<u8>>,
    early: Vec<Vec<u8>>,
    recent: VecDeque<Vec<u8>>,
    /// Source and destination of the frames that [`overheard`](Self::overheard) returns.
    wanted: Option<(Mac, Mac)>,
    overheard: Vec<Vec<u8>>,
    /// The planted fault of reused counters, which changes the frames that nodes send.
    set_back: Option<NonceReuse>,
}

impl Tap {
    pub fn new(own: Mac, keeps: bool, sets_back: bool) -> Self {
        Self {
            own,
            nonces: NonceWatch::default(),
            keeps,
            handshakes: Vec::new(),
            early: Vec::new(),
            recent: VecDeque::new(),
            wanted: None,
            overheard: Vec::new(),
            set_back: sets_back.then(NonceReuse::default),
        }
    }

    /// Records a frame that leaves the port of `from`.
    pub fn capture(&mut self, from: Mac, frame: &mut [u8]) {
        if from == self.own {
            // The intruder's frames are not recorded. But a Start from the intruder may permit a session at the memory
            // node, so the Start is counted.
            if let Ok(view) = FrameView::new_checked(&*frame)
                && view.command() == Some(Command::Start)
            {
                self.nonces.see_start(view.src(), view.dst());
            }
            return;
        }
        if let Some(mistake) = &mut self.set_back {
            mistake.change(frame);
        }
        self.nonces.see(frame);
        if !self.keeps {
            return;
        }
        let Ok(view) = FrameView::new_checked(&*frame) else { return };
        if self.wanted == Some((view.src(), view.dst())) {
            self.overheard.push(frame.to_vec());
        }
        match view.command() {
            Some(Command::Hello | Command::HelloAck | Command::Start | Command::StartAck) => {
                if self.handshakes.len() < HANDSHAKES_MAX {
                    self.handshakes.push(frame.to_vec());
                }
            }
            _ if self.early.len() < EARLY_MAX => self.early.push(frame.to_vec()),
            _ => {
                if self.recent.len() == RECENT_MAX {
                    self.recent.pop_front();
                }
                self.recent.push_back(frame.to_vec());
            }
        }
    }

    /// Returns the violation that the recorded counters show, if there is one.
    pub fn broken(&self) -> Option<String> {
        self.nonces.broken().map(str::to_owned)
    }

    /// Draws a recorded frame: of a handshake, of the first ones, or of the latest ones.
    pub fn any(&self, random: &mut Random) -> Option<Vec<u8>> {
        let all = self.handshakes.len() + self.early.len() + self.recent.len();
        let at = random.below(all.max(1) as u64) as usize;
        self.handshakes.iter().chain(&self.early).chain(&self.recent).nth(at).cloned()
    }

    /// Draws one of the latest frames of sessions.
    pub fn any_recent(&self, random: &mut Random) -> Option<Vec<u8>> {
        self.recent.get(random.below(self.recent.len().max(1) as u64) as usize).cloned()
    }

    /// Returns the last recorded Hello to `mn` (from `cn` if given), as a frame and decoded.
    pub fn hello_to(&self, mn: Mac, cn: Option<Mac>) -> Option<(Vec<u8>, Hello)> {
        self.handshakes.iter().rev().find_map(|frame| match Message::parse(frame) {
            Ok((header, Message::Hello(hello)))
                if header.dst == mn && cn.is_none_or(|cn| cn == header.src) =>
            {
                Some((frame.clone(), hello))
            }
            _ => None,
        })
    }

    /// Sets the source and the destination of the frames that [`overheard`](Self::overheard) is to return.
    pub fn listen_for(&mut self, wanted: Option<(Mac, Mac)>) {
        self.wanted = wanted;
        self.overheard.clear();
    }

    /// Returns the recorded frames since the last call that have the source and destination set by
    /// [`listen_for`](Self::listen_for).
    pub fn overheard(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.overheard)
    }
}
