//! Check that this process sees the user ids of the callers that connect to its Unix socket.
//!
//! In a user namespace that does not map an id, the kernel gives the overflow id (65534) in its place: such users cannot
//! be told apart, and none is a member of the admin group. `PrivateUsers=yes` of systemd makes such a namespace, and so
//! does a container engine that runs without root.

/// Number of ids that a full user namespace maps: all 32-bit numbers but the last, which stands for no id.
const ALL_IDS: u64 = u32::MAX as u64;

/// Logs a warning if this process does not see the ids of its peers, so that `admin_group` has no effect.
/// Without such a group, the message is only informational.
pub fn report(admin_group: Option<u32>) {
    let all = ["/proc/self/uid_map", "/proc/self/gid_map"]
        .iter()
        .all(|path| std::fs::read_to_string(path).is_ok_and(|map| maps_all_ids(&map)));
    match (all, admin_group) {
        (true, _) => {}
        (false, Some(group)) => tracing::warn!(
            group,
            "--admin-group has no effect: this process's user namespace does not map all ids, so users of the Unix \
             socket are seen as uid 65534; run gmm without such a namespace (systemd: remove PrivateUsers= from the unit)"
        ),
        (false, None) => tracing::info!(
            "this process's user namespace does not map all ids: users of the Unix socket that it lacks are seen, and \
             recorded in events, as uid 65534"
        ),
    }
}

/// True if `map`, in the form of `/proc/PID/uid_map` (first id inside, first id outside, number), maps every id. The
/// kernel takes care that entries do not overlap.
fn maps_all_ids(map: &str) -> bool {
    let numbers = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    numbers.fold(0, u64::saturating_add) >= ALL_IDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_with_and_without_gaps() {
        assert!(maps_all_ids("         0          0 4294967295\n"), "the machine's own namespace");
        assert!(maps_all_ids("0 0 65536\n65536 65536 4294901759\n"), "in two parts");
        assert!(!maps_all_ids("0 0 1\n64987 64987 1\n"), "PrivateUsers=yes");
        assert!(!maps_all_ids("0 100000 65536\n"), "a container without root");
        assert!(!maps_all_ids(""), "a namespace that has no map yet");
    }
}
