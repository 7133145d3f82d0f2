//! A request frame in, response frames out: what one worker decides, without I/O.
//!
//! The [`Responder`] keeps order and answers; `NodeMemory` translates `(CN id, CMem)` through this worker's
//! TLB and the shared page table and copies lines between pool and frame. Under the simulated network and in
//! a worker thread it is the same machine.

use std::sync::Arc;

use cxloe_wire::Transmit;
use cxloe_wire::frame::{
    Command, FaultStatus, HEADER_LEN, Header, LINE_SIZE, MULTI_LINES_MAX, Mac, PfcVector, PublicKey,
    SHARDS_MAX, address_of,
};
use cxloe_wire::session::{HandshakeDone, Memory, Responder, ResponderConfig};
use cxloe_wire::time::Time;

use crate::congestion::{CongestionConfig, CongestionWatch, Verdict};
use crate::keys::AdmittedKeys;
use crate::pool::{MpAddr, prefetch_bytes};
use crate::trace::{Trace, Untraced};
use crate::translation::{PageTable, Passage, Tlb, TlbCounters, Unmapped};

/// Of so many CNs at most all addresses are named that they may call from, else the first of each.
const SHARDS_NAMED_OF: usize = 8;

/// The memory node as one worker sees it. `T` is told when memory is touched.
pub struct Service<T: Trace = Untraced> {
    responder: Responder,
    memory: NodeMemory<T>,
    passage: Passage,
    /// The same for shards of CNs whose agents have been replaced.
    shards: Passage,
    /// How often the keys of CNs had changed when sessions were last looked at for it.
    keys_changes: u64,
    congestion: CongestionWatch,
}

/// Translation and pool.
struct NodeMemory<T> {
    table: Arc<PageTable>,
    keys: Arc<AdmittedKeys>,
    tlb: Tlb,
    trace: T,
}

impl Service {
    /// A service over `table` with a TLB of `tlb_entries`.
    pub fn new(config: ResponderConfig, table: Arc<PageTable>, tlb_entries: usize) -> Service {
        Service::traced(config, table, tlb_entries, Untraced)
    }
}

impl<T: Trace> Service<T> {
    /// The same, and `trace` is told whenever a request reaches the memory.
    pub fn traced(
        config: ResponderConfig,
        table: Arc<PageTable>,
        tlb_entries: usize,
        trace: T,
    ) -> Service<T> {
        let (passage, shards) = (table.generation().worker(), table.instances().worker());
        Service {
            responder: Responder::new(config),
            memory: NodeMemory { tlb: Tlb::new(tlb_entries), table, keys: Arc::default(), trace },
            passage,
            shards,
            keys_changes: 0,
            congestion: CongestionWatch::new(CongestionConfig::default()),
        }
    }

    /// Takes a CN for who shows the key that `keys` names for it.
    pub fn set_keys(&mut self, keys: Arc<AdmittedKeys>) {
        self.memory.keys = keys;
    }

    /// Takes what has come of a handshake that the responder has asked for.
    pub fn handshake_done(&mut self, done: HandshakeDone, now: Time, tx: &mut dyn Transmit) {
        self.responder.handshake_done(done, now, &mut self.memory, tx);
    }

    /// Ends the sessions of CNs whose key is another by now. To be called about twice a second, between batches.
    pub fn end_revoked(&mut self, tx: &mut dyn Transmit) {
        self.responder.end_revoked(&mut self.memory, tx);
    }

    /// To be called before each batch: if keys of CNs have changed, sessions end whose key is another by now, before
    /// anything else is done for them.
    #[inline]
    pub fn follow_keys(&mut self, tx: &mut dyn Transmit) {
        let changes = self.memory.keys.changes();
        if changes != self.keys_changes {
            self.keys_changes = changes;
            self.end_revoked(tx);
            self.tell_addresses();
        }
    }

    /// Tells whose Hellos are no strangers'. Every CN has a number of addresses, one for each queue it may have.
    #[cold]
    fn tell_addresses(&mut self) {
        let known = self.memory.keys.admitted();
        let shards = if known.len() <= SHARDS_NAMED_OF { SHARDS_MAX } else { 1 };
        self.responder.know((0..shards).flat_map(|shard| known.iter().map(move |cn| cn.shard(shard))));
    }

    /// Sets from which length on the receive queue is too long, and what is said then.
    pub fn set_congestion(&mut self, config: CongestionConfig) {
        self.congestion = CongestionWatch::new(config);
    }

    /// To be called before each batch: takes note of mappings that have been removed, and agents replaced.
    #[inline]
    pub fn begin_batch(&mut self) {
        let Service { memory, responder, .. } = self;
        self.passage.pass(|| memory.tlb.purge());
        self.shards.pass(|| responder.end_replaced(memory));
    }

    /// Looks at a frame that will be handled soon and starts fetching the memory it names, so that the reads of
    /// a batch wait for DRAM together and not one after the other. The frame is not checked yet: this is a
    /// hint, and neither changes nor tells anything.
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
            // The processor sees by itself where this is going.
            BURST_READ => 4,
            // So it does of the pool; the frame itself still lies in the cache of the core that received it.
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

    /// The same for the lines that a frame of many names behind its first. In a sealed session those are anywhere, and so
    /// is what is fetched.
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

    /// Takes a frame and answers it.
    #[inline]
    pub fn handle(&mut self, frame: &mut [u8], now: Time, tx: &mut dyn Transmit) {
        self.responder.handle(frame, now, &mut self.memory, tx);
    }

    /// To be called after each batch, and while it [is stalled](Self::is_stalled): sends what waited for its end, or for
    /// room.
    #[inline]
    pub fn finish_batch(&mut self, tx: &mut dyn Transmit) {
        if self.responder.is_stalled() {
            self.responder.resume(&mut self.memory, tx);
        } else {
            self.responder.finish_batch(tx);
        }
    }

    /// Whether requests wait for room for their answers only.
    #[inline]
    pub fn is_stalled(&self) -> bool {
        self.responder.is_stalled()
    }

    /// To be called after each batch that did not empty the receive queue, and after each one while it
    /// [is long](Self::is_congested): whether somebody is to be [told](Self::tell). `holds` says whether at least so
    /// many frames wait.
    #[inline]
    pub fn look_at_queue(&mut self, holds: impl FnMut(usize) -> bool, now: Time) -> Verdict {
        self.congestion.look(holds, now)
    }

    /// Carries a verdict out: tells CNs, and returns what the cable is to be told.
    #[cold]
    pub fn tell(&mut self, verdict: Verdict, tx: &mut dyn Transmit) -> Option<PfcVector> {
        match verdict {
            Verdict::Quiet => None,
            Verdict::Pause { since } => {
                let vector = self.congestion.pause();
                self.responder.congested(&vector, since, tx);
                Some(vector)
            }
            Verdict::Resume => Some(self.congestion.resume()),
        }
    }

    /// Whether the receive queue was too long when last looked at, and not yet short again.
    #[inline]
    pub fn is_congested(&self) -> bool {
        self.congestion.is_pausing()
    }

    /// To be called before going to sleep: nobody needs to wait for this worker meanwhile.
    pub fn park(&mut self) {
        self.passage.park();
        self.shards.park();
    }

    /// Whether CN `cn` has a session, and memory here.
    pub fn has_customer(&self, cn: Mac) -> bool {
        self.responder.has_session(cn) && self.memory.has_memory(self.responder.owner(cn).to_u64())
    }

    /// The sessions, for events, figures and the end.
    pub fn responder(&mut self) -> &mut Responder {
        &mut self.responder
    }

    /// How the TLB does.
    pub fn tlb_counters(&self) -> TlbCounters {
        self.memory.tlb.counters()
    }
}

impl<T> NodeMemory<T> {
    /// Whether anything is mapped for CN `cn`.
    fn has_memory(&self, cn: u64) -> bool {
        self.table.unmapped(cn) == Unmapped::Nxm
    }
}

impl<T: Trace> NodeMemory<T> {
    /// Where `len` bytes at `addr` of CN `cn` lie, if all of them are the CN's own.
    #[inline]
    fn translate(&mut self, cn: u64, addr: u64, len: usize) -> Result<MpAddr, FaultStatus> {
        debug_assert!(len > 0 && len <= 4096);
        let mp = self.tlb.translate(&self.table, cn, addr).map_err(status)?;
        // Bursts stay inside a 4 KiB page (checked with the frame) and extents are larger, so that one
        // translation holds for all of it.
        debug_assert_eq!(
            addr >> self.table.extent_shift(),
            (addr + len as u64 - 1) >> self.table.extent_shift()
        );
        self.trace.access();
        Ok(mp)
    }
}

#[cold]
fn status(unmapped: Unmapped) -> FaultStatus {
    match unmapped {
        Unmapped::Nxm => FaultStatus::Nxm,
        Unmapped::Denied => FaultStatus::Denied,
    }
}

impl<T: Trace> Memory for NodeMemory<T> {
    #[inline]
    fn read(&mut self, cn: u64, addr: u64, out: &mut [u8]) -> Result<(), FaultStatus> {
        let mp = self.translate(cn, addr, out.len())?;
        self.table.pool().read_lines(mp, out);
        Ok(())
    }

    #[inline]
    fn write(&mut self, cn: u64, addr: u64, mask: u64, data: &[u8]) -> Result<(), FaultStatus> {
        let span = (u64::BITS - mask.leading_zeros()) as usize * LINE_SIZE;
        let mp = self.translate(cn, addr, span.max(LINE_SIZE))?;
        let pool = self.table.pool();
        if data.len() == span {
            // No holes: one copy.
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

    fn admits(&mut self, _cn: u64) -> bool {
        // A CN without memory may well have a session, if there is room for guests: by it a CN whose memory was lost
        // with the pool hears of the new incarnation. Every request of it is answered with Denied.
        true
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
