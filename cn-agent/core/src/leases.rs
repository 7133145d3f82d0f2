//! Regions that are there for one program each: who holds them, and which of them are nobody's any more.
//!
//! A program asks the agent to keep a name before it has the manager create a region of it, and destroys the region at its
//! end. If it cannot, because it was killed or the manager is away, the agent finds the name here, across restarts of its
//! own, and has the region destroyed when the manager is there again.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use cxloe_fabric::model::Name;
use serde::{Deserialize, Serialize};

/// Names that are kept at most.
pub const LEASES_MAX: usize = 1024;

/// A process, told from all others that there were or will be on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// When it was started, as the kernel counts.
    pub started: u64,
    /// Since which start of the machine.
    pub boot: String,
    /// Its user; none is said by earlier releases.
    #[serde(default)]
    pub uid: Option<u32>,
    /// When the manager created the region, in milliseconds since the Unix epoch, if it has answered: another one of that
    /// name is not this one.
    #[serde(default)]
    pub created_ms: Option<u64>,
}

/// Names that one user's programs hold at most, unless the user is root or the agent's.
pub const LEASES_OF_ONE_MAX: usize = 256;

/// There are as many names as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The regions that programs hold, and who does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leases(BTreeMap<Name, Holder>);

impl Leases {
    /// Keeps a name for a process, whose user may have `most` of them.
    ///
    /// # Errors
    /// [`Full`].
    pub fn keep(&mut self, region: Name, holder: Holder, most: usize) -> Result<(), Full> {
        let of_user = self.0.values().filter(|other| other.uid == holder.uid).count();
        if (self.0.len() >= LEASES_MAX || of_user >= most) && !self.0.contains_key(&region) {
            return Err(Full);
        }
        self.0.insert(region, holder);
        Ok(())
    }

    /// Who holds a region.
    pub fn holder(&self, region: &Name) -> Option<&Holder> {
        self.0.get(region)
    }

    /// The manager has created the region at this time.
    pub fn created(&mut self, region: &Name, created_ms: u64) {
        if let Some(holder) = self.0.get_mut(region) {
            holder.created_ms = Some(created_ms);
        }
    }

    /// There is no such region any more.
    pub fn forget(&mut self, region: &Name) {
        self.0.remove(region);
    }

    /// Those whose process is not there any more.
    pub fn abandoned(&self, is_there: impl Fn(&Holder) -> bool) -> Vec<Name> {
        let gone = self.0.iter().filter(|(_, holder)| !is_there(holder));
        gone.map(|(region, _)| region.clone()).collect()
    }

    /// Whether there are none.
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
        Holder { pid, started: 7, boot: "b".into(), uid: Some(pid % 2), created_ms: None }
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
        leases.forget(&name(1));
        assert!(leases.abandoned(there).is_empty() && !leases.is_empty());
    }

    #[test]
    fn names_are_bounded() {
        let mut leases = Leases::default();
        (0..LEASES_MAX).for_each(|number| leases.keep(name(number), holder(1), LEASES_MAX).unwrap());
        assert_eq!(leases.keep(name(LEASES_MAX), holder(1), usize::MAX), Err(Full));
        leases.keep(name(0), holder(2), LEASES_MAX).unwrap();
    }

    #[test]
    fn one_user_does_not_take_all_names() {
        let mut leases = Leases::default();
        (0..4).for_each(|number| leases.keep(name(number), holder(1), 4).unwrap());
        assert_eq!(leases.keep(name(4), holder(3), 4), Err(Full), "another process of the same user");
        leases.keep(name(4), holder(2), 4).unwrap();
        leases.forget(&name(1));
        leases.keep(name(5), holder(3), 4).unwrap();
    }
}
