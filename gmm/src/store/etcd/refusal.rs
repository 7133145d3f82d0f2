//! The meaning of a failed request to etcd, decided without I/O: from the gRPC status code and the text of the answer,
//! and what is then to be done. Nothing here ends the manager's process.
//!
//! ```text
//!   answer --Refusal::of--> class --Tries::next--> a new token, the next member, or the caller
//!                                  caller: try again with a growing pause; load again; give up the lead and stay
//! ```

use std::time::Duration;

use cxloe_daemon::Backoff;

/// gRPC status codes, as the JSON gateway reports them.
mod code {
    pub const INVALID_ARGUMENT: i32 = 3;
    pub const DEADLINE_EXCEEDED: i32 = 4;
    pub const NOT_FOUND: i32 = 5;
    pub const PERMISSION_DENIED: i32 = 7;
    pub const RESOURCE_EXHAUSTED: i32 = 8;
    pub const FAILED_PRECONDITION: i32 = 9;
    pub const OUT_OF_RANGE: i32 = 11;
    pub const UNAVAILABLE: i32 = 14;
    pub const UNAUTHENTICATED: i32 = 16;
}

/// Minimum and maximum pause before a request that etcd could not carry out is repeated.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Maximum number of new tokens for one request.
const TOKENS_MAX: u32 = 2;

/// Class of a failed request to etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The connection was not made: the request was not sent.
    Unconnected,
    /// No answer came, or the member could not finish: the request may have been carried out.
    Unanswered,
    /// The token is invalid, expired, or older than the latest change of etcd's users: a new one is needed.
    Token,
    /// The member has too much to do, or has no leader at present.
    Busy,
    /// The revision that was to be read is compacted.
    Compacted,
    /// The database is full (alarm NOSPACE).
    NoSpace,
    /// The object, such as a lease, does not exist.
    NotFound,
    /// The user does not exist, the password is wrong, or the user lacks a right.
    Denied,
    /// The peer does not answer as etcd's JSON gateway does.
    NotEtcd,
    /// The member belongs to another cluster.
    OtherCluster,
    /// etcd refuses the request for another reason, for example because it is too large.
    Invalid,
}

impl Refusal {
    /// Class of an error answer with this gRPC status code and text.
    pub fn of(code: i32, text: &str) -> Self {
        match code {
            // The leader of the cluster changed, or a majority is missing: the request may be under way.
            code::DEADLINE_EXCEEDED => Self::Unanswered,
            code::UNAVAILABLE if text.contains("timed out") => Self::Unanswered,
            code::UNAVAILABLE => Self::Busy,
            code::UNAUTHENTICATED => Self::Token,
            code::INVALID_ARGUMENT if text.contains("revision of auth store is old") => Self::Token,
            // The request had no token, because etcd's users were created after this manager's last request.
            code::INVALID_ARGUMENT if text.contains("user name is empty") => Self::Token,
            code::INVALID_ARGUMENT if text.contains("authentication failed") => Self::Denied,
            // A token was requested, but etcd has no users.
            code::FAILED_PRECONDITION if text.contains("authentication is not enabled") => Self::Token,
            code::FAILED_PRECONDITION if text.contains("is not leader") => Self::Busy,
            code::PERMISSION_DENIED => Self::Denied,
            code::RESOURCE_EXHAUSTED if text.contains("database space exceeded") => Self::NoSpace,
            code::RESOURCE_EXHAUSTED => Self::Busy,
            code::OUT_OF_RANGE => Self::Compacted,
            code::NOT_FOUND => Self::NotFound,
            _ => Self::Invalid,
        }
    }

    /// Class of an answer that is no error of the JSON gateway, by its HTTP status.
    pub fn of_status(status: u16) -> Self {
        if status == 503 || status == 429 { Self::Busy } else { Self::NotEtcd }
    }

    /// True if the same request may succeed a little later without intervention.
    pub fn is_passing(self) -> bool {
        matches!(self, Self::Unconnected | Self::Unanswered | Self::Busy | Self::Token)
    }

    /// True if another member may answer differently, and this one has not begun to carry the request out.
    fn is_of_this_member(self) -> bool {
        matches!(self, Self::Unconnected | Self::NotEtcd | Self::OtherCluster | Self::Denied)
    }

    /// True if the next request should go to another member.
    pub fn moves_on(self) -> bool {
        self.is_of_this_member() || matches!(self, Self::Unanswered | Self::Busy)
    }
}

/// Decision about one failed try of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Request another token, and repeat the request.
    Token,
    /// Repeat the request at the next member.
    Member,
    /// Report the failure.
    Report,
}

/// Remaining tries of one request: members that were not tried, and new tokens.
#[derive(Debug)]
pub struct Tries {
    members: usize,
    tokens: u32,
}

impl Tries {
    /// The tries of a request to a cluster with this number of known members.
    pub fn new(members: usize) -> Self {
        Self { members, tokens: TOKENS_MAX }
    }

    /// Decision after a failure of this class.
    pub fn next(&mut self, refusal: Refusal) -> Next {
        match refusal {
            Refusal::Token if self.tokens > 0 => {
                self.tokens -= 1;
                Next::Token
            }
            refusal if refusal.is_of_this_member() && self.members > 1 => {
                self.members -= 1;
                Next::Member
            }
            _ => Next::Report,
        }
    }
}

/// Growing pauses between repetitions of a request.
pub fn backoff() -> Backoff {
    Backoff::new(PAUSE_MIN, PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers of etcd 3.4 to 3.6 (`api/v3rpc/rpctypes/error.go`).
    const ANSWERS: [(i32, &str, Refusal); 20] = [
        (3, "etcdserver: revision of auth store is old", Refusal::Token),
        (16, "etcdserver: invalid auth token", Refusal::Token),
        (3, "etcdserver: user name is empty", Refusal::Token),
        (9, "etcdserver: authentication is not enabled", Refusal::Token),
        (3, "etcdserver: authentication failed, invalid user ID or password", Refusal::Denied),
        (7, "etcdserver: permission denied", Refusal::Denied),
        (8, "etcdserver: too many requests", Refusal::Busy),
        (8, "etcdserver: mvcc: database space exceeded", Refusal::NoSpace),
        (11, "etcdserver: mvcc: required revision has been compacted", Refusal::Compacted),
        (11, "etcdserver: mvcc: required revision is a future revision", Refusal::Compacted),
        (14, "etcdserver: no leader", Refusal::Busy),
        (14, "etcdserver: leader changed", Refusal::Busy),
        (14, "etcdserver: request timed out", Refusal::Unanswered),
        (14, "etcdserver: request timed out, possibly due to previous leader failure", Refusal::Unanswered),
        (4, "context deadline exceeded", Refusal::Unanswered),
        (9, "etcdserver: not leader", Refusal::Invalid),
        (9, "etcdserver: is not leader", Refusal::Busy),
        (5, "etcdserver: requested lease not found", Refusal::NotFound),
        (3, "etcdserver: request is too large", Refusal::Invalid),
        (15, "etcdserver: corrupt cluster", Refusal::Invalid),
    ];

    #[test]
    fn each_refusal_of_etcd_has_its_class() {
        for (code, text, class) in ANSWERS {
            assert_eq!(Refusal::of(code, text), class, "{text}");
        }
        assert_eq!([404, 400, 500, 503, 429].map(Refusal::of_status), {
            use Refusal::{Busy, NotEtcd};
            [NotEtcd, NotEtcd, NotEtcd, Busy, Busy]
        });
    }

    #[test]
    fn each_class_has_its_remedy() {
        use Next::{Member, Report, Token};
        use Refusal::{
            Busy, Compacted, Denied, Invalid, NoSpace, NotEtcd, NotFound, OtherCluster, Unanswered,
            Unconnected,
        };
        for (class, next, passes, moves_on) in [
            (Unconnected, [Member, Member, Report], true, true),
            (Unanswered, [Report; 3], true, true),
            (Refusal::Token, [Token, Token, Report], true, false),
            (Busy, [Report; 3], true, true),
            (Compacted, [Report; 3], false, false),
            (NoSpace, [Report; 3], false, false),
            (NotFound, [Report; 3], false, false),
            (Denied, [Member, Member, Report], false, true),
            (NotEtcd, [Member, Member, Report], false, true),
            (OtherCluster, [Member, Member, Report], false, true),
            (Invalid, [Report; 3], false, false),
        ] {
            let mut tries = Tries::new(3);
            assert_eq!([0; 3].map(|_| tries.next(class)), next, "{class:?}");
            assert_eq!((class.is_passing(), class.moves_on()), (passes, moves_on), "{class:?}");
        }
    }
}
