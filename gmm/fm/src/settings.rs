//! What clients set of an endpoint: its id, and how long responses may be. A client that opens a connection for each command
//! expects these to last, and another client is not to get responses that are cut short for the first. So they hold at one
//! switch for all connections from one address, until the process ends: a connection is a bus with two ends, and an address
//! is who its other end belongs to.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::answer::MESSAGE_MAX_LOG2;

/// Addresses whose settings are kept; of more, those set longest ago are forgotten.
const KEPT_MAX: usize = 1024;

/// What one client has set of one switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The endpoint's id; 0: none assigned.
    pub eid: u8,
    /// Responses have at most `2^n` bytes.
    pub response_limit: u8,
}

impl Default for Settings {
    fn default() -> Self {
        Self { eid: 0, response_limit: MESSAGE_MAX_LOG2 }
    }
}

/// The settings of all clients.
#[derive(Debug, Default)]
pub struct Kept {
    settings: BTreeMap<(u32, IpAddr), (Settings, u64)>,
    /// Counts what was set.
    count: u64,
}

impl Kept {
    /// What the clients at `peer` have set of `switch`.
    pub fn of(&self, switch: u32, peer: IpAddr) -> Settings {
        self.settings.get(&(switch, peer.to_canonical())).map(|(settings, _)| *settings).unwrap_or_default()
    }

    /// They have set this.
    pub fn set(&mut self, switch: u32, peer: IpAddr, settings: Settings) {
        let place = (switch, peer.to_canonical());
        if settings == Settings::default() {
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
        let mut kept = Kept::default();
        let peer = |n: u32| IpAddr::from(n.to_be_bytes());
        let set = Settings { eid: 9, response_limit: 8 };
        (0..3000).for_each(|n| kept.set(0, peer(n), set));
        assert_eq!(kept.settings.len(), KEPT_MAX);
        assert_eq!((kept.of(0, peer(2999)), kept.of(0, peer(1))), (set, Settings::default()));
        assert_eq!(kept.of(1, peer(2999)), Settings::default());
        let mapped = "::ffff:0.0.11.183".parse().unwrap();
        assert_eq!(kept.of(0, mapped), set, "2999 is 11 * 256 + 183");
        kept.set(0, peer(2999), Settings::default());
        assert_eq!(kept.settings.len(), KEPT_MAX - 1);
    }
}
