//! Opening a link: `auto` tries the fastest first and says why it was not taken.

use crate::packet::PacketLink;
use crate::pnet::PnetLink;
use crate::udp::UdpLink;
use crate::xdp::XdpLink;
use crate::{Backend, Link, LinkConfig, LinkError};

/// Opens the link that `config` asks for. With [`Backend::Auto`] each backend that does not work is logged
/// with its reason, and the error of the last one is returned if none does.
pub fn open(config: &LinkConfig) -> Result<Box<dyn Link>, LinkError> {
    let one = |backend| -> Result<Box<dyn Link>, LinkError> {
        Ok(match backend {
            Backend::Xdp => Box::new(XdpLink::open(config)?),
            Backend::Pnet => Box::new(PnetLink::open(config)?),
            Backend::Udp => Box::new(UdpLink::open(config)?),
            _ => Box::new(PacketLink::open(config)?),
        })
    };
    let link = match config.backend {
        Backend::Auto => {
            let refused = |backend: Backend, why: &LinkError| {
                tracing::info!(interface = %config.interface, %backend, %why, "link not taken");
            };
            one(Backend::Xdp).or_else(|e| {
                // What is wrong with the interface itself is wrong for every backend.
                if matches!(
                    e,
                    LinkError::NoSuchInterface(_) | LinkError::Down(_) | LinkError::MtuTooSmall { .. }
                ) {
                    return Err(e);
                }
                refused(Backend::Xdp, &e);
                one(Backend::Packet).or_else(|e| {
                    refused(Backend::Packet, &e);
                    // The packet ring's reason is the one worth acting on.
                    one(Backend::Pnet).map_err(|_| e)
                })
            })?
        }
        backend => one(backend)?,
    };
    let info = link.info();
    tracing::info!(
        interface = %info.interface, backend = info.backend, detail = %info.detail, mac = %info.mac,
        mtu = info.mtu, max_frame = info.max_frame, "link open"
    );
    Ok(link)
}
