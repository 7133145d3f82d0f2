//! Adapter from the FM API to the manager: each request is one job of the core's thread, and is answered once its
//! changes are stored. Callers are joined FM clients, identified by their certificates; with `--fm-insecure`, all
//! clients of the address are admitted.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::core::{Core, CoreError};
use crate::fm_fabric::{ManagerView, Volatile};
use cxloe_daemon::http::{Peer, TlsAuthenticator};
use cxloe_fabric::api::Party;
use cxloe_fabric::model::Digest;
use cxloe_fm::PORT_DEFAULT;
use cxloe_fm::answer::{ClientAgreements, answer};
use cxloe_fm::authenticator::{Answerer, Authenticator as FmDoor};
use cxloe_fm::header::ReturnCode;
use cxloe_gmm_core::rights::Evidence;

/// Listen address for FM API clients; 2508 is the port if the text has none.
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

/// Carries out FM API requests of one client on the manager.
#[derive(Clone)]
pub struct ManagerFm {
    core: Core,
    volatile: Arc<Mutex<Volatile>>,
    /// Digest of the client's TLS key; none without access control.
    client: Option<Digest>,
}

impl ManagerFm {
    /// An adapter that admits every client, without access control.
    pub fn new(core: Core) -> Self {
        Self { core, volatile: Arc::default(), client: None }
    }

    /// Name of the client in the event log, for a request to this switch; none if the client may not use the switch.
    fn who(&self, switch: u32) -> Option<String> {
        let Some(key) = self.client else { return Some(format!("FM API of switch {switch}")) };
        let caller = self.core.caller(&Evidence { tls: Some(key), ..Evidence::default() });
        matches!(caller.node(), Some(Party::FmClient(_))).then_some(caller.who)
    }
}

/// Admits joined FM clients over TLS.
#[derive(Clone)]
pub struct GuardedFm {
    tls: TlsAuthenticator,
    fm: ManagerFm,
}

impl GuardedFm {
    /// Admits clients whose TLS certificate is that of a joined FM client; `fm` answers their requests.
    pub fn new(tls: TlsAuthenticator, fm: ManagerFm) -> Self {
        Self { tls, fm }
    }
}

impl FmDoor for GuardedFm {
    type Stream = TlsStream<TcpStream>;
    type Answerer = ManagerFm;

    async fn authenticate(&self, stream: TcpStream, peer: IpAddr) -> Option<(Self::Stream, ManagerFm)> {
        let (stream, peer) = self.tls.accept(stream, peer).await?;
        let Peer::Tls { key: Some(key), .. } = peer else { return None };
        let fm = ManagerFm { client: Some(key), ..self.fm.clone() };
        fm.is_authorized().then_some((stream, fm))
    }
}

impl Answerer for ManagerFm {
    async fn answer(
        &self,
        switch: u32,
        mut session: ClientAgreements,
        message: Vec<u8>,
    ) -> Result<(ClientAgreements, Option<Vec<u8>>), ReturnCode> {
        let volatile = Arc::clone(&self.volatile);
        let who = self.who(switch).ok_or(ReturnCode::Unsupported)?;
        let answered = self.core.execute(move |manager, now_ms, changes| {
            // Only the core's thread takes this lock, and the data stays consistent even if a holder of the lock
            // panics.
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

    fn is_authorized(&self) -> bool {
        // An FM client has the same right to all switches.
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
