//! Memory nodes for the pager: transfers end in any order, but for those of one page of CMem (R12), and may fail.

use std::collections::HashMap;

use cxloe_cn_core::pager::{FrameId, PAGE_BYTES, Page, Store, Urgency};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

#[derive(Clone, Copy)]
struct Transfer {
    slot: u32,
    frame: FrameId,
    /// `None`: a fetch.
    lines: Option<u64>,
    begun: u64,
}

/// A transfer that has ended.
pub enum Ended {
    Fetched {
        frame: FrameId,
        page: Box<Page>,
        lost: bool,
    },
    /// To be applied by the caller, who has the frame.
    Written {
        frame: FrameId,
        slot: u32,
        lines: u64,
        lost: bool,
    },
}

pub struct Nodes {
    pub random: StdRng,
    cmem: HashMap<u32, Box<Page>>,
    transfers: Vec<Transfer>,
    begun: u64,
    /// Transfers that fail, out of a thousand.
    pub failing: u32,
    pub room: usize,
    pub lines_written: u64,
}

impl Nodes {
    pub fn new(seed: u64) -> Nodes {
        Nodes {
            random: StdRng::seed_from_u64(seed ^ 0x4E4F_4445),
            cmem: HashMap::new(),
            transfers: Vec::new(),
            begun: 0,
            failing: 0,
            room: 24,
            lines_written: 0,
        }
    }

    pub fn page(&self, slot: u32) -> Page {
        self.cmem.get(&slot).map_or([0; PAGE_BYTES], |page| **page)
    }

    /// Content from before the region was mapped.
    pub fn fill(&mut self, slot: u32, page: Page) {
        self.cmem.insert(slot, Box::new(page));
    }

    pub fn apply(&mut self, slot: u32, lines: u64, page: &Page) {
        let to = self.cmem.entry(slot).or_insert_with(|| Box::new([0; PAGE_BYTES]));
        for line in (0..64).filter(|line| lines >> line & 1 == 1) {
            to[line * 64..line * 64 + 64].copy_from_slice(&page[line * 64..line * 64 + 64]);
        }
    }

    /// The agent has died: what was on its way has arrived, in part, or not. The frames are the dead agent's.
    pub fn agent_dies(&mut self, frame: impl Fn(FrameId) -> Page) {
        let mut transfers = std::mem::take(&mut self.transfers);
        transfers.sort_by_key(|transfer| transfer.begun);
        for Transfer { slot, frame: id, lines, .. } in transfers {
            if let Some(lines) = lines {
                let arrived = lines & self.random.random::<u64>();
                self.apply(slot, arrived, &frame(id));
            }
        }
    }

    /// Some transfer ends.
    pub fn end_one(&mut self) -> Option<Ended> {
        if self.transfers.is_empty() {
            return None;
        }
        let slot = self.transfers[self.random.random_range(0..self.transfers.len())].slot;
        let of_slot = self.transfers.iter().enumerate().filter(|(_, transfer)| transfer.slot == slot);
        let (index, _) = of_slot.min_by_key(|(_, transfer)| transfer.begun)?;
        let Transfer { slot, frame, lines, .. } = self.transfers.swap_remove(index);
        let lost = self.random.random_range(0..1000) < self.failing;
        Some(match lines {
            Some(lines) => Ended::Written { frame, slot, lines, lost },
            None => Ended::Fetched { frame, page: Box::new(self.page(slot)), lost },
        })
    }

    fn begin(&mut self, slot: u32, frame: FrameId, lines: Option<u64>) {
        assert!(self.transfers.iter().all(|transfer| transfer.frame != frame), "a frame has one transfer");
        self.begun += 1;
        self.transfers.push(Transfer { slot, frame, lines, begun: self.begun });
    }
}

impl Store for Nodes {
    fn room(&self) -> usize {
        self.room.saturating_sub(self.transfers.len())
    }

    fn fetch(&mut self, slot: u32, frame: FrameId, _: Urgency) {
        assert!(self.room() > 0, "there was room");
        self.begin(slot, frame, None);
    }

    fn write(&mut self, slot: u32, lines: u64, frame: FrameId) {
        assert!(self.room() > 0 && lines != 0, "there was room, and something to send");
        self.lines_written += u64::from(lines.count_ones());
        self.begin(slot, frame, Some(lines));
    }
}
