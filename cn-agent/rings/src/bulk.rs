//! Client operations on several lines, or on part of a line. Each operation is a *job*, which is sent as *bursts*; as
//! many bursts are in flight as the engine accepts.
//!
//! ```text
//!   submission at the front of a ring --> Job, SegmentIter --> bursts --> Engine: bursts
//!                                          ^                          |
//!        completion <- all bursts ended -- settle <-- data area <-----+ answers (by burst)
//! ```
//!
//! The submissions of a client start in order: the one at the front of the client's ring is sent segment by segment,
//! and the next one starts once all segments are sent. Bursts are few and shared by all clients, so that the frames in
//! flight fit the smallest ring on the path; the client that is served first changes from round to round.
//!
//! A *patch* changes some bytes of a line: the line is read, changed and written. The line is locked from the read
//! until the write is sent, and other writes to the line wait for a later round. After the patch is sent, no lock is
//! needed: all requests for a page use one stream, which keeps them in order. So writers of one line never undo each
//! other's changes, even in different programs.
//!
//! All memory is allocated when the agent starts, and none while operations run.

use std::ops::Range;

use cxloe_wire::Transmit;
use cxloe_wire::frame::{BURST_LINES_MAX, LINE_SIZE};
use cxloe_wire::time::Time;

use super::jobs::{FinishedJob, Job, JobKind, Jobs};
use cxloe_client::ring::{AgentEnd, Lines, Operation, Submission};
use cxloe_client::status::Status;
use cxloe_cn_core::cache::Line;
use cxloe_cn_core::engine::{
    BurstRead, Direction, Engine, EngineError, RequestId, Segment, SegmentIter, Span, Write, touches,
};

/// Maximum number of bursts in flight for all clients together. Their frames fit the smallest ring on the
/// path, which is that of a veth with 256 frames.
pub const BURSTS_MAX: usize = 128;
/// Maximum number of lines that are patched (changed in part) at a time, for all clients together. Further patches wait
/// for a later round.
const PATCHES_MAX: usize = 64;
/// Number of segments sent for one client before the next client's turn.
const TURN: usize = 32;
const PAGE: usize = BURST_LINES_MAX * LINE_SIZE;

static ZEROS: [u8; PAGE] = [0; PAGE];

/// Identity of a client: its slot, and the slot's generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Index of the client's slot.
    pub place: u16,
    /// Number of clients that had the slot before this one. By this number, a late result for an earlier client is
    /// recognised.
    pub generation: u16,
}

#[derive(Clone, Copy, Debug)]
struct Burst {
    owner: Owner,
    job: u16,
    segment: Segment,
}

/// A line that is being patched, and that other writers may not write until the patch is sent.
#[derive(Clone, Copy, Debug)]
struct Patch {
    owner: Owner,
    job: u16,
    hpa: u64,
    /// One bit for each byte of the line, set if the patch changes the byte.
    mask: u64,
    /// New content of the line; complete when `read` is true.
    line: Line,
    read: bool,
}

impl Patch {
    /// Fills in the unchanged bytes from `before`, the old line.
    fn merge(&mut self, before: &[u8]) {
        for (index, (byte, before)) in self.line.iter_mut().zip(before).enumerate() {
            if self.mask >> index & 1 == 0 {
                *byte = *before;
            }
        }
        self.read = true;
    }
}

/// Outcome of sending segments of the submission at the front of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmissionProgress {
    /// All segments are sent, so the ring entry can be released. Contains the job's result if the job has already
    /// ended.
    Through(Option<FinishedJob>),
    /// The client has used up its turn, and continues in the next round.
    Later,
    /// The engine accepts no more frames; the submission continues in the next round.
    Busy,
    /// All bursts are in flight; the submission continues when one of them has ended.
    Full,
}

/// Bursts and patches of all clients.
#[derive(Debug)]
pub struct Bulk {
    bursts: Vec<Option<Burst>>,
    free: Vec<u16>,
    patches: Vec<Patch>,
    /// Buffer in which the lines of one burst write are collected.
    room: Box<[u8; PAGE]>,
}

impl Default for Bulk {
    fn default() -> Bulk {
        Bulk {
            bursts: vec![None; BURSTS_MAX],
            free: (0..BURSTS_MAX as u16).rev().collect(),
            patches: Vec::with_capacity(PATCHES_MAX),
            room: Box::new([0; PAGE]),
        }
    }
}

/// Parts of a client that [`Bulk::advance`] needs.
pub struct JobClient<'a> {
    pub owner: Owner,
    pub jobs: &'a mut Jobs,
    /// The agent's end of the client's rings and data area.
    pub end: &'a AgentEnd,
    /// Address ranges of regions that belong to other users, ascending.
    pub foreign: &'a [Range<u64>],
}

/// Arguments for sending frames that are the same for all clients in one round.
pub struct Sending<'a, 'b> {
    pub engine: &'a mut Engine,
    /// Time at the beginning of the round.
    pub now: Time,
    pub tx: &'a mut (dyn Transmit + 'b),
    /// Address ranges of regions that programs have mapped, which are refused to clients.
    pub mapped: &'a [Range<u64>],
}

impl Sending<'_, '_> {
    /// Returns the error for a client's access to the `bytes` bytes from `hpa` on; `None` if the access is permitted.
    /// An address in `foreign`, the ranges of other users, gives the same error as an address without a region.
    #[inline]
    pub(crate) fn refusal(&self, foreign: &[Range<u64>], hpa: u64, bytes: u64) -> Option<EngineError> {
        if foreign.is_empty() && self.mapped.is_empty() {
            return None;
        }
        if touches(foreign, hpa, bytes) {
            return Some(EngineError::Unmapped(hpa));
        }
        let mut mapped = self.mapped.iter();
        let overlaps = mapped.any(|range| range.start < hpa.saturating_add(bytes) && hpa < range.end);
        overlaps.then_some(EngineError::Mapped(hpa))
    }
}

impl Bulk {
    /// Whether one of the `bytes` bytes from `hpa` on lies in a line that is locked by a patch, so that a write has to
    /// wait.
    #[inline]
    pub(crate) fn is_locked(&self, hpa: u64, bytes: u64) -> bool {
        !self.patches.is_empty()
            && self.patches.iter().any(|patch| patch.hpa >= hpa && patch.hpa < hpa.saturating_add(bytes))
    }

    /// Drops the patches of a disconnected client. The client's bursts in flight stay until they are answered
    /// or fail.
    pub fn forget(&mut self, owner: Owner) {
        self.patches.retain(|patch| patch.owner != owner);
    }

    /// Continues the submission at the front of a client's ring: an operation on several lines, or on part of one line.
    /// Adds the number of frames sent to `sent`.
    #[inline]
    pub fn advance(
        &mut self,
        client: &mut JobClient<'_>,
        submission: &Submission,
        to: &mut Sending<'_, '_>,
        sent: &mut usize,
    ) -> SubmissionProgress {
        if client.jobs.current.is_none() {
            let begun = self.begin(client, submission, to, sent);
            let jobs = &mut client.jobs;
            match begun {
                Begun::SegmentIter(job, segment_iter) => jobs.current = Some((job, segment_iter)),
                Begun::Step(step) => return step,
            }
        }
        let JobClient { owner, end, foreign, ref mut jobs } = *client;
        let Jobs { current: Some((at, segment_iter)), slots, .. } = &mut **jobs else {
            return SubmissionProgress::Busy;
        };
        let at = *at;
        let Some(job) = &mut slots[usize::from(at)] else { return SubmissionProgress::Busy };
        let direction = if matches!(job.kind, JobKind::Read(_)) { Direction::Read } else { Direction::Write };
        for _ in 0..TURN {
            // After one segment has failed, the remaining ones are not sent.
            let segment =
                if job.failed.is_none() { segment_iter.segment(to.engine, direction) } else { None };
            let Some(segment) = segment else {
                jobs.current = None;
                return SubmissionProgress::Through(jobs.stop(at, None));
            };
            // Checked for each segment, because the region may have changed owners since the last round.
            let outcome = match to.refusal(foreign, segment.hpa, segment.extent()) {
                Some(error) => Err(error),
                None => self.send(owner, at, job, &segment, end, to),
            };
            match outcome {
                Ok(Some(())) => *sent += 1,
                Ok(None) => return SubmissionProgress::Full,
                Err(EngineError::Busy) => return SubmissionProgress::Busy,
                Err(error) => {
                    jobs.current = None;
                    return SubmissionProgress::Through(jobs.stop(at, Some(error)));
                }
            }
            segment_iter.advance(&segment);
        }
        SubmissionProgress::Later
    }

    /// Checks a submission and starts its job. A patch concerns one line only, so its read is sent here at once.
    fn begin(
        &mut self,
        client: &mut JobClient<'_>,
        submission: &Submission,
        to: &mut Sending<'_, '_>,
        sent: &mut usize,
    ) -> Begun {
        let JobClient { owner, end, foreign, ref mut jobs } = *client;
        let hpa = submission.hpa;
        let refused = |status| Begun::Step(SubmissionProgress::Through(Some((submission.tag, status))));
        let byte = |lines: Lines| lines.at as usize * LINE_SIZE;
        let (kind, count) = match submission.operation {
            Operation::ReadBytes(lines) => (JobKind::Read(byte(lines)), lines.count),
            Operation::WriteBytes(lines) => (JobKind::Write(byte(lines)), lines.count),
            Operation::Zero(count) => (JobKind::Zero, count),
            Operation::Patch(_) => (JobKind::Patch, 1),
            _ => return refused(Status::BadOperation),
        };
        let bytes = u64::from(count) * LINE_SIZE as u64;
        let Some(until) = hpa.checked_add(bytes) else {
            return refused(Status::Failed(EngineError::Unmapped(hpa)));
        };
        if !hpa.is_multiple_of(LINE_SIZE as u64) {
            return refused(Status::Failed(EngineError::Unaligned(hpa)));
        }
        if let Some(error) = to.refusal(foreign, hpa, bytes) {
            return refused(Status::Failed(error));
        }
        let Operation::Patch(mask) = submission.operation else {
            return match jobs.begin(submission.tag, hpa, kind) {
                Some(job) => Begun::SegmentIter(job, SegmentIter::new(hpa..until)),
                None => Begun::Step(SubmissionProgress::Busy),
            };
        };
        if self.patches.len() == PATCHES_MAX || self.is_locked(hpa, bytes) {
            return Begun::Step(SubmissionProgress::Busy);
        }
        // Copied now: the client can overwrite the ring entry at any time.
        let patch = Patch { owner, job: 0, hpa, mask, line: *end.front_line(), read: false };
        Begun::Step(self.begin_patch(patch, submission.tag, jobs, to, sent))
    }

    /// Reads the line to be patched, and locks it.
    fn begin_patch(
        &mut self,
        mut patch: Patch,
        tag: u32,
        jobs: &mut Jobs,
        to: &mut Sending<'_, '_>,
        sent: &mut usize,
    ) -> SubmissionProgress {
        let Patch { owner, hpa, .. } = patch;
        let Some(burst) = self.free.last().copied() else { return SubmissionProgress::Full };
        let Some(job) = jobs.begin(tag, hpa, JobKind::Patch) else { return SubmissionProgress::Busy };
        patch.job = job;
        let segment = to.engine.segment(hpa, 1);
        match to.engine.burst_read(&segment, RequestId::ClientBurst(burst), to.now, to.tx) {
            Ok(BurstRead::Sent) => {
                self.free.pop();
                self.bursts[usize::from(burst)] = Some(Burst { owner, job, segment });
                if let Some(job) = jobs.get(job) {
                    job.out += 1;
                }
                *sent += 1;
            }
            Ok(BurstRead::Here(data)) => patch.merge(data),
            Ok(BurstRead::Alike(line)) => patch.merge(&line),
            Err(EngineError::Busy) => {
                jobs.cancel(job);
                return SubmissionProgress::Busy;
            }
            Err(error) => return SubmissionProgress::Through(jobs.stop(job, Some(error))),
        }
        // A line that was available here, for example in the line cache, is patched in the next round.
        self.patches.push(patch);
        SubmissionProgress::Through(None)
    }

    /// Writes the patches whose lines have been read. `step_of` calls its argument with the jobs of the patch's client
    /// and with the address ranges of other users. Returns whether a patch must wait because the engine was busy.
    #[cold]
    pub(crate) fn write_patches(
        &mut self,
        to: &mut Sending<'_, '_>,
        mut step_of: impl FnMut(Owner, &mut dyn FnMut(&mut Jobs, &[Range<u64>]) -> Option<FinishedJob>),
        sent: &mut usize,
    ) -> bool {
        let mut waits = false;
        let mut index = 0;
        while let Some(patch) = self.patches.get(index).copied() {
            let mut stays = true;
            if patch.read {
                step_of(patch.owner, &mut |jobs, foreign| {
                    let outcome = match to.refusal(foreign, patch.hpa, LINE_SIZE as u64) {
                        Some(error) => Err(error),
                        None => self.write_patch(&patch, to),
                    };
                    if outcome == Err(EngineError::Busy) {
                        waits = true;
                        return None;
                    }
                    stays = false;
                    *sent += 1;
                    if let (Ok(Write::Sent), Some(job)) = (outcome, jobs.get(patch.job)) {
                        job.out += 1;
                    }
                    jobs.stop(patch.job, outcome.err())
                });
            }
            if stays {
                index += 1;
            } else {
                self.patches.swap_remove(index);
            }
        }
        waits
    }

    fn write_patch(&mut self, patch: &Patch, to: &mut Sending<'_, '_>) -> Result<Write, EngineError> {
        let Some(burst) = self.free.last().copied() else { return Err(EngineError::Busy) };
        let segment = to.engine.segment(patch.hpa, 1);
        let id = RequestId::ClientBurst(burst);
        let written = to.engine.burst_write(&segment, 1, &patch.line, id, to.now, to.tx)?;
        if written == Write::Sent {
            self.free.pop();
            let Patch { owner, job, .. } = *patch;
            self.bursts[usize::from(burst)] = Some(Burst { owner, job, segment });
        }
        Ok(written)
    }

    /// Sends a segment of a job; `None` if no burst is free.
    #[inline]
    fn send(
        &mut self,
        owner: Owner,
        at: u16,
        job: &mut Job,
        segment: &Segment,
        end: &AgentEnd,
        to: &mut Sending<'_, '_>,
    ) -> Result<Option<()>, EngineError> {
        let Some(burst) = self.free.last().copied() else { return Ok(None) };
        let id = RequestId::ClientBurst(burst);
        let offset = (segment.hpa - job.hpa) as usize;
        let mask = u64::MAX >> (BURST_LINES_MAX - segment.lines);
        let bytes = segment.lines * LINE_SIZE;
        let on_its_way = match job.kind {
            JobKind::Read(area) => match to.engine.burst_read(segment, id, to.now, to.tx)? {
                BurstRead::Sent => true,
                BurstRead::Here(data) => {
                    scatter(end, area + offset, segment, data);
                    false
                }
                BurstRead::Alike(line) => {
                    scatter(end, area + offset, segment, [line; BURST_LINES_MAX].as_flattened());
                    false
                }
            },
            _ if self.is_locked(segment.hpa, segment.extent()) => return Err(EngineError::Busy),
            JobKind::Write(area) => {
                for Span { first, lines, offset: along } in segment.spans() {
                    let room = &mut self.room[first * LINE_SIZE..(first + lines) * LINE_SIZE];
                    end.copy(area + offset + along as usize, room);
                }
                let data = &self.room[..bytes];
                to.engine.burst_write(segment, mask, data, id, to.now, to.tx)? == Write::Sent
            }
            JobKind::Zero | JobKind::Patch => {
                to.engine.burst_write(segment, mask, &ZEROS[..bytes], id, to.now, to.tx)? == Write::Sent
            }
        };
        if on_its_way {
            self.free.pop();
            self.bursts[usize::from(burst)] = Some(Burst { owner, job: at, segment: *segment });
            job.out += 1;
        }
        Ok(Some(()))
    }

    /// Frees the burst of this index, which has ended. Returns `None` if the index is not in use.
    #[inline]
    pub fn arrived(&mut self, at: u16) -> Option<FinishedBurst> {
        let Burst { owner, job, segment } = self.bursts.get_mut(usize::from(at))?.take()?;
        self.free.push(at);
        Some(FinishedBurst { owner, job, segment })
    }

    /// Applies the outcome of a burst to its job: the data that was read, an empty slice after a write, or an error.
    /// Returns the job's result if the job has now ended.
    #[inline]
    pub fn take(
        &mut self,
        arrived: FinishedBurst,
        jobs: &mut Jobs,
        end: &AgentEnd,
        outcome: Result<&[u8], EngineError>,
    ) -> Option<FinishedJob> {
        let FinishedBurst { owner, job: at, segment } = arrived;
        let job = jobs.get(at)?;
        job.out -= 1;
        match (job.kind, outcome) {
            (JobKind::Read(area), Ok(data)) => {
                scatter(end, area + (segment.hpa - job.hpa) as usize, &segment, data)
            }
            (JobKind::Patch, outcome) if !job.sent => return self.patch_read(owner, at, jobs, outcome),
            (_, Ok(_)) => {}
            (_, Err(error)) => job.failed = job.failed.or(Some(error)),
        }
        jobs.settle(at)
    }

    #[cold]
    fn patch_read(
        &mut self,
        owner: Owner,
        job: u16,
        jobs: &mut Jobs,
        outcome: Result<&[u8], EngineError>,
    ) -> Option<FinishedJob> {
        let index = self.patches.iter().position(|patch| patch.owner == owner && patch.job == job)?;
        match outcome {
            Ok(data) => {
                self.patches[index].merge(data);
                None
            }
            Err(error) => {
                self.patches.swap_remove(index);
                jobs.stop(job, Some(error))
            }
        }
    }

    #[inline]
    pub(crate) fn has_patches(&self) -> bool {
        !self.patches.is_empty()
    }
}

/// A burst that has ended; the data that it read is passed separately.
#[derive(Clone, Copy, Debug)]
pub struct FinishedBurst {
    pub owner: Owner,
    job: u16,
    segment: Segment,
}

enum Begun {
    SegmentIter(u16, SegmentIter),
    Step(SubmissionProgress),
}

/// Copies the lines of a segment into the data area, the segment's first byte to offset `at`.
#[inline]
fn scatter(end: &AgentEnd, at: usize, segment: &Segment, data: &[u8]) {
    for Span { first, lines, offset } in segment.spans() {
        if let Some(lines) = data.get(first * LINE_SIZE..(first + lines) * LINE_SIZE) {
            end.put(at + offset as usize, lines);
        }
    }
}
