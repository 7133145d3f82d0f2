//! Opening a link: which implementation is tried first, and why another was taken.

use crate::encap::EncapLink;
use crate::link::Explain;
use crate::packet::PacketLink;
use crate::pnet::PnetLink;
use crate::udp::UdpLink;
use crate::xdp::{self, XdpLink};
use crate::{Backend, Encap, Link, LinkConfig, LinkError};

/// Opens the link that `config` asks for. Where the choice is left to this function, each implementation that does not
/// work is logged with its reason, the link's [`detail`](crate::LinkInfo::detail) says why it was taken, and the error of
/// packet rings is returned if none works.
///
/// # Errors
/// The interface's, or those of the implementation.
pub fn open(config: &LinkConfig) -> Result<Box<dyn Link>, LinkError> {
    let link = if config.backend.is_auto() { choose(config) } else { one(config, config.backend, None) }?;
    let info = link.info();
    tracing::info!(
        interface = %info.interface, backend = info.backend, detail = %info.detail, mac = %info.mac,
        mtu = info.mtu, max_frame = info.max_frame, "link open"
    );
    Ok(link)
}

/// Opens one implementation, which was taken for the reason `why` if there was a choice.
fn one(config: &LinkConfig, backend: Backend, why: Option<&str>) -> Result<Box<dyn Link>, LinkError> {
    fn boxed(mut link: impl Link + Explain + 'static, why: Option<&str>) -> Box<dyn Link> {
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
        _ => boxed(PacketLink::open(config)?, why),
    })
}

fn choose(config: &LinkConfig) -> Result<Box<dyn Link>, LinkError> {
    let ((first, why), second) = order(config.backend, xdp::is_zero_copy(config));
    let refused = |backend: Backend, why: &LinkError| {
        tracing::info!(interface = %config.interface, %backend, %why, "link not taken");
    };
    one(config, first, Some(why)).or_else(|first_error| {
        // What is wrong with the interface itself is wrong for every implementation.
        if matches!(
            first_error,
            LinkError::NoSuchInterface(_) | LinkError::Down(_) | LinkError::MtuTooSmall { .. }
        ) {
            return Err(first_error);
        }
        refused(first, &first_error);
        one(config, second, Some(&format!("{first} does not work here"))).or_else(|second_error| {
            refused(second, &second_error);
            // The packet ring's reason is the one worth acting on.
            let error = if first == Backend::Packet { first_error } else { second_error };
            one(config, Backend::Pnet, Some("neither xdp nor packet works here")).map_err(|_| error)
        })
    })
}

/// What is tried first, with why it is the better one for what is wanted, and what then.
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
