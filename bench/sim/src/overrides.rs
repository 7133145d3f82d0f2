//! Values that the user sets in place of those that the scenario and the seed determine.

use std::fmt::Display;
use std::time::Duration;

use cxloe_cn_core::cache::CacheConfig;
use cxloe_fabric::hdm::{Granularity, Ways};
use cxloe_fabric::model::ByteSize;
use cxloe_net::impairment::Burst;
use cxloe_net::rate::Rate;
use cxloe_wire::frame::LINE_SIZE;
use cxloe_wire::random::Probability;

use crate::layout::Interleave;
use crate::plan::Plan;
use crate::planted_fault::PlantedFault;

/// Probability of loss up to which retransmission always succeeds, whatever the seed.
const HARMLESS_LOSS: f64 = 0.02;

/// Values that replace those of a [`Plan`]; `None` keeps the drawn value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// Share of the frames that are lost one by one: 1% or 0.01
    pub loss: Option<Probability>,

    /// Losses in bursts: probabilities that a burst begins and that it ends, at each frame, as in 0.1%/20%
    pub burst: Option<Burst>,

    /// Share of the frames that arrive twice
    pub duplicate: Option<Probability>,

    /// Share of the frames that others overtake
    pub reorder: Option<Probability>,

    /// Share of the frames in which bits are flipped
    pub corrupt: Option<Probability>,

    /// Share of the frames that arrive a second time, about 65 536 frames later
    pub late: Option<Probability>,

    /// Time from sending to arrival, as in 500ns or 10us
    pub delay: Option<Duration>,

    /// Maximum additional time, drawn for each frame
    pub jitter: Option<Duration>,

    /// Rate of every node's wire in each direction, as in 100Gbit
    pub link_rate: Option<Rate>,

    /// Number of faults to inject into nodes and network, of the scenario's kinds
    pub faults: Option<u64>,

    /// Number of compute nodes
    pub cns: Option<u8>,

    /// Number of workers of each compute node
    pub workers: Option<u8>,

    /// Number of memory nodes
    pub mns: Option<u8>,

    /// Number of operations that each compute node submits
    pub operations: Option<u64>,

    /// Interleave regions over this many memory nodes: 1, 2, 3, 4, 6, 8, 12 or 16
    pub ways: Option<Ways>,

    /// Interleave granularity: 256 to 16K
    pub granularity: Option<Granularity>,

    /// Maximum number of operations in flight of a compute node
    pub depth: Option<u16>,

    /// Maximum time from one operation of a compute node to its next
    pub think: Option<Duration>,

    /// Number of streams in each session
    pub streams: Option<u8>,

    /// Size of each compute node's line cache; 0 for none
    pub cache: Option<ByteSize>,

    /// Number of frames for which the receive queue of a memory node has room
    pub fifo: Option<u16>,

    /// Number of frames in the receive queue above which a memory node signals congestion; 0 for never
    pub threshold: Option<u16>,

    /// Number of frames that a memory node handles per microsecond; unlimited unless set
    pub service_rate: Option<f64>,

    /// Fault to plant into the nodes, to test the checks of a run
    pub plant: Option<PlantedFault>,
}

/// Returns a line cache of `size` bytes with four ways, as in the paper; it has fewer ways if it has fewer
/// lines than four.
pub fn line_cache(size: ByteSize) -> CacheConfig {
    let bytes = size.0 as usize;
    CacheConfig { bytes, ways: (bytes / LINE_SIZE).clamp(1, 4) }
}

fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

impl Overrides {
    /// Replaces the values of `plan` that the user has set. Clears `all_succeed` if these values may make an operation
    /// fail.
    pub(crate) fn apply(&self, plan: &mut Plan) {
        let faults = &mut plan.path.faults;
        set(&mut faults.drop, self.loss);
        set(&mut faults.duplicate, self.duplicate);
        set(&mut faults.reorder, self.reorder);
        set(&mut faults.corrupt, self.corrupt);
        faults.burst = self.burst.or(faults.burst);
        set(&mut plan.path.late, self.late);
        set(&mut plan.path.delay, self.delay);
        set(&mut plan.path.jitter, self.jitter);
        set(&mut plan.faults.count, self.faults);
        if let Some(n) = self.cns {
            plan.cns = plan.cns.iter().cycle().take(n.into()).cloned().collect();
        }
        if (self.mns, self.ways, self.granularity) != (None, None, None) {
            let planned = plan.interleave;
            let ways = self.ways.or(planned.map(|i| i.ways));
            let granularity =
                self.granularity.or(planned.map(|i| i.granularity)).unwrap_or(Granularity::PAGE);
            let least = ways.map_or(0, |ways| ways.count() as usize);
            let mns = self.mns.map_or(plan.mns.len().max(least), usize::from);
            plan.set_interleave(ways.map(|ways| Interleave { ways, granularity }), mns);
        }
        for cn in &mut plan.cns {
            set(&mut cn.operations, self.operations);
            set(&mut cn.depth, self.depth.map(usize::from));
            set(&mut cn.pause, self.think);
            set(&mut cn.streams, self.streams);
            set(&mut cn.workers, self.workers);
            set(&mut cn.cache, self.cache.map(line_cache));
        }
        for mn in &mut plan.mns {
            set(&mut mn.port.fifo_capacity, self.fifo.map(usize::from));
            set(&mut mn.port.fifo_threshold, self.threshold.map(usize::from));
            set(&mut mn.congestion.threshold, self.threshold.map(usize::from));
            set(&mut mn.service, self.service_rate.map(|rate| Duration::from_nanos((1e3 / rate) as u64)));
        }
        let ports =
            plan.cns.iter_mut().map(|cn| &mut cn.port).chain(plan.mns.iter_mut().map(|mn| &mut mn.port));
        for port in ports.filter(|_| self.link_rate.is_some()) {
            (port.egress, port.ingress) = (self.link_rate, self.link_rate);
        }
        let tame = self.loss.is_none_or(|p| p.get() <= HARMLESS_LOSS)
            && self.corrupt.is_none_or(|p| p.get() <= HARMLESS_LOSS)
            && (self.burst, self.faults, self.fifo, self.service_rate) == (None, None, None, None)
            && (self.delay, self.jitter, self.link_rate, self.cns) == (None, None, None, None);
        plan.limit_queues();
        if self.mns.is_none() {
            plan.give_each_worker_a_region();
        }
        plan.all_succeed &= tame;
        plan.mistake = self.plant;
    }

    /// Returns the command-line options that set the same values.
    pub fn arguments(&self) -> String {
        let time =
            |t: Option<Duration>| t.map(|t| humantime::format_duration(t).to_string().replace(' ', ""));
        let burst = self.burst.map(|b| format!("{}/{}/{}", b.enter, b.leave, b.loss));
        let parts = [
            option("loss", self.loss),
            option("burst", burst),
            option("duplicate", self.duplicate),
            option("reorder", self.reorder),
            option("corrupt", self.corrupt),
            option("late", self.late),
            option("delay", time(self.delay)),
            option("jitter", time(self.jitter)),
            option("link-rate", self.link_rate),
            option("faults", self.faults),
            option("cns", self.cns),
            option("workers", self.workers),
            option("mns", self.mns),
            option("ways", self.ways),
            option("granularity", self.granularity),
            option("operations", self.operations),
            option("depth", self.depth),
            option("think", time(self.think)),
            option("streams", self.streams),
            option("cache", self.cache.map(|size| size.0)),
            option("fifo", self.fifo),
            option("threshold", self.threshold),
            option("service-rate", self.service_rate),
            option("plant", self.plant),
        ];
        parts.concat()
    }
}

/// Formats an option, preceded by a blank; empty if there is no value.
fn option(name: &str, value: Option<impl Display>) -> String {
    value.map_or_else(String::new, |value| format!(" --{name} {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    fn drawn(scenario: Scenario, overrides: &Overrides) -> Plan {
        let mut plan = Plan::draw(scenario, 1);
        overrides.apply(&mut plan);
        plan
    }

    #[test]
    fn overrides_replace_drawn_values() {
        let rate = Rate::gbit_per_s(10);
        let overrides = Overrides {
            loss: Some(Probability::new(0.5).expect("a probability")),
            cns: Some(5),
            operations: Some(7),
            cache: Some(ByteSize(0)),
            service_rate: Some(4.0),
            link_rate: Some(rate),
            ..Overrides::default()
        };
        let plan = drawn(Scenario::Lossy, &overrides);
        assert_eq!((plan.path.faults.drop.get(), plan.cns.len()), (0.5, 5));
        assert!(plan.cns.iter().all(|cn| cn.operations == 7 && cn.cache == CacheConfig::OFF));
        assert!(plan.cns.iter().all(|cn| cn.port.egress == Some(rate)));
        assert_eq!(plan.mns[0].service, Duration::from_nanos(250));
        assert!(!plan.all_succeed, "half of the frames is too much");
        assert!(drawn(Scenario::Lossy, &Overrides::default()).all_succeed);
    }

    #[test]
    fn regions_are_spread_over_as_many_nodes_as_there_are() {
        let interleave = |ways: Option<Ways>, mns, scenario| {
            let granularity = ways.map(|_| Granularity::try_from(1024).expect("1K"));
            let plan = drawn(scenario, &Overrides { ways, granularity, mns, ..Overrides::default() });
            (plan.mns.len(), plan.interleave.map(|i| (i.ways.count(), i.granularity.bytes())))
        };
        let twelve = Some(Ways::Twelve);
        assert_eq!(interleave(twelve, None, Scenario::Calm), (12, Some((12, 1024))));
        assert_eq!(interleave(twelve, Some(11), Scenario::Calm), (11, Some((8, 1024))));
        assert_eq!(interleave(None, Some(3), Scenario::Calm), (3, None));
        assert!(interleave(None, None, Scenario::Interleaved).1.is_some_and(|(ways, _)| ways > 1));
    }
}
