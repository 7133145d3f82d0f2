//! Other ways to another machine's memory beside this one: the same accesses, over the same cable, by turns.
//!
//! A [`Peer`] is one way; its file says what it is and how it is measured. A trial starts what it takes in
//! the far namespace, measures all patterns ([`pattern`]), and ends it again; trials of all peers take turns ([`run()`]), so
//! that what the machine does to one it does to all.
//!
//! Peers that keep bytes (this system, sockets, Redis, memcached, a mapped block device) implement [`store::Store`], and
//! [`store::drive`] does the same to each and looks at every byte. Others bring a tool that measures (UCX, libfabric,
//! perftest): its output is parsed, and what it does not tell stays empty.

mod batch;
pub mod cxloe;
mod error;
mod keyed;
pub mod libfabric;
mod measured;
pub mod memcached;
pub mod nbd;
pub mod pattern;
pub mod peer;
pub mod rdma;
pub mod redis;
pub mod report;
mod request;
mod run;
mod server;
mod site;
pub mod stage;
pub mod store;
mod stream;
pub mod tcp;
pub mod ucx;
pub mod udp;

use cxloe_link::Backend;

pub use error::PeerError;
pub use measured::{Measured, Value};
pub use pattern::{Pattern, Plan};
pub use peer::{Facts, Peer, Tool};
pub use run::{Figure, Outcome, expected, run};
pub use site::Site;
pub use stage::Stage;
pub use stream::Waiting;

/// All peers, in the order of reports.
pub fn peers() -> Vec<&'static dyn Peer> {
    vec![
        &cxloe::Cxloe { backend: Backend::Xdp },
        &cxloe::Cxloe { backend: Backend::Packet },
        &cxloe::Cxloe { backend: Backend::Udp },
        &udp::Udp { waiting: Waiting::Spin },
        &udp::Udp { waiting: Waiting::Block },
        &tcp::Tcp { waiting: Waiting::Spin },
        &tcp::Tcp { waiting: Waiting::Block },
        &redis::Redis,
        &memcached::Memcached,
        &ucx::Ucx,
        &libfabric::Libfabric,
        &nbd::Nbd,
        &rdma::Rdma,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_fit_for_reports_and_groups_are_meant() {
        let peers = peers();
        for peer in &peers {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(peer.name().chars().all(plain), "{}", peer.name());
            assert_eq!(peers.iter().filter(|other| other.name() == peer.name()).count(), 1);
        }
        let meant = |word| peers.iter().filter(|peer| peer::is_meant(**peer, word)).count();
        assert_eq!(["cxloe", "udp", "udp-spin", "redis", "red", ""].map(meant), [3, 2, 1, 1, 0, 0]);
    }
}
