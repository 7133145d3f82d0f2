//! Settings made by clients: an endpoint's id, and the longest response. A client that opens a connection for each
//! command expects its settings to last, but the responses to another client must not be truncated because of them. The
//! settings therefore apply at one switch to all connections from one address, until the process ends. MCTP regards a
//! connection as a bus with two ends, and the address identifies the client's end.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::answer::MESSAGE_MAX_LOG2;

/// Maximum number of addresses whose settings are stored; beyond it, the oldest settings are removed.
const KEPT_MAX: usize = 1024;

/// Settings that the clients at one address have made at one switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientSettings {
    /// Endpoint id assigned to the switch; 0: none.
    pub eid: u8,
    /// Binary logarithm of the longest response in bytes.
    pub response_limit: u8,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self { eid: 0, response_limit: MESSAGE_MAX_LOG2 }
    }
}

/// Settings of all clients, by switch and address.
#[derive(Debug, Default)]
pub struct SettingsStore {
    settings: BTreeMap<(u32, IpAddr), (ClientSettings, u64)>,
    /// Number of settings made until now, which orders them by age.
    count: u64,
}

impl SettingsStore {
    /// Returns the settings of clients at address `peer`; defaults if they have made none.
    pub fn of(&self, switch: u32, peer: IpAddr) -> ClientSettings {
        self.settings.get(&(switch, peer.to_canonical())).map(|(settings, _)| *settings).unwrap_or_default()
    }

    pub fn set(&mut self, switch: u32, peer: IpAddr, settings: ClientSettings) {
        let place = (switch, peer.to_canonical());
        if settings == ClientSettings::default() {
            self.settings.remove(&place);
            return;
        }
        if self.settings.len() >= KEPT_MAX && !self.settings.contains_key(&place) {
            let oldest = self.settings.iter().min_by_key(|(_, (_, set))| *set).map(|(place, _)| *place);
            oldest.and_then(|oldest| self.settings.remove(&oldest));
        }
        self.count += 1;
        self.settings.insert(place, (settings, self.count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_kept_by_switch_and_address_and_bounded() {
        let mut kept = SettingsStore::default();
        let peer = |n: u32| IpAddr::from(n.to_be_bytes());
        let set = ClientSettings { eid: 9, response_limit: 8 };
        (0..3000).for_each(|n| kept.set(0, peer(n), set));
        assert_eq!(kept.settings.len(), KEPT_MAX);
        assert_eq!((kept.of(0, peer(2999)), kept.of(0, peer(1))), (set, ClientSettings::default()));
        assert_eq!(kept.of(1, peer(2999)), ClientSettings::default());
        let mapped = "::ffff:0.0.11.183".parse().unwrap();
        assert_eq!(kept.of(0, mapped), set, "2999 is 11 * 256 + 183");
        kept.set(0, peer(2999), ClientSettings::default());
        assert_eq!(kept.settings.len(), KEPT_MAX - 1);
    }
}
