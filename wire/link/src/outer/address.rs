//! Local address of a node whose frames are sent inside UDP, in option syntax.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Default UDP port of nodes: in the dynamic range of RFC 6335, above Linux's default range of ephemeral
/// ports.
pub(crate) const UDP_PORT_DEFAULT: u16 = 63_669;

/// Local address of a node: `ADDRESS`, `ADDRESS:PORT` or `:PORT`. An IPv6 address with a port is in brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UdpAddress {
    /// IP address; `None` stands for the first address of the interface, IPv4 before IPv6.
    pub ip: Option<IpAddr>,
    /// UDP port to listen on. If the port is not the default, the node gets a MAC derived from address and port.
    pub port: u16,
}

impl Default for UdpAddress {
    fn default() -> Self {
        UdpAddress { ip: None, port: UDP_PORT_DEFAULT }
    }
}

impl fmt::Display for UdpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip {
            Some(ip) => SocketAddr::new(ip, self.port).fmt(f),
            None => write!(f, ":{}", self.port),
        }
    }
}

/// Error: the text is not a local address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not an address to listen on: write ADDRESS, ADDRESS:PORT or :PORT, as in 10.0.0.1, 10.0.0.1:63669 or [fd00::1]:63669; it must be one address of this machine, not 0.0.0.0"
)]
pub struct UdpAddressError(pub String);

impl FromStr for UdpAddress {
    type Err = UdpAddressError;

    fn from_str(text: &str) -> Result<Self, UdpAddressError> {
        let error = || UdpAddressError(text.to_owned());
        let address = if let Some(port) = text.strip_prefix(':').and_then(|port| port.parse().ok()) {
            UdpAddress { ip: None, port }
        } else if let Ok(ip) = text.parse::<IpAddr>() {
            UdpAddress { ip: Some(ip.to_canonical()), port: UDP_PORT_DEFAULT }
        } else {
            let at: SocketAddr = text.parse().map_err(|_| error())?;
            UdpAddress { ip: Some(at.ip().to_canonical()), port: at.port() }
        };
        let one = address.ip.is_none_or(|ip| !ip.is_unspecified() && !ip.is_multicast());
        if one && address.port != 0 { Ok(address) } else { Err(error()) }
    }
}

cxloe_wire::spelled!(UdpAddress);
