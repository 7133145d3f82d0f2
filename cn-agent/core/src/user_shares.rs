//! Shares: the part that one user may have of resources that all users of an agent need. Root and the agent's
//! own user are not limited to a share, and have a reserve that other users cannot take.

use serde::{Deserialize, Serialize};

/// Divisor of a limit for all users that gives one user's share, unless the administrator has set another
/// share.
pub const SHARE_DEFAULT: usize = 4;
/// Divisor of a limit for all users that gives the part reserved for root and the agent's user.
pub const RESERVE: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SharedResource {
    Ports,
    Regions,
    /// Processes whose memory is paged: each takes up to four of the agent's files.
    Processes,
    /// Bytes of the regions that the agent creates for programs.
    Memory,
}

impl SharedResource {
    fn unit(self) -> &'static str {
        match self {
            SharedResource::Ports => "open ports",
            SharedResource::Regions => "mapped regions",
            SharedResource::Processes => "processes with remote memory",
            SharedResource::Memory => "bytes of temporary regions",
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            SharedResource::Ports => "close one",
            SharedResource::Regions => "unmap one",
            SharedResource::Processes | SharedResource::Memory => "end a program",
        }
    }

    /// Name of the option that sets the share.
    pub fn option(self) -> &'static str {
        match self {
            SharedResource::Ports => "user-ports",
            SharedResource::Regions => "user-regions",
            SharedResource::Processes => "user-processes",
            SharedResource::Memory => "user-memory",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error(
    "user {uid} may have {limit} {} of this agent, and this would be {needed}; {}, or have the administrator raise {} in \
     cn-agent.toml", .what.unit(), .what.remedy(), .what.option()
)]
pub struct ShareReached {
    pub what: SharedResource,
    pub uid: u32,
    /// The share, in the unit of the resource.
    pub limit: u64,
    /// Amount that the user would have if the request were granted, in the same unit.
    pub needed: u64,
}

/// Checks that the user `uid`, who has `had` of a resource, may have `more`. A `uid` of `None` stands for root or the
/// agent's user, who are not limited.
///
/// # Errors
/// [`ShareReached`] if the user would have more than `limit`.
pub fn check(
    what: SharedResource,
    uid: Option<u32>,
    limit: u64,
    had: u64,
    more: u64,
) -> Result<(), ShareReached> {
    let needed = had.saturating_add(more);
    match uid {
        Some(uid) if needed > limit => Err(ShareReached { what, uid, limit, needed }),
        _ => Ok(()),
    }
}

/// Limits of each user, of resources that all users of an agent share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserShares {
    /// Maximum number of open ports.
    pub ports: usize,
    /// Maximum number of mapped regions.
    pub regions: usize,
    /// Maximum number of processes whose memory is paged.
    pub processes: usize,
    /// Maximum number of bytes of temporary regions; `None` for a quarter of all pools.
    pub memory: Option<u64>,
}

impl UserShares {
    /// Shares without limits, for an agent with a single user.
    pub const ALL: UserShares =
        UserShares { ports: usize::MAX, regions: usize::MAX, processes: usize::MAX, memory: Some(u64::MAX) };
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn a_user_gets_its_share_and_root_more() {
        let ask = |uid, had, more| check(SharedResource::Ports, uid, 16, had, more);
        assert_eq!(ask(Some(7), 15, 1), Ok(()));
        assert_eq!(ask(None, 99, 1), Ok(()));
        let reached = ask(Some(7), 16, 1).unwrap_err();
        assert_eq!((reached.limit, reached.needed), (16, 17));
        assert!(ask(Some(7), u64::MAX, u64::MAX).is_err());
        let text = reached.to_string();
        assert!(
            text.contains("user 7 may have 16 open ports") && text.contains("raise user-ports"),
            "{text}"
        );
    }
}
