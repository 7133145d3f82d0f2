//! Operations of clients on more than a line, or on less: each is a *job* that travels in *bursts*, one burst each, as many
//! at once as the engine takes.
//!
//! ```text
//!   submission at the front of a ring --> Job, SegmentIter --> bursts --> Engine: bursts
//!                                          ^                          |
//!        completion <--- all are back ---- settle <-- data area <-----+ answers (by burst)
//! ```
//!
//! A client's submissions are begun in their order: the one at the front of its ring is sent segment by segment, and makes
//! room for the next when all its segments are sent. Bursts are few and shared by all clients, so that the frames on their
//! way fit the smallest ring there is; the client that is served first changes from round to round.
//!
//! A *patch* changes some bytes of a line: the line is read, changed and written. From the read to the moment in which the
//! write is sent the line is locked, and whoever else wants to write it waits a round; afterwards the order of the page's
//! stream keeps them apart. So writers of one line never undo each other, whichever programs they are.
//!
//! Everything has a place from the start: nothing is allocated later.

use std::ops::Range;

use cxloe_wire::Transmit;
use cxloe_wire::frame::{BURST_LINES_MAX, LINE_SIZE};
use cxloe_wire::time::Time;

use super::jobs::{Ended, Job, Jobs, Way};
use super::owners::touches;
use cxloe_client::ring::{AgentEnd, Lines, Operation, Submission};
use cxloe_client::status::Status;
use cxloe_cn_core::cache::Line;
use cxloe_cn_core::engine::{BurstRead, Direction, Engine, EngineError, Segment, SegmentIter, Span, Write};

/// What tells user values of bursts from those of lines.
pub const BURST: u64 = 1 << 62;
/// Bursts on their way at once, of all clients: few enough for the smallest ring on the way (256 frames in a veth).
pub const BURSTS_MAX: usize = 128;
/// Lines being patched at once, of all clients.
const PATCHES_MAX: usize = 64;
/// Pieces sent for one client before the next has its turn.
const TURN: usize = 32;
const PAGE: usize = BURST_LINES_MAX * LINE_SIZE;

static ZEROS: [u8; PAGE] = [0; PAGE];

/// A client: its place, and the place's generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its place.
    pub place: u16,
    /// The place's generation.
    pub generation: u16,
}

#[derive(Clone, Copy, Debug)]
struct Burst {
    owner: Owner,
    job: u16,
    segment: Segment,
}

/// A line that is being patched, and locked.
#[derive(Clone, Copy, Debug)]
struct Patch {
    owner: Owner,
    job: u16,
    hpa: u64,
    /// Which bytes are new, a bit each.
    mask: u64,
    /// Once it was read: all of the line as it is to be.
    line: Line,
    read: bool,
}

impl Patch {
    /// The line is `before`.
    fn merge(&mut self, before: &[u8]) {
        for (index, (byte, before)) in self.line.iter_mut().zip(before).enumerate() {
            if self.mask >> index & 1 == 0 {
                *byte = *before;
            }
        }
        self.read = true;
    }
}

/// What has become of the submission at the front of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// All of it is sent: its place can be given back. If it has ended with that, how.
    Through(Option<Ended>),
    /// Its client has had its turn.
    Later,
    /// The engine is busy: try again soon.
    Busy,
    /// All bursts are on their way.
    Full,
}

/// What the clients' jobs share.
#[derive(Debug)]
pub struct Bulk {
    bursts: Vec<Option<Burst>>,
    free: Vec<u16>,
    patches: Vec<Patch>,
    /// Room for what a write gathers.
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

/// The parts of a client that its jobs need.
pub struct JobClient<'a> {
    /// Its name.
    pub owner: Owner,
    /// Its jobs.
    pub jobs: &'a mut Jobs,
    /// Its ring, for the line of the submission at the front, and the data area.
    pub end: &'a AgentEnd,
    /// Addresses that are other users', ascending.
    pub foreign: &'a [Range<u64>],
}

/// What sending takes.
pub struct Sending<'a, 'b> {
    /// Where to.
    pub engine: &'a mut Engine,
    /// What time it is.
    pub now: Time,
    /// The link.
    pub tx: &'a mut (dyn Transmit + 'b),
    /// Addresses that are mapped, and not to be touched.
    pub mapped: &'a [Range<u64>],
}

impl Sending<'_, '_> {
    /// The reason why a client must not touch `bytes` bytes from `hpa` on, if there is one. Those in `foreign` are another
    /// user's, and are to it as if there were no region.
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
    /// Whether a line of `bytes` bytes from `hpa` on must not be written now.
    #[inline]
    pub fn is_locked(&self, hpa: u64, bytes: u64) -> bool {
        !self.patches.is_empty()
            && self.patches.iter().any(|patch| patch.hpa >= hpa && patch.hpa < hpa.saturating_add(bytes))
    }

    /// A client has gone: what it patched is nobody's. What is on its way ends by itself.
    pub fn forget(&mut self, owner: Owner) {
        self.patches.retain(|patch| patch.owner != owner);
    }

    /// Goes on with the submission at the front of a client's ring, which is none for a single line. `sent` counts frames.
    #[inline]
    pub fn go_on(
        &mut self,
        client: &mut JobClient<'_>,
        submission: &Submission,
        to: &mut Sending<'_, '_>,
        sent: &mut usize,
    ) -> Step {
        if client.jobs.current.is_none() {
            let begun = self.begin(client, submission, to, sent);
            let jobs = &mut client.jobs;
            match begun {
                Begun::SegmentIter(job, segment_iter) => jobs.current = Some((job, segment_iter)),
                Begun::Step(step) => return step,
            }
        }
        let JobClient { owner, end, foreign, ref mut jobs } = *client;
        let Jobs { current: Some((at, segment_iter)), slots, .. } = &mut **jobs else { return Step::Busy };
        let at = *at;
        let Some(job) = &mut slots[usize::from(at)] else { return Step::Busy };
        let direction = if matches!(job.way, Way::Read(_)) { Direction::Read } else { Direction::Write };
        for _ in 0..TURN {
            // One segment may have failed while others were being sent.
            let segment =
                if job.failed.is_none() { segment_iter.segment(to.engine, direction) } else { None };
            let Some(segment) = segment else {
                jobs.current = None;
                return Step::Through(jobs.stop(at, None));
            };
            let outcome = match to.refusal(foreign, segment.hpa, segment.extent()) {
                Some(error) => Err(error),
                None => self.send(owner, at, job, &segment, end, to),
            };
            match outcome {
                Ok(Some(())) => *sent += 1,
                Ok(None) => return Step::Full,
                Err(EngineError::Busy) => return Step::Busy,
                Err(error) => {
                    jobs.current = None;
                    return Step::Through(jobs.stop(at, Some(error)));
                }
            }
            segment_iter.advance(&segment);
        }
        Step::Later
    }

    /// Begins with a submission.
    fn begin(
        &mut self,
        client: &mut JobClient<'_>,
        submission: &Submission,
        to: &mut Sending<'_, '_>,
        sent: &mut usize,
    ) -> Begun {
        let JobClient { owner, end, foreign, ref mut jobs } = *client;
        let hpa = submission.hpa;
        let refused = |status| Begun::Step(Step::Through(Some((submission.tag, status))));
        let byte = |lines: Lines| lines.at as usize * LINE_SIZE;
        let (way, count) = match submission.operation {
            Operation::ReadBytes(lines) => (Way::Read(byte(lines)), lines.count),
            Operation::WriteBytes(lines) => (Way::Write(byte(lines)), lines.count),
            Operation::Zero(count) => (Way::Zero, count),
            Operation::Patch(_) => (Way::Patch, 1),
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
            return match jobs.begin(submission.tag, hpa, way) {
                Some(job) => Begun::SegmentIter(job, SegmentIter::new(hpa..until)),
                None => Begun::Step(Step::Busy),
            };
        };
        if self.patches.len() == PATCHES_MAX || self.is_locked(hpa, bytes) {
            return Begun::Step(Step::Busy);
        }
        let patch = Patch { owner, job: 0, hpa, mask, line: *end.front_line(), read: false };
        Begun::Step(self.begin_patch(patch, submission.tag, jobs, to, sent))
    }

    /// Reads the line that is to be changed, and locks it.
    fn begin_patch(
        &mut self,
        mut patch: Patch,
        tag: u32,
        jobs: &mut Jobs,
        to: &mut Sending<'_, '_>,
        sent: &mut usize,
    ) -> Step {
        let Patch { owner, hpa, .. } = patch;
        let Some(burst) = self.free.last().copied() else { return Step::Full };
        let Some(job) = jobs.begin(tag, hpa, Way::Patch) else { return Step::Busy };
        patch.job = job;
        let segment = to.engine.segment(hpa, 1);
        match to.engine.burst_read(&segment, BURST | u64::from(burst), to.now, to.tx) {
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
                return Step::Busy;
            }
            Err(error) => return Step::Through(jobs.stop(job, Some(error))),
        }
        // If it is read already, it is written with the next round.
        self.patches.push(patch);
        Step::Through(None)
    }

    /// Writes the patches that were read. `step_of` finds the client of each, and has its step done with its jobs and the
    /// addresses that are foreign to it; what the step returns has ended. Returns whether a patch has to wait.
    #[cold]
    pub fn write_patches(
        &mut self,
        to: &mut Sending<'_, '_>,
        mut step_of: impl FnMut(Owner, &mut dyn FnMut(&mut Jobs, &[Range<u64>]) -> Option<Ended>),
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
        let user = BURST | u64::from(burst);
        let written = to.engine.burst_write(&segment, 1, &patch.line, user, to.now, to.tx)?;
        if written == Write::Sent {
            self.free.pop();
            let Patch { owner, job, .. } = *patch;
            self.bursts[usize::from(burst)] = Some(Burst { owner, job, segment });
        }
        Ok(written)
    }

    /// Sends a segment of a job; `None` if there is no burst.
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
        let user = BURST | u64::from(burst);
        let offset = (segment.hpa - job.hpa) as usize;
        let mask = u64::MAX >> (BURST_LINES_MAX - segment.lines);
        let bytes = segment.lines * LINE_SIZE;
        let on_its_way = match job.way {
            Way::Read(area) => match to.engine.burst_read(segment, user, to.now, to.tx)? {
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
            Way::Write(area) => {
                for Span { first, lines, offset: along } in segment.spans() {
                    let room = &mut self.room[first * LINE_SIZE..(first + lines) * LINE_SIZE];
                    end.copy(area + offset + along as usize, room);
                }
                let data = &self.room[..bytes];
                to.engine.burst_write(segment, mask, data, user, to.now, to.tx)? == Write::Sent
            }
            Way::Zero | Way::Patch => {
                to.engine.burst_write(segment, mask, &ZEROS[..bytes], user, to.now, to.tx)? == Write::Sent
            }
        };
        if on_its_way {
            self.free.pop();
            self.bursts[usize::from(burst)] = Some(Burst { owner, job: at, segment: *segment });
            job.out += 1;
        }
        Ok(Some(()))
    }

    /// Whose the burst of this user value is, which is back.
    #[inline]
    pub fn arrived(&mut self, user: u64) -> Option<Arrived> {
        let at = (user & !BURST) as usize;
        let Burst { owner, job, segment } = self.bursts.get_mut(at)?.take()?;
        self.free.push(at as u16);
        Some(Arrived { owner, job, segment })
    }

    /// A burst of this client is back: with what was read, or with nothing, or with an error.
    #[inline]
    pub fn take(
        &mut self,
        arrived: Arrived,
        jobs: &mut Jobs,
        end: &AgentEnd,
        outcome: Result<&[u8], EngineError>,
    ) -> Option<Ended> {
        let Arrived { owner, job: at, segment } = arrived;
        let job = jobs.get(at)?;
        job.out -= 1;
        match (job.way, outcome) {
            (Way::Read(area), Ok(data)) => {
                scatter(end, area + (segment.hpa - job.hpa) as usize, &segment, data)
            }
            (Way::Patch, outcome) if !job.sent => return self.patch_read(owner, at, jobs, outcome),
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
    ) -> Option<Ended> {
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

    /// Whether a patch waits for its turn to be written.
    #[inline]
    pub fn has_patches(&self) -> bool {
        !self.patches.is_empty()
    }
}

/// A burst that is back.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    /// Whose it is.
    pub owner: Owner,
    job: u16,
    segment: Segment,
}

enum Begun {
    SegmentIter(u16, SegmentIter),
    Step(Step),
}

/// Puts the lines of a segment where they belong in the data area, in which byte `at` is the segment's first.
#[inline]
fn scatter(end: &AgentEnd, at: usize, segment: &Segment, data: &[u8]) {
    for Span { first, lines, offset } in segment.spans() {
        if let Some(lines) = data.get(first * LINE_SIZE..(first + lines) * LINE_SIZE) {
            end.put(at + offset as usize, lines);
        }
    }
}
