//! The jobs of one client: its operations on more than a line, or on less, until they end.

use cxloe_client::ring::ENTRIES;
use cxloe_client::status::Status;
use cxloe_cn_core::engine::{EngineError, SegmentIter};

/// Jobs of one client at once: one for each place of its rings.
const JOBS_MAX: usize = ENTRIES;

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// To the data area, from this byte of it on.
    Read(usize),
    /// From there.
    Write(usize),
    Zero,
    Patch,
}

/// A job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub tag: u32,
    pub hpa: u64,
    pub way: Way,
    /// Bursts on their way.
    pub out: u16,
    /// Whether nothing further is to be sent.
    pub sent: bool,
    pub failed: Option<EngineError>,
}

/// The jobs of one client.
#[derive(Debug)]
pub struct Jobs {
    pub(super) slots: Vec<Option<Job>>,
    free: Vec<u16>,
    /// The one whose segments are being sent.
    pub(super) current: Option<(u16, SegmentIter)>,
}

impl Default for Jobs {
    fn default() -> Jobs {
        Jobs { slots: vec![None; JOBS_MAX], free: (0..JOBS_MAX as u16).rev().collect(), current: None }
    }
}

/// A job that has ended: its tag, and how.
pub type Ended = (u32, Status);

impl Jobs {
    /// A job at a free place.
    pub(super) fn begin(&mut self, tag: u32, hpa: u64, way: Way) -> Option<u16> {
        let at = self.free.pop()?;
        self.slots[usize::from(at)] = Some(Job { tag, hpa, way, out: 0, sent: false, failed: None });
        Some(at)
    }

    #[inline]
    pub(super) fn get(&mut self, at: u16) -> Option<&mut Job> {
        self.slots.get_mut(usize::from(at))?.as_mut()
    }

    /// Ends a job if nothing of it is on its way or to be sent any more.
    #[inline]
    pub(super) fn settle(&mut self, at: u16) -> Option<Ended> {
        let job = self.get(at).filter(|job| job.out == 0 && job.sent)?;
        let ended = (job.tag, job.failed.map_or(Status::Done, Status::Failed));
        self.slots[usize::from(at)] = None;
        self.free.push(at);
        Some(ended)
    }

    /// Nothing further of a job is sent.
    pub(super) fn stop(&mut self, at: u16, failed: Option<EngineError>) -> Option<Ended> {
        if let Some(job) = self.get(at) {
            job.sent = true;
            job.failed = job.failed.or(failed);
        }
        self.settle(at)
    }

    /// A job was not begun after all.
    pub(super) fn cancel(&mut self, at: u16) {
        self.slots[usize::from(at)] = None;
        self.free.push(at);
    }
}
