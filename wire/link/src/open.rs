//! Opening a link: the order in which implementations are tried, and the reason for the choice.

use crate::dpdk::{self, DpdkLink};
use crate::encap::EncapLink;
use crate::interface::Interface;
use crate::link_detail::LinkDetail;
use crate::packet::{self, PacketLink};
use crate::pnet::PnetLink;
use crate::udp::{self, UdpLink};
use crate::xdp::{self, XdpLink};
use crate::{Backend, Encap, Link, LinkConfig, LinkError};
use cxloe_wire::frame::Mac;

/// Opens the link of `config`. With `auto`, each implementation that does not work is logged with its reason,
/// and the link's [`detail`](crate::LinkInfo::detail) has the reason of the choice. If no implementation
/// works, the error of packet rings is returned.
///
/// # Errors
/// Errors of the interface or of the implementation.
pub fn open(config: &LinkConfig) -> Result<Box<dyn Link>, LinkError> {
    let link = match dpdk::is_device(&config.interface) {
        true => by_dpdk(config),
        false if config.backend.is_auto() => choose(config),
        false => one(config, config.backend, None),
    }?;
    let info = link.info();
    tracing::info!(
        interface = %info.interface, backend = info.backend, detail = %info.detail, mac = %info.mac,
        mtu = info.mtu, max_frame = info.max_frame, "link open"
    );
    Ok(link)
}

/// Opens a device of DPDK. Returns an error if the options also select a link or an encapsulation.
fn by_dpdk(config: &LinkConfig) -> Result<Box<dyn Link>, LinkError> {
    if !config.backend.is_auto() || config.encap != Encap::None {
        return Err(LinkError::Unsupported {
            backend: "dpdk",
            interface: config.interface.clone(),
            why: "the device is a link of its own: leave --link and --encap out".into(),
        });
    }
    Ok(Box::new(DpdkLink::open(config)?))
}

/// Returns the MAC of a link opened with `config` in this thread's network namespace: the node's identity. A
/// shard's address follows from it.
///
/// # Errors
/// Errors of the interface.
pub fn own_mac(config: &LinkConfig) -> Result<Mac, LinkError> {
    if config.is_over_udp() {
        return udp::own_mac(config);
    }
    Ok(Interface::find_for(&config.interface, config.queues)?.mac)
}

/// Checks that the interface exists and that raw sockets may be opened, if the link needs them. For a program
/// that does much work before it opens its links.
///
/// # Errors
/// Errors of the interface; [`LinkError::Permission`].
pub fn check(config: &LinkConfig) -> Result<(), LinkError> {
    if config.backend == Backend::Udp {
        return udp::own_mac(config).map(drop);
    }
    let interface = Interface::find_for(&config.interface, config.queues)?;
    if dpdk::is_device(&config.interface) {
        return Ok(());
    }
    let needs = if config.backend == Backend::Xdp { xdp::NEEDS } else { packet::NEEDS };
    let opened = packet::open_socket();
    opened.map(drop).map_err(|error| interface.error("open a packet socket", needs, error))
}

/// Opens the link by one implementation. `why` is the reason of the choice, if there was a choice.
fn one(config: &LinkConfig, backend: Backend, why: Option<&str>) -> Result<Box<dyn Link>, LinkError> {
    fn boxed(mut link: impl Link + LinkDetail + 'static, why: Option<&str>) -> Box<dyn Link> {
        if let Some(why) = why {
            link.detail().push_str(&format!("; taken because {why}"));
        }
        Box::new(link)
    }
    if config.encap == Encap::Udp && backend != Backend::Udp {
        return Ok(boxed(EncapLink::open(config, backend)?, why));
    }
    Ok(match backend {
        Backend::Xdp => boxed(XdpLink::open(config)?, why),
        Backend::Pnet => boxed(PnetLink::open(config)?, why),
        Backend::Udp => boxed(UdpLink::open(config)?, why),
        Backend::Packet | Backend::Auto | Backend::AutoLatency | Backend::AutoThroughput => {
            boxed(PacketLink::open(config)?, why)
        }
    })
}

fn choose(config: &LinkConfig) -> Result<Box<dyn Link>, LinkError> {
    let ((first, why), second) = order(config.backend, xdp::is_zero_copy(config));
    let refused = |backend: Backend, why: &LinkError| {
        tracing::info!(interface = %config.interface, %backend, %why, "link not taken");
    };
    one(config, first, Some(why)).or_else(|first_error| {
        // An error of the interface itself would occur with every implementation.
        if matches!(
            first_error,
            LinkError::NoSuchInterface(_) | LinkError::Down(_) | LinkError::MtuTooSmall { .. }
        ) {
            return Err(first_error);
        }
        refused(first, &first_error);
        one(config, second, Some(&format!("{first} does not work here"))).or_else(|second_error| {
            refused(second, &second_error);
            // If both fail, the error of the packet ring usually explains the cause better.
            let error = if first == Backend::Packet { first_error } else { second_error };
            one(config, Backend::Pnet, Some("neither xdp nor packet works here")).map_err(|_| error)
        })
    })
}

/// Returns the implementation to try first, with the reason, and the implementation to try next.
fn order(wanted: Backend, zero_copy: bool) -> ((Backend, &'static str), Backend) {
    match (zero_copy, wanted) {
        (true, _) => ((Backend::Xdp, "the driver does AF_XDP without a copy"), Backend::Packet),
        (false, Backend::AutoThroughput) => {
            ((Backend::Xdp, "it carries more frames a second, though each is copied"), Backend::Packet)
        }
        (false, _) => {
            let why = "AF_XDP would copy each frame, and this is quicker for single lines";
            ((Backend::Packet, why), Backend::Xdp)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_follows_what_is_wanted_and_what_the_driver_can_do() {
        for wanted in [Backend::Auto, Backend::AutoLatency, Backend::AutoThroughput] {
            let backends = |zero_copy| {
                let ((first, why), second) = order(wanted, zero_copy);
                assert!(!why.is_empty());
                (first, second)
            };
            assert_eq!(backends(true), (Backend::Xdp, Backend::Packet));
            match wanted {
                Backend::AutoThroughput => assert_eq!(backends(false), (Backend::Xdp, Backend::Packet)),
                _ => assert_eq!(backends(false), (Backend::Packet, Backend::Xdp)),
            }
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in Backend::VALUES.split('|') {
            let backend: Backend = name.parse().unwrap();
            assert_eq!((backend.to_string().as_str(), backend.is_auto()), (name, name.starts_with("auto")));
        }
        for wrong in ["", "Auto", "auto:", "auto:fast", "xdp:latency"] {
            assert!(wrong.parse::<Backend>().is_err(), "{wrong}");
        }
    }
}
