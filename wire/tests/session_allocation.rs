//! While a session is open, no request and no answer may allocate: single lines, bursts, and recovery from lost frames.
//! The test replaces the process's allocator by one that counts, so it is the only test in its process.

#![expect(unsafe_code, reason = "a counting allocator implements GlobalAlloc")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cxloe_wire::Transmit;
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, FaultStatus, LINE_SIZE, Mac};
use cxloe_wire::machine::StateMachine;
use cxloe_wire::session::{
    Completions, Identity, Memory, OpError, Requester, RequesterConfig, Responder, ResponderConfig, Timing,
};
use cxloe_wire::time::Time;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: the contract is that of `System`, to which the call goes.
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` comes from `System` with this layout, like every allocation here.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const MN: Mac = Mac([2, 0, 0, 0, 0, 2]);
const FRAME: usize = 1514;
const SLOTS: usize = 2048;

/// Transmit ring that returns its frames in order.
struct Ring {
    bytes: Vec<[u8; FRAME]>,
    lens: Vec<usize>,
    sent: usize,
    lent: usize,
}

impl Ring {
    fn new() -> Ring {
        Ring { bytes: vec![[0; FRAME]; SLOTS], lens: vec![0; SLOTS], sent: 0, lent: 0 }
    }

    fn take(&mut self, mut each: impl FnMut(usize, &mut [u8])) {
        for i in 0..std::mem::take(&mut self.sent) {
            each(i, &mut self.bytes[i][..self.lens[i]]);
        }
    }
}

impl Transmit for Ring {
    fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        self.lent = len;
        self.bytes.get_mut(self.sent)?.get_mut(..len)
    }

    fn commit(&mut self) {
        self.lens[self.sent] = self.lent;
        self.sent += 1;
    }
}

struct Pool(Vec<u8>);

impl Memory for Pool {
    fn read(&mut self, _cn: u64, addr: u64, out: &mut [u8]) -> Result<(), FaultStatus> {
        let from = self.0.get(addr as usize..).and_then(|rest| rest.get(..out.len()));
        out.copy_from_slice(from.ok_or(FaultStatus::Nxm)?);
        Ok(())
    }

    fn write(&mut self, _cn: u64, addr: u64, mask: u64, data: &[u8]) -> Result<(), FaultStatus> {
        let places = (0..64).filter(|i| mask & 1 << i != 0);
        for (i, line) in places.zip(data.chunks_exact(LINE_SIZE)) {
            let at = addr as usize + i * LINE_SIZE;
            self.0.get_mut(at..at + LINE_SIZE).ok_or(FaultStatus::Nxm)?.copy_from_slice(line);
        }
        Ok(())
    }

    fn admits(&mut self, _cn: u64) -> bool {
        true
    }
}

#[derive(Default)]
struct Count {
    done: u64,
    failed: u64,
}

impl Completions for Count {
    fn read(&mut self, _token: u64, _data: &[u8]) {
        self.done += 1;
    }

    fn written(&mut self, _token: u64) {
        self.done += 1;
    }

    fn failed(&mut self, _token: u64, _error: OpError, _data: &[u8]) {
        self.failed += 1;
    }
}

struct Ends {
    requester: Requester,
    responder: Responder,
    pool: Pool,
    up: Ring,
    down: Ring,
    count: Count,
    now: Time,
    passed: usize,
}

impl Ends {
    /// Lets 20 us pass. All frames are delivered except every `lose`th one; with 0, none is lost.
    fn step(&mut self, lose: usize) {
        let Ends { requester, responder, pool, up, down, count, now, passed } = self;
        let mut passes = || {
            *passed += 1;
            lose == 0 || !passed.is_multiple_of(lose)
        };
        if requester.deadline().is_due(*now) {
            requester.poll(*now, up, count);
        }
        up.take(|_, frame| {
            if passes() {
                responder.handle(frame, *now, pool, down);
            }
        });
        responder.poll(*now, pool, down);
        *now = *now + Duration::from_micros(20);
        down.take(|_, frame| {
            if passes() {
                requester.handle(frame, *now, up, count);
            }
        });
    }

    /// Sends requests of all kinds on all streams until all are complete.
    fn work(&mut self, lose: usize) {
        let data = [7; 8 * LINE_SIZE];
        let line = data.first_chunk().expect("longer than a line");
        for round in 0..2_000_u64 {
            let stream = (round % 4) as u8;
            // Reads and writes use different pages. Some reads are of a page that does not exist.
            let page = (round % 16) * 4096;
            let (r, now, tx) = (&mut self.requester, self.now, &mut self.up);
            let _ = r.read(stream, page, 0, now, tx);
            let _ = r.write(stream, 1 << 20 | page, line, 0, now, tx);
            let _ = r.burst_read(stream, page, 20, 0, now, tx);
            let _ = r.burst_write(stream, 1 << 20 | page, 0xFF, &data, 0, now, tx);
            if round % 100 == 0 {
                let _ = r.read(stream, 1 << 30, 0, now, tx);
            }
            self.step(lose);
        }
        self.finish(lose);
    }

    /// Sends frames of many reads and of many writes, until all requests are complete.
    fn work_many(&mut self, lose: usize) {
        let line = [7; LINE_SIZE];
        for round in 0..500_u64 {
            let (r, now, tx) = (&mut self.requester, self.now, &mut self.up);
            r.hold();
            for i in 0..30 {
                let _ = r.read((round % 4) as u8, i * 4096, 0, now, tx);
            }
            for i in 0..30 {
                let _ = r.write((round % 4) as u8, (1 << 20) + i * 4096, &line, 0, now, tx);
            }
            r.release(now, tx);
            self.step(lose);
        }
        self.finish(lose);
    }

    fn finish(&mut self, lose: usize) {
        for _ in 0..1_000_000 {
            if self.requester.unanswered() == 0 {
                return;
            }
            self.step(lose);
        }
        panic!("requests do not end: {:?}", self.requester.counters());
    }
}

#[test]
fn an_open_session_does_not_allocate() {
    for key in [None, Some(b"a key of sixteen bytes at least"[..].into())] {
        let config = RequesterConfig {
            identity: Identity { own: CN, peer: MN, ethertype: ETHERTYPE_DEFAULT },
            max_frame: FRAME,
            streams: 4,
            instance: 1,
            key: key.clone(),
            // The limit is so long that the loss of a third of the frames does not count as silence, which would
            // replace the session.
            timing: Timing { suspect_after: Duration::from_secs(4), ..Timing::default() },
            keys: None,
            seed: 1.into(),
        };
        let mut ends = Ends {
            requester: Requester::new(config),
            responder: Responder::new(ResponderConfig { key, ..ResponderConfig::new(MN, FRAME, 1, 2) }),
            pool: Pool(vec![0; 2 << 20]),
            up: Ring::new(),
            down: Ring::new(),
            count: Count::default(),
            now: Time(1),
            passed: 0,
        };
        ends.requester.connect(ends.now);
        (0..10).for_each(|_| ends.step(0));
        assert!(ends.requester.is_open());
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        assert!(before > 0, "the allocator counts");
        // First no frame is lost, then one frame in 50, one in 7, one in 3.
        for lose in [0, 50, 7, 3] {
            ends.work(lose);
            assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), before, "one in {lose} frames lost");
        }
        assert!(
            (60..=80).contains(&ends.count.failed),
            "the reads of what is not there, where the window had room"
        );
        assert!(ends.count.done > 15_000, "{}", ends.count.done);
        for lose in [0, 50, 7, 3] {
            ends.work_many(lose);
            assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), before, "many in a frame, one in {lose} lost");
        }
        assert!(ends.requester.counters().multi_frames > 1_000, "{:?}", ends.requester.counters());
        let c = ends.requester.counters();
        assert!(c.retransmitted > 0 && c.sacks > 0 && c.early > 0, "{c:?}");
        assert!(c.probes > 0 && c.timeouts > 0, "{c:?}");
    }
}
