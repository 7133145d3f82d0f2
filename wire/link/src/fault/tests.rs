//! The fault injector around links of a simulated network without faults, so that every fault is the
//! injector's.

use proptest::prelude::*;

use super::*;
use crate::sim::{PortConfig, SimLink, SimNetwork};
use cxloe_wire::frame::Mac;

const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
const B: Mac = Mac([2, 0, 0, 0, 0, 2]);
const MS: u64 = 1_000_000;

/// Makes frame number `i` from A to B; its length and all its bytes depend on `i` only.
fn frame(i: u32) -> Vec<u8> {
    let len = 60 + (i as usize * 37) % 1000;
    let mut frame: Vec<u8> = (0..len).map(|at| (i as usize * 31 + at) as u8).collect();
    frame[..6].copy_from_slice(&B.0);
    frame[6..12].copy_from_slice(&A.0);
    frame[12..16].copy_from_slice(&i.to_be_bytes());
    frame
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[12..16].try_into().unwrap())
}

/// A sender at A and a receiver at B. The faults given as text apply to sending at A and to receiving at B.
struct Bench {
    net: SimNetwork,
    a: FaultInjector<SimLink>,
    b: FaultInjector<SimLink>,
}

impl Bench {
    fn new(text: &str, tx_slots: usize) -> Self {
        let net = SimNetwork::new(0);
        let config = PortConfig { tx_slots, fifo_capacity: 100_000, ..PortConfig::default() };
        let link = |mac| net.attach(mac, config).unwrap();
        let plan: FaultPlan = text.parse().unwrap();
        let (tx, rx) = (FaultPlan { rx: Faults::NONE, ..plan }, FaultPlan { tx: Faults::NONE, ..plan });
        let clock = || {
            let net = net.clone();
            move || net.now()
        };
        let a = FaultInjector::with_now(link(A), &tx, clock());
        let b = FaultInjector::with_now(link(B), &rx, clock());
        Bench { net, a, b }
    }

    fn advance(&self, ns: u64) {
        self.net.step(Time(self.net.now().0 + ns));
    }

    /// Sends frames `0..n`; flushes when the ring is full and at the end.
    fn send(&mut self, n: u32) {
        for i in 0..n {
            let bytes = frame(i);
            if self.a.transmit().slot(bytes.len()).is_none() {
                self.a.flush().unwrap();
                self.advance(1);
            }
            self.a.transmit().slot(bytes.len()).expect("room after a flush").copy_from_slice(&bytes);
            self.a.transmit().commit();
        }
        self.a.flush().unwrap();
    }

    /// Receives with `budget` until no more frames come, even after the longest hold time.
    fn receive(&mut self, budget: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut idle = 0;
        while idle < 3 {
            let before = frames.len();
            let n = self
                .b
                .receive(budget, &mut |frame, _| {
                    frames.push(frame.to_vec());
                    frame.fill(0xee);
                })
                .unwrap();
            assert_eq!(n, frames.len() - before);
            assert!(n <= budget, "{n} frames for a budget of {budget}");
            // A whole batch may have been held back, so that 0 is returned although frames follow. The end is reached
            // only when the network is empty too.
            if n == 0 && self.net.fifo(B).unwrap().occupancy == 0 {
                idle += 1;
                self.advance(MS);
                self.a.flush().unwrap();
                self.advance(MS);
            }
        }
        frames
    }

    fn run(text: &str, n: u32) -> (Vec<Vec<u8>>, FaultCounters) {
        let mut bench = Bench::new(text, 2048);
        bench.send(n);
        bench.advance(MS);
        let frames = bench.receive(32);
        let mut counters = bench.a.tx_faults();
        if !bench.b.rx_faults().eq(&FaultCounters::default()) {
            counters = bench.b.rx_faults();
        }
        (frames, counters)
    }
}

/// Returns the plans that apply the faults `text` to sending, and to receiving.
fn both_ways(text: &str) -> [String; 2] {
    [format!("{text},dir=tx"), format!("{text},dir=rx")]
}

#[test]
fn plans_as_text() {
    let plan: FaultPlan = "drop=1%,dup=0.1%,reorder=0.5%,corrupt=0.01%,seed=7,dir=both".parse().unwrap();
    assert_eq!(plan.seed, 7);
    assert_eq!(plan.tx, plan.rx);
    assert_eq!(plan.tx.drop.get(), 0.01);
    for dir in ["both", "tx", "rx"] {
        let plan: FaultPlan = format!("drop=1%,gap=5,burst=1%/2%/3%,dir={dir},seed=9").parse().unwrap();
        assert_eq!(plan.tx.is_none(), dir == "rx");
        assert_eq!(plan.rx.is_none(), dir == "tx");
        assert_eq!(plan.to_string().parse(), Ok(plan));
    }
    assert_eq!("".parse(), Ok(FaultPlan::default()));
    assert!(matches!("dir=up".parse::<FaultPlan>(), Err(FaultsError::Value { .. })));
    assert!(matches!("seed=x".parse::<FaultPlan>(), Err(FaultsError::Value { .. })));
    assert_eq!("seeds=1".parse::<FaultPlan>(), Err(FaultsError::Name("seeds".into())));
}

#[test]
fn answers_suffer_like_other_frames() {
    let mut bench = Bench::new("", 2048);
    bench.send(5);
    bench.advance(MS);
    let net = bench.net.clone();
    let plan: FaultPlan = "drop=100%,dir=tx".parse().unwrap();
    let mut b = FaultInjector::with_now(bench.b, &plan, move || net.now());
    let answered = b
        .receive(10, &mut |_, transmit| {
            let slot = transmit.slot(60).unwrap();
            slot.fill(0);
            slot[..6].copy_from_slice(&A.0);
            transmit.commit();
        })
        .unwrap();
    b.flush().unwrap();
    assert_eq!(answered, 5);
    assert_eq!(b.tx_faults().dropped, 5);
    assert_eq!(b.counters().tx_frames, 0);
}

#[test]
fn a_commit_without_a_slot_does_nothing() {
    let mut bench = Bench::new("dup=100%,dir=tx", 2048);
    bench.a.transmit().commit();
    bench.send(1);
    bench.a.transmit().commit();
    bench.advance(MS);
    assert_eq!(bench.receive(8).len(), 2);
    assert_eq!(bench.a.tx_faults().frames, 1);
}

/// If more frames are to be held back than there are buffers for, the others must pass, and none may be lost.
#[test]
fn a_full_delay_queue_lets_frames_pass() {
    for text in both_ways("reorder=100%,gap=1000000,hold=1ms") {
        let mut bench = Bench::new(&text, 2048);
        bench.send(100);
        bench.advance(1_000);
        let frames = bench.receive(200);
        let counters = if text.ends_with("tx") { bench.a.tx_faults() } else { bench.b.rx_faults() };
        assert_eq!((counters.reordered, counters.forgone), (64, 36), "{text}");
        let order: Vec<u32> = frames.iter().map(|f| number(f)).collect();
        assert_eq!(order, (64..100).chain(0..64).collect::<Vec<_>>(), "{text}");
    }
}

/// Exactly `gap` other frames must overtake a held frame.
#[test]
fn gap_counts_frames() {
    for dir in ["tx", "rx"] {
        let text = format!("reorder=2%,gap=2,hold=1s,seed=1,dir={dir}");
        let (frames, counters) = Bench::run(&text, 500);
        let order: Vec<u32> = frames.iter().map(|f| number(f)).collect();
        let mut held = 0;
        for (at, i) in order.iter().enumerate() {
            let overtaken_by = order[..at].iter().filter(|j| *j > i).count();
            if overtaken_by > 0 {
                held += 1;
                assert!((1..=2).contains(&overtaken_by), "{dir}: {i} overtaken by {overtaken_by}");
            }
        }
        assert!(counters.reordered > 3, "{counters:?}");
        // The injector counts a frame as reordered when it holds the frame back, but no frame may have overtaken the
        // last one held.
        assert!(counters.reordered - held <= 1, "{dir}: {held} of {counters:?}");
    }
}

/// The last frame of a flow, held back, must arrive when its hold time is over.
#[test]
fn hold_ends_by_time() {
    for text in ["dir=tx", "dir=rx"] {
        let mut bench = Bench::new(&format!("reorder=100%,gap=10,hold=1ms,{text}"), 2048);
        bench.send(1);
        bench.advance(MS / 2);
        let mut got = Vec::new();
        for _ in 0..3 {
            bench.a.flush().unwrap();
            got.push(bench.b.receive(8, &mut |_, _| {}).unwrap());
            bench.advance(MS);
        }
        assert_eq!(got[0], 0, "{text}");
        assert_eq!(got.iter().sum::<usize>(), 1, "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Without faults, all frames must arrive in order, and nothing may be counted.
    #[test]
    fn without_faults_nothing_changes(seed: u64, n in 0u32..300) {
        let (frames, counters) = Bench::run(&format!("seed={seed}"), n);
        prop_assert!(frames.into_iter().eq((0..n).map(frame)));
        prop_assert_eq!(counters, FaultCounters::default());
    }

    /// Losses must leave the other frames undamaged and in order.
    #[test]
    fn drops_only_drop(seed: u64, n in 0u32..300, burst: bool) {
        let text = if burst { "burst=5%/20%" } else { "drop=20%" };
        for text in both_ways(&format!("{text},seed={seed}")) {
            let (frames, counters) = Bench::run(&text, n);
            prop_assert_eq!(frames.len() as u64, u64::from(n) - counters.lost());
            prop_assert!(frames.iter().all(|f| *f == frame(number(f))));
            prop_assert!(frames.windows(2).all(|w| number(&w[0]) < number(&w[1])));
        }
    }

    /// A duplicate must equal its frame, although the receiver overwrites the frames it gets.
    #[test]
    fn duplicates_only_duplicate(seed: u64, n in 0u32..300) {
        for text in both_ways(&format!("dup=20%,seed={seed}")) {
            let (mut frames, counters) = Bench::run(&text, n);
            prop_assert_eq!(frames.len() as u64, u64::from(n) + counters.duplicated);
            prop_assert!(frames.windows(2).all(|w| number(&w[0]) <= number(&w[1])));
            frames.dedup();
            prop_assert!(frames.into_iter().eq((0..n).map(frame)));
        }
    }

    /// Damage must invert one to four bits of each frame and change nothing else.
    #[test]
    fn corruption_only_flips_bits(seed: u64, n in 0u32..300) {
        for text in both_ways(&format!("corrupt=100%,seed={seed}")) {
            let mut bench = Bench::new(&text, 2048);
            bench.send(n);
            bench.advance(MS);
            let frames = bench.receive(32);
            // A frame sent with a damaged destination reaches no port, or A itself.
            let back = bench.a.receive(1000, &mut |_, _| {}).unwrap();
            let astray = bench.net.counters().no_port as usize + back;
            prop_assert_eq!(frames.len() + astray, n as usize);
            for got in &frames {
                let near = (0..n).map(frame).filter(|f| f.len() == got.len()).map(|f| {
                    f.iter().zip(got).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>()
                }).min();
                prop_assert!(matches!(near, Some(1..=4)), "{:?} bits differ", near);
            }
        }
    }

    /// Reordering must not lose, duplicate or change any frame, whatever the receiver's budget.
    #[test]
    fn reordering_only_reorders(seed: u64, n in 0u32..300, budget in 1usize..40) {
        for text in both_ways(&format!("reorder=10%,seed={seed}")) {
            let mut bench = Bench::new(&text, 2048);
            bench.send(n);
            bench.advance(MS);
            let mut frames = bench.receive(budget);
            frames.sort_by_key(|f| number(f));
            prop_assert!(frames.into_iter().eq((0..n).map(frame)));
        }
    }

    /// A small ring below may delay duplicates and held frames, but must not lose any.
    #[test]
    fn a_small_ring_loses_nothing(seed: u64, n in 0u32..200, slots in 2usize..6) {
        let mut bench = Bench::new(&format!("dup=30%,reorder=10%,seed={seed},dir=tx"), slots);
        bench.send(n);
        bench.advance(MS);
        let frames = bench.receive(32);
        let counters = bench.a.tx_faults();
        prop_assert_eq!(frames.len() as u64, u64::from(n) + counters.duplicated);
        let mut numbers: Vec<u32> = frames.iter().map(|f| number(f)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        prop_assert_eq!(numbers, (0..n).collect::<Vec<_>>());
    }

    /// Two runs with the same seed must be equal.
    #[test]
    fn same_seed_same_run(seed: u64) {
        let text = "drop=5%,dup=5%,reorder=5%,corrupt=5%,burst=1%/20%/50%";
        for text in both_ways(&format!("{text},seed={seed}")) {
            prop_assert!(Bench::run(&text, 300) == Bench::run(&text, 300));
        }
        let frames = |seed: u64| Bench::run(&format!("{text},seed={seed},dir=rx"), 300).0;
        prop_assert!(frames(seed) != frames(seed ^ 1));
    }
}
