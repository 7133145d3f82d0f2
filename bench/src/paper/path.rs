//! Requests timed along their path (Fig. 8): the memory node's service in a thread of its own, the engine in the calling
//! one, and a note at both ends of each moment a request passes.
//!
//! The loops are those of the daemons, with the notes between their steps. Nothing is sent for the sake of measuring: each
//! end writes into memory of its own, and what belongs together is found afterwards ([`super::parts::join`]). Both read
//! CLOCK_MONOTONIC, which is the same on all cores. With the notes switched off, the same loops tell what they cost.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cxloe_cn_core::engine::{Engine, EngineError, Read, Sink, Write};
use cxloe_daemon::pin;
use cxloe_link::Clock;
use cxloe_link::{Backend, Link, LinkError};
use cxloe_mn_core::service::Service;
use cxloe_mn_core::trace::Trace;
use cxloe_mn_core::translation::{PageTable, TLB_ENTRIES_DEFAULT};
use cxloe_port::port::Parts as PortParts;
use cxloe_wire::frame::{Command, Header, LINE_SIZE};
use cxloe_wire::session::ResponderConfig;

use super::PaperError;
use super::ends::Ends;
use super::parts::{Seen, Sent};

/// Frames taken from a ring in one go, as by worker and port.
const BATCH: usize = 64;
/// How long operations may take to end, all together.
const PATIENCE: Duration = Duration::from_secs(120);
/// Turns without a frame between two looks at clock and flags.
const SPINS: u32 = 64;

/// The common clock: nanoseconds of CLOCK_MONOTONIC since a common start, never 0.
#[derive(Clone, Copy)]
struct Common(Instant);

impl Common {
    #[inline]
    fn now(self) -> u64 {
        self.0.elapsed().as_nanos() as u64 + 1
    }
}

/// When the service last reached the pool, if that is being noted.
#[derive(Clone)]
struct Access {
    clock: Common,
    on: Rc<Cell<bool>>,
    at: Rc<Cell<u64>>,
}

impl Trace for Access {
    #[inline]
    fn access(&mut self) {
        if self.on.get() {
            self.at.set(self.clock.now());
        }
    }
}

/// What both threads look at.
#[derive(Default)]
struct Flags {
    stop: AtomicBool,
    notes: AtomicBool,
}

/// Both ends of a path, ready to send requests along it.
pub struct Path {
    clock: Common,
    flags: Arc<Flags>,
    node: Option<JoinHandle<Result<Vec<Seen>, LinkError>>>,
    port: PortParts,
    hpa: u64,
}

/// An operation on a line of the region.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// Its offset in the region, a multiple of 64.
    pub offset: u64,
    /// Whether it writes.
    pub write: bool,
}

impl Drop for Path {
    fn drop(&mut self) {
        self.flags.stop.store(true, Ordering::Release);
        if let Some(node) = self.node.take() {
            let _ = node.join();
        }
    }
}

impl Path {
    /// Starts the memory node's thread and opens a session with it.
    pub fn open(ends: &Ends, backend: Backend) -> Result<Path, PaperError> {
        let (clock, flags) = (Common(Instant::now()), Arc::new(Flags::default()));
        let (link, config) = ends.memory_node(backend, ends.wait())?;
        let (table, theirs) = (Arc::clone(ends.table()), ends.cores.map(|(_, theirs)| theirs));
        let shared = Arc::clone(&flags);
        let node = thread::Builder::new()
            .name("path-mn".into())
            .spawn(move || {
                if let Some(cpu) = theirs {
                    pin(cpu);
                }
                serve(link, config, table, clock, &shared)
            })
            .map_err(PaperError::io("starting the memory node's thread"))?;
        // From here on, an error ends the thread.
        let opened = ends.port(backend, ends.wait());
        match opened {
            Ok((port, _)) => {
                Ok(Path { clock, flags, node: Some(node), port: port.into_parts(), hpa: ends.hpa() })
            }
            Err(error) => {
                flags.stop.store(true, Ordering::Release);
                let _ = node.join();
                Err(error)
            }
        }
    }

    /// Whether both ends note moments from now on, except those at which an operation begins and ends.
    pub fn note(&self, on: bool) {
        self.flags.notes.store(on, Ordering::Release);
    }

    /// Carries out `operations`, at most `depth` in flight, and says when each passed this end. `left` and `arrived` are
    /// 0 while notes are off.
    pub fn run(&mut self, operations: &[Operation], depth: usize) -> Result<Vec<Sent>, PaperError> {
        let (clock, notes) = (self.clock, self.flags.notes.load(Ordering::Acquire));
        let PortParts { link, engine, clock: time, .. } = &mut self.port;
        let started = Instant::now();
        let mut line = [0_u8; LINE_SIZE];
        let mut taker = Taker {
            clock,
            arrived: 0,
            done: 0,
            error: None,
            sent: operations
                .iter()
                .map(|o| Sent { addr: o.offset, write: o.write, ..Sent::default() })
                .collect(),
        };
        let (mut next, mut empty) = (0, 0_u32);
        while taker.done < operations.len() {
            let first = next;
            while next < operations.len() && next - taker.done < depth {
                let (at, user) = (self.hpa + operations[next].offset, next as u64);
                // The first attempt counts: an operation that has to wait waits in part a.
                if taker.sent[next].asked == 0 {
                    taker.sent[next].asked = clock.now();
                }
                let (now, tx) = (time.now(), link.transmit());
                let begun = if operations[next].write {
                    line[..8].copy_from_slice(&user.to_le_bytes());
                    engine.write(at, &line, user, now, tx).map(|w| w == Write::Sent)
                } else {
                    engine.read(at, user, now, tx).map(|r| r == Read::Sent)
                };
                match begun {
                    Ok(true) => next += 1,
                    // Without a cache, only what a lost session has left behind is answered here; its parts say nothing.
                    Ok(false) => {
                        taker.arrived = 0;
                        taker.end(user);
                        next += 1;
                    }
                    Err(EngineError::Busy) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            if notes && next > first {
                let now = clock.now();
                taker.sent[first..next].iter_mut().for_each(|sent| sent.left = now);
            }
            link.flush()?;
            let received = receive(&mut **link, engine, time, &mut taker, notes)?;
            if let Some(error) = taker.error {
                return Err(error.into());
            }
            empty = if received > 0 { 0 } else { empty.wrapping_add(1) };
            if !empty.is_multiple_of(SPINS) {
                std::hint::spin_loop();
            } else {
                let now = time.now();
                if now >= engine.deadline() {
                    engine.poll(now, link.transmit(), &mut taker);
                    link.flush()?;
                }
                if self.node.as_ref().is_some_and(JoinHandle::is_finished) {
                    // Only an error ends it while nobody has asked it to.
                    return self.close_node().map(|_| Vec::new());
                }
                if started.elapsed() > PATIENCE {
                    let (of, seconds) = (operations.len(), PATIENCE.as_secs());
                    let sessions = serde_json::to_string(&engine.sessions()).unwrap_or_default();
                    let session = format!("{sessions}, {} operations in flight", engine.in_flight());
                    return Err(PaperError::Stuck { left: of - taker.done, of, seconds, session });
                }
            }
        }
        Ok(taker.sent)
    }

    /// Ends both ends; what the memory node noted.
    pub fn close(mut self) -> Result<Vec<Seen>, PaperError> {
        self.close_node()
    }

    fn close_node(&mut self) -> Result<Vec<Seen>, PaperError> {
        self.flags.stop.store(true, Ordering::Release);
        match self.node.take().map(JoinHandle::join) {
            Some(Ok(seen)) => Ok(seen?),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(Vec::new()),
        }
    }
}

/// Hands what has arrived to the engine.
#[inline]
fn receive(
    link: &mut dyn Link,
    engine: &mut Engine,
    time: &Clock,
    taker: &mut Taker,
    notes: bool,
) -> Result<usize, LinkError> {
    let mut now = None;
    link.receive(BATCH, &mut |frame, tx| {
        if notes {
            taker.arrived = taker.clock.now();
        }
        let now = *now.get_or_insert_with(|| time.now());
        engine.handle(frame, now, tx, taker);
    })
}

/// Notes when operations are done.
struct Taker {
    clock: Common,
    /// When the frame that is being handled was handed over.
    arrived: u64,
    done: usize,
    error: Option<EngineError>,
    sent: Vec<Sent>,
}

impl Taker {
    #[inline]
    fn end(&mut self, user: u64) {
        let (arrived, now) = (self.arrived, self.clock.now());
        if let Some(sent) = self.sent.get_mut(user as usize) {
            (sent.arrived, sent.done) = (arrived, now);
            self.done += 1;
        }
    }
}

impl Sink for Taker {
    #[inline]
    fn read(&mut self, user: u64, data: &[u8]) {
        std::hint::black_box(data);
        self.end(user);
    }
    #[inline]
    fn written(&mut self, user: u64) {
        self.end(user);
    }
    fn failed(&mut self, _user: u64, error: EngineError) {
        self.error = Some(error);
    }
}

/// The memory node's end: a worker's loop, with notes.
fn serve(
    mut link: Box<dyn Link>,
    config: ResponderConfig,
    table: Arc<PageTable>,
    clock: Common,
    flags: &Flags,
) -> Result<Vec<Seen>, LinkError> {
    let access = Access { clock, on: Rc::default(), at: Rc::default() };
    let mut service = Service::traced(config, table, TLB_ENTRIES_DEFAULT, access.clone());
    let (time, mut empty) = (Clock::new(), 0_u32);
    let mut now = time.now();
    // Room for all, so that nothing is moved while requests wait.
    let mut seen: Vec<Seen> = Vec::with_capacity(1 << 16);
    loop {
        let (first, notes) = (seen.len(), access.on.get());
        service.begin_batch();
        link.peek(BATCH, &mut |frame| service.prefetch(frame));
        let received = link.receive(BATCH, &mut |frame, tx| {
            if !notes {
                return service.handle(frame, now, tx);
            }
            let arrived = clock.now();
            let header = Header::parse(frame);
            access.at.set(0);
            service.handle(frame, now, tx);
            if let (Some(header), access @ 1..) = (header, access.at.get()) {
                let write = header.command == Command::WriteReq as u8;
                seen.push(Seen { addr: header.addr, write, arrived, access, left: 0 });
            }
        })?;
        if received > 0 {
            service.finish_batch(link.transmit());
            if notes {
                let left = clock.now();
                seen[first..].iter_mut().for_each(|one| one.left = left);
            }
            link.flush()?;
            (now, empty) = (time.now(), 0);
            continue;
        }
        empty = empty.wrapping_add(1);
        if empty.is_multiple_of(SPINS) {
            now = time.now();
            service.responder().poll(now);
            access.on.set(flags.notes.load(Ordering::Acquire));
            if flags.stop.load(Ordering::Acquire) {
                return Ok(seen);
            }
        }
        std::hint::spin_loop();
    }
}
