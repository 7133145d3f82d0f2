//! Tests of links that have no rings of their own: middlewares around a boxed link, which must not allocate
//! while they run, and the pnet link over a veth pair in a network namespace.

#![expect(unsafe_code, reason = "a counting allocator implements GlobalAlloc")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::Command;
use std::time::Duration;

use cxloe_link::fault::{FaultInjector, FaultPlan};
use cxloe_link::limit::{Rate, RateLimit};
use cxloe_link::pcap::{PcapFile, PcapWriter};
use cxloe_link::pnet::PnetLink;
use cxloe_link::sim::{Path, PortConfig, SimNetwork};
use cxloe_link::{Link, LinkConfig, LinkError};
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac};
use cxloe_wire::time::Time;

const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

/// The system's allocator, with a count of each thread's allocations.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is about to end has no counter any more; its allocations do not matter.
    let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
}

// SAFETY: every call goes to the system's allocator unchanged; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of System, which is the same.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: the contract is that of `System`, to which the call goes.
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of System, which is the same.
        unsafe { System.dealloc(ptr, layout) }
    }

    // SAFETY: the contract is that of `System`, to which the call goes.
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of System, which is the same.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn fill(slot: &mut [u8], to: Mac, from: Mac, ethertype: u16, mark: u8) {
    slot.fill(mark);
    slot[..6].copy_from_slice(&to.0);
    slot[6..12].copy_from_slice(&from.0);
    slot[12..14].copy_from_slice(&ethertype.to_be_bytes());
}

/// A sends requests, B answers them during `receive`, and all frames pass every middleware and a faulty network. After
/// the first rounds nothing may be allocated.
#[test]
fn a_stack_of_middlewares_settles() {
    let net = SimNetwork::new(1);
    let faults = "drop=2%,dup=2%,reorder=2%,gap=2,hold=20us,corrupt=2%";
    net.set_default_path(Path { faults: faults.parse().unwrap(), ..Path::default() });
    let link = |mac: Mac| -> Box<dyn Link> {
        let inner: Box<dyn Link> = Box::new(net.attach(mac, PortConfig::default()).unwrap());
        let plan: FaultPlan = format!("{faults},seed=3").parse().unwrap();
        let clock = || {
            let net = net.clone();
            move || net.now()
        };
        let inner = FaultInjector::with_now(inner, &plan, clock());
        let inner = RateLimit::with_now(inner, Rate::gbit_per_s(10), Duration::from_micros(5), clock());
        let now = clock();
        let file = PcapFile::new(std::io::sink(), u64::MAX).unwrap();
        Box::new(PcapWriter::with_now(inner, file, move || Duration::from_nanos(now().0)))
    };
    let (mut a, mut b) = (link(A), link(B));
    let mut answered = 0u64;
    let mut round = |i: u64| {
        for _ in 0..4 {
            if let Some(slot) = a.transmit().slot(60 + (i % 1400) as usize) {
                fill(slot, B, A, ETHERTYPE_DEFAULT, i as u8);
                a.transmit().commit();
            }
        }
        a.flush().unwrap();
        net.step(Time(i * 2_000));
        b.receive(32, &mut |frame, transmit| {
            if let Some(slot) = transmit.slot(frame.len()) {
                fill(slot, A, B, ETHERTYPE_DEFAULT, i as u8);
                transmit.commit();
            }
        })
        .unwrap();
        b.flush().unwrap();
        net.step(Time(i * 2_000 + 1_000));
        answered += a.receive(32, &mut |_, _| {}).unwrap() as u64;
    };
    (0..10_000).for_each(&mut round);
    let before = ALLOCATIONS.get();
    (10_000..20_000).for_each(&mut round);
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert!(answered > 20_000, "{answered}");
    assert!(a.counters().tx_full > 0, "the rate limit was never reached");
}

/// Runs `body` in a new network namespace, by running this test alone in a child process.
fn in_namespace(test: &str, body: fn()) {
    const INSIDE: &str = "CXLOE_TEST_NAMESPACE";
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    // SAFETY: geteuid has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    let output = Command::new("unshare")
        .args(if root { &["--net"][..] } else { &["--user", "--map-root-user", "--net"] })
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .output()
        .expect("run `unshare` (package util-linux)");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "in a namespace of its own:\n{text}");
}

fn ip(args: &str) {
    let status = Command::new("ip").args(args.split(' ')).status().expect("run `ip` (package iproute2)");
    assert!(status.success(), "ip {args}");
}

fn veth() {
    ip("link add va type veth peer name vb");
    ip("link set va up");
    ip("link set vb up");
    // The kernel drops frames until it reports both ends as up, which takes up to a second.
    let is_up = |name: &str| {
        let shown = Command::new("ip").args(["-o", "link", "show", name]).output().expect("run `ip`");
        String::from_utf8_lossy(&shown.stdout).contains("state UP")
    };
    for _ in 0..2000 {
        if is_up("va") && is_up("vb") {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("va and vb do not come up");
}

fn pnet(interface: &str) -> PnetLink {
    PnetLink::open(&LinkConfig::new(interface)).unwrap()
}

/// Receives until `n` frames have come, for two seconds at most.
fn collect(link: &mut PnetLink, n: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for _ in 0..200 {
        link.receive(64, &mut |frame, _| frames.push(frame.to_vec())).unwrap();
        if frames.len() >= n {
            break;
        }
        link.wait(Duration::from_millis(10)).unwrap();
    }
    frames
}

#[test]
fn pnet_carries_frames() {
    in_namespace("pnet_carries_frames", || {
        veth();
        let (mut a, mut b) = (pnet("va"), pnet("vb"));
        let (mac_a, mac_b) = (a.info().mac, b.info().mac);
        assert_eq!((a.info().backend, a.info().mtu, a.info().max_frame), ("pnet", 1500, 1514));
        assert!(a.transmit().slot(1515).is_none());
        assert!(a.readiness().is_some());

        // Two frames that B must not receive are sent first: one has another EtherType, the other another destination.
        let mut stranger =
            PnetLink::open(&LinkConfig { ethertype: 0x88b6, ..LinkConfig::new("va") }).unwrap();
        fill(stranger.transmit().slot(60).unwrap(), mac_b, mac_a, 0x88b6, 0xff);
        stranger.transmit().commit();
        fill(a.transmit().slot(60).unwrap(), B, mac_a, ETHERTYPE_DEFAULT, 0xff);
        a.transmit().commit();

        let sizes = [60, 89, 1000, 1514];
        let mut sent = Vec::new();
        for (mark, len) in sizes.into_iter().enumerate() {
            let slot = a.transmit().slot(len).unwrap();
            fill(slot, mac_b, mac_a, ETHERTYPE_DEFAULT, mark as u8);
            sent.push(slot.to_vec());
            a.transmit().commit();
        }
        // A frame of a link with a priority must leave with a tag and arrive without one.
        let mut tagging = PnetLink::open(&LinkConfig { priority: Some(3), ..LinkConfig::new("va") }).unwrap();
        let slot = tagging.transmit().slot(1514).unwrap();
        fill(slot, mac_b, mac_a, ETHERTYPE_DEFAULT, 9);
        sent.push(slot.to_vec());
        tagging.transmit().commit();
        tagging.flush().unwrap();
        a.flush().unwrap();
        stranger.flush().unwrap();
        assert_eq!(collect(&mut b, sent.len()), sent);
        assert_eq!((a.counters().tx_frames, a.counters().tx_bytes), (5, 60 + 60 + 89 + 1000 + 1514));
        assert_eq!(b.counters().rx_frames, 5);

        // A frame sent during `receive` must arrive too.
        fill(a.transmit().slot(60).unwrap(), mac_b, mac_a, ETHERTYPE_DEFAULT, 1);
        a.transmit().commit();
        a.flush().unwrap();
        let mut answered = 0;
        for _ in 0..200 {
            answered += b
                .receive(1, &mut |frame, transmit| {
                    transmit.slot(70).unwrap()[..60].copy_from_slice(frame);
                    fill(transmit.slot(70).unwrap(), mac_a, mac_b, ETHERTYPE_DEFAULT, 2);
                    transmit.commit();
                })
                .unwrap();
            if answered > 0 {
                break;
            }
            b.wait(Duration::from_millis(10)).unwrap();
        }
        b.flush().unwrap();
        let answers = collect(&mut a, 1);
        assert_eq!(answers.len(), 1);
        assert_eq!((answers[0].len(), answers[0][69]), (70, 2));
        assert_eq!(stranger.receive(64, &mut |_, _| {}).unwrap(), 0);
    });
}

/// Frames that the kernel drops because the receiver's socket is full must be counted.
#[test]
fn pnet_counts_what_the_kernel_drops() {
    in_namespace("pnet_counts_what_the_kernel_drops", || {
        veth();
        let (mut a, mut b) = (pnet("va"), pnet("vb"));
        let (mac_a, mac_b) = (a.info().mac, b.info().mac);
        let mut sent = 0u64;
        for i in 0..20_000 {
            if let Some(slot) = a.transmit().slot(1514) {
                fill(slot, mac_b, mac_a, ETHERTYPE_DEFAULT, i as u8);
                a.transmit().commit();
                sent += 1;
            }
            a.flush().unwrap();
        }
        let received = collect(&mut b, sent as usize).len() as u64;
        assert!(received > 0 && received < sent, "{received} of {sent}");
        // Frames of other stations (IPv6 neighbour discovery) may be among the lost ones.
        assert!(b.counters().rx_dropped >= sent - received, "{:?} of {sent}", b.counters());
        assert_eq!(a.counters().tx_errors, 0);
    });
}

#[test]
fn pnet_names_what_is_wrong() {
    in_namespace("pnet_names_what_is_wrong", || {
        let open = |config: LinkConfig| PnetLink::open(&config).err();
        assert!(matches!(open(LinkConfig::new("va")), Some(LinkError::NoSuchInterface(_))));
        ip("link add va type veth peer name vb");
        assert!(matches!(open(LinkConfig::new("va")), Some(LinkError::Down(_))));
        ip("link set va up");
        ip("link set vb up");
        let two = LinkConfig { queues: 2, ..LinkConfig::new("va") };
        assert!(matches!(open(two), Some(LinkError::Unsupported { backend: "pnet", .. })));

        let mut b = pnet("vb");
        let mac_b = b.info().mac;
        // An interface that is down must be no error, like an unplugged cable: nothing arrives, and frames to
        // be sent wait.
        ip("link set vb down");
        assert_eq!(b.receive(1, &mut |_, _| {}).unwrap(), 0);
        fill(b.transmit().slot(60).unwrap(), A, mac_b, ETHERTYPE_DEFAULT, 0);
        b.transmit().commit();
        b.flush().unwrap();
        assert!(b.transmit().slot(60).is_none(), "one frame waits, and there is room for one");
        assert_eq!(b.counters().tx_errors, 0);
        // The same link must work once the interface is up again.
        ip("link set vb up");
        b.receive(64, &mut |_, _| {}).unwrap();
        let mut a = pnet("va");
        let mac_a = a.info().mac;
        fill(b.transmit().slot(60).unwrap(), mac_a, mac_b, ETHERTYPE_DEFAULT, 7);
        b.transmit().commit();
        b.flush().unwrap();
        assert_eq!(collect(&mut a, 1).len(), 1);

        ip("link set va mtu 68");
        assert!(matches!(open(LinkConfig::new("va")), Some(LinkError::MtuTooSmall { .. })));
    });
}

/// A process in a new user namespace has no rights over the network namespace in which it was started. Opening a link
/// there must fail with an error that names the missing capability.
#[test]
fn pnet_says_which_permission_is_missing() {
    const POWERLESS: &str = "CXLOE_TEST_POWERLESS";
    const NAME: &str = "pnet_says_which_permission_is_missing";
    in_namespace(NAME, || {
        if std::env::var_os(POWERLESS).is_some() {
            let error = PnetLink::open(&LinkConfig::new("va")).err().unwrap();
            assert!(matches!(error, LinkError::Permission { .. }), "{error}");
            assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
            return;
        }
        veth();
        let status = Command::new("unshare")
            .arg("--user")
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(POWERLESS, "1")
            .status()
            .unwrap();
        assert!(status.success());
    });
}
