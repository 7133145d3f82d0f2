//! Judgement of a [`Nic`] for a daemon, with the commands that correct it.

use super::{Nic, Presence};
use crate::doctor::permissions::Xdp;
use crate::doctor::{Check, Group};
use cxloe_wire::frame::Mac;

/// Maximum interrupt delay, in microseconds, that is short compared with a round trip.
const COALESCING_US_MAX: u32 = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Minimum MTU with which the daemon works, in bytes.
    pub mtu_min: usize,
    /// Minimum MTU with which a page fits one frame, in bytes.
    pub mtu_page: usize,
    pub workers: u32,
    /// Queues of the interface that each worker serves.
    pub queues: u32,
    /// Addresses of all queues, by number; empty if the queues have no addresses of their own.
    pub addresses: Vec<Mac>,
    /// Slots of the daemon's own receive ring, in frames.
    pub ring: u32,
    pub spinning: bool,
    pub xdp: Xdp,
    /// 802.1Q priority of the daemon's frames; `None` if they are not tagged.
    pub priority: Option<u8>,
}

fn ok(name: &str, found: impl Into<String>) -> Check {
    Check::ok(Group::Interface, name, found)
}

fn warn(name: &str, found: impl Into<String>, advice: impl Into<String>) -> Check {
    Check::warn(Group::Interface, name, found, advice)
}

fn fail(name: &str, found: impl Into<String>, advice: impl Into<String>) -> Check {
    Check::fail(Group::Interface, name, found, advice)
}

impl Nic {
    /// Judges the interface. If the interface is absent or does not carry Ethernet, there are no further checks.
    pub fn judge(&self, demand: &Demand) -> Vec<Check> {
        let (name, presence) = (&self.name, "interface");
        match &self.presence {
            Presence::Absent(others) => {
                let advice = format!("name one with -i that `ip link` lists here: {}", others.join(", "));
                return vec![fail(presence, format!("there is no {name} in this network namespace"), advice)];
            }
            Presence::Unseen => {
                let advice = "enter the namespace with `ip netns exec`, which shows its /sys, to have the rest checked";
                return vec![warn(
                    presence,
                    format!("{name} is there, but /sys is of another network namespace"),
                    advice,
                )];
            }
            Presence::Here if !self.ethernet => {
                let advice = "name an Ethernet interface with -i; frames go over nothing else";
                return vec![fail(presence, format!("{name} is no Ethernet interface"), advice)];
            }
            Presence::Here => {}
        }
        let mut checks = vec![self.judge_presence(), self.judge_up(), self.judge_mtu(demand)];
        let more = [
            self.judge_master(),
            self.judge_speed(),
            self.judge_coalescing(),
            self.judge_rings(demand),
            self.judge_queues(demand),
            self.judge_steering(demand),
            self.judge_merging(),
            self.judge_polling(demand),
            self.judge_pfc(demand),
            self.judge_pauses(demand),
        ];
        checks.extend(more.into_iter().flatten());
        checks
    }

    fn judge_presence(&self) -> Check {
        let driver = if self.driver.is_empty() { "unknown" } else { &self.driver };
        ok("interface", format!("{}, driver {driver}", self.name))
    }

    fn judge_up(&self) -> Check {
        let name = &self.name;
        match (self.up, self.carrier) {
            (false, _) => fail("link", "down", format!("ip link set {name} up")),
            (true, false) => fail(
                "link",
                "up, but without a link partner (no carrier)",
                "check the cable, the switch's port and the optics; of a veth, whether its other end is up",
            ),
            (true, true) => ok("link", "up"),
        }
    }

    fn judge_mtu(&self, demand: &Demand) -> Check {
        let (name, mtu, Demand { mtu_min, mtu_page, .. }) = (&self.name, self.mtu, demand);
        if mtu < *mtu_min {
            let advice =
                format!("ip link set {name} mtu 9000, or 1500 where a switch on the way allows no more");
            return fail("MTU", format!("{mtu}, a line takes {mtu_min}"), advice);
        }
        if mtu < *mtu_page {
            let advice = format!(
                "ip link set {name} mtu 9000 ({mtu_page} is enough), on all nodes, with jumbo frames on the switch"
            );
            return warn("MTU", format!("{mtu}: a page takes several frames"), advice);
        }
        ok("MTU", format!("{mtu}: a page fits one frame"))
    }

    fn judge_master(&self) -> Option<Check> {
        let master = self.master.as_ref()?;
        let name = &self.name;
        let advice = format!(
            "what comes in goes to {master} first, and may never be seen: take {name} out (ip link set {name} nomaster), \
             or use another interface"
        );
        Some(warn("membership", format!("{name} is a member of {master}"), advice))
    }

    fn judge_speed(&self) -> Option<Check> {
        let speed = self.speed?;
        if self.half_duplex {
            let advice = "frames collide: have both ends negotiate, or set both to full duplex";
            return Some(warn("speed", format!("{speed} Mbit/s, half duplex"), advice));
        }
        if speed < 10_000 {
            let advice = "a line takes longer on the wire than in this machine: use 10 Gbit/s or more where latency matters";
            return Some(warn("speed", format!("{speed} Mbit/s"), advice));
        }
        Some(ok("speed", format!("{} Gbit/s", speed / 1000)))
    }

    fn judge_coalescing(&self) -> Option<Check> {
        let (name, found) = (&self.name, self.coalescing?);
        let slow = found.adaptive_rx || found.rx_usecs > COALESCING_US_MAX;
        let shown = format!(
            "rx {} us{}, tx {} us",
            found.rx_usecs,
            if found.adaptive_rx { " (adaptive)" } else { "" },
            found.tx_usecs
        );
        if !slow {
            return Some(ok("interrupt moderation", shown));
        }
        let advice =
            format!("frames wait in the NIC: ethtool -C {name} adaptive-rx off rx-usecs 0 tx-usecs 0");
        Some(warn("interrupt moderation", shown, advice))
    }

    fn judge_rings(&self, demand: &Demand) -> Option<Check> {
        let (name, rings) = (&self.name, self.rings?);
        let shown = format!("rx {} of {}, tx {} of {}", rings.rx, rings.rx_max, rings.tx, rings.tx_max);
        let wanted = demand.ring.min(rings.rx_max);
        if rings.rx >= wanted {
            return Some(ok("ring sizes", shown));
        }
        let advice = format!("bursts of several nodes overrun it: ethtool -G {name} rx {wanted}");
        Some(warn("ring sizes", shown, advice))
    }

    fn judge_queues(&self, demand: &Demand) -> Option<Check> {
        let (name, queues, workers, each) = (&self.name, self.queues?, demand.workers, demand.queues);
        let wanted = workers * each;
        let with = if each > 1 { format!(" with {each} each") } else { String::new() };
        let shown = format!("{} that receive, {workers} workers{with}", queues.rx);
        if demand.xdp == Xdp::Not || queues.rx == wanted {
            return Some(ok("queues", shown));
        }
        if queues.rx < wanted {
            let advice = if queues.rx_max >= wanted {
                format!("each worker of AF_XDP has a queue of its own: ethtool -L {name} combined {wanted}")
            } else if each > 1 {
                format!("each queue of a worker of AF_XDP is one of the interface: have {} in all", queues.rx)
            } else {
                format!("each worker of AF_XDP has a queue of its own: have {} workers", queues.rx)
            };
            return Some(fail_or_warn(demand, "queues", shown, advice));
        }
        let advice = format!(
            "AF_XDP does not see frames that arrive in a queue without a worker: ethtool -L {name} combined {wanted}; or \
             steer each peer: ethtool -N {name} flow-type ether src MAC action QUEUE"
        );
        Some(warn("queues", shown, advice))
    }

    /// Judges whether the frames to each queue's address arrive in that queue: AF_XDP needs a rule for each.
    fn judge_steering(&self, demand: &Demand) -> Option<Check> {
        if demand.xdp == Xdp::Not || demand.addresses.len() < 2 {
            return None;
        }
        let (name, rules) = (&self.name, self.steering.as_ref()?);
        let unsteered = |(to, queue): (&Mac, u32)| {
            let is_steered = rules.iter().any(|rule| rule.to == *to && rule.queue == queue);
            (!is_steered).then(|| format!("ethtool -N {name} flow-type ether dst {to} action {queue}"))
        };
        let missing: Vec<String> = demand.addresses.iter().zip(0..).filter_map(unsteered).collect();
        let count = demand.addresses.len();
        if missing.is_empty() {
            return Some(ok("steering", format!("a rule for each of {count} queues")));
        }
        let advice = format!(
            "AF_XDP does not see frames that arrive in another queue than that of their address: {}",
            missing.join("; ")
        );
        Some(warn("steering", format!("no rule for {} of {count} queues", missing.len()), advice))
    }

    fn judge_merging(&self) -> Option<Check> {
        if !self.merges? {
            return Some(ok("merging in hardware", "off"));
        }
        let advice = format!("XDP does not go with it, and frames wait: ethtool -K {} lro off", self.name);
        Some(warn("merging in hardware", "on (LRO)", advice))
    }

    fn judge_polling(&self, demand: &Demand) -> Option<Check> {
        let deferred = self.deferred_interrupts?;
        // A veth has no interrupts.
        if !demand.spinning || demand.xdp == Xdp::Not || self.driver == "veth" {
            return None;
        }
        if deferred > 0 {
            return Some(ok("interrupts while polling", format!("put off {deferred} times")));
        }
        let name = &self.name;
        let advice = format!(
            "interrupts take the queue from the worker that polls it. Started by root, the daemon sees to that itself; \
             else: echo 2 > /sys/class/net/{name}/napi_defer_hard_irqs; echo 200000 > /sys/class/net/{name}/gro_flush_timeout"
        );
        Some(warn("interrupts while polling", "not put off", advice))
    }

    fn judge_pfc(&self, demand: &Demand) -> Option<Check> {
        let (name, class) = (&self.name, demand.priority?);
        Some(match self.pfc {
            None => {
                let advice = format!(
                    "nothing holds class {class} back but losses: use a NIC with PFC, or leave --priority out"
                );
                warn("PFC", format!("{name} does no Data Center Bridging"), advice)
            }
            Some(classes) if classes >> class & 1 == 1 => ok("PFC", format!("on for class {class}")),
            Some(_) => {
                let advice =
                    format!("dcb pfc set dev {name} prio-pfc {class}:on; and the same on the switch");
                warn("PFC", format!("off for class {class}"), advice)
            }
        })
    }

    fn judge_pauses(&self, demand: &Demand) -> Option<Check> {
        if !self.pauses? {
            return demand.priority.map(|_| ok("pause frames", "off"));
        }
        let class = demand.priority?;
        let advice = format!(
            "they hold all classes back, and exclude PFC of class {class}: ethtool -A {} rx off tx off",
            self.name
        );
        Some(warn("pause frames", "on", advice))
    }
}

/// Failure if AF_XDP is required, because AF_XDP does not start with too few queues; otherwise a warning.
fn fail_or_warn(demand: &Demand, name: &str, found: String, advice: String) -> Check {
    match demand.xdp {
        Xdp::Must => fail(name, found, advice),
        _ => warn(name, found, advice),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Coalescing, Queues, Rings, SteeringRule};
    use super::*;
    use crate::doctor::Level;

    /// An interface that passes all checks.
    fn nic() -> Nic {
        Nic {
            name: "eth9".into(),
            ethernet: true,
            up: true,
            carrier: true,
            mtu: 9000,
            speed: Some(100_000),
            driver: "mlx5_core".into(),
            deferred_interrupts: Some(2),
            coalescing: Some(Coalescing { rx_usecs: 0, tx_usecs: 0, adaptive_rx: false }),
            rings: Some(Rings { rx: 1024, rx_max: 8192, tx: 1024, tx_max: 8192 }),
            queues: Some(Queues { rx: 2, rx_max: 64 }),
            merges: Some(false),
            pauses: Some(false),
            pfc: Some(0b1000),
            ..Nic::default()
        }
    }

    fn demand() -> Demand {
        Demand {
            mtu_min: 97,
            mtu_page: 4137,
            workers: 2,
            queues: 1,
            addresses: Vec::new(),
            ring: 1024,
            spinning: true,
            xdp: Xdp::May,
            priority: Some(3),
        }
    }

    fn verdict(nic: &Nic, demand: &Demand, name: &str) -> (Level, String) {
        let checks = nic.judge(demand);
        let check = checks.iter().find(|check| check.name == name);
        let check = check.unwrap_or_else(|| panic!("no check {name}: {checks:?}"));
        (check.level, check.advice.clone().unwrap_or_default())
    }

    #[track_caller]
    fn expect(nic: Nic, name: &str, level: Level, advice: &str) {
        let (found, said) = verdict(&nic, &demand(), name);
        assert_eq!(found, level, "{name}: {said}");
        assert!(said.contains(advice), "{name}: {said}");
    }

    #[test]
    fn all_is_well_with_one_that_was_tuned() {
        let checks = nic().judge(&demand());
        assert!(checks.iter().all(|check| check.level == Level::Ok), "{checks:?}");
        assert_eq!(checks.len(), 11);
    }

    #[test]
    fn what_is_no_interface_is_judged_no_further() {
        let absent = Nic { presence: Presence::Absent(vec!["lo".into(), "eth0".into()]), ..nic() };
        assert_eq!(absent.judge(&demand()).len(), 1);
        expect(absent, "interface", Level::Fail, "lo, eth0");
        expect(Nic { presence: Presence::Unseen, ..nic() }, "interface", Level::Warn, "ip netns exec");
        expect(Nic { ethernet: false, ..nic() }, "interface", Level::Fail, "Ethernet");
    }

    #[test]
    fn down_and_unplugged_are_told_apart() {
        expect(Nic { up: false, carrier: false, ..nic() }, "link", Level::Fail, "ip link set eth9 up");
        expect(Nic { carrier: false, ..nic() }, "link", Level::Fail, "cable");
    }

    #[test]
    fn the_mtu_decides_whether_and_how_well_it_works() {
        for (mtu, level) in [(96, Level::Fail), (97, Level::Warn), (4136, Level::Warn), (4137, Level::Ok)] {
            assert_eq!(verdict(&Nic { mtu, ..nic() }, &demand(), "MTU").0, level, "{mtu}");
        }
        expect(Nic { mtu: 1500, ..nic() }, "MTU", Level::Warn, "ip link set eth9 mtu 9000 (4137 is enough)");
    }

    #[test]
    fn settings_that_delay_or_lose_frames_are_named_with_their_command() {
        let moderated = |rx_usecs, adaptive_rx| Nic {
            coalescing: Some(Coalescing { rx_usecs, tx_usecs: 16, adaptive_rx }),
            ..nic()
        };
        expect(moderated(8, false), "interrupt moderation", Level::Ok, "");
        expect(
            moderated(9, false),
            "interrupt moderation",
            Level::Warn,
            "ethtool -C eth9 adaptive-rx off rx-usecs 0",
        );
        expect(moderated(0, true), "interrupt moderation", Level::Warn, "adaptive-rx off");
        let rings = |rx, rx_max| Nic { rings: Some(Rings { rx, rx_max, tx: 256, tx_max: 256 }), ..nic() };
        expect(rings(256, 4096), "ring sizes", Level::Warn, "ethtool -G eth9 rx 1024");
        expect(rings(256, 512), "ring sizes", Level::Warn, "rx 512");
        expect(rings(512, 512), "ring sizes", Level::Ok, "");
        expect(Nic { merges: Some(true), ..nic() }, "merging in hardware", Level::Warn, "lro off");
        expect(Nic { master: Some("br0".into()), ..nic() }, "membership", Level::Warn, "nomaster");
        expect(Nic { speed: Some(1000), ..nic() }, "speed", Level::Warn, "10 Gbit/s");
        expect(Nic { half_duplex: true, ..nic() }, "speed", Level::Warn, "full duplex");
    }

    #[test]
    fn each_worker_of_af_xdp_has_a_queue_and_each_queue_a_worker() {
        let queues = |rx, rx_max| Nic { queues: Some(Queues { rx, rx_max }), ..nic() };
        expect(queues(8, 64), "queues", Level::Warn, "ethtool -L eth9 combined 2");
        expect(queues(1, 64), "queues", Level::Warn, "ethtool -L eth9 combined 2");
        expect(queues(1, 1), "queues", Level::Warn, "have 1 workers");
        let must = Demand { xdp: Xdp::Must, ..demand() };
        assert_eq!(verdict(&queues(1, 1), &must, "queues").0, Level::Fail);
        let not = Demand { xdp: Xdp::Not, ..demand() };
        assert_eq!(verdict(&queues(8, 64), &not, "queues").0, Level::Ok);
    }

    #[test]
    fn workers_with_several_queues_want_all_of_them() {
        let two_each = Demand { queues: 2, ..demand() };
        let judge =
            |rx, rx_max| verdict(&Nic { queues: Some(Queues { rx, rx_max }), ..nic() }, &two_each, "queues");
        assert_eq!(judge(4, 64).0, Level::Ok);
        assert_eq!(judge(2, 64).0, Level::Warn);
        assert!(
            judge(2, 64).1.contains("ethtool -L eth9 combined 4") && judge(3, 3).1.contains("have 3 in all")
        );
    }

    #[test]
    fn each_queue_with_an_address_of_its_own_wants_a_rule() {
        let own = Mac([2, 0, 0, 0, 0, 1]);
        let sharded = Demand { addresses: vec![own, own.shard(1)], ..demand() };
        let rule = |shard, queue| SteeringRule { to: own.shard(shard), queue };
        let with = |rules: &[SteeringRule]| Nic { steering: Some(rules.to_vec()), ..nic() };
        let judge = |rules: &[SteeringRule]| verdict(&with(rules), &sharded, "steering");
        assert_eq!(judge(&[rule(1, 1), rule(0, 0)]).0, Level::Ok);
        let (level, advice) = judge(&[rule(0, 0), rule(1, 0)]);
        assert_eq!(level, Level::Warn);
        assert!(
            advice.ends_with(": ethtool -N eth9 flow-type ether dst 12:00:00:00:00:02 action 1"),
            "{advice}"
        );
        assert!(judge(&[]).1.contains("dst 02:00:00:00:00:01 action 0; ethtool"));
        let unjudged =
            |nic: &Nic, demand: &Demand| nic.judge(demand).iter().all(|check| check.name != "steering");
        assert!(unjudged(&nic(), &sharded), "the driver says nothing of its rules");
        assert!(unjudged(&with(&[]), &demand()), "all queues have one address");
        assert!(unjudged(&with(&[]), &Demand { xdp: Xdp::Not, ..sharded }));
    }

    #[test]
    fn polling_requires_deferred_interrupts() {
        let interrupted = Nic { deferred_interrupts: Some(0), ..nic() };
        expect(interrupted.clone(), "interrupts while polling", Level::Warn, "napi_defer_hard_irqs");
        for other in [Demand { spinning: false, ..demand() }, Demand { xdp: Xdp::Not, ..demand() }] {
            assert!(interrupted.judge(&other).iter().all(|check| check.name != "interrupts while polling"));
        }
    }

    #[test]
    fn a_priority_class_requires_pfc_without_link_pauses() {
        expect(Nic { pfc: Some(0b0111), ..nic() }, "PFC", Level::Warn, "dcb pfc set dev eth9 prio-pfc 3:on");
        expect(Nic { pfc: None, ..nic() }, "PFC", Level::Warn, "--priority");
        expect(
            Nic { pauses: Some(true), ..nic() },
            "pause frames",
            Level::Warn,
            "ethtool -A eth9 rx off tx off",
        );
        let untagged = Demand { priority: None, ..demand() };
        let checks = Nic { pauses: Some(true), pfc: None, ..nic() }.judge(&untagged);
        assert!(checks.iter().all(|check| check.name != "PFC" && check.name != "pause frames"), "{checks:?}");
    }

    #[test]
    fn what_nobody_tells_is_not_judged() {
        let silent = Nic {
            speed: None,
            deferred_interrupts: None,
            coalescing: None,
            rings: None,
            queues: None,
            merges: None,
            pauses: None,
            ..nic()
        };
        let untagged = Demand { priority: None, ..demand() };
        assert_eq!(silent.judge(&untagged).len(), 3);
    }
}
