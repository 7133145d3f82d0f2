//! Correctness over a bad cable: a real `mn-server` and a compute node joined by a virtual cable, both of which lose,
//! duplicate, reorder and damage frames that they send. A whole region is written and read back, without a wrong byte,
//! a failed operation, or the end of a session. No operation may fail either while the cable is interrupted for a
//! moment. The tests assert no speed.
//!
//! The default region is small enough for builds without optimisation; the long tests use 256 MiB.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cxloe_cn_core::cache::CacheConfig;
use cxloe_lab::{Lab, LabPrivilege, Process};
use cxloe_link::{Backend, LinkConfig, Middlewares, open_with};
use cxloe_measure::MeasuredRegion;
use cxloe_port::port::Port;
use cxloe_system::cable::{LinkKind, cable_for};
use cxloe_system::memif::{self, by_dpdk, device, splice};
use cxloe_system::node::{MemoryNode, config_to, port};
use cxloe_system::{Failed, Test};
use cxloe_system::{LIMIT, Outcome, ensure};
use cxloe_wire::frame::{ETHERTYPE_DEFAULT, Mac};
use cxloe_wire::session::RequesterCounters;
use tempfile::TempDir;

const CN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const MN: Mac = Mac([2, 0, 0, 0, 0, 9]);
/// First address of the mapping; not 0, so that a missing base is detected.
const HPA: u64 = 1 << 32;
const MIB: u64 = 1 << 20;
/// Number of single lines written and read in addition to the bursts.
const LINES: u64 = 4096;

/// Fault plans of both ends: the named share of frames is lost, and a few are duplicated, reordered or
/// damaged.
const PLANS: [(&str, &str); 3] = [
    ("0.1_percent", "drop=0.1%,dup=0.5%,reorder=0.5%,corrupt=0.2%"),
    ("1_percent", "drop=1%,dup=0.5%,reorder=0.5%,corrupt=0.2%"),
    ("5_percent", "drop=5%,dup=0.5%,reorder=0.5%,corrupt=0.2%"),
];

pub fn tests(standing: LabPrivilege) -> Vec<Test> {
    let mut tests = Vec::new();
    let root = standing == LabPrivilege::Root;
    let raw: &[Backend] = if root { &[Backend::Packet, Backend::Xdp] } else { &[Backend::Packet] };
    for &backend in raw {
        let over = LinkKind::from(backend);
        tests.push(flap(over));
        for (name, plan) in PLANS {
            let all = move |mib: u64| move || every_byte_is_right(over, plan, mib * MIB);
            let here = match (root, backend, name) {
                (false, ..) => 8,
                (_, Backend::Packet, "1_percent") => 256,
                _ => 32,
            };
            tests.push(Test::new(format!("{over}::every_byte_is_right_at_{name}"), all(here)));
            if root && here < 256 {
                let name = format!("{over}::every_byte_of_256_mib_is_right_at_{name}");
                tests.push(Test::new(name, all(256)).long("eight times as many bytes"));
            }
        }
    }
    // Links inside UDP are tested as well. They differ only below the session, so by default one plan of each kind is
    // enough.
    let inside = raw.iter().map(|&backend| LinkKind::encap(backend)).chain([LinkKind::from(Backend::Udp)]);
    for over in inside {
        tests.push(flap(over));
        for (name, plan) in PLANS {
            let run = move || every_byte_is_right(over, plan, if root { 16 } else { 8 } * MIB);
            let test = Test::new(format!("{over}::every_byte_is_right_at_{name}"), run);
            let every_day = (plan, over.backend) == (PLANS[1].1, Backend::Udp) || plan == PLANS[2].1;
            tests.push(if every_day { test } else { test.long("more of the same") });
        }
    }
    if root {
        let over = LinkKind::DPDK;
        tests.push(by_dpdk("a_short_flap_only_delays", move || a_short_flap_only_delays(over)));
        for (name, plan) in PLANS {
            let run = move || every_byte_is_right(over, plan, 16 * MIB);
            let test = by_dpdk(&format!("every_byte_is_right_at_{name}"), run);
            tests.push(if plan == PLANS[2].1 { test } else { test.long("more of the same") });
        }
    }
    tests
}

fn flap(over: LinkKind) -> Test {
    Test::new(format!("{over}::a_short_flap_only_delays"), move || a_short_flap_only_delays(over))
}

/// A memory node, and a compute node's port for measurements with `bytes` bytes of memory.
struct Ends {
    target: MeasuredRegion,
    node: MemoryNode,
    /// Processes that join shared memory to the cable; none if it joins the two ends.
    splices: Vec<Process>,
    over: LinkKind,
    _folder: TempDir,
}

impl Ends {
    /// Connects the ends over `lab`; both apply the faults of `plan` to frames that they send. Without a plan, the faults
    /// are those of the cable, so that devices of DPDK are spliced to it.
    fn connect(lab: &Lab, over: LinkKind, plan: Option<&str>, bytes: u64) -> Result<Ends, Failed> {
        let folder = tempfile::tempdir()?;
        let of = |seed: u64| plan.map(|plan| format!("{plan},dir=tx,seed={seed}"));
        let more = of(5).map_or_else(Vec::new, |faults| vec!["--faults".to_owned(), faults]);
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        let sockets = ["cn.sock", "mn.sock"].map(|name| folder.path().join(name));
        let spliced = over.is_dpdk() && plan.is_none();
        let [cn, mn] = match spliced {
            true => [device(&sockets[0], "server", CN), device(&sockets[1], "server", MN)],
            false => memif::interfaces(over, folder.path(), CN, MN),
        };
        let node = MemoryNode::start_with(lab, &mn, over, &[(CN, bytes)], folder.path(), &more)?;
        let faults = of(6).map(|faults| faults.parse()).transpose()?;
        let extras = Middlewares { faults, ..Middlewares::default() };
        let config = LinkConfig { interface: cn, ..config_to(over, MN) };
        let link = lab.home_of("cn0")?.enter(|| open_with(&config, &extras))??;
        let mut splices = Vec::new();
        if spliced {
            splices.push(splice(lab, "cn0", &sockets[0], MN)?);
            splices.push(splice(lab, "mn0", &sockets[1], CN)?);
        }
        let mut port = port(link, MN, HPA, bytes, CacheConfig::OFF)?;
        port.connect(LIMIT)?;
        let target = MeasuredRegion {
            port,
            hpa: HPA,
            bytes,
            peer: MN,
            ethertype: ETHERTYPE_DEFAULT,
            echo: false,
            cores: None,
            memory_node: None,
            interrupt: None,
        };
        Ok(Ends { target, node, splices, over, _folder: folder })
    }

    fn counters(&mut self) -> Result<RequesterCounters, Failed> {
        let sessions = self.target.port.engine().sessions();
        Ok(sessions.first().ok_or("no session")?.counters)
    }

    /// Ends the port and the memory node, which has to end without errors.
    fn end(self) -> Outcome {
        if self.over.is_dpdk() && self.splices.is_empty() {
            has_no_error(&self.node)?;
            return memif::end(self.node, self.target.port);
        }
        self.target.port.close()?;
        has_no_error(&self.node)?;
        ensure(self.node.end()?.success(), "mn-server failed")
    }
}

fn has_no_error(node: &MemoryNode) -> Outcome {
    let output_text = node.output_text();
    ensure(!output_text.contains("panicked") && !output_text.contains("ERROR"), output_text)
}

fn lab(over: LinkKind) -> Result<Lab, Failed> {
    Ok(cable_for(over).mac("cn0", &CN.to_string()).mac("mn0", &MN.to_string()).build()?)
}

fn every_byte_is_right(over: LinkKind, plan: &str, bytes: u64) -> Outcome {
    let lab = lab(over)?;
    let mut ends = Ends::connect(&lab, over, Some(plan), bytes)?;
    lines_are_right(&mut ends.target.port, bytes)?;
    ensure(ends.target.verify(bytes, &mut |_| {})? == bytes, "a part was not compared")?;
    let c = ends.counters()?;
    let seen = [c.retransmitted, c.sacks, c.early, c.duplicates, c.dropped_trailer];
    ensure(seen.iter().all(|n| *n > 0), format!("something never happened: {c:?}"))?;
    ensure(c.requests == c.answered && c.faults == 0, format!("{c:?}"))?;
    ensure(c.sessions == 1, format!("a session was lost: {c:?}"))?;
    ends.end()
}

/// The cable is interrupted at either end in turn for less than the session time-out, while operations are in flight:
/// no operation fails.
fn a_short_flap_only_delays(over: LinkKind) -> Outcome {
    let lab = lab(over)?;
    let mut ends = Ends::connect(&lab, over, None, 8 * MIB)?;
    let whole = AtomicBool::new(false);
    thread::scope(|scope| {
        let work = scope.spawn(|| {
            for pass in 0.. {
                // `last` is set after the last interruption: one more round follows.
                let last = whole.load(Ordering::Acquire);
                ends.target.verify(pass, &mut |_| {}).map_err(|e| e.to_string())?;
                if last {
                    break;
                }
            }
            Ok::<_, String>(ends)
        });
        let flaps = ["mn0", "cn0", "mn0"].into_iter().try_for_each(|interface| {
            thread::sleep(Duration::from_millis(30));
            lab.link_down(interface)?;
            // The interruption is longer than the 250 ms without frames after which a session becomes suspect.
            thread::sleep(Duration::from_millis(300));
            lab.link_up(interface)
        });
        whole.store(true, Ordering::Release);
        let mut ends = work.join().expect("no panic")?;
        flaps?;
        let c = ends.counters()?;
        ensure(c.requests == c.answered && c.retransmitted > 0, format!("{c:?}"))?;
        ends.end()
    })
}

/// Writes and reads lines all over the region, one in each frame, twice, so that a write executed late or repeatedly
/// would be detected.
fn lines_are_right(port: &mut Port, bytes: u64) -> Outcome {
    let hpas: Vec<u64> = (0..LINES).map(|i| HPA + i * (bytes / LINES) / 64 * 64).collect();
    let mut found = vec![[0; 64]; hpas.len()];
    for round in 0..2 {
        let written: Vec<(u64, [u8; 64])> = hpas.iter().map(|hpa| (*hpa, line(*hpa, round))).collect();
        port.write_batch(&written)?;
        port.read_batch(&hpas, &mut found)?;
        let wrong = written.iter().zip(&found).find(|((_, written), found)| written != *found);
        ensure(wrong.is_none(), format!("in round {round}: {wrong:x?}"))?;
    }
    Ok(())
}

fn line(hpa: u64, round: u64) -> [u8; 64] {
    let mut line = [0; 64];
    for (word, place) in line.as_chunks_mut::<8>().0.iter_mut().zip(1_u64..) {
        *word = (hpa ^ round << 56).wrapping_mul(place).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    }
    line
}
