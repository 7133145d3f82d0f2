//! Settings of a network interface, as the doctor has read them.

use cxloe_daemon::doctor::Host;
use cxloe_daemon::doctor::nic::{Coalescing, Nic, Presence};

use super::{Fact, FactList, ranges};

/// Facts of an interface. `host` is asked for what is in sysfs only.
pub fn interface(host: &Host, nic: &Nic) -> Vec<Fact> {
    let at = |file: &str| format!("sys/class/net/{}/{file}", nic.name);
    let mut facts = FactList::default();
    facts.add("interface", Some(nic.name.clone()));
    facts.add("state", Some(state(nic)));
    if nic.presence != Presence::Here {
        return facts.0;
    }
    let known = |text: &str| (text != "N/A").then(|| text.to_owned());
    facts.add("driver", Some(nic.driver.clone()));
    facts.add("driver version", known(&nic.description.version));
    facts.add("firmware", known(&nic.description.firmware));
    facts.add("speed", nic.speed.map(|speed| speed_text(speed, nic.half_duplex)));
    facts.add("MTU", Some(nic.mtu.to_string()));
    facts.add("queues, receiving", nic.queues.map(|queues| format!("{} of {}", queues.rx, queues.rx_max)));
    let sending = host.names(at("queues")).iter().filter(|name| name.starts_with("tx-")).count();
    facts.add("queues, sending", (sending > 0).then(|| sending.to_string()));
    let rings = nic.rings;
    facts.add("ring, receiving", rings.map(|rings| format!("{} of {}", rings.rx, rings.rx_max)));
    facts.add("ring, sending", rings.map(|rings| format!("{} of {}", rings.tx, rings.tx_max)));
    facts.add("interrupt moderation", nic.coalescing.map(moderation));
    facts.add("interrupts deferred while polled", nic.deferred_interrupts.map(|times| times.to_string()));
    facts.add("flush time-out of GRO (ns)", host.text(at("gro_flush_timeout")));
    facts.add("threaded NAPI", host.text(at("threaded")).map(|on| switch(on != "0")));
    facts.add("offloads", offloads(nic));
    facts.add("pause frames (802.3x)", nic.pauses.map(switch));
    facts.add("classes with PFC", Some(classes(nic.pfc)));
    facts.add("steering rules", nic.steering.as_ref().map(|rules| rules.len().to_string()));
    facts.add("member of", nic.master.clone());
    facts.0
}

fn state(nic: &Nic) -> String {
    match (&nic.presence, nic.up, nic.carrier) {
        (Presence::Absent(_), ..) => "absent",
        (Presence::Unseen, ..) => "in a network namespace that /sys does not show",
        (Presence::Here, false, _) => "down",
        (Presence::Here, true, false) => "up, no carrier",
        (Presence::Here, true, true) => "up",
    }
    .into()
}

fn speed_text(speed: u32, half_duplex: bool) -> String {
    let text = match speed {
        0..1000 => format!("{speed} Mbit/s"),
        _ if speed.is_multiple_of(1000) => format!("{} Gbit/s", speed / 1000),
        _ => format!("{:.1} Gbit/s", f64::from(speed) / 1000.0),
    };
    if half_duplex { text + ", half duplex" } else { text }
}

fn moderation(found: Coalescing) -> String {
    let adaptive = if found.adaptive_rx { " (adaptive)" } else { "" };
    format!("rx {} us{adaptive}, tx {} us", found.rx_usecs, found.tx_usecs)
}

fn switch(is_on: bool) -> String {
    if is_on { "on".into() } else { "off".into() }
}

/// Offloads that are on, then those that are off.
fn offloads(nic: &Nic) -> Option<String> {
    let names = |on: bool| {
        let names = nic.offloads.iter().filter(|offload| offload.is_on == on).map(|offload| offload.name);
        names.collect::<Vec<_>>().join(" ")
    };
    let parts = [("on", names(true)), ("off", names(false))];
    let shown = parts.into_iter().filter(|(_, names)| !names.is_empty());
    (!nic.offloads.is_empty())
        .then(|| shown.map(|(word, names)| format!("{word}: {names}")).collect::<Vec<_>>().join("; "))
}

fn classes(pfc: Option<u8>) -> String {
    let Some(bits) = pfc else { return "no Data Center Bridging".into() };
    let classes: Vec<usize> = (0..8).filter(|class| bits >> class & 1 == 1).collect();
    if classes.is_empty() { "none".into() } else { ranges(&classes) }
}

#[cfg(test)]
mod tests {
    use super::super::{described, value};
    use super::*;
    use cxloe_daemon::doctor::nic::{DriverInfo, Offload, Queues, Rings};

    #[test]
    fn settings_are_named_with_their_limits() {
        let (_root, host) = described(&[
            ("sys/class/net/eth9/queues/rx-0/x", ""),
            ("sys/class/net/eth9/queues/tx-0/x", ""),
            ("sys/class/net/eth9/queues/tx-1/x", ""),
            ("sys/class/net/eth9/gro_flush_timeout", "200000\n"),
            ("sys/class/net/eth9/threaded", "0\n"),
        ]);
        let offload = |name, is_on| Offload { name, is_on };
        let nic = Nic {
            name: "eth9".into(),
            up: true,
            carrier: true,
            mtu: 9000,
            speed: Some(25_000),
            driver: "mlx5_core".into(),
            description: DriverInfo { firmware: "16.35.2000".into(), ..DriverInfo::default() },
            queues: Some(Queues { rx: 8, rx_max: 63 }),
            rings: Some(Rings { rx: 1024, rx_max: 8192, tx: 512, tx_max: 4096 }),
            coalescing: Some(Coalescing { rx_usecs: 8, tx_usecs: 16, adaptive_rx: true }),
            deferred_interrupts: Some(2),
            offloads: vec![offload("rx", true), offload("lro", false), offload("gro", true)],
            pauses: Some(false),
            pfc: Some(0b1000),
            steering: Some(Vec::new()),
            ..Nic::default()
        };
        let facts = interface(&host, &nic);
        for (name, expected) in [
            ("state", "up"),
            ("driver", "mlx5_core"),
            ("firmware", "16.35.2000"),
            ("speed", "25 Gbit/s"),
            ("MTU", "9000"),
            ("queues, receiving", "8 of 63"),
            ("queues, sending", "2"),
            ("ring, sending", "512 of 4096"),
            ("interrupt moderation", "rx 8 us (adaptive), tx 16 us"),
            ("flush time-out of GRO (ns)", "200000"),
            ("threaded NAPI", "off"),
            ("offloads", "on: rx gro; off: lro"),
            ("pause frames (802.3x)", "off"),
            ("classes with PFC", "3"),
            ("steering rules", "0"),
        ] {
            assert_eq!(value(&facts, name), Some(expected), "{name} in {facts:?}");
        }
        assert_eq!((value(&facts, "driver version"), value(&facts, "member of")), (None, None));
    }

    #[test]
    fn an_absent_interface_has_no_settings() {
        let absent = Nic { name: "eth8".into(), presence: Presence::Absent(vec![]), ..Nic::default() };
        let facts = interface(&Host::at("/nonexistent"), &absent);
        assert_eq!(facts, [Fact::new("interface", "eth8"), Fact::new("state", "absent")]);
    }

    #[test]
    fn speeds_and_classes() {
        assert_eq!(
            [speed_text(100, true), speed_text(2500, false)],
            ["100 Mbit/s, half duplex", "2.5 Gbit/s"]
        );
        assert_eq!(
            [classes(None), classes(Some(0)), classes(Some(0b1110))],
            ["no Data Center Bridging", "none", "1-3"]
        );
    }
}
