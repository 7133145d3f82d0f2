//! Checks of the memory nodes: their state at the manager, and whether they answer frames. If an agent runs, its
//! sessions show the answers. Otherwise the check opens a session with each memory node, by packet rings or over UDP,
//! and closes it at once. A memory node that still serves an agent with this address refuses the session; the refusal
//! shows that it answers.

use std::time::Duration;

use cxloe_client::message::Session;
use cxloe_cn::config::Config;
use cxloe_cn_core::attach::{SessionKeys, SessionSettings};
use cxloe_cn_core::cache::CacheConfig;
use cxloe_cn_core::engine::Engine;
use cxloe_cn_core::events;
use cxloe_daemon::doctor::{Check, Group};
use cxloe_fabric::api::MemoryNodeStatus;
use cxloe_fabric::model::Health;
use cxloe_link::keys::{SYSTEM, pre_shared_key};
use cxloe_link::outer::Peer;
use cxloe_link::wait::WaitStyle;
use cxloe_link::{Backend, LinkConfig, UdpConfig, open};
use cxloe_port::port::Port;
use cxloe_wire::frame::Mac;

/// Maximum wait for the answers of all memory nodes together.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Assesses the memory nodes by their state at the manager; `mtu` is the MTU of the local interface.
pub fn judge_nodes(nodes: &[MemoryNodeStatus], mtu: usize) -> Vec<Check> {
    let (group, name) = (Group::Peers, "memory nodes");
    if nodes.is_empty() {
        let advice = "start one: systemctl start mn-server, on the machine that lends memory";
        return vec![Check::warn(group, name, "the manager knows none", advice)];
    }
    let silent: Vec<&str> = nodes
        .iter()
        .filter(|status| status.node.health != Health::Reachable)
        .map(|status| status.node.name.as_str())
        .collect();
    let mut checks = vec![if silent.is_empty() {
        Check::ok(group, name, format!("{} reachable for the manager", nodes.len()))
    } else {
        let advice = "start them, or `gmm forget` those that are gone for good";
        Check::warn(group, name, format!("not reachable for the manager: {}", silent.join(", ")), advice)
    }];
    let other: Vec<String> = nodes
        .iter()
        .filter(|status| mtu > 0 && status.node.mtu as usize != mtu)
        .map(|status| format!("{} {}", status.node.name, status.node.mtu))
        .collect();
    if !other.is_empty() {
        let advice =
            "frames are as large as the smaller end allows: set the same on all nodes, and on the switch";
        checks.push(Check::warn(group, "MTU of peers", format!("here {mtu}, {}", other.join(", ")), advice));
    }
    checks
}

/// Answer of one memory node to a request for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAnswer {
    node: String,
    outcome: CallOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum CallOutcome {
    Open,
    /// Reason for which the memory node refused the session.
    Refused(String),
    /// No answer, although a healthy memory node would have given one.
    Silent,
    /// No answer over UDP, or the manager has no UDP address of the memory node.
    SilentOverUdp,
    /// Reason for which no request could be sent.
    NotAsked(String),
}

impl PeerAnswer {
    pub fn judge(&self) -> Check {
        let (group, name) = (Group::Peers, format!("frames to {}", self.node));
        match &self.outcome {
            CallOutcome::Open => Check::ok(group, name, "answered"),
            CallOutcome::Refused(why) => {
                Check::warn(group, name, why, "it answers, so the network works; resolve the refusal shown")
            }
            CallOutcome::Silent => Check::fail(
                group,
                name,
                format!("no answer within {ANSWER_TIMEOUT:?}"),
                "both have to be on one Ethernet segment (frames pass no router) and use the same EtherType; look for \
                 frames on both sides: tcpdump -e -i INTERFACE ether proto 0x88b5",
            ),
            // Only a warning: over UDP, a healthy memory node ignores a compute node that has no memory on it.
            CallOutcome::SilentOverUdp => Check::warn(
                group,
                name,
                format!("no answer over UDP within {ANSWER_TIMEOUT:?}"),
                "that node has to use --link udp, too; it answers compute nodes only that have memory there and whose address it has from the manager or --udp-peer; let UDP at the port through on the way: tcpdump -ni INTERFACE udp port 63669",
            ),
            CallOutcome::NotAsked(why) => {
                Check::warn(group, name, "not asked", format!("no frame can be sent from here: {why}"))
            }
        }
    }
}

/// Answers of memory nodes, taken from the sessions of a running agent.
pub fn from_agent(sessions: &[Session]) -> Vec<PeerAnswer> {
    let outcome = |session: &Session| match (&session.refusal, session.status.state.as_str()) {
        (_, "open") => CallOutcome::Open,
        (Some(why), _) => CallOutcome::Refused(why.clone()),
        (None, _) => CallOutcome::Silent,
    };
    let answer =
        |session: &Session| PeerAnswer { node: session.status.peer.clone(), outcome: outcome(session) };
    sessions.iter().map(answer).collect()
}

/// Opens a session with each memory node that the manager reaches, and returns the outcomes.
pub fn ask(config: &Config, nodes: &[MemoryNodeStatus]) -> Vec<PeerAnswer> {
    let reachable = || nodes.iter().filter(|status| status.node.health == Health::Reachable);
    let called: Vec<(String, Mac)> = reachable()
        .filter_map(|status| Some((status.node.name.to_string(), Mac(status.node.macs.first()?.0))))
        .collect();
    let udp = config.node.udp();
    udp.peers.set_from_manager(reachable().flat_map(|status| {
        let address = status.node.udp;
        status.node.macs.iter().filter_map(move |mac| Some(Peer { mac: Mac(mac.0), address: address? }))
    }));
    if called.is_empty() {
        return Vec::new();
    }
    match call(config, udp, &called) {
        Ok(answers) => answers,
        Err(why) => {
            let answer =
                |(node, _): (String, Mac)| PeerAnswer { node, outcome: CallOutcome::NotAsked(why.clone()) };
            called.into_iter().map(answer).collect()
        }
    }
}

fn call(config: &Config, udp: UdpConfig, called: &[(String, Mac)]) -> Result<Vec<PeerAnswer>, String> {
    let over_udp = config.node.is_over_udp();
    // Packet rings, not XDP: attaching an XDP program can reset the interface, so only the agent does that.
    let link = LinkConfig {
        backend: if over_udp { Backend::Udp } else { Backend::Packet },
        udp,
        ethertype: config.node.ethertype,
        priority: config.node.priority,
        ..LinkConfig::new(&config.node.interface)
    };
    let link = open(&link).map_err(|error| error.to_string())?;
    let key = config.node.key_file.as_deref().map(pre_shared_key).transpose();
    let key = key.map_err(|error| error.to_string())?;
    let station = SessionSettings {
        own: link.info().mac,
        ethertype: config.node.ethertype,
        max_frame: link.info().max_frame,
        streams: config.streams,
        instance: rand::random(),
        key,
        keys: SessionKeys::none(SYSTEM),
        timing: config.timing(),
    };
    let mut port = Port::new(link, Engine::new(CacheConfig::OFF), WaitStyle::Sleep);
    let now = port.clock().now();
    let peers: Vec<usize> =
        called.iter().map(|(_, mac)| port.engine().add_peer(station.requester(*mac), now)).collect();
    let until = now + ANSWER_TIMEOUT;
    let mut refusals: Vec<(String, String)> = Vec::new();
    while !port.engine().is_connected() && port.clock().now() < until {
        port.idle().map_err(|error| error.to_string())?;
        while let Some(event) = port.engine().poll_event() {
            if let (Some(why), cxloe_cn_core::engine::EngineEvent::Session { mac, .. }) =
                (events::refusal(&event), &event)
            {
                refusals.push((mac.to_string(), why));
            }
        }
    }
    let answers = called.iter().zip(peers).map(|((node, mac), peer)| {
        let refused = refusals.iter().rev().find(|(from, _)| *from == mac.to_string());
        let outcome = match (port.engine().is_peer_connected(peer), refused) {
            (true, _) => CallOutcome::Open,
            (false, Some((_, why))) => CallOutcome::Refused(why.clone()),
            (false, None) if over_udp => CallOutcome::SilentOverUdp,
            (false, None) => CallOutcome::Silent,
        };
        PeerAnswer { node: node.clone(), outcome }
    });
    let answers = answers.collect();
    // An error is ignored: nothing was modified, and a memory node drops a session from which no frames arrive.
    drop(port.close());
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cxloe_daemon::doctor::Level;

    fn node(name: &str, mtu: u32, health: &str) -> MemoryNodeStatus {
        let value = serde_json::json!({
            "name": name, "index": 0, "kind": "sld", "macs": ["02:00:00:00:00:09"], "pool_bytes": 1 << 30,
            "extent_bytes": 2 << 20, "incarnation": 1, "instance_id": 1, "mtu": mtu, "registration": 1,
            "health": health, "last_seq": 0, "acked_seq": 0, "free_bytes": 0, "draining_bytes": 0,
            "pending_commands": 0,
        });
        serde_json::from_value(value).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn nodes_are_judged_by_reach_and_mtu() {
        assert_eq!(judge_nodes(&[], 1500)[0].level, Level::Warn);
        let well = judge_nodes(&[node("mn0", 9000, "reachable")], 9000);
        assert_eq!((well.len(), well[0].level), (1, Level::Ok));
        let mixed = judge_nodes(&[node("mn0", 1500, "reachable"), node("mn1", 9000, "unreachable")], 9000);
        assert!(mixed[0].found.ends_with("mn1") && mixed[0].level == Level::Warn);
        assert_eq!((mixed[1].level, mixed[1].found.as_str()), (Level::Warn, "here 9000, mn0 1500"));
        assert_eq!(
            judge_nodes(&[node("mn0", 1500, "reachable")], 0).len(),
            1,
            "an MTU nobody knows differs from none"
        );
    }

    #[test]
    fn an_answer_is_an_answer_even_if_it_is_no() {
        let level = |outcome| PeerAnswer { node: "mn0".into(), outcome }.judge().level;
        assert_eq!((level(CallOutcome::Open), level(CallOutcome::Silent)), (Level::Ok, Level::Fail));
        assert_eq!(level(CallOutcome::SilentOverUdp), Level::Warn);
        assert_eq!(level(CallOutcome::Refused("version 7".into())), Level::Warn);
        assert_eq!(level(CallOutcome::NotAsked("no".into())), Level::Warn);
    }
}
