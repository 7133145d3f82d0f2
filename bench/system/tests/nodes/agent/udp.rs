//! An agent over link `udp`: outer addresses from the manager, and networks whose paths have a smaller MTU than its
//! interface.

use cxloe_client::client;
use cxloe_lab::Lab;
use cxloe_system::cable::{cable, ip, with_addresses};
use cxloe_system::pair::*;

/// A router between two segments has a path with a smaller MTU than theirs. A frame that is too long for the path
/// causes an ICMP message; the agent logs the MTU of the path, and continues with shorter frames.
pub fn a_router_with_a_narrow_hop_is_named_over_udp() -> Outcome {
    let network = Lab::builder().namespace("cn").namespace("router").namespace("mn");
    let network = network.veth("cn", "cn0", "router", "r0").veth("router", "r1", "mn", "mn0");
    let network = network.address("cn0", "10.77.0.1/24").address("r0", "10.77.0.254/24");
    let network = network.address("r1", "10.78.0.254/24").address("mn0", "10.78.0.2/24");
    let mut rig = Pair::on(network)?;
    rig.link = "udp";
    ip(&rig.lab, "cn", &["route", "add", "default", "via", "10.77.0.254"])?;
    ip(&rig.lab, "mn", &["route", "add", "default", "via", "10.78.0.254"])?;
    ip(&rig.lab, "router", &["route", "add", "10.78.0.2/32", "dev", "r1", "mtu", "lock", "1400"])?;
    rig.lab.enter("router", || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1"))??;
    rig.start_all("anon", &["--cache-size", "0"])?;
    let hpa = rig.attached("scratch", "active")?.hpa;
    let mut port = rig.connect()?;
    recovered(&mut port, hpa)?;
    let all: Vec<u8> = (0..REGION as usize).map(|at| (at / 64) as u8 ^ (at / 4096) as u8).collect();
    eventually("long frames pass", || port.write_bytes(hpa, &all).ok())?;
    let mut back = vec![0; all.len()];
    port.read_bytes(hpa, &mut back)?;
    ensure(back == all, "other bytes than were written")?;
    let output_text = rig.logs("agent");
    ensure(
        output_text.contains("IP packets of") && output_text.contains("the path carries 1400"),
        output_text,
    )
}

/// Over UDP each node gets the other's address from the manager, also after a node has restarted with another address.
pub fn addresses_over_udp_come_from_the_manager() -> Outcome {
    let mut rig = Pair::on(with_addresses(cable()))?;
    rig.link = "udp";
    ip(&rig.lab, "cn", &["address", "add", "10.77.0.3/24", "dev", "cn0"])?;
    ip(&rig.lab, "mn", &["address", "add", "10.77.0.4/24", "dev", "mn0"])?;
    rig.start_all("file", &["--cache-size", "0"])?;
    let (mut port, hpa) = rig.written(31)?;
    verify(&mut port, hpa, 31)?;
    drop(port);
    rig.stop("agent")?;
    rig.start_agent(&["--cache-size", "0", "--udp-address", "10.77.0.3"])?;
    let mut port = rig.connect()?;
    recovered(&mut port, hpa)?;
    verify(&mut port, hpa, 31)?;
    rig.stop("mn")?;
    rig.start_mn_with("file", &["--udp-address", "10.77.0.4"])?;
    recovered(&mut port, hpa)?;
    verify(&mut port, hpa, 31)?;
    let counters = client::counters(&rig.socket())?;
    ensure(counters.backend == "udp" && counters.link.rx_forged == 0, format!("{:?}", counters.link))
}

/// Each node in turn gets another IP address while both run. The node listens at the new address, which the
/// other node gets from the manager.
pub fn an_address_that_changes_is_followed_over_udp() -> Outcome {
    let mut rig = Pair::on(with_addresses(cable()))?;
    rig.link = "udp";
    rig.start_all("anon", &["--cache-size", "0"])?;
    let (mut port, hpa) = rig.written(37)?;
    let nodes = [rig.pid("agent")?, rig.pid("mn")?];
    for (namespace, interface, address) in [("cn", "cn0", "10.77.0.3/24"), ("mn", "mn0", "10.77.0.4/24")] {
        ip(&rig.lab, namespace, &["address", "flush", "dev", interface])?;
        ip(&rig.lab, namespace, &["address", "add", address, "dev", interface])?;
        recovered(&mut port, hpa)?;
        verify(&mut port, hpa, 37)?;
    }
    ensure([rig.pid("agent")?, rig.pid("mn")?] == nodes, "both run still")?;
    let listed = rig.gmm(&["list", "--json"])?;
    let both = ["10.77.0.3:", "10.77.0.4:"].iter().all(|address| listed.contains(address));
    ensure(both, format!("the manager has the new addresses: {listed}"))
}
