//! Requests timed along their path (Fig. 8). The memory node's service has a thread of its own, the engine is
//! in the calling thread, and both take time stamps between the steps of a request.
//!
//! The loops are those of the daemons, except for the time stamps. No frame is added for measuring: each end
//! records into its own memory, and [`super::latency_parts::join`] matches the records afterwards. Both ends
//! read CLOCK_MONOTONIC, which is the same on all cores. The same loops without time stamps show the cost of
//! the time stamps.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cxloe_cn_core::engine::{Engine, EngineError, Read, RequestId, Sink, Write};
use cxloe_daemon::pin;
use cxloe_link::Clock;
use cxloe_link::{Backend, Link, LinkError};
use cxloe_mn_core::service::Service;
use cxloe_mn_core::trace::Trace;
use cxloe_mn_core::translation::{PageTable, TLB_ENTRIES_DEFAULT};
use cxloe_port::port::PortParts;
use cxloe_wire::frame::{Command, Header, LINE_SIZE};
use cxloe_wire::machine::StateMachine;
use cxloe_wire::session::ResponderConfig;

use super::PaperError;
use super::latency_parts::{NodeTimestamps, RequesterTimestamps};
use super::testbed::Testbed;

/// Maximum number of frames taken from a ring at once, as in the worker and the port.
const BATCH: usize = 64;
/// Time limit for all operations of a call.
const RUN_TIMEOUT: Duration = Duration::from_secs(120);
/// Number of iterations without a frame between two reads of the clock and the flags, which take time
/// themselves.
const SPINS: u32 = 64;

/// Clock of both ends: nanoseconds of CLOCK_MONOTONIC since a common start. Never 0, which stands for "not
/// recorded".
#[derive(Clone, Copy)]
struct Common(Instant);

impl Common {
    #[inline]
    fn now(self) -> u64 {
        self.0.elapsed().as_nanos() as u64 + 1
    }
}

/// Time at which the service last accessed the pool, recorded only while time stamps are on.
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

/// Flags by which the calling thread controls the memory node's thread: to stop it, and to switch its time stamps on.
#[derive(Default)]
struct Flags {
    stop: AtomicBool,
    notes: AtomicBool,
}

/// Both ends of the path, running and ready for operations.
pub struct Path {
    clock: Common,
    flags: Arc<Flags>,
    node: Option<JoinHandle<Result<Vec<NodeTimestamps>, LinkError>>>,
    port: PortParts,
    hpa: u64,
}

/// Read or write of a line of the region.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// Offset of the line in the region, a multiple of 64 bytes.
    pub offset: u64,
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
    pub fn open(ends: &Testbed, backend: Backend) -> Result<Path, PaperError> {
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
        // The memory node's thread polls until its stop flag is set, so an error in opening the port must set the flag.
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

    /// Switches the time stamps of both ends on or off. The beginning and the end of each operation are
    /// recorded always.
    pub fn note(&self, on: bool) {
        self.flags.notes.store(on, Ordering::Release);
    }

    /// Executes `operations` with at most `depth` in flight, and returns the compute node's time stamps of
    /// each. The fields `left` and `arrived` are 0 while time stamps are off.
    pub fn run(
        &mut self,
        operations: &[Operation],
        depth: usize,
    ) -> Result<Vec<RequesterTimestamps>, PaperError> {
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
                .map(|o| RequesterTimestamps {
                    addr: o.offset,
                    write: o.write,
                    ..RequesterTimestamps::default()
                })
                .collect(),
        };
        let (mut next, mut empty) = (0, 0_u32);
        while taker.done < operations.len() {
            let first = next;
            while next < operations.len() && next - taker.done < depth {
                let (at, number) = (self.hpa + operations[next].offset, next as u64);
                let id = RequestId::Number(next as u32);
                // The time of the first attempt counts, so that the wait for room in the window belongs to
                // part a.
                if taker.sent[next].asked == 0 {
                    taker.sent[next].asked = clock.now();
                }
                let (now, tx) = (time.now(), link.transmit());
                let begun = if operations[next].write {
                    line[..8].copy_from_slice(&number.to_le_bytes());
                    engine.write(at, &line, id, now, tx).map(|w| w == Write::Sent)
                } else {
                    engine.read(at, id, now, tx).map(|r| r == Read::Sent)
                };
                match begun {
                    Ok(true) => next += 1,
                    // Without a cache, the engine completes an operation locally only if the operation's session was
                    // lost; such an operation has no parts to time.
                    Ok(false) => {
                        taker.arrived = 0;
                        taker.end(id);
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
                if engine.deadline().is_due(now) {
                    engine.poll(now, link.transmit(), &mut taker);
                    link.flush()?;
                }
                if self.node.as_ref().is_some_and(JoinHandle::is_finished) {
                    // The stop flag of the memory node's thread is not set, so the thread has ended because of an
                    // error.
                    return self.close_node().map(|_| Vec::new());
                }
                if started.elapsed() > RUN_TIMEOUT {
                    let (of, seconds) = (operations.len(), RUN_TIMEOUT.as_secs());
                    let sessions = serde_json::to_string(&engine.sessions()).unwrap_or_default();
                    let session = format!("{sessions}, {} operations in flight", engine.in_flight());
                    return Err(PaperError::Stuck { left: of - taker.done, of, seconds, session });
                }
            }
        }
        Ok(taker.sent)
    }

    /// Ends the memory node's thread and returns its time stamps; drops the compute node's end.
    pub fn close(mut self) -> Result<Vec<NodeTimestamps>, PaperError> {
        self.close_node()
    }

    fn close_node(&mut self) -> Result<Vec<NodeTimestamps>, PaperError> {
        self.flags.stop.store(true, Ordering::Release);
        match self.node.take().map(JoinHandle::join) {
            Some(Ok(seen)) => Ok(seen?),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(Vec::new()),
        }
    }
}

/// Passes received frames to the engine, each with its time of arrival.
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

/// Receiver of completions, which records their times.
struct Taker {
    clock: Common,
    /// Time of arrival of the frame that the engine is handling.
    arrived: u64,
    done: usize,
    error: Option<EngineError>,
    sent: Vec<RequesterTimestamps>,
}

impl Taker {
    #[inline]
    fn end(&mut self, id: RequestId) {
        let (arrived, now) = (self.arrived, self.clock.now());
        if let Some(sent) = id.number().and_then(|number| self.sent.get_mut(number as usize)) {
            (sent.arrived, sent.done) = (arrived, now);
            self.done += 1;
        }
    }
}

impl Sink for Taker {
    #[inline]
    fn read(&mut self, id: RequestId, data: &[u8]) {
        std::hint::black_box(data);
        self.end(id);
    }
    #[inline]
    fn written(&mut self, id: RequestId) {
        self.end(id);
    }
    fn failed(&mut self, _: RequestId, error: EngineError) {
        self.error = Some(error);
    }
}

/// Runs the memory node until its stop flag is set: a worker's loop with time stamps.
fn serve(
    mut link: Box<dyn Link>,
    config: ResponderConfig,
    table: Arc<PageTable>,
    clock: Common,
    flags: &Flags,
) -> Result<Vec<NodeTimestamps>, LinkError> {
    let access = Access { clock, on: Rc::default(), at: Rc::default() };
    let mut service = Service::traced(config, table, TLB_ENTRIES_DEFAULT, access.clone());
    let (time, mut empty) = (Clock::new(), 0_u32);
    let mut now = time.now();
    // Allocated in advance, so that no reallocation delays a request.
    let mut seen: Vec<NodeTimestamps> = Vec::with_capacity(1 << 16);
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
            // If the frame is dropped or does not access the pool, the value is still 0 afterwards.
            access.at.set(0);
            service.handle(frame, now, tx);
            if let (Some(header), access @ 1..) = (header, access.at.get()) {
                let write = header.command == Command::WriteReq as u8;
                seen.push(NodeTimestamps { addr: header.addr, write, arrived, access, left: 0 });
            }
        })?;
        if received > 0 {
            service.poll(now, link.transmit());
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
            service.poll(now, link.transmit());
            link.flush()?;
            access.on.set(flags.notes.load(Ordering::Acquire));
            if flags.stop.load(Ordering::Acquire) {
                return Ok(seen);
            }
        }
        std::hint::spin_loop();
    }
}
