//! The FM API's way to the manager: each request is carried out on the core's thread in one turn and answered after what it
//! changed is stored.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::core::{Core, CoreError};
use crate::fm_fabric::{ManagerView, Volatile};
use cxloe_fm::PORT_DEFAULT;
use cxloe_fm::answer::{Session, answer};
use cxloe_fm::header::ReturnCode;
use cxloe_fm::listener::Answerer;

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
}

impl ManagerFm {
    /// Answers by the core's manager.
    pub fn new(core: Core) -> Self {
        Self { core, volatile: Arc::default() }
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
        let answered = self.core.turn(move |manager, now_ms, changes| {
            // Only this thread takes the lock, and a turn that broke off left nothing half done in it.
            let mut volatile = volatile.lock().unwrap_or_else(PoisonError::into_inner);
            let mut view = ManagerView { manager, switch, now_ms, changes, volatile: &mut volatile };
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
