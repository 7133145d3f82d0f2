//! Protocol logic of one worker, without I/O: request frames in, response frames out.
//!
//! The [`Responder`] keeps order and answers; `NodeMemory` translates `(CN id, CMem)` through this worker's TLB and
//! the shared page table and copies lines between pool and frame. The simulated network and worker threads run the
//! same state machine, by the contract of all of them ([`cxloe_wire::machine`]):
//!
//! ```text
//!   loop {
//!       service.begin_batch(); service.follow_keys(tx); service.follow_fills(now, tx);
//!       let copies = service.has_fills();
//!       for frame in received {
//!           if !(copies && service.handle_fill(frame, now, tx)) { service.handle(frame, now, tx); }
//!       }
//!       if any frames came, or service.deadline().is_due(now) { service.poll(now, tx); }
//!       while let Some(job) = service.responder().poll_handshake() { ... }    // its result: handshake_done
//!       while let Some(job) = service.poll_fill_handshake() { ... }           // its result: fill_handshake_done
//!       while let Some(event) = service.responder().poll_event() { ... }      // when undrained() says so, or seldom
//!       flush the link; park; wait for frames, until service.deadline() at the latest
//!   }
//! ```
//!
//! If the manager orders copies from other memory nodes, the worker's `Filler` gets the answers of those nodes, and
//! writes lines through the same translation.

use std::sync::Arc;

use cxloe_wire::Transmit;
use cxloe_wire::frame::{
    Command, FaultStatus, HEADER_LEN, Header, LINE_SIZE, MULTI_LINES_MAX, Mac, PfcVector, PublicKey,
    SHARDS_MAX, address_of, field, source,
};
use cxloe_wire::machine::{Deadline, StateMachine};
use cxloe_wire::session::{HandshakeDone, HandshakeJob, Memory, Responder, ResponderConfig};
use cxloe_wire::time::Time;

use crate::congestion::{CongestionConfig, CongestionSignals, CongestionWatch};
use crate::fill::{FillBoard, FillMemory, Filler, FillerSettings};
use crate::keys::AdmittedKeys;
use crate::pool::{MpAddr, prefetch_bytes};
use crate::trace::{Trace, Untraced};
use crate::translation::{CopySet, PageTable, Tlb, TlbCounters, Unmapped, WorkerGeneration};

/// Maximum number of CNs for which the responder's list of known addresses has all addresses. With more CNs, the list
/// has only the first address of each.
const SHARDS_NAMED_OF: usize = 8;

/// State of one worker of the memory node. `T` observes accesses to memory.
pub struct Service<T: Trace = Untraced> {
    config: ResponderConfig,
    responder: Responder,
    /// Copier from other memory nodes; `None` if this node takes no such orders.
    filler: Option<Filler>,
    memory: NodeMemory<T>,
    passage: WorkerGeneration,
    /// This worker's generation of [`Instances`](crate::translation::Instances). When the worker passes a generation,
    /// it ends the sessions that shards of replaced agents have (a shard is one queue of a CN).
    shards: WorkerGeneration,
    /// Value of [`AdmittedKeys::changes`] at the last check of sessions.
    keys_changes: u64,
    congestion: CongestionWatch,
}

/// Translation and pool, on which the responder executes requests.
struct NodeMemory<T> {
    /// Address of this node, as a CN id.
    own: u64,
    /// Set while there are orders to copy.
    is_filling: bool,
    table: Arc<PageTable>,
    keys: Arc<AdmittedKeys>,
    tlb: Tlb,
    /// Copies that were under way at the last purge of the TLB.
    copies: Arc<CopySet>,
    trace: T,
}

impl Service {
    pub fn new(config: ResponderConfig, table: Arc<PageTable>, tlb_entries: usize) -> Service {
        Service::traced(config, table, tlb_entries, Untraced)
    }
}

impl<T: Trace> Service<T> {
    /// [`new`](Service::new) with an observer `trace` of every access to memory.
    pub fn traced(
        config: ResponderConfig,
        table: Arc<PageTable>,
        tlb_entries: usize,
        trace: T,
    ) -> Service<T> {
        let (passage, shards) = (table.generation().worker(), table.instances().worker());
        Service {
            responder: Responder::new(config.clone()),
            filler: None,
            memory: NodeMemory {
                own: config.own.to_u64(),
                is_filling: false,
                tlb: Tlb::new(tlb_entries),
                copies: table.copies().current(),
                table,
                keys: Arc::default(),
                trace,
            },
            passage,
            shards,
            keys_changes: 0,
            congestion: CongestionWatch::new(CongestionConfig::default()),
            config,
        }
    }

    pub fn set_keys(&mut self, keys: Arc<AdmittedKeys>) {
        self.memory.keys = keys;
    }

    /// Has this worker carry out orders to copy from other memory nodes.
    pub fn set_fills(&mut self, board: Arc<FillBoard>, settings: FillerSettings) {
        self.filler = Some(Filler::new(self.config.clone(), settings, board));
    }

    /// Sets the frame length that the link now carries.
    pub fn set_max_frame(&mut self, max_frame: usize, now: Time) {
        self.responder.set_max_frame(max_frame);
        if let Some(filler) = &mut self.filler {
            filler.set_max_frame(max_frame, now);
        }
    }

    /// Passes the result of a handshake, computed outside as a job of the responder, back to the responder.
    pub fn handshake_done(&mut self, done: HandshakeDone, now: Time, tx: &mut dyn Transmit) {
        self.responder.handshake_done(done, now, &mut self.memory, tx);
    }

    /// Ends the sessions of CNs whose key has changed. Call about twice a second, between batches.
    pub fn end_revoked(&mut self, tx: &mut dyn Transmit) {
        self.responder.end_revoked(&mut self.memory, tx);
    }

    /// If keys of CNs have changed, ends the sessions that were started with former keys. Call before each batch, so
    /// that no request of such a session is executed.
    #[inline]
    pub fn follow_keys(&mut self, tx: &mut dyn Transmit) {
        let changes = self.memory.keys.changes();
        if changes != self.keys_changes {
            self.keys_changes = changes;
            self.end_revoked(tx);
            self.update_known_addresses();
        }
    }

    /// Updates the responder's list of known addresses, whose Hellos have precedence. A CN has several addresses, one
    /// for each queue.
    #[cold]
    fn update_known_addresses(&mut self) {
        let known = self.memory.keys.admitted();
        let shards = if known.len() <= SHARDS_NAMED_OF { SHARDS_MAX } else { 1 };
        self.responder.know((0..shards).flat_map(|shard| known.iter().map(move |cn| cn.shard(shard))));
    }

    pub fn set_congestion(&mut self, config: CongestionConfig) {
        self.congestion = CongestionWatch::new(config);
    }

    /// Applies the removal of mappings and the replacement of agents since the last call. Call before each batch.
    #[inline]
    pub fn begin_batch(&mut self) {
        let Service { memory, responder, .. } = self;
        self.passage.pass(|| {
            memory.tlb.purge(&memory.table);
            memory.copies = memory.table.copies().current();
        });
        self.shards.pass(|| responder.end_replaced(memory));
    }

    /// Prefetches the memory that the next frames will access, so that the DRAM accesses of a batch overlap. The frame
    /// is not checked yet, so nothing is changed or sent.
    #[inline]
    pub fn prefetch(&self, frame: &[u8]) {
        let Some(header) = Header::parse(frame) else { return };
        const READ: u8 = Command::ReadReq as u8;
        const WRITE: u8 = Command::WriteReq as u8;
        const BURST_READ: u8 = Command::BurstReadReq as u8;
        const BURST_WRITE: u8 = Command::BurstWriteReq as u8;
        const MULTI_READ: u8 = Command::MultiReadReq as u8;
        const MULTI_WRITE: u8 = Command::MultiWriteReq as u8;
        let lines = match header.command {
            READ | WRITE => 1,
            // The hardware prefetcher recognises the sequence after four lines and fetches the others.
            BURST_READ => 4,
            // Prefetches as many lines as for a burst read. The frame itself is still in the cache of the core that
            // received it, so it is prefetched too.
            BURST_WRITE => {
                prefetch_bytes(frame);
                4
            }
            MULTI_READ => {
                self.prefetch_others(&header, frame);
                1
            }
            MULTI_WRITE => {
                prefetch_bytes(frame);
                self.prefetch_others(&header, frame);
                1
            }
            _ => return,
        };
        self.prefetch_lines(self.responder.owner(header.src), header.addr, lines);
    }

    /// Prefetches all lines but the first of a multi-line request. In a sealed session these bytes are
    /// ciphertext, and the addresses arbitrary, which is harmless.
    #[inline]
    fn prefetch_others(&self, header: &Header, frame: &[u8]) {
        let Some((count, addresses)) = frame.get(HEADER_LEN..).and_then(|payload| payload.split_first())
        else {
            return;
        };
        let others = usize::from(*count).min(MULTI_LINES_MAX).saturating_sub(1);
        for addr in addresses.as_chunks().0.iter().take(others) {
            self.prefetch_lines(self.responder.owner(header.src), address_of(addr), 1);
        }
    }

    #[inline]
    fn prefetch_lines(&self, cn: Mac, addr: u64, lines: u64) {
        let memory = &self.memory;
        if let Some(mp) = memory.tlb.probe(&memory.table, cn.to_u64(), addr) {
            for line in 0..lines {
                memory.table.pool().prefetch(MpAddr(mp.0 + line * LINE_SIZE as u64));
            }
        }
    }

    /// Handles a received frame. Answers are sent at once, or by [`poll`](Self::poll).
    #[inline]
    pub fn handle(&mut self, frame: &mut [u8], now: Time, tx: &mut dyn Transmit) {
        self.responder.handle(frame, now, &mut self.memory, tx);
    }

    /// Handles a frame that may come from a memory node that this worker copies from; call it while the worker [has
    /// orders to copy](Self::has_fills). Returns whether the frame is not one for [`handle`](Self::handle).
    pub fn handle_fill(&mut self, frame: &mut [u8], now: Time, tx: &mut dyn Transmit) -> bool {
        let Some(filler) = &mut self.filler else { return false };
        let command = frame.get(field::COMMAND).and_then(|code| Command::from_u8(*code));
        let (Some(from), Some(command)) = (source(frame), command) else { return false };
        if filler.peer() != Some(from) {
            if command == Command::HelloAck {
                filler.stray_answer(from);
            }
            return false;
        }
        match command {
            Command::Hello | Command::Start | Command::Echo | Command::EchoReply => false,
            command if command.is_request() => false,
            // Both nodes may copy from each other. The trailer tells which of the two sessions the frame belongs to,
            // but a frame that is opened with the wrong keys is garbled.
            Command::Ping | Command::Pong | Command::Bye | Command::ByeAck
                if self.responder.has_session(from) =>
            {
                filler.handle(&mut frame.to_vec(), now, &mut self.memory, tx);
                false
            }
            _ => {
                filler.handle(frame, now, &mut self.memory, tx);
                true
            }
        }
    }

    /// Whether there are orders to copy, so that frames are to be passed to [`handle_fill`](Self::handle_fill) first.
    #[inline]
    pub fn has_fills(&self) -> bool {
        self.filler.as_ref().is_some_and(Filler::has_orders)
    }

    /// If the manager's orders to copy have changed, begins or ends a copy. Call before each batch.
    #[inline]
    pub fn follow_fills(&mut self, now: Time, tx: &mut dyn Transmit) {
        if let Some(filler) = &mut self.filler {
            filler.follow(now, &mut self.memory, tx);
            self.memory.is_filling = filler.has_orders();
        }
    }

    /// Ends the session for copies, before the worker ends.
    pub fn end_fills(&mut self, now: Time, tx: &mut dyn Transmit) {
        if let Some(mut filler) = self.filler.take() {
            filler.close(now, &mut self.memory, tx);
        }
    }

    /// Returns the next handshake job of a session for copies, and the number to be passed back with its result.
    #[inline]
    pub fn poll_fill_handshake(&mut self) -> Option<(u64, HandshakeJob)> {
        self.filler.as_mut().and_then(Filler::poll_handshake)
    }

    /// Passes the result of a handshake job back to the session for copies with this number.
    pub fn fill_handshake_done(&mut self, number: u64, done: HandshakeDone, now: Time) {
        if let Some(filler) = &mut self.filler {
            filler.handshake_done(number, done, now);
        }
    }

    /// Sends answers that waited for the end of the batch or for room, and does what is due. Call after each batch, at
    /// the deadline, and whenever there may be room while the service [is stalled](Self::is_stalled).
    #[inline]
    pub fn poll(&mut self, now: Time, tx: &mut dyn Transmit) {
        self.responder.poll(now, &mut self.memory, tx);
        if let Some(filler) = &mut self.filler {
            filler.advance(now, &mut self.memory, tx);
        }
    }

    /// Whether requests are waiting only because there is no room for their answers.
    #[inline]
    pub fn is_stalled(&self) -> bool {
        self.responder.is_stalled()
    }

    /// Checks the receive queue and returns the signals for [`send_signals`](Self::send_signals); `holds` returns
    /// whether at least the given number of frames wait. Call after each batch that did not empty the queue, and after
    /// each batch while the queue [is long](Self::is_congested).
    #[inline]
    pub fn check_queue(&mut self, holds: impl FnMut(usize) -> bool, now: Time) -> CongestionSignals {
        self.congestion.check(holds, now)
    }

    /// Sends the signals of `verdict` to the CNs, and returns the content of the 802.1Qbb frame for the
    /// cable, if any.
    #[cold]
    pub fn send_signals(&mut self, verdict: CongestionSignals, tx: &mut dyn Transmit) -> Option<PfcVector> {
        match verdict {
            CongestionSignals::Quiet => None,
            CongestionSignals::Pause { since } => {
                let vector = self.congestion.pause();
                self.responder.congested(&vector, since, tx);
                Some(vector)
            }
            CongestionSignals::Resume => Some(self.congestion.resume()),
        }
    }

    #[inline]
    pub fn is_congested(&self) -> bool {
        self.congestion.is_pausing()
    }

    /// Marks the worker as parked, so that the control thread does not wait for it. Call before the worker sleeps.
    pub fn park(&mut self) {
        self.passage.park();
        self.shards.park();
    }

    pub fn serves_cn(&self, cn: Mac) -> bool {
        self.responder.has_session(cn) && self.memory.has_memory(self.responder.owner(cn).to_u64())
    }

    /// Responder of this worker, for its events and counters, and for ending sessions.
    pub fn responder(&mut self) -> &mut Responder {
        &mut self.responder
    }

    pub fn tlb_counters(&self) -> TlbCounters {
        self.memory.tlb.counters()
    }
}

impl<T: Trace> StateMachine for Service<T> {
    #[inline]
    fn deadline(&self) -> Deadline {
        let mut deadline = self.responder.deadline();
        if let Some(filler) = &self.filler {
            deadline.keep_earlier(filler.deadline());
        }
        deadline
    }

    fn undrained(&self) -> Option<&'static str> {
        self.responder.undrained().or_else(|| self.filler.as_ref()?.undrained())
    }
}

impl<T> NodeMemory<T> {
    fn has_memory(&self, cn: u64) -> bool {
        // For a CN without memory here, `unmapped` returns `Denied`, for any other CN `Nxm`.
        self.table.unmapped(cn) == Unmapped::Nxm
    }
}

impl<T: Trace> NodeMemory<T> {
    /// MPMem address of `len` bytes at `addr` of CN `cn`, if all of them are mapped, and not sealed if they are written.
    #[inline]
    fn translate(&mut self, cn: u64, addr: u64, len: usize, written: bool) -> Result<MpAddr, FaultStatus> {
        debug_assert!(len > 0 && len <= 4096);
        let mp = if written {
            self.tlb.translate_write(&self.table, cn, addr)
        } else {
            self.tlb.translate(&self.table, cn, addr)
        };
        let mp = mp.map_err(status)?;
        // A burst stays inside a 4 KiB page (checked with the frame), and extents are larger: one translation holds for
        // the whole burst.
        debug_assert_eq!(
            addr >> self.table.extent_shift(),
            (addr + len as u64 - 1) >> self.table.extent_shift()
        );
        if !self.copies.is_empty() {
            self.copies.before(self.table.pool(), mp, written);
        }
        self.trace.access();
        Ok(mp)
    }
}

impl<T: Trace> FillMemory for NodeMemory<T> {
    #[inline]
    fn fill(&mut self, cn: u64, addr: u64, data: &[u8]) -> Result<(), FaultStatus> {
        let mp = self.translate(cn, addr, data.len(), true)?;
        self.table.pool().write_lines(mp, data);
        Ok(())
    }
}

#[cold]
fn status(unmapped: Unmapped) -> FaultStatus {
    match unmapped {
        Unmapped::Nxm => FaultStatus::Nxm,
        Unmapped::Denied | Unmapped::Sealed => FaultStatus::Denied,
    }
}

impl<T: Trace> Memory for NodeMemory<T> {
    #[inline]
    fn read(&mut self, cn: u64, addr: u64, out: &mut [u8]) -> Result<(), FaultStatus> {
        let mp = self.translate(cn, addr, out.len(), false)?;
        self.table.pool().read_lines(mp, out);
        Ok(())
    }

    #[inline]
    fn write(&mut self, cn: u64, addr: u64, mask: u64, data: &[u8]) -> Result<(), FaultStatus> {
        let span = (u64::BITS - mask.leading_zeros()) as usize * LINE_SIZE;
        let mp = self.translate(cn, addr, span.max(LINE_SIZE), true)?;
        let pool = self.table.pool();
        if data.len() == span {
            // The mask has no gap, so that one copy writes all lines.
            pool.write_lines(mp, data);
            return Ok(());
        }
        let mut rest = mask;
        for line in data.chunks_exact(LINE_SIZE) {
            let index = u64::from(rest.trailing_zeros());
            rest &= rest - 1;
            pool.write_lines(MpAddr(mp.0 + index * LINE_SIZE as u64), line);
        }
        Ok(())
    }

    fn admits(&mut self, cn: u64) -> bool {
        // A CN without memory here may have a session, as far as the responder has room for such CNs. By the session, a
        // CN whose memory was lost with the pool detects the new incarnation. Its requests are answered with Denied.
        // Memory that is mapped for this node's own address is filled by this process alone.
        cn != self.own || !self.is_filling
    }

    fn has_memory(&mut self, cn: u64) -> bool {
        NodeMemory::has_memory(self, cn)
    }

    fn key(&mut self, cn: u64) -> Option<PublicKey> {
        self.keys.of(cn)
    }

    fn is_key_withdrawn(&mut self, cn: u64) -> bool {
        self.keys.is_withdrawn(cn)
    }

    fn take_over(&mut self, cn: u64, instance: u64) -> bool {
        self.table.instances().take_over(cn, instance)
    }

    fn is_current(&mut self, cn: u64, instance: u64) -> bool {
        self.table.instances().is_current(cn, instance)
    }
}
