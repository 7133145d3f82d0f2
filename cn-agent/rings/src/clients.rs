//! The clients of the port: their submissions go into the engine in turn, a bounded number each; completions
//! go back to where they came from.
//!
//! An operation is known to the engine by a number made of the client's place, the place's generation and the
//! client's own tag, so that nothing has to be looked up when it ends, and what ends after its client has gone
//! is recognised and dropped. No client has more operations under way than its completion ring has room, so a
//! completion always finds a place. Operations on more than a line, or on less, are [`bulk`](super::bulk)'s.
//!
//! Rights are checked at each step of an operation, not at its beginning only: a region may change hands meanwhile. A flush
//! is taken off its ring when it begins, so that its end depends on memory nodes alone, and the next client's flush on it.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{Ordering, fence};

use cxloe_wire::Transmit;
use cxloe_wire::frame::LINE_SIZE;
use cxloe_wire::time::Time;

use super::bulk::{BURST, Bulk, JobClient, Owner, Sending, Step};
use super::client::Client;
use super::owners::Owners;
use cxloe_client::ring::{Operation, RingBroken};
use cxloe_client::status::Status;
use cxloe_cn_core::cache::Line;
use cxloe_cn_core::engine::{Engine, EngineError, Flush, Read, Sink, Write};

/// Submissions taken from one client before the next has its turn.
const TURN: usize = 64;
/// Clients there can be at most, whatever the option says: places have 16 bits.
pub const CLIENTS_LIMIT: usize = 4096;

#[derive(Debug, Default)]
struct Place {
    generation: u16,
    client: Option<Box<Client>>,
}

/// What serving a round of submissions came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Submissions taken.
    pub taken: usize,
    /// Whether the engine was busy for one, which is tried again in the next round.
    pub backpressured: bool,
}

/// A flush under way, and the operation that it is.
#[derive(Debug)]
struct Flushing {
    owner: Owner,
    tag: u32,
    flush: Flush,
}

/// All clients.
#[derive(Debug)]
pub struct Clients {
    places: Vec<Place>,
    /// The places in use.
    active: Vec<u16>,
    /// The flush under way. Flushes of other clients wait for it.
    flushing: Option<Flushing>,
    bulk: Bulk,
    /// Whose turn it is to be served first.
    first: usize,
    /// Whose regions are where.
    owners: Owners,
    /// The CPU that clients were told the worker runs on.
    cpu: Option<u32>,
    /// Given up because of what they wrote into their rings.
    broken: u64,
    /// Whether [`active`](Self::active) has changed since it was asked last.
    changed: bool,
}

#[inline]
fn user(place: u16, generation: u16, tag: u32) -> u64 {
    u64::from(place) << 48 | u64::from(generation) << 32 | u64::from(tag)
}

impl Clients {
    /// With room for `most`.
    pub fn new(most: usize) -> Clients {
        Clients {
            places: (0..most).map(|_| Place::default()).collect(),
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

    /// How many there are.
    pub fn count(&self) -> usize {
        self.active.len()
    }

    /// How many were given up because they spoilt their rings.
    pub fn broken(&self) -> u64 {
        self.broken
    }

    /// Adds a client; a slot for it was taken, so there is a place.
    pub fn add(&mut self, mut client: Box<Client>) {
        let Some(at) = self.places.iter().position(|place| place.client.is_none()) else {
            tracing::error!("a client has a slot but no place; closing its port");
            return;
        };
        self.cpu.inspect(|cpu| client.end.set_cpu(*cpu));
        client.set_owners(&self.owners);
        self.places[at].client = Some(client);
        self.active.push(at as u16);
        self.changed = true;
        tracing::debug!(place = at, clients = self.active.len(), "port opened");
    }

    /// The region whose addresses begin at `hpa` belongs to this user, with all its window; `None`: to nobody any more.
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

    /// The clients' sockets, by position, if they are others than when this was asked last.
    pub fn changed_sockets(&mut self) -> Option<impl Iterator<Item = BorrowedFd<'_>>> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let client = |at: &u16| self.places[usize::from(*at)].client.as_ref();
        Some(self.active.iter().filter_map(client).map(|client| client.socket()))
    }

    /// Takes wake-ups off the sockets that `ready` names by position, and parts with clients that have gone.
    pub fn listen(&mut self, ready: impl Fn(usize) -> bool) {
        // From the end, because the places of those behind a removed one move up.
        for position in (0..self.active.len()).rev().filter(|position| ready(*position)) {
            let at = self.active[position];
            let gone = self.places[usize::from(at)].client.as_ref().is_none_or(|client| !client.listen());
            if gone {
                self.remove(at, "the client closed it or ended");
            }
        }
    }

    /// Hands submissions to the engine, but for lines at `mapped` addresses.
    #[inline]
    pub fn serve(
        &mut self,
        engine: &mut Engine,
        mapped: &[Range<u64>],
        now: Time,
        tx: &mut dyn Transmit,
    ) -> Served {
        let mut served = Served::default();
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
                tracing::warn!(place = at, %broken, "a client has spoilt its rings; closing its port");
                self.remove(at, "its rings are spoilt");
                // Positions have moved; the others have their turn in the next round.
                return served;
            }
        }
        if self.flushing.is_some() {
            self.flush_on(&mut to, &mut served);
        }
        served
    }

    /// Goes on with the flush under way.
    #[cold]
    fn flush_on(&mut self, to: &mut Sending<'_, '_>, served: &mut Served) {
        let Some(Flushing { owner, tag, flush }) = &mut self.flushing else { return };
        let status = match to.engine.flush_on(flush, to.now, to.tx) {
            Ok(true) => Status::Done,
            // What is sent counts as work: the link has to be kicked and looked at.
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
    fn write_patches(&mut self, to: &mut Sending<'_, '_>, served: &mut Served) {
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
        served: &mut Served,
    ) -> Result<(), RingBroken> {
        let Place { generation, client: Some(client) } = &mut self.places[usize::from(at)] else {
            return Ok(());
        };
        let owner = Owner { place: at, generation: *generation };
        for _ in 0..TURN {
            // What was submitted behind a flush waits for its end.
            if self.flushing.as_ref().is_some_and(|flushing| flushing.owner == owner) {
                return Ok(());
            }
            let Some(submission) = client.end.front() else { return Ok(()) };
            // Each one taken will need a place for its completion.
            if !client.end.has_room(client.in_flight)? {
                return Ok(());
            }
            let user = user(at, *generation, submission.tag);
            let hpa = submission.hpa;
            let outcome = match submission.operation {
                Operation::ReadBytes(_)
                | Operation::WriteBytes(_)
                | Operation::Zero(_)
                | Operation::Patch(_) => {
                    let Client { jobs, end, foreign, .. } = &mut **client;
                    let mut of = JobClient { owner, jobs, end, foreign };
                    match self.bulk.go_on(&mut of, &submission, to, &mut served.taken) {
                        Step::Through(None) => None,
                        Step::Through(Some((_, status))) => Some((status, None)),
                        Step::Later => {
                            served.taken += 1;
                            return Ok(());
                        }
                        Step::Busy => {
                            served.backpressured = true;
                            return Ok(());
                        }
                        Step::Full => return Ok(()),
                    }
                }
                Operation::Flush => {
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
                            match to.engine.read(hpa, user, to.now, to.tx) {
                                Ok(Read::Hit(line)) => Some((Status::Done, Some(line))),
                                Ok(Read::Sent) => None,
                                Err(error) => Some((Status::Failed(error), None)),
                            }
                        }
                        None if self.bulk.is_locked(hpa, LINE_SIZE as u64) => {
                            served.backpressured = true;
                            return Ok(());
                        }
                        None => match to.engine.write(hpa, client.end.front_line(), user, to.now, to.tx) {
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

    /// Wakes the clients that sleep and have completions; whether one that has runs on the worker's CPU, so that it only
    /// sees them when the worker makes room.
    #[inline]
    pub fn wake(&mut self) -> bool {
        let (mut fenced, mut beside) = (false, false);
        for at in &self.active {
            let Some(client) = &mut self.places[usize::from(*at)].client else { continue };
            if client.take_completed() {
                if !std::mem::replace(&mut fenced, true) {
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

    /// Says that the agent is about to sleep; whether something was submitted in the last moment, so that it
    /// must not.
    pub fn doze(&mut self) -> bool {
        self.set_asleep(true);
        fence(Ordering::SeqCst);
        let Clients { active, places, .. } = self;
        active.iter().any(|at| places[usize::from(*at)].client.as_mut().is_some_and(|c| c.end.news()))
    }

    /// Says whether the agent sleeps.
    pub fn set_asleep(&mut self, asleep: bool) {
        for at in &self.active {
            if let Some(client) = &mut self.places[usize::from(*at)].client {
                client.end.set_asleep(asleep);
            }
        }
    }

    /// Says on which CPU the worker runs.
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

    /// The CPUs on which clients that are awake were last.
    pub fn cpus(&self) -> impl Iterator<Item = u32> {
        let client = |at: &u16| self.places[usize::from(*at)].client.as_ref();
        self.active.iter().filter_map(client).filter_map(|client| client.end.client_cpu())
    }

    #[inline]
    fn end_burst(&mut self, user: u64, outcome: Result<&[u8], EngineError>) {
        let Clients { bulk, places, .. } = self;
        let Some(arrived) = bulk.arrived(user) else { return };
        let Some(client) = client_of(places, arrived.owner) else { return };
        if let Some(ended) = bulk.take(arrived, &mut client.jobs, &client.end, outcome) {
            client.end_job(ended);
        }
    }

    #[inline]
    fn end(&mut self, user: u64, status: Status, line: Option<&Line>) {
        let (at, generation, tag) = ((user >> 48) as usize, (user >> 32) as u16, user as u32);
        let Some(place) = self.places.get_mut(at) else { return };
        if let Some(client) = place.client.as_mut().filter(|_| place.generation == generation) {
            client.in_flight -= 1;
            client.complete(tag, status, line);
        }
    }
}

/// The client of this name, if it is still there.
#[inline]
fn client_of(places: &mut [Place], owner: Owner) -> Option<&mut Client> {
    let place =
        places.get_mut(usize::from(owner.place)).filter(|place| place.generation == owner.generation)?;
    place.client.as_deref_mut()
}

impl Sink for Clients {
    #[inline]
    fn read(&mut self, user: u64, data: &[u8]) {
        match user & BURST {
            0 => self.end(user, Status::Done, data.first_chunk()),
            _ => self.end_burst(user, Ok(data)),
        }
    }

    #[inline]
    fn written(&mut self, user: u64) {
        match user & BURST {
            0 => self.end(user, Status::Done, None),
            _ => self.end_burst(user, Ok(&[])),
        }
    }

    fn failed(&mut self, user: u64, error: EngineError) {
        match user & BURST {
            0 => self.end(user, Status::Failed(error), None),
            _ => self.end_burst(user, Err(error)),
        }
    }
}
