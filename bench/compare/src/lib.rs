//! # cxloe-compare: other remote-memory systems beside this one
//!
//! Each system makes the same accesses over the same cable, in alternation with the others. In addition, whole
//! [`programs`] run with part of their memory remote.
//!
//! A [`Peer`] is one such system; its file describes it and its measurement. A trial starts the peer's server in the
//! far namespace, measures all patterns ([`pattern`]), and ends the server again; trials of all peers alternate
//! ([`run()`]), so that disturbances of the machine affect all peers alike.
//!
//! Peers that keep bytes (this system, sockets, Redis, memcached, a mapped block device) implement [`store::Store`];
//! [`store::drive`] makes the same accesses to each, on request those of a recorded [`trace`] too, and checks every
//! byte. Loads follow a schedule (`load`) that counts the time of a read from the moment at which it was due. Other
//! peers (UCX, libfabric, perftest) come with their own measuring tools: the output of the tool is parsed. Patterns
//! that a peer cannot make are listed with the reasons (`absent_figure`).
//!
//! The results are a [`report::Comparison`]. With what the trials have noted in the [`Journal`], they make an
//! [`archive`], by which others check and repeat them.

// `print!` panics when standard output is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod absent_figure;
pub mod archive;
mod batch;
pub mod cxloe;
mod error;
mod journal;
mod keyed;
pub mod libfabric;
mod load;
mod mapped;
mod measured;
pub mod memcached;
pub mod nbd;
pub mod nvme;
pub mod pattern;
pub mod peer;
mod picture;
mod pipeline;
mod plan;
pub mod programs;
pub mod rdma;
mod readable;
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
pub mod trace;
pub mod ucx;
pub mod udp;
pub mod unit;

use cxloe_link::Backend;

pub use absent_figure::{AbsentFigure, absent_figures};
pub use error::PeerError;
pub use journal::Journal;
pub use measured::{Measured, Value};
pub use pattern::Pattern;
pub use peer::{Facts, Peer, Tool};
pub use plan::Plan;
pub use run::{ComparisonResults, Figure, TrialFigure, expected, run};
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
        &nvme::Nvme,
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
