//! Serves all clients in rounds. In each round, a bounded number of submissions of each client go into the
//! engine, and completions return to the client's rings.
//!
//! The request id of an operation holds the client's slot, the slot's generation and the client's tag, so
//! that completing the operation needs no lookup table, and a result for a client that has disconnected is
//! recognised and dropped. No client has more operations in flight than its completion ring has free entries,
//! so a completion always finds an entry. Operations on several lines, or on part of one, are in
//! [`bulk`](super::bulk).
//!
//! Rights are checked at each step of an operation, not only when it starts, because a region may change
//! owners in between. A flush is taken off its ring when it starts, so that the client can delay neither the
//! end of this flush nor another client's.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{Ordering, fence};

use cxloe_wire::Transmit;
use cxloe_wire::frame::LINE_SIZE;
use cxloe_wire::time::Time;

use super::bulk::{Bulk, JobClient, Owner, Sending, SubmissionProgress};
use super::client::Client;
use super::owners::Owners;
use cxloe_client::ring::{Operation, RingBroken};
use cxloe_client::status::Status;
use cxloe_cn_core::cache::Line;
use cxloe_cn_core::engine::{Engine, EngineError, Flush, Read, RequestId, Sink, Write};

/// Number of submissions taken from one client before the next client's turn.
const TURN: usize = 64;
/// Maximum that the number of clients may be configured to; the index of a slot has 16 bits.
pub const CLIENTS_LIMIT: usize = 4096;

#[derive(Debug, Default)]
struct ClientIndex {
    generation: u16,
    client: Option<Box<Client>>,
}

/// Result of serving a round of submissions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundResult {
    /// Number of submissions taken from rings, plus the number of frames sent for operations on several lines.
    pub taken: usize,
    /// Whether work is left for the next round: the engine accepted no more submissions, or a flush is not complete.
    pub backpressured: bool,
}

/// A flush in progress: the client that requested it, and the tag of the client's operation.
#[derive(Debug)]
struct Flushing {
    owner: Owner,
    tag: u32,
    flush: Flush,
}

#[derive(Debug)]
pub struct Clients {
    places: Vec<ClientIndex>,
    /// Indices of the slots in use.
    active: Vec<u16>,
    /// The flush in progress; flushes of other clients wait for its end.
    flushing: Option<Flushing>,
    bulk: Bulk,
    /// Position in `active` of the client that is served first in the next round.
    first: usize,
    owners: Owners,
    /// The worker's CPU as last published to clients.
    cpu: Option<u32>,
    broken: u64,
    /// Whether [`active`](Self::active) has changed since the last call of `changed_sockets`.
    changed: bool,
}

impl Clients {
    /// Returns an empty set with slots for `most` clients.
    pub fn new(most: usize) -> Clients {
        Clients {
            places: (0..most).map(|_| ClientIndex::default()).collect(),
            active: Vec::with_capacity(most),
            flushing: None,
            bulk: Bulk::default(),
            first: 0,
            owners: Owners::default(),
            cpu: None,
            broken: 0,
            changed: false,
        }
    }

    pub fn count(&self) -> usize {
        self.active.len()
    }

    /// Number of clients disconnected because they corrupted their rings.
    pub fn broken(&self) -> u64 {
        self.broken
    }

    /// Adds a client; its [`ClientSlot`](super::client_slot::ClientSlot) guarantees room.
    pub fn add(&mut self, mut client: Box<Client>) {
        let Some(at) = self.places.iter().position(|place| place.client.is_none()) else {
            tracing::error!("a client has a slot but no index; closing its port");
            return;
        };
        self.cpu.inspect(|cpu| client.end.set_cpu(*cpu));
        client.set_owners(&self.owners);
        self.places[at].client = Some(client);
        self.active.push(at as u16);
        self.changed = true;
        tracing::debug!(place = at, clients = self.active.len(), "port opened");
    }

    /// Sets the owner of the region that begins at `hpa`. `owner` holds the size of the region's window in
    /// bytes and the user id; `None` removes the owner.
    pub fn set_owner(&mut self, hpa: u64, owner: Option<(u64, u32)>) {
        if !self.owners.set(hpa, owner) {
            return;
        }
        let Clients { places, owners, .. } = self;
        places
            .iter_mut()
            .filter_map(|place| place.client.as_mut())
            .for_each(|client| client.set_owners(owners));
    }

    fn remove(&mut self, at: u16, why: &str) {
        let place = &mut self.places[usize::from(at)];
        place.client = None;
        let owner = Owner { place: at, generation: place.generation };
        self.bulk.forget(owner);
        place.generation = place.generation.wrapping_add(1);
        self.active.retain(|active| *active != at);
        self.flushing = self.flushing.take().filter(|flushing| flushing.owner != owner);
        self.changed = true;
        tracing::debug!(place = at, clients = self.active.len(), why, "port closed");
    }

    /// The clients' sockets in the order of `active`; `None` if the set of clients has not changed since the last call.
    pub fn changed_sockets(&mut self) -> Option<impl Iterator<Item = BorrowedFd<'_>>> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let client = |at: &u16| self.places[usize::from(*at)].client.as_ref();
        Some(self.active.iter().filter_map(client).map(|client| client.socket()))
    }

    /// Reads wake-ups off the sockets of those clients for whose index in `active` the function `ready` returns true.
    /// Removes clients that have closed their sockets.
    pub fn drain_wakeups(&mut self, ready: impl Fn(usize) -> bool) {
        // Descending, because removing a client changes the indices of later clients.
        for position in (0..self.active.len()).rev().filter(|position| ready(*position)) {
            let at = self.active[position];
            let gone =
                self.places[usize::from(at)].client.as_ref().is_none_or(|client| !client.drain_wakeups());
            if gone {
                self.remove(at, "the client closed it or ended");
            }
        }
    }

    /// Passes submissions to the engine in one round, and refuses those for addresses in `mapped`.
    #[inline]
    pub fn serve(
        &mut self,
        engine: &mut Engine,
        mapped: &[Range<u64>],
        now: Time,
        tx: &mut dyn Transmit,
    ) -> RoundResult {
        let mut served = RoundResult::default();
        let mut to = Sending { engine, now, tx, mapped };
        if self.bulk.has_patches() {
            self.write_patches(&mut to, &mut served);
        }
        let count = self.active.len();
        self.first = if self.first + 1 < count { self.first + 1 } else { 0 };
        for position in (self.first..count).chain(0..self.first.min(count)) {
            let at = self.active[position];
            if let Err(broken) = self.serve_one(at, &mut to, &mut served) {
                self.broken += 1;
                tracing::warn!(place = at, %broken, "the rings of a client are invalid; closing its port");
                self.remove(at, "its rings are spoilt");
                // The removal has changed the indices in `active`, so the remaining clients are served in the next
                // round.
                return served;
            }
        }
        if self.flushing.is_some() {
            self.flush_on(&mut to, &mut served);
        }
        served
    }

    /// Continues the flush in progress, and completes it when the engine has nothing left to write back.
    #[cold]
    fn flush_on(&mut self, to: &mut Sending<'_, '_>, served: &mut RoundResult) {
        let Some(Flushing { owner, tag, flush }) = &mut self.flushing else { return };
        let status = match to.engine.flush_on(flush, to.now, to.tx) {
            Ok(true) => Status::Done,
            // Reported as backpressure, so that the worker continues the flush in another round soon.
            Ok(false) => {
                served.backpressured = true;
                return;
            }
            Err(error) => Status::Failed(error),
        };
        let (owner, tag) = (*owner, *tag);
        self.flushing = None;
        if let Some(client) = client_of(&mut self.places, owner) {
            client.end_job((tag, status));
        }
    }

    #[cold]
    fn write_patches(&mut self, to: &mut Sending<'_, '_>, served: &mut RoundResult) {
        let Clients { bulk, places, .. } = self;
        served.backpressured |= bulk.write_patches(
            to,
            |owner, step| {
                let Some(client) = client_of(places, owner) else { return };
                if let Some(ended) = step(&mut client.jobs, &client.foreign) {
                    client.end_job(ended);
                }
            },
            &mut served.taken,
        );
    }

    #[inline]
    fn serve_one(
        &mut self,
        at: u16,
        to: &mut Sending<'_, '_>,
        served: &mut RoundResult,
    ) -> Result<(), RingBroken> {
        let ClientIndex { generation, client: Some(client) } = &mut self.places[usize::from(at)] else {
            return Ok(());
        };
        let owner = Owner { place: at, generation: *generation };
        for _ in 0..TURN {
            // Submissions behind a flush wait for the end of that flush.
            if self.flushing.as_ref().is_some_and(|flushing| flushing.owner == owner) {
                return Ok(());
            }
            let Some(submission) = client.end.front() else { return Ok(()) };
            // Each submission taken needs room for its completion.
            if !client.end.has_room(client.in_flight)? {
                return Ok(());
            }
            let id = RequestId::ClientLine { slot: at, generation: *generation, tag: submission.tag };
            let hpa = submission.hpa;
            let outcome = match submission.operation {
                Operation::ReadBytes(_)
                | Operation::WriteBytes(_)
                | Operation::Zero(_)
                | Operation::Patch(_) => {
                    let Client { jobs, end, foreign, .. } = &mut **client;
                    let mut of = JobClient { owner, jobs, end, foreign };
                    match self.bulk.advance(&mut of, &submission, to, &mut served.taken) {
                        SubmissionProgress::Through(None) => None,
                        SubmissionProgress::Through(Some((_, status))) => Some((status, None)),
                        SubmissionProgress::Later => {
                            served.taken += 1;
                            return Ok(());
                        }
                        SubmissionProgress::Busy => {
                            served.backpressured = true;
                            return Ok(());
                        }
                        SubmissionProgress::Full => return Ok(()),
                    }
                }
                Operation::Flush => {
                    // A flush covers the client's earlier operations, so the client must have none in flight. One flush
                    // of all clients runs at a time.
                    if client.in_flight > 0 || self.flushing.is_some() {
                        return Ok(());
                    }
                    self.flushing = Some(Flushing { owner, tag: submission.tag, flush: Flush::default() });
                    None
                }
                Operation::Unknown(_) => Some((Status::BadOperation, None)),
                Operation::Read | Operation::Write => {
                    match to.refusal(&client.foreign, hpa, LINE_SIZE as u64) {
                        Some(error) => Some((Status::Failed(error), None)),
                        None if submission.operation == Operation::Read => {
                            match to.engine.read(hpa, id, to.now, to.tx) {
                                Ok(Read::Hit(line)) => Some((Status::Done, Some(line))),
                                Ok(Read::Sent) => None,
                                Err(error) => Some((Status::Failed(error), None)),
                            }
                        }
                        // Another client patches the line: a write sent now would be undone by the patch.
                        None if self.bulk.is_locked(hpa, LINE_SIZE as u64) => {
                            served.backpressured = true;
                            return Ok(());
                        }
                        None => match to.engine.write(hpa, client.end.front_line(), id, to.now, to.tx) {
                            Ok(Write::Done) => Some((Status::Done, None)),
                            Ok(Write::Sent) => None,
                            Err(error) => Some((Status::Failed(error), None)),
                        },
                    }
                }
            };
            match outcome {
                Some((Status::Failed(EngineError::Busy), _)) => {
                    served.backpressured = true;
                    return Ok(());
                }
                Some((status, line)) => client.complete(submission.tag, status, line.as_ref()),
                None => client.in_flight += 1,
            }
            client.end.release();
            served.taken += 1;
        }
        Ok(())
    }

    /// Wakes the clients that sleep and have completions. Returns whether an awake client with completions shares the
    /// worker's CPU: such a client sees its completions only when the worker yields.
    #[inline]
    pub fn wake(&mut self) -> bool {
        let (mut fenced, mut beside) = (false, false);
        for at in &self.active {
            let Some(client) = &mut self.places[usize::from(*at)].client else { continue };
            if client.take_completed() {
                if !std::mem::replace(&mut fenced, true) {
                    // Completions must be visible before the agent reads whether the client sleeps. A client
                    // that falls asleep does both in the opposite order, so one of the two sides notices the
                    // other.
                    fence(Ordering::SeqCst);
                }
                if client.end.wake_wanted() {
                    client.wake();
                }
                beside |= client.end.client_cpu().is_some_and(|cpu| Some(cpu) == self.cpu);
            }
        }
        beside
    }

    /// Publishes to clients that the agent is about to sleep. Returns true if a submission has just arrived; the agent
    /// must not sleep then.
    pub fn prepare_sleep(&mut self) -> bool {
        self.set_asleep(true);
        // The agent's flag must be visible before it reads the rings, or a submission could arrive unnoticed.
        fence(Ordering::SeqCst);
        let Clients { active, places, .. } = self;
        active.iter().any(|at| places[usize::from(*at)].client.as_mut().is_some_and(|c| c.end.news()))
    }

    /// Publishes to clients whether the agent sleeps, and so must be woken after a submission.
    pub fn set_asleep(&mut self, asleep: bool) {
        for at in &self.active {
            if let Some(client) = &mut self.places[usize::from(*at)].client {
                client.end.set_asleep(asleep);
            }
        }
    }

    /// Publishes the worker's CPU to clients.
    pub fn set_cpu(&mut self, cpu: u32) {
        if self.cpu.replace(cpu) == Some(cpu) {
            return;
        }
        for at in &self.active {
            if let Some(client) = &mut self.places[usize::from(*at)].client {
                client.end.set_cpu(cpu);
            }
        }
    }

    /// CPUs on which clients that are awake have last run.
    pub fn cpus(&self) -> impl Iterator<Item = u32> {
        let client = |at: &u16| self.places[usize::from(*at)].client.as_ref();
        self.active.iter().filter_map(client).filter_map(|client| client.end.client_cpu())
    }

    #[inline]
    fn end_burst(&mut self, burst: u16, outcome: Result<&[u8], EngineError>) {
        let Clients { bulk, places, .. } = self;
        let Some(arrived) = bulk.arrived(burst) else { return };
        let Some(client) = client_of(places, arrived.owner) else { return };
        if let Some(ended) = bulk.take(arrived, &mut client.jobs, &client.end, outcome) {
            client.end_job(ended);
        }
    }

    #[inline]
    fn end_line(&mut self, owner: Owner, tag: u32, status: Status, line: Option<&Line>) {
        if let Some(client) = client_of(&mut self.places, owner) {
            client.in_flight -= 1;
            client.complete(tag, status, line);
        }
    }
}

/// Returns the client `owner`, or `None` if the client has disconnected, even if its slot is in use again.
#[inline]
fn client_of(places: &mut [ClientIndex], owner: Owner) -> Option<&mut Client> {
    let place =
        places.get_mut(usize::from(owner.place)).filter(|place| place.generation == owner.generation)?;
    place.client.as_deref_mut()
}

impl Sink for Clients {
    #[inline]
    fn read(&mut self, id: RequestId, data: &[u8]) {
        match id {
            RequestId::ClientLine { slot, generation, tag } => {
                self.end_line(Owner { place: slot, generation }, tag, Status::Done, data.first_chunk());
            }
            RequestId::ClientBurst(burst) => self.end_burst(burst, Ok(data)),
            _ => {}
        }
    }

    #[inline]
    fn written(&mut self, id: RequestId) {
        match id {
            RequestId::ClientLine { slot, generation, tag } => {
                self.end_line(Owner { place: slot, generation }, tag, Status::Done, None);
            }
            RequestId::ClientBurst(burst) => self.end_burst(burst, Ok(&[])),
            _ => {}
        }
    }

    fn failed(&mut self, id: RequestId, error: EngineError) {
        match id {
            RequestId::ClientLine { slot, generation, tag } => {
                self.end_line(Owner { place: slot, generation }, tag, Status::Failed(error), None);
            }
            RequestId::ClientBurst(burst) => self.end_burst(burst, Err(error)),
            _ => {}
        }
    }
}
