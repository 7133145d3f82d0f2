//! Metrics of the link. Memory nodes and compute nodes have the same metrics, under names and labels of their own.

use cxloe_daemon::metrics::{Definition, MetricKind, Scrape};
use cxloe_link::LinkCounters;

/// Metrics of the link of one kind of node, made by [`link_metrics!`](crate::link_metrics).
#[derive(Debug)]
pub struct LinkMetrics {
    /// 1 while the link is open, else 0.
    pub up: Definition,
    /// Number of times that the link was opened again.
    pub reopened: Definition,
    /// Counters, in the order of `counts`; the first [`DIRECTED`] have the direction as their last label.
    pub counters: [Definition; 8],
}

/// Number of counters with a direction.
pub const DIRECTED: usize = 2;

/// Makes the metrics of a node's link: the first argument is the prefix of their names, the second lists the labels of
/// the counters.
///
/// ```
/// static LINK: cxloe_node::metrics::LinkMetrics = cxloe_node::link_metrics!("cxloe_mn", ["worker"]);
/// assert_eq!(LINK.counters[0].name, "cxloe_mn_link_frames_total");
/// ```
#[macro_export]
macro_rules! link_metrics {
    ($prefix:literal, [$($label:literal),*]) => {{
        use $crate::metrics::{LinkMetrics, counter, gauge};
        LinkMetrics {
            up: gauge(
                concat!($prefix, "_link_up"),
                "Whether the interface is there and the links on it are open.",
            ),
            reopened: counter(
                concat!($prefix, "_link_reopened_total"),
                &[],
                "Times the links were opened again, after their interface had been away or had changed.",
            ),
            counters: [
                counter(
                    concat!($prefix, "_link_frames_total"),
                    &[$($label,)* "direction"],
                    "Frames on the link, by direction: receive, transmit.",
                ),
                counter(
                    concat!($prefix, "_link_bytes_total"),
                    &[$($label,)* "direction"],
                    "Bytes of these frames.",
                ),
                counter(
                    concat!($prefix, "_link_receive_drops_total"),
                    &[$($label),*],
                    "Frames the kernel dropped because the receive ring was full.",
                ),
                counter(
                    concat!($prefix, "_link_transmit_full_total"),
                    &[$($label),*],
                    "Times no transmit slot was free.",
                ),
                counter(
                    concat!($prefix, "_link_transmit_errors_total"),
                    &[$($label),*],
                    "Frames the kernel refused to send.",
                ),
                counter(
                    concat!($prefix, "_link_forged_total"),
                    &[$($label),*],
                    "Over UDP: frames dropped because their outer address is not registered for their source MAC.",
                ),
                counter(
                    concat!($prefix, "_link_foreign_total"),
                    &[$($label),*],
                    "Over UDP: datagrams dropped because they hold no frame for this node.",
                ),
                counter(
                    concat!($prefix, "_link_unknown_peer_total"),
                    &[$($label),*],
                    "Over UDP: frames not sent because no address is known for their destination MAC.",
                ),
            ],
        }
    }};
}

pub const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Definition {
    Definition { name, kind: MetricKind::Counter, labels, help }
}

pub const fn gauge(name: &'static str, help: &'static str) -> Definition {
    Definition { name, kind: MetricKind::Gauge, labels: &[], help }
}

impl LinkMetrics {
    /// All metrics, in the order of the documentation.
    pub fn all(&'static self) -> impl Iterator<Item = &'static Definition> {
        self.counters.iter().chain([&self.up, &self.reopened])
    }

    pub fn state(&'static self, scrape: &mut Scrape, is_up: bool, reopened: u64) {
        scrape.set(&self.up, &[], is_up);
        scrape.set(&self.reopened, &[], reopened);
    }

    /// Sets the counters in the scrape, for these values of the labels.
    pub fn count(&'static self, scrape: &mut Scrape, labels: &[&str], link: &LinkCounters) {
        let directed = [(link.rx_frames, link.tx_frames), (link.rx_bytes, link.tx_bytes)];
        for (metric, (received, transmitted)) in self.counters.iter().zip(directed) {
            scrape.set(metric, &[labels, &["receive"]].concat(), received);
            scrape.set(metric, &[labels, &["transmit"]].concat(), transmitted);
        }
        let counts =
            [link.rx_dropped, link.tx_full, link.tx_errors, link.rx_forged, link.rx_foreign, link.tx_unknown];
        for (metric, count) in self.counters[DIRECTED..].iter().zip(counts) {
            scrape.set(metric, labels, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_under_its_own_name() {
        static LINK: LinkMetrics = link_metrics!("cxloe_x", ["worker"]);
        let link = LinkCounters {
            rx_frames: 1,
            rx_bytes: 2,
            tx_frames: 3,
            tx_bytes: 4,
            rx_dropped: 5,
            tx_full: 6,
            tx_errors: 7,
            rx_forged: 8,
            rx_foreign: 9,
            tx_unknown: 10,
        };
        let mut scrape = Scrape::new();
        LINK.count(&mut scrape, &["0"], &link);
        LINK.state(&mut scrape, true, 11);
        let text = scrape.encode().unwrap();
        for line in [
            "link_frames_total{worker=\"0\",direction=\"receive\"} 1",
            "link_frames_total{worker=\"0\",direction=\"transmit\"} 3",
            "link_bytes_total{worker=\"0\",direction=\"receive\"} 2",
            "link_bytes_total{worker=\"0\",direction=\"transmit\"} 4",
            "link_receive_drops_total{worker=\"0\"} 5",
            "link_transmit_full_total{worker=\"0\"} 6",
            "link_transmit_errors_total{worker=\"0\"} 7",
            "link_forged_total{worker=\"0\"} 8",
            "link_foreign_total{worker=\"0\"} 9",
            "link_unknown_peer_total{worker=\"0\"} 10",
            "link_up 1",
            "link_reopened_total 11",
        ] {
            let line = format!("cxloe_x_{line}");
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
        assert_eq!(LINK.all().count(), 10);
    }

    #[test]
    fn names_are_those_that_alerts_and_dashboards_use() {
        static MN: LinkMetrics = link_metrics!("cxloe_mn", ["worker"]);
        static CN: LinkMetrics = link_metrics!("cxloe_cn", []);
        let names = |link: &'static LinkMetrics| link.all().map(|metric| metric.name).collect::<Vec<_>>();
        assert_eq!(
            names(&MN),
            [
                "cxloe_mn_link_frames_total",
                "cxloe_mn_link_bytes_total",
                "cxloe_mn_link_receive_drops_total",
                "cxloe_mn_link_transmit_full_total",
                "cxloe_mn_link_transmit_errors_total",
                "cxloe_mn_link_forged_total",
                "cxloe_mn_link_foreign_total",
                "cxloe_mn_link_unknown_peer_total",
                "cxloe_mn_link_up",
                "cxloe_mn_link_reopened_total",
            ]
        );
        assert_eq!(
            names(&CN),
            [
                "cxloe_cn_link_frames_total",
                "cxloe_cn_link_bytes_total",
                "cxloe_cn_link_receive_drops_total",
                "cxloe_cn_link_transmit_full_total",
                "cxloe_cn_link_transmit_errors_total",
                "cxloe_cn_link_forged_total",
                "cxloe_cn_link_foreign_total",
                "cxloe_cn_link_unknown_peer_total",
                "cxloe_cn_link_up",
                "cxloe_cn_link_reopened_total",
            ]
        );
    }
}
