//! Rules of the simulated network, one by one, and repetition of a run from its seed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::Link;
use crate::rate::Rate;
use cxloe_wire::random::Probability;

const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
const B: Mac = Mac([2, 0, 0, 0, 0, 2]);
const C: Mac = Mac([2, 0, 0, 0, 0, 3]);
const PFC: Mac = Mac([0x01, 0x80, 0xc2, 0, 0, 1]);

fn write(link: &mut SimLink, to: Mac, len: usize, number: u32) {
    let from = link.info().mac;
    let slot = link.transmit().slot(len).expect("a free slot");
    slot.fill(number as u8);
    slot[..6].copy_from_slice(&to.0);
    slot[6..12].copy_from_slice(&from.0);
    slot[12..16].copy_from_slice(&number.to_be_bytes());
    link.transmit().commit();
}

fn send(link: &mut SimLink, to: Mac, number: u32) {
    write(link, to, 60, number);
    link.flush().unwrap();
}

fn received(link: &mut SimLink) -> Vec<u32> {
    let mut numbers = Vec::new();
    link.receive(usize::MAX, &mut |frame, _| {
        numbers.push(u32::from_be_bytes(frame[12..16].try_into().unwrap()));
    })
    .unwrap();
    numbers
}

fn pair(seed: u64, path: Path) -> (SimNetwork, SimLink, SimLink) {
    let net = SimNetwork::new(seed);
    net.set_default_path(path);
    let config = PortConfig { fifo_capacity: 100_000, ..PortConfig::default() };
    let (a, b) = (net.attach(A, config).unwrap(), net.attach(B, config).unwrap());
    (net, a, b)
}

fn path(faults: &str) -> Path {
    Path { faults: faults.parse().unwrap(), ..Path::default() }
}

#[test]
fn delay_is_virtual_and_one_way() {
    let (net, mut a, mut b) = pair(1, Path { delay: Duration::from_micros(7), ..Path::default() });
    net.set_path(B, A, Path { delay: Duration::from_micros(1), ..Path::default() });
    assert_eq!(net.next_event(), None);
    send(&mut a, B, 1);
    assert_eq!(net.next_event(), Some(Time(7_000)));
    assert_eq!(net.step(Time(6_999)), 0);
    assert!(received(&mut b).is_empty());
    assert_eq!(net.step(Time(7_000)), 1);
    assert_eq!((received(&mut b), net.now(), net.next_event()), (vec![1], Time(7_000), None));
    send(&mut b, A, 2);
    assert_eq!(net.next_event(), Some(Time(8_000)));
    net.step(Time(9_000));
    assert_eq!(received(&mut a), [2]);
    assert_eq!(net.step(Time(5)), 0);
    assert_eq!(net.now(), Time(9_000));
}

/// At 1 Gbit/s, a frame of 1226 bytes with 24 bytes of overhead takes 10 us, so frames sent together must arrive at
/// intervals of 10 us.
#[test]
fn egress_rate_spaces_frames_and_fills_the_ring() {
    let net = SimNetwork::new(1);
    net.set_default_path(Path { delay: Duration::ZERO, ..Path::default() });
    let slow = PortConfig { egress: Some(Rate::gbit_per_s(1)), tx_slots: 4, ..PortConfig::default() };
    let mut a = net.attach(A, slow).unwrap();
    let mut b = net.attach(B, PortConfig::default()).unwrap();
    for i in 0..4 {
        write(&mut a, B, 1226, i);
    }
    assert!(a.transmit().slot(60).is_none());
    a.flush().unwrap();
    assert!(a.transmit().slot(60).is_none());
    let mut arrivals = Vec::new();
    while let Some(at) = net.next_event() {
        net.step(at);
        arrivals.push(at.0);
        assert_eq!(received(&mut b).len(), 1);
        assert!(a.transmit().slot(60).is_some());
    }
    assert_eq!(arrivals, [10_000, 20_000, 30_000, 40_000]);
    assert_eq!(a.counters().tx_full, 2);
}

/// Two ports send to a third port, all at the same rate: the ingress wire of the third port must be the bottleneck, and
/// its queue must be limited.
#[test]
fn ingress_rate_is_shared_and_bounded() {
    let net = SimNetwork::new(1);
    let fast = PortConfig { egress: Some(Rate::gbit_per_s(10)), ..PortConfig::default() };
    let config = PortConfig {
        ingress: Some(Rate::gbit_per_s(10)),
        ingress_queue: Duration::from_micros(20),
        ..PortConfig::default()
    };
    let (mut a, mut b) = (net.attach(A, fast).unwrap(), net.attach(B, fast).unwrap());
    let mut c = net.attach(C, config).unwrap();
    for i in 0..100 {
        write(&mut a, C, 1226, i);
        write(&mut b, C, 1226, i);
    }
    a.flush().unwrap();
    b.flush().unwrap();
    net.step(Time(1_000_000));
    let got = received(&mut c).len();
    // Both senders send for 100 us, together at twice the ingress rate. In that time 100 frames pass the ingress wire,
    // and some 20 more follow from the full queue.
    assert!((119..=123).contains(&got), "{got}");
    assert_eq!(net.counters().full, 200 - got as u64);
}

#[test]
fn fifo_has_a_capacity_and_a_threshold() {
    let net = SimNetwork::new(1);
    let mut a = net.attach(A, PortConfig::default()).unwrap();
    let config = PortConfig { fifo_capacity: 8, fifo_threshold: 5, ..PortConfig::default() };
    let mut b = net.attach(B, config).unwrap();
    let log = Arc::new(Mutex::new(Vec::new()));
    let hook = log.clone();
    net.on_threshold(move |at, mac, fifo| hook.lock().unwrap().push((at, mac, fifo.above, fifo.occupancy)));
    for i in 0..10 {
        send(&mut a, B, i);
        net.step(Time(u64::from(i + 1) * 1_000));
    }
    let full = FifoState { occupancy: 8, peak: 8, dropped: 2, above: true };
    assert_eq!(net.fifo(B), Some(full));
    assert_eq!(b.receive(3, &mut |_, _| {}).unwrap(), 3);
    assert_eq!(net.fifo(B), Some(FifoState { occupancy: 5, above: false, ..full }));
    assert_eq!(received(&mut b), [3, 4, 5, 6, 7]);
    assert_eq!(*log.lock().unwrap(), [(Time(5_500), B, true, 6), (Time(10_000), B, false, 5)]);
    assert_eq!((b.counters().rx_frames, b.counters().rx_dropped), (8, 2));
    assert_eq!(net.fifo(C), None);
}

#[test]
fn partitions_cut_and_heal() {
    let (net, mut a, mut b) = pair(1, Path::default());
    let mut c = net.attach(C, PortConfig::default()).unwrap();
    send(&mut a, B, 1);
    net.partition(&[A, C]);
    // Of the two frames from A to B, the first is on its way when the cut begins, and the second is sent afterwards.
    send(&mut a, B, 2);
    send(&mut b, A, 3);
    send(&mut a, C, 4);
    net.step(Time(1_000));
    assert_eq!((received(&mut a), received(&mut b), received(&mut c)), (vec![], vec![], vec![4]));
    net.heal(A, B);
    send(&mut a, B, 5);
    send(&mut b, A, 6);
    net.step(Time(2_000));
    assert_eq!((received(&mut a), received(&mut b)), (vec![], vec![5]));
    net.heal_all();
    send(&mut b, A, 7);
    net.cut(A, C);
    send(&mut a, C, 8);
    net.step(Time(3_000));
    assert_eq!((received(&mut a), received(&mut c)), (vec![7], vec![]));
    assert_eq!(net.counters().cut, 5);
}

#[test]
fn ports_close_and_open_again() {
    let (net, mut a, b) = pair(1, Path::default());
    assert_eq!(net.attach(B, PortConfig::default()).err(), Some(SimError::Attached(B)));
    assert_eq!(net.attach(PFC, PortConfig::default()).err(), Some(SimError::Group(PFC)));
    drop(b);
    send(&mut a, B, 1);
    send(&mut a, C, 2);
    net.step(Time(1_000));
    assert_eq!(net.counters().no_port, 2);
    send(&mut a, B, 3);
    let mut b = net.attach(B, PortConfig::default()).unwrap();
    net.step(Time(2_000));
    assert_eq!(received(&mut b), [3]);
}

#[test]
fn groups_reach_everyone_but_pfc_only_a_cable_s_other_end() {
    let (net, mut a, mut b) = pair(1, Path::default());
    send(&mut a, PFC, 1);
    net.step(Time(1_000));
    assert_eq!((received(&mut a), received(&mut b)), (vec![], vec![1]));
    let mut c = net.attach(C, PortConfig::default()).unwrap();
    send(&mut a, PFC, 2);
    send(&mut a, Mac::BROADCAST, 3);
    net.step(Time(2_000));
    assert_eq!((received(&mut b), received(&mut c)), (vec![3], vec![3]));
}

#[test]
fn what_is_no_frame_goes_nowhere() {
    let (net, mut a, mut b) = pair(1, Path::default());
    let slot = a.transmit().slot(11).unwrap();
    slot.copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0]);
    a.transmit().commit();
    a.flush().unwrap();
    net.step(Time(1_000));
    assert_eq!((net.counters().runts, received(&mut b).len()), (1, 0));
    assert!(a.transmit().slot(1515).is_none());
    assert_eq!(a.transmit().slot(1514).map(|slot| slot.len()), Some(1514));
}

/// Two requests for a slot without a commit in between must return the same slot, and a slot without a commit must
/// never be sent.
#[test]
fn slots_are_lent_once() {
    let (net, mut a, mut b) = pair(1, Path::default());
    a.transmit().commit();
    write(&mut a, B, 60, 1);
    assert!(a.transmit().slot(60).is_some());
    a.flush().unwrap();
    write(&mut a, B, 70, 2);
    a.transmit().commit();
    a.flush().unwrap();
    net.step(Time(1_000));
    assert_eq!(received(&mut b), [1, 2]);
    assert_eq!((a.counters().tx_frames, a.counters().tx_bytes), (2, 130));
}

#[test]
fn answers_leave_with_the_next_flush() {
    let (net, mut a, mut b) = pair(1, Path::default());
    for i in 0..200 {
        write(&mut a, B, 60, i);
    }
    a.flush().unwrap();
    net.step(Time(1_000));
    let n = b
        .receive(150, &mut |frame, transmit| {
            let slot = transmit.slot(60).unwrap();
            slot.copy_from_slice(frame);
            slot[..6].copy_from_slice(&A.0);
            transmit.commit();
        })
        .unwrap();
    assert_eq!(n, 150);
    net.step(Time(2_000));
    assert!(received(&mut a).is_empty());
    b.flush().unwrap();
    net.step(Time(3_000));
    assert_eq!(received(&mut a), (0..150).collect::<Vec<_>>());
}

#[test]
fn jitter_varies_delays_and_keeps_the_order() {
    let jitter = Duration::from_micros(10);
    let (net, mut a, mut b) = pair(3, Path { jitter, ..Path::default() });
    let mut delays = Vec::new();
    for i in 0..500u32 {
        let start = net.now();
        send(&mut a, B, i);
        let at = net.next_event().unwrap();
        delays.push(at.since(start));
        net.step(at);
        net.step(Time(at.0 + 20_000));
    }
    assert_eq!(received(&mut b), (0..500).collect::<Vec<_>>());
    let (least, most) = (delays.iter().min().unwrap(), delays.iter().max().unwrap());
    assert!(*least < Duration::from_micros(1) && *most > Duration::from_micros(10), "{least:?} {most:?}");
    assert!(*most <= Duration::from_nanos(10_500));
    for i in 0..500 {
        send(&mut a, B, i);
    }
    net.step(Time(net.now().0 + 1_000_000));
    assert_eq!(received(&mut b), (0..500).collect::<Vec<_>>());
}

#[test]
fn held_frames_are_overtaken_or_timed_out() {
    let (net, mut a, mut b) = pair(5, path("reorder=5%,gap=2,hold=1ms"));
    for i in 0..400 {
        send(&mut a, B, i);
        net.step(Time(u64::from(i) * 100));
    }
    net.step(Time(10_000_000));
    let order = received(&mut b);
    let mut sorted = order.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..400).collect::<Vec<_>>());
    let overtaken = |at: usize| order[..at].iter().filter(|j| **j > order[at]).count();
    let most = (0..order.len()).map(overtaken).max();
    assert_eq!(most, Some(2));
    assert!(net.faults(A, B).reordered > 5);

    // No other frame is on the path, so the frame arrives when its hold time is over, plus its usual delay.
    net.set_default_path(path("reorder=100%,gap=9,hold=1ms"));
    let start = net.now();
    send(&mut a, B, 1);
    let mut arrival = None;
    while let Some(at) = net.next_event() {
        net.step(at);
        if !received(&mut b).is_empty() {
            arrival = Some(at.since(start));
        }
    }
    assert_eq!(arrival, Some(Duration::from_nanos(1_000_500)));
}

/// Each outcome of a frame must have its line in the trace.
#[test]
fn traces_contain_every_outcome() {
    let (net, mut a, mut b) = pair(1, Path::default());
    let lines = Arc::new(Mutex::new(Vec::new()));
    let hook = lines.clone();
    net.on_trace(move |trace| hook.lock().unwrap().push(trace.to_string()));
    send(&mut a, B, 0x0100);
    net.step(Time(500));
    net.set_path(A, B, path("drop=100%"));
    send(&mut a, B, 2);
    assert_eq!(received(&mut b), [0x0100]);
    assert_eq!(
        *lines.lock().unwrap(),
        [
            "0.000000ms 02:00:00:00:00:01 -> 02:00:00:00:00:02 60 B cmd 0x01 sent, arrives 0.000500ms",
            "0.000500ms 02:00:00:00:00:01 -> 02:00:00:00:00:02 60 B cmd 0x01 delivered",
            "0.000500ms 02:00:00:00:00:01 -> 02:00:00:00:00:02 60 B cmd 0x00 lost",
        ]
    );
}

/// Runs a simulation in which the nodes send to each other every microsecond. Returns the trace of the frames between A
/// and B, and the counters of the network.
fn run(seed: u64, faults: &str, with_c: bool) -> (Vec<String>, SimCounters) {
    let (net, mut a, mut b) = pair(seed, Path { jitter: Duration::from_micros(2), ..path(faults) });
    let mut c = with_c.then(|| net.attach(C, PortConfig::default()).unwrap());
    let lines = Arc::new(Mutex::new(Vec::new()));
    let hook = lines.clone();
    net.on_trace(move |trace| {
        if trace.from != C && trace.to != C {
            hook.lock().unwrap().push(trace.to_string());
        }
    });
    for i in 0..200 {
        send(&mut a, B, i);
        if let Some(c) = &mut c {
            send(c, A, i);
            send(&mut a, C, i);
        }
        send(&mut b, A, i);
        net.step(Time(u64::from(i) * 1_000));
    }
    net.step(Time(10_000_000));
    let lines = lines.lock().unwrap().clone();
    (lines, net.counters())
}

const BAD: &str = "drop=3%,dup=3%,reorder=3%,corrupt=3%,burst=1%/20%";

/// A third node and its traffic must change nothing for A and B.
#[test]
fn paths_do_not_disturb_each_other() {
    let (with, without) = (run(4, BAD, true).0, run(4, BAD, false).0);
    assert!(without.len() > 500);
    assert_eq!(with, without);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn a_seed_is_a_run(seed: u64) {
        prop_assert_eq!(run(seed, BAD, true), run(seed, BAD, true));
        prop_assert_ne!(run(seed, BAD, true).0, run(seed ^ 1, BAD, true).0);
    }

    /// Every frame must be delivered, twice if it was duplicated, unless the counters report it as lost.
    #[test]
    fn nothing_vanishes(seed: u64, drop in 0u32..50, dup in 0u32..50, reorder in 0u32..50) {
        let (net, mut a, mut b) = pair(seed, path(&format!("drop={drop}%,dup={dup}%,reorder={reorder}%")));
        for i in 0..500 {
            send(&mut a, B, i);
            net.step(Time(u64::from(i) * 200));
        }
        while let Some(at) = net.next_event() {
            net.step(at);
        }
        let faults = net.faults(A, B);
        let got = received(&mut b);
        prop_assert_eq!(got.len() as u64, 500 - faults.lost() + faults.duplicated);
        let mut copies = BTreeMap::new();
        got.iter().for_each(|i| *copies.entry(*i).or_insert(0) += 1);
        prop_assert!(copies.values().all(|n| *n <= 2));
        prop_assert_eq!(copies.len() as u64, 500 - faults.lost());
    }
}

/// A late copy must equal its frame, and be delivered when the 16-bit number of that frame is in use again.
#[test]
fn late_copies_come_a_turn_of_the_numbers_later() {
    let late = Probability::new(0.001).unwrap();
    let (net, mut a, mut b) = pair(2, Path { late, ..Path::default() });
    let mut last = 0;
    let mut distances = Vec::new();
    for i in 0..200_000 {
        send(&mut a, B, i);
        net.step(net.now() + Duration::from_micros(1));
        for got in received(&mut b) {
            if got == i {
                last = got;
            } else {
                distances.push(last - got);
            }
        }
    }
    assert!(distances.len() > 50, "{}", distances.len());
    assert_eq!(net.counters().late, distances.len() as u64);
    let (least, most) = (distances.iter().min().unwrap(), distances.iter().max().unwrap());
    assert!((64_000..65_536).contains(least) && (65_537..67_000).contains(most), "{least} to {most}");
}

/// Hooks and links may be used on different threads.
#[test]
#[expect(clippy::disallowed_methods, reason = "links are used from several threads")]
fn links_go_to_threads() {
    let (net, mut a, mut b) = pair(1, Path::default());
    let seen = Arc::new(AtomicU64::new(0));
    let hook = seen.clone();
    net.on_trace(move |_| {
        hook.fetch_add(1, Ordering::Relaxed);
    });
    std::thread::spawn(move || (0..10).for_each(|i| send(&mut a, B, i))).join().unwrap();
    net.step(Time(1_000_000));
    assert_eq!(std::thread::spawn(move || received(&mut b).len()).join().unwrap(), 10);
    assert_eq!(seen.load(Ordering::Relaxed), 20);
}
