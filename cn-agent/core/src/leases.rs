//! Leases: regions that exist for one program each, with the processes that hold them.
//!
//! A program asks the agent to keep a name before the manager creates a region of that name, and destroys the region at
//! its end. If the program is killed, or the manager is absent at that time, the agent still has the name in its list
//! of leases, even after a restart of the agent, and destroys the region when the manager returns.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use cxloe_fabric::model::Name;
use serde::{Deserialize, Serialize};

/// Maximum number of names that are kept.
pub const LEASES_MAX: usize = 1024;

/// A process, identified uniquely on this machine over time, and the region that it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub pid: u32,
    /// Start time of the process in the kernel's unit, which distinguishes it from a later process with the same id.
    pub started: u64,
    /// Identity of the boot of this machine in which the process was started.
    pub boot: String,
    /// User id of the process; `None` in files of earlier releases.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Time of the region's creation, in milliseconds since the Unix epoch; `None` until the manager has
    /// answered. A later region with the same name has another time.
    #[serde(default)]
    pub created_ms: Option<u64>,
    /// Size of the region in bytes.
    #[serde(default)]
    pub bytes: u64,
}

/// Maximum number of names held by one user's programs, unless the user is root or the agent's.
pub const LEASES_OF_ONE_MAX: usize = 256;

/// Error: the user, or all users together, hold as many names as they may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseLimitReached;

/// Names of leased regions, each with its holder; stored on disk by the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leases(BTreeMap<Name, Holder>);

impl Leases {
    /// Keeps a name for a process. The user of the process may hold up to `most` names.
    ///
    /// # Errors
    /// [`LeaseLimitReached`], for the user or in total.
    pub fn keep(&mut self, region: Name, holder: Holder, most: usize) -> Result<(), LeaseLimitReached> {
        let of_user = self.0.values().filter(|other| other.uid == holder.uid).count();
        if (self.0.len() >= LEASES_MAX || of_user >= most) && !self.0.contains_key(&region) {
            return Err(LeaseLimitReached);
        }
        self.0.insert(region, holder);
        Ok(())
    }

    pub fn holder(&self, region: &Name) -> Option<&Holder> {
        self.0.get(region)
    }

    /// Bytes of the regions that are leased to programs of a user, not counting the region `except`.
    pub fn bytes_of(&self, uid: u32, except: Option<&Name>) -> u64 {
        let its = self.0.iter().filter(|(name, holder)| holder.uid == Some(uid) && Some(*name) != except);
        its.fold(0, |sum, (_, holder)| sum.saturating_add(holder.bytes))
    }

    /// Records the size in bytes of a region, if it is leased.
    pub fn set_size(&mut self, region: &Name, bytes: u64) {
        if let Some(holder) = self.0.get_mut(region) {
            holder.bytes = bytes;
        }
    }

    /// Records when the manager created the region, in milliseconds since the Unix epoch.
    pub fn created(&mut self, region: &Name, created_ms: u64) {
        if let Some(holder) = self.0.get_mut(region) {
            holder.created_ms = Some(created_ms);
        }
    }

    /// Removes a region that no longer exists.
    pub fn forget(&mut self, region: &Name) {
        self.0.remove(region);
    }

    /// Leased regions whose holder no longer exists, which `is_there` determines.
    pub fn abandoned(&self, is_there: impl Fn(&Holder) -> bool) -> Vec<Name> {
        let gone = self.0.iter().filter(|(_, holder)| !is_there(holder));
        gone.map(|(region, _)| region.clone()).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> Name {
        Name::new(format!("exec-{number}")).unwrap()
    }

    fn holder(pid: u32) -> Holder {
        Holder {
            pid,
            started: 7,
            boot: "b".into(),
            uid: Some(pid % 2),
            created_ms: None,
            bytes: u64::from(pid),
        }
    }

    #[test]
    fn a_region_is_abandoned_with_its_process() {
        let mut leases = Leases::default();
        (0..3).for_each(|pid| leases.keep(name(pid), holder(pid as u32), 3).unwrap());
        let there = |holder: &Holder| holder.pid != 1;
        assert_eq!(leases.abandoned(there), [name(1)]);
        let kept: Leases = serde_json::from_str(&serde_json::to_string(&leases).unwrap()).unwrap();
        assert_eq!(kept.abandoned(there), [name(1)], "also for a successor");
        leases.created(&name(1), 77);
        leases.created(&name(9), 78);
        assert_eq!(leases.holder(&name(1)).and_then(|holder| holder.created_ms), Some(77));
        assert_eq!((leases.bytes_of(0, None), leases.bytes_of(0, Some(&name(2)))), (2, 0));
        leases.set_size(&name(0), 5);
        leases.set_size(&name(9), 1);
        assert_eq!((leases.bytes_of(0, None), leases.bytes_of(1, None)), (7, 1));
        leases.forget(&name(1));
        assert!(leases.abandoned(there).is_empty() && !leases.is_empty());
    }

    #[test]
    fn names_are_bounded() {
        let mut leases = Leases::default();
        (0..LEASES_MAX).for_each(|number| leases.keep(name(number), holder(1), LEASES_MAX).unwrap());
        assert_eq!(leases.keep(name(LEASES_MAX), holder(1), usize::MAX), Err(LeaseLimitReached));
        leases.keep(name(0), holder(2), LEASES_MAX).unwrap();
    }

    #[test]
    fn one_user_does_not_take_all_names() {
        let mut leases = Leases::default();
        (0..4).for_each(|number| leases.keep(name(number), holder(1), 4).unwrap());
        assert_eq!(
            leases.keep(name(4), holder(3), 4),
            Err(LeaseLimitReached),
            "another process of the same user"
        );
        leases.keep(name(4), holder(2), 4).unwrap();
        leases.forget(&name(1));
        leases.keep(name(5), holder(3), 4).unwrap();
    }
}
