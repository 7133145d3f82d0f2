//! Owners of regions by address. A client may not touch ranges that belong to another user.

use std::collections::BTreeMap;
use std::ops::Range;

/// The windows of regions that have an owner, with their sizes and users, by address. All users may use other regions.
#[derive(Debug, Default)]
pub struct Owners(BTreeMap<u64, (u64, u32)>);

impl Owners {
    /// Sets the owner of the region that begins at `hpa`, with the size of the region's window; `None` removes the
    /// owner. Returns whether that changes anything.
    pub fn set(&mut self, hpa: u64, owner: Option<(u64, u32)>) -> bool {
        let before = match owner {
            Some(owner) => self.0.insert(hpa, owner),
            None => self.0.remove(&hpa),
        };
        before != owner
    }

    /// Windows that belong to other users than `uid`, ascending; none for `None`, which stands for a user who may use
    /// all.
    pub(crate) fn foreign_to(&self, uid: Option<u32>) -> Vec<Range<u64>> {
        let Some(uid) = uid else { return Vec::new() };
        let others = self.0.iter().filter(|(_, (_, owner))| *owner != uid);
        others.map(|(hpa, (window, _))| *hpa..hpa.saturating_add(*window)).collect()
    }
}

/// Whether any of the `bytes` bytes from `hpa` on lies in one of `ranges`, which are ascending and do not overlap.
pub fn touches(ranges: &[Range<u64>], hpa: u64, bytes: u64) -> bool {
    let end = hpa.saturating_add(bytes);
    let first = ranges.partition_point(|range| range.end <= hpa);
    bytes > 0 && ranges.get(first).is_some_and(|range| range.start < end)
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

    #[test]
    fn an_operation_touches_what_it_reaches() {
        let ranges = [100..150, 150..160, 200..210];
        for (hpa, bytes, touched) in [
            (0, 100, false),
            (0, 101, true),
            (99, 1, false),
            (149, 1, true),
            (160, 40, false),
            (160, 41, true),
            (209, 1, true),
            (210, u64::MAX, false),
            (0, u64::MAX, true),
            (120, 0, false),
        ] {
            assert_eq!(touches(&ranges, hpa, bytes), touched, "{bytes} from {hpa}");
        }
        assert!(!touches(&[], 0, u64::MAX));
    }
}
