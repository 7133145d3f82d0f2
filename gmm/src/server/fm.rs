//! The FM API's way to the manager: each request is carried out on the core's thread in one turn and answered after what it
//! changed is stored. Who may ask is an FM client that has joined, by the certificate that it shows; with `--fm-insecure`,
//! whoever has reached the address.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::core::{Core, CoreError};
use crate::fm_fabric::{ManagerView, Volatile};
use crate::rights::Evidence;
use cxloe_daemon::http::{Peer, TlsDoor};
use cxloe_fabric::api::Party;
use cxloe_fabric::model::Digest;
use cxloe_fm::PORT_DEFAULT;
use cxloe_fm::answer::{Session, answer};
use cxloe_fm::door::{Answerer, Door as FmDoor};
use cxloe_fm::header::ReturnCode;

/// Where to listen for FM API clients: an address, with or without a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FmAddress(pub SocketAddr);

impl FromStr for FmAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let without_port = || text.parse().map(|ip: IpAddr| SocketAddr::new(ip, PORT_DEFAULT));
        let address = text.parse().or_else(|_| without_port());
        address
            .map(Self)
            .map_err(|_| format!("`{text}` is no address; give IP:PORT, or IP for port {PORT_DEFAULT}"))
    }
}

impl TryFrom<String> for FmAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<FmAddress> for String {
    fn from(FmAddress(address): FmAddress) -> String {
        address.to_string()
    }
}

/// Answers over the manager.
#[derive(Clone)]
pub struct ManagerFm {
    core: Core,
    volatile: Arc<Mutex<Volatile>>,
    /// The TLS key of the client; none where nobody is asked for one.
    client: Option<Digest>,
}

impl ManagerFm {
    /// Answers by the core's manager.
    pub fn new(core: Core) -> Self {
        Self { core, volatile: Arc::default(), client: None }
    }

    /// Who asks of this switch, as the event log says it; none who may not.
    fn who(&self, switch: u32) -> Option<String> {
        let Some(key) = self.client else { return Some(format!("FM API of switch {switch}")) };
        let caller = self.core.caller(&Evidence { tls: Some(key), ..Evidence::default() });
        matches!(caller.node(), Some(Party::FmClient(_))).then_some(caller.who)
    }
}

/// Lets FM clients in that have joined.
#[derive(Clone)]
pub struct GuardedFm {
    tls: TlsDoor,
    fm: ManagerFm,
}

impl GuardedFm {
    /// They speak TLS, and `fm` answers them.
    pub fn new(tls: TlsDoor, fm: ManagerFm) -> Self {
        Self { tls, fm }
    }
}

impl FmDoor for GuardedFm {
    type Stream = TlsStream<TcpStream>;
    type Answerer = ManagerFm;

    async fn admit(&self, stream: TcpStream, peer: IpAddr) -> Option<(Self::Stream, ManagerFm)> {
        let (stream, peer) = self.tls.accept(stream, peer).await?;
        let Peer::Tls { key: Some(key), .. } = peer else { return None };
        let fm = ManagerFm { client: Some(key), ..self.fm.clone() };
        fm.is_welcome().then_some((stream, fm))
    }
}

impl Answerer for ManagerFm {
    async fn answer(
        &self,
        switch: u32,
        mut session: Session,
        message: Vec<u8>,
    ) -> Result<(Session, Option<Vec<u8>>), ReturnCode> {
        let volatile = Arc::clone(&self.volatile);
        let who = self.who(switch).ok_or(ReturnCode::Unsupported)?;
        let answered = self.core.turn(move |manager, now_ms, changes| {
            // Only this thread takes the lock, and a turn that broke off left nothing half done in it.
            let mut volatile = volatile.lock().unwrap_or_else(PoisonError::into_inner);
            let mut view =
                ManagerView { manager, switch, who: &who, now_ms, changes, volatile: &mut volatile };
            let response = answer(&mut view, &mut session, &message);
            (session, response)
        });
        answered.await.map_err(|error| match error {
            CoreError::Busy => ReturnCode::RetryRequired,
            CoreError::Manager(_) | CoreError::Denied(_) | CoreError::Unwritable(_) | CoreError::Ended => {
                ReturnCode::InternalError
            }
        })
    }

    fn is_welcome(&self) -> bool {
        self.who(0).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_and_without_a_port() {
        let read = |text: &str| text.parse::<FmAddress>().map(String::from);
        assert_eq!(read("10.0.0.1:7000").unwrap(), "10.0.0.1:7000");
        assert_eq!(read("10.0.0.1").unwrap(), "10.0.0.1:2508");
        assert_eq!(read("::1").unwrap(), "[::1]:2508");
        assert_eq!(read("[::1]:7").unwrap(), "[::1]:7");
        assert!(read("here").unwrap_err().contains("2508"));
    }
}
