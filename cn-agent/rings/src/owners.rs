//! Owners of regions by address. A client may not touch ranges that belong to another user.

use std::collections::BTreeMap;
use std::ops::Range;

/// Address windows of the regions that have an owner, each with its size and the owner's user id. A region without an
/// owner may be used by all users.
#[derive(Debug, Default)]
pub struct Owners(BTreeMap<u64, (u64, u32)>);

impl Owners {
    /// Sets the owner of the region that begins at `hpa`. `owner` holds the size of the region's window in
    /// bytes and the user id; `None` removes the owner. Returns whether that changes anything.
    pub fn set(&mut self, hpa: u64, owner: Option<(u64, u32)>) -> bool {
        let before = match owner {
            Some(owner) => self.0.insert(hpa, owner),
            None => self.0.remove(&hpa),
        };
        before != owner
    }

    /// Returns the windows that belong to users other than `uid`, ascending. With `None`, a user who may use
    /// all regions, there are no such windows.
    pub(crate) fn foreign_to(&self, uid: Option<u32>) -> Vec<Range<u64>> {
        let Some(uid) = uid else { return Vec::new() };
        let others = self.0.iter().filter(|(_, (_, owner))| *owner != uid);
        others.map(|(hpa, (window, _))| *hpa..hpa.saturating_add(*window)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_others_are_foreign() {
        let mut owners = Owners::default();
        assert!(owners.set(100, Some((50, 7))) && owners.set(200, Some((10, 8))));
        assert!(!owners.set(100, Some((50, 7))) && !owners.set(300, None));
        assert_eq!(owners.foreign_to(Some(7)).first(), Some(&(200..210)));
        assert_eq!(owners.foreign_to(Some(9)), [100..150, 200..210]);
        assert!(owners.foreign_to(None).is_empty());
        assert!(owners.set(200, None));
        assert!(owners.foreign_to(Some(7)).is_empty());
    }
}
