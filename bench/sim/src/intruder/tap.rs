//! What is heard at every cable: frames to be sent again, and counters to be watched.

use std::collections::VecDeque;

use cxloe_wire::frame::{Command, FrameView, Hello, Mac, Message};
use cxloe_wire::random::Random;

use super::nonces::{NonceWatch, SetBack};

/// Frames of sessions that are remembered: the first ones, and the last ones.
const EARLY_MAX: usize = 64;
const RECENT_MAX: usize = 64;
/// Handshakes that are remembered, of which most are of sessions long ended.
const HANDSHAKES_MAX: usize = 256;

/// Listens to all nodes.
pub(crate) struct Tap {
    /// Whoever listens: its own frames are nothing new.
    own: Mac,
    nonces: NonceWatch,
    /// Whether frames are kept.
    keeps: bool,
    handshakes: Vec<Vec<u8>>,
    early: Vec<Vec<u8>>,
    recent: VecDeque<Vec<u8>>,
    /// Frames from the one to the other are wanted.
    wanted: Option<(Mac, Mac)>,
    overheard: Vec<Vec<u8>>,
    /// A mistake that nodes make on their way out.
    set_back: Option<SetBack>,
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
            set_back: sets_back.then(SetBack::default),
        }
    }

    /// A frame leaves a port.
    pub fn hear(&mut self, from: Mac, frame: &mut [u8]) {
        if from == self.own {
            // Should it ever get that far.
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

    /// What is wrong with what was heard, if something is.
    pub fn broken(&self) -> Option<String> {
        self.nonces.broken().map(str::to_owned)
    }

    /// Any frame heard: of a handshake, of the first sessions, or one of the last.
    pub fn any(&self, random: &mut Random) -> Option<Vec<u8>> {
        let all = self.handshakes.len() + self.early.len() + self.recent.len();
        let at = random.below(all.max(1) as u64) as usize;
        self.handshakes.iter().chain(&self.early).chain(&self.recent).nth(at).cloned()
    }

    /// One of the last frames of sessions.
    pub fn any_recent(&self, random: &mut Random) -> Option<Vec<u8>> {
        self.recent.get(random.below(self.recent.len().max(1) as u64) as usize).cloned()
    }

    /// The last Hello to `mn`, and what it says; only one from `cn` if that is said.
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

    /// From now on frames from the one to the other are to be handed out.
    pub fn listen_for(&mut self, wanted: Option<(Mac, Mac)>) {
        self.wanted = wanted;
        self.overheard.clear();
    }

    /// What was heard of those.
    pub fn overheard(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.overheard)
    }
}
