//! The jobs of one client: its operations on several lines, or on part of one, until they end.

use cxloe_client::ring::ENTRIES;
use cxloe_client::status::Status;
use cxloe_cn_core::engine::{EngineError, SegmentIter};

/// Maximum number of jobs of one client: one for each entry of a ring.
const JOBS_MAX: usize = ENTRIES;

/// Kind of a job. The numbers are offsets in the client's data area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobKind {
    /// The data that is read goes to the data area, from this offset on.
    Read(usize),
    /// The data to write comes from the data area, from this offset on.
    Write(usize),
    Zero,
    Patch,
}

/// An operation in progress on several lines, or on part of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub tag: u32,
    pub hpa: u64,
    pub kind: JobKind,
    /// Number of bursts in flight.
    pub out: u16,
    /// Whether no further segment will be sent.
    pub sent: bool,
    pub failed: Option<EngineError>,
}

/// Jobs of one client. The index of a job stays the same until the job ends.
#[derive(Debug)]
pub struct Jobs {
    pub(super) slots: Vec<Option<Job>>,
    free: Vec<u16>,
    /// The job whose segments are being sent.
    pub(super) current: Option<(u16, SegmentIter)>,
}

impl Default for Jobs {
    fn default() -> Jobs {
        Jobs { slots: vec![None; JOBS_MAX], free: (0..JOBS_MAX as u16).rev().collect(), current: None }
    }
}

/// The tag of a job that has ended, and its result.
pub type FinishedJob = (u32, Status);

impl Jobs {
    /// Starts a job in a free slot; `None` if no slot is free.
    pub(super) fn begin(&mut self, tag: u32, hpa: u64, kind: JobKind) -> Option<u16> {
        let at = self.free.pop()?;
        self.slots[usize::from(at)] = Some(Job { tag, hpa, kind, out: 0, sent: false, failed: None });
        Some(at)
    }

    #[inline]
    pub(super) fn get(&mut self, at: u16) -> Option<&mut Job> {
        self.slots.get_mut(usize::from(at))?.as_mut()
    }

    /// Ends a job and returns its result, unless a burst of the job is in flight or still to be sent.
    #[inline]
    pub(super) fn settle(&mut self, at: u16) -> Option<FinishedJob> {
        let job = self.get(at).filter(|job| job.out == 0 && job.sent)?;
        let ended = (job.tag, job.failed.map_or(Status::Done, Status::Failed));
        self.slots[usize::from(at)] = None;
        self.free.push(at);
        Some(ended)
    }

    /// Stops sending segments of a job, and ends the job if none of its bursts is in flight.
    pub(super) fn stop(&mut self, at: u16, failed: Option<EngineError>) -> Option<FinishedJob> {
        if let Some(job) = self.get(at) {
            job.sent = true;
            job.failed = job.failed.or(failed);
        }
        self.settle(at)
    }

    /// Removes a job for which no frame was sent.
    pub(super) fn cancel(&mut self, at: u16) {
        self.slots[usize::from(at)] = None;
        self.free.push(at);
    }
}
